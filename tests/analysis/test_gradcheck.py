"""Registered objectives pass the gradient check; objectives broken on purpose fail the right checks."""

import pytest
import torch

import tercet
from tercet.objectives import AOQ_OBJECTIVES, OBJECTIVES, distributed
from tercet.objectives.hardest_triplet import HardestTriplet
from tercet.objectives.inputs import is_distributed


@pytest.mark.parametrize("name", [*OBJECTIVES, *AOQ_OBJECTIVES])
def test_registered_objectives_pass(name):
    report = tercet.check_objective(
        name, processes=name in ("triplet", "nt-xent", "smooth-ap", "sigmoid", "cir/sig-ms", "aoq")
    )
    assert report, str(report)


def test_user_defined_objectives_pass():
    def clip(similarity, positives):
        target = positives / positives.sum(dim=1, keepdim=True)
        return torch.nn.functional.cross_entropy(similarity / 0.1, target.to(similarity.dtype))

    for subject in (clip, (lambda p, n: torch.sigmoid(n - p), torch.ones_like, torch.ones_like)):
        report = tercet.check_objective(subject)
        assert report, str(report)


class WrongSign(HardestTriplet):
    def row_gradient(self, rows):
        return -super().row_gradient(rows)


def pulls_negatives(similarity, positives):
    return positives.to(similarity.dtype) - (~positives).to(similarity.dtype)


class _HingeGradient(torch.autograd.Function):
    """triplet-sh on embeddings as a user might write it; `broken` selects an error in its backward."""

    @staticmethod
    def forward(ctx, images, captions, objective, positives, broken):
        similarity = images @ captions.T
        ctx.gradients = objective.pair_gradients(similarity, positives)
        ctx.embeddings, ctx.positives, ctx.broken = (images, captions), positives, broken
        return objective.value(similarity, positives)

    @staticmethod
    def backward(ctx, upstream):
        images, captions = ctx.embeddings
        i2t, t2i = ctx.gradients
        for_images = (i2t + t2i) @ captions
        if ctx.broken == "scatter":  # omits the gradient of images as hardest negatives, as GOAL's Eq. 3
            for_images = (i2t + t2i * ctx.positives) @ captions
        upstream = torch.ones_like(upstream) if ctx.broken == "upstream" else upstream
        return upstream * for_images, upstream * (i2t + t2i).T @ images, None, None, None


class Delivers(HardestTriplet):
    """The right pair gradient, wrongly delivered to the embeddings."""

    def __call__(self, images, captions, *, image_ids, caption_ids):
        if is_distributed():
            ids = image_ids, caption_ids
            images, captions, ids = distributed.gather_batch(images, captions, *ids, {"image_ids=": True})
            image_ids, caption_ids = ids
            if self.broken == "world size":  # the same value, its gradient divided by the number of processes
                images, captions = (x / 2 + x.detach() / 2 for x in (images, captions))
        positives = image_ids[:, None] == caption_ids[None, :]
        return _HingeGradient.apply(images, captions, HardestTriplet(), positives, self.broken)


def delivers(broken):
    return type("Delivers", (Delivers,), {"broken": broken, "can_stream": False})()


def test_correct_delivery_passes():
    report = tercet.check_objective(delivers("nothing"))
    assert report, str(report)


@pytest.mark.parametrize(
    ("subject", "reasons"),
    [
        (
            WrongSign(),
            [
                "autograd of value",
                "finite differences",
                "sign",
                "delivered to embeddings",
                "streamed",
                "streamed in tiles",
            ],
        ),
        (pulls_negatives, ["sign"]),
        (delivers("scatter"), ["delivered to embeddings"]),
        (delivers("upstream"), ["upstream gradient"]),
        (delivers("world size"), ["two processes"]),
    ],
    ids=["wrong sign", "wrong sign, no value", "missing scatter term", "ignored upstream", "1 / world size"],
)
def test_broken_ones_fail_for_the_right_reason(subject, reasons):
    report = tercet.check_objective(subject)
    assert report.failed == reasons, str(report)
    assert not report
    assert "FAIL" in str(report)


def test_the_position_of_the_largest_difference_is_reported():
    report = tercet.check_objective(delivers("scatter"), processes=False)
    (check,) = [check for check in report.checks if not check.passed]
    assert "at images[" in check.note
    assert "expected" in check.note


def test_a_loss_on_embeddings_can_be_checked_too():
    def good(images, captions):
        return torch.nn.functional.cross_entropy(images @ captions.T / 0.1, torch.arange(len(images)))

    def forgets_captions(images, captions):
        return good(images, captions.detach())

    assert tercet.check_objective(good, takes="embeddings", processes=False)
    report = tercet.check_objective(forgets_captions, takes="embeddings", processes=False)
    assert report.failed == ["finite differences"]
    assert "captions[" in str(report)


def test_a_loss_without_all_gather_fails_with_two_processes():
    def local_only(images, captions):
        return torch.nn.functional.cross_entropy(images @ captions.T / 0.1, torch.arange(len(images)))

    assert tercet.check_objective(local_only, takes="embeddings").failed == ["two processes"]


def test_checks_that_do_not_apply_are_reported():
    report = tercet.check_objective("con/lin", processes=False)
    assert "not checked: it has no value" in str(report)
    with pytest.raises(ValueError, match="takes must be None or 'embeddings'"):
        tercet.check_objective("con/lin", takes="words")


def test_small_gradients_are_checked_as_closely_as_large_ones():
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, images, captions):
            ctx.shapes = images.shape, captions.shape
            return 1e-7 * (images @ captions.T).square().sum()

        @staticmethod
        def backward(ctx, upstream):
            return tuple(-1e-7 * upstream * torch.ones(shape, dtype=torch.float64) for shape in ctx.shapes)

    report = tercet.check_objective(lambda x, y: Wrong.apply(x, y), takes="embeddings", processes=False)
    assert "finite differences" in report.failed


def test_a_gradient_that_is_zero_everywhere_does_not_pass():
    assert not tercet.check_objective(lambda similarity, positives: torch.zeros_like(similarity), processes=False)
    assert not tercet.check_objective(lambda x, y: 0 * (x.sum() + y.sum()), takes="embeddings", processes=False)


def test_a_stream_that_is_wrong_with_several_tiles_fails():
    class Doubles(HardestTriplet):
        def stream(self, tiles, into):
            scalar = super().stream(tiles, into)
            return scalar * 2 if tiles.tile_size < 12 else scalar

    assert tercet.check_objective(Doubles(), processes=False).failed == ["streamed in tiles"]


def test_an_objective_that_raises_fails():
    def needs_a_square(similarity, positives):
        return torch.nn.functional.cross_entropy(similarity.T, torch.arange(similarity.shape[0]))

    report = tercet.check_objective(needs_a_square)
    assert report.failed == ["runs"]
    assert "5 images x 12 captions" in str(report)
