"""Prefetching of batches: the threads of `data/prefetch.py` against torch's DataLoader with worker processes.

python benchmarks/prefetch.py --images folder/of/photos

Two kinds of batches, collated by the same `Collator`: photos (decoded, resized and cropped to 224 pixels, 32 per batch)
and regions (36 x 2048 per image, memory-mapped, 128 per batch). In one turn every way yields the same batches to a
consumer that only touches them.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from harness import make_parser, median_seconds, page_header, write_page
from torch.utils.data import DataLoader, Dataset

from tercet.data.collate import Collator
from tercet.data.dataset import PairedData
from tercet.data.feature_array import FeatureArray
from tercet.data.image_io import ImageFile, ImageFiles
from tercet.data.samplers import BatchIndices, pair_batches
from tercet.data.text.tokenized import tokenize_captions
from tercet.data.text.vocabulary import build_vocabulary
from tercet.data.transforms import Pixels, TransformSettings
from tercet.types import Batch

WORKERS, TURNS = 2, 5


class _ByIndices(Dataset):
    """A dataset whose items are whole batches: the sampler yields their indices."""

    def __init__(self, collator: Collator) -> None:
        self.collator = collator

    def __getitem__(self, indices: BatchIndices) -> Batch:
        return self.collator.make(indices)


def consume(batches: Iterator[Batch]) -> None:
    for batch in batches:
        batch.images.flatten()[0].item()


def by_data_loader(collator: Collator, batches: list[BatchIndices]) -> None:
    loader = DataLoader(_ByIndices(collator), sampler=batches, batch_size=None, num_workers=WORKERS)
    consume(iter(loader))


def photos(folder: Path) -> tuple[Collator, int]:
    files = sorted(folder.glob("*.jpg"))[:320]
    texts = [f"photo {number}" for number in range(len(files))]
    pixels = Pixels(ImageFiles([ImageFile(file) for file in files]), TransformSettings(224, 256))
    return _collator(pixels, texts, crop="half"), 32


def regions(folder: Path) -> tuple[Collator, int]:
    rows = np.lib.format.open_memmap(folder / "rows.npy", mode="w+", dtype=np.float32, shape=(1024, 36, 2048))
    rows[:] = 1.0
    rows.flush()
    texts = [f"image {number}" for number in range(len(rows))]
    return _collator(FeatureArray((np.load(folder / "rows.npy", mmap_mode="r"),), "rows.npy"), texts, crop="none"), 128


def _collator(images, texts: list[str], crop: str) -> Collator:
    captions = tokenize_captions(texts, build_vocabulary(texts))
    return Collator(PairedData("benchmark", images, captions, torch.arange(len(texts)), tuple(texts)), crop=crop)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--images", type=Path, required=True, help="a folder of JPEG photos")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, (collator, size) in {"photos": photos(given.images), "regions": regions(Path(folder))}.items():
            batches = pair_batches(collator.data.owners, size, seed=0, epoch=0)
            seconds = median_seconds(
                {
                    "no prefetching": lambda c=collator, b=batches: consume(c.run(b)),
                    "threads": lambda c=collator, b=batches: consume(c.run(b, workers=WORKERS)),
                    "DataLoader": lambda c=collator, b=batches: by_data_loader(c, b),
                },
                TURNS,
            )
            rows += [
                f"| {name} | {way} | {1000 * time / len(batches):.1f} | {time / seconds['threads']:.2f} |"
                for way, time in seconds.items()
            ]
    table = ["| batches | way | ms per batch | against threads |", "|---|---|---|---|", *rows]
    print("\n".join(table))
    header = page_header("Prefetching", "prefetch", f"{WORKERS} workers, medians of {TURNS} interleaved turns")
    write_page(given.out, "prefetch", [*header, *table])


if __name__ == "__main__":
    main()
