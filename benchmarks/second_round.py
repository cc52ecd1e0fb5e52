"""Cost of a training step with mined members against a step of triplet-sh, and how its time is divided.

    python benchmarks/second_round.py     # about eight minutes; writes benchmarks/results/second_round_<date>.md

Full steps of the loop of `tercet train`: collate, encode, compare, backward, optimizer step. Two states are timed,
since the cost of the backward pass depends on the number of items with a gradient:

- **untrained**: random weights, random features as wide as Flickr8k's (captions of scenes for models that read words),
  random lists as mined ones. Nearly every hinge is active, as in the first steps from random weights, unlike a second
  round.
- **second round**, heads only: learnable features, as many and as wide as Flickr8k's; a first round of triplet-sh, then
  lists mined by `tercet.mining` with those weights. The noise was chosen to match two counts of Flickr8k
  (docs/results): a few of 128 members are active, and three in four of the batch's own hinges. Through its weights
  `aoq` gives (i, t-) and (i-, t) a gradient wherever the hinge of the batch is active, even if their own is not.

The table has the numbers of active hinges, of the batch (i2t, t2i) and of the four members, and the share of encoded
items with a gradient, in steps of `aoq`. The time shares are of an `aoq` step, each phase run separately forward and
backward: encoders (the batch and its members), similarity (S and the four similarities of each pair) and the objective
(S and mined -> scalar and gradients). With dot products a step fuses the last two, which is faster. The rest is collate
and the optimizer. Times are medians of interleaved turns.
"""

import argparse
import tempfile
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from harness import make_parser, median_seconds, page_header, repeat, write_page
from torch import Tensor

import tercet
from tercet.analysis.cocos import cocos
from tercet.console import RunProgress
from tercet.data.dataset import PairedData
from tercet.data.feature_array import FeatureArray
from tercet.data.hard_negatives import MinedTable, open_mined
from tercet.data.scenes import scenes
from tercet.data.text.tokenized import tokenize_captions
from tercet.data.text.vocabulary import build_vocabulary
from tercet.mining.mine import MiningConfig, mine
from tercet.models import build
from tercet.objectives.aoq import AOQ
from tercet.training.aoq_step import MinedMembers
from tercet.training.mine_run import cached_scorer
from tercet.training.settings import train_settings
from tercet.training.train import Loop, StepWork
from tercet.types import Batch
from training import median_step_seconds

BATCH, LIST_LENGTHS = 128, (300, 60)
VARIANTS = ("triplet-sh", "off-tri", "off-quin", "aoq")
# system -> (shape of an image, settings, steps per turn, maximum of aoq / triplet-sh)
SYSTEMS = {
    "heads": ((1280,), {"embed_dim": 512}, 20, 2.0),
    "vsrn": ((36, 256), {"embed_dim": 256, "blocks": 2}, 1, 3.1),
    "bfan": ((36, 256), {"embed_dim": 256}, 1, 3.1),
}
CAPTION_DIM = 384
MAX_OBJECTIVE_SHARE = 10.0  # percent of a step
LEARNABLE_IMAGES, FIRST_ROUND_STEPS = 6000, 1000
LATENT_DIM, IMAGE_NOISE, CAPTION_NOISE = 200, 1.0, 2.8


def random_data(system: str, images: int) -> tuple[PairedData, dict[str, int]]:
    """Return random features with captions of scenes, and the sizes of the model."""
    rng = np.random.default_rng(0)
    shape = SYSTEMS[system][0]
    split = scenes("train", images)
    image_features = FeatureArray((rng.standard_normal((images, *shape), dtype=np.float32),), "images")
    owners = torch.from_numpy(split.owners)
    if system == "heads":
        features = rng.standard_normal((len(owners), CAPTION_DIM), dtype=np.float32)
        data = PairedData("random", image_features, FeatureArray((features,), "captions"), owners, split.texts)
        return data, {"image_dim": shape[-1], "caption_dim": CAPTION_DIM}
    vocabulary = build_vocabulary(split.texts, 1)
    tokens = tokenize_captions(split.texts, vocabulary)
    data = PairedData("random", image_features, tokens, owners, split.texts)
    return data, {"image_dim": shape[-1], "vocab_size": len(vocabulary)}


