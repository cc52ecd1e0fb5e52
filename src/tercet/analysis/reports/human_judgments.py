"""Share of an objective's push that falls on negatives that people judged as matching."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from tercet.analysis.reports.loaded_run import LoadedRun
from tercet.data.flickr8k_judgments import UNJUDGED, YES, Judgments
from tercet.data.samplers import BatchIndices, pair_batches
from tercet.objectives import RowObjective
from tercet.reporting.output_formats import Cell, Table

SHUFFLES = 24  # epochs over the judged captions: a judged pair only counts in a batch that contains both of its items
DRAWS = 2000  # bootstrap samples
LEVEL = 0.95
ALL, JUDGED, MATCHING = range(3)


@dataclass(frozen=True)
class Push:
    """Summed push of an objective, by the pair's image and the image that owns the pair's caption.

    The three matrices are the push on all negatives, on judged negatives and on negatives judged as matching.
    """

    objective: str
    sums: Float[np.ndarray, "3 image owner"]

    def content(self) -> dict[str, Any]:
        """Content for JSON."""
        values = {"share": self.share(), "interval": list(self.interval()), "judged": self.judged_share()}
        return {"objective": self.objective, **values, "at_least": self.at_least()}

    def share(self) -> float:
        """Share of the push on judged negatives that falls on matching ones."""
        return _ratio(self.sums[MATCHING], self.sums[JUDGED])

    def at_least(self) -> float:
        """Share of all push that falls on pairs known to match: a lower bound, since unjudged pairs may match too."""
        return _ratio(self.sums[MATCHING], self.sums[ALL])

    def judged_share(self) -> float:
        """Share of all push that falls on judged pairs."""
        return _ratio(self.sums[JUDGED], self.sums[ALL])

    def interval(self) -> tuple[float, float]:
        """Bootstrap interval of `share` over images. A pair has two images, and both are resampled."""
        return _percentiles(self.bootstrap_shares())

    def bootstrap_shares(self) -> Float[np.ndarray, " draw"]:
        """Shares over resampled images; the same samples for every objective, so that differences can be tested."""
        images = self.sums.shape[1]
        weights = np.random.default_rng(0).multinomial(images, np.full(images, 1 / images), DRAWS).astype(np.float64)
        judged, matching = (((weights @ self.sums[kind]) * weights).sum(axis=1) for kind in (JUDGED, MATCHING))
        return matching / np.where(judged > 0, judged, np.nan)


def difference(first: Push, second: Push) -> tuple[float, float]:
    """Bootstrap interval of the first share minus the second, over the same images."""
    return _percentiles(first.bootstrap_shares() - second.bootstrap_shares())


def push_on_judged(
    loaded: LoadedRun, objective: RowObjective, judgments: Judgments, *, label: str | None = None, batch_size: int = 128
) -> Push:
    """Push of an objective in batches of judged held-out captions with their images, composed as in training."""
    images, captions = loaded.encoded_held_out
    owners = loaded.held_out.owners
    sums = np.zeros((3, len(images), len(images)))
    for indices in judged_batches(judgments, owners.numpy(), batch_size):
        caption_rows = torch.from_numpy(judgments.captions)[indices.captions]
        similarity = loaded.similarity(images[indices.images][:], captions[caption_rows][:]).double()
        positives = indices.images[:, None] == owners[caption_rows][None, :]
        verdicts = judgments.verdicts[np.ix_(indices.images.numpy(), indices.captions.numpy())]
        i2t, t2i = objective.pair_gradients(similarity, positives)
        # Clamped because lin pulls a negative with a similarity below 0.
        push = ((i2t.clamp(min=0) + t2i.clamp(min=0)) * ~positives).numpy()
        pairs = np.ix_(indices.images.numpy(), owners[caption_rows].numpy())
        for kind, values in (
            (ALL, push),
            (JUDGED, push * (verdicts != UNJUDGED)),
            (MATCHING, push * (verdicts == YES)),
        ):
            np.add.at(sums[kind], pairs, values)
    return Push(label or objective.name, sums)


def judged_batches(
    judgments: Judgments, owners: Int[np.ndarray, " caption"], batch_size: int, shuffles: int = SHUFFLES
) -> list[BatchIndices]:
    """Shuffled batches; caption indices are positions in `judgments.captions`."""
    judged_owners = torch.from_numpy(owners[judgments.captions])
    size = min(batch_size, len(judged_owners))
    return [indices for epoch in range(shuffles) for indices in pair_batches(judged_owners, size, seed=0, epoch=epoch)]


def even_share(judgments: Judgments, owners: Int[np.ndarray, " caption"]) -> float:
    """The share if all judged negatives were pushed equally."""
    negatives = np.arange(len(judgments.verdicts))[:, None] != owners[judgments.captions][None, :]
    judged = negatives & (judgments.verdicts != UNJUDGED)
    return float((judgments.verdicts[judged] == YES).mean())


def table(pushes: Sequence[Push], even: float) -> Table:
    """One row per objective."""
    rows = []
    for push in pushes:
        low, high = push.interval()
        cells = [f"{100 * push.share():.1f}", f"{100 * low:.1f} to {100 * high:.1f}", f"{push.share() / even:.1f}"]
        cells += [f"{100 * push.judged_share():.1f}", f"{100 * push.at_least():.2f}"]
        rows.append((push.objective, [Cell(text) for text in cells]))
    title = (
        "Push on negatives that people judged as matching, % of the push on judged negatives "
        f"({100 * even:.1f} if all were pushed equally)"
    )
    return Table(
        title, ("objective", "share", "95 % interval", "times even", "judged, % of push", "at least, % of push"), rows
    )


def _percentiles(values: Float[np.ndarray, " draw"]) -> tuple[float, float]:
    low, high = np.nanquantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> float:
    return float(numerator.sum() / denominator.sum()) if denominator.sum() else float("nan")
