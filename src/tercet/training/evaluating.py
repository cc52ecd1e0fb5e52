"""Trained models on a split, under a protocol: `tercet evaluate`."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from tercet import runs
from tercet.data.dataset import Split
from tercet.data.formats import open_data
from tercet.data.pairs import PairedData, Source, paired
from tercet.data.pixels import Pixels
from tercet.data.rows import Rows
from tercet.evaluation import Evaluation, evaluate_tiles, mean_of_tiles
from tercet.retriever import WEIGHTS, Retriever, load, read_tokens
from tercet.training.evaluate_settings import EvaluateSettings
from tercet.training.reranking import check_reranking, evaluate_reranked, reranked
from tercet.training.validation import encoded, tiles_of


@dataclass(frozen=True)
class Evaluated:
    found: Evaluation
    file: Path
    """The JSON; the ranks lie beside it."""
    title: str


def evaluate_models(settings: EvaluateSettings) -> Evaluated:
    models = [load(folder) for folder in settings.models]  # before the data: a wrong path costs nothing
    if not models:
        raise ValueError("name at least one run or model")
    if settings.rerank is not None:
        check_reranking([model.model for model in models], settings.rerank, settings.protocol)
    data = open_data(settings.data, images=settings.images, features=settings.features)
    split = data.split(settings.split)
    sides = [as_read_by(model, settings.data, split) for model in models]
    owners = torch.from_numpy(split.owners)
    how: dict[str, Any] = {"protocol": settings.protocol, "ties": settings.ties, "image_ids": coco_ids(split)}
    if settings.rerank is not None:
        found = evaluate_reranked(reranked(models[0].model, sides[0], settings.rerank), owners, **how)
    else:
        members = [tiles_of(model, *encoded(model, side)) for model, side in zip(models, sides, strict=True)]
        found = evaluate_tiles(mean_of_tiles(members), owners, **how)
    content = {
        "metrics": found.metrics,
        "folds": list(found.folds),
        "notes": list(found.notes),
        "protocol": settings.protocol,
        "ties": settings.ties,
        "rerank": settings.rerank,
        "models": [folder.resolve().name for folder in settings.models],
        "weights": [checksum_of_weights(folder) for folder in settings.models],
        "data": Path(settings.data).name,
        "split": settings.split,
        "images": len(split.image_names),
        "captions": len(split.texts),
        "checksums": [side.checksum() for side in sides],
        "machine": runs.machine(),
    }
    file = runs.write_evaluation(settings.out, content, found.ranks.arrays())
    return Evaluated(found, file, f"{Path(settings.data).name} {settings.split}, {settings.protocol}")


def checksum_of_weights(folder: Path) -> str:
    return hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()[:16]


def as_read_by(model: Retriever, name: str, split: Split) -> PairedData:
    """The split's images and captions as this model takes them."""
    reading = model.reading
    images: Source | None = None
    if reading.pixels is not None:
        if split.pictures is None:
            raise ValueError(f"{name} has no pictures, which this {model.system} sees; give --images FOLDER")
        images = Pixels(split.pictures, reading.pixels)
    captions: Source | None = None
    if reading.vocabulary is not None or reading.tokenizer is not None:
        captions = read_tokens(model.system, split.texts, reading.vocabulary or reading.tokenizer, model.longest)
    elif model.system != "heads":
        raise ValueError(f"this {model.system} came without its vocabulary: import it again with --vocabulary")
    data = paired(name, split, images, captions)
    for side, source in (("image", data.images), ("caption", data.captions)):
        wanted = getattr(model.model.settings, f"{side}_dim", None)
        if isinstance(source, Rows) and wanted is not None and source.shape[-1] != wanted:
            raise ValueError(
                f"{name} has {side} features of {source.shape[-1]} channels, the model was trained on {wanted}"
            )
    return data


def coco_ids(split: Split) -> Int[Tensor, " image"] | None:
    """The numbers at the end of the images' names, where all of them have one: COCO_val2014_000000391895.jpg."""
    found = [re.search(r"(\d+)(?:\.\w+)?$", name) for name in split.image_names]
    numbers: list[Any] = [int(match[1]) for match in found if match is not None and len(match[1]) <= 18]
    if len(numbers) < len(split.image_names) or numbers == list(range(len(numbers))):  # rows, not ids
        return None
    return torch.tensor(numbers)
