"""Encoders of the systems against the original implementations: training step and evaluation.

    python benchmarks/models.py     # about fifteen minutes; writes benchmarks/results/models_<date>.md

Published widths, 36 regions, five captions of scenes per image; `benchmarks/originals.py` holds the original
implementations, run on the same weights and, in evaluation, without gradients. Times are medians of interleaved turns.
"""

import torch
from harness import make_parser, median_seconds, page_header, write_page
from originals import ORIGINALS, encode_split_captions, encode_split_images

from tercet.data.samplers import by_length
from tercet.data.scenes import scenes
from tercet.data.text.tokenized import tokenize_captions
from tercet.data.text.vocabulary import build_vocabulary
from tercet.inference import TEXT_BATCH_SIZE
from tercet.models import build
from tercet.objectives import objective

RESNET50 = {
    "model_type": "resnet",
    "layer_type": "bottleneck",
    "depths": [3, 4, 6, 3],
    "hidden_sizes": [256, 512, 1024, 2048],
}
# row of the table -> (system, settings, shape of an image, pairs per training step, images in evaluation, turns)
ROWS = {
    "vsepp": ("vsepp", {"image_dim": 4096}, (4096,), 128, 1000, 7),
    "vsepp, pixels (ResNet-50)": ("vsepp", {"backbone": RESNET50}, (3, 224, 224), 32, 32, 4),
    "vsrn": ("vsrn", {"variant": "f30k"}, (36, 2048), 16, 60, 4),
    "vse-infinity": ("vse-infinity", {"image_dim": 2048}, (36, 2048), 32, 200, 4),
}


def tokenize(texts):
    vocabulary = build_vocabulary(texts, 1)
    tokens = tokenize_captions(texts, vocabulary)
    token_ids, lengths = tokens.take(torch.arange(len(texts)))
    return vocabulary, tokens, token_ids, lengths


def training_section(row):
    system, settings, shape, batch, _, turns = ROWS[row]
    texts = scenes("train", batch).texts[::5]
    vocabulary, _, token_ids, lengths = tokenize(texts)
    order = lengths.argsort(descending=True)
    token_ids, lengths = token_ids[order], lengths[order]
    torch.manual_seed(0)
    model = build(system, vocab_size=len(vocabulary), **settings).train()
    images = torch.randn(batch, *shape)
    region_counts = torch.full((batch,), shape[0]) if len(shape) == 2 else None
    encode_images, encode_captions = ORIGINALS[system]
    hinge = objective("triplet-sh")

    def original():
        S = encode_images(model, images, region_counts) @ encode_captions(model, token_ids, lengths).T
        hinge.on_similarity(S).backward()

    def ours():
        S = model.similarity(model.encode_images(images, region_counts), model.encode_captions(token_ids, lengths))
        hinge.on_similarity(S).backward()

    return median_seconds({"original": original, "ours": ours}, 2 * turns)


def evaluation_section(row):
    system, settings, shape, _, count, turns = ROWS[row]
    split = scenes("test", count)
    vocabulary, tokens, token_ids, lengths = tokenize(split.texts)
    torch.manual_seed(0)
    model = build(system, vocab_size=len(vocabulary), **settings).eval()
    images, owners = torch.randn(count, *shape), torch.from_numpy(split.owners)

    @torch.inference_mode()
    def our_images():
        return torch.cat([model.encode_images(batch) for batch in images.split(128)])

    @torch.inference_mode()
    def our_captions():
        buckets = by_length(tokens.lengths(), getattr(model, "eval_batch_size", TEXT_BATCH_SIZE))
        captions = torch.cat([model.encode_captions(*tokens.take(bucket)) for bucket in buckets])
        return captions[torch.cat(buckets).argsort()]

    @torch.inference_mode()
    def original_images():
        return encode_split_images(system, model, images, owners, lengths)

    @torch.inference_mode()
    def original_captions():
        return encode_split_captions(system, model, token_ids, lengths)

    torch.testing.assert_close(original_images().float(), our_images(), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(original_captions().float(), our_captions(), rtol=1e-3, atol=1e-4)
    return (
        median_seconds({"original": original_images, "ours": our_images}, turns),
        median_seconds({"original": original_captions, "ours": our_captions}, turns),
    )


def main():
    parser = make_parser(__doc__)
    parser.add_argument("--rows", nargs="+", default=list(ROWS))
    options = parser.parse_args()
    lines = [
        *page_header("Models", "models", "float32; published widths, medians of interleaved turns."),
        "Ratios of the original's time to ours; above 1 ours is faster.",
        "",
        "| system | training step | evaluation: images | evaluation: captions | evaluation: both |",
        "|---|---|---|---|---|",
    ]
    for row in options.rows:
        training, (images, captions) = training_section(row), evaluation_section(row)
        both = {name: images[name] + captions[name] for name in images}
        step, image, caption, total = (
            seconds["original"] / seconds["ours"] for seconds in (training, images, captions, both)
        )
        lines.append(f"| {row} | **{step:.2f}** | **{image:.1f}** | {caption:.2f} | **{total:.2f}** |")
        print(lines[-1], flush=True)
    write_page(options.out, "models", lines)


if __name__ == "__main__":
    main()
