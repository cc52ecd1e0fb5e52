"""Preparation of a run: the data as inputs of the model, the model itself, and what defines the run.

`prepare_data` opens a dataset for a system; `resolve` builds the objectives and lists everything that defines the run;
`run_id_of` hashes that and the data, and names the run folder.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tercet import runs
from tercet.data.bad_items import without_bad_features, without_bad_images
from tercet.data.dataset import DataSet, PairedData, Source, Split, paired
from tercet.data.encoders.extract import encoders_of
from tercet.data.feature_array import FeatureArray
from tercet.data.formats import open_data
from tercet.data.formats.columns import Columns
from tercet.data.formats.from_python import register_data
from tercet.data.grades import grades_checksum
from tercet.data.hard_negatives import filters_of, is_shortlisted, table_checksum
from tercet.data.text.tokenized import TokenizedCaptions
from tercet.data.text.tokenizer import normalize_caption
from tercet.data.text.vocabulary import Vocabulary, build_vocabulary
from tercet.data.textio import ErrorPolicy
from tercet.data.transforms import Pixels, TransformSettings, pretrained_transform, squash_transform
from tercet.hub import is_pretrained
from tercet.in_memory import code_in_memory
from tercet.inference import WEIGHTS, Preprocessor, Retriever, checksum_of_weights, load, tokenize
from tercet.interfaces import GridEncoder, RetrievalModel, SystemSpec, TrainableBackbone
from tercet.models import build, preset, system_of, training_defaults
from tercet.models.parts.backbone import image_size_of
from tercet.models.parts.backbone import max_positions as max_positions_of
from tercet.names import flag, is_in_memory, is_sum, short_name, split_settings, split_terms
from tercet.objectives import RowObjective, objective
from tercet.objectives.aoq import AOQ
from tercet.objectives.base import TAKE_WEIGHTS
from tercet.objectives.custom import CustomLoss
from tercet.objectives.registry import spec_of
from tercet.plugins import is_file_name, source_checksum
from tercet.training.eval_loop import check_select_metric
from tercet.training.lora import add_adapters
from tercet.training.settings import CODE_SETTINGS, TrainSettings, identity_of
from tercet.training.step import objective_for, takes_scale

OBJECTS = ("data", "objective", "warmup_objective")
"""Settings that may be an object instead of text when they are given from Python."""

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
    skipped: tuple[str, ...] = ()
    """Every item that --skip-bad skipped, with the reason."""

    @cached_property
    def checksum(self) -> str:
        splits = (self.train, self.validation, self.test)
        return "".join(split.checksum()[:16] for split in splits if split is not None)

    @property
    def held_out(self) -> PairedData:
        """The split that runs are evaluated on: test, or validation if there is no test split."""
        data = self.test if self.test is not None else self.validation
        if data is None:
            raise ValueError(f"{self.name} has neither a test nor a validation split: runs cannot be evaluated")
        return data

    def model(self, settings: TrainSettings) -> RetrievalModel:
        """Build the model, with random weights from the run's seed or the weights of `init_from`."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            model = build(settings.model, **self.sizes | settings.model_settings)
        if settings.init_from is not None:
            source = load(settings.init_from)
            if source.system != self.system:
                raise ValueError(f"--init-from {settings.init_from} is a {source.system}, the model is a {self.system}")
            self._check_vocabulary(source, settings.init_from)
            own, loaded = model.state_dict(), source.model.state_dict()
            mismatched = [name for name in own if name not in loaded or own[name].shape != loaded[name].shape]
            if mismatched:
                raise ValueError(
                    f"--init-from {settings.init_from}: missing or of another shape: {', '.join(mismatched)}"
                )
            model.load_state_dict({name: loaded[name] for name in own})
        if settings.lora is not None:
            add_adapters(model, settings.lora, settings.seed)
        return model

    def _check_vocabulary(self, source: Retriever, name: str | Path) -> None:
        """Raise if the word embeddings of `source` belong to other words: their number alone may be equal."""
        own, other = self.preprocessor.vocabulary, source.preprocessor.vocabulary
        if own is None or other is None or own.words == other.words:
            return
        row = next((n for n, (a, b) in enumerate(zip(own.words, other.words, strict=False)) if a != b), len(own.words))
        raise ValueError(
            f"--init-from {name} has another vocabulary ({len(other.words)} words, here {len(own.words)}; they differ "
            f"from token id {row} on): its word embeddings belong to other words"
        )

    def without_effect(self, settings: TrainSettings) -> dict[str, str]:
        """Setting -> why it does nothing for this data and the class of this model."""
        images, captions = self.train.images, self.train.captions
        spec = system_of(self.system).spec
        reads_pixels = isinstance(images, Pixels)
        reads_regions = reads_pixels or (isinstance(images, FeatureArray) and len(images.shape) == 3)
        reasons = {}
        if not isinstance(captions, TokenizedCaptions):
            reasons["drop_words"] = "captions are vectors, not token ids"
        if not reads_regions:
            reasons["drop_regions"] = "images are single vectors, not regions"
        if not reads_pixels:
            reasons["crop"] = "the data has image features, which cannot be cropped"
            reasons |= dict.fromkeys(("image_size", "squash"), "the data has image features, not pixels")
        else:
            reasons["features"] = "it reads pixels, not features"
            vision = (preset(settings.model)[1] | settings.model_settings).get(spec.vision or "")
            if spec.transform == "squash" or (spec.transform == "pretrained" and isinstance(vision, str)):
                reasons |= dict.fromkeys(("image_size", "squash"), "images are prepared as its vision model needs them")
        if self.validation is None:
            reasons["select_metric"] = f"there is no split {settings.validation_split!r} to select weights on"
            reasons["patience"] = f"there is no split {settings.validation_split!r} to stop by"
        elif settings.patience is not None and settings.patience > settings.epochs - 2:
            reasons["patience"] = f"{settings.epochs} epochs end before: it must be below {settings.epochs - 1}"
        if settings.ramp_epoch is not None and settings.ramp_epoch >= settings.epochs:
            reasons["ramp_epoch"] = f"epochs are counted from 0 to {settings.epochs - 1}"
        if settings.mine_every is not None and settings.mine_every >= settings.epochs:
            reasons["mine_every"] = f"there are {settings.epochs} epochs"
        return reasons

    def model_settings_without_effect(self) -> dict[str, str]:
        """The same for settings of the model."""
        images, captions = self.train.images, self.train.captions
        of_pixels = isinstance(images, Pixels)
        reasons = {"residual": "a backbone has no residual branch"} if of_pixels else {}
        if not of_pixels:
            reasons["train_backbone"] = "the data has image features, which are used instead of a backbone"
        if self.preprocessor.tokenizer is not None:
            reasons |= dict.fromkeys(("word_dim", "layers"), "captions are read by a Hugging Face model")
        if all(isinstance(source, FeatureArray) and len(source.shape) == 2 for source in (images, captions)):
            reasons["pooling"] = "images and captions are single vectors"
        return reasons

    def check_effective(self, settings: TrainSettings) -> None:
        """Raise for settings that would do nothing for this model and data, unless they come from its recipe."""
        for name, why in self.without_effect(settings).items():
            _refuse_unless_of_recipe(settings, name, why)
        for name, why in self.model_settings_without_effect().items():
            if name in settings.model_settings:
                value = f"{name}={settings.model_settings[name]}"
                raise ValueError(f"--model-settings {value} would do nothing for {settings.model}: {why}")

    def check_effective_for(self, model: RetrievalModel, settings: TrainSettings) -> None:
        """The same for what depends on how the model was built."""
        for name, why in self._without_effect_on(model).items():
            _refuse_unless_of_recipe(settings, name, why)

    def _without_effect_on(self, model: RetrievalModel) -> dict[str, str]:
        has_backbone = isinstance(model, TrainableBackbone) and model.has_backbone
        reasons = {} if has_backbone else {"unfreeze_epoch": "it has no backbone that could be frozen"}
        if isinstance(self.train.images, Pixels) and not (isinstance(model, GridEncoder) and has_backbone):
            reasons["drop_regions"] = "it makes one vector of an image, not regions"
        return reasons

    def augmentations(self, settings: TrainSettings, model: RetrievalModel) -> tuple[str, ...]:
        """Flags that augment what this model reads, with usual values."""
        useless = self.without_effect(settings) | self._without_effect_on(model)
        usual = {"drop_regions": 0.2, "drop_words": 0.2, "crop": "half"}
        return tuple(f"{flag(name)} {value}" for name, value in usual.items() if name not in useless)

    def fitted(self, settings: TrainSettings) -> TrainSettings:
        """The settings with a batch that is not larger than the training split.

        With --captions-per-image a batch is of images.
        """
        pairs = self.train.pairs
        items = len(pairs[:, 0].unique()) if settings.captions_per_image is not None else len(pairs)
        return settings if settings.batch_size <= items or items < 2 else replace(settings, batch_size=items)

    def retriever(self, model: RetrievalModel) -> Retriever:
        return Retriever(self.system, model, self.preprocessor)


