"""Cross attention of SCAN and BFAN against the original loop over captions: training step and evaluation.

    python benchmarks/attention.py      # about an hour; writes benchmarks/results/attention_<date>.md
    python benchmarks/attention.py --dims 64 --images 16 20 --captions 16 60 --repeats 2    # two minutes

On encoded sets: 36 regions per image, captions as long as Flickr's, unit vectors. The original loop
(`benchmarks/originals.py`) takes one caption at a time, computes the attended vector of every query, and evaluates in
shards of 128 x 128 of arrays that the original program stores in float64; the same loop in float32 is also timed. Ours
is `model.similarity`, in float32. All must agree, otherwise the run stops. Times are medians of interleaved turns.
Memory is the peak of a separate process, above the sets and their gradients.
"""

import argparse
import os
import platform
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import NamedTuple

import torch
from harness import make_parser, median_seconds, page_header, peak_megabytes, write_page
from originals import bfan_similarity, in_shards, scan_similarity
from torch import Tensor

from tercet.models import build
from tercet.similarity.blockwise import MAX_SAVED_PRODUCTS

REGIONS = 36
# row of the table -> (system, settings of both our model and the original loop)
ROWS = {
    "SCAN t2i": ("scan", {"direction": "t2i", "inverse_temperature": 9.0, "pooling_inverse_temperature": 6.0}),
    "SCAN i2t": ("scan", {"direction": "i2t", "inverse_temperature": 4.0, "pooling_inverse_temperature": 5.0}),
    "BFAN equal": ("bfan", {"focus": "equal", "inverse_temperature": 20.0}),
    "BFAN prob": ("bfan", {"focus": "prob", "inverse_temperature": 20.0}),
}
LOOPS = {"scan": scan_similarity, "bfan": bfan_similarity}
TARGETS = {1024: 8.0, 256: 5.0}  # dim -> minimum of original / ours
LARGER = (2, 4)  # multiples of the training batch (images and captions) at which only ours is measured


class Sets(NamedTuple):
    images: Tensor
    captions: Tensor
    """Zeros where padded."""
    lengths: list[int]

    @classmethod
    def random(cls, images: int, captions: int, dim: int, dtype: torch.dtype = torch.float32) -> "Sets":
        generator = torch.Generator().manual_seed(0)
        spread = torch.randn(captions, generator=generator)
        # With start and end token; 12.6 on average.
        lengths = (12.2 * torch.exp(0.3 * spread)).round().clamp(6, 22).long()
        words = torch.randn(captions, int(lengths.max()), dim, generator=generator, dtype=dtype)
        words[torch.arange(words.shape[1]) >= lengths[:, None]] = 0
        regions = torch.randn(images, REGIONS, dim, generator=generator, dtype=dtype)
        unit = partial(torch.nn.functional.normalize, dim=2)
        return cls(unit(regions), unit(words), lengths.tolist())

    def megabytes(self) -> float:
        return (self.images.nbytes + self.captions.nbytes) / 2**20


Compare = Callable[[Tensor, Tensor, list[int]], Tensor]
Step = tuple[Tensor, Tensor, Tensor]


def implementations(row: str, dim: int) -> dict[str, Compare]:
    """Functions (images, captions, lengths) -> S. Ours detects padding by itself."""
    system, settings = ROWS[row]
    model = build(system, vocab_size=10, image_dim=8, embed_dim=dim, **settings)
    return {
        "original": partial(LOOPS[system], **settings),
        "ours": lambda images, captions, lengths: model.similarity(images, captions),
    }


def step(compare: Compare, sets: Sets) -> Step:
    """Return S and the gradients of images and captions, for a random gradient of S."""
    images, captions = (items.detach().requires_grad_() for items in (sets.images, sets.captions))
    S = compare(images, captions, sets.lengths)
    S.backward(torch.randn(S.shape, generator=torch.Generator().manual_seed(1), dtype=S.dtype))
    return S.detach(), images.grad, captions.grad


@torch.inference_mode()
def evaluate(compare: Compare, sets: Sets, sharded: bool) -> Tensor:
    return in_shards(compare, *sets) if sharded else compare(*sets)


def training_section(row: str, dim: int, images: int, captions: int, repeats: int) -> dict[str, float]:
    """Return seconds of a forward and a backward pass."""
    compare = implementations(row, dim)
    check_float64(row, compare, Sets.random(min(images, 8), min(captions, 8), dim, torch.float64))
    sets = Sets.random(images, captions, dim)
    (expected_S, *expected), (S, *gradients) = (step(compare[name], sets) for name in ("original", "ours"))
    check_values(row, S, expected_S)
    if ROWS[row][0] == "scan":
        check_gradients(row, gradients, expected, 1e-3)
    return median_seconds({name: partial(step, function, sets) for name, function in compare.items()}, repeats)


def evaluation_section(row: str, dim: int, images: int, captions: int, repeats: int) -> dict[str, float]:
    sets = Sets.random(images, captions, dim)
    float64 = Sets(sets.images.double(), sets.captions.double(), sets.lengths)
    compare = implementations(row, dim)
    calls = {
        "original": partial(evaluate, compare["original"], float64, sharded=True),
        "in float32": partial(evaluate, compare["original"], sets, sharded=True),
        "ours": partial(evaluate, compare["ours"], sets, sharded=False),
    }
    S = calls["ours"]()
    for name in ("original", "in float32"):
        check_values(row, S, calls[name]())
    return median_seconds(calls, repeats)


def check_float64(row: str, compare: dict[str, Compare], sets: Sets) -> None:
    """Check values and gradients in float64, where rounding does not move a weight across BFAN's threshold."""
    (expected_S, *expected), (S, *gradients) = (step(compare[name], sets) for name in ("original", "ours"))
    require((S - expected_S).abs().max().item() <= 1e-9, f"{row}: values differ in float64")
    check_gradients(row, gradients, expected, 1e-6)


