"""`tercet compare` against the same runs launched one after the other with `tercet train`.

    python benchmarks/compare.py     # about ten minutes; writes benchmarks/results/compare_<date>.md

The runs have identical settings: heads on scenes, four objectives, two seeds. Launched separately, each run has all
cores; in the comparison they share the data and run in parallel, one core each. Times are medians of interleaved turns.
The report, which separate runs do not have, is timed separately.
"""

import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from harness import make_parser, page_header, seconds_of, write_page

OBJECTIVES = ("triplet", "triplet-sh", "nt-xent", "cir/lin")
SEEDS = 2
# row of the table -> (data, epochs)
ROWS = {"scenes:600, 3 epochs": ("scenes:600", 3), "scenes, 6 epochs (the demo's runs)": ("scenes", 6)}


def run_command(*arguments):
    command = [sys.executable, "-m", "tercet", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def separately(data, epochs, folder):
    for objective in OBJECTIVES:
        for seed in range(SEEDS):
            run_command(
                "train", "--data", data, "--objective", objective, "--seed", seed, "--epochs", epochs, "--runs", folder
            )


def in_comparison(data, epochs, folder):
    run_command(
        "compare",
        data,
        "--objectives",
        *OBJECTIVES,
        "--seeds",
        SEEDS,
        "--epochs",
        epochs,
        "--no-tune",
        "--runs",
        folder,
    )


def main():
    parser = make_parser(__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rows", nargs="+", default=list(ROWS))
    options = parser.parse_args()
    lines = [
        *page_header(
            "Comparison",
            "compare",
            f"{len(OBJECTIVES) * SEEDS} runs; medians of {options.turns} interleaved turns.",
        ),
        "| runs | separately, s | compare, s | of it tables and report, s | throughput |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in options.rows:
        data, epochs = ROWS[row]
        times = {"separately": [], "compare": [], "report": []}
        for turn in range(options.turns):
            with tempfile.TemporaryDirectory() as scratch:
                for name in ("separately", "compare")[:: -1 if turn % 2 else 1]:
                    run = {"separately": separately, "compare": in_comparison}[name]
                    times[name].append(seconds_of(partial(run, data, epochs, Path(scratch) / name)))
                # All runs are finished: this opens the data, computes statistics and writes the report.
                times["report"].append(seconds_of(partial(in_comparison, data, epochs, Path(scratch) / "compare")))
        separate, compared, report = (statistics.median(times[name]) for name in ("separately", "compare", "report"))
        lines.append(f"| {row} | {separate:.1f} | {compared:.1f} | {report:.1f} | **{separate / compared:.2f}** |")
        print(lines[-1], flush=True)
    write_page(options.out, "compare", lines)


if __name__ == "__main__":
    main()
