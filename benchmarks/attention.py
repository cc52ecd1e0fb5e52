"""Cross attention of SCAN and BFAN beside the original loop over captions, training step and evaluation, in one run.

    python benchmarks/attention.py      # about an hour; writes benchmarks/results/attention_<date>.md
    python benchmarks/attention.py --dims 64 --images 16 20 --captions 16 60 --repeats 2    # two minutes

On sets that are already encoded: 36 regions an image, captions as long as Flickr's, unit vectors. The original loop
(`benchmarks/originals.py`) takes one caption at a time, forms what every query attends to, and evaluates in shards of
128 x 128 of arrays that its program keeps in float64; the same loop in float32 stands beside it. Ours is
`model.similarity`, in float32. All must agree or the run stops. Contestants take turns; a figure is the median of its
turns. Memory is the peak of a process of its own, above the sets and their gradients.
"""

import argparse
import os
import platform
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import torch
from originals import bfan_similarity, in_shards, scan_similarity
from torch import Tensor

from objectives import peak_megabytes, take_turns
from tercet.models import build
from tercet.similarity.blocks import KEPT

REGIONS = 36
# row of the table -> system, settings that our model and the original loop share
ROWS = {
    "SCAN t2i": ("scan", {"attends": "t2i", "sharpness": 9.0, "pooling_sharpness": 6.0}),
    "SCAN i2t": ("scan", {"attends": "i2t", "sharpness": 4.0, "pooling_sharpness": 5.0}),
    "BFAN equal": ("bfan", {"focus": "equal", "sharpness": 20.0}),
    "BFAN prob": ("bfan", {"focus": "prob", "sharpness": 20.0}),
}
LOOPS = {"scan": scan_similarity, "bfan": bfan_similarity}
TARGETS = {1024: 8.0, 256: 5.0}  # original / ours, at least
LARGER = (2, 4)  # times the training batch, each side: where only ours is measured


class Sets(NamedTuple):
    images: Tensor
    captions: Tensor
    """Zeros where padded."""
    lengths: list[int]

    @classmethod
    def drawn(cls, images: int, captions: int, dim: int, dtype: torch.dtype = torch.float32) -> "Sets":
        generator = torch.Generator().manual_seed(0)
        spread = torch.randn(captions, generator=generator)
        lengths = (12.2 * torch.exp(0.3 * spread)).round().clamp(6, 22).long()  # with start and end; 12.6 on average
        words = torch.randn(captions, int(lengths.max()), dim, generator=generator, dtype=dtype)
        words[torch.arange(words.shape[1]) >= lengths[:, None]] = 0
        regions = torch.randn(images, REGIONS, dim, generator=generator, dtype=dtype)
        unit = partial(torch.nn.functional.normalize, dim=2)
        return cls(unit(regions), unit(words), lengths.tolist())

    def megabytes(self) -> float:
        return (self.images.nbytes + self.captions.nbytes) / 2**20


Compare = Callable[[Tensor, Tensor, list[int]], Tensor]
Step = tuple[Tensor, Tensor, Tensor]


def contestants(row: str, dim: int) -> dict[str, Compare]:
    """Each of images, captions and lengths -> S. Ours sees by itself what is padding."""
    system, settings = ROWS[row]
    model = build(system, words=10, image_dim=8, joint_dim=dim, **settings)
    return {
        "original": partial(LOOPS[system], **settings),
        "ours": lambda images, captions, lengths: model.similarity(images, captions),
    }


def step(compare: Compare, sets: Sets) -> Step:
    """S and the gradients of both sides, for a random gradient of S."""
    images, captions = (side.detach().requires_grad_() for side in (sets.images, sets.captions))
    S = compare(images, captions, sets.lengths)
    S.backward(torch.randn(S.shape, generator=torch.Generator().manual_seed(1), dtype=S.dtype))
    return S.detach(), images.grad, captions.grad


@torch.inference_mode()
def evaluated(compare: Compare, sets: Sets, sharded: bool) -> Tensor:
    return in_shards(compare, *sets) if sharded else compare(*sets)


def training_section(row: str, dim: int, images: int, captions: int, repeats: int) -> dict[str, float]:
    """Seconds of a forward and a backward pass."""
    runs = contestants(row, dim)
    check_exactly(row, runs, Sets.drawn(min(images, 8), min(captions, 8), dim, torch.float64))
    sets = Sets.drawn(images, captions, dim)
    (expected, *slopes), (S, *found) = (step(runs[who], sets) for who in ("original", "ours"))
    check_values(row, S, expected)
    if ROWS[row][0] == "scan":
        check_gradients(row, found, slopes, 1e-3)
    return take_turns({who: partial(step, run, sets) for who, run in runs.items()}, repeats)


def evaluation_section(row: str, dim: int, images: int, captions: int, repeats: int) -> dict[str, float]:
    sets = Sets.drawn(images, captions, dim)
    wide = Sets(sets.images.double(), sets.captions.double(), sets.lengths)
    compare = contestants(row, dim)
    runs = {
        "original": partial(evaluated, compare["original"], wide, sharded=True),
        "in float32": partial(evaluated, compare["original"], sets, sharded=True),
        "ours": partial(evaluated, compare["ours"], sets, sharded=False),
    }
    found = runs["ours"]()
    for who in ("original", "in float32"):
        check_values(row, found, runs[who]())
    return take_turns(runs, repeats)


def check_exactly(row: str, runs: dict[str, Compare], sets: Sets) -> None:
    """In float64, where no rounding moves a part of a context across BFAN's threshold: values and gradients."""
    (expected, *slopes), (S, *found) = (step(runs[who], sets) for who in ("original", "ours"))
    require((S - expected).abs().max().item() <= 1e-9, f"{row}: values differ in float64")
    check_gradients(row, found, slopes, 1e-6)


