"""Preparation of a dataset for a system: the inputs of the model, sizes that depend on the data, the model itself."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch

from tercet.data.dataset import DataSet, PairedData, Source, Split, paired
from tercet.data.encoders.extract import encoders_of
from tercet.data.formats import open_data
from tercet.data.text.tokenizer import normalize_caption
from tercet.data.text.vocabulary import Vocabulary, build_vocabulary
from tercet.data.transforms import Pixels, TransformSettings, pretrained_transform, squash_transform
from tercet.inference import Preprocessor, Retriever, load, tokenize
from tercet.interfaces import RetrievalModel, SystemSpec
from tercet.models import build, preset, system_of
from tercet.models.parts.backbone import image_size_of
from tercet.models.parts.backbone import max_positions as max_positions_of
from tercet.training.settings import TrainSettings

Read = Callable[[Split], Source | None]
Reader = tuple[Read, dict[str, Any], dict[str, Any]]
"""How to read images or captions of a split, model sizes that follow from them, and fields of `Preprocessor`."""


@dataclass(frozen=True)
class PreparedData:
    """Splits as inputs of a model. Shared by any number of runs that read the data in the same way."""

    name: str
    train: PairedData
    validation: PairedData | None
    test: PairedData | None
    system: str
    sizes: dict[str, Any]
    """Model settings that depend on the data."""
    preprocessor: Preprocessor

    @cached_property
    def checksum(self) -> str:
        splits = (self.train, self.validation, self.test)
        return "".join(split.checksum()[:16] for split in splits if split is not None)

    def model(self, settings: TrainSettings) -> RetrievalModel:
        """Build the model, with random weights from the run's seed or the weights of `init_from`."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            model = build(settings.model, **self.sizes | settings.model_settings)
        if settings.init_from is not None:
            source = load(settings.init_from)
            if source.system != self.system:
                raise ValueError(f"--init-from {settings.init_from} is a {source.system}, the model is a {self.system}")
            own, loaded = model.state_dict(), source.model.state_dict()
            mismatched = [name for name in own if name not in loaded or own[name].shape != loaded[name].shape]
            if mismatched:
                raise ValueError(
                    f"--init-from {settings.init_from}: missing or of another shape: {', '.join(mismatched)}"
                )
            model.load_state_dict({name: loaded[name] for name in own})
        return model

    def retriever(self, model: RetrievalModel) -> Retriever:
        return Retriever(self.system, model, self.preprocessor)


def prepare_data(settings: TrainSettings) -> PreparedData:
    """Open the dataset and prepare it for the model of the settings."""
    data = open_data(settings.data, images=settings.images, features=settings.features)
    system, model_settings = preset(settings.model)
    model_settings = model_settings | settings.model_settings
    name = data.path.stem.removeprefix("dataset_") if settings.data.split(":")[0] != "scenes" else "scenes"
    spec = system_of(system).spec
    read_images, image_sizes, image_fields = _images(data, spec, model_settings, settings)
    read_captions, caption_sizes, caption_fields = _captions(data, spec, model_settings, settings)

    def read(split_name: str, optional: str | None) -> PairedData | None:
        if split_name == optional and optional not in data.splits:
            return None
        split = data.split(split_name)
        return paired(name, split, read_images(split), read_captions(split))

    training = read(settings.train_split, None)
    assert training is not None
    return PreparedData(
        name,
        training,
        read(settings.validation_split, "val"),  # only the default names may be missing: any other must exist
        read(settings.test_split, "test"),
        system,
        image_sizes | caption_sizes,
        Preprocessor(**image_fields | caption_fields),
    )


def _transform(spec: SystemSpec, vision: Any, settings: TrainSettings) -> TransformSettings:
    """Return the preprocessing of the vision model if it defines one, else that of the settings."""
    if spec.transform == "pretrained" and isinstance(vision, str):
        return pretrained_transform(vision)
    if spec.transform == "squash":
        return squash_transform(image_size_of(vision))
    return TransformSettings(settings.image_size, None if settings.squash else round(settings.image_size * 8 / 7))


def _images(data: DataSet, spec: SystemSpec, model_settings: dict[str, Any], settings: TrainSettings) -> Reader:
    """Pixels for a model with a backbone if the dataset has images and no features; features otherwise."""
    split = data.split(settings.train_split)
    vision_model = model_settings.get(spec.vision or "")
    only_pixels = "image_dim" not in {field.name for field in fields(spec.settings)}
    if only_pixels and spec.vision is not None and vision_model is None:
        raise ValueError(
            f"{settings.model} needs a vision model: "
            f"--model-settings {spec.vision}=NAME or {spec.vision}=path/to/folder"
        )
    if only_pixels or (vision_model is not None and model_settings.get("image_dim") is None and split.features is None):
        pixels = _transform(spec, vision_model, settings)
        if split.image_files is None:
            raise ValueError(f"{data.path} has no image files, and {settings.model} reads pixels")

        def read(split: Split) -> Source:
            assert split.image_files is not None
            return Pixels(split.image_files, pixels)

        return read, {}, {"pixels": pixels}
    if split.features is None:
        raise ValueError(f"{data.path} has no image features: run `tercet features` first, or train on pixels")
    if spec.regions and len(split.features.shape) != 3:
        raise ValueError(
            f"{data.path} has one feature vector per image, and {settings.model} needs several regions: choose others "
            "with --features (scenes and `tercet features --grid` have regions)"
        )
    encoder, grid = encoders_of(data.path).images
    return (
        lambda split: split.features,
        {"image_dim": split.features.shape[-1]},
        {"image_encoder": encoder, "grid": grid},
    )


def _captions(data: DataSet, spec: SystemSpec, model_settings: dict[str, Any], settings: TrainSettings) -> Reader:
    """Caption features for heads; token ids of the model's own tokenizer or of the training vocabulary otherwise."""
    split = data.split(settings.train_split)
    if spec.caption_features:
        if split.caption_features is None:
            raise ValueError(
                f"{data.path} has no caption features, and {settings.model} needs them: run `tercet features` first, "
                "or train a model that reads text, such as vsepp"
            )
        return (
            lambda split: split.caption_features,
            {"caption_dim": split.caption_features.shape[-1]},
            {"text_encoder": encoders_of(data.path).captions},
        )
    text_model = model_settings.get(spec.text or "")
    if isinstance(text_model, str):
        max_tokens: int | None = max_positions_of(text_model)
        return lambda split: tokenize(spec, split.texts, text_model, max_tokens), {}, {"tokenizer": text_model}
    if "vocab_size" not in {field.name for field in fields(spec.settings)}:
        raise ValueError(
            f"{settings.model} needs pretrained weights: "
            f"--model-settings {spec.text}=NAME or {spec.text}=path/to/folder"
        )
    texts = [normalize_caption(text) for text in split.texts] if spec.normalize_captions else split.texts
    vocabulary: Vocabulary = build_vocabulary(texts)
    max_tokens = None if text_model is None else max_positions_of(text_model)
    return (
        lambda split: tokenize(spec, split.texts, vocabulary, max_tokens),
        {"vocab_size": len(vocabulary)},
        {"vocabulary": vocabulary},
    )
