"""`tercet evaluate`: trained models on a split, under a protocol."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from tercet import runs
from tercet.console import print_skipped
from tercet.data.bad_items import without_bad_features, without_bad_images
from tercet.data.dataset import DataSet, PairedData, Source, Split, paired, select_splits
from tercet.data.feature_array import FeatureArray
from tercet.data.formats import open_data
from tercet.data.formats.columns import Columns
from tercet.data.textio import ErrorPolicy
from tercet.data.transforms import Pixels
from tercet.evaluation import Evaluation, evaluate_tiles, mean_of_tiles
from tercet.inference import Retriever, checksum_of_model, load, tokenize
from tercet.training.eval_loop import check_reranking, encode_split, evaluate_reranked, rerank_split, tiles_of
from tercet.training.settings import EvaluateSettings
from tercet.types import Sides


@dataclass(frozen=True)
class EvaluationResult:
    evaluation: Evaluation
    file: Path
    """The JSON file; ranks.npz is next to it."""
    title: str
    sides: Sides


def evaluate_models(settings: EvaluateSettings) -> EvaluationResult:
    """Evaluate the models, several as an ensemble, and write the result."""
    models = [load(folder) for folder in settings.models]  # before the data, so that a wrong path fails at once
    if not models:
        raise ValueError("give at least one run folder or saved model")
    reranker = None
    if settings.rerank is not None:
        reranker = check_reranking([model.model for model in models], settings.rerank, settings.protocol)
    dataset = open_data(
        settings.data,
        images=settings.images,
        features=settings.features,
        skip_bad=settings.skip_bad,
        columns=Columns.of(settings),
    )
    split = read_split(dataset, settings.split, models, skip_bad=settings.skip_bad)
    inputs = [preprocess_split(model, settings.data, split) for model in models]
    owners = torch.from_numpy(split.owners)
    options: dict[str, Any] = {"protocol": settings.protocol, "ties": settings.ties, "image_ids": coco_ids(split)}
    options["more_pairs"] = inputs[0].more_pairs
    if reranker is not None and settings.rerank is not None:
        evaluation = evaluate_reranked(rerank_split(reranker, inputs[0], settings.rerank), owners, **options)
    else:
        members = [
            tiles_of(each.model, *encode_split(each.model, data)) for each, data in zip(models, inputs, strict=True)
        ]
        evaluation = evaluate_tiles(mean_of_tiles(members), owners, **options)
    content = {
        "metrics": evaluation.metrics,
        "folds": list(evaluation.folds),
        "notes": list(evaluation.notes),
        "protocol": settings.protocol,
        "ties": settings.ties,
        "rerank": settings.rerank,
        "models": [folder.resolve().name for folder in settings.models],
        "weights": [checksum_of_model(*each) for each in zip(settings.models, models, strict=True)],
        "data": Path(settings.data).name,
        "split": settings.split,
        "images": len(split.image_names),
        "captions": len(split.texts),
        "checksums": [data.checksum() for data in inputs],
        "machine": runs.machine(),
    }
    file = runs.write_evaluation(settings.out, content, evaluation.ranks.arrays())
    return EvaluationResult(
        evaluation, file, f"{Path(settings.data).name} {settings.split}, {settings.protocol}", split.sides
    )


def read_split(data: DataSet, name: str, models: Sequence[Retriever], *, skip_bad: bool) -> Split:
    """The split; with `skip_bad` without what the models could not read, which is listed."""
    data = select_splits(data, name.split("+"))
    if skip_bad:
        errors = ErrorPolicy(skip=True)
        reads_pixels = [model.preprocessor.pixels is not None for model in models]
        data = without_bad_images(data, errors) if any(reads_pixels) else data
        data = data if all(reads_pixels) else without_bad_features(data, errors)
        print_skipped(list(dict.fromkeys(data.skipped)))
    return data.split(name)


def preprocess_split(model: Retriever, name: str, split: Split) -> PairedData:
    """Return the split's images and captions as inputs of this model."""
    preprocessor = model.preprocessor
    if preprocessor.sides != split.sides and model.model.spec.image_texts:
        raise ValueError(
            f"{name} has {split.sides.images} and {split.sides.captions}; this {model.system} reads "
            f"{preprocessor.sides.images} and {preprocessor.sides.captions}"
        )
    images: Source | None = None
    if model.model.spec.image_texts and split.image_texts is not None:
        words = preprocessor.vocabulary or preprocessor.tokenizer
        images = tokenize(model.model.spec, split.image_texts, words, model.max_tokens)
    if preprocessor.pixels is not None:
        if split.image_files is None:
            raise ValueError(f"{name} has no image files, and this {model.system} reads pixels: give --images FOLDER")
        images = Pixels(split.image_files, preprocessor.pixels)
    captions: Source | None = None
    if preprocessor.vocabulary is not None or preprocessor.tokenizer is not None:
        captions = tokenize(
            model.model.spec, split.texts, preprocessor.vocabulary or preprocessor.tokenizer, model.max_tokens
        )
    elif not model.model.spec.caption_features:
        raise ValueError(f"this {model.system} has no vocabulary: import it again with --vocabulary")
    data = paired(name, split, images, captions)
    sides = split.sides
    for item, noun, source in (("image", sides.image, data.images), ("caption", sides.caption, data.captions)):
        expected = getattr(model.model.settings, f"{item}_dim", None)
        if isinstance(source, FeatureArray) and expected is not None and source.shape[-1] != expected:
            raise ValueError(
                f"{name} has {noun} features of {source.shape[-1]} channels, the model was trained on {expected}"
            )
    return data


def coco_ids(split: Split) -> Int[Tensor, " image"] | None:
    """Parse COCO ids from image names (COCO_val2014_000000391895.jpg); None if a name does not end in a number."""
    matches = [re.search(r"(\d+)(?:\.\w+)?$", name) for name in split.image_names]
    ids: list[Any] = [int(match[1]) for match in matches if match is not None and len(match[1]) <= 18]
    if len(ids) < len(split.image_names) or ids == list(range(len(ids))):  # row indices, not ids
        return None
    return torch.tensor(ids)
