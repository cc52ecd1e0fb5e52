"""An objective that stands in a user's file: `path/to/mine.py:name`."""

import hashlib
import importlib.util
import sys
from pathlib import Path
from typing import Any


def is_file_name(which: str) -> bool:
    return ".py:" in which


def function_from_file(which: str) -> Any:
    """What the file defines under that name. Its folder is importable while it runs, as for a script."""
    path, _, name = which.rpartition(":")
    file = Path(path).resolve()
    if not file.is_file():
        raise ValueError(f"{which}: no file {path!r}; expected path/to/file.py:function")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(file.stem)
    sys.modules[file.stem] = module  # dataclasses and pickles look a module up by its name
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        if before is None:
            del sys.modules[file.stem]
        else:
            sys.modules[file.stem] = before
        raise ValueError(f"{path}: {_place(error, file)}{type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(file.parent))
    if not hasattr(module, name):
        defined = ", ".join(key for key in vars(module) if not key.startswith("_"))
        raise ValueError(f"{path} defines no {name!r}; it defines: {defined}")
    return getattr(module, name)


def source_checksum(which: str) -> str:
    """Of the file's content: an edited objective is another objective."""
    return hashlib.sha256(Path(which.rpartition(":")[0]).read_bytes()).hexdigest()


def _place(error: Exception, file: Path) -> str:
    """'line 3: ' where the error came from in the user's file."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: "
    lines, trace = [], error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(file):
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    return f"line {lines[-1]}: " if lines else ""
