"""All that an exact resume needs, on disk, whole or not at all.

`state/step_00000200.pt` holds tensors and plain numbers; the `.json` beside it, written last, holds its checksum. The
newest two are kept: a torn or damaged one is passed over, and the one before it is taken.
"""

import errno
import hashlib
import io
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

KEPT = 2
State = dict[str, Any]


def save_state(folder: Path, step: int, state: State) -> None:
    """Safely on disk when it returns: a power cut after it loses nothing."""
    content = io.BytesIO()
    torch.save(state, content)
    data = content.getvalue()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"step_{step:08d}.pt"
    seal = {"step": step, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    write_safely(file, data)
    write_safely(file.with_suffix(".json"), json.dumps(seal).encode())
    for old in _sealed(folder)[KEPT:]:
        old.with_suffix(".json").unlink(missing_ok=True)
        old.unlink(missing_ok=True)


def newest_state(folder: Path, say: Callable[[str], None]) -> State | None:
    """Of the newest good checkpoint; what is passed over is named."""
    for file in _sealed(folder):
        try:
            seal = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
            data = file.read_bytes()
            if hashlib.sha256(data).hexdigest() != seal["sha256"]:
                raise ValueError("its checksum is another")
            state: State = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
            return state
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, pickle.UnpicklingError) as error:
            say(f"passed over a damaged checkpoint, {file.name}: {error}")
    return None


def write_safely(file: Path, data: bytes) -> None:
    """Written beside, brought to the disk, then moved into place. On failure nothing is left of it."""
    beside = file.with_name(f".{file.name}")
    try:
        with beside.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(beside, file)
    except OSError as error:
        beside.unlink(missing_ok=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ValueError(
                f"{file}: the disk is full. What was written before is unharmed: make room and call again to go on"
            ) from error
        raise
    _sync_folder(file.parent)


def _sync_folder(folder: Path) -> None:
    """So that the name itself outlives a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sealed(folder: Path) -> list[Path]:
    """Newest first."""
    return sorted((seal.with_suffix(".pt") for seal in folder.glob("step_*.json")), reverse=True)
