"""All metrics both ways beside the bare product and the original ranking, on the shape of COCO-5K.

    python benchmarks/evaluation.py                 # about four minutes; writes benchmarks/results/evaluation_<date>.md
    python benchmarks/evaluation.py --images 1000   # a fifth of the size, each side

Contestants take turns in one run, forwards and backwards; a figure is the median of its turns. The original ranking
sorts all candidates of every query in float64, as VSE++ and its descendants do; it is timed on some queries and scaled.
Memory is the peak of the process above what it held before.
"""

import argparse
import platform
import statistics
from datetime import date
from pathlib import Path

import numpy as np
import torch

import tercet
from objectives import peak_megabytes, take_turns
from tercet.evaluation import Positives, rank_positives, tiles_of_embeddings
from tercet.evaluation.tiles import ENTRIES

DIM, CAPTIONS = 1024, 5
# How far captions lie from their images: about where trained models are, and where they begin.
NOISE = {"trained": 9.0, "untrained": 1e6}
SAMPLE = 40


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    lines = [
        f"# Evaluation, {date.today()}",
        "",
        f"`python benchmarks/evaluation.py`, {torch.get_num_threads()} threads, torch {torch.__version__}, "
        f"Python {platform.python_version()}, float32, {given.images:,} images x {CAPTIONS * given.images:,} captions, "
        f"dim {DIM}; medians of {given.turns} interleaved turns.",
        "",
        "- **product**: S = X Y^T, whole, and in the tiles that the evaluation uses; nothing else.",
        "- **ours**: `tercet.evaluate_embeddings(x, y, owners)`, every metric, both directions.",
        f"- **original**: a full argsort a query in float64, both directions; {SAMPLE} images and captions, scaled.",
        "- **memory**: peak above the embeddings, in MB; S alone would be "
        f"{4 * CAPTIONS * given.images**2 / 2**20:.0f}.",
        "",
        "| model | R@1 i2t, t2i | product whole, s | in tiles, s | ours, s | ours / whole | ours / tiles | "
        "original, s | original / ours | memory |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
        *(row(name, given.images, given.turns) for name in NOISE),
        "",
    ]
    print("\n".join(lines))
    given.out.mkdir(exist_ok=True)
    (given.out / f"evaluation_{date.today()}.md").write_text("\n".join(lines))


def row(name, images, turns):
    x, y, owners = embeddings(images, NOISE[name])
    sample = torch.arange(0, images, max(1, images // SAMPLE))[:SAMPLE]
    doubles = x.double().numpy(), y.double().numpy()  # theirs are float64 from the start: not part of what is timed
    check(x, y, owners, original_ranks(*doubles, sample), sample)
    seconds = take_turns(
        {
            "whole": lambda: x @ y.T,
            "tiles": lambda: product_in_tiles(x, y),
            "ours": lambda: tercet.evaluate_embeddings(x, y, owners),
            "original": lambda: original_ranks(*doubles, sample),
        },
        turns,
    )
    ours, original = seconds["ours"], seconds["original"] * images / len(sample)
    found = tercet.evaluate_embeddings(x, y, owners)
    memory = statistics.median(peak_megabytes(lambda: tercet.evaluate_embeddings(x, y, owners), 0, 0) for _ in range(3))
    return (
        f"| {name} | {found['i2t_r1']:.1f}, {found['t2i_r1']:.1f} | {seconds['whole']:.2f} | {seconds['tiles']:.2f} | "
        f"{ours:.2f} | **{ours / seconds['whole']:.2f}** | {ours / seconds['tiles']:.2f} | {original:.0f} | "
        f"**{original / ours:.0f}** | {memory:.0f} |"
    )


def embeddings(images, noise):
    generator = torch.Generator().manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(images, DIM, generator=generator), dim=1)
    owners = torch.arange(images).repeat_interleave(CAPTIONS)
    y = x[owners] + noise * torch.randn(len(owners), DIM, generator=generator) / DIM**0.5
    return x, torch.nn.functional.normalize(y, dim=1), owners


def product_in_tiles(x, y):
    parts = max(1, round((len(x) * len(y) / ENTRIES) ** 0.5))
    for a in x.tensor_split(parts):
        for b in y.tensor_split(parts):
            a @ b.T


def original_ranks(images, captions, sample):
    """0-based ranks of the best caption of each sampled image, and of the image for each of its captions."""
    i2t, t2i = [], []
    for k in sample.tolist():
        own = range(CAPTIONS * k, CAPTIONS * (k + 1))
        order = np.argsort(images[k : k + 1] @ captions.T)[0][::-1]
        i2t.append(min(np.where(order == j)[0][0] for j in own))
        for row in captions[own.start : own.stop] @ images.T:
            t2i.append(np.where(np.argsort(row)[::-1] == k)[0][0])
    return i2t, t2i


def check(x, y, owners, original, sample):
    """What is timed is the same: ranks differ at the most where float32 and float64 do."""
    ranks = rank_positives(tiles_of_embeddings(x, y), Positives.of_owners(owners))
    i2t, t2i = original
    best = np.minimum.reduceat(ranks.i2t.rank, np.arange(0, len(owners), CAPTIONS))[sample] - 1
    ours = ranks.t2i.rank.reshape(-1, CAPTIONS)[sample].ravel() - 1
    assert np.abs(best - i2t).max() <= 1
    assert np.abs(ours - t2i).max() <= 1


if __name__ == "__main__":
    main()