def learnable_data(images: int) -> tuple[PairedData, dict[str, int]]:
    """Return features of images and captions that are noisy random projections of one latent vector per image."""
    rng = np.random.default_rng(0)
    split, (dim,) = scenes("train", images), SYSTEMS["heads"][0]
    latent = rng.standard_normal((images, LATENT_DIM), dtype=np.float32)
    # The noise of captions is added to the latent vector, before the projection: none of it averages out.
    caption_noise = CAPTION_NOISE * rng.standard_normal((len(split.owners), LATENT_DIM), dtype=np.float32)

    def project(vectors: np.ndarray, width: int, noise: float) -> np.ndarray:
        projected = vectors @ rng.standard_normal((LATENT_DIM, width), dtype=np.float32) / LATENT_DIM**0.5
        return projected + noise * rng.standard_normal(projected.shape, dtype=np.float32)

    features = (
        FeatureArray((project(latent, dim, IMAGE_NOISE),), "images"),
        FeatureArray((project(latent[split.owners] + caption_noise, CAPTION_DIM, 0.0),), "captions"),
    )
    data = PairedData("learnable", *features, torch.from_numpy(split.owners), split.texts)
    return data, {"image_dim": dim, "caption_dim": CAPTION_DIM}


def random_lists(data: PairedData) -> MinedTable:
    rng, images, captions = np.random.default_rng(1), len(data.images), len(data.owners)
    caption_indices = rng.integers(captions, size=(images, LIST_LENGTHS[0]), dtype=np.int32)
    image_indices = rng.integers(images, size=(captions, LIST_LENGTHS[1]), dtype=np.int32)
    return MinedTable(caption_indices, image_indices, "random", "0")


def first_round(data: PairedData, sizes: dict[str, int], steps: int, folder: Path) -> tuple[dict, MinedTable]:
    """Return the weights of heads after that many steps of triplet-sh, and the lists mined with them."""
    loop = loop_of("heads", "triplet-sh", data, sizes, folder, learning_rate=1e-3)
    for _ in islice(endless_steps(loop), steps):
        pass
    model = loop.model.eval()
    mine(
        partial(cached_scorer, model, data),
        data,
        folder / "mined",
        MiningConfig(*LIST_LENGTHS),
        {"weights": "first round"},
    )
    return model.state_dict(), open_mined(folder / "mined", data)


def loop_of(
    system: str,
    objective: str,
    data: PairedData,
    sizes: dict[str, int],
    folder: Path,
    start: tuple[dict, MinedTable] | None = None,
    learning_rate: float = 1e-5,
) -> Loop:
    """Build a training loop; `start`: weights and lists of a first round, random ones by default."""
    torch.manual_seed(0)
    model = build(system, **sizes, **SYSTEMS[system][1])
    if start is not None:
        model.load_state_dict(start[0])
    loss = tercet.objective(objective)
    settings = {"model": system, "epochs": 10**6, "batch_size": BATCH, "objective": objective}
    settings |= {"learning_rate": learning_rate} | ({"mined": "any"} if isinstance(loss, AOQ) else {})
    mined = (random_lists(data) if start is None else start[1]) if isinstance(loss, AOQ) else None
    folder.mkdir()
    loop = Loop(
        model,
        (data, None, None),
        (loss, loss),
        train_settings(settings),
        folder,
        RunProgress(),
        torch.device("cpu"),
        mined,
    )
    loop.restore()
    model.train()
    return loop


def endless_steps(loop: Loop):
    epoch = 0
    while True:
        loop.state.position = 0
        for batches in loop.batches(epoch):
            yield loop.train_step(StepWork(loop.objectives[1], batches))
        epoch += 1


class EvaluatedBatch(NamedTuple):
    """One batch of aoq: encoded items as leaves with their gradients, and the similarities."""

    batch: Batch
    encoded: list[Tensor]
    similarity: Tensor
    mined: Tensor


def evaluate_batch(loop: Loop, index: int = 0) -> EvaluatedBatch:
    index_batches = loop.sampler.pass_over(0)
    batch = loop.collator.make(index_batches[index % len(index_batches)])
    with torch.no_grad():
        encoded = [items.requires_grad_() for items in encode(loop, batch)]
    S, M = compare(loop, batch, encoded)
    loop.objectives[1].on_similarity(S, batch.positives(), mined=M).backward()
    return EvaluatedBatch(batch, encoded, S.detach(), M.detach())


def encode(loop: Loop, batch: Batch) -> list[Tensor]:
    """Return encoded images, captions and members of both, as in a training step."""
    step = loop.step
    if step._encodes_together(batch):
        images, captions, members = step._encode_together(batch)
    else:
        (images, captions, _), members = step._encode_batch(batch), step._encode_members(batch)
    return [images, captions, members.images, members.captions]


def compare(loop: Loop, batch: Batch, encoded: list[Tensor]) -> tuple[Tensor, Tensor]:
    images, captions, *mined = encoded
    S = loop.model.similarity(images, captions)
    return S, MinedMembers(*mined, batch.mined).similarity(loop.model, images, captions, batch.positives())


