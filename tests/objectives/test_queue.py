"""A queue's entries are candidates without a gradient: loops over its definition, the ring, distributed, refusals."""

import pytest
import torch

import tercet
from tercet.analysis.cocos import cocos_with_queue
from tercet.analysis.gradcheck import gradients_of_two_processes
from tercet.objectives import OBJECTIVES
from tercet.objectives.streaming.tiles import EmbeddedBatch
from tests.examples import others_slow
from tests.objectives.loops import one_direction

NAMES = ["triplet-sh", "nt-xent", "cir/sig-ms", "sigmoid", "multi-similarity", "triplet", "smooth-ap"]
EVERY = others_slow([*NAMES, *(name for name in OBJECTIVES if name not in NAMES)], 5)


def unit(rows, seed, dim=6):
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(rows, dim, generator=generator, dtype=torch.float64), dim=1)


IMAGE_IDS, CAPTION_IDS = torch.tensor([3, 1, 4]), torch.tensor([3, 1, 4, 3, 1, 9])
EARLIER = {"image_ids": torch.tensor([8, 1, 7, 8]), "caption_ids": torch.tensor([5, 3, 8, 1, 6])}
IDS = {"image_ids": IMAGE_IDS, "caption_ids": CAPTION_IDS}


def filled():
    queue = tercet.Queue(16)
    queue.push(unit(4, 2), unit(5, 3), **EARLIER)
    return queue


def by_loops(objective, anchors, anchor_ids, candidates, candidate_ids, batch_candidates):
    """(G, value) of one direction: entries behind the batch are ignored if they have the anchor's id."""
    same = anchor_ids[:, None] == candidate_ids[None, :]
    in_batch = torch.arange(len(candidate_ids)) < batch_candidates
    matrices = (anchors @ candidates.T, same & in_batch, same & ~in_batch)
    gradient, value = one_direction(objective, *(matrix.tolist() for matrix in matrices))
    return torch.tensor(gradient, dtype=torch.float64), value


