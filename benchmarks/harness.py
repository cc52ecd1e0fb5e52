"""Shared by all benchmarks: interleaved timing, peak memory, and the dated Markdown page of results."""

import argparse
import ctypes
import gc
import platform
import statistics
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import TypeVar

import torch

Key = TypeVar("Key", bound=Hashable)


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser that shows the script's docstring and has --out, the folder of the page."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser


def seconds_of(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    call()
    return clock() - start


def median_seconds(
    calls: Mapping[Key, Callable[[], object]], turns: int, clock: Callable[[], float] = time.perf_counter
) -> dict[Key, float]:
    """Return the median seconds of each call over interleaved turns, after one warmup turn.

    In a turn every call runs once; the order alternates between turns, since later calls find warm caches.
    """
    times: dict[Key, list[float]] = {key: [] for key in calls}
    for turn in range(turns + 1):
        order = list(calls.items())
        for key, call in order if turn % 2 else reversed(order):
            seconds = seconds_of(call, clock)
            if turn:
                times[key].append(seconds)
    return {key: statistics.median(values) for key, values in times.items()}


def repeat(call: Callable[[], object], times: int) -> None:
    for _ in range(times):
        call()


def peak_megabytes(call: Callable[[], object]) -> float:
    """Return the growth of this process's peak resident memory during the call (Linux only)."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # freed memory that the allocator keeps would hide the next allocation
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = _status_kilobytes("VmRSS")
    call()
    return max(0.0, (_status_kilobytes("VmHWM") - before) / 1024)


def _status_kilobytes(key: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1])


def page_header(title: str, script: str, details: str) -> list[str]:
    """Return the first lines of a page: title, date, command, threads and versions, then the details."""
    return [
        f"# {title}, {date.today()}",
        "",
        f"`python benchmarks/{script}.py`, {torch.get_num_threads()} threads, torch {torch.__version__}, Python "
        f"{platform.python_version()}, {details}",
        "",
    ]


def write_page(folder: Path, script: str, lines: Iterable[str], suffix: str = "") -> None:
    """Write folder/<script>_<date><suffix>.md."""
    folder.mkdir(exist_ok=True)
    (folder / f"{script}_{date.today()}{suffix}.md").write_text("\n".join(lines).rstrip("\n") + "\n")
