"""A comparison in words: what to use, how sure that is, what speaks against it, and how it was done.

The verdict states what the tests show, and no more. A row whose training was too short, too long or failed carries no
claim: the measurements and thresholds are those of `tercet doctor` that need no model, only the record of a run. One
seed supports statements about these very weights only. `methods` is a paragraph for the methods section of a paper.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any, Literal

from tercet import runs
from tercet.analysis.diagnostics.measurements import CHANCE_LEVEL, rise_and_fall
from tercet.analysis.diagnostics.rules import RULES
from tercet.comparison.family import Looks, Pair, Significance, methods_of_tests
from tercet.comparison.results import Results, Run
from tercet.comparison.tuning import Search
from tercet.evaluation.metrics import largest_value
from tercet.evaluation.significance import LEVEL, MAX_SEEDS, POWER

THRESHOLDS = {rule.name: rule.threshold for rule in RULES}
Kind = Literal["rising", "one validation", "over-fitted", "at chance level", "rate at the end"]
MAX_NAMES = 6  # variants listed in a sentence; the rest is counted
NO_CLAIM: dict[Kind, str] = {
    "rising": "validation was still rising when training ended: more --epochs",
    "one validation": "validation may still have been rising when training ended: more --epochs",
    "over-fitted": "validation fell after its best epoch: fewer --epochs",
    "at chance level": "the model is at chance level: collapsed or not trained, see tercet doctor",
}


@dataclass(frozen=True)
class Caution:
    """About one variant."""

    name: str
    kind: Kind
    measured: str
    """With numbers, for the sentence "NAME (measured)"."""

    @property
    def voids(self) -> bool:
        """The row carries no claim: with another number of epochs it might be elsewhere in the table."""
        return self.kind != "rate at the end"


def verdict(
    results: Results,
    significance: Significance,
    metric: str,
    *,
    found: Sequence[Caution] = (),
    fairness: str = "",
    tuned: bool = False,
    looks: Looks | None = None,
) -> str:
    """The whole paragraph. `fairness`: sentence on steps and learning rates, from `fairness_note`."""
    if not significance.order:
        return "No run finished: there is nothing to compare."
    text = _Text(results, significance, metric, found)
    failed = [failure.name for failure in results.failures if not failure.trial]
    sentences = [
        *text.statement(),
        text.costs(),
        *text.cautions(),
        text.changes(tuned),
        ""
        if results.split == "test"
        else f"There is no test split: the checkpoint was selected on these {results.sides.images}, so the numbers are "
        "optimistically biased.",
        "" if looks is None else looks_note(looks, significance),
        fairness,
        f"{'1 run failed and is' if len(failed) == 1 else f'{len(failed)} runs failed and are'} not included: "
        f"{_join(failed)}."
        if failed
        else "",
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def statement(significance: Significance, metric: str) -> str:
    """What to use and how sure that is, from the tests alone."""
    return " ".join(_Text(None, significance, metric, ()).statement())


def recommended(significance: Significance, found: Sequence[Caution]) -> list[str]:
    """Variants that may be the best of those that carry a claim; with a baseline, it or the one to use instead."""
    names, baseline = _claimable(significance, found), significance.baseline
    significant = [pair for pair in significance.pairs if pair.significant and {pair.first, pair.second} <= set(names)]
    if baseline in names:
        better = [pair.first for pair in significant if pair.second == baseline]
        return [min(better, key=names.index)] if better else [baseline]
    return [name for name in names if name not in {pair.second for pair in significant}]


def next_step(
    results: Results, significance: Significance, found: Sequence[Caution], epochs: int | None
) -> tuple[Path | None, str]:
    """The run folder to continue with, chosen on validation, and the command that tells most."""
    if not significance.order:
        return None, ""
    names = recommended(significance, found) or list(significance.order)
    folder = _best_run(results, names[0])
    kinds = {caution.name: caution.kind for caution in found}
    first = kinds.get(significance.order[0])
    if first in ("rising", "one validation") or not _claimable(significance, found):
        longer = "" if epochs is None else f" {2 * epochs}"
        why = "validation was still rising" if first != "one validation" else "one validation does not show a trend"
        return folder, f"the same command with --epochs{longer}, because {why}"
    if len(significance.order) > 1 and significance.one_seed:
        return folder, "the same command with --seeds 3, because one seed says nothing about training"
    of_leader = significance.of(significance.baseline or names[0])
    open_questions = [
        pair for pair in of_leader if not pair.decided and (significance.baseline or _other(pair, names[0]) in names)
    ]
    if open_questions and all(_more_seeds_help(pair, significance) for pair in open_questions):
        return folder, "the same command with --until-decided"
    return folder, f"tercet doctor {shlex.quote(str(folder))}"


def power_note(pair: Pair, significance: Significance, metric: str) -> str:
    """Size of a difference, what these seeds can detect, and how many seeds it would need."""
    test, places, level = pair.test, significance.places, significance.level
    interval = f"(95 % interval {pair.low:+.{places}f} to {pair.high:+.{places}f})"
    if not pair.difference:
        return f"{pair.first} and {pair.second} have equal means {interval}."
    size = f"{pair.first} leads {pair.second} by {pair.difference:.{places}f} points {interval}"
    detectable = test.detectable(level)
    if detectable is None:
        return f"{size}."
    if detectable >= largest_value(metric):
        power = f"{size}; {test.seeds} seeds are too few to detect any difference"
    else:
        power = (
            f"{size}; {test.seeds} seeds detect a difference of {detectable:.{places}f} points with "
            f"{100 * POWER:.0f} % power"
        )
    needed = test.seeds_needed(level)
    if needed is None:
        units = f"{test.images:,} {significance.sides.units}"
        return f"{power}, and no number of seeds would detect one this small on {units}."
    if needed > MAX_SEEDS:
        return f"{power}, and one this small would need more than {MAX_SEEDS:,} seeds."
    return f"{power}, and one this small would need about {max(needed, test.seeds + 1)} seeds."


def looks_note(looks: Looks, significance: Significance) -> str:
    """What `--until-decided` did and what it cost."""
    planned = _join([str(seeds) for seeds in looks.planned])
    end = "decided" if significance.decided else "not decided"
    return (
        f"Seeds until decided: {end} at {looks.reached} seeds, after {looks.runs} runs and {_duration(looks.seconds)} "
        f"of training; tests were planned at {planned} seeds, each with 1/{len(looks.planned)} of the error rate of "
        f"{LEVEL}, so that p-values are {len(looks.planned)} times those of a number of seeds fixed beforehand."
    )


def fairness_note(steps: Mapping[str, Sequence[int]], rates: Sequence[float], *, not_tuned: str | None) -> str:
    """Sentence on what was equal between runs: steps, and learning rates if they were not tuned.

    `steps`: model -> steps of its runs; `not_tuned`: the reason, or None.
    """
    distinct_steps = {count for counts in steps.values() for count in counts}
    if len(distinct_steps) == 1:
        training = f"All runs were trained for {distinct_steps.pop():,} steps"
    elif all(len(set(counts)) == 1 for counts in steps.values()):
        training = "All runs of a model were trained for the same number of steps (each model has its own recipe)"
    else:
        training = "Runs were trained for different numbers of steps: rows set it, or it was tuned"
    if not_tuned is None:
        return f"{training}."
    rate = (
        f"the same learning rate, {rates[0]:g}" if len(set(rates)) == 1 else "the learning rate of their row or recipe"
    )
    return f"{training} with {rate} (not tuned: {not_tuned})."


def cautions(results: Results, tuned: Mapping[str, Sequence[Search]]) -> list[Caution]:
    """Everything that speaks against a claim, in the order of the variants."""
    found = []
    for name in results.names():
        trained = _of_training(name, list(results.runs[name].values()))
        rate = _of_rate(name, tuned[name][0]) if tuned.get(name) else None
        found += [caution for caution in (trained, rate) if caution is not None]
    return found


def _of_training(name: str, variant_runs: Sequence[Run]) -> Caution | None:
    """Means over seeds, by the first rule that applies."""
    ahead = min(mean(shares) for shares in zip(*(run.ranks.shares_ahead() for run in variant_runs), strict=True))
    if ahead > CHANCE_LEVEL:
        return Caution(name, "at chance level", f"{100 * ahead:.0f} % of the negatives are ahead of a positive")
    curves = [_curve(run) for run in variant_runs]
    if all(len(curve) == 1 for curve in curves):
        return Caution(name, "one validation", "validated once")
    changes = [rise_and_fall(curve) for curve in curves]
    rises = [rise for rise, _ in changes if rise is not None]
    falls = [fall for _, fall in changes if fall is not None]
    if rises and mean(rises) > THRESHOLDS["under-training"]:
        return Caution(name, "rising", f"+{100 * mean(rises):.0f} % in the last third of the epochs")
    if falls and mean(falls) > THRESHOLDS["over-fitting"]:
        return Caution(name, "over-fitted", f"-{100 * mean(falls):.0f} % after the best epoch")
    return None


def _of_rate(name: str, search: Search) -> Caution | None:
    if not search.at_end:
        return None
    end = "smallest" if search.chosen == min(search.screening) else "largest"
    return Caution(name, "rate at the end", f"{search.chosen:g}, the {end} of {len(search.screening)}")


def _curve(run: Run) -> list[float]:
    return runs.read_selection(run.folder, str(runs.read_settings(run.folder).get("select_metric", "rsum")))


def methods(
    results: Results,
    significance: Significance,
    metric: str,
    *,
    data: str,
    fairness: str,
    found: Sequence[Caution] = (),
    looks: Looks | None = None,
) -> str:
    """How the runs were trained and compared."""
    if not significance.order:
        return ""
    sentences = [
        *_training(results, significance, data),
        fairness,
        f"We report {metric} on {significance.images:,} {results.split} {significance.sides.units}, as mean and "
        "standard deviation (n-1) over seeds.",
        *(methods_of_tests(significance, looks) if significance.pairs else []),
        *_excluded(found),
        _software(results),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


@dataclass(frozen=True)
class _Text:
    """Sentences about one comparison. `results` is None if there are per-image values only."""

    results: Results | None
    significance: Significance
    metric: str
    found: Sequence[Caution]

    def statement(self) -> list[str]:
        """What to use, and how sure that is."""
        order, names = self.significance.order, _claimable(self.significance, self.found)
        if len(order) == 1:
            return [f"{order[0]} has {self._value(order[0])}; there is nothing to compare it with."]
        if not names:
            return [
                f"No claim: no objective was trained to its end. {order[0]} has the highest {self._value(order[0])}."
            ]
        if self.significance.one_seed:
            return self._on_these_weights(names)
        if self.significance.baseline is not None:
            return self._against_baseline(names, self.significance.baseline)
        best = recommended(self.significance, self.found)
        return self._one_best(best[0], names) if len(best) == 1 else self._several_best(best, names)

    def costs(self) -> str:
        """Seconds of training relative to the baseline, or to the fastest."""
        if self.results is None or len(self.significance.order) < 2:
            return ""
        names = recommended(self.significance, self.found) or [self.significance.order[0]]
        seconds = {
            name: median(run.machine["seconds"] for run in self.results.runs[name].values())
            for name in self.results.names()
        }
        cheapest = min(names, key=lambda name: seconds[name])
        baseline = self.significance.baseline
        other = min(seconds, key=lambda name: seconds[name]) if baseline is None else baseline
        cost = f"A run of {cheapest} takes {_duration(seconds[cheapest])}"
        if len(names) > 1:
            cost = f"The cheapest of them to train is {cheapest}: a run takes {_duration(seconds[cheapest])}"
        if other == cheapest:
            return f"{cost}{', the least of all' if baseline is None else ''}."
        ratio = seconds[cheapest] / max(seconds[other], 1e-9)
        what = "the fastest" if baseline is None else "the baseline"
        long = "about as long as" if 0.95 <= ratio < 1.05 else f"{ratio:.1f} times as long as"
        return f"{cost}, {long} {what}, {other}."

    def cautions(self) -> list[str]:
        """Rows without a claim, and learning rates that may be elsewhere."""
        sentences = []
        for kind, why in NO_CLAIM.items():
            of_kind = [f"{caution.name} ({caution.measured})" for caution in self.found if caution.kind == kind]
            if of_kind:
                sentences.append(f"No claim is made about {_join(of_kind)}: {why}.")
        ends = [f"{caution.name} ({caution.measured})" for caution in self.found if caution.kind == "rate at the end"]
        if ends:
            rates = "The learning rate of" if len(ends) == 1 else "The learning rates of"
            sentences.append(f"{rates} {_join(ends)} {'is' if len(ends) == 1 else 'are'} at the end of the search.")
        return sentences

    def changes(self, tuned: bool) -> str:
        """What may change the verdict, as far as these runs show it."""
        if len(self.significance.order) < 2:
            return ""
        kinds = {caution.kind for caution in self.found}
        reasons = [
            *([] if tuned else ["a learning rate tuned for each objective"]),
            *(["learning rates beyond the end of the search"] if "rate at the end" in kinds else []),
            *(["more epochs"] if {"rising", "one validation"} & kinds else []),
            *(["fewer epochs"] if "over-fitted" in kinds else []),
            *(["other seeds"] if self.significance.one_seed else []),
        ]
        return f"What may change this: {_join(reasons)}; other data and models." if reasons else ""

    def _one_best(self, best: str, names: Sequence[str]) -> list[str]:
        """Every other one is worse than some variant, not necessarily than the best."""
        pairs = [pair for pair in self.significance.of(best) if {pair.first, pair.second} <= set(names)]
        beaten = [pair for pair in pairs if pair.significant]
        others = [pair.second if pair.first == best else pair.first for pair in pairs if not pair.significant]
        sentences = [f"Use {best}: {self._value(best)}.", *self._better(beaten, everyone=not others)]
        if others:
            sentences.append(
                f"It does not differ significantly from {_join(others)}, which another one is better than."
            )
        return sentences

    def _several_best(self, best: Sequence[str], names: Sequence[str]) -> list[str]:
        undecided = [pair for pair in self.significance.pairs if {pair.first, pair.second} <= set(best)]
        open_pairs = [pair for pair in undecided if not pair.decided]
        within = f"within {self.significance.rope:g} points of each other" if self.significance.rope else ""
        if not open_pairs and undecided:
            alike = within if any(not pair.test.identical for pair in undecided) else "the same on every image and seed"
            sentences = [f"Use any of {_join(best)}: {self._values(best)}; they are {alike}."]
        else:
            sentences = [f"Use any of {_join(best)}: {self._values(best)}; which is best is not decided."]
        beaten = [name for name in names if name not in best]
        if beaten:
            verb = "is" if len(beaten) == 1 else "are each"
            sentences.append(f"{_join(beaten)} {verb} worse than at least one of them ({self._test()}).")
        sentences += self._untested(best)
        if open_pairs:
            sentences.append(power_note(open_pairs[0], self.significance, self.metric))
        return sentences

    def _against_baseline(self, names: Sequence[str], baseline: str) -> list[str]:
        """Answers to Dunnett's question: which differ from the baseline?"""
        if baseline not in names:
            return [f"No claim: the baseline {baseline} was not trained to its end."]
        pairs = [pair for pair in self.significance.of(baseline) if {pair.first, pair.second} <= set(names)]
        better = [pair for pair in pairs if pair.significant and pair.second == baseline]
        worse = [pair for pair in pairs if pair.significant and pair.first == baseline]
        other = [pair for pair in pairs if not pair.significant]
        (use,) = recommended(self.significance, self.found)
        sentences = [f"{'Use' if better else 'Stay with'} {use}: {self._value(use)}."]
        if better:
            those = _join([pair.first for pair in better])
            sizes = self._sizes(better)
            sentences.append(f"Better than the baseline {baseline}, by {sizes} points: {those} ({self._test()}).")
        else:
            sentences.append("None is better than the baseline.")
        if worse:
            sentences.append(f"Worse, by {self._sizes(worse)} points: {_join([pair.second for pair in worse])}.")
        identical = [_other(pair, baseline) for pair in other if pair.test.identical]
        if identical:
            sentences.append(f"The same as the baseline on every image and seed: {_join(identical)}.")
        close = [_other(pair, baseline) for pair in other if pair.equivalent and not pair.test.identical]
        if close:
            sentences.append(f"Within {self.significance.rope:g} points of it: {_join(close)}.")
        undecided = [pair for pair in other if not pair.decided]
        if undecided:
            sentences.append(
                f"Not significantly different from it: {_join([_other(pair, baseline) for pair in undecided])}."
            )
            sentences.append(power_note(undecided[0], self.significance, self.metric))
        return sentences + self._untested([baseline])

    def _on_these_weights(self, names: Sequence[str]) -> list[str]:
        best = names[0]
        better = [pair for pair in self.significance.of(best) if pair.differs and pair.second in names]
        sentences = [f"On these very weights {best} has the highest {self._value(best)}."]
        if better:
            others = _join([pair.second for pair in better])
            sentences.append(
                f"They rank these {self.significance.sides.images} better than those of {others} ({self._test()})."
            )
        return [*sentences, "One seed says nothing about training: with another seed the order may be another."]

    def _better(self, pairs: Sequence[Pair], *, everyone: bool) -> list[str]:
        """Whom it beats by how much, and how sure the smallest difference is."""
        if not pairs:
            return []
        places, closest = self.significance.places, min(pairs, key=lambda pair: pair.difference)
        interval = f"95 % interval {closest.low:+.{places}f} to {closest.high:+.{places}f}"
        if len(pairs) == 1:
            size = f"{closest.difference:.{places}f} points ({interval}; {self._test()})"
            return [f"It is better than {closest.second}, by {size}."]
        others = f"all {len(pairs)} others" if everyone else _join([pair.second for pair in pairs])
        closest_one = f"the closest is {closest.second}, {interval}"
        return [f"It is better than {others}, by {self._sizes(pairs)} points ({self._test()}; {closest_one})."]

    def _sizes(self, pairs: Sequence[Pair]) -> str:
        places, sizes = self.significance.places, [pair.difference for pair in pairs]
        smallest, largest = (f"{size:.{places}f}" for size in (min(sizes), max(sizes)))
        return smallest if smallest == largest else f"{smallest} to {largest}"

    def _test(self) -> str:
        tests = len(self.significance.pairs)
        units = self.significance.sides.units
        over = units if self.significance.one_seed else f"seeds and {units}"
        correction = f", Holm-corrected for {tests} comparisons" if tests > 1 else ""
        return f"p < {LEVEL} over {over}{correction}"

    def _untested(self, names: Sequence[str]) -> list[str]:
        pairs = [pair for pair in self.significance.untested if set(pair) & set(names)]
        return [f"{first} shares too few seeds with {second} for a test." for first, second in pairs]

    def _value(self, name: str) -> str:
        """`rsum 408.2 ± 0.5 (mean ± std over 3 seeds; 1,000 test images)`."""
        of, places = self.significance, self.significance.places
        std = of.stds[name]
        value = f"{of.means[name]:.{places}f}" + ("" if std is None else f" ± {std:.{places}f}")
        seeds = f"mean ± std over {of.seeds[name]} seeds" if std is not None else "one seed"
        return f"{self.metric} {value} ({seeds}; {self._images()})"

    def _values(self, names: Sequence[str]) -> str:
        of, places = self.significance, self.significance.places
        means = [of.means[name] for name in names]
        lowest, highest = (f"{mean:.{places}f}" for mean in (min(means), max(means)))
        seeds = {of.seeds[name] for name in names}
        count = f"{min(seeds)}" if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}"
        value = lowest if lowest == highest else f"{lowest} to {highest}"
        return f"{self.metric} {value} (means over {count} seeds; {self._images()})"

    def _images(self) -> str:
        split = "" if self.results is None else f"{self.results.split} "
        return f"{self.significance.images:,} {split}{self.significance.sides.units}"


