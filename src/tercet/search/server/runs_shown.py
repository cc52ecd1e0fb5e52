"""Run folders and comparisons for the page, also while runs are being trained."""

import json
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tercet import runs
from tercet.search.server.refused import Refused

RUN = re.compile(r"\d{8}_.+_s\d+_[0-9a-f]{10}")
COMPARISON = re.compile(r"comparison_[\w.+-]+")
REPORT_FILES = {".html": "text/html; charset=utf-8", ".png": "image/png", ".svg": "image/svg+xml"}
METRICS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum")
MOST = 500  # runs that are listed, the latest first


@dataclass(frozen=True)
class RunShown:
    name: str
    data: str
    model: str
    objective: str
    seed: int
    finished: bool
    epoch: int
    epochs: int
    lines: int
    """That it has written so far."""
    quiet: float
    """Seconds since it last wrote something."""
    metrics: dict[str, float] = field(default_factory=dict)
    """On test when finished; the latest on validation before."""


@dataclass(frozen=True)
class Curves:
    name: str
    validation: list[dict[str, Any]]
    """One an epoch: epoch, step and metrics."""
    counts: list[dict[str, Any]]
    """Contributing samples: step, and negatives, effective, hardest_share of either direction."""


@dataclass(frozen=True)
class Row:
    name: str
    runs: int
    means: dict[str, float]
    deviations: dict[str, float]


@dataclass(frozen=True)
class ComparisonShown:
    name: str
    title: str
    verdict: str
    metric: str
    rows: list[Row]
    report: bool


class RunsShown:
    """Of one folder of runs. What a run wrote is read again only when it has written more."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._read: dict[str, tuple[tuple[int, int], list[dict[str, Any]]]] = {}

    def all(self) -> list[RunShown]:
        folders = [each for each in self._folders(RUN) if (each / runs.METRICS).is_file()]
        latest = sorted(folders, key=lambda each: (each / runs.METRICS).stat().st_mtime, reverse=True)[:MOST]
        found = [self._shown(each) for each in latest]
        return [each for each in found if each is not None]

    def curves(self, name: str) -> Curves:
        folder = self._folder(name, RUN)
        lines = self._lines(folder)
        validation = [
            {key: line[key] for key in ("epoch", "step", *METRICS) if key in line}
            for line in lines
            if line.get("split") == "validation" and not line.get("final") and isinstance(line.get("epoch"), int)
        ]
        counts = [
            {"step": line["step"], **{side: _general(line["cocos"][side]) for side in ("i2t", "t2i")}}
            for line in lines
            if isinstance(line.get("step"), int) and _has_counts(line.get("cocos"))
        ]
        return Curves(name, validation, counts)

    def comparisons(self) -> list[ComparisonShown]:
        found = []
        for folder in sorted(self._folders(COMPARISON), key=lambda each: each.stat().st_mtime, reverse=True):
            try:
                content = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
                rows = [_row(name, each) for name, each in content["results"].items() if each]
                rows.sort(key=lambda row: -row.means.get(content["metric"], 0.0))
                report = (folder / "report.html").is_file()
                shown = (content["title"], content["verdict"], content["metric"], rows, report)
                found.append(ComparisonShown(folder.name, *shown))
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue  # one that is being written, or is none
        return found

    def report_file(self, name: str, place: str) -> tuple[bytes, str]:
        """The report of a comparison or one of its figures, and what kind of file that is."""
        folder = self._folder(name, COMPARISON)
        if not re.fullmatch(r"report\.html|figures/[\w+-]+\.(png|svg)", place):
            raise Refused(404, "a comparison has report.html and figures/NAME.png or .svg")
        file = folder / place
        if not file.is_file() or file.resolve() != folder.resolve() / place:
            raise Refused(404, f"{name} has no {place}")
        return file.read_bytes(), REPORT_FILES[file.suffix]

    def _folders(self, kind: re.Pattern[str]) -> list[Path]:
        if not self.root.is_dir():
            return []
        return [each for each in self.root.iterdir() if kind.fullmatch(each.name) and each.is_dir()]

    def _folder(self, name: str, kind: re.Pattern[str]) -> Path:
        """By its name, which must look like one: never a way to somewhere else."""
        if not kind.fullmatch(name) or "/" in name or not (self.root / name).is_dir():
            raise Refused(404, f"there is no {name[:120]!r} in the folder of runs")
        return self.root / name

    def _shown(self, folder: Path) -> RunShown | None:
        """None where it is damaged, or gone in the meantime."""
        try:
            return self._as_it_stands(folder)
        except (OSError, ValueError, TypeError):
            return None

    def _as_it_stands(self, folder: Path) -> RunShown:
        settings, lines = runs.read_settings(folder), self._lines(folder)
        quiet = time.time() - (folder / runs.METRICS).stat().st_mtime
        latest: Mapping[str, Any] = next((line for line in reversed(lines) if "rsum" in line), {})
        return RunShown(
            folder.name,
            Path(str(settings.get("data", ""))).name,
            str(settings.get("model", "")),
            str(settings.get("objective", "")),
            int(settings.get("seed") or 0),
            finished=runs.is_finished(folder),
            epoch=max([int(line.get("epoch") or 0) for line in lines if "split" in line], default=0),
            epochs=int(settings.get("epochs") or 0),
            lines=len(lines),
            quiet=max(0.0, quiet),
            metrics={name: latest[name] for name in METRICS if isinstance(latest.get(name), float)},
        )

    def _lines(self, folder: Path) -> list[dict[str, Any]]:
        file = folder / runs.METRICS
        found = file.stat()
        stamp = found.st_size, found.st_mtime_ns
        known = self._read.get(folder.name)
        if known is None or known[0] != stamp:
            lines = [_light(each) for each in _whole_lines(file)]
            self._read[folder.name] = known = (stamp, lines)
        return known[1]


def _whole_lines(file: Path) -> list[dict[str, Any]]:
    """The last one may be in the middle of being written."""
    lines = []
    for line in file.read_text(encoding="utf-8").split("\n")[:-1]:
        try:
            content = json.loads(line)
        except ValueError:
            continue
        if isinstance(content, dict):
            lines.append(content)
    return lines


def _light(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key != "triplets"}  # many numbers that nobody asks for


def _has_counts(counts: Any) -> bool:
    return isinstance(counts, dict) and all(isinstance(counts.get(side), dict) for side in ("i2t", "t2i"))


def _general(counts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: counts.get(key) for key in ("negatives", "effective", "hardest_share", "silent")}


def _row(name: str, found: Sequence[Mapping[str, Any]]) -> Row:
    numbers = {metric: [float(run["metrics"][metric]) for run in found] for metric in METRICS}
    means = {metric: statistics.fmean(each) for metric, each in numbers.items()}
    spread = {metric: statistics.stdev(each) for metric, each in numbers.items() if len(each) > 1}
    return Row(name, len(found), means, spread)
