"""What a comparison runs: its variants (the rows of the table), and the planned runs of each.

A variant is an objective with settings on a model. Features are extracted once, data is opened once per model, and all
variants of a model make the same number of steps.
"""

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
from rich.console import Console

from tercet import runs
from tercet.comparison.settings import CompareSettings
from tercet.console import ConsoleProgress, print_skipped
from tercet.data.dataset import DataSet
from tercet.data.encoders.extract import extract
from tercet.data.encoders.registry import image_encoder, text_encoder
from tercet.data.feature_array import FeatureArray
from tercet.data.hard_negatives import HardNegativeSampler, MinedTable, open_mined
from tercet.data.textio import ErrorPolicy
from tercet.names import is_in_memory, short_name, split_settings, suggest
from tercet.objectives import objective
from tercet.objectives.aoq import AOQ
from tercet.objectives.goal.cells import PAIR_WEIGHTS, TRIPLET_WEIGHTS
from tercet.objectives.registry import OBJECTIVES
from tercet.plugins import is_file_name
from tercet.training.automatic_splits import stem_of
from tercet.training.mine_run import filters_of_table
from tercet.training.prepare import PreparedData, check_sum, prepare_data
from tercet.training.settings import (
    EXECUTION_SETTINGS,
    NEEDS_MINED,
    SETTING_NAMES,
    TrainSettings,
    train_settings,
)
from tercet.training.stacked import stack_key

CAPTIONS_PER_IMAGE = {"smooth-ap": 5}  # captions per image in a batch, as in the study of SmoothAP for retrieval
# All variants share the opened data and the way runs are executed.
SHARED_SETTINGS = ("train_split", "validation_split", "test_split", "image_size", "squash", *EXECUTION_SETTINGS)
COMPARISON_SETTINGS = (
    "data",
    "model",
    "mined",
    "objective",
    "objective_settings",
    "seed",
    "runs",
    "config",
    "features",
    "images",
)

GRIDS: dict[str, tuple[str, ...]] = {
    "goal": tuple(f"{T}/{P}" for P in PAIR_WEIGHTS for T in TRIPLET_WEIGHTS),
    # From the supplement of AOQ: Tables 1 and 2, and its text on how negatives are drawn.
    "aoq": ("triplet-sh", "off-tri", "off-quin", "aoq"),
    "aoq-batch": ("triplet-sh", "triplet-sh:batch_size=192", "aoq"),
    "aoq-penalties": tuple(
        f"aoq:adapt_beta={beta},adapt_alpha={alpha}"
        for beta, alpha in ((1.5, 0.2), (1.5, 0.3), (1.5, 0.5), (1.0, 0.3), (2.0, 0.3))
    ),
    "aoq-draws": ("aoq:mined_draw=uniform", "aoq:mined_draw=normal", "aoq:mined_draw=similarity"),
}


@dataclass(frozen=True)
class Variant:
    """An objective with its settings on a model, and the training settings that differ from the common ones."""

    name: str
    """As shown in the table."""
    objective: str
    model: str = "heads"
    objective_settings: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)
    """Training settings of this variant only."""


def make_variants(settings: CompareSettings) -> list[Variant]:
    """All rows of a comparison. Raises on wrong names, before any training."""
    specs = settings.objectives
    if settings.grid is not None:
        specs = GRIDS[settings.grid]
    elif "all" in specs:
        specs = tuple(dict.fromkeys(name for spec in specs for name in (OBJECTIVES if spec == "all" else (spec,))))
    _check_settings(settings)
    sweep = settings.sweep_values()
    variants = []
    for spec in specs:
        name, objective_settings, train = parse_variant(spec)
        for model, values in product(settings.models, product(*sweep.values())):
            swept = dict(zip(settings.sweep, values, strict=True))
            parts = [
                short_name(name) if is_in_memory(name) else name,
                *(f"{key}={_format(value)}" for key, value in (objective_settings | train | swept).items()),
            ]
            if len(settings.models) > 1:
                parts.insert(0, model)
            train_settings = _add_mined_table(name, train | swept, settings)
            variants.append(Variant(" ".join(parts), name, model, objective_settings, train_settings))
    variants = _with_checksums(variants)
    labels = [variant.name for variant in variants]
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"--objectives contains {label} more than once")
    return variants