def _refuse_unless_of_recipe(settings: TrainSettings, name: str, why: str) -> None:
    value, default = getattr(settings, name), TrainSettings.__dataclass_fields__[name].default
    if value not in (default, training_defaults(settings.model, settings.round).get(name, default)):
        raise ValueError(f"{flag(name)} {value} would do nothing for {settings.model}: {why}")


def prepare_data(settings: TrainSettings, data: DataSet | None = None) -> PreparedData:
    """Open the dataset, unless it is open already, and prepare it for the model of the settings."""
    data = data or open_data(
        settings.data,
        images=settings.images,
        features=settings.features,
        skip_bad=settings.skip_bad,
        columns=Columns.of(settings),
    )
    name = _name_of_data(settings.data, data)
    system, model_settings = preset(settings.model)
    model_settings = model_settings | settings.model_settings
    spec = system_of(system).spec
    read_images, image_sizes, image_fields = _images(data, spec, model_settings, settings)
    if settings.skip_bad:
        data = (without_bad_images if "pixels" in image_fields else without_bad_features)(data, ErrorPolicy(skip=True))
    read_captions, caption_sizes, caption_fields = _captions(data, spec, model_settings, settings)
    if spec.image_texts:  # both towers read token ids, of one tokenizer
        read_images = _passages(data, spec, model_settings, caption_fields, settings)

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
        Preprocessor(**image_fields | caption_fields, sides=data.sides),
        tuple(data.skipped),
    )


