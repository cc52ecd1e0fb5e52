"""Cost of `tercet.watch` in a training loop: heads with batches of 128, and a tiny CLIP.

    python benchmarks/watch.py     # about a minute; writes benchmarks/results/watch_<date>.md

A step is encode, objective, backward, AdamW. In every turn a step, a call of the watcher that measures and calls that
do not are timed one after another; times are medians over turns. Amortized over an interval of n steps the watcher
costs (one measured call + n - 1 others) / (n steps). The target holds at the default interval.
"""

from collections.abc import Callable

import torch
from harness import make_parser, median_seconds, page_header, repeat, write_page

import tercet
from tercet.training.watch import EVERY, Watcher

OBJECTIVES = ("nt-xent", "triplet-sh", "sigmoid", "cir/sig-ms")
TARGET = 3.0  # percent
IDLE_CALLS = 100
CLIP_BATCH = 32


def heads() -> tuple[torch.nn.Module, Callable[[], tuple[torch.Tensor, torch.Tensor]]]:
    torch.manual_seed(0)
    model = tercet.build("heads", image_dim=1280, caption_dim=384, embed_dim=512)
    images, captions = torch.randn(128, 1280), torch.randn(128, 384)
    return model, lambda: (model.encode_images(images), model.encode_captions(captions))


def tiny_clip() -> tuple[torch.nn.Module, Callable[[], tuple[torch.Tensor, torch.Tensor]]]:
    from transformers import CLIPConfig, CLIPModel

    torch.manual_seed(0)
    tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = CLIPConfig(
        text_config=tower | {"vocab_size": 100, "bos_token_id": 98, "eos_token_id": 99},
        vision_config=tower | {"image_size": 32, "patch_size": 8},
        projection_dim=32,
    )
    model = CLIPModel(config)
    pixels, texts = torch.randn(CLIP_BATCH, 3, 32, 32), torch.randint(0, 99, (CLIP_BATCH, 12))

    def encode() -> tuple[torch.Tensor, torch.Tensor]:
        outputs = model(input_ids=texts, pixel_values=pixels)
        return outputs.image_embeds, outputs.text_embeds

    return model, encode


MODELS = {"heads, batch 128": heads, f"tiny CLIP, batch {CLIP_BATCH}": tiny_clip}


def calls_of(build: Callable, name: str) -> dict[str, Callable[[], object]]:
    """A training step; one call of the watcher that measures; many that do not."""
    model, encode = build()
    objective, optimizer = tercet.objective(name), torch.optim.AdamW(model.parameters(), lr=1e-4)
    measures = Watcher(objective, 1, lambda line: None)
    counts_only = Watcher(objective, 1 << 40, lambda line: None)
    counts_only.step = 1
    with torch.no_grad():
        images, captions = encode()

    def step() -> None:
        optimizer.zero_grad()
        objective(*encode()).backward()
        optimizer.step()

    return {
        "step": step,
        "measured": lambda: measures(images, captions),
        "idle": lambda: repeat(lambda: counts_only(images, captions), IDLE_CALLS),
    }


def percent_of_steps(seconds: dict[str, float], every: int) -> float:
    idle = (every - 1) * seconds["idle"] / IDLE_CALLS
    return 100 * (seconds["measured"] + idle) / (every * seconds["step"])


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--turns", type=int, default=41)
    options = parser.parse_args(arguments)
    rows = []
    for model, build in MODELS.items():
        for name in OBJECTIVES:
            seconds = median_seconds(calls_of(build, name), options.turns)
            cost = percent_of_steps(seconds, EVERY)
            rows.append(
                f"| {model} | {name} | {1e3 * seconds['step']:.2f} | {1e3 * seconds['measured']:.2f} | "
                f"{1e6 * seconds['idle'] / IDLE_CALLS:.1f} | {percent_of_steps(seconds, 50):.2f} % | {cost:.2f} % | "
                f"{'met' if cost < TARGET else 'missed'} |"
            )
            print(rows[-1], flush=True)
    lines = [
        *page_header(
            "The watcher's share of training", "watch", f"float32; medians of {options.turns} interleaved turns."
        ),
        "| model | objective | step, ms | measured call, ms | other call, us | every 50 steps | "
        f"every {EVERY} steps, the default | target: below {TARGET:g} % |",
        "|---|---|---:|---:|---:|---:|---:|---|",
        *rows,
    ]
    write_page(options.out, "watch", lines)


if __name__ == "__main__":
    main()
