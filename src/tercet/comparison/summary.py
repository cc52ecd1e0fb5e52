"""The result of a comparison as a paragraph. It states what the tests show, and no more."""

from collections.abc import Mapping, Sequence

from tercet.comparison.results import Pair, Results, SignificanceTable
from tercet.evaluation.significance import LEVEL, MAX_SEEDS, POWER

MAX_NAMES = 6  # variants listed in a sentence; the rest is counted


def verdict(results: Results, significance: SignificanceTable, fairness: str) -> str:
    """The whole paragraph. `fairness`: sentence on steps and learning rates, from `fairness_note`."""
    if not significance.order:
        return "No run finished: there is nothing to compare."
    best = significance.order[0]
    sentences = [_best_variant(results, significance)]
    against = significance.against_best()
    untested = [other for pair in significance.untested if best in pair for other in pair if other != best]
    if untested:
        sentences.append(f"{best} shares too few seeds with {_join(untested)} for a significance test.")
    sentences += _significant([pair for pair in against if pair.significant], len(significance.pairs))
    sentences += _not_significant([pair for pair in against if not pair.significant], significance)
    if against and all(pair.test.seeds == 1 for pair in against):
        sentences.append(
            "With one seed the variance of training is unknown: the tests apply to these trained weights only."
        )
    if results.split != "test":
        sentences.append(
            "There is no test split: the checkpoint was selected on these images, so the numbers are optimistically "
            "biased."
        )
    sentences.append(fairness)
    failed = [failure.name for failure in results.failures if not failure.trial]
    if failed:
        count = "1 run failed and is" if len(failed) == 1 else f"{len(failed)} runs failed and are"
        sentences.append(f"{count} not included: {_join(failed)}.")
    return " ".join(sentence for sentence in sentences if sentence)


def power_note(pair: Pair, level: float) -> str:
    """Size of a difference, what these seeds can detect, and how many seeds it would need."""
    test = pair.test
    interval = f"(95 % interval {test.low:+.1f} to {test.high:+.1f})"
    size = f"{pair.first} leads {pair.second} by {test.difference:.1f} points {interval}"
    if not test.difference:
        size = f"{pair.first} and {pair.second} have equal means {interval}"
    detectable = test.detectable(level)
    if detectable is None:
        return f"{size}, with one seed."
    power = f"{size}; {test.seeds} seeds detect a difference of {detectable:.1f} points with {100 * POWER:.0f} % power"
    needed = test.seeds_needed(level)
    if not test.difference:
        return f"{power}."
    if needed is None:
        return f"{power}, and no number of seeds would detect one this small on {test.images:,} images."
    if needed > MAX_SEEDS:
        return f"{power}, and one this small would need more than {MAX_SEEDS:,} seeds."
    return f"{power}, and one this small would need about {max(needed, test.seeds + 1)} seeds."


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


def _best_variant(results: Results, significance: SignificanceTable) -> str:
    """The variant with the highest mean, or those that tie."""
    metric, best = significance.metric, significance.order[0]
    std = results.std(best, metric)
    value = f"{results.mean(best, metric):.1f}" + ("" if std is None else f" ± {std:.1f}")
    seeds = f"mean ± std over {len(results.runs[best])} seeds" if std is not None else "one seed"
    value = f"{value} ({seeds}; {_image_count(results, best):,} {results.split} images)"
    if len(significance.order) == 1:
        return f"{best} has {metric} {value}; there is nothing to compare it with."
    tied = [name for name in significance.order if results.mean(name, metric) == results.mean(best, metric)]
    if len(tied) > 1:
        return f"{_join(tied)} tie for the highest {metric}, {value}."
    return f"{best} has the highest {metric}, {value}."


def _significant(pairs: Sequence[Pair], tests: int) -> list[str]:
    if not pairs:
        return []
    sizes = [pair.test.difference for pair in pairs]
    size = f"{sizes[0]:.1f}" if len(sizes) == 1 else f"{min(sizes):.1f} to {max(sizes):.1f}"
    over = "over images" if pairs[0].test.seeds == 1 else "over seeds and images"
    correction = f", Holm-corrected for {tests} comparisons" if tests > 1 else ""
    others = _join([pair.second for pair in pairs])
    return [
        f"{pairs[0].first} is significantly better than {others}, by {size} points (p < {LEVEL} {over}{correction})."
    ]


def _not_significant(pairs: Sequence[Pair], significance: SignificanceTable) -> list[str]:
    """Identical variants, the others, and a power estimate for the closest of these."""
    sentences = []
    identical = [pair.second for pair in pairs if pair.identical]
    if identical:
        verb = "has" if len(identical) == 1 else "have"
        sentences.append(
            f"{_join(identical)} {verb} the same {significance.metric} as {pairs[0].first} on every image and seed."
        )
    differing = [pair for pair in pairs if not pair.identical]
    if not differing:
        return sentences
    others = _join([pair.second for pair in differing])
    sentences.append(f"{differing[0].first} is not significantly better than {others}.")
    sentences.append(power_note(differing[0], significance.level))
    return sentences


def _image_count(results: Results, name: str) -> int:
    run = next(iter(results.runs[name].values()))
    return int(run.metrics["i2t_queries"])


def _join(names: Sequence[str]) -> str:
    """`a, b and c`."""
    items = list(names[:MAX_NAMES]) + ([f"{len(names) - MAX_NAMES} more"] if len(names) > MAX_NAMES else [])
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
