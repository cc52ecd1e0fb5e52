"""Run folders: the only module that reads and writes them.

`<date>_<data>_<model>_<objective>_s<seed>_<hash>/` holds `settings.json`, `machine.json`, `metrics.jsonl` (append
only), `ranks.npz`, a model for `tercet.load`, `log.txt` and, until the run is finished, `state/`. The hash is of the
settings and the checksum of the data, not of the date: it identifies the run. `machine.json` is written last: without
it a run is unfinished.
"""

import hashlib
import io
import json
import math
import os
import platform
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

import tercet
from tercet.plugins import is_file_name
from tercet.storage import FORMAT_VERSION, atomic_write, check_format, write_json

SETTINGS, MACHINE, METRICS, RANKS = "settings.json", "machine.json", "metrics.jsonl", "ranks.npz"
STATE, LOG, EVALUATION = "state", "log.txt", "evaluation.json"


def make_root(root: Path) -> None:
    """Create the folder of run folders. Raises before any training if it is not writable."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".probe_", dir=root):
            pass
    except OSError as error:
        raise ValueError(f"cannot write run folders to {root}: {error.strerror}") from error


def run_hash(settings: dict[str, Any], data_checksum: str) -> str:
    """Return the hash that identifies a run."""
    canonical = json.dumps({"settings": settings, "data": data_checksum}, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:10]


def find_run(root: Path, identity: str) -> Path | None:
    """Return the finished folder with this hash, if there is one; `ValueError` if it has another format version."""
    finished = next((folder for folder in _folders(root, identity) if is_finished(folder)), None)
    if finished is not None:
        read_machine(finished)
    return finished


def is_finished(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / MACHINE).read_text(encoding="utf-8"))["ended"] == "finished")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def open_run(root: Path, identity: str, *, data: str, settings: dict[str, Any]) -> Path:
    """Return the unfinished folder with this hash, or create one, and write its settings."""
    for folder in _folders(root, identity):
        if not is_finished(folder):
            break
    else:
        model, objective = (_folder_part(settings[name]) for name in ("model", "objective"))
        date = datetime.now(timezone.utc).strftime("%Y%m%d")
        name = f"{date}_{data}_{model}_{objective}_s{settings['seed']}_{identity}"
        folder = root / name
        folder.mkdir(exist_ok=True)
    write_json(folder / SETTINGS, settings)
    return folder


def _folder_part(name: str) -> str:
    """A name as part of a folder's name; of `path/to/mine.py:name` without the path."""
    name = Path(name).name if is_file_name(name) else name.replace("/", "+")
    return re.sub(r"[^\w.+-]+", "_", name)[:60]


def clear_run(folder: Path, *, keep: str) -> None:
    """Remove everything but the settings and the file `keep` (the lock), to start over."""
    for path in folder.iterdir():
        if path.name not in (keep, SETTINGS):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def has_started(folder: Path) -> bool:
    """Whether removing the folder would lose work: a checkpoint or a finished run."""
    return (folder / STATE).exists() or is_finished(folder)


def finish_run(folder: Path, conditions: dict[str, Any], *, seconds: float) -> None:
    """Mark the run as finished: the folder is never written to again. Removes its checkpoints."""
    content = {"format_version": FORMAT_VERSION, "ended": "finished", "seconds": seconds, "finished": _now()}
    write_json(folder / MACHINE, content | conditions | machine())
    remove_checkpoints(folder)


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a finished run; a killed process may have left them."""
    shutil.rmtree(folder / STATE, ignore_errors=True)


class MetricsFile:
    """metrics.jsonl. A resumed run truncates it to its length at the checkpoint and writes the later lines again."""

    def __init__(self, folder: Path, length: int) -> None:
        self.file = folder / METRICS
        self.file.touch()
        if self.file.stat().st_size < length:
            raise ValueError(
                f"{self.file} is shorter than at the checkpoint: remove the folder {folder.name} and train it again"
            )
        os.truncate(self.file, length)
        self.length = length

    def append(self, line: dict[str, Any]) -> None:
        text = json.dumps(without_nan(line), allow_nan=False) + "\n"
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(text)
        self.length += len(text.encode())

    def sync(self) -> None:
        """Flush to disk: a checkpoint stores the length of this file, so it must not be newer than the file."""
        with self.file.open("rb") as stream:
            os.fsync(stream.fileno())


def write_ranks(folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write ranks.npz."""
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    atomic_write(folder / RANKS, content.getvalue())


