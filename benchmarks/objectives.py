"""Forward and backward of every objective beside a bare product, plain autograd and pytorch-metric-learning.

    pip install pytorch-metric-learning==2.9.0      # optional: its column stays empty without it
    python benchmarks/objectives.py                 # about ten minutes; writes benchmarks/results/objectives_<date>.md
    python benchmarks/objectives.py --sizes 128 --objectives triplet-sh nt-xent

All contestants of a size take turns in one run; a figure is the median of its turns over the median of the bare
product's. Memory is the peak of the process above what it held before, less the two gradients that remain.
"""

import argparse
import ctypes
import gc
import platform
import statistics
import time
from datetime import date
from pathlib import Path

import torch
from plain import plain_form

import tercet
from tercet.objectives import CATALOGUE

DIM = 1024
TURNS = {128: 101, 1024: 11, 4096: 3, 8192: 3}
LARGEST = ("triplet-sh", "nt-xent", "cir/sig", "cir/sig-ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(TURNS))
    parser.add_argument("--objectives", nargs="+", default=list(CATALOGUE))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    sections = [header()]
    for size in given.sizes:
        names = [name for name in given.objectives if name != "smooth-ap" and (size < 8192 or name in LARGEST)]
        sections.append(square_section(size, names))
    if "smooth-ap" in given.objectives:
        sections.append(smooth_ap_section())
    text = "\n".join(sections)
    given.out.mkdir(exist_ok=True)
    (given.out / f"objectives_{date.today()}.md").write_text(text)


def header():
    return "\n".join(
        [
            f"# Objectives, {date.today()}",
            "",
            f"`python benchmarks/objectives.py`, {torch.get_num_threads()} threads, torch {torch.__version__}, "
            f"Python {platform.python_version()}, float32, dim {DIM}; forward and backward.",
            "Times are multiples of the bare product S = X Y^T of the same run; medians of interleaved turns.",
            "",
            "- **ours**: `objective(x, y)` as it chooses by itself (decision 4); **dense**: `streamed=False`.",
            "- **plain**: the same gradient as a plain autograd formula on the whole S (`benchmarks/plain.py`).",
            "- **pml**: pytorch-metric-learning 2.9.0, both directions, where it has the same loss, up to 2048.",
            "- **memory**: peak in MB above inputs and their gradients.",
            "",
        ]
    )


def square_section(size, names):
    images, captions = pairs(size, size)
    contestants = {("product", ""): lambda: images @ captions.T}
    for name in names:
        o = tercet.objective(name)
        contestants[name, "ours"] = step(lambda x, y, o=o: o(x, y), images, captions)
        if size <= 1024 or name == "nt-xent":
            contestants[name, "dense"] = step(lambda x, y, o=o: o(x, y, streamed=False), images, captions)
        contestants[name, "plain"] = step(plain_form(name), images, captions)
        theirs = metric_learning(name, size)
        if theirs is not None:
            contestants[name, "pml"] = step(theirs, images, captions)
    seconds = take_turns(contestants, TURNS.get(size, 5))
    memory = {key: peak_megabytes(call, size, size) for key, call in contestants.items()}
    product = seconds["product", ""]
    lines = [
        f"## {size} x {size}",
        "",
        f"Bare product: {1000 * product:.2f} ms.",
        "",
        "| objective | ours | plain | plain / ours | dense | pml | memory ours | plain | dense |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name in names:
        ours, plain, dense, theirs = (
            f"{seconds[name, kind] / product:.2f}" if (name, kind) in seconds else ""
            for kind in ("ours", "plain", "dense", "pml")
        )
        gain = seconds[name, "plain"] / seconds[name, "ours"]
        held = " | ".join(f"{memory[name, k]:.0f}" if (name, k) in memory else "" for k in ("ours", "plain", "dense"))
        lines.append(f"| {name} | {ours} | {plain} | {gain:.2f} | {dense} | {theirs} | {held} |")
    print("\n".join(lines), flush=True)
    return "\n".join([*lines, ""])


def smooth_ap_section():
    """Five captions an image; the cubic form would need 13 GB a copy at 512 x 2560."""
    lines = [
        "## smooth-ap, five captions an image",
        "",
        "| size | ours ms | cubic ms | cubic / ours | memory ours | cubic |",
    ]
    lines.append("|---|---:|---:|---:|---:|---:|")
    for size in (128, 512):
        images, captions = pairs(size, 5 * size)
        owners = torch.arange(size).repeat_interleave(5)
        o = tercet.objective("smooth-ap")
        contestants = {"ours": step(lambda x, y, o=o, owners=owners: o(x, y, owners=owners), images, captions)}
        if size == 128:
            contestants["cubic"] = step(plain_form("smooth-ap"), images, captions)
        seconds = take_turns(contestants, 7)
        memory = {key: peak_megabytes(call, size, 5 * size) for key, call in contestants.items()}
        ours = 1000 * seconds["ours"]
        if size == 128:
            cubic = 1000 * seconds["cubic"]
            held = f"{memory['ours']:.0f} | {memory['cubic']:.0f}"
            lines.append(f"| 128 x 640 | {ours:.1f} | {cubic:.1f} | {cubic / ours:.1f} | {held} |")
        else:
            lines.append(f"| 512 x 2560 | {ours:.1f} | | | {memory['ours']:.0f} | |")
    print("\n".join(lines), flush=True)
    return "\n".join([*lines, ""])


def pairs(images, captions):
    generator = torch.Generator().manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(images, DIM, generator=generator), dim=1)
    near = x.repeat_interleave(captions // images, dim=0)
    noise = torch.randn(captions, DIM, generator=generator) / DIM**0.5
    return x, torch.nn.functional.normalize(near + 2 * noise, dim=1)


def step(call, images, captions):
    def run():
        x, y = images.detach().requires_grad_(), captions.detach().requires_grad_()
        call(x, y).backward()

    return run


def take_turns(contestants, turns):
    """Median seconds of each; everybody runs once before anybody runs again, forwards and backwards by turns."""
    times = {key: [] for key in contestants}
    for turn in range(turns + 1):
        order = list(contestants.items())
        for key, call in order if turn % 2 else reversed(order):
            started = time.perf_counter()
            call()
            if turn:  # the first warms up
                times[key].append(time.perf_counter() - started)
    return {key: statistics.median(each) for key, each in times.items()}


def peak_megabytes(call, images, captions):
    """Of the whole process, as Linux counts it, less the gradients of both embeddings."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed but kept would hide the next allocation
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = _status("VmRSS")
    call()
    return max(0.0, (_status("VmHWM") - before) / 1024 - 4 * DIM * (images + captions) / 2**20)


def _status(key):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1])


def metric_learning(name, size):
    """The same loss in pytorch-metric-learning, or None. Its triplets over all are a cube: 128 at the most."""
    if size > 2048 or name not in ("triplet", "triplet-sh", "nt-xent") or (name == "triplet" and size > 128):
        return None
    try:
        from pytorch_metric_learning import distances, losses, miners, reducers
    except ImportError:
        return None
    labels = torch.arange(size)
    cosine = distances.CosineSimilarity()
    if name == "nt-xent":
        loss = losses.NTXentLoss(temperature=0.1)
        one = lambda a, b: loss(a, labels, ref_emb=b, ref_labels=labels)  # noqa: E731
        return lambda x, y: 0.5 * (one(x, y) + one(y, x))
    loss = losses.TripletMarginLoss(margin=0.2, distance=cosine, reducer=reducers.SumReducer())
    miner = miners.BatchHardMiner(distance=cosine) if name == "triplet-sh" else None

    def both(x, y):
        total = 0.0
        for a, b in ((x, y), (y, x)):
            mined = miner(a, labels, b, labels) if miner else None
            total = total + loss(a, labels, mined, ref_emb=b, ref_labels=labels)
        return total

    return both


if __name__ == "__main__":
    main()
