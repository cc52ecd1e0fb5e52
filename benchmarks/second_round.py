"""What a step with mined members costs beside a step of triplet-sh, and where the time goes.

    python benchmarks/second_round.py     # about five minutes; writes benchmarks/results/second_round_<date>.md

Whole steps of the loop that `tercet train` runs: a batch is made, encoded, compared, the gradient delivered, the
weights moved. Features are random, as wide as Flickr8k's; captions are those of scenes; any lists serve as mined ones.
The shares are of an `aoq` step, each part run by itself forward and backward: encoders (the batch and its members),
similarity (S and the four similarities of each pair) and the objective (S and mined -> scalar and gradients). What is
left is making batches and moving weights. All take turns in one run; a figure is the median of its turns.
"""

import argparse
import platform
import tempfile
from datetime import date
from functools import partial
from pathlib import Path

import numpy as np
import torch

import tercet
from objectives import take_turns
from tercet.data.mined import MinedTable
from tercet.data.pairs import PairedData
from tercet.data.rows import Rows
from tercet.data.scenes import scenes
from tercet.data.text.tokens import tokens_of
from tercet.data.text.vocabulary import build_vocabulary
from tercet.models import build
from tercet.training.config import train_settings
from tercet.training.loop import Loop
from tercet.training.mined import Members
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
MOST_OF_OBJECTIVE = 10.0  # per cent of a step


def made_data(system: str, images: int) -> tuple[PairedData, dict[str, int]]:
    rng = np.random.default_rng(0)
    shape = SYSTEMS[system][0]
    world = scenes("train", images)
    seen = Rows((rng.standard_normal((images, *shape), dtype=np.float32),), "images")
    owners = torch.from_numpy(world.owners)
    if system == "heads":
        read = Rows((rng.standard_normal((len(owners), 384), dtype=np.float32),), "captions")
        return PairedData("made", seen, read, owners, world.texts), {"image_dim": shape[-1], "caption_dim": 384}
    words = build_vocabulary(world.texts, 1)
    data = PairedData("made", seen, tokens_of(world.texts, words), owners, world.texts)
    return data, {"image_dim": shape[-1], "words": len(words)}


def any_lists(data: PairedData) -> MinedTable:
    rng, images, captions = np.random.default_rng(1), len(data.images), len(data.owners)
    of_images = rng.integers(captions, size=(images, LISTED[0]), dtype=np.int32)
    return MinedTable(of_images, rng.integers(images, size=(captions, LISTED[1]), dtype=np.int32), "any", "0")


def loop_of(system: str, objective: str, data: PairedData, sizes: dict[str, int], folder: Path) -> Loop:
    torch.manual_seed(0)
    model = build(system, **sizes, **SYSTEMS[system][1])
    given = {"model": system, "epochs": 10**6, "batch_size": BATCH, "objective": objective, "learning_rate": 1e-5}
    made = tercet.objective(objective)
    mined = any_lists(data) if made.takes_mined else None
    settings = train_settings(given | ({"mined": "any"} if made.takes_mined else {}))
    folder.mkdir()
    loop = Loop(model, data, (made, made), settings, folder, Report(), torch.device("cpu"), mined)
    loop.restore()
    model.train()
    return loop


def endless(loop: Loop):
    epoch = 0
    while True:
        loop.place.position = 0
        yield from loop._steps(epoch)
        epoch += 1


def parts_of(loop: Loop) -> dict:
    """Encoders, similarity and objective of one batch of aoq, each forward and backward by itself."""
    batch, model = loop.batches.make(loop._pass(0)[0]), loop.model
    items, objective, positives = batch.mined, loop.objectives[1], batch.positives()
    sides = (
        (model.encode_images, batch.images, batch.image_lengths),
        (model.encode_captions, batch.captions, batch.caption_lengths),
        (model.encode_images, items.images, items.image_lengths),
        (model.encode_captions, items.captions, items.caption_lengths),
    )

    def encoders():
        for encode, given, lengths in sides:
            encoded = encode(given, lengths)
            encoded.backward(torch.ones_like(encoded))

    with torch.no_grad():
        encoded = [encode(given, lengths) for encode, given, lengths in sides]

    def similarity():
        images, captions, *mined = (each.detach().requires_grad_() for each in encoded)
        S = model.similarity(images, captions)
        M = Members(*mined, items).similarity(model, images, captions, positives)
        torch.autograd.backward([S, M], [torch.ones_like(S), torch.ones_like(M)])

    with torch.no_grad():
        S0 = model.similarity(*encoded[:2])
        M0 = Members(*encoded[2:], items).similarity(model, *encoded[:2], positives)

    def of_objective():
        S, M = S0.detach().requires_grad_(), M0.detach().requires_grad_()
        objective.on_similarity(S, positives, mined=M).backward()

    return {"encoders": encoders, "similarity": similarity, "objective": of_objective}


def section(system: str, images: int, turns: int, root: Path) -> str:
    data, sizes = made_data(system, images)
    loops = {name: loop_of(system, name, data, sizes, root / f"{system}_{name}") for name in VARIANTS}
    steps, most = SYSTEMS[system][2:]
    seconds = race({name: endless(loop) for name, loop in loops.items()}, steps, turns)
    parts = take_turns({name: partial(_several, call, steps) for name, call in parts_of(loops["aoq"]).items()}, turns)
    ratios = {name: seconds[name] / seconds["triplet-sh"] for name in VARIANTS}
    shares = {name: 100 * taken / seconds["aoq"] for name, taken in parts.items()}
    met = ratios["aoq"] <= most and shares["objective"] <= MOST_OF_OBJECTIVE
    cells = [f"{1000 * seconds['triplet-sh'] / steps:.1f}", *(f"{ratios[name]:.2f}" for name in VARIANTS[1:])]
    cells += [f"{shares[name]:.1f} %" for name in ("encoders", "similarity", "objective")]
    verdict = f"at most {most:g} and {MOST_OF_OBJECTIVE:g} %: {'met' if met else 'missed'}"
    return f"| {system} | {' | '.join(cells)} | {verdict} |"


def _several(call, times: int) -> None:
    for _ in range(times):
        call()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args(arguments)
    lines = [
        f"# Second round, {date.today()}",
        "",
        f"`python benchmarks/second_round.py`, {torch.get_num_threads()} threads, torch {torch.__version__}, Python "
        f"{platform.python_version()}, float32; batches of {BATCH}; medians of {given.turns} interleaved turns.",
        "",
        "| system | triplet-sh, ms a step | off-tri / triplet-sh | off-quin | aoq | encoders, of aoq's step | "
        "similarity | objective | target: aoq, objective |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    with tempfile.TemporaryDirectory() as root:
        for system in given.systems:
            lines.append(section(system, given.images, given.turns, Path(root)))
            print(lines[-1], flush=True)
    given.out.mkdir(exist_ok=True)
    (given.out / f"second_round_{date.today()}.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
