"""All objectives by name: the one place that turns a name and settings into an objective."""

import difflib
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from functools import partial
from typing import Any

from tercet.objectives.base import RowObjective
from tercet.objectives.from_file import function_from_file, is_file_name
from tercet.objectives.goal import PAIR_WEIGHTS, TRIPLET_WEIGHTS, Goal
from tercet.objectives.nt_xent import NTXent
from tercet.objectives.offline import KINDS, Offline
from tercet.objectives.own import own_objective
from tercet.objectives.sigmoid import Sigmoid
from tercet.objectives.smooth_ap import SmoothAP
from tercet.objectives.triplet import Triplet
from tercet.objectives.triplet_sh import HardestTriplet

CATALOGUE: dict[str, Callable[..., RowObjective]] = {
    "triplet": Triplet,
    "triplet-sh": HardestTriplet,
    "nt-xent": NTXent,
    "smooth-ap": SmoothAP,
    "sigmoid": Sigmoid,
    **{f"{T}/{P}": partial(Goal, T, P) for T in TRIPLET_WEIGHTS for P in PAIR_WEIGHTS},
}
# They need what `tercet mine` finds, and so do not stand among those that train on a batch alone.
WITH_MINED: dict[str, Callable[..., RowObjective]] = {kind: partial(Offline, kind) for kind in KINDS}


def objective(
    which: str | RowObjective | Callable[..., Any] | tuple[Callable[..., Any], ...], /, **settings: Any
) -> RowObjective:
    """An objective by name with settings, or one's own function, weights or loss.

    `which` is a name of the catalogue (`+` may stand for `/`), `path/to/mine.py:function`, a function
    (S, positives) -> G or -> scalar, or a triple of functions (T, P+, P-).

    >>> objective("nt-xent", temperature=0.05)
    tercet.objective('nt-xent', temperature=0.05)
    """
    if isinstance(which, RowObjective):
        return replace(which, **settings)
    if isinstance(which, str) and is_file_name(which):
        which = function_from_file(which)
    if not isinstance(which, str):
        return own_objective(which, **settings)
    name = which.replace("+", "/")
    known_names = CATALOGUE | WITH_MINED
    if name not in known_names:
        raise ValueError(f"unknown objective {which!r}{nearest(name, known_names)}; known: {', '.join(known_names)}")
    build = known_names[name]
    known = [field.name for field in fields(build.func if isinstance(build, partial) else build) if field.kw_only]  # type: ignore[arg-type]
    for setting in settings:
        if setting not in known:
            raise ValueError(
                f"{name} has no setting {setting!r}{nearest(setting, known)}; it has: {', '.join(sorted(known))}"
            )
    return build(**settings)


def nearest(given: str, known: Iterable[str]) -> str:
    """What was probably meant, as the end of an error message."""
    close = difflib.get_close_matches(given, list(known), n=1, cutoff=0.5)
    return f", did you mean {close[0]!r}?" if close else ""
