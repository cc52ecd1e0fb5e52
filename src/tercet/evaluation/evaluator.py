"""Evaluation: a similarity matrix, embeddings, or tiles of any similarity -> metrics, under a named protocol.

A protocol checks that the data is its own; a metric under its name follows it exactly.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.evaluation.blocked_similarity import Tiles, tiles_of_embeddings, tiles_of_matrix
from tercet.evaluation.eccv_caption import annotated_positives, coco_test, is_installed
from tercet.evaluation.metrics import direction_metrics, metrics_of
from tercet.evaluation.rank_counts import Positives
from tercet.evaluation.ranks import Ranks, concat_ranks, rank_annotations, rank_positives
from tercet.names import suggest
from tercet.types import PairMask, Similarity

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
    more_pairs: Int[Tensor, "pair 2"] | None = None


def run_protocol(name: str | None, task: Task) -> Evaluation:
    """Evaluate under a protocol; None is "custom", which accepts any input."""
    name = "custom" if name is None else name
    if name not in PROTOCOLS:
        hint = suggest(name, PROTOCOLS, cutoff=0.4)
        raise ValueError(f"no protocol {name!r}{hint}; known: {', '.join(PROTOCOLS)}")
    if task.more_pairs is not None and name != "custom":
        raise ValueError(f"protocol {name} expects captions of one image each: use custom for several positives")
    return PROTOCOLS[name](task)


def _custom(task: Task) -> Evaluation:
    ranks = rank_positives(task.tiles, Positives.of_owners(task.owners, task.more_pairs), ties=task.ties)
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


def evaluate(similarity: Similarity, positives: PairMask, ties: str = "against") -> dict[str, float]:
    """Return all metrics for i2t and t2i: recalls in percent ("any positive in the top k"), 1-based ranks, mAP in 0..1.

    `ties`: "against" ranks tied negatives above the positive, "optimistic" below, "expected" averages over all orders.

    >>> similarity, positives = torch.tensor([[0.9, 0.1], [0.8, 0.3]]), torch.eye(2, dtype=torch.bool)
    >>> metrics = evaluate(similarity, positives)
    >>> metrics["i2t_r1"], metrics["t2i_r1"], metrics["i2t_meanr"]
    (50.0, 100.0, 1.5)
    """
    if not torch.is_tensor(positives) or not torch.is_tensor(similarity):
        raise ValueError("similarity and positives must be tensors: both are image x caption")
    if positives.shape != similarity.shape or positives.dtype != torch.bool or similarity.ndim != 2:
        raise ValueError(
            f"positives {tuple(positives.shape)} {positives.dtype} must be a boolean mask that matches "
            f"similarity {tuple(similarity.shape)}: both are image x caption"
        )
    if not similarity.isfinite().all():
        raise ValueError("similarity contains NaN or infinity and cannot be ranked")
    return metrics_of(rank_positives(tiles_of_matrix(similarity.detach()), Positives.of_mask(positives), ties=ties))


def evaluate_embeddings(
    x: Float[Tensor, "image dim"],
    y: Float[Tensor, "caption dim"],
    owners: Int[Tensor, " caption"] | None = None,
    protocol: str | None = None,
    ties: str = "against",
    image_ids: Int[Tensor, " image"] | None = None,
    caption_ids: Int[Tensor, " caption"] | None = None,
) -> dict[str, float]:
    """Return the same metrics without holding S: x images, y captions, owners[j] is the row of caption j's image.

    Without owners, caption i belongs to image i. A protocol checks its inputs and raises ValueError if they do not fit.

    >>> x = torch.eye(3)
    >>> evaluate_embeddings(x, x.repeat_interleave(2, dim=0), owners=torch.tensor([0, 0, 1, 1, 2, 2]))["rsum"]
    600.0
    """
    if not torch.is_tensor(x) or not torch.is_tensor(y) or x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1]:
        shapes = " and ".join(
            str(tuple(value.shape)) if torch.is_tensor(value) else type(value).__name__ for value in (x, y)
        )
        raise ValueError(
            f"embeddings must be tensors (image, dim) and (caption, dim) with the same dim, given {shapes}"
        )
    if not x.is_floating_point() or not y.is_floating_point():
        raise ValueError(f"embeddings must be floating point, given {x.dtype} and {y.dtype}")
    if x.device != y.device:
        raise ValueError(f"embeddings must be on one device, given {x.device} and {y.device}")
    return evaluate_tiles(
        tiles_of_embeddings(x, y),
        owners,
        protocol=protocol,
        ties=ties,
        image_ids=image_ids,
        caption_ids=caption_ids,
    ).metrics


def evaluate_tiles(
    tiles: Tiles,
    owners: Int[Tensor, " caption"] | None = None,
    *,
    protocol: str | None = None,
    ties: str = "against",
    image_ids: Int[Tensor, " image"] | None = None,
    caption_ids: Int[Tensor, " caption"] | None = None,
    more_pairs: Int[Tensor, "pair 2"] | None = None,
) -> Evaluation:
    """Evaluate any tiled similarity, also ensembles and cross attention; used by `tercet evaluate`.

    `more_pairs`: (image, caption) rows that match besides those of `owners`. An image without captions is a candidate.
    """
    if not tiles.images or not tiles.captions:
        raise ValueError(f"nothing to evaluate: {tiles.images} images and {tiles.captions} captions")
    task = Task(
        tiles,
        _checked_owners(tiles, owners),
        ties,
        _checked_ids("image_ids", image_ids, tiles.images),
        _checked_ids("caption_ids", caption_ids, tiles.captions),
        more_pairs,
    )
    return run_protocol(protocol, task)


def _checked_owners(tiles: Tiles, owners: Tensor | None) -> Tensor:
    if owners is None:
        if tiles.images != tiles.captions:
            raise ValueError(
                f"{tiles.captions} captions of {tiles.images} images need owners: the image of each caption"
            )
        return torch.arange(tiles.captions)
    if not torch.is_tensor(owners) or owners.shape != (tiles.captions,) or owners.is_floating_point():
        raise ValueError(f"owners must be one integer for each of {tiles.captions} captions, given {_describe(owners)}")
    low, high = int(owners.min()), int(owners.max())
    if low < 0 or high >= tiles.images:
        raise ValueError(f"owners must be rows of images, 0 to {tiles.images - 1}, found {low if low < 0 else high}")
    return owners.detach().cpu().long()


def _checked_ids(name: str, ids: Tensor | None, count: int) -> np.ndarray | None:
    if ids is None:
        return None
    if not torch.is_tensor(ids) or ids.shape != (count,) or ids.is_floating_point():
        raise ValueError(f"{name} must be one integer for each of {count} rows, given {_describe(ids)}")
    return ids.detach().cpu().long().numpy()


def _describe(value: object) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
