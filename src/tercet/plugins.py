"""Code from outside: objects in a user's file, `path/to/mine.py:name`, and entry points of installed packages.

A file is imported once per process. A file that only a run folder or a saved model names is imported only if it was
trusted: opening a folder from elsewhere must not run code.
"""

import hashlib
import importlib.util
import sys
import warnings
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from tercet.names import suggest

T = TypeVar("T")

_MODULES: dict[tuple[Path, str], ModuleType] = {}
_TRUSTED: set[Path] = set()


def is_file_name(name: str) -> bool:
    """Whether this is `path/to/mine.py:name`."""
    return ".py:" in name


def from_file(name: str) -> Any:
    """The object that `path/to/mine.py:name` names. An edited file is imported again."""
    path, _, attribute = name.rpartition(":")
    file = Path(path).resolve()
    if not file.is_file():
        raise ValueError(f"{name}: no file {path!r}; expected path/to/file.py:name")
    key = (file, source_checksum(name))
    if key not in _MODULES:
        _MODULES[key] = _import(file, path)
    module = _MODULES[key]
    if attribute not in vars(module):
        public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
        defined = [name for name, value in public.items() if not isinstance(value, ModuleType)]
        raise ValueError(
            f"{path} defines no {attribute!r}{suggest(attribute, defined)}; it defines: {', '.join(defined)}"
        )
    return vars(module)[attribute]


def source_checksum(name: str) -> str:
    """SHA-256 of the file of `path/to/mine.py:name`: an edited file is another objective or model."""
    return _checksum(Path(name.rpartition(":")[0]))


def _checksum(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def trust(files: Iterable[str | Path]) -> None:
    """Allow these files to be imported although only a saved model names them."""
    _TRUSTED.update(Path(file).resolve() for file in files)


def check_trusted(name: str, checksum: str | None, named_by: str | Path) -> str:
    """Return the name by which to import `path/to/mine.py:name`, which a saved model or saved settings name.

    Refuses a file that was neither trusted nor imported by name in this process, and one that was edited since. A
    trusted file with the checksum of training counts wherever it is now.
    """
    path, _, attribute = name.rpartition(":")
    trusted = [file for file in _TRUSTED if file.is_file() and _checksum(file) == checksum]
    file = Path(path).resolve()
    if not file.is_file() and trusted:
        return f"{trusted[0]}:{attribute}"
    if not file.is_file():
        raise ValueError(f"{named_by} needs {name}, and there is no file {path!r}: give it with --trust FILE")
    if checksum is not None and _checksum(file) != checksum:
        raise ValueError(f"{path} was edited since {named_by} was trained with it")
    if file not in _TRUSTED and not any(imported == file for imported, _ in _MODULES):
        raise ValueError(
            f"{named_by} needs code from {path}, which is not run without consent: add --trust {path} (in Python: "
            f"tercet.plugins.trust([{path!r}]))"
        )
    return name


@cache
def _entry_points(group: str) -> dict[str, Any]:
    return {point.name: point for point in entry_points(group=group)}


def installed(group: str) -> list[str]:
    """Names that installed packages add to a group of entry points, such as `tercet.models`."""
    return sorted(_entry_points(group))


def from_entry_point(group: str, name: str, kind: type | None = None) -> Any:
    """The object behind a name of `installed(group)`; `ValueError` if it cannot be loaded or is not of this kind."""
    try:
        found = _entry_points(group)[name].load()
    except Exception as error:
        raise ValueError(f"the entry point {name!r} of {group} cannot be loaded: {error}") from error
    if kind is not None and not isinstance(found, kind):
        raise ValueError(f"the entry point {name!r} of {group} must be a {kind.__name__}, got {type(found).__name__}")
    return found


def all_of(builtin: Mapping[str, T], group: str, kind: type[T]) -> dict[str, T]:
    """All objects by name, Tercet's own first. A package whose entry point is broken is left out, with a warning."""
    found = dict(builtin)
    for name in installed(group):
        if name not in builtin:
            try:
                found[name] = from_entry_point(group, name, kind)
            except ValueError as error:
                warnings.warn(str(error), stacklevel=2)
    return found


def find(what: str, name: str, builtin: Mapping[str, T], group: str) -> T:
    """The object of this name: one of Tercet's own, or of an entry point of an installed package."""
    if name in builtin:
        return builtin[name]
    if name in installed(group):
        found: T = from_entry_point(group, name)
        return found
    known = [*builtin, *installed(group)]
    raise ValueError(f"unknown {what} {name!r}{suggest(name, known)}; known: {', '.join(known)}")


def _import(file: Path, shown: str) -> ModuleType:
    """The file's folder is on sys.path while the file runs, as for a script."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    previous = sys.modules.get(file.stem)
    sys.modules[file.stem] = module  # dataclasses and pickle look modules up by name
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        if previous is None:
            del sys.modules[file.stem]
        else:
            sys.modules[file.stem] = previous
        raise ValueError(f"{shown}: {_line_of(error, file)}{type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(file.parent))
    return module


def _line_of(error: Exception, file: Path) -> str:
    """'line 3: ', the line of the user's file that raised the error; empty if there is none."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: "
    lines, trace = [], error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(file):
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    return f"line {lines[-1]}: " if lines else ""
