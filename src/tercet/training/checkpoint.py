"""All that an exact resume needs, on disk, whole or not at all.

`state/step_00000200.pt` holds tensors and plain numbers; the `.json` beside it, written last, holds its checksum. The
newest two are kept: a torn or damaged one is passed over, and the one before it is taken.
"""

import hashlib
import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tercet.runs import write_safely

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


def newest_state(folder: Path, say: Callable[[str], None], fault: Callable[[State], str | None]) -> State | None:
    """Of the newest good checkpoint; what is passed over is named. `fault` says why a state cannot be gone on from."""
    for file in _sealed(folder):
        try:
            seal = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
            data = file.read_bytes()
            if hashlib.sha256(data).hexdigest() != seal["sha256"]:
                raise ValueError("its checksum is another")
            state: State = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
            why = fault(state)
            if why is not None:
                raise ValueError(why)
            return state
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, pickle.UnpicklingError) as error:
            say(f"passed over a damaged checkpoint, {file.name}: {error}")
    return None


def _sealed(folder: Path) -> list[Path]:
    """Newest first."""
    return sorted((seal.with_suffix(".pt") for seal in folder.glob("step_*.json")), reverse=True)
