"""The registry of objectives: `objective(name, **settings)` builds one."""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

from tercet.names import suggest
from tercet.objectives.aoq import AOQ, KINDS
from tercet.objectives.base import RowObjective
from tercet.objectives.custom import custom_objective
from tercet.objectives.goal.cells import PAIR_WEIGHTS, TRIPLET_WEIGHTS, Goal
from tercet.objectives.hardest_triplet import HardestTriplet
from tercet.objectives.nt_xent import NTXent
from tercet.objectives.sigmoid import Sigmoid
from tercet.objectives.smooth_ap import SmoothAP
from tercet.objectives.triplet import Triplet
from tercet.plugins import from_entry_point, from_file, installed, is_file_name

OBJECTIVES: dict[str, Callable[..., RowObjective]] = {
    "triplet": Triplet,
    "triplet-sh": HardestTriplet,
    "nt-xent": NTXent,
    "smooth-ap": SmoothAP,
    "sigmoid": Sigmoid,
    **{f"{T}/{P}": partial(Goal, T, P) for T in TRIPLET_WEIGHTS for P in PAIR_WEIGHTS},
}
# Separate from OBJECTIVES because they need a table of mined negatives (`tercet mine`).
AOQ_OBJECTIVES: dict[str, Callable[..., RowObjective]] = {kind: partial(AOQ, kind) for kind in KINDS}
ENTRY_POINTS = "tercet.objectives"


def objective_names() -> list[str]:
    """All names that `objective` takes, with those of installed packages."""
    return [*OBJECTIVES, *AOQ_OBJECTIVES, *installed(ENTRY_POINTS)]


def objective(
    which: str | RowObjective | Callable[..., Any] | tuple[Callable[..., Any], ...], /, **settings: Any
) -> RowObjective:
    """Build an objective from its name and settings, or from a user's function, weights or loss.

    `which` is a registered name (`+` may replace `/`), `path/to/mine.py:name`, a function (S, positives) -> G or
    -> scalar, a triple of functions (T, P+, P-), a subclass of `RowObjective`, or an objective, whose settings are then
    replaced.

    >>> objective("nt-xent", temperature=0.05)
    tercet.objective('nt-xent', temperature=0.05)
    """
    if isinstance(which, str):
        which = _named(which)
    if isinstance(which, RowObjective):
        return replace(which, **settings)
    built = which.func if isinstance(which, partial) else which
    if isinstance(built, type) and issubclass(built, RowObjective):
        return _build(which, settings)  # type: ignore[arg-type]
    return custom_objective(which, **settings)


def _named(which: str) -> Any:
    if is_file_name(which):
        return from_file(which)
    name = which.replace("+", "/")
    builders = OBJECTIVES | AOQ_OBJECTIVES
    if name in builders:
        return builders[name]
    if which in installed(ENTRY_POINTS):
        return from_entry_point(ENTRY_POINTS, which)
    known = objective_names()
    raise ValueError(f"unknown objective {which!r}{suggest(name, known, cutoff=0.5)}; known: {', '.join(known)}")


def _build(build: Callable[..., RowObjective], settings: dict[str, Any]) -> RowObjective:
    built: Any = build.func if isinstance(build, partial) else build
    name = "/".join(build.args) if isinstance(build, partial) else built.__name__
    allowed = [field.name for field in fields(built) if field.kw_only]
    for setting in settings:
        if setting not in allowed:
            hint = suggest(setting, allowed, cutoff=0.5)
            name = vars(built).get("name") if isinstance(vars(built).get("name"), str) else name
            raise ValueError(f"{name} has no setting {setting!r}{hint}; it has: {', '.join(sorted(allowed))}")
    try:
        return build(**settings)
    except TypeError as error:  # a class from outside: a setting without a default, or no row_gradient
        raise ValueError(f"{name} cannot be built: {error}") from error
