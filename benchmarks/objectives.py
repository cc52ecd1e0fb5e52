"""Forward and backward of every objective against the product alone, plain autograd and pytorch-metric-learning.

    pip install pytorch-metric-learning==2.9.0      # optional: its column is empty without it
    python benchmarks/objectives.py                 # about ten minutes; writes benchmarks/results/objectives_<date>.md
    python benchmarks/objectives.py --dim 512 --sizes 128 --objectives triplet-sh nt-xent

Times are medians of interleaved turns, divided by the median of the product S = X Y^T alone; `of the hinge` is divided
by the plain hinge over all negatives instead. Memory is the growth of the process's peak less the gradients of both
embeddings.

On a machine with other work, `OMP_NUM_THREADS=1 ... --cpu-time` counts the time that the thread itself computes.
"""

import time

import torch
from harness import make_parser, median_seconds, page_header, peak_megabytes, write_page
from plain import hinge, plain_form

import tercet
from tercet.objectives import OBJECTIVES

TURNS = {128: 101, 1024: 11, 4096: 3, 8192: 3}
OBJECTIVES_AT_8192 = ("triplet-sh", "nt-xent", "cir/sig", "cir/sig-ms")


def main():
    parser = make_parser(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(TURNS))
    parser.add_argument("--objectives", nargs="+", default=list(OBJECTIVES))
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--cpu-time", action="store_true", help="CPU time of the one thread, not elapsed time")
    options = parser.parse_args()
    if options.cpu_time and torch.get_num_threads() > 1:
        parser.error("--cpu-time counts one thread: set OMP_NUM_THREADS=1")
    clock = time.thread_time if options.cpu_time else time.perf_counter
    lines = header(options.dim, options.cpu_time)
    for size in options.sizes:
        names = [
            name for name in options.objectives if name != "smooth-ap" and (size < 8192 or name in OBJECTIVES_AT_8192)
        ]
        lines += square_section(size, options.dim, names, clock)
    if "smooth-ap" in options.objectives:
        lines += smooth_ap_section(options.dim, clock)
    write_page(options.out, "objectives", lines)


def header(dim, cpu_time):
    return [
        *page_header("Objectives", "objectives", f"float32, dim {dim}; forward and backward."),
        f"{'CPU times of one thread' if cpu_time else 'Times'} are multiples of the product S = X Y^T alone in the "
        "same run; medians of interleaved turns.",
        "",
        "- **ours**: `objective(x, y)`, streamed or dense by its own choice (decision 4); **dense**: `streamed=False`.",
        "- **plain**: the same gradient as a plain autograd formula on the whole S (`benchmarks/plain.py`).",
        "- **pml**: pytorch-metric-learning 2.9.0, both directions, if it has the same loss, up to 2048.",
        "- **memory**: peak in MB above inputs and their gradients.",
        "",
    ]


def square_section(size, dim, names, clock):
    images, captions = embeddings(size, size, dim)
    calls = {("product", ""): lambda: images @ captions.T, ("hinge", ""): step(hinge, images, captions)}
    for name in names:
        o = tercet.objective(name)
        calls[name, "ours"] = step(lambda x, y, o=o: o(x, y), images, captions)
        if size <= 1024 or name == "nt-xent":
            calls[name, "dense"] = step(lambda x, y, o=o: o(x, y, streamed=False), images, captions)
        calls[name, "plain"] = step(plain_form(name), images, captions)
        loss = metric_learning(name, size)
        if loss is not None:
            calls[name, "pml"] = step(loss, images, captions)
    seconds = median_seconds(calls, TURNS.get(size, 5), clock)
    memory = {key: memory_above_gradients(call, size, size, dim) for key, call in calls.items()}
    product = seconds["product", ""]
    lines = [
        f"## {size} x {size}",
        "",
        f"Product alone: {1000 * product:.2f} ms; plain hinge over all negatives: "
        f"{1000 * seconds['hinge', '']:.2f} ms, {seconds['hinge', ''] / product:.2f} of the product.",
        "",
        "| objective | ours | of the hinge | plain | plain / ours | dense | pml | memory ours | plain | dense |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name in names:
        ours, plain, dense, pml = (
            f"{seconds[name, kind] / product:.2f}" if (name, kind) in seconds else ""
            for kind in ("ours", "plain", "dense", "pml")
        )
        of_hinge = seconds[name, "ours"] / seconds["hinge", ""]
        speedup = seconds[name, "plain"] / seconds[name, "ours"]
        megabytes = " | ".join(
            f"{memory[name, kind]:.0f}" if (name, kind) in memory else "" for kind in ("ours", "plain", "dense")
        )
        lines.append(f"| {name} | {ours} | {of_hinge:.2f} | {plain} | {speedup:.2f} | {dense} | {pml} | {megabytes} |")
    print("\n".join(lines), flush=True)
    return [*lines, ""]


def smooth_ap_section(dim, clock):
    """Five captions per image; the cubic form would need 13 GB per copy at 512 x 2560."""
    lines = [
        "## smooth-ap, five captions per image",
        "",
        "| size | ours ms | cubic ms | cubic / ours | memory ours | cubic |",
    ]
    lines.append("|---|---:|---:|---:|---:|---:|")
    for size in (128, 512):
        images, captions = embeddings(size, 5 * size, dim)
        owners = torch.arange(size).repeat_interleave(5)
        o = tercet.objective("smooth-ap")
        calls = {"ours": step(lambda x, y, o=o, owners=owners: o(x, y, owners=owners), images, captions)}
        if size == 128:
            calls["cubic"] = step(plain_form("smooth-ap"), images, captions)
        seconds = median_seconds(calls, 7, clock)
        memory = {key: memory_above_gradients(call, size, 5 * size, dim) for key, call in calls.items()}
        ours = 1000 * seconds["ours"]
        if size == 128:
            cubic = 1000 * seconds["cubic"]
            megabytes = f"{memory['ours']:.0f} | {memory['cubic']:.0f}"
            lines.append(f"| 128 x 640 | {ours:.1f} | {cubic:.1f} | {cubic / ours:.1f} | {megabytes} |")
        else:
            lines.append(f"| 512 x 2560 | {ours:.1f} | | | {memory['ours']:.0f} | |")
    print("\n".join(lines), flush=True)
    return [*lines, ""]


def embeddings(images, captions, dim):
    generator = torch.Generator().manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(images, dim, generator=generator), dim=1)
    near = x.repeat_interleave(captions // images, dim=0)
    noise = torch.randn(captions, dim, generator=generator) / dim**0.5
    return x, torch.nn.functional.normalize(near + 2 * noise, dim=1)


def step(call, images, captions):
    def run():
        x, y = images.detach().requires_grad_(), captions.detach().requires_grad_()
        call(x, y).backward()

    return run


def memory_above_gradients(call, images, captions, dim):
    """Return the peak memory in MB less the gradients of both embeddings."""
    return max(0.0, peak_megabytes(call) - 4 * dim * (images + captions) / 2**20)


def metric_learning(name, size):
    """Return the same loss of pytorch-metric-learning, or None. Its triplets of all pairs are a cube: at most 128."""
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
        one_way = lambda a, b: loss(a, labels, ref_emb=b, ref_labels=labels)  # noqa: E731
        return lambda x, y: 0.5 * (one_way(x, y) + one_way(y, x))
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
