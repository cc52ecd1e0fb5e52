"""Seven claims of the papers on Flickr8k, each with its test: from the lines of flickr8k.jsonl to a page."""

from collections import defaultdict
from statistics import mean, median, stdev

import numpy as np
from scipy.stats import spearmanr

from tercet.evaluation.by_image import contributions
from tercet.evaluation.statistics import compare_runs, detectable, holm, seeds_needed

RECALLS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum")
HEADINGS = ("i2t R@1", "R@5", "R@10", "t2i R@1", "R@5", "R@10", "rsum")
TRIPLET_WEIGHTS, PAIR_WEIGHTS = ("con", "nca", "cir"), ("con", "lin", "sig", "lin-ms", "sig-ms")
CELLS = [f"{T}/{P}" for P in PAIR_WEIGHTS for T in TRIPLET_WEIGHTS]
KNOWN = ("con/con", "nca/con", "cir/lin", "con/sig", "con/sig-ms")  # GOAL's Table 1; the other ten cells are New
DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTU"
USUAL_RATE = 0.001
LEVEL = 0.05
TRAINING_PAIRS = 30_000

SECTIONS = {
    "heads": "Heads, one learning rate for all",
    "heads-tuned": "Heads, learning rates chosen on validation (`--tune lr`)",
    "vsepp": "VSE++",
    "vse-infinity": "VSE-infinity",
}
COMMANDS = {
    "heads": "tercet compare f8k --objectives all con/con:reading=code ... nca/sig-ms:reading=code "
    "--seeds 5 --epochs 6 --model-settings joint_dim=512",
    "heads-tuned": "the same with --tune lr",
    "vsepp": "tercet compare flickr8k --features global --models vsepp --seeds 3 --model-settings joint_dim=512 "
    "word_dim=128 --train batch_size=32 epochs=6 epoch_steps=125 ...",
    "vse-infinity": "tercet compare f8k_precomp --models vse-infinity --seeds 3 --model-settings joint_dim=512 "
    "word_dim=128 --train batch_size=32 epochs=6 epoch_steps=45 ...",
}


def packed(ranks: dict[str, np.ndarray]) -> str:
    """What each image adds to rsum, one sign an image: five for each image query found, one for each caption's."""
    hits = np.rint(contributions(ranks, "rsum") / 20).astype(int)
    return "".join(DIGITS[number] for number in hits)


def unpacked(text: str) -> np.ndarray:
    return np.array([DIGITS.index(sign) for sign in text]) * 20.0


class Section:
    """Runs of one model under one way to choose learning rates."""

    def __init__(self, lines: list[dict]) -> None:
        self.by_name: dict[str, dict[int, dict]] = defaultdict(dict)
        for line in lines:
            self.by_name[named(line)][line["seed"]] = line

    def values(self, name: str) -> np.ndarray:
        """(seed image)."""
        return np.stack([unpacked(line["per_image"]) for _, line in sorted(self.by_name[name].items())])

    def numbers(self, name: str, metric: str) -> list[float]:
        return [line["metrics"][metric] for _, line in sorted(self.by_name[name].items())]

    def mean(self, name: str, metric: str = "rsum") -> float:
        return mean(self.numbers(name, metric))

    def order(self) -> list[str]:
        return sorted(self.by_name, key=lambda name: -self.mean(name))

    def contributing(self, name: str) -> float:
        """Negatives behind a query's gradient, both directions, over training and seeds."""
        return mean(line["contributing_negatives"] for line in self.by_name[name].values())

    @property
    def seeds(self) -> int:
        return min(len(each) for each in self.by_name.values())

    @property
    def passes(self) -> float:
        """How often the training pairs were seen, by the objective that saw them least."""
        runs = [run for by_seed in self.by_name.values() for run in by_seed.values()]
        return min(run["metrics"]["pairs_seen"] for run in runs) / TRAINING_PAIRS


def named(line: dict) -> str:
    settings = line["settings"]
    reading = settings.get("objective_settings", {}).get("reading", "paper")
    return settings["objective"] + (" (code)" if reading == "code" else "")


