"""The answer in a paragraph. It says what the tests say, and no more."""

from collections.abc import Mapping, Sequence

from tercet.comparison.judgement import Judgement, Pair
from tercet.comparison.results import Results
from tercet.evaluation.statistics import LEVEL, MOST_SEEDS

NAMED = 6  # contestants that a sentence lists; more are counted


def verdict(results: Results, judgement: Judgement, fairness: str) -> str:
    """`fairness`: how learning rates were chosen, and what was equal."""
    if not judgement.order:
        return "No run finished: there is nothing to compare."
    best = judgement.order[0]
    sentences = [_first(results, judgement)]
    against = judgement.against_best()
    alone = [other for pair in judgement.untested if best in pair for other in pair if other != best]
    if alone:
        sentences.append(f"It shares too few seeds with {_listed(alone)}: that was not tested.")
    sentences += _wins([pair for pair in against if pair.real], len(judgement.pairs))
    sentences += _ties([pair for pair in against if not pair.real], judgement)
    if against and all(pair.found.seeds == 1 for pair in against):
        sentences.append(
            "One seed tells nothing about the luck of training: these are differences of these very weights."
        )
    if results.split != "test":
        sentences.append(
            "There is no test split: weights were chosen on the very images of these numbers, which flatters."
        )
    sentences.append(fairness)
    failed = [failure.name for failure in results.failures if not failure.trial]
    if failed:
        many = "1 run failed and is" if len(failed) == 1 else f"{len(failed)} runs failed and are"
        sentences.append(f"{many} not in these numbers: {_listed(failed)}.")
    return " ".join(sentence for sentence in sentences if sentence)


def _first(results: Results, judgement: Judgement) -> str:
    """Who is first, or who are."""
    metric, best = judgement.metric, judgement.order[0]
    spread = results.std(best, metric)
    number = f"{results.mean(best, metric):.1f}" + ("" if spread is None else f" ± {spread:.1f}")
    seeds = len(results.runs[best])
    over = f"mean ± std over {seeds} seeds" if spread is not None else "one seed"
    where = f"{number} ({over}; {_images(results, best):,} {results.split} images)"
    if len(judgement.order) == 1:
        return f"{best} has an {metric} of {where}; there is nothing to compare it with."
    level = [name for name in judgement.order if results.mean(name, metric) == results.mean(best, metric)]
    if len(level) > 1:
        return f"{_listed(level)} share the highest {metric}, {where}."
    return f"{best} has the highest {metric}, {where}."


def _wins(wins: Sequence[Pair], tests: int) -> list[str]:
    if not wins:
        return []
    sizes = [pair.found.difference for pair in wins]
    by = f"by {sizes[0]:.1f}" if len(sizes) == 1 else f"by {min(sizes):.1f} to {max(sizes):.1f}"
    kind = "over images" if wins[0].found.seeds == 1 else "over seeds and images"
    corrected = f", corrected for {tests} comparisons" if tests > 1 else ""
    return [f"It beats {_listed([pair.second for pair in wins])} {by} points (p < {LEVEL} {kind}{corrected})."]


def _ties(ties: Sequence[Pair], judgement: Judgement) -> list[str]:
    """Each near one with its interval and with what it would take."""
    sentences = []
    same = [pair.second for pair in ties if pair.same]
    if same:
        sentences.append(f"{_listed(same)} gave the very same ranks.")
    open_pairs = [pair for pair in ties if not pair.same]
    if not open_pairs:
        return sentences
    sentences.append(f"It cannot be told apart from {_listed([pair.second for pair in open_pairs])}.")
    sentences.append(what_it_would_take(open_pairs[0], judgement.level))
    return sentences


def what_it_would_take(pair: Pair, level: float) -> str:
    """Plainly: what these seeds could have found, and how many would do."""
    found = pair.found
    interval = f"({found.low:+.1f} to {found.high:+.1f})"
    size = f"{pair.first} leads {pair.second} by {found.difference:.1f} points {interval}"
    if not found.difference:
        size = f"{pair.first} and {pair.second} are level {interval}"
    least = found.detectable(level)
    if least is None:
        return f"{size}, with one seed."
    could = f"{size}; {found.seeds} seeds find a difference of {least:.1f} points four times of five"
    needed = found.seeds_needed(level)
    if not found.difference:
        return f"{could}."
    if needed is None:
        return f"{could}, and no number of seeds would find one this small on {found.images:,} images."
    if needed > MOST_SEEDS:
        return f"{could}, and one this small would take more than {MOST_SEEDS:,}."
    return f"{could}, and for one this small about {max(needed, found.seeds + 1)} would do."


def fairness_said(
    steps: Mapping[str, Sequence[int]], rates: Sequence[float], *, tuned: tuple[Sequence[float], Sequence[float]] | None
) -> str:
    """What was equal, and which of the two ways to choose a learning rate was taken.

    `steps` of the runs of each model; `tuned`: the factors, and the rates that they multiply.
    """
    every = {number for each in steps.values() for number in each}
    if len(every) == 1:
        made = f"All runs made {every.pop():,} steps"
    elif all(len(set(each)) == 1 for each in steps.values()):
        made = "All runs of a model made the same number of steps (models keep their own recipes)"
    else:
        made = "Runs did not make the same number of steps, since the settings of some rows say so"
    if tuned is not None:
        factors, bases = tuned
        grid = ", ".join(f"{factor:g}" for factor in factors)
        base = f"{bases[0]:g}" if len(set(bases)) == 1 else "the rate that its row or recipe names"
        return (
            f"{made}; each objective's learning rate was chosen on validation out of the same multiples ({grid}) of "
            f"{base}, with a seed that is not reported."
        )
    one = (
        f"one learning rate, {rates[0]:g}" if len(set(rates)) == 1 else "the learning rate that its row or recipe names"
    )
    return f"{made} with {one}, chosen by no result."


def _images(results: Results, name: str) -> int:
    run = next(iter(results.runs[name].values()))
    return int(run.metrics["i2t_queries"])


def _listed(names: Sequence[str]) -> str:
    shown = list(names[:NAMED]) + ([f"{len(names) - NAMED} more"] if len(names) > NAMED else [])
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
