"""Named protocols: what they want, and what is refused. A number under a protocol's name is that protocol's."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from tercet.evaluation.annotations import annotated, coco_test, installed
from tercet.evaluation.metrics import direction_metrics, metrics_of
from tercet.evaluation.pairs import Positives
from tercet.evaluation.ranks import Ranks, joined, rank_positives, rank_several
from tercet.evaluation.tiles import Tiles

FOLDS = 5
# What the makers of ECCV Caption and CxC report; ranks and sums belong to the original positives.
ANNOTATED_METRICS = ("r1", "r5", "r10", "rprecision", "map_r", "queries")


@dataclass(frozen=True)
class Evaluation:
    """Metrics, the ranks behind them, the folds they are the mean of, and what the protocol did."""

    metrics: dict[str, float]
    ranks: Ranks
    folds: tuple[dict[str, float], ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Task:
    """What is to be evaluated, in rows: the protocol checks it."""

    tiles: Tiles
    owners: Int[Tensor, " caption"]
    ties: str = "against"
    image_ids: Int[np.ndarray, " image"] | None = None
    caption_ids: Int[np.ndarray, " caption"] | None = None


def run_protocol(name: str | None, task: Task) -> Evaluation:
    """Evaluate under a protocol; None is "custom", which takes anything."""
    chosen = "custom" if name is None else name
    if chosen not in PROTOCOLS:
        near = [each for each in PROTOCOLS if each.startswith(chosen)] or get_close_matches(
            chosen, PROTOCOLS, cutoff=0.4
        )
        hint = f": did you mean {near[0]}?" if near else ""
        raise ValueError(f"protocol {chosen!r} is not one of {', '.join(PROTOCOLS)}{hint}")
    return PROTOCOLS[chosen](task)


def _custom(task: Task) -> Evaluation:
    ranks = rank_positives(task.tiles, Positives.of_owners(task.owners), ties=task.ties)
    return Evaluation(metrics_of(ranks), ranks)


def _flickr_1k(task: Task) -> Evaluation:
    _check_size(task, "flickr-1k", 1000)
    return _custom(task)


def _coco_5k(task: Task) -> Evaluation:
    _check_size(task, "coco-5k", 5000)
    _check_ids(task, "coco-5k", ordered=False)
    checked = task.image_ids is None or installed()
    return replace(_custom(task), notes=() if checked else ("ids not checked: pip install 'tercet[eccv]'",))


def _coco_1k(task: Task) -> Evaluation:
    _check_size(task, "coco-1k", 5000)
    _check_ids(task, "coco-1k", ordered=True)
    order = "the published order" if task.image_ids is not None and installed() else "the order given, not checked"
    found = in_folds(task, FOLDS)
    note = f"mean of {FOLDS} disjoint folds of 1,000 consecutive images in {order}; ranks are within a fold"
    return replace(found, notes=(note,))


def in_folds(task: Task, folds: int) -> Evaluation:
    """The mean of metrics over consecutive folds of images, each with its own captions; ranks keep the whole's rows."""
    if task.tiles.images % folds:
        raise ValueError(f"{task.tiles.images} images cannot be divided into {folds} equal folds")
    size = task.tiles.images // folds
    metrics: list[dict[str, float]] = []
    ranks: list[Ranks] = []
    for fold in range(folds):
        images = torch.arange(fold * size, (fold + 1) * size)
        captions = ((task.owners >= fold * size) & (task.owners < (fold + 1) * size)).nonzero()[:, 0]
        owners = task.owners[captions] - fold * size
        found = rank_positives(task.tiles.part(images, captions), Positives.of_owners(owners), ties=task.ties)
        metrics.append(metrics_of(found))
        ranks.append(found.with_rows(images.numpy(), captions.numpy()))
    mean = {name: sum(each[name] for each in metrics) / folds for name in metrics[0]}
    return Evaluation(mean, joined(ranks), tuple(metrics))