def page(lines: list[dict]) -> str:
    sections = {name: Section([line for line in lines if line["section"] == name]) for name in SECTIONS}
    sections = {name: section for name, section in sections.items() if section.by_name}
    parts = [HEAD, summary(sections)]
    for name, section in sections.items():
        parts += [f"## {SECTIONS[name]}", "", about(name, section), "", table(section), ""]
        if all(cell in section.by_name for cell in CELLS):
            parts += [grid(section), ""]
        parts += ["### Claims", "", *(f"{text}\n" for text in claims(section))]
    commits = ", ".join(sorted({line["commit"] or "unknown" for line in lines}))
    parts.append(f"{len(lines)} runs, one line each in flickr8k.jsonl, of commits {commits}; written by `make.py`.")
    return "\n".join(parts) + "\n"


HEAD = """# Which objective wins on Flickr8k?

6,000 photos to train on, 1,000 to validate, 1,000 to test, five captions each. Frozen features of EfficientNet-Lite2
(ImageNet), so the numbers are not those of detector regions or of encoders that are trained along; they are about
objectives beside each other. Test, weights chosen on validation, mean ± std (n-1) over seeds.

Seven claims were fixed before the runs; how each is tested was written while they ran: on rsum, over seeds and images
together (docs/comparing.md says how), two-sided at 5 %, corrected (Holm) within the claim. The verdicts are **holds**,
**does not hold**, **cannot be told** with these seeds, or **too early to tell** where training was stopped before one
pass over the training pairs: such runs show who starts fastest, not who wins.

1. triplet-sh beats triplet.
2. triplet-sh beats nt-xent.
3. smooth-ap does not beat triplet-sh.
4. For each triplet weight, the pair weights sig, lin-ms and sig-ms are at least as good as con.
5. sig-ms with nca or cir is the best cell of GOAL's grid.
6. The cells that GOAL calls New beat, on average, the five that are known losses.
7. The fewer samples contribute to the gradient, the better the recall (rank correlation over all objectives).

The cells are read as in the paper, unless marked (code): what the authors released.
"""


def summary(sections: dict[str, Section]) -> str:
    heads = list(sections)
    rows = defaultdict(lambda: ["-"] * len(heads))
    for column, section in enumerate(sections.values()):
        for number, verdict, _ in verdicts(section):
            rows[number][column] = verdict
    lines = ["## Verdicts", "", f"| claim | {' | '.join(SECTIONS[name] for name in heads)} |"]
    lines.append(f"|---|{'---|' * len(heads)}")
    lines += [f"| {number} | {' | '.join(cells)} |" for number, cells in sorted(rows.items())]
    return "\n".join([*lines, ""])


def about(name: str, section: Section) -> str:
    line = next(iter(next(iter(section.by_name.values())).values()))
    every = [each for runs in section.by_name.values() for each in runs.values()]
    steps = sorted({each["metrics"]["step"] for each in every})
    settings = line["settings"]
    said = ", ".join(f"{key} {value}" for key, value in settings.get("model_settings", {}).items())
    seconds = median(each["seconds"] for each in every)
    # A line leaves out what the recipe of its model says.
    first = settings.get("first_objective", "triplet" if settings["model"] == "vse-infinity" else None)
    warm = (
        f" The first {settings.get('first_epochs', 1)} of {settings['epochs']} parts is trained with {first}."
        if first
        else ""
    )
    short = (
        f" Trained from scratch on {section.passes:.1f} passes over the pairs: this is the beginning of training."
        if section.passes < 1
        else ""
    )
    return (
        f"{said}; batches of {settings.get('batch_size', 128)}, {'/'.join(map(str, steps))} steps for all, smooth-ap "
        f"with five captions an image; {section.seeds} seeds; a run took {seconds:.0f} s (median) of one core, busy "
        f"with others.{warm}{short}{_rates(section)}\n\n```\n{COMMANDS[name]}\n```"
    )


