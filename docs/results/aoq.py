"""Page of aoq.jsonl: AOQ on Flickr8k, a second round with mined negatives against equal budgets without them."""

import json
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

import flickr8k
import numpy as np

from tercet.evaluation import RankTable
from tercet.evaluation.metrics import cross_ranks_of
from tercet.evaluation.significance import compare_runs, detectable, holm

MODELS = {"heads": "Heads", "vsrn": "VSRN, embed_dim 256, 2 blocks"}
ROUND_1, SAME_STEPS, TRIPLE_STEPS, LARGE_BATCH = (
    "round 1",
    "triplet-sh, same steps",
    "triplet-sh, three times the steps",
    "triplet-sh, batch size 384",
)
ORDER = (ROUND_1, SAME_STEPS, TRIPLE_STEPS, LARGE_BATCH, "off-tri", "off-quin", "aoq", "aoq from scratch")
MINED = ("off-tri", "off-quin", "aoq")
RECALLS, HEADINGS = flickr8k.RECALLS, flickr8k.HEADINGS


def line_of(line: dict, run: Path) -> dict:
    """With per-image contributions to rsum, counts of cross-retrieval ranks, and mined negatives active at the end."""
    with np.load(run / "ranks.npz") as ranks:
        arrays = dict(ranks)
    cross = cross_ranks_of(
        RankTable(arrays), images=int(arrays["image"].max()) + 1, captions=int(arrays["caption"].max()) + 1
    )
    counts = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines() if '"cocos"' in text]
    active = [count["cocos"]["mined_active"] for count in counts if "mined_active" in count["cocos"]]
    return line | {
        "per_image": flickr8k.packed(arrays),
        "cross": {"rank 1": int((cross == 1).sum()), "over 200": int((cross > 200).sum())},
        "mined_active": active[-1] if active else None,
    }


def named(line: dict) -> str:
    settings = line["settings"]
    objective, is_round_2 = settings["objective"], settings["init_from"] is not None
    if objective != "triplet-sh":
        return objective if is_round_2 else f"{objective} from scratch"
    if not is_round_2:
        return ROUND_1
    if settings["batch_size"] > 128:
        return LARGE_BATCH
    return SAME_STEPS if not _has_triple_steps(line) else TRIPLE_STEPS


def _has_triple_steps(line: dict) -> bool:
    return line["settings"]["model"] == "vsrn" and line["metrics"]["step"] > 300


def page(lines: list[dict]) -> str:
    blocks = [HEAD]
    for model, title in MODELS.items():
        runs = defaultdict(dict)
        for line in lines:
            if line["settings"]["model"] == model:
                runs[named(line)][line["seed"]] = line
        blocks += [f"## {title}", "", about(model, runs), "", table(runs), "", tests(runs), ""]
    return "\n".join(blocks)


HEAD = """# AOQ on Flickr8k: does a second round with mined negatives help?

Round 1 trains with triplet-sh. `tercet mine` then lists the 300 most similar captions of each of the 6,000 training
images and the 60 most similar images of each of the 30,000 captions, with the weights of that run and without
filters. Round 2 fine-tunes those weights with off-tri, off-quin or aoq (Chen, Deng, Luo, 2020), with the published
margins and penalties. Baselines, from the same weights: triplet-sh for the same number of steps, and with a batch
size of 384, which encodes as many items as with mined negatives. Test split, checkpoint selected on validation, mean
± std (n-1) over seeds. Features are frozen, from one ImageNet network: the numbers are not comparable to the paper,
which uses detector regions.

The cross-retrieval rank of a pair is the worse of its ranks in both directions, on one scale; the supplement counts
ranks of 1 and over 200. Tests are on rsum, over seeds and images (docs/comparing.md; each pair with its own variance,
not moderated), two-sided, Holm-corrected over the three variants with mined negatives.
"""