def _with_annotations(name: str, prefix: str) -> Callable[[Task], Evaluation]:
    def run(task: Task) -> Evaluation:
        _check_size(task, name, 5000)
        if task.image_ids is None:
            raise ValueError(f"protocol {name} knows images by their COCO ids: give image_ids")
        published = coco_test()
        _check_ids(task, name, ordered=task.caption_ids is None)
        caption_ids, note = task.caption_ids, "captions by the ids given"
        if caption_ids is None:
            # Without ids, the captions of an image are taken in the published order: its five, in turn.
            if not np.array_equal(task.owners.cpu().numpy(), published.owners):
                raise ValueError(
                    f"protocol {name} without caption_ids wants the captions in the published order, five of an image "
                    "after each other: give caption_ids, or bring owners into that order"
                )
            caption_ids, note = published.caption_ids, "captions in the published order, not checked: no ids given"
        extra = annotated(prefix, task.image_ids, caption_ids)
        own, further = rank_several(task.tiles, [Positives.of_owners(task.owners), extra], ties=task.ties)
        return Evaluation(metrics_of(own) | annotated_metrics(further, prefix), own, notes=(note,))

    return run


def annotated_metrics(ranks: Ranks, prefix: str) -> dict[str, float]:
    """What is reported for other annotations, under keys of their own; queries that they leave out count nowhere."""
    sides = {"i2t": direction_metrics(ranks.i2t), "t2i": direction_metrics(ranks.t2i)}
    return {f"{prefix}_{side}_{name}": found[name] for side, found in sides.items() for name in ANNOTATED_METRICS}


PROTOCOLS: dict[str, Callable[[Task], Evaluation]] = {
    "custom": _custom,
    "flickr-1k": _flickr_1k,
    "coco-5k": _coco_5k,
    "coco-1k": _coco_1k,
    "eccv-caption": _with_annotations("eccv-caption", "eccv"),
    "cxc": _with_annotations("cxc", "cxc"),
}


def _check_size(task: Task, name: str, images: int, each: int = 5) -> None:
    if task.tiles.images != images:
        raise ValueError(f"protocol {name} wants exactly {images:,} images, found {task.tiles.images:,}")
    counts = np.bincount(task.owners.cpu().numpy(), minlength=images)
    wrong = np.flatnonzero(counts != each)
    if len(wrong):
        raise ValueError(
            f"protocol {name} wants exactly {each} captions of every image, found {counts[wrong[0]]} of the image in "
            f"row {wrong[0]} ({len(wrong):,} such images; the original scripts keep the first {each})"
        )


def _check_ids(task: Task, name: str, *, ordered: bool) -> None:
    """Ids, where given, are those of the COCO test images; for folds, in the published order too."""
    if not installed():
        return
    published = coco_test()
    for kind, given, wanted in (
        ("image", task.image_ids, published.image_ids),
        ("caption", task.caption_ids, published.caption_ids),
    ):
        if given is None:
            continue
        strange = np.setdiff1d(given, wanted)
        if len(strange) or len(np.unique(given)) != len(wanted):
            what = f"{strange[0]} is not one of them" if len(strange) else "some are given twice"
            raise ValueError(f"protocol {name} wants the {len(wanted):,} {kind} ids of the COCO test split: {what}")
    _check_owners(task, name)
    if ordered and task.image_ids is not None and not np.array_equal(task.image_ids, published.image_ids):
        row = int(np.flatnonzero(task.image_ids != published.image_ids)[0])
        raise ValueError(
            f"protocol {name} wants the images in the published order, row {row} holds image {task.image_ids[row]} "
            f"and not {published.image_ids[row]}"
        )


def _check_owners(task: Task, name: str) -> None:
    """Where both ids are known, a caption belongs to the image that COCO says."""
    if task.image_ids is None or task.caption_ids is None:
        return
    published = coco_test()
    by_id = np.argsort(published.caption_ids)
    place = by_id[np.searchsorted(published.caption_ids[by_id], task.caption_ids)]
    expected = published.image_ids[published.owners[place]]
    wrong = np.flatnonzero(task.image_ids[task.owners.cpu().numpy()] != expected)
    if len(wrong):
        raise ValueError(
            f"protocol {name}: caption {task.caption_ids[wrong[0]]} belongs to image {expected[wrong[0]]}, owners say "
            f"{task.image_ids[task.owners[wrong[0]]]}"
        )