def _rates(section: Section) -> str:
    """How often each learning rate was chosen, where there was a choice."""
    first = [next(iter(section.by_name[name].values()))["settings"] for name in section.order()]
    chosen = [settings.get("learning_rate", USUAL_RATE) for settings in first]
    if len(set(chosen)) == 1:
        return ""
    counts = ", ".join(f"{rate:g} ({chosen.count(rate)} times)" for rate in sorted(set(chosen)))
    return (
        f" Chosen were {counts}: the outer ones are the ends of the grid, so that a rate beyond them might do better."
    )


def table(section: Section) -> str:
    order = section.order()
    best = {metric: max(section.mean(name, metric) for name in order) for metric in RECALLS}
    lines = [
        f"| objective | {' | '.join(HEADINGS)} | rate | clipped | pairs seen | negatives |",
        f"|---|{'---:|' * (len(HEADINGS) + 4)}",
    ]
    for name in order:
        cells = []
        for metric in RECALLS:
            numbers = section.numbers(name, metric)
            text = f"{mean(numbers):.1f}" + (f" ± {stdev(numbers):.1f}" if len(numbers) > 1 else "")
            cells.append(f"**{text}**" if mean(numbers) == best[metric] else text)
        runs = list(section.by_name[name].values())
        rate = "/".join(f"{r:g}" for r in sorted({run["settings"].get("learning_rate", USUAL_RATE) for run in runs}))
        clipped = mean(run["metrics"]["clipped_steps"] / run["metrics"]["step"] for run in runs)
        cells += [
            rate,
            f"{100 * clipped:.0f} %",
            f"{runs[0]['metrics']['pairs_seen']:,}",
            f"{section.contributing(name):.1f}",
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", "negatives: behind a query's gradient, mean over training (COCOS, general count)."]
    return "\n".join(lines)


def grid(section: Section) -> str:
    lines = ["GOAL's grid, rsum:", "", f"| pair weight | {' | '.join(TRIPLET_WEIGHTS)} |", "|---|---:|---:|---:|"]
    best = max(section.mean(cell) for cell in CELLS)
    for P in PAIR_WEIGHTS:
        cells = []
        for T in TRIPLET_WEIGHTS:
            numbers = section.numbers(f"{T}/{P}", "rsum")
            text = f"{mean(numbers):.1f} ± {stdev(numbers):.1f}"
            cells.append(f"**{text}**" if mean(numbers) == best else text)
        lines.append(f"| {P} | {' | '.join(cells)} |")
    return "\n".join(lines)


def claims(section: Section) -> list[str]:
    return [f"{number}. **{verdict}**. {why}" for number, verdict, why in verdicts(section)]


def verdicts(section: Section) -> list[tuple[int, str, str]]:
    """(number, verdict, evidence) of every claim that these runs can speak about; none from unfinished training."""
    tested = tests_of_claims(section)
    if section.passes >= 1:
        return tested
    reason = f"Stopped after {section.passes:.1f} passes over the training pairs. So far: "
    return [(number, "too early to tell", reason + evidence) for number, _, evidence in tested]


def tests_of_claims(section: Section) -> list[tuple[int, str, str]]:
    found: list[tuple[int, str, str]] = []
    if {"triplet", "triplet-sh"} <= section.by_name.keys():
        found.append((1, *beats(section, "triplet-sh", "triplet")))
    if {"nt-xent", "triplet-sh"} <= section.by_name.keys():
        found.append((2, *beats(section, "triplet-sh", "nt-xent")))
    if {"smooth-ap", "triplet-sh"} <= section.by_name.keys():
        found.append((3, *not_beaten(section, "smooth-ap", "triplet-sh")))
    if all(cell in section.by_name for cell in CELLS):
        found += [(4, *at_least_con(section)), (5, *best_cell(section)), (6, *new_cells(section)), (7, *fewer(section))]
    return found


def beats(section: Section, first: str, second: str) -> tuple[str, str]:
    compared = compare_runs(section.values(first), section.values(second))
    if compared.p >= LEVEL:
        return "cannot be told", said(first, second, compared) + would_take(compared)
    return ("holds" if compared.difference > 0 else "does not hold"), said(first, second, compared)


def not_beaten(section: Section, first: str, second: str) -> tuple[str, str]:
    compared = compare_runs(section.values(first), section.values(second))
    if compared.p >= LEVEL:
        return "cannot be told", said(first, second, compared) + would_take(compared)
    return ("does not hold" if compared.difference > 0 else "holds"), said(first, second, compared)


def at_least_con(section: Section) -> tuple[str, str]:
    pairs = [(f"{T}/{P}", f"{T}/con") for T in TRIPLET_WEIGHTS for P in ("sig", "lin-ms", "sig-ms")]
    compared = [compare_runs(section.values(first), section.values(second)) for first, second in pairs]
    corrected = holm([each.p for each in compared])
    sure = [(pair[0], each.difference) for pair, each, p in zip(pairs, compared, corrected, strict=True) if p < LEVEL]
    better, worse = [name for name, size in sure if size > 0], [name for name, size in sure if size < 0]
    sizes = ", ".join(f"{pair[0]} {each.difference:+.1f}" for pair, each in zip(pairs, compared, strict=True))
    verdict = "does not hold" if worse else "holds" if len(better) == len(pairs) else "cannot be told"
    return verdict, f"Of nine, {len(better)} are better than con for sure, {len(worse)} worse{listed(worse)}: {sizes}."


def best_cell(section: Section) -> tuple[str, str]:
    named_best = max(("nca/sig-ms", "cir/sig-ms"), key=section.mean)
    others = [cell for cell in CELLS if cell not in ("nca/sig-ms", "cir/sig-ms")]
    compared = [compare_runs(section.values(named_best), section.values(other)) for other in others]
    corrected = holm([each.p for each in compared])
    sure = [(other, each.difference) for other, each, p in zip(others, compared, corrected, strict=True) if p < LEVEL]
    behind, beaten = [name for name, size in sure if size < 0], [name for name, size in sure if size > 0]
    top = max(CELLS, key=section.mean)
    verdict = "does not hold" if behind else "holds" if len(beaten) == len(others) else "cannot be told"
    return verdict, (
        f"The better of the two is {named_best} ({section.mean(named_best):.1f}); the highest mean is that of {top} "
        f"({section.mean(top):.1f}). Of the 13 other cells {len(beaten)} are behind it for sure, {len(behind)} ahead"
        f"{listed(behind)}."
    )


def new_cells(section: Section) -> tuple[str, str]:
    new = np.mean([section.values(cell) for cell in CELLS if cell not in KNOWN], axis=0)
    known = np.mean([section.values(cell) for cell in KNOWN], axis=0)
    compared = compare_runs(new, known)
    why = said("the mean of the ten New cells", "that of the five known", compared)
    if compared.p >= LEVEL:
        return "cannot be told", why + would_take(compared)
    return ("holds" if compared.difference > 0 else "does not hold"), why


def fewer(section: Section) -> tuple[str, str]:
    names = sorted(section.by_name)
    found = spearmanr([section.contributing(name) for name in names], [section.mean(name) for name in names])
    why = f"Spearman's correlation over {len(names)} objectives is {found.statistic:+.2f} (p {p_said(found.pvalue)})."
    if found.pvalue >= LEVEL:
        return "cannot be told", why
    return ("holds" if found.statistic < 0 else "does not hold"), why


def said(first: str, second: str, compared) -> str:
    return (
        f"{first} minus {second}: {compared.difference:+.1f} points ({compared.low:+.1f} to {compared.high:+.1f}), "
        f"p {p_said(compared.p)} (seeds alone {p_said(compared.p_seeds)}, images alone {p_said(compared.p_images)})."
    )


def would_take(compared) -> str:
    least = detectable(compared.spread, compared.seeds)
    needed = seeds_needed(compared.spread, compared.difference)
    more = (
        "no number of seeds would do on 1,000 images"
        if needed is None
        else f"about {max(needed, compared.seeds + 1)} would do"
    )
    return f" {compared.seeds} seeds find {least:.1f} points four times of five; for a difference this small {more}."


def p_said(p: float) -> str:
    return "< 0.0001" if p < 0.0001 else f"{p:.4f}" if p < 0.01 else f"{p:.2f}"


def listed(names: list[str]) -> str:
    return f" ({', '.join(names)})" if names else ""
