"""Mining a whole training set against faiss's exact search, at the size of Flickr30k; COCO is extrapolated.

    python benchmarks/mining.py                                        # about five minutes
    python benchmarks/mining.py --images 2000 --captions 10000 --dim 64     # seconds, and the lists are compared

Random unit vectors. Both find the top captions of images and the top images of captions. A turn of ours compares a
block of images with all captions, for both directions; a turn of faiss (IndexFlatIP) searches the captions of the same
images, and the images of the same share of captions. Turns are interleaved. The time of the whole set is extrapolated:
our first block, in which every caption's list is still empty, counts once, and the median of the others for the rest.
Memory is the peak of the process above the vectors, with the lists of all captions.
"""

import statistics
from functools import partial

import faiss
import torch
from harness import make_parser, page_header, peak_megabytes, seconds_of, write_page

from tercet.mining.mine import BLOCK_CAPTIONS
from tercet.mining.topk import RunningTopK
from tercet.similarity import dot_product_scorer

BLOCK_IMAGES = 1024
COCO = (113_287, 566_747)


def unit_vectors(items: int, dim: int, seed: int) -> torch.Tensor:
    vectors = torch.empty(items, dim).normal_(generator=torch.Generator().manual_seed(seed))
    return vectors.div_(vectors.norm(dim=1, keepdim=True))


class Ours:
    """What `tercet mine` does with a block of images, without filters."""

    def __init__(self, images: torch.Tensor, captions: torch.Tensor, top: tuple[int, int]) -> None:
        self.split_scorer, self.captions, self.top = dot_product_scorer(images, captions), len(captions), top
        self.caption_lists = RunningTopK(len(captions), top[1])

    def block(self, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        image_lists = RunningTopK(rows.stop - rows.start, self.top[0])
        for left in range(0, self.captions, BLOCK_CAPTIONS):
            columns = slice(left, min(left + BLOCK_CAPTIONS, self.captions))
            block = self.split_scorer.block(rows, columns)
            image_lists.update(block, slice(0, rows.stop - rows.start), left, images=True)
            self.caption_lists.update(block, columns, rows.start, images=False)
        return image_lists.result()


def check(similarity: torch.Tensor, expected: torch.Tensor, lists: str) -> None:
    """Compare lists by similarity: the order of ties is undefined."""
    if not torch.allclose(similarity, expected, atol=1e-5):
        raise RuntimeError(f"{lists} differ from faiss's by {(similarity - expected).abs().max():.1e}")


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--images", type=int, default=29_000)
    parser.add_argument("--captions", type=int, default=145_000)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--top", type=int, nargs=2, default=[300, 60], metavar=("CAPTIONS", "IMAGES"))
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    faiss.omp_set_num_threads(options.threads)
    images, captions = unit_vectors(options.images, options.dim, 0), unit_vectors(options.captions, options.dim, 1)
    indices = []
    for vectors in (captions, images):
        index = faiss.IndexFlatIP(options.dim)
        index.add(vectors.numpy())
        indices.append(index)
    rows = min(BLOCK_IMAGES, options.images)
    # The same share of captions as a block is of images.
    faiss_captions = round(rows * options.captions / options.images)
    blocks = -(-options.images // rows)
    turns = min(options.turns, blocks)
    ours = Ours(images, captions, tuple(options.top))
    seconds: dict[str, list[float]] = {"ours": [], "i2t": [], "t2i": []}
    for turn in range(turns):
        block = slice(turn * rows, min((turn + 1) * rows, options.images))
        columns = slice(turn * faiss_captions, min((turn + 1) * faiss_captions, options.captions))
        seconds["ours"].append(seconds_of(partial(ours.block, block)))
        seconds["i2t"].append(seconds_of(partial(indices[0].search, images[block].numpy(), options.top[0])))
        seconds["t2i"].append(seconds_of(partial(indices[1].search, captions[columns].numpy(), options.top[1])))
        print({name: f"{times[-1]:.2f} s" for name, times in seconds.items()}, flush=True)
    sample = slice(0, min(64, options.images))
    (_, similarity), (expected, _) = ours.block(sample), indices[0].search(images[sample].numpy(), options.top[0])
    check(similarity, torch.from_numpy(expected), "lists of images")
    if turns == blocks:  # small enough to check all lists of captions
        complete = Ours(images, captions, tuple(options.top))
        for top in range(0, options.images, rows):
            complete.block(slice(top, min(top + rows, options.images)))
        expected, _ = indices[1].search(captions.numpy(), options.top[1])
        check(complete.caption_lists.result()[1], torch.from_numpy(expected), "lists of captions")
    first, rest = seconds["ours"][0], statistics.median(seconds["ours"][1:] or seconds["ours"])
    steady = {name: statistics.median(times) for name, times in seconds.items()} | {"ours": rest}
    total_ours = first + (blocks - 1) * rest
    total_faiss = blocks * (steady["i2t"] + steady["t2i"])
    ratio, pairs = total_faiss / total_ours, options.images * options.captions
    del ours, indices
    memory = peak_megabytes(lambda: Ours(images, captions, tuple(options.top)).block(slice(0, rows)))
    lists = 8 * 2 * options.captions * options.top[1] / 2**20
    larger = COCO[0] * COCO[1] / (options.images * options.captions)
    lines = [
        *page_header(
            "Mining",
            "mining",
            f"faiss {faiss.__version__}, float32: {options.images:,} images x {options.captions:,} captions, dim "
            f"{options.dim}, top {options.top[0]} captions and top {options.top[1]} images.",
        ),
        f"A turn is {rows:,} images against all captions (ours, both directions); for faiss, those images and "
        f"{faiss_captions:,} captions against all images. {turns} interleaved turns of the {blocks} of the whole set.",
        "",
        "| | ours | faiss i2t | faiss t2i | faiss both | faiss / ours |",
        "|---|---:|---:|---:|---:|---:|",
        f"| median turn, s | {rest:.2f} (the first {first:.2f}) | {steady['i2t']:.2f} | {steady['t2i']:.2f} | "
        f"{steady['i2t'] + steady['t2i']:.2f} | {(steady['i2t'] + steady['t2i']) / rest:.2f} |",
        f"| the whole set, extrapolated, s | {total_ours:.0f} |  |  | {total_faiss:.0f} | **{ratio:.2f}** |",
        "",
        f"Million pairs per second, each in both directions: ours {pairs / total_ours / 1e6:.1f}, "
        f"faiss {pairs / total_faiss / 1e6:.1f}. Target, at least that of faiss: "
        f"{'met' if ratio >= 1 else 'missed'}.",
        "",
        f"Memory above the vectors: {memory:.0f} MB, of which the lists of all captions take {lists:.0f}; S would be "
        f"{4 * options.images * options.captions / 2**20:,.0f}.",
        "",
        f"COCO ({COCO[0]:,} x {COCO[1]:,}) is {larger:.1f} times as many pairs: by extrapolation "
        f"{total_ours * larger / 60:.0f} minutes with the same number of threads, and "
        f"{8 * 2 * COCO[1] * options.top[1] / 2**20:,.0f} MB for the lists of captions.",
        "",
    ]
    print("\n".join(lines))
    write_page(options.out, "mining", lines)


if __name__ == "__main__":
    main()