def phases_of(loop: Loop) -> dict:
    """Return calls of encoders, similarity and objective for one batch of aoq, each forward and backward."""
    batch, encoded, S0, M0 = evaluate_batch(loop)
    objective, positives = loop.objectives[1], batch.positives()
    S1, M1 = (values.clone().requires_grad_() for values in (S0, M0))
    objective.on_similarity(S1, positives, mined=M1).backward()

    def run_encoders():
        torch.autograd.backward(encode(loop, batch), [items.grad for items in encoded])

    def run_similarity():
        leaves = [items.detach().requires_grad_() for items in encoded]
        torch.autograd.backward(compare(loop, batch, leaves), [S1.grad, M1.grad])

    def run_objective():
        S, M = S0.detach().requires_grad_(), M0.detach().requires_grad_()
        objective.on_similarity(S, positives, mined=M).backward()

    return {"encoders": run_encoders, "similarity": run_similarity, "objective": run_objective}


def count_active(loop: Loop, batches: int) -> tuple[list[float], list[float], float]:
    """Return batch means: active hinges of the batch (i2t, t2i) and of members, share of items with a gradient."""
    own, members, with_gradient = [], [], []
    online = tercet.objective("triplet-sh")
    for index in range(batches):
        batch, encoded, S, M = evaluate_batch(loop, index)
        positives = batch.positives()
        counts = cocos(online, S, positives)
        own.append([len(S) - counts[direction]["silent"] for direction in ("i2t", "t2i")])
        members.append(loop.objectives[1].mined_active(S, positives, mined=M))
        nonzero = [(items.grad != 0).flatten(1).any(dim=1) for items in encoded]
        with_gradient.append(torch.cat(nonzero).double().mean().item())
    return np.mean(own, axis=0).tolist(), np.mean(members, axis=0).tolist(), float(np.mean(with_gradient))


def section(system: str, state: str, options: argparse.Namespace, root: Path) -> str:
    root = root / f"{system}_{state.replace(' ', '_')}"
    root.mkdir()
    start = None
    if state == "untrained":
        data, sizes = random_data(system, options.images)
    else:
        data, sizes = learnable_data(options.learnable_images)
        start = first_round(data, sizes, options.first_steps, root / "first")
    loops = {name: loop_of(system, name, data, sizes, root / name, start) for name in VARIANTS}
    steps, max_ratio = SYSTEMS[system][2:]
    own, members, with_gradient = count_active(loops["aoq"], 10 if system == "heads" else 1)
    seconds = median_step_seconds({name: endless_steps(loop) for name, loop in loops.items()}, steps, options.turns)
    phases = median_seconds(
        {name: partial(repeat, call, steps) for name, call in phases_of(loops["aoq"]).items()}, options.turns
    )
    ratios = {name: seconds[name] / seconds["triplet-sh"] for name in VARIANTS}
    shares = {name: 100 * taken / steps / seconds["aoq"] for name, taken in phases.items()}
    met = ratios["aoq"] <= max_ratio and shares["objective"] <= MAX_OBJECTIVE_SHARE
    cells = [" / ".join(f"{count:.0f}" for count in counts) for counts in (own, members)]
    cells += [f"{100 * with_gradient:.0f} %", f"{1000 * seconds['triplet-sh']:.1f}"]
    cells += [f"{ratios[name]:.2f}" for name in VARIANTS[1:]]
    cells += [f"{shares[name]:.1f} %" for name in ("encoders", "similarity", "objective")]
    verdict = f"at most {max_ratio:g} and {MAX_OBJECTIVE_SHARE:g} %: {'met' if met else 'missed'}"
    return f"| {system}, {state} | {' | '.join(cells)} | {verdict} |"


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--learnable-images", type=int, default=LEARNABLE_IMAGES)
    parser.add_argument("--first-steps", type=int, default=FIRST_ROUND_STEPS)
    parser.add_argument("--turns", type=int, default=9)
    options = parser.parse_args(arguments)
    lines = [
        *page_header(
            "Second round",
            "second_round",
            f"float32; batches of {BATCH}; medians of {options.turns} interleaved turns.",
        ),
        f"**Second round**: weights after {options.first_steps:,} steps of triplet-sh on learnable features "
        f"({options.learnable_images:,} images), lists mined with them. **Untrained**: random weights, features and "
        f"lists ({options.images:,} images).",
        "Active hinges are those of the batch (i2t / t2i) and of members, (i, t-) / (i-, t) / (i-, t-) / (i-', t-'), "
        f"of {BATCH}; items with a gradient are a share of all encoded items. Both in steps of aoq.",
        "",
        "| system, state | active in the batch | active members | items with a gradient | triplet-sh, ms per step | "
        "off-tri / triplet-sh | off-quin | aoq | encoders, of aoq's step | similarity | objective | "
        "target: aoq, objective |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    with tempfile.TemporaryDirectory() as root:
        for system in options.systems:
            for state in ("second round", "untrained") if system == "heads" else ("untrained",):
                lines.append(section(system, state, options, Path(root)))
                print(lines[-1], flush=True)
    write_page(options.out, "second_round", lines)


if __name__ == "__main__":
    main()
