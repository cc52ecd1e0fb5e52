"""Settings from callers and files are of the kind that is declared: 1 for 1.0, lists for tuples and text for paths are
brought to it, anything else is refused by name.
"""

from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin


def as_kept(name: str, value: Any, kind: Any) -> Any:
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if hasattr(value, "item") and callable(value.item):  # a number of numpy or torch
        value = value.item()
    for each in kinds:
        kept = _as(each, value)
        if kept is not _NO:
            return kept
    wanted = " or ".join(_called(each) for each in kinds)
    raise ValueError(f"{flag(name)} must be {wanted}, got {value!r}")


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


_NO = object()
_WORDS = {
    NoneType: "None",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
}


def _as(kind: Any, value: Any) -> Any:
    origin = get_origin(kind)
    if origin is Literal:
        return value if value in get_args(kind) else _NO
    if origin is tuple:
        (part, _) = get_args(kind)
        items = [_as(part, item) for item in value] if isinstance(value, (list, tuple)) else [_NO]
        return _NO if any(item is _NO for item in items) else tuple(items)
    if origin is dict:
        return dict(value) if isinstance(value, dict) and all(isinstance(name, str) for name in value) else _NO
    return _as_plain(kind, value)


def _as_plain(kind: Any, value: Any) -> Any:
    if kind in (str, Path) and isinstance(value, (str, Path)):
        return kind(value)
    if kind is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)  # YAML reads 1e-3 as text
        except ValueError:
            return _NO
    return value if type(value) is kind else _NO


def _called(kind: Any) -> str:
    origin = get_origin(kind)
    if origin is Literal:
        return ", ".join(get_args(kind))
    if origin is tuple:
        return "a list"
    return "settings by name" if origin is dict else _WORDS[kind]
