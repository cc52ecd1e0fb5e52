"""Batches of precomputed regions per second, against the original data loaders.

    python benchmarks/data.py       # about five minutes; writes benchmarks/results/data_<date>.md

The original loader of VSE++, SCAN, VSRN and BFAN: all features in memory, copied to a tensor item by item, captions
tokenized by NLTK every time, a batch sorted by length and stacked. Ours: memory-mapped features, captions tokenized
once, a batch gathered in one call. Both read the same random batches of 128 from the same files, which are in the page
cache. Times are medians of interleaved turns.
"""

import statistics
import tempfile
import time
from functools import partial
from itertools import count
from pathlib import Path

import nltk
import numpy as np
import torch
from harness import make_parser, median_seconds, page_header, write_page

from tercet.console import RunProgress
from tercet.data.collate import Collator
from tercet.data.dataset import paired
from tercet.data.formats import open_data
from tercet.data.samplers import pair_batches
from tercet.data.scenes import scenes
from tercet.data.text.tokenized import tokenize_captions
from tercet.data.text.vocabulary import build_vocabulary
from tercet.models import build
from tercet.objectives import objective
from tercet.training.settings import train_settings
from tercet.training.train import Loop, StepWork

BATCH = 128
IMAGES = 1500
TURNS = 9
BATCHES_PER_TURN = 8
SHAPES = ((36, 2048, np.float32), (36, 2048, np.float16), (36, 256, np.float16), (1, 4096, np.float32))


