"""Named evaluation protocols and their input checks. A metric under a protocol's name follows that protocol exactly."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from tercet.evaluation.blocked_similarity import Tiles
from tercet.evaluation.eccv_caption import annotated_positives, coco_test, is_installed
from tercet.evaluation.metrics import direction_metrics, metrics_of
from tercet.evaluation.positives import Positives
from tercet.evaluation.ranks import Ranks, concat_ranks, rank_annotations, rank_positives
from tercet.names import suggest

FOLDS = 5
# Metrics that the authors of ECCV Caption and CxC report; mean and median ranks and rsum use the original positives.
ANNOTATED_METRICS = ("r1", "r5", "r10", "rprecision", "map_r", "queries")


@dataclass(frozen=True)
class Evaluation:
    """Metrics, the ranks they come from, the folds they are the mean of, and notes on what the protocol did."""

    metrics: dict[str, float]
    ranks: Ranks
    folds: tuple[dict[str, float], ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Task:
    """Input of an evaluation by row; the protocol checks it."""

    tiles: Tiles
    owners: Int[Tensor, " caption"]
    ties: str = "against"
    image_ids: Int[np.ndarray, " image"] | None = None
    caption_ids: Int[np.ndarray, " caption"] | None = None


def run_protocol(name: str | None, task: Task) -> Evaluation:
    """Evaluate under a protocol; None is "custom", which accepts any input."""
    name = "custom" if name is None else name
    if name not in PROTOCOLS:
        hint = suggest(name, PROTOCOLS, cutoff=0.4)
        raise ValueError(f"no protocol {name!r}{hint}; known: {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name](task)


def _custom(task: Task) -> Evaluation:
    ranks = rank_positives(task.tiles, Positives.of_owners(task.owners), ties=task.ties)
    return Evaluation(metrics_of(ranks), ranks)


def _flickr_1k(task: Task) -> Evaluation:
    _check_size(task, "flickr-1k", 1000)
    return _custom(task)


def _coco_5k(task: Task) -> Evaluation:
    _check_size(task, "coco-5k", 5000)
    _check_ids(task, "coco-5k", ordered=False)
    checked = task.image_ids is None or is_installed()
    return replace(_custom(task), notes=() if checked else ("ids not checked: pip install 'tercet[eccv]'",))


def _coco_1k(task: Task) -> Evaluation:
    _check_size(task, "coco-1k", 5000)
    _check_ids(task, "coco-1k", ordered=True)
    order = "the published order" if task.image_ids is not None and is_installed() else "the order given, not checked"
    note = f"mean of {FOLDS} disjoint folds of 1,000 consecutive images in {order}; ranks are within a fold"
    return replace(evaluate_folds(task, FOLDS), notes=(note,))


def evaluate_folds(task: Task, folds: int) -> Evaluation:
    """Return mean metrics over consecutive folds of images with their captions; ranks keep rows of the whole split."""
    if task.tiles.images % folds:
        raise ValueError(f"{task.tiles.images} images cannot be divided into {folds} equal folds")
    size = task.tiles.images // folds
    metrics: list[dict[str, float]] = []
    ranks: list[Ranks] = []
    for fold in range(folds):
        images = torch.arange(fold * size, (fold + 1) * size)
        captions = ((task.owners >= fold * size) & (task.owners < (fold + 1) * size)).nonzero()[:, 0]
        owners = task.owners[captions] - fold * size
        fold_ranks = rank_positives(task.tiles.subset(images, captions), Positives.of_owners(owners), ties=task.ties)
        metrics.append(metrics_of(fold_ranks))
        ranks.append(fold_ranks.with_rows(images.numpy(), captions.numpy()))
    mean = {name: sum(fold[name] for fold in metrics) / folds for name in metrics[0]}
    return Evaluation(mean, concat_ranks(ranks), tuple(metrics))


def _with_annotations(name: str, prefix: str) -> Callable[[Task], Evaluation]:
    def run(task: Task) -> Evaluation:
        _check_size(task, name, 5000)
        if task.image_ids is None:
            raise ValueError(f"protocol {name} identifies images by COCO id: give image_ids")
        published = coco_test()
        _check_ids(task, name, ordered=task.caption_ids is None)
        caption_ids, note = task.caption_ids, "captions by the ids given"
        if caption_ids is None:
            # Without ids, the five captions of each image are assumed to be in the published order.
            if not np.array_equal(task.owners.cpu().numpy(), published.owners):
                raise ValueError(
                    f"protocol {name} without caption_ids expects the captions in the published order, the five of an "
                    "image adjacent: give caption_ids, or reorder captions and owners"
                )
            caption_ids, note = published.caption_ids, "captions in the published order, not checked: no ids given"
        extra = annotated_positives(prefix, task.image_ids, caption_ids)
        original, annotated = rank_annotations(task.tiles, [Positives.of_owners(task.owners), extra], ties=task.ties)
        metrics = metrics_of(original) | annotated_metrics(annotated, prefix)
        return Evaluation(metrics, original, notes=(note,))

    return run


def annotated_metrics(ranks: Ranks, prefix: str) -> dict[str, float]:
    """Return the metrics reported for additional annotations, under prefixed keys; unannotated queries are skipped."""
    directions = {"i2t": direction_metrics(ranks.i2t), "t2i": direction_metrics(ranks.t2i)}
    return {
        f"{prefix}_{direction}_{name}": metrics[name]
        for direction, metrics in directions.items()
        for name in ANNOTATED_METRICS
    }


PROTOCOLS: dict[str, Callable[[Task], Evaluation]] = {
    "custom": _custom,
    "flickr-1k": _flickr_1k,
    "coco-5k": _coco_5k,
    "coco-1k": _coco_1k,
    "eccv-caption": _with_annotations("eccv-caption", "eccv"),
    "cxc": _with_annotations("cxc", "cxc"),
}


def _check_size(task: Task, name: str, images: int, captions_per_image: int = 5) -> None:
    if task.tiles.images != images:
        raise ValueError(f"protocol {name} expects exactly {images:,} images, found {task.tiles.images:,}")
    counts = np.bincount(task.owners.cpu().numpy(), minlength=images)
    wrong = np.flatnonzero(counts != captions_per_image)
    if len(wrong):
        raise ValueError(
            f"protocol {name} expects exactly {captions_per_image} captions per image, found {counts[wrong[0]]} for "
            f"the image in row {wrong[0]} ({len(wrong):,} such images; the original scripts use the first "
            f"{captions_per_image})"
        )


def _check_ids(task: Task, name: str, *, ordered: bool) -> None:
    """Check that given ids are those of the COCO test split; with `ordered`, images also in the published order."""
    if not is_installed():
        return
    published = coco_test()
    for kind, ids, expected in (
        ("image", task.image_ids, published.image_ids),
        ("caption", task.caption_ids, published.caption_ids),
    ):
        if ids is None:
            continue
        unknown = np.setdiff1d(ids, expected)
        if len(unknown) or len(np.unique(ids)) != len(expected):
            problem = f"{unknown[0]} is not one of them" if len(unknown) else "some are given twice"
            raise ValueError(
                f"protocol {name} expects the {len(expected):,} {kind} ids of the COCO test split: {problem}"
            )
    _check_owners(task, name)
    if ordered and task.image_ids is not None and not np.array_equal(task.image_ids, published.image_ids):
        row = int(np.flatnonzero(task.image_ids != published.image_ids)[0])
        raise ValueError(
            f"protocol {name} expects the images in the published order, row {row} is image {task.image_ids[row]} "
            f"instead of {published.image_ids[row]}"
        )


def _check_owners(task: Task, name: str) -> None:
    """If both ids are given, check that each caption belongs to its image in COCO."""
    if task.image_ids is None or task.caption_ids is None:
        return
    published = coco_test()
    by_id = np.argsort(published.caption_ids)
    position = by_id[np.searchsorted(published.caption_ids[by_id], task.caption_ids)]
    expected = published.image_ids[published.owners[position]]
    wrong = np.flatnonzero(task.image_ids[task.owners.cpu().numpy()] != expected)
    if len(wrong):
        raise ValueError(
            f"protocol {name}: caption {task.caption_ids[wrong[0]]} belongs to image {expected[wrong[0]]}, owners say "
            f"{task.image_ids[task.owners[wrong[0]]]}"
        )
