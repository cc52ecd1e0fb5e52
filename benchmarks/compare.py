"""`tercet compare` beside launching the same runs one after the other as `tercet train`, in one session.

    python benchmarks/compare.py     # about ten minutes; writes benchmarks/results/compare_<date>.md

The same runs, to the last digit of their settings: heads on scenes, four objectives, two seeds. Alone, each has all
cores; in the comparison they share the data and run side by side, one core each. Contestants take turns; a figure is
the median of its turns. The report, which separate runs would not have, is timed apart.
"""

import argparse
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import torch

OBJECTIVES = ("triplet", "triplet-sh", "nt-xent", "cir/lin")
SEEDS = 2
# row of the table -> data, epochs
ROWS = {"scenes:600, 3 epochs": ("scenes:600", 3), "scenes, 6 epochs (the demo's runs)": ("scenes", 6)}


def called(*arguments):
    command = [sys.executable, "-m", "tercet.cli", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def separately(data, epochs, folder):
    for objective in OBJECTIVES:
        for seed in range(SEEDS):
            called(
                "train", "--data", data, "--objective", objective, "--seed", seed, "--epochs", epochs, "--runs", folder
            )


def compared(data, epochs, folder):
    called("compare", data, "--objectives", *OBJECTIVES, "--seeds", SEEDS, "--epochs", epochs, "--runs", folder)


def seconds(contestant, *given):
    start = time.perf_counter()
    contestant(*given)
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rows", nargs="+", default=list(ROWS))
    given = parser.parse_args()
    lines = [
        f"# Comparison, {date.today()}",
        "",
        f"`python benchmarks/compare.py`, {torch.get_num_threads()} cores, torch {torch.__version__}, Python "
        f"{platform.python_version()}; {len(OBJECTIVES) * SEEDS} runs, medians of {given.turns} interleaved turns.",
        "",
        "| runs | separately, s | compare, s | of it tables and report, s | throughput |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in given.rows:
        data, epochs = ROWS[row]
        times = {"separately": [], "compare": [], "report": []}
        for turn in range(given.turns):
            with tempfile.TemporaryDirectory() as scratch:
                for name in ("separately", "compare")[:: -1 if turn % 2 else 1]:
                    run = {"separately": separately, "compare": compared}[name]
                    times[name].append(seconds(run, data, epochs, Path(scratch) / name))
                # The runs are there: what is left is opening the data, statistics and the report.
                times["report"].append(seconds(compared, data, epochs, Path(scratch) / "compare"))
        alone, together, report = (statistics.median(times[name]) for name in ("separately", "compare", "report"))
        lines.append(f"| {row} | {alone:.1f} | {together:.1f} | {report:.1f} | **{alone / together:.2f}** |")
        print(lines[-1], flush=True)
    given.out.mkdir(exist_ok=True)
    (given.out / f"compare_{date.today()}.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
