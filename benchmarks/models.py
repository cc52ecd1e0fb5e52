"""Encoders of the systems beside the original formulation, training step and evaluation, in one run.

    python benchmarks/models.py     # about fifteen minutes; writes benchmarks/results/models_<date>.md

Published widths, 36 regions, captions of scenes with five an image; `benchmarks/originals.py` holds the original way,
on the same weights and, in evaluation, without gradients. Contestants take turns; a figure is the median of its turns.
"""

import argparse
import platform
import statistics
import time
from datetime import date
from pathlib import Path

import torch
from originals import ORIGINALS, evaluated_captions, evaluated_images

from tercet.data.meetings import by_length
from tercet.data.scenes import scenes
from tercet.data.text.tokens import tokens_of
from tercet.data.text.vocabulary import build_vocabulary
from tercet.models import build
from tercet.objectives import objective
from tercet.retriever import TEXTS_AT_ONCE

RESNET50 = {
    "model_type": "resnet",
    "layer_type": "bottleneck",
    "depths": [3, 4, 6, 3],
    "hidden_sizes": [256, 512, 1024, 2048],
}
# row of the table -> system, settings, shape of an image, pairs of a training step, images in evaluation, turns
ROWS = {
    "vsepp": ("vsepp", {"image_dim": 4096}, (4096,), 128, 1000, 7),
    "vsepp, pixels (ResNet-50)": ("vsepp", {"backbone": RESNET50}, (3, 224, 224), 32, 32, 4),
    "vsrn": ("vsrn", {"variant": "f30k"}, (36, 2048), 16, 60, 4),
    "vse-infinity": ("vse-infinity", {"image_dim": 2048}, (36, 2048), 32, 200, 4),
}


def pairs(images, texts):
    vocabulary = build_vocabulary(texts, 1)
    tokens = tokens_of(texts, vocabulary)
    token_ids, lengths = tokens.take(torch.arange(len(texts)))
    return vocabulary, tokens, token_ids, lengths


def training_section(row):
    system, settings, shape, batch, _, turns = ROWS[row]
    texts = scenes("train", batch).texts[::5]
    vocabulary, _, token_ids, lengths = pairs(batch, texts)
    order = lengths.argsort(descending=True)
    token_ids, lengths = token_ids[order], lengths[order]
    torch.manual_seed(0)
    model = build(system, words=len(vocabulary), **settings).train()
    images = torch.randn(batch, *shape)
    full = torch.full((batch,), shape[0]) if len(shape) == 2 else None
    turns *= 2
    encode_images, encode_captions = ORIGINALS[system]
    hinge = objective("triplet-sh")

    def original():
        S = encode_images(model, images, full) @ encode_captions(model, token_ids, lengths).T
        hinge.on_similarity(S).backward()

    def ours():
        S = model.similarity(model.encode_images(images, full), model.encode_captions(token_ids, lengths))
        hinge.on_similarity(S).backward()

    original_time, our_time = race(original, ours, turns)
    return batch / original_time, batch / our_time


def evaluation_section(row):
    system, settings, shape, _, count, turns = ROWS[row]
    made = scenes("test", count)
    vocabulary, tokens, token_ids, lengths = pairs(count, made.texts)
    torch.manual_seed(0)
    model = build(system, words=len(vocabulary), **settings).eval()
    images, owners = torch.randn(count, *shape), torch.from_numpy(made.owners)

    @torch.inference_mode()
    def our_images():
        return torch.cat([model.encode_images(part) for part in images.split(128)])

    @torch.inference_mode()
    def our_captions():
        buckets = by_length(tokens.lengths(), getattr(model, "captions_at_once", TEXTS_AT_ONCE))
        captions = torch.cat([model.encode_captions(*tokens.take(bucket)) for bucket in buckets])
        return captions[torch.cat(buckets).argsort()]

    @torch.inference_mode()
    def original_images():
        return evaluated_images(system, model, images, owners, lengths)

    @torch.inference_mode()
    def original_captions():
        return evaluated_captions(system, model, token_ids, lengths)

    torch.testing.assert_close(original_images().float(), our_images(), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(original_captions().float(), our_captions(), rtol=1e-3, atol=1e-4)
    return race(original_images, our_images, turns), race(original_captions, our_captions, turns)


def race(first, second, turns):
    times = ([], [])
    for turn in range(turns + 1):
        contestants = list(zip((first, second), times, strict=True))
        for contestant, taken in contestants[:: -1 if turn % 2 else 1]:  # whoever goes second finds warm caches
            start = time.perf_counter()
            contestant()
            if turn:
                taken.append(time.perf_counter() - start)
    return tuple(statistics.median(taken) for taken in times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--rows", nargs="+", default=list(ROWS))
    given = parser.parse_args()
    lines = [
        f"# Models, {date.today()}",
        "",
        f"`python benchmarks/models.py`, {torch.get_num_threads()} threads, torch {torch.__version__}, Python "
        f"{platform.python_version()}, float32; published widths, medians of interleaved turns.",
        "",
        "Ratios of the original's time to ours; above 1 ours is quicker.",
        "",
        "| system | training step | evaluation: images | evaluation: captions | evaluation: both |",
        "|---|---|---|---|---|",
    ]
    for row in given.rows:
        original, ours = training_section(row)
        images, captions = evaluation_section(row)
        both = (images[0] + captions[0]) / (images[1] + captions[1])
        evaluation = f"**{images[0] / images[1]:.1f}** | {captions[0] / captions[1]:.2f} | **{both:.2f}**"
        lines.append(f"| {row} | **{ours / original:.2f}** | {evaluation} |")
        print(lines[-1], flush=True)
    given.out.mkdir(exist_ok=True)
    (given.out / f"models_{date.today()}.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
