"""What a step with mined members costs beside a step of triplet-sh, and where the time goes.

    python benchmarks/second_round.py     # about eight minutes; writes benchmarks/results/second_round_<date>.md

Whole steps of the loop that `tercet train` runs: a batch is made, encoded, compared, the gradient delivered, the
weights moved. Two states are timed, since backward costs what the items with a gradient cost:

- **untrained**: random weights, random features as wide as Flickr8k's (captions are those of scenes where words are
  read), any lists as mined ones. Nearly every hinge is active: the first steps from random weights, no second
  round.
- **second round**, heads only: features that can be learned, as many and as wide as Flickr8k's; a first round of
  triplet-sh, then lists of `tercet.mining`, made by those weights. Two counts of Flickr8k were aimed at when the noise
  was chosen (docs/results): a few of 128 members are active, and three in four of the batch's own hinges. Through its
  weights `aoq` gives (i, t-) and (i-, t) a gradient wherever the hinge of the batch is active, though their own is not.

The table says how many hinges are active, of the batch's own (i2t, t2i) and of the four members, and how many of the
encoded items have a gradient at all, in steps of `aoq`. The shares are of an `aoq` step, each part run by itself
forward and backward: encoders (the batch and its members), similarity (S and the four similarities of each pair) and
the objective (S and mined -> scalar and gradients). Where similarities are dot products a step takes these two in one,
which is quicker. What is left is making batches and moving weights. All take turns in one run; a figure is the median
of its turns.
"""

import argparse
import platform
import tempfile
from datetime import date
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import tercet
from objectives import take_turns
from tercet.analysis.cocos import cocos
from tercet.contracts import Batch
from tercet.data.mined import MinedTable, open_mined
from tercet.data.pairs import PairedData
from tercet.data.rows import Rows
from tercet.data.scenes import scenes
from tercet.data.text.tokens import tokens_of
from tercet.data.text.vocabulary import build_vocabulary
from tercet.mining.mine import Wanted, mine
from tercet.models import build
from tercet.training.config import train_settings
from tercet.training.loop import Loop
from tercet.training.mined import Members
from tercet.training.mining import compared_sides
from tercet.training.report import Report
from training import race

BATCH, LISTED = 128, (300, 60)
VARIANTS = ("triplet-sh", "off-tri", "off-quin", "aoq")
# system -> features of an image, settings, steps of a turn, most that aoq may cost beside triplet-sh
SYSTEMS = {
    "heads": ((1280,), {"joint_dim": 512}, 20, 2.0),
    "vsrn": ((36, 256), {"joint_dim": 256, "blocks": 2}, 1, 3.1),
    "bfan": ((36, 256), {"joint_dim": 256}, 1, 3.1),
}
CAPTION_DIM = 384
MOST_OF_OBJECTIVE = 10.0  # per cent of a step
LEARNED_IMAGES, FIRST_STEPS = 6000, 1000
HIDDEN_DIM, IMAGE_NOISE, CAPTION_NOISE = 200, 1.0, 2.8


def made_data(system: str, images: int) -> tuple[PairedData, dict[str, int]]:
    rng = np.random.default_rng(0)
    shape = SYSTEMS[system][0]
    world = scenes("train", images)
    seen = Rows((rng.standard_normal((images, *shape), dtype=np.float32),), "images")
    owners = torch.from_numpy(world.owners)
    if system == "heads":
        read = Rows((rng.standard_normal((len(owners), CAPTION_DIM), dtype=np.float32),), "captions")
        return PairedData("made", seen, read, owners, world.texts), {"image_dim": shape[-1], "caption_dim": CAPTION_DIM}
    words = build_vocabulary(world.texts, 1)
    data = PairedData("made", seen, tokens_of(world.texts, words), owners, world.texts)
    return data, {"image_dim": shape[-1], "words": len(words)}


def learnable_data(images: int) -> tuple[PairedData, dict[str, int]]:
    """Both sides show the same hidden vector of an image, through a random projection each, and noise."""
    rng = np.random.default_rng(0)
    world, (dim,) = scenes("train", images), SYSTEMS["heads"][0]
    hidden = rng.standard_normal((images, HIDDEN_DIM), dtype=np.float32)
    # What a caption leaves out or gets wrong lies among the things that are told: none of it averages out.
    told = hidden[world.owners] + CAPTION_NOISE * rng.standard_normal((len(world.owners), HIDDEN_DIM), dtype=np.float32)

    def shown(seen: np.ndarray, width: int, noise: float) -> np.ndarray:
        projected = seen @ rng.standard_normal((HIDDEN_DIM, width), dtype=np.float32) / HIDDEN_DIM**0.5
        return projected + noise * rng.standard_normal(projected.shape, dtype=np.float32)

    sides = Rows((shown(hidden, dim, IMAGE_NOISE),), "images"), Rows((shown(told, CAPTION_DIM, 0.0),), "captions")
    data = PairedData("learnable", *sides, torch.from_numpy(world.owners), world.texts)
    return data, {"image_dim": dim, "caption_dim": CAPTION_DIM}


