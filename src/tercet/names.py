"""Names and values from users: suggestions for misspelled names, settings from text, lazily imported names."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin


def suggest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return the known name that was probably meant, as part of an error message; empty if none is close.

    >>> suggest("nt-xnet", ["triplet", "nt-xent"])
    ' (did you mean nt-xent?)'
    """
    known = list(known)
    completions = [candidate for candidate in known if len(name) > 2 and candidate.startswith(name)]
    matches = completions or get_close_matches(name, known, n=1, cutoff=cutoff)
    return f" (did you mean {matches[0]}?)" if matches else ""


def parse_overrides(items: Sequence[str]) -> dict[str, Any]:
    """Parse `embed_dim=512 kind=mlp` into a dict. Values are parsed as JSON, and kept as text where that fails."""
    overrides = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise ValueError(f"expected name=value, got {item!r}")
        try:
            overrides[name] = json.loads(value)
        except json.JSONDecodeError:
            overrides[name] = value
    return overrides


def split_settings(spec: str) -> tuple[str, dict[str, Any]]:
    """Split an objective with settings into its name and the settings.

    >>> split_settings("mine.py:f:margin=0.3"), split_settings("mine.py:f")
    (('mine.py:f', {'margin': 0.3}), ('mine.py:f', {}))
    """
    name, colon, tail = spec.rpartition(":")
    if not colon or "=" not in tail or is_sum(spec):
        return spec, {}
    return name, parse_overrides(tail.split(","))


TERM = re.compile(r"(?:([0-9.]+(?:e-?[0-9]+)?) ?\* ?)?(\S+)")
"""A term of a sum of objectives: its weight, and its name with settings."""


def is_sum(spec: str) -> bool:
    """Whether this is a sum of objectives, or one with a weight."""
    match = TERM.fullmatch(spec)
    return " + " in spec or (match is not None and match[1] is not None)


def split_terms(spec: str) -> list[tuple[float, str]]:
    """The weights and terms of a sum of objectives.

    >>> split_terms("nt-xent:temperature=0.05 + 0.1*cir/sig-ms")
    [(1.0, 'nt-xent:temperature=0.05'), (0.1, 'cir/sig-ms')]
    """
    terms = []
    for term in spec.split(" + "):
        match = TERM.fullmatch(term.strip())
        if match is None:
            raise ValueError(f"{spec}: expected terms like 0.1*nt-xent:temperature=0.05, joined by ' + ', got {term!r}")
        terms.append((float(match[1] or 1), match[2]))
    return terms


def lazy_exports(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's `__getattr__` that imports public names (name -> module) on first use.

    A name whose module is the package itself is a module in it.
    """

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if modules[name] == package:
            return import_module(f"{package}.{name}")
        return getattr(import_module(modules[name]), name)

    return find


def coerce(name: str, value: Any, declared: Any) -> Any:
    """Return the value as its declared type: 1 as 1.0, lists as tuples, text as paths. Raises for anything else."""
    types = get_args(declared) if get_origin(declared) in (Union, UnionType) else (declared,)
    if hasattr(value, "item") and callable(value.item):  # a numpy or torch scalar
        value = value.item()
    for type_ in types:
        converted = _convert(type_, value)
        if converted is not _MISMATCH:
            return converted
    allowed = " or ".join(_type_name(type_) for type_ in types)
    raise ValueError(f"{flag(name)} must be {allowed}, got {value!r}")


def flag(name: str) -> str:
    """Return the command-line flag of a setting."""
    return f"--{name.replace('_', '-')}"


_MISMATCH = object()
_TYPE_NAMES = {
    NoneType: "None",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
}


def _convert(type_: Any, value: Any) -> Any:
    origin = get_origin(type_)
    if origin is Literal:
        return value if value in get_args(type_) else _MISMATCH
    if origin is tuple:
        (item_type, _) = get_args(type_)
        items = [_convert(item_type, item) for item in value] if isinstance(value, (list, tuple)) else [_MISMATCH]
        return _MISMATCH if any(item is _MISMATCH for item in items) else tuple(items)
    if origin is dict:
        is_mapping = isinstance(value, Mapping) and all(isinstance(name, str) for name in value)
        return dict(value) if is_mapping else _MISMATCH
    return _convert_scalar(type_, value)


def _convert_scalar(type_: Any, value: Any) -> Any:
    if type_ in (str, Path) and isinstance(value, (str, Path)):
        return type_(value)
    if type_ is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)  # YAML reads 1e-3 as text
        except ValueError:
            return _MISMATCH
    return value if type(value) is type_ else _MISMATCH


def _type_name(type_: Any) -> str:
    origin = get_origin(type_)
    if origin is Literal:
        return f"one of {', '.join(map(str, get_args(type_)))}"
    if origin is tuple:
        return "a list"
    return "a mapping of names to values" if origin is dict else _TYPE_NAMES[type_]


# Names of objects given from Python (tercet/in_memory.py).

PREFIX = "python:"


def is_in_memory(name: str) -> bool:
    """Whether this is the name of an object given from Python."""
    return name.startswith(PREFIX)


def short_name(name: str) -> str:
    """`f` of `python:f:0123456789ab`."""
    return name.removeprefix(PREFIX).rpartition(":")[0]