def _with_checksums(variants: list[Variant]) -> list[Variant]:
    """Different functions of one name, given from Python, get the checksum of their code."""
    objectives: dict[str, set[str]] = {}
    for variant in variants:
        objectives.setdefault(variant.name, set()).add(variant.objective)
    return [
        replace(variant, name=f"{variant.name} {variant.objective.rpartition(':')[2]}")
        if is_in_memory(variant.objective) and len(objectives[variant.name]) > 1
        else variant
        for variant in variants
    ]


def parse_variant(spec: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """`nt-xent:temperature=0.05,learning_rate=1e-4` -> name of the objective, its settings, training settings."""
    name, overrides = split_settings(spec)
    check_sum(name)
    default = objective(name)
    objective_keys = set(default.settings) | {"reduction", "learn"}
    objective_settings = {key: value for key, value in overrides.items() if key in objective_keys}
    train = {key: value for key, value in overrides.items() if key not in objective_keys}
    for key in train:
        if key not in SETTING_NAMES:
            hint = suggest(key, sorted(objective_keys | set(SETTING_NAMES)), cutoff=0.5)
            raise ValueError(f"{spec}: neither {name} nor training has a setting {key!r}{hint}")
        _check_train_setting(key, spec, per_variant=True)
    if objective_settings:
        objective(name, **objective_settings)  # raises on wrong values
    return (name if is_file_name(name) or is_in_memory(name) else default.name), objective_settings, train


def _add_mined_table(name: str, train: dict[str, Any], settings: CompareSettings) -> dict[str, Any]:
    """Add --mined and the settings that need it, for objectives that use mined negatives only."""
    mined_settings = {key: value for key, value in settings.train.items() if key in NEEDS_MINED}
    takes_mined = isinstance(objective(name), AOQ)
    if not takes_mined and not (mined_settings | train).get("mined_as_candidates"):
        return train
    if settings.mined is None:
        raise ValueError(f"{name} needs --mined: a table of hard negatives, written by `tercet mine`")
    if takes_mined:
        mined_settings.pop("mined_as_candidates", None)
    return {"mined": settings.mined, **mined_settings, **train}


def _check_settings(settings: CompareSettings) -> None:
    for name, values in settings.sweep_values().items():
        _check_train_setting(name, "--sweep", per_variant=True)
        if not values:
            raise ValueError(f"--sweep {name} needs at least one value")
    for name in settings.train:
        _check_train_setting(name, "--train", per_variant=False)
    if settings.epochs is not None and "epochs" in settings.train:
        raise ValueError("--epochs and --train epochs=... are both given: use one of them")


def _check_train_setting(name: str, source: str, *, per_variant: bool) -> None:
    """`source`: where the user gave it, for the message."""
    if name in COMPARISON_SETTINGS:
        raise ValueError(f"{source}: {name} is a setting of the comparison, not of a run")
    if name not in SETTING_NAMES:
        raise ValueError(f"{source}: train has no setting {name!r}{suggest(name, SETTING_NAMES, cutoff=0.5)}")
    if name == "patience":
        raise ValueError(
            f"{source}: with patience the runs of a comparison would make different numbers of steps: all train "
            "equally long here, and each is evaluated with the weights of its best epoch"
        )
    if per_variant and name in SHARED_SETTINGS:
        raise ValueError(f"{source}: {name} must be the same for all runs of a comparison: use --train {name}=...")


def _format(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


SCENES_EPOCHS = 6

PreparedDatasets = Mapping[str, PreparedData]
"""Model -> the data as that model reads it."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of a variant."""

    variant: Variant
    settings: TrainSettings
    note: str = ""
    """What tells a trial of the tuning from other trials of the variant."""
    stack: Hashable | None = None
    """Runs with equal values may be trained together; None: alone."""
    together: int = 1
    """Number of runs that were planned at once with it, finished ones included: how many threads a run gets depends on
    it, and must not depend on how many are left."""

    @property
    def name(self) -> str:
        return f"{self.variant.name} s{self.settings.seed}"

    @property
    def label(self) -> str:
        """Unique among the runs of a comparison."""
        return f"{self.name} lr {self.settings.learning_rate:g} {self.note}".rstrip()


def encodes(settings: CompareSettings) -> bool:
    return settings.image_encoder is not None or settings.text_encoder is not None


def before_encoding(settings: CompareSettings, data: DataSet) -> DataSet:
    """The dataset with features of one channel in place of those to come: what a run can refuse is known before them.

    `ValueError` if there is nothing to encode.
    """
    splits = {}
    for name, split in data.splits.items():
        images, captions = split.features, split.caption_features
        if settings.image_encoder is not None:
            if split.image_files is None:
                raise ValueError(f"{data.path}: no images of {name} to encode: pass the image folder with --images")
            images = _unknown_features(len(split.image_names))
        elif data.sides.image_is_text and settings.text_encoder is not None:
            images = _unknown_features(len(split.image_names))
        if settings.text_encoder is not None:
            captions = _unknown_features(len(split.texts))
        splits[name] = replace(split, features=images, caption_features=captions)
    return replace(data, splits=splits)


def _unknown_features(count: int) -> FeatureArray:
    return FeatureArray((np.broadcast_to(np.zeros((1, 1), dtype=np.float32), (count, 1)),), "features to come")


def prepare_features(settings: CompareSettings, data: str, opened: DataSet, console: Console) -> str:
    """Extract features into a folder next to the runs, unless they are there already; return that folder."""
    identity = {
        "data": data,
        "images": None if settings.images is None else str(settings.images),
        "features": settings.features,
        "image_encoder": settings.image_encoder or "none",
        "text_encoder": settings.text_encoder or "none",
    }
    target = settings.runs / "features" / f"{stem_of(data)}_{runs.run_hash(identity, '')}"
    runs.make_root(target.parent)
    images = None if settings.image_encoder is None else image_encoder(settings.image_encoder)
    texts = None if settings.text_encoder is None else text_encoder(settings.text_encoder)
    if not target.exists():
        console.print(f"extracting features of {settings.data} to {target}", highlight=False, soft_wrap=True)
    errors = ErrorPolicy(skip=settings.skip_bad)
    with ConsoleProgress(console) as progress:
        extract(opened, target, images, texts, errors=errors, progress=progress, image_folder=settings.images)
    print_skipped([*opened.skipped, *errors.messages])
    return str(target)


def common_settings(settings: CompareSettings, data: str) -> dict[str, Any]:
    """Training settings of all runs."""
    common: dict[str, Any] = {
        "data": data,
        "features": settings.features,
        "images": settings.images,
        "ignore_equal_text": settings.ignore_equal_text,
        "skip_bad": settings.skip_bad,
        "model_settings": settings.model_settings,
        "runs": settings.runs,
    }
    if data == settings.data:  # extracted features are no table
        common |= {name: getattr(settings, name) for name in ("image_column", "caption_column", "split_column")}
    epochs = settings.epochs or (SCENES_EPOCHS if data.split(":")[0] == "scenes" else None)
    train = {name: value for name, value in settings.train.items() if name not in NEEDS_MINED}
    return common | ({} if epochs is None else {"epochs": epochs}) | train


def prepare_all(
    variants: Sequence[Variant], common: Mapping[str, Any], data: DataSet | None = None
) -> dict[str, PreparedData]:
    """The data as each model reads it; opened once per model if it is not open already."""
    models = dict.fromkeys(variant.model for variant in variants)
    return {model: prepare_data(train_settings({**common, "model": model}), data) for model in models}


def plan_run(variant: Variant, seed: int, common: Mapping[str, Any], prepared_datasets: PreparedDatasets) -> PlannedRun:
    """Settings of one run, with the number of steps that the common batch size gives, for all variants of a model.

    Objectives that rank several positives get several captions per image, as in their study, and the batch size may
    differ between variants: then an epoch is a number of steps, not a pass.
    """
    overrides = {
        **common,
        **variant.train,
        "model": variant.model,
        "objective": variant.objective,
        "objective_settings": variant.objective_settings,
        "seed": seed,
    }
    prepared = prepared_datasets[variant.model]
    default = prepared.fitted(train_settings({**common, "model": variant.model}))
    pairs = prepared.train.pairs
    max_captions = int(pairs[:, 0].bincount().max()) if len(pairs) else 1
    names = [term.rpartition("*")[2].split(":")[0] for term in variant.objective.split(" + ")]
    captions_per_image = min(max(CAPTIONS_PER_IMAGE.get(name, 1) for name in names), max_captions)
    if captions_per_image > 1:
        # Recipes of papers with one positive per query would train it on one caption of each image.
        overrides.setdefault("positives", "ids")
        if overrides["positives"] == "diagonal":
            raise ValueError(f"{variant.name} ranks several captions per image: it needs --train positives=ids")
        overrides.setdefault("captions_per_image", captions_per_image)
    settings = prepared.fitted(train_settings(overrides))
    same_batches = (settings.batch_size, settings.captions_per_image, settings.grad_accum_steps) == (
        default.batch_size,
        default.captions_per_image,
        default.grad_accum_steps,
    )
    if not same_batches and settings.epoch_steps is None:
        items = len(pairs) if default.captions_per_image is None else len(pairs[:, 0].unique())
        steps = default.epoch_steps or items // default.batch_size // default.grad_accum_steps
        if not steps:
            size = default.batch_size
            raise ValueError(f"{items} items do not fill one batch of {size}: give --train batch_size={items}, or less")
        settings = replace(settings, epoch_steps=steps)
    return PlannedRun(variant, settings)


def batch_notes(common: Mapping[str, Any], prepared_datasets: PreparedDatasets) -> list[str]:
    """What to say of batches that are larger than the training split."""
    notes = []
    for model, prepared in prepared_datasets.items():
        given = train_settings({**common, "model": model})
        size = prepared.fitted(given).batch_size
        if size < given.batch_size:
            notes.append(f"batches of {model} hold the whole training split: {size} items, fewer than batch_size")
    return notes


def check_mined_tables(plans: Iterable[PlannedRun], prepared_datasets: PreparedDatasets) -> None:
    """Raise before the first run if a table of mined negatives cannot be used."""
    tables: dict[str, MinedTable] = {}
    for plan in plans:
        settings, data = plan.settings, prepared_datasets[plan.variant.model].train
        if settings.mined is not None:
            if settings.mined not in tables:
                tables[settings.mined] = open_mined(settings.mined, data)
            HardNegativeSampler(tables[settings.mined], data.owners, settings.mined_top, settings.mined_draw)
            if settings.mine_every is not None:
                filters_of_table(settings.mined)


def planned_together(
    plans: Sequence[PlannedRun], prepared_datasets: PreparedDatasets, *, stack: bool
) -> list[PlannedRun]:
    """The same runs, marked by how they are trained.

    Call it before finished runs are left out: a resumed comparison trains every run in the way it began.
    """
    marked = with_stacks(plans, prepared_datasets) if stack else plans
    return [replace(plan, together=len(plans)) for plan in marked]


def with_stacks(plans: Sequence[PlannedRun], prepared_datasets: PreparedDatasets) -> list[PlannedRun]:
    """The same runs; those that at least one other run can be trained with are marked."""
    keys: list[Hashable | None] = []
    for plan in plans:
        key = stack_key(plan.settings, prepared_datasets[plan.variant.model])
        keys.append(None if key is None else (plan.variant.model, key))
    return [replace(plan, stack=key if keys.count(key) > 1 else None) for plan, key in zip(plans, keys, strict=True)]


def with_learning_rate(plan: PlannedRun, learning_rate: float) -> PlannedRun:
    return replace(plan, settings=replace(plan.settings, learning_rate=learning_rate))


def with_seed(plan: PlannedRun, seed: int) -> PlannedRun:
    return replace(plan, settings=replace(plan.settings, seed=seed))