class OriginalDataset(torch.utils.data.Dataset):
    """An item is a copy of its image's regions and its caption, tokenized on access."""

    def __init__(self, folder, vocabulary):
        self.captions = (folder / "train_caps.txt").read_text().splitlines()
        self.images = np.load(folder / "train_ims.npy")
        self.divisor = 1 if len(self.images) == len(self.captions) else 5
        self.word_to_id = vocabulary.word_to_id

    def __len__(self):
        return len(self.captions)

    def __getitem__(self, index):
        image = torch.Tensor(self.images[index // self.divisor])
        words = nltk.tokenize.word_tokenize(str(self.captions[index]).lower(), preserve_line=True)
        caption = [self.word_to_id["<start>"]]
        caption.extend(self.word_to_id.get(word, self.word_to_id["<unk>"]) for word in words)
        caption.append(self.word_to_id["<end>"])
        return image, torch.Tensor(caption), index


def original_collate(items):
    items.sort(key=lambda item: len(item[1]), reverse=True)
    images, captions, indices = zip(*items, strict=True)
    images = torch.stack(images, 0)
    lengths = [len(caption) for caption in captions]
    padded = torch.zeros(len(captions), max(lengths)).long()
    for row, caption in enumerate(captions):
        padded[row, : lengths[row]] = caption[: lengths[row]]
    return images, padded, lengths, indices


def write_folder(folder, regions, dim, dtype):
    texts = scenes("train", IMAGES).texts
    random = np.random.default_rng(0)
    features = random.standard_normal((IMAGES, regions, dim), dtype=np.float32).astype(dtype)
    np.save(folder / "train_ims.npy", features if regions > 1 else features[:, 0])
    (folder / "train_caps.txt").write_text("".join(f"{text}\n" for text in texts))
    (folder / "train_ids.txt").write_text("".join(f"{image}\n" for image in range(IMAGES)))


def loader_section():
    lines = ["| features | original, batches/s | ours, batches/s | ratio |", "|---|---|---|---|"]
    for regions, dim, dtype in SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            write_folder(Path(folder), regions, dim, dtype)
            rates = batches_per_second(Path(folder))
            shape = f"{regions} x {dim} {np.dtype(dtype).name}" if regions > 1 else f"{dim} {np.dtype(dtype).name}"
            ratio = rates["ours"] / rates["original"]
            lines.append(f"| {shape} | {rates['original']:.1f} | {rates['ours']:.1f} | **{ratio:.1f}** |")
            print(lines[-1], flush=True)
    return "\n".join(lines)


def batches_per_second(folder):
    split = open_data(folder).splits["train"]
    vocabulary = build_vocabulary(split.texts)
    collator = Collator(paired("x", split, captions=tokenize_captions(split.texts, vocabulary)))
    dataset = OriginalDataset(folder, vocabulary)
    epochs = [
        pair_batches(collator.data.owners, BATCH, seed=0, epoch=turn)[:BATCHES_PER_TURN] for turn in range(TURNS + 1)
    ]
    orders = [[indices.captions.tolist() for indices in index_batches] for index_batches in epochs]
    epochs_left, orders_left = iter(epochs), iter(orders)

    def original():
        loader = torch.utils.data.DataLoader(dataset, batch_sampler=next(orders_left), collate_fn=original_collate)
        for images, *_ in loader:
            assert len(images) == BATCH

    def ours():
        for batch in collator.run(next(epochs_left)):
            assert len(batch.images) == BATCH

    seconds = median_seconds({"original": original, "ours": ours}, TURNS)
    return {name: BATCHES_PER_TURN / taken for name, taken in seconds.items()}


def proportion_section():
    """Time of a random batch by its size, from a file of 8 GB of which nothing is in memory."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "train_ims.npy"
        rows = 8_000_000_000 // (36 * 2048 * 4)
        header = {"descr": "<f4", "fortran_order": False, "shape": (rows, 36, 2048)}
        with file.open("wb") as stream:
            np.lib.format.write_array_header_1_0(stream, header)
            stream.truncate(stream.tell() + rows * 36 * 2048 * 4)
        (Path(folder) / "train_caps.txt").write_text("a dog\n" * rows * 5)
        (Path(folder) / "train_ids.txt").write_text("".join(f"{row}\n" for row in range(rows)))
        start = time.perf_counter()
        split = open_data(folder).splits["train"]
        open_seconds = time.perf_counter() - start
        sizes = (32, 64, 128, 256)

        def take(size, seeds):
            items = torch.randint(rows, (size,), generator=torch.Generator().manual_seed(next(seeds)))
            split.features.take(items)

        medians = median_seconds({size: partial(take, size, count(size, 1000)) for size in sizes}, 11)
        lines = [
            f"A sparse file of 8 GB ({rows} x 36 x 2048 float32, {5 * rows:,} captions) opens in {open_seconds:.2f} s.",
            "",
            "| batch | time, as a multiple of that of 32 |",
            "|---|---|",
            *(f"| {size} | {medians[size] / medians[32]:.1f} |" for size in sizes),
        ]
        print("\n".join(lines), flush=True)
        return "\n".join(lines)


def waiting_section():
    """Share of the default training loop's time that making batches takes."""
    data = paired("scenes", open_data("scenes").split("train"))
    shares = []
    for seed in range(3):
        settings = train_settings({"seed": seed, "epochs": 2})
        model = build("heads", image_dim=data.images.shape[-1], caption_dim=data.captions.shape[-1])
        hinge = objective("triplet-sh")
        with tempfile.TemporaryDirectory() as folder:
            loop = Loop(
                model, (data, None, None), (hinge, hinge), settings, Path(folder), RunProgress(), torch.device("cpu")
            )
            loop.restore()
            start = time.perf_counter()
            model.train()
            for epoch in range(settings.epochs):
                loop.state.position = 0
                for batches in loop.batches(epoch):
                    loop.train_step(StepWork(hinge, batches))
            loop_seconds = time.perf_counter() - start
        start = time.perf_counter()
        for epoch in range(settings.epochs):
            index_batches = pair_batches(data.owners, settings.batch_size, seed=seed, epoch=epoch)
            for _ in Collator(data).run(index_batches):
                pass
        shares.append((time.perf_counter() - start) / loop_seconds)
    line = (
        f"On the default of `tercet compare` batches take {100 * statistics.median(shares):.1f} % of the loop's time."
    )
    print(line, flush=True)
    return line


def main():
    options = make_parser(__doc__).parse_args()
    sections = [
        *page_header(
            "Data",
            "data",
            f"NLTK {nltk.__version__}; batches of {BATCH} pairs from {IMAGES:,} images, medians of {TURNS} interleaved "
            "turns.",
        ),
        "## Batches",
        loader_section(),
        "\n## Large files",
        proportion_section(),
        "\n## Waiting",
        waiting_section(),
    ]
    write_page(options.out, "data", sections)


if __name__ == "__main__":
    main()
