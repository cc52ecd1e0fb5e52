"""Variants of a comparison: the rows of its table, each an objective with settings on a model; not per seed."""

import json
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from tercet.comparison.settings import CompareSettings
from tercet.names import suggest
from tercet.objectives import objective
from tercet.objectives.aoq import AOQ
from tercet.objectives.goal.cells import PAIR_WEIGHTS, TRIPLET_WEIGHTS
from tercet.objectives.registry import OBJECTIVES
from tercet.plugins import is_file_name
from tercet.training.settings import EXECUTION_SETTINGS, NEEDS_MINED, SETTING_NAMES, parse_overrides

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
            parts = [name, *(f"{key}={_format(value)}" for key, value in (objective_settings | train | swept).items())]
            if len(settings.models) > 1:
                parts.insert(0, model)
            train_settings = _add_mined_table(name, train | swept, settings)
            variants.append(Variant(" ".join(parts), name, model, objective_settings, train_settings))
    labels = [variant.name for variant in variants]
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"--objectives contains {label} more than once")
    return variants


def parse_variant(spec: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """`nt-xent:temperature=0.05,learning_rate=1e-4` -> name of the objective, its settings, training settings."""
    name, colon, tail = spec.rpartition(":")
    if not colon or "=" not in tail:
        name, tail = spec, ""
    overrides = parse_overrides(tail.split(",")) if tail else {}
    default = objective(name)
    objective_keys = set(default.settings) | {"reduction"}
    objective_settings = {key: value for key, value in overrides.items() if key in objective_keys}
    train = {key: value for key, value in overrides.items() if key not in objective_keys}
    for key in train:
        if key not in SETTING_NAMES:
            hint = suggest(key, sorted(objective_keys | set(SETTING_NAMES)), cutoff=0.5)
            raise ValueError(f"{spec}: neither {name} nor training has a setting {key!r}{hint}")
        _check_train_setting(key, spec, per_variant=True)
    if objective_settings:
        objective(name, **objective_settings)  # raises on wrong values
    return (name if is_file_name(name) else default.name), objective_settings, train


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
    if per_variant and name in SHARED_SETTINGS:
        raise ValueError(f"{source}: {name} must be the same for all runs of a comparison: use --train {name}=...")


def _format(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
