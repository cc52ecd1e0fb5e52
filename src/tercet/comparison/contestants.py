"""Names -> contestants: what stands in a row of the table, seeds aside."""

import json
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from tercet.comparison.settings import CompareSettings
from tercet.objectives import objective
from tercet.objectives.catalogue import CATALOGUE, nearest
from tercet.objectives.from_file import is_file_name
from tercet.objectives.goal import PAIR_WEIGHTS, TRIPLET_WEIGHTS
from tercet.training.settings import CONDUCT, KNOWN, NEED_A_TABLE, named_values

SEVERAL_CAPTIONS = {"smooth-ap": 5}  # captions an image in a step, as in the study of SmoothAP for retrieval
# Rows share the data as it was opened for all, and are carried out alike.
SAME_FOR_ALL = ("train_split", "validation_split", "test_split", "picture_side", "warp", *CONDUCT)
CHOSEN_ELSEWHERE = (
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
    # Those of the supplement of AOQ: its Tables 1 and 2, and its words on draws.
    "aoq": ("triplet-sh", "off-tri", "off-quin", "aoq"),
    "aoq-batch": ("triplet-sh", "triplet-sh:batch_size=192", "aoq"),
    "aoq-penalties": tuple(
        f"aoq:adapt_beta={beta},adapt_alpha={alpha}"
        for beta, alpha in ((1.5, 0.2), (1.5, 0.3), (1.5, 0.5), (1.0, 0.3), (2.0, 0.3))
    ),
    "aoq-draws": ("aoq:mined_draw=uniform", "aoq:mined_draw=normal", "aoq:mined_draw=similarity"),
}


@dataclass(frozen=True)
class Contestant:
    """An objective with its settings, on a model, trained in a way of its own or in the way of all."""

    name: str
    """As the table shows it."""
    objective: str
    model: str = "heads"
    objective_settings: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)
    """What it is trained with besides what is common to all."""


def contestants_of(settings: CompareSettings) -> list[Contestant]:
    """All rows of a comparison; wrong names are known before any training."""
    names = settings.objectives
    if settings.grid is not None:
        names = GRIDS[settings.grid]
    elif "all" in names:
        names = tuple(dict.fromkeys(part for name in names for part in (CATALOGUE if name == "all" else (name,))))
    _check_settings(settings)
    made = []
    for given in names:
        parsed, objective_settings, train = parse(given)
        for model, values in product(settings.models, product(*settings.varied().values())):
            varied = dict(zip(settings.vary, values, strict=True))
            shown = [
                parsed,
                *(f"{key}={_plain(value)}" for key, value in (objective_settings | train | varied).items()),
            ]
            if len(settings.models) > 1:
                shown.insert(0, model)
            trained = _with_table(parsed, train | varied, settings)
            made.append(Contestant(" ".join(shown), parsed, model, objective_settings, trained))
    shown_names = [contestant.name for contestant in made]
    for name in shown_names:
        if shown_names.count(name) > 1:
            raise ValueError(f"objectives name {name} more than once")
    return made


def _with_table(name: str, train: dict[str, Any], settings: CompareSettings) -> dict[str, Any]:
    """The mined table, and what is asked of it, for those that look at it; the others have none."""
    asked = {key: value for key, value in settings.train.items() if key in NEED_A_TABLE}
    takes = objective(name).takes_mined
    if not takes and not (asked | train).get("mined_as_candidates"):
        return train
    if settings.mined is None:
        raise ValueError(f"{name} needs --mined: `tercet mine` writes a table of hard negatives")
    if takes:
        asked.pop("mined_as_candidates", None)
    return {"mined": settings.mined, **asked, **train}


def _check_settings(settings: CompareSettings) -> None:
    for name, values in settings.varied().items():
        _check_train_setting(name, "--vary", row=True)
        if not values:
            raise ValueError(f"--vary {name} needs at least one value")
    for name in settings.train:
        _check_train_setting(name, "--train", row=False)
    if settings.epochs is not None and "epochs" in settings.train:
        raise ValueError("--epochs and --train epochs are both given: one is enough")


def parse(given: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """`nt-xent:temperature=0.05,learning_rate=1e-4` -> the objective's name, its settings, and those of training."""
    name, colon, tail = given.rpartition(":")
    if not colon or "=" not in tail:
        name, tail = given, ""
    asked = named_values(tail.split(",")) if tail else {}
    built = objective(name)
    known = set(built.settings) | {"reduction"}
    own = {key: value for key, value in asked.items() if key in known}
    train = {key: value for key, value in asked.items() if key not in known}
    for key in train:
        if key not in KNOWN:
            choices = sorted(known | set(KNOWN))
            raise ValueError(f"{given}: neither {name} nor training has a setting {key!r}{nearest(key, choices)}")
        _check_train_setting(key, given, row=True)
    if own:
        objective(name, **own)
    return (name if is_file_name(name) else built.name), own, train


def _check_train_setting(name: str, where: str, *, row: bool) -> None:
    if name in CHOSEN_ELSEWHERE:
        raise ValueError(f"{where}: {name} is a setting of the comparison itself")
    if name not in KNOWN:
        raise ValueError(f"{where}: train has no setting {name!r}{nearest(name, KNOWN)}")
    if row and name in SAME_FOR_ALL:
        raise ValueError(f"{where}: {name} is the same for all runs of a comparison: --train {name}=... sets it")


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
