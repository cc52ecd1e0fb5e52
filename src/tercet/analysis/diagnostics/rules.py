"""Diagnostic rules of `tercet doctor`: `RULES` is the table of measurements, thresholds and advice."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from tercet.analysis.diagnostics.measurements import Measurements

MIN_IMAGES = 20  # held-out images; with fewer, a single image changes every measurement noticeably
OURS = "ours: between the healthy and the faulty runs of docs/results/doctor.md"


@dataclass(frozen=True)
class DiagnosticRule:
    """One row of the table: a measurement with a threshold."""

    name: str
    quantity: str
    """What is measured."""
    worse: Literal["above", "below"]
    threshold: float
    source: str
    value: Callable[[Measurements], float | None]
    describe: Callable[[Measurements], str]
    """One sentence with the measured numbers."""
    advice: str
    """What to try; `{augmentations}` in it is replaced by those that the model's inputs can have."""
    missing_reason: Callable[[Measurements], str] = lambda _: "not measured"
    explained_by: tuple[str, ...] = ()
    """Rules that explain this one: if one of them is triggered, this one is not a finding of its own."""
    explained_while_rising: tuple[str, ...] | None = None
    """Replaces `explained_by` while validation is clearly rising."""

    @property
    def limit(self) -> str:
        return f"{self.worse} {self.threshold:g}"

    def value_text(self, measurements: Measurements) -> str:
        value = self.value(measurements)
        if value is None:
            return self.missing_reason(measurements)
        return f"{value:.3g}" if isfinite(value) else "not a number"

    def is_triggered(self, measurements: Measurements) -> bool:
        value = self.value(measurements)
        if value is None or not isfinite(value):
            return False  # `diagnose` reports non-finite values
        return value > self.threshold if self.worse == "above" else value < self.threshold

    def finding(self, measurements: Measurements) -> "Finding":
        augmentations = "".join(f"{each}, " for each in measurements.augmentations)
        advice = self.advice.replace("{augmentations}", augmentations)
        return Finding(self.name, self.describe(measurements), f"{self.quantity}: faulty if {self.limit}", advice)

    def explaining_rules(self, measurements: Measurements) -> tuple[str, ...]:
        if measurements.is_rising and self.explained_while_rising is not None:
            return self.explained_while_rising
        return self.explained_by


@dataclass(frozen=True)
class Finding:
    """A triggered rule that no other finding explains."""

    name: str
    description: str
    """One sentence with the measured numbers."""
    threshold: str
    advice: str


def diagnose(measurements: Measurements) -> list[Finding]:
    """All findings: non-finite measurements first, then triggered rules in the order of the table."""
    explained = findings_that_explain(measurements)
    triggered = [rule for rule in RULES if rule.is_triggered(measurements) and rule.name not in explained]
    return _non_finite(measurements) + [rule.finding(measurements) for rule in triggered]


def findings_that_explain(measurements: Measurements) -> dict[str, list[str]]:
    """For each triggered rule that is not a finding of its own, the findings that explain it."""
    triggered = {rule.name: rule for rule in RULES if rule.is_triggered(measurements)}
    causes = {name: triggered.keys() & rule.explaining_rules(measurements) for name, rule in triggered.items()}

    def findings(name: str) -> set[str]:  # a cause may itself be explained
        return set().union(*map(findings, causes[name])) if causes[name] else {name}

    return {name: [other for other in triggered if other in findings(name)] for name in triggered if causes[name]}


def small_sample_warning(measurements: Measurements) -> str | None:
    """A warning if there are too few held-out images for reliable findings."""
    if measurements.images >= MIN_IMAGES:
        return None
    sides = measurements.sides
    held_out = f"1 {sides.image} is" if measurements.images == 1 else f"{measurements.images} {sides.images} are"
    return f"Only {held_out} held out: with fewer than {MIN_IMAGES}, the measurements and findings are mostly noise."


def table_of_rules() -> str:
    """The rules as a Markdown table, for the documentation."""
    rows = [f"| {rule.name} | {rule.quantity} | {rule.limit} | {rule.source.replace(OURS, 'ours')} |" for rule in RULES]
    return "\n".join(["| finding | measurement | faulty if | source |", "|---|---|---|---|", *rows])


