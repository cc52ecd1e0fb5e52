"""The demo of two source trees in turns: `tercet compare` with nothing else, each time in an empty folder.

    python benchmarks/demo.py /path/to/old/src /path/to/new/src [--turns 2]

Elapsed time with all cores, imports included; who goes first alternates. Between a600d97 and now the demo learned to
tune the learning rate of every objective.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import make_parser, page_header, write_page

# The command's module moved between the two trees.
LAUNCH = """
import sys
try:
    from tercet.cli.main import main
except ImportError:
    from tercet.cli import main
sys.exit(main())
"""


def seconds_of_demo(source: Path) -> float:
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PYTHONPATH": str(source.resolve())}
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", LAUNCH, "compare"],
            cwd=folder,
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return time.perf_counter() - start


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("trees", nargs=2, type=Path, metavar="SRC", help="two folders that contain tercet/")
    parser.add_argument("--turns", type=int, default=2)
    given = parser.parse_args()
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(given.turns):
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            seconds[which].append(seconds_of_demo(given.trees[which]))
            print(("old", "new")[which], f"{seconds[which][-1]:.1f} s", flush=True)
    old, new = map(statistics.median, seconds)
    turns = "; ".join(f"{a:.0f} and {b:.0f}" for a, b in zip(*seconds, strict=True))
    lines = [
        *page_header("The demo of two source trees", "demo", f"medians of {given.turns} interleaved turns"),
        "| old, s | new, s | new / old | turns, old and new, s |",
        "|---:|---:|---:|---|",
        f"| {old:.1f} | {new:.1f} | **{new / old:.2f}** | {turns} |",
    ]
    write_page(given.out, "demo", lines)


if __name__ == "__main__":
    main()