def check_values(row: str, S: Tensor, expected: Tensor) -> None:
    """Check values in float32. BFAN's gate is a step function: rounding can flip it and change a few entries."""
    difference = (S - expected).abs()
    if ROWS[row][0] == "scan":
        require(difference.max().item() <= 1e-5, f"{row}: values differ by {difference.max():.1e}")
    else:
        share = (difference <= 1e-4).double().mean().item()
        require(share >= 0.999, f"{row}: only {100 * share:.2f} % of the values agree")


def check_gradients(row: str, gradients: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for items, ours, original in zip(("images", "captions"), gradients, expected, strict=True):
        error = ((ours - original).norm() / original.norm()).item()
        require(error <= tolerance, f"{row}: gradients of {items} differ by {error:.1e} of their norm")


def require(condition: bool, message: str) -> None:
    """A ratio of times is only meaningful if both compute the same; NaN fails every comparison."""
    if not condition:
        raise RuntimeError(message)


def step_megabytes(row: str, name: str, dim: int, images: int, captions: int, threads: int) -> float:
    """Return the peak memory of a training step in this process, above the sets."""
    torch.set_num_threads(threads)
    compare = implementations(row, dim)[name]
    step(compare, Sets.random(2, 2, dim))  # one-time allocations of libraries do not count
    sets = Sets.random(images, captions, dim)
    return max(0.0, peak_megabytes(partial(step, compare, sets)) - sets.megabytes())


def step_megabytes_in_child(*arguments: str | int) -> float:
    """Return the same for a new process, which measures itself: ru_maxrss of a child starts at its parent's."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(step_megabytes, *arguments, torch.get_num_threads()).result()


def speed_lines(options: argparse.Namespace) -> list[str]:
    (images, evaluation_images), (captions, evaluation_captions) = options.images, options.captions
    lines = [
        f"Training step: forward and backward of {images} images x {captions} captions. Evaluation: "
        f"{evaluation_images} images x {evaluation_captions:,} captions, without gradients.",
        "",
        "| system | dim | step: original, s | ours, s | original / ours | evaluation: original, s | in float32, s | "
        "ours, s | original / ours | in float32 / ours | target: step, evaluation, in float32 |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for dim in options.dims:
        for row in options.rows:
            training = training_section(row, dim, images, captions, options.repeats)
            evaluation = evaluation_section(row, dim, evaluation_images, evaluation_captions, options.repeats)
            ratios = [seconds["original"] / seconds["ours"] for seconds in (training, evaluation)]
            ratios.append(evaluation["in float32"] / evaluation["ours"])
            cells = [f"{training[name]:.3f}" for name in ("original", "ours")]
            cells += [
                f"**{ratios[0]:.1f}**",
                *(f"{evaluation[name]:.3f}" for name in ("original", "in float32", "ours")),
            ]
            cells += [f"**{ratios[1]:.1f}**", f"{ratios[2]:.1f}", verdict(dim, ratios)]
            lines.append(f"| {row} | {dim} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    return lines


def verdict(dim: int, ratios: list[float]) -> str:
    if dim not in TARGETS:
        return ""
    return f"at least {TARGETS[dim]:.0f}: " + ", ".join("met" if r >= TARGETS[dim] else "missed" for r in ratios)


def memory_lines(options: argparse.Namespace) -> list[str]:
    images, captions = options.images[0], options.captions[0]
    lines = [
        "## Memory",
        "",
        "Growth of the peak memory of a process in a training step, in MB, above the sets and their gradients. Above "
        f"{MAX_SAVED_PRODUCTS / 1e6:.0f} million region-word products (all regions times all words, padded) ours "
        "saves no block for the backward pass and recomputes it.",
        "",
        "| system | dim | images x captions | million products | ours | original | original / ours |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    sizes = [(dim, 1) for dim in options.dims] + [(min(options.dims), times) for times in LARGER]
    for row in options.rows:
        for dim, times in sizes:
            size = times * images, times * captions
            products = REGIONS * size[0] * Sets.random(1, size[1], 1).captions.shape[:2].numel() / 1e6
            ours, cells = step_megabytes_in_child(row, "ours", dim, *size), " | "
            if times == 1:
                original = step_megabytes_in_child(row, "original", dim, *size)
                # Below one megabyte the measurement is noise.
                cells = f"{original:.0f} | {original / max(ours, 1.0):.1f}"
            lines.append(f"| {row} | {dim} | {size[0]} x {size[1]} | {products:.1f} | {ours:.0f} | {cells} |")
            print(lines[-1], flush=True)
    return lines


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    two_sizes = {"type": int, "nargs": 2, "metavar": ("TRAINING", "EVALUATION")}
    parser.add_argument("--dims", type=int, nargs="+", default=list(TARGETS))
    parser.add_argument("--images", default=[128, 200], **two_sizes)
    parser.add_argument("--captions", default=[128, 1000], **two_sizes)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    lines = [
        *page_header(
            "Cross attention",
            "attention",
            f"{os.cpu_count()} cores ({platform.machine()}), float32, {REGIONS} regions, captions of 6 to 22 words; "
            f"medians of {options.repeats} interleaved turns.",
        ),
        *speed_lines(options),
        "",
        *memory_lines(options),
    ]
    # A partial run has its own file and does not replace the full one.
    selected = [*map(str, options.dims), *(row.replace(" ", "-") for row in options.rows)]
    is_full = options.dims == list(TARGETS) and options.rows == list(ROWS)
    write_page(options.out, "attention", lines, "" if is_full else f"_{'_'.join(selected)}")


if __name__ == "__main__":
    main()