def any_lists(data: PairedData) -> MinedTable:
    rng, images, captions = np.random.default_rng(1), len(data.images), len(data.owners)
    of_images = rng.integers(captions, size=(images, LISTED[0]), dtype=np.int32)
    return MinedTable(of_images, rng.integers(images, size=(captions, LISTED[1]), dtype=np.int32), "any", "0")


def first_round(data: PairedData, sizes: dict[str, int], steps: int, folder: Path) -> tuple[dict, MinedTable]:
    """Weights of heads after so many steps of triplet-sh, and the lists that they mine."""
    loop = loop_of("heads", "triplet-sh", data, sizes, folder, learning_rate=1e-3)
    for _ in islice(endless(loop), steps):
        pass
    model = loop.model.eval()
    mine(partial(compared_sides, model, data), data, folder / "mined", Wanted(*LISTED), {"weights": "first round"})
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
    """`start`: weights and lists of a first round; without, random weights and any lists."""
    torch.manual_seed(0)
    model = build(system, **sizes, **SYSTEMS[system][1])
    if start is not None:
        model.load_state_dict(start[0])
    made = tercet.objective(objective)
    given = {"model": system, "epochs": 10**6, "batch_size": BATCH, "objective": objective}
    given |= {"learning_rate": learning_rate} | ({"mined": "any"} if made.takes_mined else {})
    mined = (any_lists(data) if start is None else start[1]) if made.takes_mined else None
    folder.mkdir()
    loop = Loop(model, data, (made, made), train_settings(given), folder, Report(), torch.device("cpu"), mined)
    loop.restore()
    model.train()
    return loop


def endless(loop: Loop):
    epoch = 0
    while True:
        loop.place.position = 0
        yield from loop._steps(epoch)
        epoch += 1


class Seen(NamedTuple):
    """One batch of aoq: what the encoders give, as leaves with their gradients, and what is compared."""

    batch: Batch
    sides: list[Tensor]
    similarity: Tensor
    mined: Tensor


def seen(loop: Loop, number: int = 0) -> Seen:
    meetings = loop._pass(0)
    batch = loop.batches.make(meetings[number % len(meetings)])
    with torch.no_grad():
        encoded = encode(loop, batch)
    sides = [each.requires_grad_() for each in encoded]
    S, M = compare(loop, batch, sides)
    loop.objectives[1].on_similarity(S, batch.positives(), mined=M).backward()
    return Seen(batch, sides, S.detach(), M.detach())


def encode(loop: Loop, batch: Batch) -> list[Tensor]:
    """Images, captions, members of both: as a step does."""
    step = loop.step
    if step._encodes_together(batch):
        images, captions, members = step._together(batch)
    else:
        (images, captions, _), members = step._sides(batch), step._members(batch)
    return [images, captions, members.images, members.captions]


def compare(loop: Loop, batch: Batch, sides: list[Tensor]) -> tuple[Tensor, Tensor]:
    images, captions, *mined = sides
    S = loop.model.similarity(images, captions)
    return S, Members(*mined, batch.mined).similarity(loop.model, images, captions, batch.positives())


def parts_of(loop: Loop) -> dict:
    """Encoders, similarity and objective of one batch of aoq, each forward and backward by itself."""
    batch, sides, S0, M0 = seen(loop)
    objective, positives = loop.objectives[1], batch.positives()
    S1, M1 = (each.clone().requires_grad_() for each in (S0, M0))
    objective.on_similarity(S1, positives, mined=M1).backward()

    def encoders():
        torch.autograd.backward(encode(loop, batch), [each.grad for each in sides])

    def similarity():
        leaves = [each.detach().requires_grad_() for each in sides]
        torch.autograd.backward(compare(loop, batch, leaves), [S1.grad, M1.grad])

    def of_objective():
        S, M = S0.detach().requires_grad_(), M0.detach().requires_grad_()
        objective.on_similarity(S, positives, mined=M).backward()

    return {"encoders": encoders, "similarity": similarity, "objective": of_objective}


