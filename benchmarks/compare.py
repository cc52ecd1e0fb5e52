"""Stacks of runs against one process per run against one `tercet train` after the other: time and peak memory.

    python benchmarks/compare.py                          # hours; writes benchmarks/results/compare_<date>.md
    python benchmarks/compare.py --turns 1 --rows demo

The runs have identical settings, with heads and no tuning. Launched one after the other, each has all cores; a
comparison trains several at once, as single runs (`--no-stack`) or in stacks. Times are medians of interleaved turns.
The report, which separate runs do not have, is timed separately. Memory is the largest sum over all processes of a
command, pages that they share counted once. Row `vectors` has the size of Flickr8k: random features with noise between
an image and its captions.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from harness import make_parser, page_header, seconds_of, write_page

FOUR = ("triplet", "triplet-sh", "nt-xent", "cir/lin")
FIFTEEN = tuple(f"{t}/{p}" for t in ("con", "nca", "cir") for p in ("con", "lin", "sig", "lin-ms", "sig-ms"))
DIM = 512
FLICKR8K = {"train": 6000, "dev": 1000, "test": 1000}  # images
CAPTIONS_PER_IMAGE = 5
KINDS = ("sequential", "processes", "stacked")


class Grid(NamedTuple):
    """The runs of a row of the table; `data` None is the folder of vectors."""

    title: str
    data: str | None
    objectives: tuple[str, ...]
    seeds: int
    epochs: int


ROWS = {
    "small": Grid("scenes:600", "scenes:600", FOUR, 2, 3),
    "demo": Grid("scenes (the demo's runs)", "scenes", FOUR, 2, 6),
    "vectors": Grid("vectors of Flickr8k's size", None, FOUR, 2, 3),
    "grid": Grid("vectors of Flickr8k's size", None, FIFTEEN, 5, 3),
}


def main():
    parser = make_parser(__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    options = parser.parse_args()
    lines = [
        *page_header("Comparison", "compare", f"medians of {options.turns} interleaved turns, peak memory in MB."),
        "| data | runs | epochs | sequential, s | processes, s | stacked, s | of it tables and report, s | "
        "sequential / processes | sequential / stacked | memory sequential | processes | stacked |",
        "|---|" + "---:|" * 11,
    ]
    for row in options.rows:
        with tempfile.TemporaryDirectory() as scratch:
            lines.append(measured(ROWS[row], options.turns, Path(scratch)))
        print(lines[-1], flush=True)
    write_page(options.out, "compare", lines)


def measured(grid, turns, scratch):
    """Return the row of the table."""
    data = grid.data or vectors(scratch / "vectors")
    seconds = {kind: [] for kind in (*KINDS, "report")}
    memory = {kind: [] for kind in KINDS}
    for turn in range(turns):
        for kind in KINDS[:: -1 if turn % 2 else 1]:
            call = sequential if kind == "sequential" else partial(compared, stacked=kind == "stacked")
            runs = scratch / f"{kind}{turn}"
            start = time.perf_counter()
            memory[kind].append(call(grid, data, runs))
            seconds[kind].append(time.perf_counter() - start)
        # All runs are finished: this opens the data, computes statistics and writes the report.
        seconds["report"].append(seconds_of(partial(compared, grid, data, scratch / f"stacked{turn}", stacked=True)))
    time_of = {kind: statistics.median(values) for kind, values in seconds.items()}
    ratios = (f"**{time_of['sequential'] / time_of[kind]:.2f}**" for kind in ("processes", "stacked"))
    cells = [
        grid.title,
        len(grid.objectives) * grid.seeds,
        grid.epochs,
        *(f"{time_of[kind]:.1f}" for kind in (*KINDS, "report")),
        *ratios,
        *(f"{max(memory[kind]):.0f}" for kind in KINDS),
    ]
    return f"| {' | '.join(map(str, cells))} |"


def sequential(grid, data, runs):
    """Train every run with a command of its own; return the peak memory in MB."""
    common = (data, "--epochs", grid.epochs, "--runs", runs)
    commands = (("--objective", name, "--seed", seed) for name in grid.objectives for seed in range(grid.seeds))
    return max(peak_of_command("train", *common, *command) for command in commands)


def compared(grid, data, runs, *, stacked):
    """Train all runs with one command; return the peak memory in MB."""
    options = ("--seeds", grid.seeds, "--epochs", grid.epochs, "--no-tune", "--runs", runs)
    return peak_of_command(
        "compare", data, "--objectives", *grid.objectives, *options, *(() if stacked else ("--no-stack",))
    )


def peak_of_command(*arguments):
    """Run a tercet command; return the largest memory of its processes together, in MB."""
    command = [sys.executable, "-m", "tercet", *map(str, arguments)]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        peak = 0.0
        while process.poll() is None:
            peak = max(peak, session_megabytes(process.pid))
            time.sleep(0.1)
        if process.returncode:
            output.seek(0)
            raise SystemExit(f"{' '.join(command)} failed:\n{output.read().decode()}")
    return peak


def session_megabytes(session):
    """Return the memory of all processes of a session, in MB; a shared page counts once (Linux only)."""
    kilobytes = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(folder.name)) == session:
                lines = (folder / "smaps_rollup").read_text().splitlines()
                kilobytes += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except (OSError, StopIteration):  # it has ended
            continue
    return kilobytes / 1024


def vectors(folder):
    """Write a dataset of features, of Flickr8k's size."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    for split, images in FLICKR8K.items():
        features = generator.standard_normal((images, DIM), dtype=np.float32)
        rows = images * CAPTIONS_PER_IMAGE
        noise = generator.standard_normal((rows, DIM), dtype=np.float32)
        np.save(folder / f"{split}_ims.npy", features)
        np.save(folder / f"{split}_txt.npy", features.repeat(CAPTIONS_PER_IMAGE, axis=0) + 4 * noise)
        (folder / f"{split}_caps.txt").write_text("".join(f"caption {row} of {split}\n" for row in range(rows)))
        (folder / f"{split}_ids.txt").write_text("".join(f"{row // CAPTIONS_PER_IMAGE}\n" for row in range(rows)))
    return folder


if __name__ == "__main__":
    main()
