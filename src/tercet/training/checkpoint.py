"""Checkpoints for an exact resume, written atomically.

`state/step_00000200.pt` holds tensors and plain numbers; the `.json` next to it, written last, holds its checksum. The
newest two are kept: if the newest is incomplete or damaged, the one before it is used.
"""

import hashlib
import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tercet.storage import FORMAT_VERSION, atomic_write, check_format

KEPT_CHECKPOINTS = 2
State = dict[str, Any]


def save_state(folder: Path, step: int, state: State) -> None:
    """Write a checkpoint. It is synced to disk on return: a power cut afterwards loses nothing."""
    content = io.BytesIO()
    torch.save(state, content)
    data = content.getvalue()
    folder.mkdir(parents=True, exist_ok=True)
    file = _file(folder, step)
    manifest: dict[str, Any] = {"format_version": FORMAT_VERSION, "step": step, "bytes": len(data)}
    manifest["sha256"] = hashlib.sha256(data).hexdigest()
    atomic_write(file, data)
    atomic_write(file.with_suffix(".json"), json.dumps(manifest).encode())
    for old in _checkpoints(folder)[KEPT_CHECKPOINTS:]:
        old.with_suffix(".json").unlink(missing_ok=True)
        old.unlink(missing_ok=True)


def newest_state(folder: Path, log: Callable[[str], None], error_in: Callable[[State], str | None]) -> State | None:
    """Return the newest valid checkpoint, if any; skipped ones are logged. `error_in` says why a state is unusable."""
    for file in _checkpoints(folder):
        try:
            manifest = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            log(f"skipping damaged checkpoint {file.name}: {error}")
            continue
        if isinstance(manifest, dict):
            check_format(manifest.get("format_version"), file)  # raises: a run of another Tercet is not started over
        try:
            state = _load(file, manifest)
            message = error_in(state)
            if message is not None:
                raise ValueError(message)
            return state
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, pickle.UnpicklingError) as error:
            log(f"skipping damaged checkpoint {file.name}: {error}")
    return None


def state_at(folder: Path, step: int) -> State:
    """Return the checkpoint of this step, which rank 0 has chosen."""
    file = _file(folder, step)
    try:
        return _load(file, json.loads(file.with_suffix(".json").read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, pickle.UnpicklingError) as error:
        raise ValueError(f"{file}: rank 0 resumes from it, and this process cannot read it: {error}") from error


def owned(tensor: Tensor) -> Tensor:
    """The tensor, copied if it is a view: `torch.save` would write all of the tensor that it is a view of."""
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor


def _load(file: Path, manifest: Any) -> State:
    data = file.read_bytes()
    if hashlib.sha256(data).hexdigest() != manifest["sha256"]:
        raise ValueError("checksum mismatch")
    state: State = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return state


def _file(folder: Path, step: int) -> Path:
    return folder / f"step_{step:08d}.pt"


def _checkpoints(folder: Path) -> list[Path]:
    """Newest first; only those whose manifest exists."""
    return sorted((manifest.with_suffix(".pt") for manifest in folder.glob("step_*.json")), reverse=True)