@pytest.mark.parametrize("name", EVERY)
def test_the_gradient_equals_loops_over_the_definition(name):
    o, x, y = tercet.objective(name), unit(3, 0).requires_grad_(), unit(6, 1).requires_grad_()
    scalar = o(x, y, **IDS, queue=filled())
    (2.5 * scalar).backward()
    images, captions = torch.cat([x.detach(), unit(4, 2)]), torch.cat([y.detach(), unit(5, 3)])
    image_ids = torch.cat([IMAGE_IDS, EARLIER["image_ids"]])
    caption_ids = torch.cat([CAPTION_IDS, EARLIER["caption_ids"]])
    i2t, image_value = by_loops(o, images[:3], IMAGE_IDS, captions, caption_ids, 6)
    t2i, caption_value = by_loops(o, captions[:6], CAPTION_IDS, images, image_ids, 3)
    expected_x = i2t @ captions + t2i[:, :3].T @ captions[:6]
    expected_y = t2i @ images + i2t[:, :6].T @ images[:3]
    torch.testing.assert_close(x.grad, 2.5 * expected_x, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(y.grad, 2.5 * expected_y, rtol=1e-10, atol=1e-10)
    if image_value is not None:
        torch.testing.assert_close(scalar.item(), image_value + caption_value, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", [*OBJECTIVES, "nt-xent + 0.1*cir/sig-ms", "nt-xent:learn=temperature"])
def test_an_empty_queue_changes_nothing(name):
    results = []
    for queue in (tercet.Queue(4), None):
        x, y = unit(3, 0).requires_grad_(), unit(6, 1)
        scalar = tercet.objective(name)(x, y, **IDS, queue=queue)
        scalar.backward()
        results.append((scalar.detach(), x.grad))
    if name == "sigmoid:bias=batch":
        return
    torch.testing.assert_close(results[0], results[1], rtol=1e-11, atol=1e-11)


def test_the_oldest_entries_leave():
    queue, captions = tercet.Queue(5), torch.arange(12.0)[:, None].expand(12, 2)
    for start in range(0, 12, 3):
        ids = torch.arange(start, start + 3)
        queue.push(captions[ids], captions[ids], image_ids=ids, caption_ids=ids)
    assert len(queue) == 5
    x = torch.ones(1, 2)
    of_images, _, ignored = queue.directions(EmbeddedBatch(x, x, (torch.tensor([9]), torch.tensor([9]))))[0]
    assert sorted((of_images[0, 1:] / 2).tolist()) == [7, 8, 9, 10, 11]
    assert (of_images[0, ignored[0]] / 2).tolist() == [9]
    queue.push(captions, captions, image_ids=torch.arange(12), caption_ids=torch.arange(12))
    assert sorted(queue.directions(EmbeddedBatch(x, x, (torch.tensor([0]), torch.tensor([0]))))[0][0][0, 1:] / 2) == [
        7, 8, 9, 10, 11
    ]  # fmt: skip


def test_a_saved_queue_goes_on_as_it_was():
    queue, other = filled(), tercet.Queue(16)
    other.load_state_dict(queue.state_dict())
    x, y = unit(3, 0), unit(6, 1)
    for each in (queue, other):
        each.push(unit(14, 5), unit(14, 6), image_ids=torch.arange(14), caption_ids=torch.arange(14) + 3)
    o = tercet.objective("nt-xent")
    assert torch.equal(o(x, y, **IDS, queue=queue), o(x, y, **IDS, queue=other))
    with pytest.raises(ValueError, match="saved queue has size 16, this one 4"):
        tercet.Queue(4).load_state_dict(queue.state_dict())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda o, x, y, q: o(x, x, queue=q), "needs image_ids= and caption_ids="),
        (lambda o, x, y, q: o(x, y, owners=torch.arange(6) % 3, queue=q), "needs image_ids= and caption_ids="),
        (lambda o, x, y, q: o(x, y, **IDS, queue=q, streamed=True), "nt-xent with a queue .* cannot be streamed"),
        (lambda o, x, y, q: tercet.objective("aoq")(x, y, mined=(x, y), queue=q), "aoq has mined negatives of its own"),
        (lambda o, x, y, q: tercet.objective(lambda S, P: -S[P].mean())(x, y, **IDS, queue=q), "loss of both direct"),
        (lambda o, x, y, q: tercet.Queue(0), "whole number of at least 1, got 0"),
        (lambda o, x, y, q: q.push(unit(3, 0, 4), unit(6, 0, 4), **IDS), "holds 6 dims, got 4"),
    ],
)
def test_what_has_no_meaning_is_refused(call, message, without_shape_checks):
    with pytest.raises(ValueError, match=message):
        call(tercet.objective("nt-xent"), unit(3, 0), unit(6, 1), filled())


class WithQueue:
    """Adds a variant of the batch to a queue, and compares the batch with it."""

    def __init__(self, name):
        self.objective = tercet.objective(name)

    def __call__(self, x, y, *, image_ids, caption_ids):
        queue = tercet.Queue(64)
        queue.push(x.flip(1), y.flip(1), image_ids=image_ids + 20, caption_ids=caption_ids + 20)
        return self.objective(x, y, image_ids=image_ids, caption_ids=caption_ids, queue=queue)


@pytest.mark.parametrize("name", ["nt-xent", pytest.param("cir/sig-ms", marks=pytest.mark.slow)])
def test_two_processes_equal_one_on_the_whole_batch(name):
    images, captions = unit(5, 0), unit(12, 1)
    ids = {"image_ids": torch.arange(5), "caption_ids": torch.arange(12) % 5}
    result = gradients_of_two_processes(WithQueue(name), images, captions, ids)
    assert not isinstance(result, str), result
    for key, expected in result[1].items():
        torch.testing.assert_close(result[0][key], expected, rtol=1e-10, atol=1e-10)


def test_counts_include_the_entries():
    batch = EmbeddedBatch(unit(3, 0), unit(6, 1), (IMAGE_IDS, CAPTION_IDS))
    counts = cocos_with_queue(tercet.objective("binomial-deviance", beta=0.1), filled(), batch)
    # Every negative has |g| > 1 % of the largest: 4 (2 positives), 4 and 5 of the batch, 5 of the queue but own ones.
    assert counts["i2t"]["negatives"] == pytest.approx((4 + 4 + 4 + 4 + 5 + 5) / 3)