def name_objects(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as text: data and objectives that were given as objects get a name (see `tercet.in_memory`)."""
    named = dict(given)
    for name in OBJECTS:
        if name in given and given[name] is not None and not isinstance(given[name], (str, Path)):
            is_data = name == "data"
            named[name] = name_data(given) if is_data else spec_of(given[name])
    return named


def name_data(given: Mapping[str, Any]) -> str:
    """The data of these settings as text: a path, or the name of data that was given as an object."""
    data = given["data"]
    if isinstance(data, (str, Path)):
        return str(data)
    columns = Columns(*(given.get(f"{kind}_column") for kind in ("image", "caption", "split")))
    skip_bad = bool(given.get("skip_bad"))
    return register_data(open_data(data, images=given.get("images"), skip_bad=skip_bad, columns=columns))


def _name_of_data(given: str, data: DataSet) -> str:
    """Part of the name of the run folder."""
    if is_in_memory(given):
        return short_name(given).lower()
    return "scenes" if given.split(":")[0] == "scenes" else data.path.stem.removeprefix("dataset_")


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
    if spec.image_texts:
        return lambda split: None, {}, {}  # `_passages` reads them with the tokenizer of the captions
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
            raise ValueError(f"{data.path}: {settings.model} reads pixels: {data.no_images or 'it has no image files'}")

        def read(split: Split) -> Source:
            assert split.image_files is not None
            return Pixels(split.image_files, pixels)

        return read, {}, {"pixels": pixels}
    if split.features is None:
        on_pixels = f", or train on pixels with --model-settings {spec.vision}=NAME" if spec.vision else ""
        other = ", or train text-towers" if data.sides.image_is_text else on_pixels
        raise ValueError(f"{data.path} has no {data.sides.image} features: run `tercet features` first{other}")
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
            other = "text-towers" if data.sides.image_is_text else "vsepp"
            raise ValueError(
                f"{data.path} has no {data.sides.caption} features, and {settings.model} needs them: run "
                f"`tercet features` first, or train a model that reads text, such as {other}"
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
    texts: Sequence[str] = split.texts
    if spec.image_texts and split.image_texts is not None:  # the passages of training queries, no other
        texts = [*texts, *(split.image_texts[image] for image in np.unique(split.pairs()[:, 0]))]
    texts = [normalize_caption(text) for text in texts] if spec.normalize_captions else texts
    vocabulary: Vocabulary = build_vocabulary(texts)
    max_tokens = None if text_model is None else max_positions_of(text_model)
    return (
        lambda split: tokenize(spec, split.texts, vocabulary, max_tokens),
        {"vocab_size": len(vocabulary)},
        {"vocabulary": vocabulary},
    )


def _passages(
    data: DataSet,
    spec: SystemSpec,
    model_settings: Mapping[str, Any],
    caption_fields: Mapping[str, Any],
    settings: TrainSettings,
) -> Read:
    """Token ids of the passages, tokenized once: all splits have the same."""
    if not data.sides.image_is_text:
        raise ValueError(f"{data.path} has no passages, and {settings.model} needs texts on both sides")
    text_model, tokenizer = model_settings.get(spec.text or ""), caption_fields.get("tokenizer")
    max_tokens = None if text_model is None else max_positions_of(text_model)
    read: dict[tuple[str, ...], Source] = {}

    def tokens(split: Split) -> Source:
        assert split.image_texts is not None
        if split.image_texts not in read:
            words = tokenizer or caption_fields["vocabulary"]
            read[split.image_texts] = tokenize(spec, split.image_texts, words, max_tokens)
        return read[split.image_texts]

    return tokens


# How the data is read: the run hash contains the checksums of its content.
NOT_HASHED = ("data", "images", "mined", "grades", "skip_bad", "image_column", "caption_column", "split_column")


def resolve(settings: TrainSettings) -> tuple[RowObjective, RowObjective | None, dict[str, Any]]:
    """Return the objective, the warmup objective, and everything that defines the run, ready for JSON."""
    check_select_metric(settings.select_metric)
    if settings.model.endswith("-finetuned") and settings.init_from is None and not is_pretrained(settings.model):
        raise ValueError(f"{settings.model} is a second stage: --init-from must name the run of the first stage")
    check_sum(settings.objective)
    check_sum(settings.warmup_objective or "")
    main = objective_for(settings.model, settings.objective, settings.objective_settings)
    warmup = _warmup_objective(settings)
    check_mined_settings(main, warmup, settings)
    for each in (main, *([] if warmup is None else [warmup])):
        if settings.grades is not None and not each.takes_grades:
            raise ValueError(f"--grades: {each.name} does not define weights of positives; {TAKE_WEIGHTS} do")
        if settings.queue_size is not None and isinstance(each, AOQ | CustomLoss):
            raise ValueError(f"--queue-size: {each.name} cannot use it; objectives with rows as anchors can")
    source = _checksum_of_code(settings.objective)
    identity = identity_of(settings) | {
        "objective": main.name if source is None else settings.objective,
        "objective_settings": main.settings,
        "objective_source": source,
        "warmup_source": _checksum_of_code(settings.warmup_objective),
        "learned_scale": takes_scale(settings.model, main.settings, settings.objective_settings),
        "pretrained": _pretrained_checksums(settings),
        "mined_checksum": None if settings.mined is None else table_checksum(Path(settings.mined)),
        "grades_checksum": None if settings.grades is None else grades_checksum(Path(settings.grades)),
        "init_checksum": None if settings.init_from is None else _init_checksum(Path(settings.init_from)),
    }
    if is_in_memory(settings.objective):
        identity["objective_code"] = code_in_memory(settings.objective)
    if is_file_name(settings.model):
        identity["model_source"] = source_checksum(settings.model)
    if settings.mined is not None and settings.mine_every is not None:
        identity["mined_again"] = _mining_identity(Path(settings.mined))
    return main, warmup, identity


def check_sum(spec: str) -> None:
    """Refuse a sum with a function from Python: the name of the run would not tell which function it was."""
    terms = [term for _, term in split_terms(spec)] if is_sum(spec) else []
    if from_python := next((term for term in terms if is_in_memory(term)), None):
        raise ValueError(
            f"the function {short_name(from_python)} from Python cannot be a term of a sum in a run: write it in a "
            "file, mine.py:function, or add the other terms in it"
        )


def _checksum_of_code(name: str | None) -> str | None:
    """Checksum of an objective's file, or of its code if it was given from Python; None for a registered one."""
    name = None if name is None else split_settings(name)[0]
    if name is None or not (is_file_name(name) or is_in_memory(name)):
        return None
    return source_checksum(name) if is_file_name(name) else name.rpartition(":")[2]


def run_id_of(settings: TrainSettings, prepared: PreparedData) -> str:
    """Return the hash of settings and data that names the run."""
    return hash_identity(resolve(prepared.fitted(settings))[2], prepared)


def hash_identity(identity: dict[str, Any], prepared: PreparedData) -> str:
    """The same, of an identity that is resolved already."""
    hashed = {name: value for name, value in identity.items() if name not in NOT_HASHED}
    for name in CODE_SETTINGS:  # the checksum of a file is part of the hash, its place is not
        if isinstance(hashed.get(name), str) and is_file_name(hashed[name]):
            hashed[name] = Path(hashed[name]).name
    if is_pretrained(identity["model"]):  # `pretrained` has the checksum of the files in a folder
        hashed["model"] = Path(identity["model"]).name
    return runs.run_hash(hashed, prepared.checksum)


def _warmup_objective(settings: TrainSettings) -> RowObjective | None:
    """With those objective settings that the warmup objective has too: one margin for both."""
    if settings.warmup_objective is None:
        return None
    name, own = split_settings(settings.warmup_objective)
    known = objective(name, **own).settings
    shared = {name: value for name, value in settings.objective_settings.items() if name in known}
    return objective_for(settings.model, name, shared | own)


def _mining_identity(table: Path) -> dict[str, Any]:
    """What later tables depend on besides the lists of the first: its filters, and whether it had a shortlist."""
    filters = {name: value for name, value in filters_of(table).items() if name != "pairs"}
    return filters | {"shortlist": is_shortlisted(table)}


def _pretrained_checksums(settings: TrainSettings) -> dict[str, str]:
    """Checksums of pretrained weights in local folders; a model name on the hub identifies itself."""
    system, model_settings = preset(settings.model)
    model_settings = model_settings | settings.model_settings
    checksums = {}
    spec = system_of(system).spec
    for part in sorted({spec.vision or "", spec.text or ""}):
        folder = model_settings.get(part)
        if isinstance(folder, str) and Path(folder).is_dir():
            files = sorted(f for kind in ("*.safetensors", "*.bin", "config.json") for f in Path(folder).glob(kind))
            digest = hashlib.sha256()
            for file in files:
                digest.update(hashlib.sha256(file.read_bytes()).digest())
            checksums[part] = digest.hexdigest()[:16]
    return checksums


def _init_checksum(folder: Path) -> str:
    if not (folder / WEIGHTS).is_file():
        raise ValueError(f"--init-from: {folder / WEIGHTS}: no such file")
    return checksum_of_weights(folder)


def check_mined_settings(objective: RowObjective, warmup: RowObjective | None, settings: TrainSettings) -> None:
    """Check before any work that --mined is given if and only if it is used."""
    users = [each.name for each in (objective, warmup) if isinstance(each, AOQ)]
    if users and settings.mined is None:
        raise ValueError(f"{users[0]} needs --mined, a folder written by `tercet mine`")
    if settings.mined is None:
        return
    if settings.mined_as_candidates and users:
        raise ValueError(f"{users[0]} uses mined negatives itself: --mined-as-candidates is for the other objectives")
    if not users and not settings.mined_as_candidates:
        raise ValueError(
            f"{objective.name} does not use --mined: off-tri, off-quin and aoq do; for other objectives add "
            "--mined-as-candidates"
        )