def _claimable(significance: Significance, found: Sequence[Caution]) -> list[str]:
    void = {caution.name for caution in found if caution.voids}
    return [name for name in significance.order if name not in void]


def _more_seeds_help(pair: Pair, significance: Significance) -> bool:
    return pair.test.seeds_needed(significance.level) is not None


def _best_run(results: Results, name: str) -> Path:
    """The run with the best validation; the first without validation."""

    def selected(folder: Path) -> float:
        select_metric = str(runs.read_settings(folder).get("select_metric", "rsum"))
        return max(runs.read_selection(folder, select_metric), default=0.0)

    return max((run.folder for _, run in sorted(results.runs[name].items())), key=selected)


def _other(pair: Pair, name: str) -> str:
    return pair.second if pair.first == name else pair.first


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


def _join(names: Sequence[str]) -> str:
    """`a, b and c`; of many names the first ones and how many more there are."""
    many = len(names) > MAX_NAMES + 1
    items = [*names[:MAX_NAMES], f"{len(names) - MAX_NAMES} more"] if many else list(names)
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _training(results: Results, significance: Significance, data: str) -> list[str]:
    settings = [runs.read_settings(run.folder) for by_seed in results.runs.values() for run in by_seed.values()]
    seeds = sorted(set(significance.seeds.values()))
    count = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    models = ", ".join(dict.fromkeys(variant.model for variant in results.variants))
    names = ", ".join(significance.order)
    objectives = "1 objective" if len(significance.order) == 1 else f"{len(significance.order)} objectives"
    sentences = [
        f"We trained {models} on {data} with {objectives} ({names}) and {count} seed{'' if seeds == [1] else 's'} each."
    ]
    parts = {
        "optimizer": "optimizer {}",
        "weight_decay": "weight decay {}",
        "batch_size": "batch size {}",
        "epochs": "epochs {}",
        "schedule": "{} schedule",
        "warmup_epochs": "warm-up epochs {}",
        "grad_clip": "gradient clipping at norm {}",
    }
    values = {name: _shared(settings, name) for name in parts}
    equal = [text.format(_text(values[name])) for name, text in parts.items() if values[name] is not None]
    if equal:
        sentences.append(f"Settings of all runs: {', '.join(equal)}.")
    select = _shared(settings, "select_metric")
    if select is not None:
        sentences.append(f"The checkpoint was selected by {select} on validation.")
    return sentences


def _shared(settings: Sequence[dict[str, Any]], name: str) -> Any:
    """The value of a setting if it is the same in all runs."""
    values = {json.dumps(each.get(name)) for each in settings}
    return json.loads(values.pop()) if len(values) == 1 else None


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _excluded(found: Sequence[Caution]) -> list[str]:
    void = [f"{caution.name} ({caution.kind})" for caution in found if caution.voids]
    return [f"Objectives that were not trained to their end carry no claim: {', '.join(void)}."] if void else []


def _software(results: Results) -> str:
    machine = next(run.machine for by_seed in results.runs.values() for run in by_seed.values())
    versions = {"Tercet": machine.get("tercet"), "PyTorch": machine.get("torch")}
    named = [f"{name} {version}" for name, version in versions.items() if version is not None]
    return f"Software: {', '.join(named)}." if named else ""
