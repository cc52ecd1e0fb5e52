"""Page of waist.jsonl: human judgments as weights of positives, and a queue against larger batches, on Flickr8k."""

from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

import flickr8k
import numpy as np

import tercet

RECALLS, HEADINGS = flickr8k.RECALLS, flickr8k.HEADINGS


HEAD = """# Weights of positives, and a queue, on Flickr8k

Heads on frozen features (EfficientNet-Lite2, MiniLM), embed_dim 512, the same untuned learning rate of 0.001 unless a
row names another, checkpoint selected on validation, mean ± std (n-1) over seeds. The numbers are not comparable to
those of fine-tuned encoders. Differences are in rsum, over seeds and images, with the statistics of `tercet compare`
(docs/comparing.md); p is corrected over the differences to the same baseline.
"""
QUEUE = """## A queue of 4,096 against a larger batch, at equal pairs

Every run sees each of the 30,000 training pairs once: with a batch size of 1,024 in an eighth of the steps. A query has
up to 4,223 negatives with the queue, 127 without it, and 1,023 with the larger batch. One pass is the beginning of
training, where stored embeddings are most out of date: this does not tell which is best in the end. Filled by the
trained model itself, the queue does great harm here; MoCo (He et al., CVPR 2020) likewise reports that training fails
without a slowly moving encoder. Seconds are those of a machine with much other load.

```
tercet compare f8k --no-tune --seeds 3 --epochs 1 --model-settings embed_dim=512 --objectives nt-xent
  nt-xent:queue_size=4096 nt-xent:batch_size=1024,epoch_steps=29
  nt-xent:batch_size=1024,epoch_steps=29,learning_rate=0.004
```
"""
GRADES = """## Human judgments as weights

The judgments are about the 1,000 images of the official test split alone. So these runs are trained on that split
(5,000 pairs), validated on the official one, and tested on the 6,000 images of the official training split, on which
nothing was trained: chance is six times lower than on 1,000 images. Weights are the mean expert rating scaled to 0..1,
or the share of yes of the crowd; other pairs keep 1 or 0. Each objective is compared with itself without weights: with
three seeds no difference is found.

```
tercet compare f8k --no-tune --seeds 3 --epochs 8 --model-settings embed_dim=512
  --train train_split=test test_split=train
  --objectives nt-xent nt-xent:grades=judgments triplet-sh triplet-sh:grades=judgments
```
"""


def line_of(line: dict, run: Path) -> dict:
    """With per-image contributions to rsum; of settings only those that differ between the runs of the page."""
    settings = line["settings"]
    kept = ("data", "model", "objective", "objective_settings", "seed", "epochs", "epoch_steps", "batch_size")
    kept += ("learning_rate", "train_split", "test_split", "queue_size", "queue_momentum", "model_settings")
    grades = None if settings["grades"] is None else Path(settings["grades"]).name
    with np.load(run / "ranks.npz") as ranks:
        per_image = flickr8k.packed(dict(ranks))
    return line | {"settings": {name: settings[name] for name in kept} | {"grades": grades}, "per_image": per_image}


def section_of(line: dict) -> str:
    return "grades" if line["settings"]["train_split"] == "test" else "queue"


def named(line: dict) -> str:
    settings = line["settings"]
    bias = ", bias of the batch" if settings["objective_settings"].get("bias") == "batch" else ""
    parts = [settings["objective"] + bias]
    if settings["grades"] is not None:
        parts.append("human judgments as weights")
    if settings["queue_size"] is not None:
        parts.append(f"queue of {settings['queue_size']:,}")
    if settings["queue_momentum"] is not None:
        parts.append(f"moving average {settings['queue_momentum']:g}")
    if settings["batch_size"] != 128:
        parts.append(f"batch size {settings['batch_size']:,}")
    if settings["learning_rate"] != flickr8k.DEFAULT_LEARNING_RATE:
        parts.append(f"learning rate {settings['learning_rate']:g}")
    return ", ".join(parts)


def page(lines: list[dict]) -> str:
    blocks = [HEAD]
    for name, text in (("queue", QUEUE), ("grades", GRADES)):
        of_section = [line for line in lines if section_of(line) == name]
        if of_section:
            blocks += [text, *section(of_section)]
    return "\n".join(blocks)


def section(lines: list[dict]) -> list[str]:
    by_name: dict[str, dict[int, dict]] = defaultdict(dict)
    for line in lines:
        by_name[named(line)][line["seed"]] = line
    means = {name: mean(line["metrics"]["rsum"] for line in runs.values()) for name, runs in by_name.items()}
    rows = [
        f"| {name} | " + " | ".join(_cell(runs, key) for key in RECALLS) + f" | {_seconds(runs)} |"
        for name, runs in sorted(by_name.items(), key=lambda item: -means[item[0]])
    ]
    head = [f"| | {' | '.join(HEADINGS)} | seconds |", f"|---|{'---|' * len(HEADINGS)}---|"]
    return [*head, *rows, "", *differences(by_name), ""]


def differences(by_name: dict[str, dict[int, dict]]) -> list[str]:
    """Every variant against its objective alone."""
    values = {
        name: np.stack([flickr8k.unpacked(line["per_image"]) for _, line in sorted(runs.items())])
        for name, runs in by_name.items()
    }
    found = []
    plain = [name for name in values if "weights" not in name and "queue" not in name and "batch size" not in name]
    for base in plain:
        others = [name for name in values if name == base or name.startswith(f"{base}, ")]
        tested = tercet.significance({name: values[name] for name in others}, baseline=base)
        for pair in tested.pairs:
            sign = 1 if pair.second == base else -1
            other = pair.first if sign == 1 else pair.second
            low, high = sorted((sign * pair.low, sign * pair.high))
            found.append(
                f"- {other}: {sign * pair.difference:+.1f} against {base} ({low:+.1f} to {high:+.1f}, p {pair.p:.2g})"
            )
    return found


def _cell(runs: dict[int, dict], key: str) -> str:
    values = [line["metrics"][key] for line in runs.values()]
    return f"{mean(values):.1f} ± {stdev(values):.1f}"


def _seconds(runs: dict[int, dict]) -> str:
    return f"{mean(line['seconds'] for line in runs.values()):.0f}"
