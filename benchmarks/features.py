"""Photos per second and core of `efficientnet-lite2`, against the layers of its package, on your photos.

    python benchmarks/features.py FOLDER      # about three minutes; writes benchmarks/results/features_<date>.md

Both decode, resize and encode the same photos, in the batches of `tercet features`, with one thread. CPU time of that
thread counts, since other programs may run; elapsed time stands beside it. Medians of interleaved turns.
"""

import statistics
import time
from io import BytesIO
from pathlib import Path

import torch
from harness import make_parser, page_header, write_page
from PIL import Image

from tercet.data.encoders.folded_efficientnet import folded, has_fused_convolution
from tercet.data.encoders.registry import BATCH_SIZE, SIDE, EfficientNetLite2, published_efficientnet
from tercet.data.image_io import SUFFIXES, ImageFile, open_image


def decoded(file):
    return open_image(ImageFile(file))


def vectors_of(layers, pixels):
    with torch.inference_mode():
        batches = (batch.contiguous(memory_format=torch.channels_last) for batch in pixels.split(BATCH_SIZE))
        return torch.cat([layers(batch).flatten(2).mean(dim=2) for batch in batches])


def timed(call):
    cpu, elapsed = time.thread_time(), time.perf_counter()
    result = call()
    return result, time.thread_time() - cpu, time.perf_counter() - elapsed


def main(arguments=None):
    parser = make_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--photos", type=int, default=32)
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    every = sorted(file for file in options.folder.iterdir() if file.suffix.lower() in SUFFIXES)
    files = every[:: max(1, len(every) // options.photos)][: options.photos]
    encoder, model = EfficientNetLite2(), published_efficientnet()
    in_package = model.to(memory_format=torch.channels_last).extract_features
    layers = {
        "the package's layers (before)": in_package,
        "BatchNorm folded": folded(model, fused=False),
    }
    if has_fused_convolution():
        layers["and ReLU6 fused (now)"] = folded(model, fused=True)

    def read():
        return torch.stack([encoder.prepare(decoded(file)) for file in files])

    expected = vectors_of(in_package, read())
    times = {name: [] for name in layers}
    reading = []
    for turn in range(options.turns + 1):
        order = list(layers.items())
        for name, run in order if turn % 2 else reversed(order):
            pixels, read_cpu, read_elapsed = timed(read)
            vectors, cpu, elapsed = timed(lambda run=run, pixels=pixels: vectors_of(run, pixels))
            torch.testing.assert_close(vectors, expected, rtol=0, atol=1e-4)
            if turn:  # the first is for warming up
                reading.append(read_cpu)
                times[name].append((cpu + read_cpu, elapsed + read_elapsed, float((vectors - expected).abs().max())))
    write_page(options.out, "features", page(times, reading, len(files), options, draft_difference(encoder, model)))


def draft_difference(encoder, model):
    """The largest differences of features of enlarged JPEGs that are decoded whole and in draft mode."""
    layers, random = folded(model), torch.rand(1, 3, 40, 60, generator=torch.Generator().manual_seed(0))
    large = torch.nn.functional.interpolate(random, (1200, 1800), mode="bicubic").clamp(0, 1)
    buffer = BytesIO()
    Image.fromarray((255 * large[0].permute(1, 2, 0)).byte().numpy()).save(buffer, "JPEG", quality=90)
    whole, draft = Image.open(buffer).convert("RGB"), Image.open(buffer)
    draft.draft("RGB", (SIDE, SIDE))
    pixels = torch.stack([encoder.prepare(whole), encoder.prepare(draft.convert("RGB"))])
    vectors = vectors_of(layers, pixels)
    return float((vectors[0] - vectors[1]).abs().max())


def page(times, reading, photos, options, draft):
    medians = {key: [statistics.median(column) for column in zip(*rows, strict=True)] for key, rows in times.items()}
    before = next(iter(medians.values()))
    details = (
        f"{photos} photos of {options.folder.resolve().parent.name}, medians of {options.turns} interleaved turns."
    )
    lines = page_header("Photo features", "features", details)
    lines += [
        "| layers | ms of one core a photo | photos/s and core | ratio | ratio of elapsed time | largest difference |",
        "|---|---|---|---|---|---|",
    ]
    for layers, (cpu, elapsed, difference) in medians.items():
        ratios = f"**{before[0] / cpu:.2f}** | {before[1] / elapsed:.2f}"
        lines.append(f"| {layers} | {1000 * cpu / photos:.1f} | {photos / cpu:.1f} | {ratios} | {difference:.1e} |")
    lines += ["", f"Of this, decoding and resizing are {1000 * statistics.median(reading) / photos:.1f} ms a photo."]
    lines += [
        "",
        f"Decoding a JPEG of 1800 x 1200 in draft mode changes its features by up to {draft:.2g}, not by rounding, so "
        "images are decoded whole.",
    ]
    return lines


if __name__ == "__main__":
    main()
