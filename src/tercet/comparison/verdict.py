"""The answer in a paragraph. It says what the tests say, and no more."""

from collections.abc import Sequence

from tercet.comparison.judgement import Judgement, Pair
from tercet.comparison.results import Results
from tercet.evaluation.statistics import LEVEL

NAMED = 6  # contestants that a sentence lists; more are counted


def verdict(results: Results, judgement: Judgement, fairness: str) -> str:
    """`fairness`: how learning rates were chosen, and what was equal."""
    if not judgement.order:
        return "No run finished: there is nothing to compare."
    best = judgement.order[0]
    spread = results.std(best, judgement.metric)
    number = f"{results.mean(best, judgement.metric):.1f}" + ("" if spread is None else f" ± {spread:.1f}")
    images = _images(results, best)
    seeds = len(results.runs[best])
    over = f"mean ± std over {seeds} seeds" if spread is not None else "one seed"
    sentences = [f"{best} has the highest {judgement.metric}, {number} ({over}; {images:,} {results.split} images)."]
    against = judgement.against_best()
    if not against and len(judgement.order) > 1:
        sentences.append("It shares no seed with the others, so nothing was tested.")
    sentences += _wins(best, [pair for pair in against if pair.real], len(judgement.pairs))
    sentences += _ties(best, [pair for pair in against if not pair.real], judgement)
    if against and all(pair.found.seeds == 1 for pair in against):
        sentences.append(
            "One seed tells nothing about the luck of training: these are differences of these very weights."
        )
    sentences.append(fairness)
    if results.failures:
        names = _listed([failure.name for failure in results.failures])
        sentences.append(f"{len(results.failures)} runs failed and are not in these numbers: {names}.")
    return " ".join(sentences)


def _wins(best: str, wins: Sequence[Pair], tests: int) -> list[str]:
    if not wins:
        return []
    sizes = [pair.found.difference for pair in wins]
    by = f"by {sizes[0]:.1f}" if len(sizes) == 1 else f"by {min(sizes):.1f} to {max(sizes):.1f}"
    kind = "over images" if wins[0].found.seeds == 1 else "over seeds and images"
    corrected = f", corrected for {tests} comparisons" if tests > 1 else ""
    return [f"It beats {_listed([pair.second for pair in wins])} {by} points (p < {LEVEL} {kind}{corrected})."]


def _ties(best: str, ties: Sequence[Pair], judgement: Judgement) -> list[str]:
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
    size = f"{pair.first} leads {pair.second} by {found.difference:.1f} points ({found.low:+.1f} to {found.high:+.1f})"
    least = found.detectable(level)
    if least is None:
        return f"{size}, with one seed."
    could = f"{size}; {found.seeds} seeds find a difference of {least:.1f} points four times of five"
    needed = found.seeds_needed(level)
    if needed is None:
        return f"{could}, and no number of seeds would find one this small on {found.images:,} images."
    return f"{could}, and for one this small about {max(needed, found.seeds + 1)} would do."


def fairness_said(steps: Sequence[int], rates: Sequence[float], *, tuned: Sequence[float] | None, models: int) -> str:
    """What was equal, and which of the two ways to choose a learning rate was taken."""
    made = (
        f"All runs made {steps[0]:,} steps"
        if len(set(steps)) == 1
        else "All runs of a model made the same number of steps"
    )
    if models > 1 and len(set(steps)) > 1:
        made += " (models keep their own recipes)"
    if tuned is not None:
        grid = ", ".join(f"{factor:g}" for factor in tuned)
        return (
            f"{made}; each objective's learning rate was chosen on validation out of the same multiples of the common "
            f"one ({grid}), with a seed that is not reported."
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
