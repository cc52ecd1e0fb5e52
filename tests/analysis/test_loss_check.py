"""Losses of other programs get the verdict they deserve: right ones, and ones that are wrong in a known way."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

import tercet
from tercet.objectives.distributed import all_gather_rows
from tercet.objectives.inputs import is_distributed


def clip(images, captions, scale=10.0, bias=0.0):
    S = scale * images @ captions.T + bias
    targets = torch.arange(len(S))
    return 0.5 * (cross_entropy(S, targets) + cross_entropy(S.T, targets))


def notes(report):
    return {check.name: check.note for check in report.checks if check.advice and check.note}


@pytest.mark.parametrize("takes", ["embeddings", "scale", "scale and bias"])
def test_a_right_loss_passes(takes):
    report = tercet.check_objective(clip, takes=takes, processes=False)
    assert report, str(report)
    names = [check.name for check in report.checks]
    assert names[:5] == ["finite differences", "upstream gradient", "float32", "GradScaler", "accumulation"]


def test_loops_that_accumulate_with_cached_embeddings_are_warned_of_a_learned_scale():
    report = tercet.check_objective(clip, takes="scale", processes=False)
    advice = "backward of all 2 parts adds its gradient 2 times: divide it by that number"
    assert notes(report) == {"accumulated scale": advice}
    shares = tercet.integrations.open_clip.Loss("nt-xent", accum_freq=2)
    given = tercet.check_objective(shares, takes="scale", processes=False)
    assert notes(given) == {}
    assert not given  # called once, its scale has half of its gradient
    assert given.failed == ["finite differences"]


def test_a_scale_without_gradient_fails():
    def detached(images, captions, scale):
        return clip(images, captions, scale.detach())

    report = tercet.check_objective(detached, takes="scale", processes=False)
    assert report.failed == ["finite differences"]
    assert "at scale" in str(report)


class Gathered(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, images, captions):
        if not is_distributed() or self.how == "alone":
            return clip(images, captions)
        sides = [all_gather_rows(side) for side in (images, captions)]
        if self.how == "no gradient":  # own rows only, as open_clip without --gather-with-grad
            own = slice(dist.get_rank() * len(images), (dist.get_rank() + 1) * len(images))
            for side, local in zip(sides, (images, captions), strict=True):
                side.detach_()
                side[own] = local
        return clip(*sides) * (2 if self.how == "multiplied" else 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "explanation"),
    [
        ("exact", None),
        ("alone", "negatives are not gathered"),
        ("no gradient", "half of it: rows of the other rank are gathered without gradient"),
        ("multiplied", "twice it: the loss is multiplied by the number of processes"),
    ],
)
def test_two_processes_are_explained(how, explanation):
    report = tercet.check_objective(Gathered(how), takes="embeddings")
    assert report.failed == ([] if explanation is None else ["two processes"]), str(report)
    assert explanation is None or explanation in str(report)


def metric_loss(embeddings, labels, *, ref_emb, ref_labels):
    S, same = 10 * embeddings @ ref_emb.T, (labels[:, None] == ref_labels).double()
    return -(same * S.log_softmax(dim=1)).sum() / len(S)


def test_losses_with_labels():
    assert tercet.check_objective(metric_loss, takes="labels", processes=False)


class Dropped(nn.Module):
    def forward(self, images, captions):
        return clip(nn.functional.dropout(images, 0.3), captions)


class Remembers(nn.Module):
    """The running mean of its values divides the loss."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.ones(()))

    def forward(self, images, captions):
        loss = clip(images, captions)
        self.mean = 0.5 * self.mean + 0.5 * loss.detach()
        return loss / self.mean


def test_random_and_stateful_losses_are_recognized():
    report = tercet.check_objective(Dropped(), takes="embeddings", processes=False)
    assert report, str(report)
    assert notes(report) == {"repeatable": "it draws random numbers; every row draws the same"}
    report = tercet.check_objective(Remembers(), takes="embeddings", processes=False)
    assert notes(report) == {"repeatable": "it remembers earlier calls; every row has its first state"}


def test_state_that_cannot_be_copied_is_the_only_thing_said():
    calls = []

    def counts(images, captions):
        calls.append(1)
        return clip(images, captions) * len(calls)

    def on_similarity(S, positives):
        calls.append(1)
        return (S * positives).sum() * len(calls)

    report = tercet.check_objective(counts, takes="embeddings", processes=False)
    assert report.failed == ["repeatable"]
    assert len(report.checks) == 1
    assert tercet.check_objective(on_similarity, processes=False).failed == ["repeatable"]


def test_what_is_returned_may_be_a_dict_and_must_be_a_scalar():
    assert tercet.check_objective(lambda x, y: {"loss": clip(x, y)}, takes="embeddings", processes=False)
    report = tercet.check_objective(lambda x, y: x @ y.T, takes="embeddings", processes=False)
    assert "expected a scalar loss, got (5, 5)" in str(report)
