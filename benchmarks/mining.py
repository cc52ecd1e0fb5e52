"""Mining over a whole training set beside faiss's exact search, on the size of Flickr30k; that of COCO extrapolated.

    python benchmarks/mining.py                                        # about five minutes
    python benchmarks/mining.py --images 2000 --captions 10000 --dim 64     # seconds, and the lists are compared

Random unit vectors. Both find the top captions of images and the top images of captions. A turn of ours takes a block
of images against all captions, which serves both directions; a turn of faiss (IndexFlatIP) searches the captions of
the same images, and the images of as large a share of the captions. They take turns in one run. The whole is
extrapolated: our first block, in which every caption's list is still empty, counts once, and the median of the others
for the rest. Memory is the peak of the process above the vectors, with the lists of all captions.
"""

import argparse
import platform
import statistics
import time
from datetime import date
from pathlib import Path

import faiss
import torch

from objectives import peak_megabytes
from tercet.mining.best import Best
from tercet.mining.mine import COLUMNS
from tercet.similarity import compared_by_products

ROWS = 1024  # images of a block
COCO = (113_287, 566_747)


def unit(items: int, dim: int, seed: int) -> torch.Tensor:
    found = torch.empty(items, dim).normal_(generator=torch.Generator().manual_seed(seed))
    return found.div_(found.norm(dim=1, keepdim=True))


class Ours:
    """What `tercet mine` does with a block of images, guards aside."""

    def __init__(self, images: torch.Tensor, captions: torch.Tensor, top: tuple[int, int]) -> None:
        self.compared, self.captions, self.top = compared_by_products(images, captions), len(captions), top
        self.of_captions = Best(len(captions), top[1])

    def block(self, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        of_images = Best(rows.stop - rows.start, self.top[0])
        for left in range(0, self.captions, COLUMNS):
            columns = slice(left, min(left + COLUMNS, self.captions))
            block = self.compared.block(rows, columns)
            of_images.update(block, slice(0, rows.stop - rows.start), left, images=True)
            self.of_captions.update(block, columns, rows.start, images=False)
        return of_images.result()


def timed(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def agree(found: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    """By similarity: the order inside a tie is nobody's."""
    if not torch.allclose(found, expected, atol=1e-5):
        raise RuntimeError(f"{what} differ from faiss's by {(found - expected).abs().max():.1e}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=29_000)
    parser.add_argument("--captions", type=int, default=145_000)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--top", type=int, nargs=2, default=[300, 60], metavar=("CAPTIONS", "IMAGES"))
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    faiss.omp_set_num_threads(given.threads)
    images, captions = unit(given.images, given.dim, 0), unit(given.captions, given.dim, 1)
    indices = []
    for side in (captions, images):
        index = faiss.IndexFlatIP(given.dim)
        index.add(side.numpy())
        indices.append(index)
    rows = min(ROWS, given.images)
    share = round(
        rows * given.captions / given.images
    )  # captions that are to all captions what a block is to all images
    blocks = -(-given.images // rows)
    turns = min(given.turns, blocks)
    ours = Ours(images, captions, tuple(given.top))
    seconds: dict[str, list[float]] = {"ours": [], "i2t": [], "t2i": []}
    for turn in range(turns):
        block = slice(turn * rows, min((turn + 1) * rows, given.images))
        others = slice(turn * share, min((turn + 1) * share, given.captions))
        seconds["ours"].append(timed(lambda block=block: ours.block(block)))
        seconds["i2t"].append(timed(lambda block=block: indices[0].search(images[block].numpy(), given.top[0])))
        seconds["t2i"].append(timed(lambda others=others: indices[1].search(captions[others].numpy(), given.top[1])))
        print({who: f"{times[-1]:.2f} s" for who, times in seconds.items()}, flush=True)
    few = slice(0, min(64, given.images))
    found, expected = ours.block(few), indices[0].search(images[few].numpy(), given.top[0])
    agree(found[1], torch.from_numpy(expected[0]), "captions of images")
    if turns == blocks:  # then the lists of captions are whole
        whole = Ours(images, captions, tuple(given.top))
        for top in range(0, given.images, rows):
            whole.block(slice(top, min(top + rows, given.images)))
        agree(
            whole.of_captions.result()[1],
            torch.from_numpy(indices[1].search(captions.numpy(), given.top[1])[0]),
            "images",
        )
    first, rest = seconds["ours"][0], statistics.median(seconds["ours"][1:] or seconds["ours"])
    steady = {who: statistics.median(times) for who, times in seconds.items()} | {"ours": rest}
    total_ours = first + (blocks - 1) * rest
    total_faiss = blocks * (steady["i2t"] + steady["t2i"])
    ratio, pairs = total_faiss / total_ours, given.images * given.captions
    del ours, indices
    memory = peak_megabytes(lambda: Ours(images, captions, tuple(given.top)).block(slice(0, rows)), 0, 0)
    lists = 8 * 2 * given.captions * given.top[1] / 2**20
    larger = COCO[0] * COCO[1] / (given.images * given.captions)
    lines = [
        f"# Mining, {date.today()}",
        "",
        f"`python benchmarks/mining.py`, {given.threads} threads, torch {torch.__version__}, faiss "
        f"{faiss.__version__}, Python {platform.python_version()}, float32: {given.images:,} images x "
        f"{given.captions:,} captions, dim {given.dim}, top {given.top[0]} captions and top {given.top[1]} images.",
        "",
        f"A turn is {rows:,} images against all captions (ours, both directions), and for faiss those images and "
        f"{share:,} captions against all images; {turns} interleaved turns of the {blocks} that the whole set takes.",
        "",
        "| | ours | faiss i2t | faiss t2i | faiss both | faiss / ours |",
        "|---|---:|---:|---:|---:|---:|",
        f"| a turn, median, s | {rest:.2f} (the first {first:.2f}) | {steady['i2t']:.2f} | {steady['t2i']:.2f} | "
        f"{steady['i2t'] + steady['t2i']:.2f} | {(steady['i2t'] + steady['t2i']) / rest:.2f} |",
        f"| the whole set, extrapolated, s | {total_ours:.0f} |  |  | {total_faiss:.0f} | **{ratio:.2f}** |",
        "",
        f"Million pairs a second, each in both directions: ours {pairs / total_ours / 1e6:.1f}, "
        f"faiss {pairs / total_faiss / 1e6:.1f}. Target, at least faiss's: "
        f"{'met' if ratio >= 1 else 'missed'}.",
        "",
        f"Memory above the vectors: {memory:.0f} MB, of which the lists of all captions take {lists:.0f}; S would be "
        f"{4 * given.images * given.captions / 2**20:,.0f}.",
        "",
        f"COCO ({COCO[0]:,} x {COCO[1]:,}) is {larger:.1f} times as many pairs: by extrapolation "
        f"{total_ours * larger / 60:.0f} minutes on as many threads, and "
        f"{8 * 2 * COCO[1] * given.top[1] / 2**20:,.0f} MB for the lists of captions.",
        "",
    ]
    print("\n".join(lines))
    given.out.mkdir(exist_ok=True)
    (given.out / f"mining_{date.today()}.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
