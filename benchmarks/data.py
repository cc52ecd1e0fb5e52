"""Batches of precomputed regions a second, beside the way of the original loaders.

    python benchmarks/data.py       # about five minutes; writes benchmarks/results/data_<date>.md

The original way, as VSE++, SCAN, VSRN and BFAN have it: all features in memory, item by item copied into a tensor,
captions tokenized by NLTK each time they are seen, a batch sorted by length and stacked. Ours: features memory-mapped,
captions tokenized once, a batch gathered in one call. Both read the same random batches of 128 from the same files,
which lie in the page cache, and take turns in one run; a figure is the median of its turns.
"""

import argparse
import platform
import statistics
import tempfile
import time
from datetime import date
from pathlib import Path

import nltk
import numpy as np
import torch

from tercet.data.batches import Batches
from tercet.data.formats import open_data
from tercet.data.meetings import paired_meetings
from tercet.data.pairs import paired
from tercet.data.scenes import scenes
from tercet.data.text.tokens import tokens_of
from tercet.data.text.vocabulary import build_vocabulary
from tercet.models import build
from tercet.objectives import objective
from tercet.training.config import train_settings
from tercet.training.loop import Loop
from tercet.training.report import Report

BATCH = 128
IMAGES = 1500
TURNS = 9
BATCHES_A_TURN = 8
SHAPES = ((36, 2048, np.float32), (36, 2048, np.float16), (36, 256, np.float16), (1, 4096, np.float32))


class OriginalDataset(torch.utils.data.Dataset):
    """One item: a copy of its image's regions, and its caption tokenized now."""

    def __init__(self, folder, vocabulary):
        self.captions = (folder / "train_caps.txt").read_text().splitlines()
        self.images = np.load(folder / "train_ims.npy")
        self.divisor = 1 if len(self.images) == len(self.captions) else 5
        self.numbers = vocabulary.numbers

    def __len__(self):
        return len(self.captions)

    def __getitem__(self, index):
        image = torch.Tensor(self.images[index // self.divisor])
        words = nltk.tokenize.word_tokenize(str(self.captions[index]).lower(), preserve_line=True)
        caption = [self.numbers["<start>"]]
        caption.extend(self.numbers.get(word, self.numbers["<unk>"]) for word in words)
        caption.append(self.numbers["<end>"])
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
            rates = measure(Path(folder))
            shape = f"{regions} x {dim} {np.dtype(dtype).name}" if regions > 1 else f"{dim} {np.dtype(dtype).name}"
            ratio = rates["ours"] / rates["original"]
            lines.append(f"| {shape} | {rates['original']:.1f} | {rates['ours']:.1f} | **{ratio:.1f}** |")
            print(lines[-1], flush=True)
    return "\n".join(lines)


def measure(folder):
    split = open_data(folder).splits["train"]
    vocabulary = build_vocabulary(split.texts)
    batches = Batches(paired("x", split, captions=tokens_of(split.texts, vocabulary)))
    dataset = OriginalDataset(folder, vocabulary)
    times = {"original": [], "ours": []}
    for turn in range(TURNS + 1):
        meetings = paired_meetings(batches.data.owners, BATCH, seed=0, epoch=turn)[:BATCHES_A_TURN]
        order = [meeting.captions.tolist() for meeting in meetings]
        contestants = {
            "original": torch.utils.data.DataLoader(dataset, batch_sampler=order, collate_fn=original_collate),
            "ours": batches.run(meetings),
        }
        for name, contestant in contestants.items():
            start = time.perf_counter()
            for batch in contestant:
                images = batch[0] if name == "original" else batch.images
                assert len(images) == BATCH
            if turn:  # the first warms up
                times[name].append(time.perf_counter() - start)
    return {name: BATCHES_A_TURN / statistics.median(taken) for name, taken in times.items()}


def proportion_section():
    """A file of 8 GB of which nothing is in memory: what a random batch costs by its size."""
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
        opened = time.perf_counter() - start
        sizes = (32, 64, 128, 256)
        taken = {size: [] for size in sizes}
        for turn in range(12):
            for size in sizes:
                items = torch.randint(rows, (size,), generator=torch.Generator().manual_seed(turn * 1000 + size))
                start = time.perf_counter()
                split.features.take(items)
                taken[size].append(time.perf_counter() - start)
        medians = {size: statistics.median(times[2:]) for size, times in taken.items()}
        lines = [
            f"A sparse file of 8 GB ({rows} x 36 x 2048 float32, {5 * rows:,} captions) opens in {opened:.2f} s.",
            "",
            "| batch | time, as a multiple of that of 32 |",
            "|---|---|",
            *(f"| {size} | {medians[size] / medians[32]:.1f} |" for size in sizes),
        ]
        print("\n".join(lines), flush=True)
        return "\n".join(lines)


def waiting_section():
    """Share of the default training loop that is spent waiting for batches."""
    data = paired("scenes", open_data("scenes").split("train"))
    shares = []
    for seed in range(3):
        settings = train_settings({"seed": seed, "epochs": 2})
        model = build("heads", image_dim=data.images.shape[-1], caption_dim=data.captions.shape[-1])
        hinge = objective("triplet-sh")
        with tempfile.TemporaryDirectory() as folder:
            loop = Loop(model, data, (hinge, hinge), settings, Path(folder), Report(), torch.device("cpu"))
            loop.restore()
            start = time.perf_counter()
            for _ in loop.epochs():
                loop.place.position = 0
            whole = time.perf_counter() - start
        start = time.perf_counter()
        for epoch in range(settings.epochs):
            meetings = paired_meetings(data.owners, settings.batch_size, seed=seed, epoch=epoch)
            for _ in Batches(data).run(meetings):
                pass
        shares.append((time.perf_counter() - start) / whole)
    line = (
        f"On the default of `tercet compare` batches take {100 * statistics.median(shares):.1f} % of the loop's time."
    )
    print(line, flush=True)
    return line


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    header = (
        f"# Data, {date.today()}\n\n`python benchmarks/data.py`, {torch.get_num_threads()} threads, torch "
        f"{torch.__version__}, NLTK {nltk.__version__}, Python {platform.python_version()}; batches of {BATCH} pairs "
        f"from {IMAGES:,} images, medians of {TURNS} interleaved turns.\n"
    )
    sections = [
        header,
        "## Batches",
        loader_section(),
        "\n## Large files",
        proportion_section(),
        "\n## Waiting",
        waiting_section(),
    ]
    given.out.mkdir(exist_ok=True)
    (given.out / f"data_{date.today()}.md").write_text("\n".join(sections) + "\n")


if __name__ == "__main__":
    main()