def _non_finite(measurements: Measurements) -> list[Finding]:
    names = measurements.non_finite
    if not names:
        return []
    verb = "measurement is" if len(names) == 1 else "measurements are"
    return [
        Finding(
            "not a number",
            f"{len(names)} {verb} NaN or infinite: {', '.join(names)}. The rules that use them cannot be checked.",
            "any measurement: faulty if not finite",
            "Check the features for NaN and infinite values (tercet data inspect). Otherwise training diverged: "
            "lower --learning-rate or --grad-clip; for a custom objective, run tercet.check_objective.",
        )
    ]


def _no_curve(measurements: Measurements) -> str:
    if measurements.validations == 0:
        return "no validation split"
    return "only one validation" if measurements.validations == 1 else "validation stayed at 0"


RULES = (
    DiagnosticRule(
        name="collapse",
        quantity="standard deviation of a query's similarities to all candidates (mean over queries, smaller of both "
        "directions)",
        worse="below",
        threshold=0.01,
        source=OURS,
        value=lambda m: m.spread,
        describe=lambda m: f"all candidates look alike: the similarities of a query have a std of {m.spread:.2g}.",
        advice="Train the first epochs with all negatives (--warmup-objective triplet --warmup-objective-epochs 1), "
        "lower --learning-rate or raise --warmup-epochs; for a custom objective, check that it pushes negatives away "
        "(tercet.check_objective). After only a few epochs, train longer first.",
        explained_while_rising=("under-training",),
    ),
    DiagnosticRule(
        name="hubness",
        quantity="skewness of how often a candidate is among the 10 nearest of a query (larger of both directions)",
        worse="above",
        threshold=3.0,
        source="measure: Radovanovic et al., JMLR 2010; threshold " + OURS,
        value=lambda m: m.hubness,
        describe=lambda m: (
            f"a few candidates are near to most queries: the skewness is {m.hub_captions:.2f} over "
            f"{m.sides.captions} and {m.hub_images:.2f} over {m.sides.images}, and one candidate is among the 10 "
            f"nearest of {m.largest_hub:.0%} of the "
            "queries of its direction."
        ),
        advice="Check the data first: do all images share something, such as a watermark, or are the features of one "
        "split normalized differently (tercet data inspect)? Objectives that push many negatives distribute "
        "embeddings more evenly (--objective nt-xent); so does a larger --batch-size.",
        explained_by=("collapse", "dead objective", "under-training"),
    ),
    DiagnosticRule(
        name="modality gap",
        quantity="distance between the centroids of images and captions, divided by the width of a modality",
        worse="above",
        threshold=1.0,
        source="measure: Liang et al., NeurIPS 2022, here divided by the width; threshold: above it the gap is wider "
        "than the modalities are",
        value=lambda m: m.gap,
        describe=lambda m: (
            f"{m.sides.images} and {m.sides.captions} are far apart: the gap is {m.gap:.2f} times the width of a "
            f"modality, and a plane separates {m.separable_share:.0%} of the embeddings by modality."
        ),
        advice="A low temperature or a small margin preserves the gap of the random initialization: try "
        "--objective-settings temperature=0.1, more --epochs or a higher --learning-rate. Ranks may not suffer, but "
        "similarities are only comparable within a direction.",
        explained_by=("collapse", "dead objective", "under-training"),
    ),
    DiagnosticRule(
        name="flat temperature",
        quantity="normalized entropy of the weights of a query's negatives",
        worse="above",
        threshold=0.98,
        source=OURS,
        value=lambda m: m.evenness,
        describe=lambda m: f"hard and easy negatives have the same weight: the normalized entropy is {m.evenness:.3f}.",
        advice="Lower the temperature: --objective-settings temperature=0.1.",
        missing_reason=lambda _: "no temperature",
        explained_by=("collapse", "under-training"),
    ),
    DiagnosticRule(
        name="sharp temperature",
        quantity="share of the hardest negative in the weights of a query's negatives, above a uniform share (nt-xent, "
        "sigmoid)",
        worse="above",
        threshold=0.7,
        source=OURS,
        value=lambda m: m.hardest_share,
        describe=lambda m: f"a query learns from one negative: the hardest has {m.hardest_share:.0%} of the weight.",
        advice="Raise the temperature: --objective-settings temperature=0.1. To train on the hardest negative only, "
        "use --objective triplet-sh, which has a margin.",
        missing_reason=lambda _: "does not apply",
        explained_by=("collapse",),
    ),
    DiagnosticRule(
        name="dead objective",
        quantity="share of training queries whose gradient is below 1 % of their gradient at equal similarities",
        worse="above",
        threshold=0.95,
        source=OURS,
        value=lambda m: m.silent,
        describe=lambda m: f"the objective has almost no gradient: {m.silent:.1%} of the training queries have none.",
        advice="Raise the margin (--objective-settings margin=0.2), use a larger --batch-size, which contains harder "
        "negatives, or an objective whose gradient never vanishes (--objective nt-xent).",
    ),
    DiagnosticRule(
        name="false negatives",
        quantity="share of training queries whose hardest negative in the batch has a near-duplicate caption (4 of 5 "
        "words shared)",
        worse="above",
        threshold=0.05,
        source=OURS,
        value=lambda m: m.duplicates,
        describe=lambda m: (
            f"the hardest negatives are often correct: {m.duplicates:.1%} of them have almost the same caption as the "
            "query."
        ),
        advice="--ignore-equal-text ignores pairs whose captions are equal word for word; merge duplicate images "
        "(tercet data inspect); objectives that push many negatives are less affected than those that push only the "
        "hardest (--objective nt-xent).",
    ),
    DiagnosticRule(
        name="leakage",
        quantity="share of held-out images whose features nearly equal those of a training image (cosine of centred "
        "features of at least 0.995)",
        worse="above",
        threshold=0.01,
        source="ours: 1 % of leaked images can change R@1 by a point",
        value=lambda m: m.leaked,
        describe=lambda m: (
            f"{m.leaked:.1%} of the held-out {m.sides.images} are also in the training split, as is or as copies."
        ),
        advice="Remove them from one of the splits before trusting any metric, and run tercet train again; "
        "doctor.json lists them.",
    ),
    DiagnosticRule(
        name="unbalanced directions",
        quantity="mean share of negatives ranked ahead of a positive, worse direction divided by better",
        worse="above",
        threshold=1.5,
        source=OURS,
        value=lambda m: m.imbalance,
        describe=lambda m: (
            f"one direction ranks positives {m.imbalance:.1f} times as low: {m.ahead_i2t:.1%} of the negative "
            f"{m.sides.captions} are ahead of those of the {m.sides.image}, {m.ahead_t2i:.1%} of the negative "
            f"{m.sides.images} ahead of those of the {m.sides.caption}."
        ),
        advice="Check that the objective trains both directions with the same sign (tercet.check_objective). "
        "Otherwise select the checkpoint by the weaker direction: --select-metric i2t_r1 or --select-metric t2i_r1. "
        "Hubs in one modality also cause this.",
        explained_by=("collapse", "under-training"),
    ),
    DiagnosticRule(
        name="under-training",
        quantity="rise of validation over the last third of the epochs, divided by its best value (1 if the model is "
        "at chance level)",
        worse="above",
        threshold=0.05,
        source=OURS,
        value=lambda m: 1.0 if m.is_at_chance else m.rise,
        describe=lambda m: (
            f"the model is at chance level: {min(m.ahead_i2t, m.ahead_t2i):.0%} of the negatives are ahead of a "
            "positive."
            if m.is_at_chance
            else f"validation was still rising when training ended: by {m.rise:.1%} in the last third of the epochs."
        ),
        advice="More --epochs or a higher --learning-rate; a --schedule that decays late (linear) keeps the learning "
        "rate up.",
        missing_reason=_no_curve,
        explained_by=("collapse", "dead objective"),
        explained_while_rising=("dead objective",),
    ),
    DiagnosticRule(
        name="over-fitting",
        quantity="fall of validation from its best to its last epoch, divided by its best value",
        worse="above",
        threshold=0.05,
        source=OURS,
        value=lambda m: m.fall,
        describe=lambda m: (
            f"validation fell by {m.fall:.1%} after its best epoch; rsum is {m.train_rsum:.0f} on training "
            f"{m.sides.images} "
            f"and {m.held_out_rsum:.0f} on as many held-out {m.sides.images}."
        ),
        advice="Fewer --epochs, a --schedule that decays to 0 (cosine), more --weight-decay, {augmentations}a "
        "smaller model, or more data. The saved weights are those of the best epoch; --patience ends training there.",
        missing_reason=_no_curve,
        explained_by=("collapse", "unbalanced directions"),
    ),
)
