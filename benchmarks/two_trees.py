"""Is one source tree slower than another? Two processes, one per tree, run the same work in turns.

python benchmarks/two_trees.py /path/to/old/src /path/to/new/src [--turns 7]

Only public names are used, so any two commits with the same public API can be compared. A figure is the median of the
turns; who goes first alternates. Ratios are new / old: 1.00 is equally fast.
"""

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from harness import make_parser, median_seconds, page_header, repeat, write_page


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


def serve(source: str, link: Connection) -> None:
    """In a process of its own: import the tree, then run every workload that is asked for."""
    sys.path.insert(0, source)
    with open(os.devnull, "w") as nowhere:
        sys.stderr = nowhere
        import tercet

        assert tercet.__file__.startswith(source), tercet.__file__
        calls = workloads()
        link.send(list(calls))
        while (name := link.recv()) is not None:
            repeat(calls[name], 1 if name.startswith(("evaluate", "train")) else 20)
            link.send(None)


def run_in(link: Connection, name: str) -> Callable[[], None]:
    def call() -> None:
        link.send(name)
        link.recv()

    return call


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("trees", nargs=2, type=Path, metavar="SRC", help="two folders that contain tercet/")
    parser.add_argument("--turns", type=int, default=7)
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    links = []
    for tree in given.trees:
        here, there = context.Pipe()
        context.Process(target=serve, args=(str(tree.resolve()), there), daemon=True).start()
        links.append(here)
    names, _ = (link.recv() for link in links)
    lines = page_header(
        "Two source trees", "two_trees", f"one thread per process, median of {given.turns} interleaved turns"
    )
    lines += ["| work | new / old |", "|---|---:|"]
    for name in names:
        seconds = median_seconds({which: run_in(link, name) for which, link in enumerate(links)}, given.turns)
        lines.append(f"| {name} | {seconds[1] / seconds[0]:.2f} |")
        print(lines[-1], flush=True)
    for link in links:
        link.send(None)
    write_page(given.out, "two_trees", lines)


if __name__ == "__main__":
    main()
