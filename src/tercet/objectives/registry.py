"""The registry of objectives: `objective(name, **settings)` builds one."""

import json
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import torch

from tercet.in_memory import find_in_memory, name_of, register_code
from tercet.names import is_in_memory, is_sum, split_settings, split_terms, suggest
from tercet.objectives.aoq import AOQ, KINDS
from tercet.objectives.base import RowObjective
from tercet.objectives.binomial_deviance import BinomialDeviance
from tercet.objectives.circle import Circle
from tercet.objectives.composed import Composed
from tercet.objectives.custom import FunctionObjective, custom_objective
from tercet.objectives.goal.cells import PAIR_WEIGHTS, TRIPLET_WEIGHTS, Goal
from tercet.objectives.hardest_triplet import HardestTriplet
from tercet.objectives.learned import Learned
from tercet.objectives.multi_similarity import MultiSimilarity
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
    "circle": Circle,
    "multi-similarity": MultiSimilarity,
    "binomial-deviance": BinomialDeviance,
    **{f"{T}/{P}": partial(Goal, T, P) for T in TRIPLET_WEIGHTS for P in PAIR_WEIGHTS},
}
# Separate from OBJECTIVES because they need a table of mined negatives (`tercet mine`).
AOQ_OBJECTIVES: dict[str, Callable[..., RowObjective]] = {kind: partial(AOQ, kind) for kind in KINDS}
ENTRY_POINTS = "tercet.objectives"


ObjectiveLike = str | RowObjective | Callable[..., Any] | tuple[Callable[..., Any], ...]
"""What `objective` takes: a name, a function (S, positives), three weight functions, a class or an objective."""


def objective_names() -> list[str]:
    """All names that `objective` takes, with those of installed packages."""
    return [*OBJECTIVES, *AOQ_OBJECTIVES, *installed(ENTRY_POINTS)]


def objective(which: ObjectiveLike, /, **settings: Any) -> RowObjective:
    """Build an objective from its name and settings, or from a user's function, weights or loss.

    `which` is a registered name (`+` may replace `/`), `path/to/mine.py:name`, a function (S, positives) -> G or
    -> scalar, a triple of functions (T, P+, P-), a subclass of `RowObjective`, or an objective, whose settings are then
    replaced. Settings may also follow a name: `mine.py:f:margin=0.3`. Those of a function are its keyword parameters.
    A sum, `nt-xent + 0.1*cir/sig-ms`, is also `objective("nt-xent") + 0.1 * objective("cir/sig-ms")`. `learn` names
    settings to train with the model: `learn="temperature"`, `learn="temperature+bias"`.

    >>> objective("nt-xent", temperature=0.05)
    tercet.objective('nt-xent', temperature=0.05)
    """
    if isinstance(which, str) and is_sum(which):
        return _sum_of(which).with_settings(**settings)
    if isinstance(which, str):
        name, named = split_settings(which)
        twice = sorted(named.keys() & settings.keys())
        if twice:
            raise ValueError(f"{which}: {twice[0]} is given twice, also as {settings[twice[0]]!r}")
        which, settings = _named(name), named | settings
    if isinstance(which, RowObjective):
        if settings.get("learn") and not isinstance(which, Learned | Composed):
            return Learned(objective(which, **_without_learn(settings)), learn=_text(settings["learn"]))
        return which.with_settings(**settings) if settings else which
    built = which.func if isinstance(which, partial) else which
    if isinstance(built, type) and issubclass(built, RowObjective):
        plain = _build(which, _without_learn(settings))  # type: ignore[arg-type]
        return Learned(plain, learn=_text(settings["learn"])) if settings.get("learn") else plain
    return custom_objective(which, **settings)


def _sum_of(text: str) -> Composed:
    terms = split_terms(text)
    for _, term in terms:
        if is_file_name(split_settings(term)[0]):
            raise ValueError(
                f"{text}: add objectives of a file in that file, both = tercet.objective(...) + ..., and name it"
            )
    return Composed(tuple((weight, objective(term)) for weight, term in terms))


def _without_learn(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != "learn"}


def _text(learn: Any) -> str:
    if not isinstance(learn, str):
        raise ValueError(f"learn must name settings, joined by +, got {learn!r}")
    return learn


def spec_of(which: ObjectiveLike) -> str:
    """The objective as text, with its settings; what has no name gets one: see `tercet.in_memory`.

    `objective(spec_of(which))` is the same objective again, in this process.

    >>> spec_of(NTXent(temperature=0.05))
    'nt-xent:temperature=0.05'
    """
    name, settings = _named_with_settings(which)
    values = ",".join(f"{setting}={json.dumps(value)}" for setting, value in settings.items())
    return f"{name}:{values}" if values else name


def _named_with_settings(which: ObjectiveLike) -> tuple[str, dict[str, Any]]:
    if isinstance(which, str):
        return which, {}
    if isinstance(which, Composed):
        return which.text(spec_of), {}
    if isinstance(which, Learned) and type(which.base) in _BUILT_IN:
        return which.name, which.changed_settings
    if not isinstance(which, RowObjective):
        objective(which)  # raises if it is none
        return register_code(_function_name(which), which), {}
    if type(which) in _BUILT_IN:
        return which.name, which.changed_settings
    settings, given = which.changed_settings, which.function if isinstance(which, FunctionObjective) else type(which)
    if any(field.init and not field.kw_only for field in fields(which)) and given is type(which):
        given, settings = which, {}  # not defined by its settings alone
    return register_code(which.name, given), settings


_BUILT_IN = {NTXent, Triplet, HardestTriplet, SmoothAP, Sigmoid, Circle, MultiSimilarity, BinomialDeviance, Goal, AOQ}


def _function_name(which: Any) -> str:
    return "+".join(map(name_of, which)) if isinstance(which, tuple) else name_of(which)


def _named(which: str) -> Any:
    if is_in_memory(which):
        return find_in_memory(which, "give the function or class again, as objective=... of tercet.train")
    if is_file_name(which):
        with torch.random.fork_rng(devices=[]):  # parameters of a loss start alike in every process
            torch.manual_seed(0)
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
