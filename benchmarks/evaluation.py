"""All metrics of both directions against the matrix product alone and the original ranking, at the size of COCO-5K.

    python benchmarks/evaluation.py                 # about four minutes; writes benchmarks/results/evaluation_<date>.md
    python benchmarks/evaluation.py --images 1000   # a fifth of the images and captions

Times are medians of interleaved turns. The original ranking sorts all candidates of every query in float64, as VSE++
and its successors do; it is timed on a sample of queries and scaled. Memory is the growth of the process's peak.
"""

import statistics

import numpy as np
import torch
from harness import make_parser, median_seconds, page_header, peak_megabytes, write_page

import tercet
from tercet.evaluation import Positives, rank_positives, tiles_of_embeddings
from tercet.evaluation.blocked_similarity import TILE_ENTRIES

DIM, CAPTIONS = 1024, 5
# Distance of captions from their images: about that of trained and of untrained models.
NOISE = {"trained": 9.0, "untrained": 1e6}
SAMPLE = 40


def main():
    parser = make_parser(__doc__)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    lines = [
        *page_header(
            "Evaluation",
            "evaluation",
            f"float32, {options.images:,} images x {CAPTIONS * options.images:,} captions, dim {DIM}; medians of "
            f"{options.turns} interleaved turns.",
        ),
        "- **product**: only S = X Y^T, whole and in the tiles of the evaluation.",
        "- **ours**: `tercet.evaluate_embeddings(x, y, owners)`, every metric, both directions.",
        f"- **original**: a full argsort per query in float64, both directions; {SAMPLE} images and captions, scaled.",
        "- **memory**: peak above the embeddings, in MB; S alone would be "
        f"{4 * CAPTIONS * options.images**2 / 2**20:.0f}.",
        "",
        "| model | R@1 i2t, t2i | product whole, s | in tiles, s | ours, s | ours / whole | ours / tiles | "
        "original, s | original / ours | memory |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
        *(row(name, options.images, options.turns) for name in NOISE),
        "",
    ]
    print("\n".join(lines))
    write_page(options.out, "evaluation", lines)


def row(name, images, turns):
    x, y, owners = embeddings(images, NOISE[name])
    sample = torch.arange(0, images, max(1, images // SAMPLE))[:SAMPLE]
    doubles = x.double().numpy(), y.double().numpy()  # theirs are float64 from the start: the conversion is not timed
    check(x, y, owners, original_ranks(*doubles, sample), sample)
    seconds = median_seconds(
        {
            "whole": lambda: x @ y.T,
            "tiles": lambda: product_in_tiles(x, y),
            "ours": lambda: tercet.evaluate_embeddings(x, y, owners),
            "original": lambda: original_ranks(*doubles, sample),
        },
        turns,
    )
    ours, original = seconds["ours"], seconds["original"] * images / len(sample)
    metrics = tercet.evaluate_embeddings(x, y, owners)
    memory = statistics.median(peak_megabytes(lambda: tercet.evaluate_embeddings(x, y, owners)) for _ in range(3))
    return (
        f"| {name} | {metrics['i2t_r1']:.1f}, {metrics['t2i_r1']:.1f} | {seconds['whole']:.2f} | "
        f"{seconds['tiles']:.2f} | {ours:.2f} | **{ours / seconds['whole']:.2f}** | "
        f"{ours / seconds['tiles']:.2f} | {original:.0f} | **{original / ours:.0f}** | {memory:.0f} |"
    )


def embeddings(images, noise):
    generator = torch.Generator().manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(images, DIM, generator=generator), dim=1)
    owners = torch.arange(images).repeat_interleave(CAPTIONS)
    y = x[owners] + noise * torch.randn(len(owners), DIM, generator=generator) / DIM**0.5
    return x, torch.nn.functional.normalize(y, dim=1), owners


def product_in_tiles(x, y):
    tiles_per_axis = max(1, round((len(x) * len(y) / TILE_ENTRIES) ** 0.5))
    for a in x.tensor_split(tiles_per_axis):
        for b in y.tensor_split(tiles_per_axis):
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
    """Check that both compute the same: ranks may differ by 1 because of float32 and float64."""
    ranks = rank_positives(tiles_of_embeddings(x, y), Positives.of_owners(owners))
    i2t, t2i = original
    best = np.minimum.reduceat(ranks.i2t.rank, np.arange(0, len(owners), CAPTIONS))[sample] - 1
    ours = ranks.t2i.rank.reshape(-1, CAPTIONS)[sample].ravel() - 1
    assert np.abs(best - i2t).max() <= 1
    assert np.abs(ours - t2i).max() <= 1


if __name__ == "__main__":
    main()
