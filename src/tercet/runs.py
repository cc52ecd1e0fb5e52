"""Run folders: the only module that reads and writes them.

`<date>_<data>_<model>_<objective>_s<seed>_<hash>/` holds `settings.json`, `machine.json`, `metrics.jsonl` (append
only), `ranks.npz`, a model for `tercet.load`, `log.txt` and, until the run is finished, `state/`. The hash is of the
settings and the checksum of the data, not of the date: it identifies the run. `machine.json` is written last, with the
checksums of the other files: without it a run is unfinished. Files of a finished run are read only if they have these
checksums.
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
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

import tercet
from tercet.names import is_in_memory, short_name
from tercet.plugins import is_file_name
from tercet.storage import (
    CHECKSUMS,
    FORMAT_VERSION,
    LOCK,
    MACHINE,
    atomic_write,
    changed_file,
    check_checksums,
    checked_manifest,
    checksums_of,
    remove_temporaries,
    sync_file,
    write_json,
    write_manifest,
)
from tercet.types import IMAGE_TEXT, SIDES, Sides

SETTINGS, METRICS, RANKS = "settings.json", "metrics.jsonl", "ranks.npz"
MODEL = "config.json"  # as `tercet.inference` writes it
STATE, TENSORBOARD, WANDB, LOG, EVALUATION, COMPARISON = (
    "state",
    "tensorboard",
    "wandb",
    "log.txt",
    "evaluation.json",
    "comparison.json",
)
RESUME = "run the command again, which resumes from what is left"
RUN_NAME = re.compile(r"\d{8}_.+_s\d+_[0-9a-f]{10}")


def make_root(root: Path) -> None:
    """Create the folder of run folders. Raises before any training if it is not writable."""
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write run folders to {root}: {error.strerror}") from error
    if not os.access(root, os.W_OK | os.X_OK):
        raise ValueError(f"cannot write run folders to {root}: the folder is not writable")


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
    """Whether the file that is written last is there; readers notice if it is damaged."""
    return (folder / MACHINE).is_file()


def open_run(root: Path, identity: str, *, data: str, settings: dict[str, Any]) -> Path:
    """Return the unfinished folder with this hash, or create one."""
    for folder in _folders(root, identity):
        if not is_finished(folder):
            break
    else:
        model, objective = (_folder_part(settings[name]) for name in ("model", "objective"))
        date = datetime.now(timezone.utc).strftime("%Y%m%d")
        name = f"{date}_{data}_{model}_{objective}_s{settings['seed']}_{identity}"
        folder = root / name
        folder.mkdir(exist_ok=True)
    return folder


def write_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Write the settings of a run that starts or resumes, under its lock."""
    write_json(folder / SETTINGS, settings)


def _folder_part(name: str) -> str:
    """A name as part of a folder's name; of a path only the last part, of an object only its name."""
    name = short_name(name) if is_in_memory(name) else name
    is_path = is_file_name(name) or Path(name).is_dir()
    name = Path(name).name if is_path else name.replace("/", "+")
    return re.sub(r"[^\w.+-]+", "_", name)[:60]


def clear_run(folder: Path, *, keep: str) -> None:
    """Remove everything but the settings and the file `keep` (the lock), to start over."""
    for path in folder.iterdir():
        if path.name not in (keep, SETTINGS):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def has_started(folder: Path) -> bool:
    """Whether removing the folder would lose work: a checkpoint or a finished run."""
    return (folder / STATE).exists() or is_finished(folder)


def finish_run(folder: Path, conditions: dict[str, Any], written: Mapping[str, str], *, seconds: float) -> None:
    """Mark the run as finished: the folder is never written to again. Removes its checkpoints and its lock.

    `written`: checksums of what training wrote. `ValueError` if a file was removed or changed since.
    """
    content = {"format_version": FORMAT_VERSION, "ended": "finished", "seconds": seconds, "finished": _now()}
    content[CHECKSUMS] = checksums = checksums_of(folder, result_files(folder))
    for name, checksum in written.items():
        if checksums.get(name) != checksum:
            raise changed_file(folder / name, RESUME)
    write_manifest(folder / MACHINE, content | conditions | machine())
    remove_leftovers(folder)


def result_files(folder: Path) -> list[str]:
    """Every file of a run but its log: results, settings and the model, with its vocabulary or tokenizer."""
    names = (file.relative_to(folder) for file in folder.rglob("*") if file.is_file())
    excluded = (LOCK, MACHINE, LOG, STATE, TENSORBOARD, WANDB)
    return [name.as_posix() for name in names if name.parts[0] not in excluded and not name.parts[0].startswith(".")]


