"""AOQ on Flickr8k: a second round with mined negatives beside what the same effort gives without them."""

import json
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

import flickr8k
import numpy as np

from tercet.evaluation.metrics import cross_ranks_of
from tercet.evaluation.statistics import compare_runs, detectable, holm

SYSTEMS = {"heads": "Heads", "vsrn": "VSRN, width 256, 2 blocks"}
FIRST, AGAIN, LONGER, LARGER = (
    "round 1",
    "triplet-sh again",
    "triplet-sh, three times the steps",
    "triplet-sh, batch 384",
)
ORDER = (FIRST, AGAIN, LONGER, LARGER, "off-tri", "off-quin", "aoq", "aoq from scratch")
MINED = ("off-tri", "off-quin", "aoq")
RECALLS, HEADINGS = flickr8k.RECALLS, flickr8k.HEADINGS


def line_of(line: dict, run: Path) -> dict:
    """With what each image adds to rsum, pairs by cross-retrieval rank, and members that were active at the end."""
    with np.load(run / "ranks.npz") as ranks:
        arrays = dict(ranks)
    crossed = cross_ranks_of(arrays, images=int(arrays["image"].max()) + 1, captions=int(arrays["caption"].max()) + 1)
    counted = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines() if '"cocos"' in text]
    active = [each["cocos"]["mined_active"] for each in counted if "mined_active" in each["cocos"]]
    return line | {
        "per_image": flickr8k.packed(arrays),
        "cross": {"rank 1": int((crossed == 1).sum()), "over 200": int((crossed > 200).sum())},
        "mined_active": active[-1] if active else None,
    }


def named(line: dict) -> str:
    settings = line["settings"]
    objective, again = settings["objective"], settings["start_from"] is not None
    if objective != "triplet-sh":
        return objective if again else f"{objective} from scratch"
    if not again:
        return FIRST
    if settings["batch_size"] > 128:
        return LARGER
    return AGAIN if not _longer(line) else LONGER


def _longer(line: dict) -> bool:
    return line["settings"]["model"] == "vsrn" and line["metrics"]["step"] > 300


def page(lines: list[dict]) -> str:
    parts = [HEAD]
    for system, title in SYSTEMS.items():
        runs = defaultdict(dict)
        for line in lines:
            if line["settings"]["model"] == system:
                runs[named(line)][line["seed"]] = line
        parts += [f"## {title}", "", about(system, runs), "", table(runs), "", tests(runs), ""]
    return "\n".join(parts)


HEAD = """# AOQ on Flickr8k: does a second round with mined negatives pay?

Round 1 trains with triplet-sh. `tercet mine` then lists the 300 most similar captions of each of the 6,000 training
photos and the 60 most similar photos of each of the 30,000 captions, with the weights of that run, no guards; round 2
goes on from those weights with off-tri, off-quin or aoq (Chen, Deng, Luo, 2020), published margins and penalties.
Beside them stand, from the same weights: triplet-sh for as many steps again, and in batches of 384, in which as many
items are encoded as with mined members. Test, weights chosen on validation, mean ± std (n-1) over seeds. Frozen
features of one ImageNet network: the numbers are not those of the paper, which stands on detector regions.

A pair's cross-retrieval rank is the worse of its ranks in both directions, on one scale; the supplement counts ranks of
1 and over 200. The tests are of rsum, over seeds and images together (docs/comparing.md), two-sided, corrected (Holm)
over the three variants.
"""


def about(system: str, runs: dict) -> str:
    first = next(iter(runs[FIRST].values()))
    second = next(iter(runs["aoq"].values()))
    seconds = {name: mean(line["seconds"] for line in runs[name].values()) for name in runs}
    said = ", ".join(f"{name} {seconds[name]:.0f} s" for name in ORDER if name in runs)
    text = (
        f"{len(runs[FIRST])} seeds. Round 1: {first['metrics']['step']:,} steps at "
        f"{first['settings']['learning_rate']:g}; round 2: {second['metrics']['step']:,} steps at "
        f"{second['settings']['learning_rate']:g}. Seconds of a run, on a busy core: {said}."
    )
    if system == "vsrn":
        text += (
            " The first third of round 1 is trained with triplet. Steps were chosen so that a run takes at most six "
            "minutes on a core of its own, which these had to share: this is the beginning of training, and what the "
            "weights lack most is steps. So triplet-sh also stands there with three times the steps, which take about "
            "as long as those of aoq."
        )
    return text


def table(runs: dict) -> str:
    names = [name for name in ORDER if name in runs]
    best = {metric: max(_mean(runs[name], metric) for name in names) for metric in RECALLS}
    lines = [
        f"| | {' | '.join(HEADINGS)} | cross rank 1 | over 200 | members active at the end |",
        f"|---|{'---|' * len(RECALLS)}---|---|---|",
    ]
    for name in names:
        cells = []
        for metric in RECALLS:
            numbers = [line["metrics"][metric] for line in runs[name].values()]
            text = f"{mean(numbers):.1f} ± {stdev(numbers):.1f}"
            cells.append(f"**{text}**" if mean(numbers) == best[metric] else text)
        crossed = [f"{mean(line['cross'][key] for line in runs[name].values()):.0f}" for key in ("rank 1", "over 200")]
        active = [line["mined_active"] for line in runs[name].values() if line["mined_active"]]
        shown = " / ".join(f"{mean(each):.0f}" for each in zip(*active, strict=True))
        lines.append(f"| {name} | {' | '.join([*cells, *crossed, shown])} |")
    return "\n".join(lines)


def _mean(by_seed: dict, metric: str) -> float:
    return mean(line["metrics"][metric] for line in by_seed.values())


def tests(runs: dict) -> str:
    lines = []
    for beside in (FIRST, AGAIN, LONGER, LARGER):
        if beside not in runs:
            continue
        seeds = sorted(runs[beside])
        values = {
            name: np.stack([flickr8k.unpacked(runs[name][seed]["per_image"]) for seed in seeds])
            for name in (beside, *MINED)
        }
        compared = {name: compare_runs(values[name], values[beside]) for name in MINED}
        corrected = dict(zip(MINED, holm([each.p for each in compared.values()]), strict=True))
        said = "; ".join(
            f"{name} {each.difference:+.1f} ({each.low:+.1f} to {each.high:+.1f}, p {corrected[name]:.2g})"
            for name, each in compared.items()
        )
        spread = compared["aoq"].spread
        least = "" if spread is None else f" Found would be, for aoq, {detectable(spread, len(seeds)):.0f} points."
        lines.append(f"- Beside **{beside}**: {said}.{least}")
    return "\n".join([*lines, "", verdict(runs)])


def verdict(runs: dict) -> str:
    best = max((name for name in ORDER if name in runs), key=lambda name: _mean(runs[name], "rsum"))
    mined = max(MINED, key=lambda name: _mean(runs[name], "rsum"))
    gain = _mean(runs[mined], "rsum") - _mean(runs[AGAIN], "rsum")
    return (
        f"Best here: **{best}** ({_mean(runs[best], 'rsum'):.1f}). The best variant with mined negatives, {mined}, is "
        f"{abs(gain):.1f} points {'above' if gain > 0 else 'below'} as many steps of triplet-sh."
    )
