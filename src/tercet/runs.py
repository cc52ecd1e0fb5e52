"""Run folders: the only place that reads and writes them.

`<date>_<data>_<model>_<objective>_s<seed>_<hash>/` holds `settings.json`, `machine.json`, `metrics.jsonl` (append
only), `ranks.npz`, a model that `tercet.load` takes, `log.txt` and, until it is finished, `state/`. The hash is of the
settings and the data's checksum, not of the date: a finished folder with it is that run. `machine.json` is written
last: without it a run is unfinished.
"""

import errno
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

SETTINGS, MACHINE, METRICS, RANKS = "settings.json", "machine.json", "metrics.jsonl", "ranks.npz"
STATE, LOG, EVALUATION = "state", "log.txt", "evaluation.json"


def make_root(root: Path) -> None:
    """Before any training: a folder that cannot be written should be known at once."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".probe_", dir=root):
            pass
    except OSError as error:
        raise ValueError(f"cannot write run folders to {root}: {error.strerror}") from error


def run_hash(settings: dict[str, Any], data_checksum: str) -> str:
    canonical = json.dumps({"settings": settings, "data": data_checksum}, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:10]


def find_run(root: Path, identity: str) -> Path | None:
    """The finished folder of that hash, if there is one."""
    return next((folder for folder in _folders(root, identity) if is_finished(folder)), None)


def is_finished(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / MACHINE).read_text(encoding="utf-8"))["ended"] == "finished")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def open_run(root: Path, identity: str, *, data: str, settings: dict[str, Any]) -> Path:
    """The unfinished folder of that hash, or a new one."""
    for folder in _folders(root, identity):
        if not is_finished(folder):
            break
    else:
        objective = re.sub(r"[^\w.+-]+", "_", settings["objective"].replace("/", "+"))
        date = datetime.now(timezone.utc).strftime("%Y%m%d")
        name = f"{date}_{data}_{settings['model']}_{objective[:60]}_s{settings['seed']}_{identity}"
        folder = root / name
        folder.mkdir(exist_ok=True)
    write_json(folder / SETTINGS, settings)
    return folder


def empty_run(folder: Path, *, but: str) -> None:
    """To begin anew; the file that keeps other processes out stays."""
    for left in folder.iterdir():
        if left.name not in (but, SETTINGS):
            shutil.rmtree(left) if left.is_dir() else left.unlink()


def has_begun(folder: Path) -> bool:
    """Whether anything would be lost with the folder."""
    return (folder / STATE).exists() or is_finished(folder)


def finish_run(folder: Path, conditions: dict[str, Any], *, seconds: float) -> None:
    """From now on it is never written to again. What only a resume needed goes."""
    finished = {"ended": "finished", "seconds": seconds, "finished": _now(), **conditions, **machine()}
    write_json(folder / MACHINE, finished)
    tidy_run(folder)


def tidy_run(folder: Path) -> None:
    """What a finished run has no use for; a kill may have left it."""
    shutil.rmtree(folder / STATE, ignore_errors=True)


class MetricsFile:
    """Lines of JSON; a resumed run takes back what was written after its checkpoint, and writes it again."""

    def __init__(self, folder: Path, length: int) -> None:
        self.file = folder / METRICS
        self.file.touch()
        if self.file.stat().st_size < length:
            raise ValueError(f"{self.file} is shorter than it was: remove the folder {folder.name} and call again")
        os.truncate(self.file, length)
        self.length = length

    def append(self, line: dict[str, Any]) -> None:
        text = json.dumps(without_nan(line), allow_nan=False) + "\n"
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(text)
        self.length += len(text.encode())

    def sync(self) -> None:
        """Safely on disk: a checkpoint that is says how long this is."""
        with self.file.open("rb") as stream:
            os.fsync(stream.fileno())


def write_ranks(folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    write_safely(folder / RANKS, content.getvalue())


def write_evaluation(root: Path, content: dict[str, Any], ranks: Mapping[str, np.ndarray]) -> Path:
    """A folder named by what was evaluated, replaced where the same was evaluated before."""
    named = ("protocol", "ties", "rerank", "models", "weights", "data", "split", "checksums")
    asked = {name: content[name] for name in named}
    name = "+".join(content["models"])[:120]
    folder = root / f"{name}_{content['data']}_{content['split']}_{content['protocol']}_{run_hash(asked, '')}"
    make_root(folder)
    write_ranks(folder, ranks)
    write_json(folder / EVALUATION, content)
    return folder / EVALUATION


def write_beside_runs(folder: Path, name: str, content: str | bytes) -> None:
    """A file of a comparison, replaced in one step."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    write_safely(folder / name, content.encode() if isinstance(content, str) else content)