def check_run(run: Path) -> None:
    """Read every file of a finished run; `ValueError` if one is damaged."""
    check_checksums(run, read_machine(run).get(CHECKSUMS), run / MACHINE, _remedy(run))


def _read(run: Path, name: str) -> bytes:
    """The content of a file of a run. That of a finished run must have the checksum that it was finished with."""
    machine = read_machine(run) if is_finished(run) else None  # first: a run in training may write its last lines
    try:
        content = (run / name).read_bytes()
    except OSError as error:
        raise ValueError(f"{run / name} is damaged or missing: {_remedy(run)}") from error
    if machine is not None:
        checksums = machine.get(CHECKSUMS)
        if not isinstance(checksums, dict) or name not in checksums:
            raise ValueError(f"{run / MACHINE} has no checksum of {name}: {_remedy(run)}")
        if hashlib.sha256(content).hexdigest() != checksums[name]:
            raise changed_file(run / name, _remedy(run))
    return content


def _remedy(run: Path) -> str:
    return f"remove the folder {run.name} and train it again"


def remove_leftovers(folder: Path) -> None:
    """Remove what a process that was killed at the end left in a finished run: checkpoints, temporary files, the lock.

    Nothing writes to a finished run, so that no lock is needed.
    """
    shutil.rmtree(folder / STATE, ignore_errors=True)
    remove_temporaries(folder)
    (folder / LOCK).unlink(missing_ok=True)


class MetricsFile:
    """metrics.jsonl. A resumed run truncates it to its length at the checkpoint and writes the later lines again."""

    def __init__(self, folder: Path, length: int) -> None:
        self.file = folder / METRICS
        self.file.touch()
        os.truncate(self.file, length)
        self.length = length
        self._digest = hashlib.sha256(self.file.read_bytes())

    def append(self, line: dict[str, Any]) -> None:
        content = (json.dumps(without_nan(line), allow_nan=False) + "\n").encode()
        with self.file.open("ab") as stream:
            if stream.tell() != self.length:  # it would end as a finished run without its first lines
                raise changed_file(self.file, RESUME)
            stream.write(content)
        self.length += len(content)
        self._digest.update(content)

    @property
    def checksum(self) -> str:
        """SHA-256 of what was written."""
        return self._digest.hexdigest()

    def sync(self) -> None:
        """Flush to disk: a checkpoint stores the length of this file, so it must not be newer than the file."""
        try:
            sync_file(self.file)
        except FileNotFoundError as error:
            raise changed_file(self.file, RESUME) from error


