"""Runs and comparisons in a runs folder, including runs in training."""

import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from shlex import quote
from typing import Any

from fastapi import HTTPException

from tercet import runs
from tercet.console import printable
from tercet.serve.limits import MAX_LISTED_RUNS

REPORT_PATH = re.compile(r"report\.html|figures/[\w+-]+\.(png|svg)")
REPORT_MEDIA_TYPES = {".html": "text/html; charset=utf-8", ".png": "image/png", ".svg": "image/svg+xml"}
METRICS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum")
COUNTS = ("negatives", "effective", "hardest_share", "silent")
DIRECTIONS = ("i2t", "t2i")


@dataclass(frozen=True)
class RunInfo:
    name: str
    data: str
    model: str
    objective: str
    seed: int
    finished: bool
    epoch: int
    epochs: int
    lines: int
    """Lines of metrics.jsonl so far."""
    idle_seconds: float
    """Seconds since the run last wrote metrics."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Test metrics if finished, else the latest validation metrics."""
    index_commands: list[str] = field(default_factory=list)
    """Commands that make an index with this run and serve it, without paths of this machine; none in training."""


@dataclass(frozen=True)
class Curves:
    name: str
    validation: list[dict[str, Any]]
    """One entry per epoch: epoch, step and metrics."""
    counts: list[dict[str, Any]]
    """Contributing samples: step, and negatives, effective, hardest_share, silent per direction."""


@dataclass(frozen=True)
class Row:
    name: str
    runs: int
    means: dict[str, float]
    deviations: dict[str, float]


@dataclass(frozen=True)
class ComparisonInfo:
    name: str
    title: str
    verdict: str
    metric: str
    rows: list[Row]
    report: bool