def check_values(row: str, S: Tensor, expected: Tensor) -> None:
    """In float32. BFAN's gate is a step: where rounding decides whether a part is kept, a few entries do jump."""
    apart = (S - expected).abs()
    if ROWS[row][0] == "scan":
        require(apart.max().item() <= 1e-5, f"{row}: values differ by {apart.max():.1e}")
    else:
        share = (apart <= 1e-4).double().mean().item()
        require(share >= 0.999, f"{row}: only {100 * share:.2f} % of the values agree")


def check_gradients(row: str, found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for side, ours, original in zip(("images", "captions"), found, expected, strict=True):
        apart = ((ours - original).norm() / original.norm()).item()
        require(apart <= tolerance, f"{row}: gradients of {side} differ by {apart:.1e} of their length")


def require(agreed: bool, otherwise: str) -> None:
    """What is timed is the same, or a ratio of times means nothing."""
    if not agreed:  # NaN does not agree either
        raise RuntimeError(otherwise)


def peak(row: str, who: str, dim: int, images: int, captions: int, threads: int) -> float:
    """Megabytes of a training step, in this process."""
    torch.set_num_threads(threads)
    compare = contestants(row, dim)[who]
    step(compare, Sets.drawn(2, 2, dim))  # what libraries set up once is nobody's
    sets = Sets.drawn(images, captions, dim)
    return max(0.0, peak_megabytes(partial(step, compare, sets), 0, 0) - sets.megabytes())


def peak_alone(*given: str | int) -> float:
    """In a process of its own. It asks for its own peak: ru_maxrss of a child begins at its parent's."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(peak, *given, torch.get_num_threads()).result()


def speed_lines(given: argparse.Namespace) -> list[str]:
    (images, evaluation_images), (captions, evaluation_captions) = given.images, given.captions
    lines = [
        f"Training step: forward and backward of {images} images x {captions} captions. Evaluation: "
        f"{evaluation_images} images x {evaluation_captions:,} captions, without gradients.",
        "",
        "| system | dim | step: original, s | ours, s | original / ours | evaluation: original, s | in float32, s | "
        "ours, s | original / ours | in float32 / ours | target: step, evaluation, in float32 |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for dim in given.dims:
        for row in given.rows:
            training = training_section(row, dim, images, captions, given.repeats)
            evaluation = evaluation_section(row, dim, evaluation_images, evaluation_captions, given.repeats)
            ratios = [seconds["original"] / seconds["ours"] for seconds in (training, evaluation)]
            ratios.append(evaluation["in float32"] / evaluation["ours"])
            cells = [f"{training[who]:.3f}" for who in ("original", "ours")]
            cells += [f"**{ratios[0]:.1f}**", *(f"{evaluation[who]:.3f}" for who in ("original", "in float32", "ours"))]
            cells += [f"**{ratios[1]:.1f}**", f"{ratios[2]:.1f}", verdict(dim, ratios)]
            lines.append(f"| {row} | {dim} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    return lines


def verdict(dim: int, ratios: list[float]) -> str:
    if dim not in TARGETS:
        return ""
    return f"at least {TARGETS[dim]:.0f}: " + ", ".join("met" if r >= TARGETS[dim] else "missed" for r in ratios)


def memory_lines(given: argparse.Namespace) -> list[str]:
    images, captions = given.images[0], given.captions[0]
    lines = [
        "## Memory",
        "",
        "Growth of the peak of a process in a training step, in MB, above the sets and their gradients. Above "
        f"{KEPT / 1e6:.0f} million products of parts (regions of all images times words of all captions, padded) ours "
        "keeps no block for the backward pass and makes it again.",
        "",
        "| system | dim | images x captions | million products | ours | original | original / ours |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    sizes = [(dim, 1) for dim in given.dims] + [(min(given.dims), times) for times in LARGER]
    for row in given.rows:
        for dim, times in sizes:
            size = times * images, times * captions
            products = REGIONS * size[0] * Sets.drawn(1, size[1], 1).captions.shape[:2].numel() / 1e6
            ours, cells = peak_alone(row, "ours", dim, *size), " | "
            if times == 1:
                original = peak_alone(row, "original", dim, *size)
                # Less than a megabyte is lost in what a process does besides.
                cells = f"{original:.0f} | {original / max(ours, 1.0):.1f}"
            lines.append(f"| {row} | {dim} | {size[0]} x {size[1]} | {products:.1f} | {ours:.0f} | {cells} |")
            print(lines[-1], flush=True)
    return lines


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    both = {"type": int, "nargs": 2, "metavar": ("TRAINING", "EVALUATION")}
    parser.add_argument("--dims", type=int, nargs="+", default=list(TARGETS))
    parser.add_argument("--images", default=[128, 200], **both)
    parser.add_argument("--captions", default=[128, 1000], **both)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    lines = [
        f"# Cross attention, {date.today()}",
        "",
        f"`python benchmarks/attention.py`, {torch.get_num_threads()} threads of {os.cpu_count()} cores "
        f"({platform.machine()}), torch {torch.__version__}, Python {platform.python_version()}, float32, {REGIONS} "
        f"regions, captions of 6 to 22 words; medians of {given.repeats} interleaved turns.",
        "",
        *speed_lines(given),
        "",
        *memory_lines(given),
    ]
    given.out.mkdir(exist_ok=True)
    # A part of it lies beside the whole and does not take its place.
    parts = [*map(str, given.dims), *(row.replace(" ", "-") for row in given.rows)]
    part = "" if given.dims == list(TARGETS) and given.rows == list(ROWS) else f"_{'_'.join(parts)}"
    (given.out / f"attention_{date.today()}{part}.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