def write_json(path: Path, content: dict[str, Any]) -> None:
    write_safely(path, (json.dumps(content, indent=2, sort_keys=True) + "\n").encode())


def write_safely(file: Path, data: bytes) -> None:
    """Written beside, brought to the disk, then moved into place. On failure nothing is left of it."""
    beside = file.with_name(f".{file.name}.{os.getpid()}")
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


def read_lines(run: Path) -> list[dict[str, Any]]:
    file = run / METRICS
    try:
        return [dict(json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{file} is damaged or missing: remove the folder {run.name} and train it again") from error


def read_final(run: Path) -> dict[str, Any]:
    """The last line: metrics with the chosen weights, steps, pairs seen."""
    final = [line for line in read_lines(run) if line.get("final")]
    if not final:
        raise ValueError(f"{run / METRICS} is damaged or missing: remove the folder {run.name} and train it again")
    return final[-1]


def read_metrics(run: Path) -> dict[str, float]:
    """On test, with the chosen weights; on validation where there is no test."""
    return {name: value for name, value in read_final(run).items() if isinstance(value, float)}


def read_validation(run: Path) -> list[dict[str, Any]]:
    """One line an epoch."""
    return [line for line in read_lines(run) if line.get("split") == "validation" and not line.get("final")]


def read_counts(run: Path) -> list[dict[str, Any]]:
    """Contributing samples over training, a line for every counted step."""
    return [line for line in read_lines(run) if "cocos" in line]


def read_triplets(run: Path) -> dict[int, dict[str, list[float | None]]]:
    """Epoch, counted from 1 -> triplets of its last batch."""
    found: dict[int, dict[str, list[float | None]]]
    found = {line.get("epoch", 0): line["triplets"] for line in read_lines(run) if "triplets" in line}
    for each in found.values():
        if not isinstance(each, dict) or len({len(each.get(part, ())) for part in ("s_p", "i2t", "t2i")}) != 1:
            raise ValueError(f"{run / METRICS} is damaged: its triplets are not s_p, i2t and t2i of one length")
    return found


def read_machine(run: Path) -> dict[str, Any]:
    return _read_json(run / MACHINE, run)


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
    """What `read_metrics` is of."""
    return str(read_lines(run)[-1].get("split", "nothing"))


def machine() -> dict[str, Any]:
    import torch

    return {
        "tercet": tercet.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": commit(),
        "threads": torch.get_num_threads(),
    }


def commit() -> str | None:
    """Of the source that runs, where it is a checkout; with a + where it was changed since."""
    here = Path(tercet.__file__).parent
    try:
        found = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None


def without_nan(value: Any) -> Any:
    """Not a number is null in JSON, such as the mean over no queries."""
    if isinstance(value, dict):
        return {name: without_nan(part) for name, part in value.items()}
    if isinstance(value, list):
        return [without_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _folders(root: Path, identity: str) -> list[Path]:
    return sorted(folder for folder in root.glob(f"*_{identity}") if folder.is_dir())


def _now() -> str:
    return datetime.now(timezone.utc).isoformat()