class RunListing:
    """The runs and comparisons of one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def all(self) -> list[RunInfo]:
        folders = [folder for folder in runs.run_folders(self.root) if (folder / runs.METRICS).is_file()]
        folders.sort(key=lambda folder: (folder / runs.METRICS).stat().st_mtime, reverse=True)
        infos = [_run_info(folder) for folder in folders[:MAX_LISTED_RUNS]]
        return [info for info in infos if info is not None]

    def curves(self, name: str) -> Curves:
        lines = _lines(self._folder(name, runs.run_folders))
        validation = [
            _numbers(line, ("epoch", "step", *METRICS))
            for line in lines
            if line.get("split") == "validation" and not line.get("final") and isinstance(line.get("epoch"), int)
        ]
        counts = [
            {
                "step": line["step"],
                **{direction: _numbers(line["cocos"][direction], COUNTS) for direction in DIRECTIONS},
            }
            for line in lines
            if isinstance(line.get("step"), int) and _has_counts(line.get("cocos"))
        ]
        return Curves(name, validation, counts)

    def comparisons(self) -> list[ComparisonInfo]:
        folders = runs.comparison_folders(self.root)
        folders.sort(key=lambda folder: folder.stat().st_mtime, reverse=True)
        infos = [_comparison_info(folder) for folder in folders]
        return [info for info in infos if info is not None]

    def report_file(self, name: str, path: str) -> tuple[bytes, str]:
        """Return the report of a comparison or one of its figures, and its media type."""
        folder = self._folder(name, runs.comparison_folders)
        if not REPORT_PATH.fullmatch(path):
            raise HTTPException(404, "the files of a comparison are report.html and figures/NAME.png or .svg")
        file = folder / path
        if not file.is_file() or file.resolve() != folder.resolve() / path:  # no links out of the folder
            raise HTTPException(404, f"{name} has no {path}")
        return file.read_bytes(), REPORT_MEDIA_TYPES[file.suffix]

    def _folder(self, name: str, folders: Callable[[Path], list[Path]]) -> Path:
        """Return the folder of this name. Only listed names are accepted, so that no path leads out of the root."""
        for folder in folders(self.root):
            if folder.name == name:
                return folder
        raise HTTPException(404, f"no {name[:120]!r} in the runs folder")


def _run_info(folder: Path) -> RunInfo | None:
    """Return None if the run is damaged, or was deleted meanwhile."""
    try:
        settings, lines = runs.read_settings(folder), _lines(folder)
        idle_seconds = time.time() - (folder / runs.METRICS).stat().st_mtime
        latest: Mapping[str, Any] = next((line for line in reversed(lines) if "rsum" in line), {})
        return RunInfo(
            printable(folder.name),
            printable(_name_of_data(str(settings.get("data", "")))),
            printable(str(settings.get("model", ""))),
            printable(str(settings.get("objective", ""))),
            int(settings.get("seed") or 0),
            finished=runs.is_finished(folder),
            epoch=max([int(line.get("epoch") or 0) for line in lines if "split" in line], default=0),
            epochs=int(settings.get("epochs") or 0),
            lines=len(lines),
            idle_seconds=max(0.0, idle_seconds),
            metrics={name: latest[name] for name in METRICS if isinstance(latest.get(name), float)},
            index_commands=_index_commands(folder) if runs.is_finished(folder) else [],
        )
    except (OSError, ValueError, TypeError, AttributeError, OverflowError):
        return None


def _name_of_data(data: str) -> str:
    """Name of the file or folder; of features that `tercet compare` extracted, the name of what they were made of."""
    path = Path(data)
    return path.name.rpartition("_")[0] if path.parent.name == "features" else path.name


def _index_commands(folder: Path) -> list[str]:
    run, index = quote(f"{folder.parent.name}/{folder.name}"), quote(f"{folder.name}_index")
    return [f"tercet index {run} --images PHOTOS --out {index}", f"tercet serve {index}"]


def _lines(folder: Path) -> list[dict[str, Any]]:
    stat = (folder / runs.METRICS).stat()
    return _lines_of_version(folder, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=MAX_LISTED_RUNS)
def _lines_of_version(folder: Path, size: int, modified: int) -> list[dict[str, Any]]:
    """Cached until the file changes."""
    return [_without_triplets(line) for line in runs.read_lines_so_far(folder)]


def _without_triplets(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key != "triplets"}  # large, and not shown


def _has_counts(counts: Any) -> bool:
    return isinstance(counts, dict) and all(isinstance(counts.get(direction), dict) for direction in DIRECTIONS)


def _numbers(line: Mapping[str, Any], keys: Sequence[str]) -> dict[str, int | float | None]:
    """Those of the values that are numbers: a line of an unfinished run may be damaged."""
    return {key: line[key] for key in keys if isinstance(line.get(key), int | float | None) and key in line}


def _comparison_info(folder: Path) -> ComparisonInfo | None:
    """Return None if comparison.json is missing. A damaged one is listed without numbers."""
    if not (folder / runs.COMPARISON).is_file():
        return None
    name, report = printable(folder.name), (folder / "report.html").is_file()
    try:
        content = runs.without_nan(runs.read_comparison(folder))
        rows = [_row(name, results) for name, results in content["results"].items() if results]
        rows.sort(key=lambda row: -row.means.get(content["metric"], 0.0))
        # `verdict` has lines of its own.
        verdict = "\n".join(map(printable, content["verdict"].split("\n")))
        return ComparisonInfo(name, printable(content["title"]), verdict, printable(content["metric"]), rows, report)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        verdict = f"{runs.COMPARISON} is damaged: run the comparison again"
        return ComparisonInfo(name, name, verdict, METRICS[-1], [], report)


def _row(name: str, results: Sequence[Mapping[str, Any]]) -> Row:
    values = {metric: [float(run["metrics"][metric]) for run in results] for metric in METRICS}
    means = {metric: statistics.fmean(each) for metric, each in values.items()}
    deviations = {metric: statistics.stdev(each) for metric, each in values.items() if len(each) > 1}
    return Row(printable(name), len(results), means, deviations)
