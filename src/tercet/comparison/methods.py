"""A paragraph for the methods section of a paper, from the settings and tests of a comparison."""

import json
from collections.abc import Sequence
from typing import Any

from tercet import runs
from tercet.comparison.cautions import Caution
from tercet.comparison.family import Significance
from tercet.comparison.results import Results
from tercet.comparison.summary import Looks
from tercet.evaluation.significance import LEVEL, MAX_ADDED_DF, WILD_QUANTILE


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
        f"We report {metric} on {significance.images:,} {results.split} images, as mean and standard deviation (n-1) "
        "over seeds.",
        *(methods_of_tests(significance, looks) if significance.pairs else []),
        *_excluded(found),
        _software(results),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def methods_of_tests(significance: Significance, looks: Looks | None = None) -> list[str]:
    """Sentences on the tests."""
    tests = len(significance.pairs)
    if significance.one_seed:
        return [
            "With one seed, differences were tested by a two-sided paired t-test over images, an image with all its "
            f"captions being one observation, Holm-corrected (Holm, 1979) for {tests} comparisons: they apply to these "
            "trained weights only."
        ]
    pairs = "all pairs" if significance.baseline is None else f"the differences to the baseline {significance.baseline}"
    sentences = [
        "Differences were tested two-sided over seeds and images as crossed random effects, an image with all its "
        "captions being one observation: Howe's interval (Howe, 1974) combines the variance between seeds and the "
        "variance between images, each with its own t quantile."
    ]
    if len(significance.order) > 2:
        apart = significance.unpooled
        sentences.append(
            "The variance between seeds of a pair was moderated by that of the other objectives, with at most "
            f"{MAX_ADDED_DF} added degrees of freedom; objectives beyond the {WILD_QUANTILE} quantile of F against the "
            f"others ({', '.join(apart) if apart else 'there were none'}) were neither pooled nor moderated."
        )
    sentences.append(
        f"p-values of {pairs} were corrected by Holm's method (Holm, 1979) for {tests} comparison"
        f"{'' if tests == 1 else 's'} at a family-wise error rate of {LEVEL}; 95 % intervals are simultaneous."
    )
    if looks is not None:
        sentences.append(
            f"Tests were planned at {', '.join(map(str, looks.planned))} seeds, each with an equal share of the error "
            f"rate, until the question was decided; training stopped at {looks.reached} seeds."
        )
    if significance.rope is not None:
        sentences.append(f"Objectives with an interval within {significance.rope:g} points count as equivalent.")
    return sentences


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
