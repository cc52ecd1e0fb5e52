"""`tercet doctor`: a run is measured on samples of its data, the same ones every time."""

from collections import defaultdict
from dataclasses import replace
from itertools import islice
from math import isfinite, nan
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet import runs
from tercet.analysis.evidence import Evidence
from tercet.analysis.geometry import k_occurrence, modality_gap, skewness, spread
from tercet.analysis.gradient_shape import gradient_shape
from tercet.analysis.near_duplicates import Words, hardest_is_duplicate, words_of
from tercet.contracts import Similarity
from tercet.data.meetings import seeded
from tercet.data.pairs import PairedData
from tercet.dissection.leaks import Leak, leaks_between, mean_of_parts
from tercet.dissection.opened import SEED, Opened
from tercet.evaluation import evaluate_tiles
from tercet.evaluation.tiles import Tiles
from tercet.training.validation import Encoded, selected, tiles_of

SAMPLE = 2000  # images of a split that are looked at
SAMPLE_COMPARED = 500  # the same, where a model compares every pair by itself
QUERIES = 2000  # training captions whose gradients are looked at
AT_ONCE = 256
SOFT = ("nt-xent", "sigmoid")  # smooth-ap is meant to be near a step


def examine(opened: Opened) -> tuple[Evidence, list[Leak]]:
    for read in (runs.read_final, runs.read_ranks):
        read(opened.folder)  # a damaged file is told before anything is measured
    train, held_out = opened.ready.train, opened.held_out
    of_train, of_held_out = (_sample(opened, len(data.images)) for data in (train, held_out))
    looked_at = replace(
        opened, ready=replace(opened.ready, train=train.only(of_train), test=held_out.only(of_held_out))
    )
    leaks = leaks_between(held_out.images, train.images)
    evidence = Evidence(
        **_of_space(looked_at),
        **_of_gradients(looked_at),
        **_of_ranks(opened),
        **_of_curve(opened),
        **_of_recalls(looked_at),
        leaked=len(leaks) / len(held_out.images),
    )
    return evidence, leaks


def _sample(opened: Opened, images: int) -> Int[Tensor, " image"]:
    most = SAMPLE if opened.model.dot_product else SAMPLE_COMPARED
    return torch.randperm(images, generator=seeded(SEED, 0))[:most].sort().values


def _of_space(opened: Opened) -> dict[str, Any]:
    images, captions = opened.encoded_held_out
    similarity = _whole(tiles_of(opened.model, images, captions))
    near_images, near_captions = k_occurrence(similarity), k_occurrence(similarity.T)
    gap = modality_gap(_pooled(images), _pooled(captions))
    return {
        "spread": spread(similarity),
        "hub_captions": skewness(near_images),
        "hub_images": skewness(near_captions),
        "largest_hub": max(
            float(near_images.max()) / similarity.shape[0], float(near_captions.max()) / similarity.shape[1]
        ),
        "gap": 0.0 if gap.width == 0 else gap.distance / gap.width,
        "told_apart": gap.told_apart,
    }


def _whole(tiles: Tiles) -> Similarity:
    tile, step = tiles.arrange(None, None), max(1, tiles.entries // tiles.captions)
    everything = slice(0, tiles.captions)
    rows = range(0, tiles.images, step)
    return torch.cat([tile(slice(row, min(row + step, tiles.images)), everything) for row in rows]).float()


def _pooled(encoded: Encoded) -> Float[Tensor, "item dim"]:
    """Sets by the mean of their parts, of length 1 like any embedding."""
    if isinstance(encoded, Tensor):
        return encoded.float()
    parts = [
        mean_of_parts(encoded[start : start + AT_ONCE], encoded.lengths[start : start + AT_ONCE])
        for start in range(0, len(encoded), AT_ONCE)
    ]
    return torch.nn.functional.normalize(torch.cat(parts).float(), dim=1)


def _of_gradients(opened: Opened) -> dict[str, Any]:
    data, objective = opened.ready.train, opened.objective
    words = [words_of(text) for text in data.texts]
    of_images: dict[int, list[Words]] = defaultdict(list)
    for caption, image in enumerate(data.owners.tolist()):
        of_images[image].append(words[caption])
    shapes, duplicates = [], []
    size = opened.settings.batch_size
    for seen in islice(opened.batches(objective, size), -(-QUERIES // size)):
        shapes.append(gradient_shape(objective, seen.similarity, seen.positives, seen.ignored, seen.members(objective)))
        columns = [words[caption] for caption in seen.meeting.captions.tolist()]
        rows = [of_images[image] for image in seen.meeting.images.tolist()]
        duplicates.append(hardest_is_duplicate(seen.similarity, seen.positives, columns, rows, seen.ignored))
    silent, evenness, hardest_share = (torch.cat(each).double() for each in zip(*shapes, strict=True))
    tempered = "temperature" in objective.settings and len(evenness) > 0
    return {
        "silent": float(silent.mean()),
        "duplicates": float(torch.cat(duplicates).double().mean()),
        "evenness": float(evenness.mean()) if tempered else None,
        "hardest_share": float(hardest_share.mean()) if tempered and objective.name in SOFT else None,
    }


def _of_ranks(opened: Opened) -> dict[str, Any]:
    """Ranks among negatives only, over their number: an image has several captions, and more negatives than they."""
    ranks, owners = runs.read_ranks(opened.folder), opened.held_out.owners.numpy()
    images = len(opened.held_out.images)
    negative_captions = len(owners) - np.bincount(owners, minlength=images)[ranks["image"]]
    return {
        "ahead_i2t": float(np.mean((ranks["i2t_rank_negatives"] - 1) / np.maximum(negative_captions, 1))),
        "ahead_t2i": float(np.mean((ranks["t2i_rank_negatives"] - 1) / max(images - 1, 1))),
        "images": images,
    }


def _of_curve(opened: Opened) -> dict[str, Any]:
    lines = runs.read_validation(opened.folder)
    names = opened.settings.select.split("+")
    curve = [selected({name: _number(line.get(name)) for name in names}, opened.settings.select) for line in lines]
    if not all(map(isfinite, curve)):
        return {"validations": len(curve), "rise": nan, "fall": nan}
    if len(curve) < 2 or max(curve) <= 0:
        return {"validations": len(curve), "rise": None, "fall": None}
    before, best = curve[-1 - -(-len(curve) // 3)], max(curve)
    return {"validations": len(curve), "rise": (curve[-1] - before) / best, "fall": (best - curve[-1]) / best}


def _number(value: Any) -> float:
    """A metric that was no number stands as null in the file."""
    return float(value) if isinstance(value, int | float) else nan


def _of_recalls(opened: Opened) -> dict[str, Any]:
    """On as many training as held-out images."""
    train, held_out = opened.ready.train, opened.held_out
    images = min(len(train.images), len(held_out.images))
    sides = {"train_rsum": (train, opened.encoded_train), "held_out_rsum": (held_out, opened.encoded_held_out)}
    return {name: _rsum(opened, data, encoded, images) for name, (data, encoded) in sides.items()}


def _rsum(opened: Opened, data: PairedData, encoded: tuple[Encoded, Encoded], images: int) -> float:
    """Of the first images of a sample, which is a sample too."""
    captions = int((data.owners < images).sum())  # owners ascend
    tiles = tiles_of(opened.model, *encoded).part(torch.arange(images), torch.arange(captions))
    return evaluate_tiles(tiles, data.owners[:captions]).metrics["rsum"]
