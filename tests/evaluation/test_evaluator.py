"""Metrics against slow sorting in plain Python, and error messages."""

import doctest

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tercet
import tercet.evaluation.evaluator
from tercet.evaluation import evaluate_tiles, mean_of_tiles, tiles_of_blocks, tiles_of_embeddings, tiles_of_matrix
from tests.evaluation.reference import slow_metrics
from tests.examples import examples
from tests.objectives.batches import CASES


def random_case(images, captions, seed, levels=4, share=0.3):
    """Similarities of few distinct values, so that most are tied, and random positives, at least one."""
    generator = torch.Generator().manual_seed(seed)
    similarity = torch.randint(levels, (images, captions), generator=generator).double() / 3 - 0.5
    positives = torch.rand(images, captions, generator=generator) < share
    positives[seed % images, seed % captions] = True
    return similarity, positives


@pytest.mark.parametrize("ties", ["against", "optimistic"])
@pytest.mark.parametrize("decimals", [1, 6], ids=["many ties", "no ties"])
@pytest.mark.parametrize("case", CASES)
def test_metrics_equal_sorting_by_hand(case, decimals, ties):
    similarity, positives, _ = CASES[case]
    similarity = similarity.round(decimals=decimals)
    metrics = tercet.evaluate(similarity, positives, ties=ties)
    assert metrics == pytest.approx(slow_metrics(similarity, positives, ties), abs=1e-9)


@examples(50)
@given(
    images=st.integers(1, 30),
    captions=st.integers(1, 40),
    seed=st.integers(0, 10**6),
    levels=st.sampled_from([1, 2, 5, 1000]),
    share=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    ties=st.sampled_from(["against", "optimistic"]),
)
def test_any_shape_ties_and_positives_equal_sorting_by_hand(images, captions, seed, levels, share, ties):
    similarity, positives = random_case(images, captions, seed, levels, share)
    metrics = tercet.evaluate(similarity, positives, ties=ties)
    assert metrics == pytest.approx(slow_metrics(similarity, positives, ties), abs=1e-9)


@examples(25)
@given(images=st.integers(1, 6), captions=st.integers(1, 6), seed=st.integers(0, 10**6), levels=st.integers(1, 4))
def test_expected_metrics_are_the_mean_over_all_orders_of_what_is_tied(images, captions, seed, levels):
    similarity, positives = random_case(images, captions, seed, levels)
    metrics = tercet.evaluate(similarity, positives, ties="expected")
    expected = slow_metrics(similarity, positives, "expected")
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=1e-9)


@examples(20)
@given(images=st.integers(1, 12), captions=st.integers(1, 12), seed=st.integers(0, 10**6))
def test_neither_order_nor_scale_matters_and_transposing_swaps_the_directions(images, captions, seed):
    similarity, positives = random_case(images, captions, seed)
    metrics = tercet.evaluate(similarity, positives)
    generator = torch.Generator().manual_seed(seed)
    rows, columns = torch.randperm(images, generator=generator), torch.randperm(captions, generator=generator)
    permuted = tercet.evaluate(similarity[rows][:, columns] * 4 + 1, positives[rows][:, columns])
    assert permuted == pytest.approx(metrics, abs=1e-9)
    transposed = tercet.evaluate(similarity.T, positives.T)
    assert transposed["t2i_map_r"] == pytest.approx(metrics["i2t_map_r"])
    assert transposed["i2t_meanr"] == pytest.approx(metrics["t2i_meanr"])


@examples(20)
@given(images=st.integers(1, 12), captions=st.integers(1, 12), seed=st.integers(0, 10**6))
def test_expected_is_between_against_and_optimistic(images, captions, seed):
    case = random_case(images, captions, seed)
    low, middle, high = (tercet.evaluate(*case, ties=ties) for ties in ("against", "expected", "optimistic"))
    for name in ("rsum", "i2t_r1", "t2i_map_r", "i2t_ndcg", "i2t_map5"):
        assert low[name] - 1e-9 <= middle[name] <= high[name] + 1e-9
    assert high["i2t_meanr"] - 1e-9 <= middle["i2t_meanr"] <= low["i2t_meanr"] + 1e-9


OWNERS = torch.arange(40).repeat_interleave(5)


@pytest.mark.parametrize("dim", [1, 7, 64, 1024])
def test_a_collapsed_model_scores_zero_or_chance_when_expected(dim):
    generator = torch.Generator().manual_seed(dim)
    x, y = torch.randn(1, dim, generator=generator), torch.randn(1, dim, generator=generator)
    x, y = x.expand(40, dim), y.expand(200, dim)
    assert tercet.evaluate_embeddings(x, y, OWNERS)["rsum"] == 0
    chance = tercet.evaluate_embeddings(x, y, OWNERS, ties="expected")
    assert chance["t2i_r1"] == pytest.approx(100 / 40)
    assert chance["t2i_r10"] == pytest.approx(1000 / 40)
    assert chance["i2t_r1"] == pytest.approx(100 * 5 / 200)
    assert chance["t2i_meanr"] == pytest.approx(20.5)
    assert tercet.evaluate_embeddings(x, y, OWNERS, ties="optimistic")["rsum"] == 600


