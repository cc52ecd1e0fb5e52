"""Measure a finished run for `tercet doctor`: embeddings, gradients, ranks, validation curve, train/held-out leakage.

Embeddings and gradients are measured on samples with a fixed seed; leakage compares all images.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet import runs
from tercet.analysis.diagnostics.measurements import (
    Measurements,
    center_and_normalize,
    gradient_stats,
    k_occurrence,
    modality_gap,
    nearest_cosine,
    rise_and_fall,
    skewness,
    spread,
)
from tercet.analysis.near_duplicates import hardest_is_duplicate
from tercet.analysis.reports.loaded_run import SEED, LoadedRun
from tercet.data.dataset import PairedData, Source
from tercet.data.samplers import seeded
from tercet.data.text.word_sets import Words, words_of
from tercet.evaluation import evaluate_tiles
from tercet.evaluation.blocked_similarity import Tiles
from tercet.training.eval_loop import Encoded, tiles_of
from tercet.types import Similarity

MAX_IMAGES = 2000  # images per split in the sample
MAX_IMAGES_PAIRWISE = 500  # the same, for models without dot_product, which compare every pair
MAX_QUERIES = 2000  # training captions whose gradients are measured
BLOCK_SIZE = 256  # items in memory at a time
SHARPNESS_OBJECTIVES = ("nt-xent", "sigmoid")  # not smooth-ap, which is meant to be close to a step function

MIN_LEAK_COSINE = 0.995  # of two images' centred inputs; from here on they count as the same image
HELD_OUT_BLOCK_SIZE = 8192  # held-out images in memory; the training images are read once per block
MEAN_SAMPLE_SIZE = 2000  # training images from which the mean is computed
TOKEN_VECTORS = 10_000  # random vectors of tokens; more tokens share them
THUMBNAIL_SIZE = 32  # pixels per side; with 8, scenes with the same background look equal


class Leak(NamedTuple):
    """Row of a held-out image, and row of the equal training image."""

    held_out: int
    train: int


def measure_run(loaded: LoadedRun) -> tuple[Measurements, list[Leak]]:
    """All measurements of a run, and its leaked images."""
    for read in (runs.read_final, runs.read_ranks):
        read(loaded.folder)  # report a damaged file before measuring anything
    train, held_out = loaded.prepared.train, loaded.held_out
    train_rows, held_out_rows = (_sample(loaded, data) for data in (train, held_out))
    sample = replace(
        loaded, prepared=replace(loaded.prepared, train=train.subset(train_rows), test=held_out.subset(held_out_rows))
    )
    leaks = _leaks_of_positives(held_out, train)
    measurements = Measurements(
        **_embedding_measurements(sample),
        **_gradient_measurements(sample),
        **_rank_measurements(loaded),
        **_curve_measurements(loaded),
        **_rsum_measurements(sample),
        leaked=len(leaks) / len(_with_positives(held_out)),
        augmentations=loaded.prepared.augmentations(loaded.settings, loaded.model),
        sides=held_out.sides,
    )
    return measurements, leaks


def _with_positives(data: PairedData) -> Int[Tensor, " image"]:
    """The images that match a caption: all, but for passages that no query of the split has."""
    return data.pairs[:, 0].unique()


def _leaks_of_positives(held_out: PairedData, train: PairedData) -> list[Leak]:
    """Leaks among the images that match something: all splits share the passages, and that alone is none."""
    held_out_rows, train_rows = _with_positives(held_out), _with_positives(train)
    sources = [
        data.images if len(rows) == len(data.images) else data.images.subset(rows.numpy())
        for data, rows in ((held_out, held_out_rows), (train, train_rows))
    ]
    return [Leak(int(held_out_rows[leak.held_out]), int(train_rows[leak.train])) for leak in find_leaks(*sources)]


def find_leaks(held_out: Source, train: Source) -> list[Leak]:
    """Held-out images that are also training images.

    Compares model inputs, not embeddings: in a collapsed model all embeddings are equal.
    """
    sample = torch.randperm(len(train), generator=seeded(0, 0))[:MEAN_SAMPLE_SIZE].sort().values
    mean = torch.cat(list(_image_vectors(train, sample))).mean(dim=0)
    leaks: list[Leak] = []
    for rows in torch.arange(len(held_out)).split(HELD_OUT_BLOCK_SIZE):
        vectors = center_and_normalize(torch.cat(list(_image_vectors(held_out, rows))), mean)
        blocks = (center_and_normalize(block, mean) for block in _image_vectors(train, torch.arange(len(train))))
        cosine, nearest = nearest_cosine(vectors, blocks)
        equal = (cosine >= MIN_LEAK_COSINE).nonzero().flatten()
        leaks += map(Leak, rows[equal].tolist(), nearest[equal].tolist())
    return leaks


def _image_vectors(source: Source, rows: Int[Tensor, " image"]) -> Iterator[Float[Tensor, "_ dim"]]:
    """Blocks of one vector per image: its features, the mean of its regions, or a thumbnail of its pixels.

    Of a text it is the mean of a random vector per token.
    """
    tokens = torch.randn(TOKEN_VECTORS, 64, generator=seeded(SEED, 1))
    for block in rows.split(BLOCK_SIZE):
        items, lengths = source.take(block)
        if not items.is_floating_point():
            items = _masked_mean(tokens[items % TOKEN_VECTORS], lengths)
        elif items.ndim == 4:
            items = torch.nn.functional.adaptive_avg_pool2d(items, THUMBNAIL_SIZE).flatten(1)
        elif items.ndim == 3:
            items = _masked_mean(items, lengths)
        yield items.to(torch.float32, copy=True)  # a source may reuse its buffer


def _masked_mean(
    sets: Float[Tensor, "item element dim"], lengths: Int[Tensor, " item"] | None
) -> Float[Tensor, "item dim"]:
    """Mean over the elements of each set, without padding."""
    if lengths is None:
        return sets.mean(dim=1)
    mask = torch.arange(sets.shape[1]) < lengths[:, None]
    return (sets * mask[..., None]).sum(dim=1) / lengths[:, None].clamp(min=1)


def _sample(loaded: LoadedRun, data: PairedData) -> Int[Tensor, " image"]:
    size, images = MAX_IMAGES if loaded.model.dot_product else MAX_IMAGES_PAIRWISE, _with_positives(data)
    return images[torch.randperm(len(images), generator=seeded(SEED, 0))[:size]].sort().values


def _embedding_measurements(loaded: LoadedRun) -> dict[str, Any]:
    images, captions = loaded.encoded_held_out
    similarity = _similarity_matrix(tiles_of(loaded.model, images, captions))
    caption_counts, image_counts = k_occurrence(similarity), k_occurrence(similarity.T)
    gap = modality_gap(_pooled(images), _pooled(captions))
    return {
        "spread": spread(similarity),
        "hub_captions": skewness(caption_counts),
        "hub_images": skewness(image_counts),
        "largest_hub": max(
            float(caption_counts.max()) / similarity.shape[0], float(image_counts.max()) / similarity.shape[1]
        ),
        "gap": 0.0 if gap.width == 0 else gap.distance / gap.width,
        "separable_share": gap.separable_share,
    }


def _similarity_matrix(tiles: Tiles) -> Similarity:
    tile, step = tiles.arrange(None, None), max(1, tiles.entries // tiles.captions)
    captions = slice(0, tiles.captions)
    starts = range(0, tiles.images, step)
    return torch.cat([tile(slice(start, min(start + step, tiles.images)), captions) for start in starts]).float()


def _pooled(encoded: Encoded) -> Float[Tensor, "item dim"]:
    """One embedding per item; sets of vectors are averaged and normalized to length 1."""
    if isinstance(encoded, Tensor):
        return encoded.float()
    means = [
        _masked_mean(encoded[start : start + BLOCK_SIZE], encoded.lengths[start : start + BLOCK_SIZE])
        for start in range(0, len(encoded), BLOCK_SIZE)
    ]
    return torch.nn.functional.normalize(torch.cat(means).float(), dim=1)


def _gradient_measurements(loaded: LoadedRun) -> dict[str, Any]:
    data, objective = loaded.prepared.train, loaded.objective
    caption_words = [words_of(text) for text in data.texts]
    image_words: dict[int, list[Words]] = defaultdict(list)
    for image, caption in data.pairs.tolist():
        image_words[image].append(caption_words[caption])
    stats, duplicates = [], []
    size = loaded.settings.batch_size
    for batch in islice(loaded.batches(objective, size), -(-MAX_QUERIES // size)):
        stats.append(gradient_stats(batch.bind(objective), batch.similarity, batch.positives, batch.ignored))
        columns = [caption_words[caption] for caption in batch.indices.captions.tolist()]
        rows = [image_words[image] for image in batch.indices.images.tolist()]
        duplicates.append(hardest_is_duplicate(batch.similarity, batch.positives, columns, rows, batch.ignored))
    silent, evenness, hardest_share = (torch.cat(values).double() for values in zip(*stats, strict=True))
    has_temperature = "temperature" in objective.settings and len(evenness) > 0
    has_sharpness = has_temperature and objective.name in SHARPNESS_OBJECTIVES
    return {
        "silent": float(silent.mean()),
        "duplicates": float(torch.cat(duplicates).double().mean()),
        "evenness": float(evenness.mean()) if has_temperature else None,
        "hardest_share": float(hardest_share.mean()) if has_sharpness else None,
    }


def _rank_measurements(loaded: LoadedRun) -> dict[str, Any]:
    """From ranks among negatives, divided by the number of negatives, which differs between the directions."""
    i2t, t2i = loaded.ranks.shares_ahead(len(loaded.held_out.images), len(loaded.held_out.captions))
    return {"ahead_i2t": i2t, "ahead_t2i": t2i, "images": len(loaded.held_out.images)}


def _curve_measurements(loaded: LoadedRun) -> dict[str, Any]:
    """From the validation metric that selects the checkpoint, by epoch."""
    curve = runs.read_selection(loaded.folder, loaded.settings.select_metric)
    rise, fall = rise_and_fall(curve)
    return {"validations": len(curve), "rise": rise, "fall": fall}


def _rsum_measurements(loaded: LoadedRun) -> dict[str, Any]:
    """On the same number of training and held-out images."""
    train, held_out = loaded.prepared.train, loaded.held_out
    images = min(len(train.images), len(held_out.images))
    splits = {"train_rsum": (train, loaded.encoded_train), "held_out_rsum": (held_out, loaded.encoded_held_out)}
    return {name: _rsum(loaded, data, encoded, images) for name, (data, encoded) in splits.items()}


def _rsum(loaded: LoadedRun, data: PairedData, encoded: tuple[Encoded, Encoded], images: int) -> float:
    """On the first images of a sample, which are a sample too."""
    sample = data.subset(torch.arange(images))
    captions = len(sample.owners)  # owners are sorted: these are the first
    tiles = tiles_of(loaded.model, *encoded).subset(torch.arange(images), torch.arange(captions))
    return evaluate_tiles(tiles, sample.owners, more_pairs=sample.more_pairs).metrics["rsum"]
