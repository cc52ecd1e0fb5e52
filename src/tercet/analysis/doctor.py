"""From numbers about a finished run to findings. `ILLNESSES` is the table of what is measured and when it is ill."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from tercet.analysis.evidence import Evidence

FEW = 20  # held-out images; with fewer, one image more or less moves every number
OURS = "ours: between the healthy and the ill runs of docs/results/doctor.md"


@dataclass(frozen=True)
class Illness:
    """One row of the table."""

    name: str
    measured: str
    worse: Literal["above", "below"]
    threshold: float
    source: str
    value: Callable[[Evidence], float | None]
    seen: Callable[[Evidence], str]
    """In a sentence, with the numbers."""
    advice: str
    unmeasured: Callable[[Evidence], str] = lambda _: "not measured"
    explained_by: tuple[str, ...] = ()
    """Illnesses that bring this one along: with them it is no finding of its own."""
    explained_while_rising: tuple[str, ...] | None = None
    """The same while validation is clearly rising, where it differs."""

    @property
    def limit(self) -> str:
        return f"{self.worse} {self.threshold:g}"

    def shown(self, evidence: Evidence) -> str:
        value = self.value(evidence)
        if value is None:
            return self.unmeasured(evidence)
        return f"{value:.3g}" if isfinite(value) else "not a number"

    def is_beyond(self, evidence: Evidence) -> bool:
        value = self.value(evidence)
        if value is None or not isfinite(value):
            return False  # `diagnose` tells what is no number
        return value > self.threshold if self.worse == "above" else value < self.threshold

    def explaining(self, evidence: Evidence) -> tuple[str, ...]:
        if evidence.is_rising and self.explained_while_rising is not None:
            return self.explained_while_rising
        return self.explained_by


@dataclass(frozen=True)
class Finding:
    name: str
    seen: str
    threshold: str
    advice: str


def diagnose(evidence: Evidence) -> list[Finding]:
    explained = follows_from(evidence)
    return _no_numbers(evidence) + [
        Finding(illness.name, illness.seen(evidence), f"{illness.measured}: ill {illness.limit}", illness.advice)
        for illness in ILLNESSES
        if illness.is_beyond(evidence) and illness.name not in explained
    ]


def follows_from(evidence: Evidence) -> dict[str, list[str]]:
    """Of each illness beyond its threshold that is no finding of its own: the findings that bring it along."""
    beyond = {illness.name: illness for illness in ILLNESSES if illness.is_beyond(evidence)}
    causes = {name: beyond.keys() & illness.explaining(evidence) for name, illness in beyond.items()}

    def findings(name: str) -> set[str]:  # a cause may itself be explained
        return set().union(*map(findings, causes[name])) if causes[name] else {name}

    return {name: [each for each in beyond if each in findings(name)] for name in beyond if causes[name]}


def caution(evidence: Evidence) -> str | None:
    """Before any finding is believed."""
    if evidence.images >= FEW:
        return None
    held_out = "1 image is" if evidence.images == 1 else f"{evidence.images} images are"
    return f"Only {held_out} held out: with fewer than {FEW}, numbers are luck, and so is what is found or not found."


def _no_numbers(evidence: Evidence) -> list[Finding]:
    names = evidence.not_numbers
    if not names:
        return []
    return [
        Finding(
            "not a number",
            f"{len(names)} of the things that were measured came out as no number: {', '.join(names)}. Nothing is "
            "known about what they are for.",
            "what was measured: ill where it is no finite number",
            "Are there values in the features that are no numbers (tercet data inspect)? Else training went astray: "
            "lower --learning-rate or --clip; with an objective of your own, try tercet.check_objective.",
        )
    ]


def _no_curve(evidence: Evidence) -> str:
    if evidence.validations == 0:
        return "no validation split"
    return "one validation is no curve" if evidence.validations == 1 else "validation stayed at 0"


def table_of_illnesses() -> str:
    """In Markdown, for the documentation."""
    rows = [
        f"| {each.name} | {each.measured} | {each.limit} | {each.source.replace(OURS, 'ours')} |" for each in ILLNESSES
    ]
    return "\n".join(["| finding | what is measured | ill | source |", "|---|---|---|---|", *rows])


ILLNESSES = (
    Illness(
        name="collapse",
        measured="standard deviation of a query's similarities to all candidates (mean of the flatter direction)",
        worse="below",
        threshold=0.01,
        source=OURS,
        value=lambda e: e.spread,
        seen=lambda e: f"all candidates look alike: similarities of a query differ by {e.spread:.2g}.",
        advice="Train the first epochs with all negatives (--first-objective triplet --first-epochs 1), lower "
        "--learning-rate or lengthen --warm-up-epochs; with an objective of your own, look whether it pushes negatives "
        "away at all (tercet.check_objective). A run of few epochs may not have begun to learn: train longer first.",
        explained_while_rising=("under-training",),
    ),
    Illness(
        name="hubness",
        measured="skew of how often a candidate is among the 10 nearest of a query (larger direction)",
        worse="above",
        threshold=3.0,
        source="measure: Radovanovic et al., JMLR 2010; threshold " + OURS,
        value=lambda e: e.hubs,
        seen=lambda e: (
            f"a few candidates are near everything: the skew is {e.hub_captions:.2f} over captions and "
            f"{e.hub_images:.2f} over images, and one candidate is among the 10 nearest of {e.largest_hub:.0%} of the "
            "queries of its direction."
        ),
        advice="Look at the data first: is something in every picture, such as a watermark, or are the features of one "
        "split normalised otherwise (tercet data inspect)? Objectives that push many negatives spread a space more "
        "evenly: --objective nt-xent; so does a larger --batch-size.",
        explained_by=("collapse", "dead objective", "under-training"),
    ),
    Illness(
        name="modality gap",
        measured="distance between the centroids of images and captions, over the width of a side",
        worse="above",
        threshold=1.0,
        source="measure: Liang et al., NeurIPS 2022, here over the width; threshold: from there on the gap is wider "
        "than the sides are",
        value=lambda e: e.gap,
        seen=lambda e: (
            f"images and captions lie apart: the gap is {e.gap:.2f} times as wide as a side, and a plane tells "
            f"{e.told_apart:.0%} of both apart."
        ),
        advice="A low temperature and a margin keep the gap that random weights begin with: try --objective-settings "
        "temperature=0.1, more --epochs or a higher --learning-rate. Ranks may not suffer; similarities are then "
        "comparable within a direction only.",
        explained_by=("collapse", "dead objective", "under-training"),
    ),
    Illness(
        name="flat temperature",
        measured="entropy of the weights of a query's negatives, over its largest value",
        worse="above",
        threshold=0.98,
        source=OURS,
        value=lambda e: e.evenness,
        seen=lambda e: f"every negative weighs the same, hard or easy: their weights are {e.evenness:.3f} even.",
        advice="Lower the temperature: --objective-settings temperature=0.1.",
        unmeasured=lambda _: "no temperature",
        explained_by=("collapse", "under-training"),
    ),
    Illness(
        name="sharp temperature",
        measured="share of the hardest in the weights of a query's negatives, beyond an equal share (nt-xent, sigmoid)",
        worse="above",
        threshold=0.7,
        source=OURS,
        value=lambda e: e.hardest_share,
        seen=lambda e: f"one negative is all that a query sees: the hardest has {e.hardest_share:.0%} of the weight.",
        advice="Raise the temperature: --objective-settings temperature=0.1. If the hardest negative alone is wanted, "
        "--objective triplet-sh says so with a margin.",
        unmeasured=lambda _: "no such temperature",
        explained_by=("collapse",),
    ),
    Illness(
        name="dead objective",
        measured="share of training queries whose row of the gradient is below 1 % of what it is while nothing is "
        "learnt",
        worse="above",
        threshold=0.95,
        source=OURS,
        value=lambda e: e.silent,
        seen=lambda e: f"the objective has nothing to say: {e.silent:.1%} of the training queries have no gradient.",
        advice="Raise the margin (--objective-settings margin=0.2), take a larger --batch-size, which holds harder "
        "negatives, or an objective that is never satisfied (--objective nt-xent).",
    ),
    Illness(
        name="false negatives",
        measured="share of training queries whose hardest negative of the batch carries a near-duplicate caption "
        "(4 of 5 words shared)",
        worse="above",
        threshold=0.05,
        source=OURS,
        value=lambda e: e.duplicates,
        seen=lambda e: (
            f"what is pushed hardest is often right: {e.duplicates:.1%} of the hardest negatives say almost "
            "word for word what the query says."
        ),
        advice="--ignore-equal-text leaves out captions that are equal word for word; join images that are the same "
        "one (tercet data inspect); objectives that push many negatives suffer less than the hardest one alone "
        "(--objective nt-xent).",
    ),
    Illness(
        name="leakage",
        measured="share of held-out images whose features are nearly equal to those of a training image (cosine of "
        "centred features of 0.995 or more)",
        worse="above",
        threshold=0.01,
        source="ours: so many leaked images can move R@1 by a point",
        value=lambda e: e.leaked,
        seen=lambda e: f"{e.leaked:.1%} of the held-out images were trained on, or copies of them were.",
        advice="Take them out of one of both splits before believing any number, and run tercet train again; "
        "doctor.json names them.",
    ),
    Illness(
        name="unbalanced directions",
        measured="mean share of negatives ahead of a positive, worse direction over better",
        worse="above",
        threshold=1.5,
        source=OURS,
        value=lambda e: e.imbalance,
        seen=lambda e: (
            f"one direction is {e.imbalance:.1f} times as far down: {e.ahead_i2t:.1%} of the negative captions are "
            f"ahead of an image's own, {e.ahead_t2i:.1%} of the negative images ahead of a caption's."
        ),
        advice="Does the objective train both directions with the same sign (tercet.check_objective)? Else choose "
        "weights by the weaker one: --select i2t_r1 or --select t2i_r1. Hubs on one side show here too.",
        explained_by=("collapse", "under-training"),
    ),
    Illness(
        name="under-training",
        measured="rise of validation over the last third of the epochs, over its best (1 where a model guesses)",
        worse="above",
        threshold=0.05,
        source=OURS,
        value=lambda e: 1.0 if e.guesses else e.rise,
        seen=lambda e: (
            f"it guesses: {min(e.ahead_i2t, e.ahead_t2i):.0%} of the negatives are ahead of a positive."
            if e.guesses
            else f"validation was still rising when training ended: by {e.rise:.1%} in the last third of the epochs."
        ),
        advice="More --epochs or a higher --learning-rate; a --schedule that falls late (linear) keeps the rate up.",
        unmeasured=_no_curve,
        explained_by=("collapse", "dead objective"),
        explained_while_rising=("dead objective",),
    ),
    Illness(
        name="over-fitting",
        measured="fall of validation from its best to its last epoch, over its best",
        worse="above",
        threshold=0.05,
        source=OURS,
        value=lambda e: e.fall,
        seen=lambda e: (
            f"validation fell by {e.fall:.1%} after its best epoch; rsum is {e.train_rsum:.0f} on training images "
            f"and {e.held_out_rsum:.0f} on as many held-out ones."
        ),
        advice="Fewer --epochs, a --schedule that falls to 0 (cosine), more --weight-decay, --drop-regions 0.2 "
        "--drop-words 0.2, a smaller model, or more data. The weights that are kept are those of the best epoch.",
        unmeasured=_no_curve,
        explained_by=("collapse", "unbalanced directions"),
    ),
)