def write_evaluation(root: Path, content: dict[str, Any], ranks: Mapping[str, np.ndarray]) -> Path:
    """Write an evaluation to a folder named by its inputs; the same evaluation is overwritten. Return the JSON file."""
    inputs = ("protocol", "ties", "rerank", "models", "weights", "data", "split", "checksums")
    identity = {name: content[name] for name in inputs}
    name = "+".join(content["models"])[:120]
    folder = root / f"{name}_{content['data']}_{content['split']}_{content['protocol']}_{run_hash(identity, '')}"
    make_root(folder)
    write_ranks(folder, ranks)
    write_json(folder / EVALUATION, content)
    return folder / EVALUATION


def write_artifact(folder: Path, name: str, content: str | bytes) -> None:
    """Write a file of a comparison atomically."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / name, content.encode() if isinstance(content, str) else content)


def read_lines(run: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl."""
    file = run / METRICS
    try:
        return [dict(json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{file} is damaged or missing: remove the folder {run.name} and train it again") from error


def read_final(run: Path) -> dict[str, Any]:
    """Return the last line: metrics with the selected weights, number of steps and of pairs seen."""
    final = [line for line in read_lines(run) if line.get("final")]
    if not final:
        raise ValueError(f"{run / METRICS} is damaged or missing: remove the folder {run.name} and train it again")
    return final[-1]


def read_metrics(run: Path) -> dict[str, float]:
    """Return the metrics of the selected weights on test, or on validation if there is no test split."""
    return {name: value for name, value in read_final(run).items() if isinstance(value, float)}


def read_validation(run: Path) -> list[dict[str, Any]]:
    """Return the validation metrics, one line per epoch."""
    return [line for line in read_lines(run) if line.get("split") == "validation" and not line.get("final")]


def read_counts(run: Path) -> list[dict[str, Any]]:
    """Return the contributing-sample counts over training, one line per logged step."""
    return [line for line in read_lines(run) if "cocos" in line]


def read_triplets(run: Path) -> dict[int, dict[str, list[float | None]]]:
    """Return epoch, counted from 1 -> triplets of its last batch."""
    by_epoch: dict[int, dict[str, list[float | None]]]
    by_epoch = {line.get("epoch", 0): line["triplets"] for line in read_lines(run) if "triplets" in line}
    for triplets in by_epoch.values():
        if not isinstance(triplets, dict) or len({len(triplets.get(key, ())) for key in ("s_p", "i2t", "t2i")}) != 1:
            raise ValueError(f"{run / METRICS} is damaged: its triplets are not s_p, i2t and t2i of equal length")
    return by_epoch


def read_machine(run: Path) -> dict[str, Any]:
    """Return how and where a run was made. Every reader of a finished run calls this: it checks the format version."""
    content = _read_json(run / MACHINE, run)
    check_format(content.get("format_version"), run / MACHINE)
    return content


def read_settings(run: Path) -> dict[str, Any]:
    return _read_json(run / SETTINGS, run)


def read_ranks(run: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(run / RANKS) as arrays:
            return dict(arrays)
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        file = run / RANKS
        raise ValueError(f"{file} is damaged or missing: remove the folder {run.name} and train it again") from error


def _read_json(file: Path, run: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is damaged or missing: remove the folder {run.name} and train it again") from error
    return content


def final_split(run: Path) -> str:
    """Return the split of `read_metrics`."""
    return str(read_lines(run)[-1].get("split", "nothing"))


def machine() -> dict[str, Any]:
    """Return versions, commit and thread count, for the record."""
    import torch

    return {
        "tercet": tercet.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": commit(),
        "threads": torch.get_num_threads(),
    }


def commit() -> str | None:
    """Return the commit of the running source if it is a git checkout, with a + if it has uncommitted changes."""
    source = Path(tercet.__file__).parent
    try:
        result = subprocess.run(
            ["git", "-C", str(source), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None


def without_nan(value: Any) -> Any:
    """Replace NaN and infinity, such as the mean over no queries, by None: JSON has only null."""
    if isinstance(value, dict):
        return {name: without_nan(item) for name, item in value.items()}
    if isinstance(value, list):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _folders(root: Path, identity: str) -> list[Path]:
    return sorted(folder for folder in root.glob(f"*_{identity}") if folder.is_dir())


def _now() -> str:
    return datetime.now(timezone.utc).isoformat()
