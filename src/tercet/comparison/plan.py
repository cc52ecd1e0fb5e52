"""The runs of a comparison: features extracted once, data opened once, and settings with equal numbers of steps."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from tercet import runs
from tercet.comparison.settings import CompareSettings
from tercet.comparison.variants import CAPTIONS_PER_IMAGE, Variant
from tercet.data.commands import features
from tercet.data.hard_negatives import HardNegativeSampler, MinedTable, open_mined
from tercet.data.settings import Features
from tercet.training.mine_run import filters_of_table
from tercet.training.prepare import PreparedData, prepare_data
from tercet.training.settings import NEEDS_MINED, TrainSettings, train_settings

SCENES_EPOCHS = 6

PreparedDatasets = Mapping[str, PreparedData]
"""Model -> the data as that model reads it."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of a variant."""

    variant: Variant
    settings: TrainSettings

    @property
    def name(self) -> str:
        return f"{self.variant.name} s{self.settings.seed}"


def prepare_features(settings: CompareSettings, console: Console) -> str:
    """Extract features if an encoder is set, unless they are cached; return the data to train on.

    That is the data as given, or a folder of features next to the runs.
    """
    if settings.image_encoder is None and settings.text_encoder is None:
        return settings.data
    identity = {
        "data": settings.data,
        "images": None if settings.images is None else str(settings.images),
        "features": settings.features,
        "image_encoder": settings.image_encoder or "none",
        "text_encoder": settings.text_encoder or "none",
    }
    stem = settings.data.rstrip("/").rpartition("/")[2].partition(".")[0]
    target = settings.runs / "features" / f"{stem}_{runs.run_hash(identity, '')}"
    runs.make_root(target.parent)
    if not target.exists():
        console.print(f"extracting features of {settings.data} to {target}", highlight=False, soft_wrap=True)
    features(
        Features(
            path=settings.data,
            target=target,
            image_encoder=identity["image_encoder"] or "none",
            text_encoder=identity["text_encoder"] or "none",
            images=settings.images,
            features=settings.features,
        )
    )
    return str(target)


def common_settings(settings: CompareSettings, data: str) -> dict[str, Any]:
    """Training settings of all runs."""
    common: dict[str, Any] = {
        "data": data,
        "features": settings.features,
        "images": settings.images,
        "ignore_equal_text": settings.ignore_equal_text,
        "model_settings": settings.model_settings,
        "runs": settings.runs,
    }
    epochs = settings.epochs or (SCENES_EPOCHS if data.split(":")[0] == "scenes" else None)
    train = {name: value for name, value in settings.train.items() if name not in NEEDS_MINED}
    return common | ({} if epochs is None else {"epochs": epochs}) | train


def prepare_all(variants: Sequence[Variant], common: Mapping[str, Any]) -> dict[str, PreparedData]:
    """Open the data once per model."""
    models = dict.fromkeys(variant.model for variant in variants)
    return {model: prepare_data(train_settings({**common, "model": model})) for model in models}


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
    default = train_settings({**common, "model": variant.model})
    owners = prepared_datasets[variant.model].train.owners
    max_captions = int(owners.bincount().max()) if len(owners) else 1
    captions_per_image = min(CAPTIONS_PER_IMAGE.get(variant.objective, 1), max_captions)
    if captions_per_image > 1 and default.positives == "ids":
        overrides.setdefault("captions_per_image", captions_per_image)
    settings = train_settings(overrides)
    same_batches = (settings.batch_size, settings.captions_per_image, settings.grad_accum_steps) == (
        default.batch_size,
        default.captions_per_image,
        default.grad_accum_steps,
    )
    if not same_batches and settings.epoch_steps is None:
        items = len(owners) if default.captions_per_image is None else int((owners.bincount() > 0).sum())
        steps = default.epoch_steps or items // default.batch_size // default.grad_accum_steps
        if not steps:
            raise ValueError(f"{items} items do not fill one batch of {default.batch_size}")
        settings = replace(settings, epoch_steps=steps)
    return PlannedRun(variant, settings)


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


def with_learning_rate(plan: PlannedRun, learning_rate: float) -> PlannedRun:
    return replace(plan, settings=replace(plan.settings, learning_rate=learning_rate))


def with_seed(plan: PlannedRun, seed: int) -> PlannedRun:
    return replace(plan, settings=replace(plan.settings, seed=seed))
