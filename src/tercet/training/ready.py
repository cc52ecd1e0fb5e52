"""A data set made ready for a system: the sources that it reads, the sizes that the data decides, the model itself."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
from torch import nn

from tercet.data.dataset import DataSet, Split
from tercet.data.features.manifest import encoders_of
from tercet.data.formats import open_data
from tercet.data.pairs import PairedData, Source, paired
from tercet.data.pixels import Pixels, PixelSettings
from tercet.data.pretrained_pixels import pretrained_pixels, warped_pixels
from tercet.data.text.cleaning import cleaned
from tercet.data.text.vocabulary import Vocabulary, build_vocabulary
from tercet.models import SYSTEMS, build, preset
from tercet.models.backbone import image_side
from tercet.models.backbone import text_places as places_of
from tercet.retriever import Reading, Retriever, load, read_tokens
from tercet.training.settings import TrainSettings

OF_REGIONS = ("vsrn", "scan", "bfan")


@dataclass(frozen=True)
class Ready:
    """Splits as a model sees them. One of these serves any number of runs that read the data alike."""

    name: str
    train: PairedData
    validation: PairedData | None
    test: PairedData | None
    system: str
    sizes: dict[str, Any]
    """Settings of the model that the data decides."""
    reading: Reading

    @cached_property
    def checksum(self) -> str:
        splits = (self.train, self.validation, self.test)
        return "".join(split.checksum()[:16] for split in splits if split is not None)

    def model(self, settings: TrainSettings) -> nn.Module:
        """With weights drawn from the run's seed, or those it starts from."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            model = build(settings.model, **self.sizes | settings.model_settings)
        if settings.start_from is not None:
            first = load(settings.start_from)
            if first.system != self.system:
                raise ValueError(f"{settings.start_from} holds a {first.system}, not a {self.system}")
            own, theirs = model.state_dict(), first.model.state_dict()
            wrong = [name for name in own if name not in theirs or own[name].shape != theirs[name].shape]
            if wrong:
                raise ValueError(f"{settings.start_from} does not fit the model: {', '.join(wrong)}")
            model.load_state_dict({name: theirs[name] for name in own})
        return model

    def retriever(self, model: nn.Module) -> Retriever:
        return Retriever(self.system, model, self.reading)


def make_ready(settings: TrainSettings) -> Ready:
    """Open the data and find what the model named in the settings wants of it."""
    data = open_data(settings.data, images=settings.images, features=settings.features)
    system, wanted = preset(settings.model)
    wanted = wanted | settings.model_settings
    name = data.path.stem.removeprefix("dataset_") if settings.data.split(":")[0] != "scenes" else "scenes"
    read_images, image_sizes, image_reading = _images(data, system, wanted, settings)
    read_captions, caption_sizes, caption_reading = _captions(data, system, wanted, settings)

    def side(split_name: str, missing: str | None) -> PairedData | None:
        if split_name == missing and missing not in data.splits:
            return None
        split = data.split(split_name)
        return paired(name, split, read_images(split), read_captions(split))

    training = side(settings.train_split, None)
    assert training is not None
    return Ready(
        name,
        training,
        side(settings.validation_split, "val"),  # only the usual names may be missing: another one is a slip
        side(settings.test_split, "test"),
        system,
        image_sizes | caption_sizes,
        Reading(**image_reading | caption_reading),
    )


def _pixels(system: str, seen_by: Any, settings: TrainSettings) -> PixelSettings:
    """As the vision model wants them where it says so, else as asked for."""
    if system == "clip" and isinstance(seen_by, str):
        return pretrained_pixels(seen_by)
    if system == "xvlm":
        return warped_pixels(image_side(seen_by))
    return PixelSettings(settings.picture_side, None if settings.warp else round(settings.picture_side * 8 / 7))


Read = Callable[[Split], Source | None]
Side = tuple[Read, dict[str, Any], dict[str, Any]]


def _images(data: DataSet, system: str, wanted: dict[str, Any], settings: TrainSettings) -> Side:
    """Pixels for a model with a backbone, where the data has pictures and no features; features otherwise."""
    split = data.split(settings.train_split)
    vision = SYSTEMS[system].vision
    seen_by = wanted.get(vision or "")
    only_pixels = "image_dim" not in {each.name for each in fields(SYSTEMS[system].settings)}
    if only_pixels and seen_by is None:
        raise ValueError(f"{system} needs its vision model: --model-settings {vision}=NAME or {vision}=path/to/folder")
    if only_pixels or (seen_by is not None and wanted.get("image_dim") is None and split.features is None):
        pixels = _pixels(system, seen_by, settings)
        if split.pictures is None:
            raise ValueError(f"{data.path} has no pictures, which {settings.model} sees")

        def read(part: Split) -> Source:
            assert part.pictures is not None
            return Pixels(part.pictures, pixels)

        return read, {}, {"pixels": pixels}
    if split.features is None:
        raise ValueError(f"{data.path} has no features of images: run `tercet features` first, or train with pixels")
    if system in OF_REGIONS and len(split.features.shape) != 3:
        raise ValueError(
            f"{data.path} has one vector an image, {system} takes several regions: name others with --features "
            "(scenes and `tercet features --grid` have regions)"
        )
    encoder, grid = encoders_of(data.path).images
    return (
        lambda part: part.features,
        {"image_dim": split.features.shape[-1]},
        {"image_encoder": encoder, "grid": grid},
    )


def _captions(data: DataSet, system: str, wanted: dict[str, Any], settings: TrainSettings) -> Side:
    split = data.split(settings.train_split)
    if system == "heads":
        if split.caption_features is None:
            raise ValueError(
                f"{data.path} has no features of captions, which heads stand on: run `tercet features` first, or "
                "train a model of words such as vsepp"
            )
        return (
            lambda part: part.caption_features,
            {"caption_dim": split.caption_features.shape[-1]},
            {"text_encoder": encoders_of(data.path).captions},
        )
    read_by = wanted.get(SYSTEMS[system].text or "")
    if isinstance(read_by, str):
        longest = places_of(read_by)
        return lambda part: read_tokens(system, part.texts, read_by, longest), {}, {"tokenizer": read_by}
    if system == "clip":
        raise ValueError("clip is trained from a published one: --model-settings clip=NAME or clip=path/to/folder")
    texts = [cleaned(text) for text in split.texts] if system == "xvlm" else split.texts
    words: Vocabulary = build_vocabulary(texts)
    places = None if read_by is None else places_of(read_by)
    return (
        lambda part: read_tokens(system, part.texts, words, places),
        {"words": len(words)},
        {"vocabulary": words},
    )
