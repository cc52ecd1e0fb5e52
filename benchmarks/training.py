"""A full training step beside a straightforward loop in the originals' style, in one run.

    python benchmarks/training.py     # about five minutes; writes benchmarks/results/training_<date>.md

The straightforward loop: a Dataset that hands out one pair at a time, DataLoader's own collating (sorted by length and
padded for words, as the VSE++ lineage has it), autograd of the hinge of the hardest negative on S = x y^T with a masked
diagonal, clipping, torch.optim.Adam as it comes, the loss read at every step. Ours: the loop that `tercet train` runs,
with everything it does besides (counting samples, watching, reporting). Captions are tokenized beforehand for both,
which the originals do anew for every item. Contestants take turns; a figure is the median of its turns.
"""

import argparse
import platform
import statistics
import tempfile
import time
from datetime import date
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.data import DataLoader, Dataset

import tercet
from tercet.data.pairs import PairedData
from tercet.data.rows import Rows
from tercet.data.scenes import scenes
from tercet.data.text.tokens import tokens_of
from tercet.data.text.vocabulary import build_vocabulary
from tercet.models import build
from tercet.training.config import train_settings
from tercet.training.loop import Loop
from tercet.training.report import Report

IMAGES, BATCH = 2000, 128


def pairs(system):
    """Features as wide as Flickr8k's; captions of scenes."""
    rng = np.random.default_rng(0)
    made = scenes("train", IMAGES)
    images = Rows((rng.standard_normal((IMAGES, 1280), dtype=np.float32),), "images")
    owners = torch.from_numpy(made.owners)
    if system == "heads":
        captions = Rows((rng.standard_normal((len(owners), 384), dtype=np.float32),), "captions")
        return PairedData("made", images, captions, owners, made.texts), {"image_dim": 1280, "caption_dim": 384}
    vocabulary = build_vocabulary(made.texts, 1)
    data = PairedData("made", images, tokens_of(made.texts, vocabulary), owners, made.texts)
    return data, {"image_dim": 1280, "words": len(vocabulary)}


class OnePairAtATime(Dataset):
    def __init__(self, data):
        self.images, self.owners = data.images.raw(np.arange(IMAGES)), data.owners.tolist()
        features = isinstance(data.captions, Rows)
        self.captions = data.captions.raw(np.arange(len(self.owners))) if features else None
        self.tokens = (
            None
            if features
            else [
                data.captions.flat[a:b].tolist()
                for a, b in zip(data.captions.starts[:-1], data.captions.starts[1:], strict=True)
            ]
        )

    def __len__(self):
        return len(self.owners)

    def __getitem__(self, index):
        image = torch.Tensor(self.images[self.owners[index]])
        return image, torch.Tensor(self.captions[index] if self.tokens is None else self.tokens[index])


def collate(items):
    items.sort(key=lambda pair: len(pair[1]), reverse=True)
    images, captions = zip(*items, strict=True)
    lengths = [len(caption) for caption in captions]
    padded = torch.zeros(len(captions), max(lengths)).long()
    for row, caption in enumerate(captions):
        padded[row, : lengths[row]] = caption[: lengths[row]]
    return torch.stack(images, 0), padded, lengths


def l2norm(x):
    return x / x.pow(2).sum(dim=1, keepdim=True).sqrt()


def hinge(S):
    diagonal = S.diag().view(-1, 1)
    cost_s = (0.2 + S - diagonal.expand_as(S)).clamp(min=0)
    cost_im = (0.2 + S - diagonal.t().expand_as(S)).clamp(min=0)
    mask = torch.eye(S.size(0)) > 0.5
    return cost_s.masked_fill(mask, 0).max(1)[0].sum() + cost_im.masked_fill(mask, 0).max(0)[0].sum()


def straightforward(system, data, model):
    """Endless steps."""
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
    loader = DataLoader(
        OnePairAtATime(data), BATCH, shuffle=True, drop_last=True, collate_fn=collate if system == "vsepp" else None
    )
    while True:
        for images, captions, *lengths in loader:
            if system == "heads":
                x, y = l2norm(model.image_head.linear(images)), l2norm(model.caption_head.linear(captions))
            else:
                x = l2norm(model.image_head(images))
                packed = pack_padded_sequence(model.words.embedding(captions), lengths[0], batch_first=True)
                states, real = pad_packed_sequence(model.words.gru(packed)[0], batch_first=True)
                index = (real - 1).view(-1, 1, 1).expand(-1, 1, states.size(2))
                y = l2norm(torch.gather(states, 1, index).squeeze(1))
            loss = hinge(x.mm(y.t()))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            optimizer.step()
            loss.item()
            yield


def ours(system, data, model, folder, counting):
    """Endless steps; `counting` adds up the seconds that went into counting samples."""
    settings = train_settings({"model": system, "epochs": 10**6, "batch_size": BATCH, "objective": "triplet-sh"})
    objective = tercet.objective("triplet-sh")
    folder.mkdir()
    loop = Loop(model, data, (objective, objective), settings, folder, Report(), torch.device("cpu"))
    loop.restore()
    model.train()
    count = loop._count

    def timed(*given):
        start = time.perf_counter()
        count(*given)
        counting.append(time.perf_counter() - start)

    loop._count = timed
    epoch = 0
    while True:
        loop.place.position = 0
        yield from loop._steps(epoch)
        epoch += 1


def race(contestants, steps, turns):
    """Median seconds of so many steps, by name."""
    times = {name: [] for name in contestants}
    for turn in range(turns + 1):
        for name in list(contestants)[:: -1 if turn % 2 else 1]:
            start = time.perf_counter()
            for _ in range(steps):
                next(contestants[name])
            if turn:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken) for name, taken in times.items()}


def section(system, steps, turns, root):
    data, sizes = pairs(system)
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(build(system, joint_dim=512, **sizes))
    counting = []
    found = race(
        {
            "straightforward": straightforward(system, data, models[0]),
            "tercet": ours(system, data, models[1], root / system, counting),
        },
        steps,
        turns,
    )
    rate = {name: steps * BATCH / seconds for name, seconds in found.items()}
    share = 100 * statistics.median(counting) / 20 / (found["tercet"] / steps)
    return (
        f"| {system} | {rate['straightforward']:.0f} | {rate['tercet']:.0f} | "
        f"**{rate['tercet'] / rate['straightforward']:.2f}** | {share:.1f} % |"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--turns", type=int, default=9)
    given = parser.parse_args()
    lines = [
        f"# Training, {date.today()}",
        "",
        f"`python benchmarks/training.py`, {torch.get_num_threads()} threads, torch {torch.__version__}, Python "
        f"{platform.python_version()}, float32; batches of {BATCH}, joint space 512, medians of interleaved turns.",
        "",
        "| system | straightforward, pairs/s | Tercet, pairs/s | ratio | counting samples, share of time |",
        "|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as root:
        for system, steps in (("heads", 60), ("vsepp", 20)):
            lines.append(section(system, steps, given.turns, Path(root)))
            print(lines[-1], flush=True)
    given.out.mkdir(exist_ok=True)
    (given.out / f"training_{date.today()}.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
