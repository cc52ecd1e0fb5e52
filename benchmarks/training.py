"""A full training step against a straightforward loop in the style of the original programs.

    python benchmarks/training.py     # about five minutes; writes benchmarks/results/training_<date>.md

The straightforward loop: a Dataset that returns one pair at a time, DataLoader's own collate (for words sorted by
length and padded, as in VSE++ and its successors), autograd of the hinge of the hardest negative on S = x y^T with a
masked diagonal, gradient clipping, torch.optim.Adam with defaults, the loss read at every step. Ours: the loop of
`tercet train`, including COCOS counts, health monitoring and progress. Captions are tokenized beforehand for both,
which the originals do for every item. Times are medians of interleaved turns.
"""

import statistics
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from harness import make_parser, median_seconds, page_header, repeat, seconds_of, write_page
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.data import DataLoader, Dataset

import tercet
from tercet.console import RunProgress
from tercet.data.dataset import PairedData
from tercet.data.feature_array import FeatureArray
from tercet.data.scenes import scenes
from tercet.data.text.tokenized import tokenize_captions
from tercet.data.text.vocabulary import build_vocabulary
from tercet.models import build
from tercet.training.settings import train_settings
from tercet.training.train import Loop, StepWork

IMAGES, BATCH = 2000, 128


def make_data(system):
    """Return random features as wide as Flickr8k's with captions of scenes, and the sizes of the model."""
    rng = np.random.default_rng(0)
    split = scenes("train", IMAGES)
    images = FeatureArray((rng.standard_normal((IMAGES, 1280), dtype=np.float32),), "images")
    owners = torch.from_numpy(split.owners)
    if system == "heads":
        captions = FeatureArray((rng.standard_normal((len(owners), 384), dtype=np.float32),), "captions")
        return PairedData("made", images, captions, owners, split.texts), {"image_dim": 1280, "caption_dim": 384}
    vocabulary = build_vocabulary(split.texts, 1)
    data = PairedData("made", images, tokenize_captions(split.texts, vocabulary), owners, split.texts)
    return data, {"image_dim": 1280, "vocab_size": len(vocabulary)}


class PairDataset(Dataset):
    def __init__(self, data):
        self.images, self.owners = data.images.raw(np.arange(IMAGES)), data.owners.tolist()
        features = isinstance(data.captions, FeatureArray)
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
    """Yield after every step, without end."""
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
    loader = DataLoader(
        PairDataset(data), BATCH, shuffle=True, drop_last=True, collate_fn=collate if system == "vsepp" else None
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


def ours(system, data, model, folder, cocos_seconds):
    """Yield after every step, without end; append the seconds of every COCOS count to `cocos_seconds`."""
    settings = train_settings({"model": system, "epochs": 10**6, "batch_size": BATCH, "objective": "triplet-sh"})
    objective = tercet.objective("triplet-sh")
    folder.mkdir()
    loop = Loop(model, (data, None, None), (objective, objective), settings, folder, RunProgress(), torch.device("cpu"))
    loop.restore()
    model.train()
    log_cocos = loop._log_cocos
    loop._log_cocos = lambda *arguments: cocos_seconds.append(seconds_of(partial(log_cocos, *arguments)))
    epoch = 0
    while True:
        loop.state.position = 0
        for batches in loop.batches(epoch):
            yield loop.train_step(StepWork(objective, batches))
        epoch += 1


def median_step_seconds(loops: Mapping[str, Iterator[None]], steps: int, turns: int) -> dict[str, float]:
    """Return the median seconds per step of endless loops; a turn has that many steps."""
    calls = {name: partial(repeat, partial(next, loop), steps) for name, loop in loops.items()}
    return {name: seconds / steps for name, seconds in median_seconds(calls, turns).items()}


def section(system, steps, turns, root):
    data, sizes = make_data(system)
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(build(system, embed_dim=512, **sizes))
    cocos_seconds = []
    loops = {
        "straightforward": straightforward(system, data, models[0]),
        "tercet": ours(system, data, models[1], root / system, cocos_seconds),
    }
    seconds = median_step_seconds(loops, steps, turns)
    rate = {name: BATCH / taken for name, taken in seconds.items()}
    share = 100 * statistics.median(cocos_seconds) / 20 / seconds["tercet"]  # every 20th step counts
    return (
        f"| {system} | {rate['straightforward']:.0f} | {rate['tercet']:.0f} | "
        f"**{rate['tercet'] / rate['straightforward']:.2f}** | {share:.1f} % |"
    )


def main():
    parser = make_parser(__doc__)
    parser.add_argument("--turns", type=int, default=9)
    options = parser.parse_args()
    lines = [
        *page_header(
            "Training", "training", f"float32; batches of {BATCH}, embed_dim 512, medians of interleaved turns."
        ),
        "| system | straightforward, pairs/s | Tercet, pairs/s | ratio | share of COCOS counts |",
        "|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as root:
        for system, steps in (("heads", 60), ("vsepp", 20)):
            lines.append(section(system, steps, options.turns, Path(root)))
            print(lines[-1], flush=True)
    write_page(options.out, "training", lines)


if __name__ == "__main__":
    main()
