"""Is one source tree slower than another? Two processes, one per tree, run the same work in turns.

python benchmarks/two_trees.py /path/to/old/src /path/to/new/src [--turns 7] [--out FILE]

Only public names are used, so any two commits with the same public API can be compared. A figure is the median of the
turns; who goes first alternates. Ratios are new / old: 1.00 is equally fast.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from statistics import median

WARM_UP = 2


def workloads() -> dict[str, Callable[[], None]]:
    import torch

    import tercet

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)

    def unit(rows: int, dim: int = 256) -> torch.Tensor:
        return torch.nn.functional.normalize(torch.randn(rows, dim, generator=generator))

    def step(name: str, pairs: int) -> Callable[[], None]:
        objective, x, y = tercet.objective(name), unit(pairs).requires_grad_(), unit(pairs).requires_grad_()
        return lambda: objective(x, y).backward()

    def evaluate() -> None:
        tercet.evaluate_embeddings(images, captions, owners=owners)

    def train() -> None:
        with tempfile.TemporaryDirectory() as folder:
            tercet.train(data="scenes:600", objective="nt-xent", epochs=3, batch_size=64, runs=folder)

    images, captions, owners = unit(1000), unit(5000), torch.arange(1000).repeat_interleave(5)
    names = ("triplet", "triplet-sh", "nt-xent", "smooth-ap", "cir/sig-ms")
    steps = {f"objective {name}, {n} pairs": step(name, n) for name in names for n in (128, 1024)}
    return steps | {"evaluate_embeddings, 1,000 x 5,000": evaluate, "train heads, scenes:600, 3 epochs": train}


def serve(source: str, link) -> None:
    """In a process of its own: times the workload that it is asked for."""
    sys.path.insert(0, source)
    with open(os.devnull, "w") as nowhere:
        sys.stderr = nowhere
        import tercet

        assert tercet.__file__.startswith(source), tercet.__file__
        work = workloads()
        link.send(list(work))
        while (name := link.recv()) is not None:
            repeats = 1 if name.startswith(("evaluate", "train")) else 20
            start = time.perf_counter()
            for _ in range(repeats):
                work[name]()
            link.send((time.perf_counter() - start) / repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs=2, type=Path, metavar="SRC", help="two folders that contain tercet/")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--out", type=Path, help="write the table here as well")
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    links = []
    for tree in given.trees:
        here, there = context.Pipe()
        context.Process(target=serve, args=(str(tree.resolve()), there), daemon=True).start()
        links.append(here)
    names, _ = (link.recv() for link in links)
    rows = [
        f"Two source trees in turns, {date.today()}, one thread each, median of {given.turns} turns, milliseconds.",
        "",
        "| work | old | new | new / old |",
        "|---|---:|---:|---:|",
    ]
    for name in names:
        times: list[list[float]] = [[], []]
        for turn in range(WARM_UP + given.turns):
            for which in (0, 1) if turn % 2 else (1, 0):
                links[which].send(name)
                times[which].append(links[which].recv())
        old, new = (median(taken[WARM_UP:]) * 1000 for taken in times)
        rows.append(f"| {name} | {old:.2f} | {new:.2f} | {new / old:.2f} |")
        print(rows[-1], flush=True)
    for link in links:
        link.send(None)
    if given.out is not None:
        given.out.write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