def about(model: str, runs: dict) -> str:
    round_1 = next(iter(runs[ROUND_1].values()))
    round_2 = next(iter(runs["aoq"].values()))
    seconds = {name: mean(line["seconds"] for line in runs[name].values()) for name in runs}
    times = "; ".join(f"{name}: {seconds[name]:.0f} s" for name in ORDER if name in runs)
    text = (
        f"{len(runs[ROUND_1])} seeds. Round 1: {round_1['metrics']['step']:,} steps at learning rate "
        f"{round_1['settings']['learning_rate']:g}; round 2: {round_2['metrics']['step']:,} steps at "
        f"{round_2['settings']['learning_rate']:g}. Mean seconds per run, on one core of a loaded machine: {times}."
    )
    if model == "vsrn":
        text += (
            " The first third of round 1 uses triplet. The number of steps was chosen so that a run takes at most six "
            "minutes on an unshared core (these runs shared theirs): this is the beginning of training, and the models "
            "are limited by steps most of all. Therefore triplet-sh is also shown with three times the steps, which "
            "take about as long as those of aoq."
        )
    return text


def table(runs: dict) -> str:
    names = [name for name in ORDER if name in runs]
    best = {metric: max(_mean(runs[name], metric) for name in names) for metric in RECALLS}
    lines = [
        f"| | {' | '.join(HEADINGS)} | cross rank 1 | over 200 | mined negatives active at the end |",
        f"|---|{'---|' * len(RECALLS)}---|---|---|",
    ]
    for name in names:
        cells = []
        for metric in RECALLS:
            values = [line["metrics"][metric] for line in runs[name].values()]
            text = f"{mean(values):.1f} ± {stdev(values):.1f}"
            cells.append(f"**{text}**" if mean(values) == best[metric] else text)
        cross = [f"{mean(line['cross'][key] for line in runs[name].values()):.0f}" for key in ("rank 1", "over 200")]
        active = [line["mined_active"] for line in runs[name].values() if line["mined_active"]]
        means = " / ".join(f"{mean(counts):.0f}" for counts in zip(*active, strict=True))
        lines.append(f"| {name} | {' | '.join([*cells, *cross, means])} |")
    return "\n".join(lines)


def _mean(by_seed: dict, metric: str) -> float:
    return mean(line["metrics"][metric] for line in by_seed.values())


def tests(runs: dict) -> str:
    lines = []
    for baseline in (ROUND_1, SAME_STEPS, TRIPLE_STEPS, LARGE_BATCH):
        if baseline not in runs:
            continue
        seeds = sorted(runs[baseline])
        values = {
            name: np.stack([flickr8k.unpacked(runs[name][seed]["per_image"]) for seed in seeds])
            for name in (baseline, *MINED)
        }
        compared = {name: compare_runs(values[name], values[baseline]) for name in MINED}
        corrected = dict(zip(MINED, holm([test.p for test in compared.values()]), strict=True))
        differences = "; ".join(
            f"{name} {test.difference:+.1f} ({low:+.1f} to {high:+.1f}, p {corrected[name]:.2g})"
            for name, test in compared.items()
            for low, high in [test.interval()]
        )
        spread = compared["aoq"].spread
        power = (
            ""
            if spread is None
            else f" Detectable with 80 % power for aoq: {detectable(spread, len(seeds)):.0f} points."
        )
        lines.append(f"- Difference to **{baseline}**: {differences}.{power}")
    return "\n".join([*lines, "", verdict(runs)])


def verdict(runs: dict) -> str:
    best = max((name for name in ORDER if name in runs), key=lambda name: _mean(runs[name], "rsum"))
    mined = max(MINED, key=lambda name: _mean(runs[name], "rsum"))
    gain = _mean(runs[mined], "rsum") - _mean(runs[SAME_STEPS], "rsum")
    return (
        f"Highest rsum: **{best}** ({_mean(runs[best], 'rsum'):.1f}). The best variant with mined negatives, {mined}, "
        f"is {abs(gain):.1f} points {'above' if gain > 0 else 'below'} triplet-sh with the same number of steps."
    )