def active_in(loop: Loop, batches: int) -> tuple[list[float], list[float], float]:
    """Means over batches: active hinges of the batch (i2t, t2i) and of members; the share of items with a gradient."""
    own, members, with_gradient = [], [], []
    online = tercet.objective("triplet-sh")
    for number in range(batches):
        batch, sides, S, M = seen(loop, number)
        positives = batch.positives()
        counts = cocos(online, S, positives)
        own.append([len(S) - counts[direction]["silent"] for direction in ("i2t", "t2i")])
        members.append(loop.objectives[1].mined_active(S, positives, mined=M))
        gradients = [(each.grad != 0).flatten(1).any(dim=1) for each in sides]
        with_gradient.append(torch.cat(gradients).double().mean().item())
    means = [np.mean(each, axis=0).tolist() for each in (own, members)]
    return means[0], means[1], float(np.mean(with_gradient))


def section(system: str, state: str, given: argparse.Namespace, root: Path) -> str:
    root = root / f"{system}_{state.replace(' ', '_')}"
    root.mkdir()
    start = None
    if state == "untrained":
        data, sizes = made_data(system, given.images)
    else:
        data, sizes = learnable_data(given.learned_images)
        start = first_round(data, sizes, given.first_steps, root / "first")
    loops = {name: loop_of(system, name, data, sizes, root / name, start) for name in VARIANTS}
    steps, most = SYSTEMS[system][2:]
    own, members, with_gradient = active_in(loops["aoq"], 10 if system == "heads" else 1)
    seconds = race({name: endless(loop) for name, loop in loops.items()}, steps, given.turns)
    parts = take_turns(
        {name: partial(_several, call, steps) for name, call in parts_of(loops["aoq"]).items()}, given.turns
    )
    ratios = {name: seconds[name] / seconds["triplet-sh"] for name in VARIANTS}
    shares = {name: 100 * taken / seconds["aoq"] for name, taken in parts.items()}
    met = ratios["aoq"] <= most and shares["objective"] <= MOST_OF_OBJECTIVE
    cells = [" / ".join(f"{count:.0f}" for count in counts) for counts in (own, members)]
    cells += [f"{100 * with_gradient:.0f} %", f"{1000 * seconds['triplet-sh'] / steps:.1f}"]
    cells += [f"{ratios[name]:.2f}" for name in VARIANTS[1:]]
    cells += [f"{shares[name]:.1f} %" for name in ("encoders", "similarity", "objective")]
    verdict = f"at most {most:g} and {MOST_OF_OBJECTIVE:g} %: {'met' if met else 'missed'}"
    return f"| {system}, {state} | {' | '.join(cells)} | {verdict} |"


def _several(call, times: int) -> None:
    for _ in range(times):
        call()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--learned-images", type=int, default=LEARNED_IMAGES)
    parser.add_argument("--first-steps", type=int, default=FIRST_STEPS)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args(arguments)
    lines = [
        f"# Second round, {date.today()}",
        "",
        f"`python benchmarks/second_round.py`, {torch.get_num_threads()} threads, torch {torch.__version__}, Python "
        f"{platform.python_version()}, float32; batches of {BATCH}; medians of {given.turns} interleaved turns.",
        "",
        f"**Second round** is the state of one: weights after {given.first_steps:,} steps of triplet-sh on features "
        f"that can be learned ({given.learned_images:,} images), lists mined with them. **Untrained** is not: random "
        f"weights, features and lists ({given.images:,} images).",
        "Active are hinges of the batch (i2t / t2i) and of members, (i, t-) / (i-, t) / (i-, t-) / (i-', t-'), of "
        f"{BATCH}; items with a gradient are of all that are encoded. Both in steps of aoq.",
        "",
        "| system, state | active in the batch | active members | items with a gradient | triplet-sh, ms a step | "
        "off-tri / triplet-sh | off-quin | aoq | encoders, of aoq's step | similarity | objective | "
        "target: aoq, objective |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    with tempfile.TemporaryDirectory() as root:
        for system in given.systems:
            for state in ("second round", "untrained") if system == "heads" else ("untrained",):
                lines.append(section(system, state, given, Path(root)))
                print(lines[-1], flush=True)
    given.out.mkdir(exist_ok=True)
    (given.out / f"second_round_{date.today()}.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