def write_ranks(folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write ranks.npz."""
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    atomic_write(folder / RANKS, content.getvalue())


def write_evaluation(root: Path, content: dict[str, Any], ranks: Mapping[str, np.ndarray]) -> Path:
    """Write an evaluation to a folder named by its inputs; the same evaluation is overwritten. Return the JSON file."""
    inputs = ("protocol", "ties", "rerank", "models", "weights", "data", "split", "checksums")
    identity = {name: content[name] for name in inputs}
    name, data = "+".join(content["models"])[:120], str(content["data"]).replace(":", "-")
    folder = root / f"{name}_{data}_{content['split']}_{content['protocol']}_{run_hash(identity, '')}"
    make_root(folder)
    write_ranks(folder, ranks)
    write_json(folder / EVALUATION, content)
    return folder / EVALUATION


def write_baseline(folder: Path, content: dict[str, Any], ranks: Mapping[str, np.ndarray]) -> None:
    """Write what a baseline of comparisons reached, and the checksum of its ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    write_ranks(folder, ranks)
    checksums = checksums_of(folder, [RANKS])
    write_manifest(folder / EVALUATION, {"format_version": FORMAT_VERSION, CHECKSUMS: checksums} | content)


def read_baseline(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
    """Return what `write_baseline` wrote; None if there is none, or if it is damaged: it is then made again."""
    try:
        content = checked_manifest(_read_json(folder / EVALUATION, folder), folder / EVALUATION, "")
        check_checksums(folder, content.get(CHECKSUMS), folder / EVALUATION, "")
        return content, read_ranks(folder)
    except ValueError:
        return None


def write_comparison(folder: Path, content: dict[str, Any]) -> None:
    """Write comparison.json."""
    folder.mkdir(parents=True, exist_ok=True)
    write_manifest(folder / COMPARISON, {"format_version": FORMAT_VERSION} | content)


def write_artifact(folder: Path, name: str, content: str | bytes) -> None:
    """Write a file of a comparison atomically."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / name, content.encode() if isinstance(content, str) else content)


def read_lines(run: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl."""
    content = _read(run, METRICS)
    try:
        return [dict(json.loads(line)) for line in content.decode("utf-8").splitlines()]
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{run / METRICS} is damaged or missing: {_remedy(run)}") from error


def read_lines_so_far(run: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl of a run that may be in training: an incomplete last line is normal there.

    Other damaged lines are skipped too: these lines are shown, not evaluated.
    """
    lines = []
    for line in _read(run, METRICS).split(b"\n")[:-1]:
        with suppress(ValueError, TypeError, RecursionError):
            lines.append(without_nan(dict(json.loads(line))))
    return lines


def read_final(run: Path) -> dict[str, Any]:
    """Return the last line: metrics with the selected weights, number of steps and of pairs seen."""
    final = [line for line in read_lines(run) if line.get("final")]
    if not final:
        raise ValueError(f"{run / METRICS} is damaged or missing: {_remedy(run)}")
    return final[-1]


def read_metrics(run: Path) -> dict[str, float]:
    """Return the metrics of the selected weights on test, or on validation if there is no test split."""
    return {name: value for name, value in read_final(run).items() if isinstance(value, float)}


def read_validation(run: Path) -> list[dict[str, Any]]:
    """Return the validation metrics, one line per epoch."""
    return [line for line in read_lines(run) if line.get("split") == "validation" and not line.get("final")]


def read_selection(run: Path, select_metric: str) -> list[float]:
    """Return the validation metric that selects the checkpoint, one value per epoch; NaN if one was not a number."""
    names = select_metric.split("+")
    values = [[line.get(name) for name in names] for line in read_validation(run)]
    return [sum(float(each) if isinstance(each, int | float) else math.nan for each in line) for line in values]


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
    return checked_manifest(_read_json(run / MACHINE, run), run / MACHINE, _remedy(run))


def read_sides(run: Path) -> Sides:
    """Return what the two sides of its data are called, from the description of its model."""
    if not (run / MODEL).is_file():
        return IMAGE_TEXT
    preprocessor = _parsed(_read(run, MODEL), run / MODEL, run).get("preprocessor")
    kind = preprocessor.get("sides") if isinstance(preprocessor, dict) else None
    return SIDES.get(str(kind), IMAGE_TEXT)


def read_settings(run: Path) -> dict[str, Any]:
    return _parsed(_read(run, SETTINGS), run / SETTINGS, run)


def read_comparison(folder: Path) -> dict[str, Any]:
    """Return comparison.json, written by `tercet compare`."""
    remedy = "run the comparison again"
    return checked_manifest(_read_json(folder / COMPARISON, folder), folder / COMPARISON, remedy)


def run_folders(root: Path) -> list[Path]:
    """Return the folders of finished and unfinished runs."""
    return [path for path in _entries(root) if RUN_NAME.fullmatch(path.name) and path.is_dir()]


def comparison_folders(root: Path) -> list[Path]:
    return [path for path in _entries(root) if path.name.startswith("comparison_") and path.is_dir()]


def _entries(root: Path) -> list[Path]:
    return list(root.iterdir()) if root.is_dir() else []


def read_ranks(run: Path) -> dict[str, np.ndarray]:
    content = _read(run, RANKS)
    try:
        with np.load(io.BytesIO(content)) as archive:
            arrays = dict(archive)
        if not all(isinstance(array, np.ndarray) for array in arrays.values()):
            raise ValueError("a file in it is not an array")
        return arrays
    except Exception as error:  # zipfile, zlib and numpy raise exceptions of many kinds for damaged files
        raise ValueError(f"{run / RANKS} is damaged or missing: {_remedy(run)}") from error


def _read_json(file: Path, run: Path) -> dict[str, Any]:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ValueError(f"{file} is damaged or missing: {_remedy(run)}") from error
    return _parsed(content, file, run)


def _parsed(content: bytes, file: Path, run: Path) -> dict[str, Any]:
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is damaged or missing: {_remedy(run)}") from error
    if not isinstance(parsed, dict):
        raise ValueError(f"{file} is damaged: expected an object; {_remedy(run)}")
    return parsed


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