def test_embeddings_blocks_and_a_matrix_give_equal_metrics():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 16, generator=generator, dtype=torch.float64)
    y = x[OWNERS] + 2 * torch.randn(200, 16, generator=generator, dtype=torch.float64)
    order = torch.randperm(200, generator=generator)  # captions of an image need not be adjacent
    y, owners = y[order], OWNERS[order]
    positives = torch.arange(40)[:, None] == owners[None, :]
    metrics = tercet.evaluate(x @ y.T, positives)
    assert tercet.evaluate_embeddings(x, y, owners) == metrics
    blocks = tiles_of_blocks(lambda a, b: a @ b.T, x, y, entries=300)
    for tiles in (tiles_of_matrix(x @ y.T), blocks, mean_of_tiles([blocks, tiles_of_embeddings(x, y)])):
        assert evaluate_tiles(tiles, owners).metrics == metrics


def test_half_precision_is_ranked_in_single_precision():
    """Two captions whose products differ by less than half precision resolves."""
    x = torch.tensor([[1.0, 1.0]], dtype=torch.bfloat16)
    y = torch.tensor([[1.0, 0.0078125 / 4], [1.0, 0.0]], dtype=torch.bfloat16)
    metrics = tercet.evaluate_embeddings(x.repeat(2, 1), y, torch.tensor([0, 1]))
    assert metrics["i2t_meanr"] == 1.5  # only the second image's caption ranks second


def test_a_matrix_is_not_modified():
    similarity, positives = random_case(6, 9, seed=0)
    before = similarity.clone()
    tercet.evaluate(similarity, positives)
    assert torch.equal(similarity, before)


def test_nothing_to_rank_is_an_error(without_shape_checks):
    with pytest.raises(ValueError, match="nothing to evaluate"):
        tercet.evaluate(torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match="NaN"):
        tercet.evaluate(torch.full((2, 2), torch.nan), torch.eye(2, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"\(3, 2\).*\(2, 3\)"):
        tercet.evaluate(torch.zeros(2, 3), torch.zeros(3, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match="must be tensors"):
        tercet.evaluate([[0.0]], torch.ones(1, 1, dtype=torch.bool))
    with pytest.raises(ValueError, match="'pessimistic' is not one of against, expected, optimistic"):
        tercet.evaluate(torch.zeros(2, 2), torch.eye(2, dtype=torch.bool), ties="pessimistic")


WRONG_EMBEDDINGS = {
    r"given \(3, 2\) and \(3, 5\)": (torch.ones(3, 2), torch.ones(3, 5)),
    "given ndarray and": (torch.ones(3, 2).numpy(), torch.ones(3, 2)),
    "floating point, given torch.int64": (torch.ones(3, 2, dtype=torch.int64), torch.ones(3, 2)),
    "NaN or infinity": (torch.full((3, 2), torch.inf), torch.ones(3, 2)),
    "similarity contains NaN": (torch.ones(3, 2), torch.tensor([[1.0, 1.0], [torch.nan, 1.0], [1.0, 1.0]])),
    "6 captions of 3 images need owners": (torch.ones(3, 2), torch.ones(6, 2)),
    "0 images": (torch.ones(0, 2), torch.ones(0, 2)),
    "one integer for each of 3 captions, given torch.int64 \\(2,\\)": (
        torch.ones(3, 2), torch.ones(3, 2), torch.tensor([0, 1])),
    "given torch.float32": (torch.ones(3, 2), torch.ones(3, 2), torch.ones(3)),
    "0 to 2, found 3": (torch.ones(3, 2), torch.ones(3, 2), torch.tensor([0, 1, 3])),
    "0 to 2, found -1": (torch.ones(3, 2), torch.ones(3, 2), torch.tensor([0, -1, 2])),
}  # fmt: skip


@pytest.mark.parametrize("message", WRONG_EMBEDDINGS)
def test_wrong_embeddings_are_refused_in_one_line(message, without_shape_checks):
    with pytest.raises(ValueError, match=message) as error:
        tercet.evaluate_embeddings(*WRONG_EMBEDDINGS[message])
    assert "\n" not in str(error.value)


def test_infinity_in_a_block_is_refused():
    def similarity(a, b):
        return torch.where((a[:, :1] == 1) & (b[:, 0] == 1), torch.inf, a @ b.T)

    x = torch.arange(4.0)[:, None]
    with pytest.raises(ValueError, match="NaN or infinity"):
        evaluate_tiles(tiles_of_blocks(similarity, x, x, entries=1))
    with pytest.raises(ValueError, match=r"must return shape \(4, 4\) \(images, captions\), got \(4, 3\)"):
        evaluate_tiles(tiles_of_blocks(lambda a, b: (a @ b.T)[:, 1:], x, x))


def test_an_ensemble_needs_members_of_one_shape():
    one, other = tiles_of_matrix(torch.zeros(2, 3)), tiles_of_matrix(torch.zeros(3, 3))
    with pytest.raises(ValueError, match=r"\(2, 3\), \(3, 3\)"):
        mean_of_tiles([one, other])
    with pytest.raises(ValueError, match="given none"):
        mean_of_tiles([])


def test_docstring_examples_are_true():
    outcome = doctest.testmod(tercet.evaluation.evaluator)
    assert outcome.failed == 0
    assert outcome.attempted > 0
