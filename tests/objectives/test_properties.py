"""Properties of every registered objective on random rectangular batches with ids and ignored pairs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tercet
from tercet.objectives import OBJECTIVES
from tests.examples import examples
from tests.objectives.batches import CASES

EVERY = [(name, reading) for name in OBJECTIVES for reading in (("paper", "code") if "/" in name else (None,))]
every_objective = pytest.mark.parametrize(("name", "reading"), EVERY, ids=[f"{n}-{r}" if r else n for n, r in EVERY])
quick = examples(15, derandomize=True)


def build(name, reading, **more):
    return tercet.objective(name, **({"reading": reading} if reading else {}), **more)


@st.composite
def batches(draw):
    """A few images and captions with few distinct ids, so that queries have several positives or none."""
    images, captions = draw(st.integers(1, 5)), draw(st.integers(1, 7))
    ids = st.integers(0, 3)
    image_ids = torch.tensor(draw(st.lists(ids, min_size=images, max_size=images)))
    caption_ids = torch.tensor(draw(st.lists(ids, min_size=captions, max_size=captions)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    similarity = torch.empty(images, captions, dtype=torch.float64).uniform_(-1, 1, generator=generator)
    ignored = torch.rand(images, captions, generator=generator) < draw(st.sampled_from([0.0, 0.3, 1.0]))
    return similarity, image_ids[:, None] == caption_ids[None, :], ignored


def close(actual, expected, atol=1e-10):
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=atol)


@every_objective
@given(batches())
@quick
def test_transposing_swaps_the_directions(name, reading, batch):
    o = build(name, reading)
    i2t, t2i = o.pair_gradients(*batch)
    swapped_i2t, swapped_t2i = o.pair_gradients(*(matrix.T for matrix in batch))
    close(swapped_i2t.T, t2i)
    close(swapped_t2i.T, i2t)


@every_objective
@given(batches(), st.randoms(use_true_random=False))
@quick
def test_the_order_of_images_and_captions_does_not_matter(name, reading, batch, random):
    o = build(name, reading)
    rows, columns = list(range(batch[0].shape[0])), list(range(batch[0].shape[1]))
    random.shuffle(rows)
    random.shuffle(columns)
    close(o.pair_gradient(*(m[rows][:, columns] for m in batch)), o.pair_gradient(*batch)[rows][:, columns])


@every_objective
@given(batches())
@quick
def test_directions_add_up_and_ignored_entries_are_exactly_zero(name, reading, batch):
    o = build(name, reading)
    i2t, t2i = o.pair_gradients(*batch)
    both = o.pair_gradient(*batch)
    close(i2t + t2i, both, atol=0)
    assert not both[batch[2]].any()


@every_objective
@given(batches())
@quick
def test_a_query_without_a_positive_is_a_zero_row_and_is_not_counted(name, reading, batch):
    o = build(name, reading, reduction="mean")
    _, positives, ignored = batch
    i2t, _ = o.pair_gradients(*batch)
    is_query = (positives & ~ignored).any(dim=1)
    assert not i2t[~is_query].any()
    if "ms" not in name:  # relative sets use the positives of the whole batch; there are none in these rows
        alone, _ = o.pair_gradients(*(matrix[is_query] for matrix in batch))
        close(i2t[is_query], alone)


@every_objective
@given(batches())
@quick
def test_similarity_and_label_of_an_ignored_pair_do_not_matter(name, reading, batch):
    o = build(name, reading)
    similarity, positives, ignored = batch
    other = torch.where(ignored, similarity * -7 + 3, similarity)
    close(o.pair_gradient(other, positives ^ ignored, ignored), o.pair_gradient(*batch), atol=0)


PULL_ALONE = ("nt-xent", "smooth-ap", "sigmoid", "binomial-deviance")
TRIPLETS = [(name, reading) for name, reading in EVERY if name not in PULL_ALONE]


@pytest.mark.parametrize(("name", "reading"), TRIPLETS)
@given(batches())
@quick
def test_a_query_without_a_triplet_is_a_zero_row(name, reading, batch):
    _, positives, ignored = batch
    i2t, _ = build(name, reading).pair_gradients(*batch)
    no_negative = ~(~positives & ~ignored).any(dim=1)
    assert not i2t[no_negative].any()


PULLS_AND_PUSHES = [(n, r) for n, r in EVERY if "lin" not in n]


@pytest.mark.parametrize(("name", "reading"), PULLS_AND_PUSHES)
@given(batches())
@quick
def test_positives_are_pulled_and_negatives_pushed(name, reading, batch):
    """Except lin, whose weight of a negative is its similarity; smooth-ap may push a positive above another."""
    _, positives, _ = batch
    gradient = build(name, reading).pair_gradient(*batch)
    assert (gradient[~positives] >= 0).all()
    if name != "smooth-ap":
        # several positives of nt-xent share one unit of pull: one with more than its share is pushed
        assert (gradient[positives] <= 0).all() or name == "nt-xent"


@every_objective
def test_equal_negatives_push_the_lowest_index(name, reading):
    """Objectives with one negative push the lowest index; the others push equal negatives equally."""
    similarity = torch.tensor([[0.5, 0.4, 0.4, 0.4]], dtype=torch.float64)
    positives = torch.tensor([[True, False, False, False]])
    pushed = build(name, reading).pair_gradients(similarity, positives)[0][0, 1:]
    if "/" not in name and name != "triplet-sh":
        close(pushed, pushed[:1].expand(3))
    else:
        assert pushed[0] > 0
        assert not pushed[1:].any()


def test_these_properties_can_fail():
    """A gradient without the second direction violates the transposition property."""
    o = tercet.objective("triplet-sh")
    case = CASES["house 3 x 15"]
    with pytest.raises(AssertionError):
        close(o.pair_gradients(case.similarity.T, case.positives.T)[0].T, o.pair_gradients(*case[:2])[0])


def test_con_con_equals_triplet_sh():
    for case in CASES.values():
        for margin in (0.05, 0.2):
            one, other = tercet.objective("con/con", margin=margin), tercet.objective("triplet-sh", margin=margin)
            close(one.pair_gradient(*case), other.pair_gradient(*case), atol=0)
            close(one.value(*case), other.value(*case), atol=0)
