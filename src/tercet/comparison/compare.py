"""`tercet compare`: contestants, runs, statistics, tables, report."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from tercet import runs
from tercet.comparison.answer import Comparison
from tercet.comparison.contestants import contestants_of
from tercet.comparison.engine import Engine
from tercet.comparison.features import data_of
from tercet.comparison.judgement import judge
from tercet.comparison.live import LiveTable, Trials, key_of
from tercet.comparison.local import LocalProcesses
from tercet.comparison.plan import (
    Plan,
    Readies,
    check_tables,
    common_settings,
    make_all_ready,
    plan_of,
    with_rate,
    with_seed,
)
from tercet.comparison.protocols import check_protocols, under_protocols
from tercet.comparison.report.evidence import held_out
from tercet.comparison.results import Failure, Results
from tercet.comparison.settings import CompareSettings, settings_of
from tercet.comparison.tuning import TUNING_SEED, Tuned, choose, trials
from tercet.comparison.verdict import fairness_said, verdict
from tercet.evaluation.by_image import METRICS
from tercet.objectives.catalogue import nearest
from tercet.training.run import run_mark


def compare(**given: Any) -> Comparison:
    """`tercet compare` as a function: takes its settings by name."""
    return run_comparison(settings_of(given), Console(stderr=True))


def run_comparison(settings: CompareSettings, console: Console, engine: Engine | None = None) -> Comparison:
    if settings.metric not in METRICS:
        near = nearest(settings.metric, METRICS)
        raise ValueError(f"--metric {settings.metric!r} cannot be tested{near}; these can: {', '.join(METRICS)}")
    contestants = contestants_of(settings)  # before any work: a wrong name costs nothing
    common = common_settings(settings, data_of(settings, console))
    readies = make_all_ready(contestants, common)
    runs.make_root(settings.runs)
    for ready in readies.values():
        if len(held_out(ready.test, ready.validation).images) < 2:
            raise ValueError(f"{settings.data}: one held-out image says nothing about luck; give at least 2")
    check_protocols(settings, readies)
    plans = planned = {each.name: plan_of(each, 0, common, readies) for each in contestants}
    check_tables(plans.values(), readies)
    engine = engine or LocalProcesses(readies, settings.workers)
    tuned: dict[str, Tuned] = {}
    failures: list[Failure] = []
    if settings.tune is not None:
        tuned, failures = _tuned(plans, settings, readies, engine, console)
        plans = {name: with_rate(plans[name], tuned[name].chosen) for name in tuned}
    # Seed by seed: early on there is something to compare.
    wanted = [with_seed(plan, seed) for seed in range(settings.seeds) for plan in plans.values()]
    live = LiveTable(console, Results(contestants, {}), len(wanted), metric=settings.metric, what="runs")
    _carry_out(wanted, readies, engine, live)
    results = Results(contestants, live.results.runs, [*failures, *live.failures])
    identity = {**_identity(settings), "runs": [_mark(plan, readies) for plan in wanted]}
    protocols = under_protocols(results, readies, settings, console)
    bases = [plan.settings.learning_rate for plan in planned.values()]
    fairness = _fairness(results, (settings.tune_factors, bases) if settings.tune else None)
    return _answer(settings, results, tuned, readies, protocols, fairness, runs.run_hash(identity, ""))


def _tuned(
    plans: Mapping[str, Plan], settings: CompareSettings, readies: Readies, engine: Engine, console: Console
) -> tuple[dict[str, Tuned], list[Failure]]:
    """The learning rate of each contestant. One whose trials all fail is out."""
    if settings.seeds > TUNING_SEED:
        raise ValueError(f"--seeds must be at most {TUNING_SEED}, which chooses learning rates")
    if any(ready.validation is None for ready in readies.values()):
        raise ValueError("--tune lr chooses on validation, and the data has no validation split")
    asked = {name: trials(plan, settings.tune_factors) for name, plan in plans.items()}
    every = [trial for each in asked.values() for trial in each]
    live = Trials(console, len(every))
    _carry_out(every, readies, engine, live)
    chosen, failures = {}, list(live.failures)
    for name, plan in plans.items():
        finished = {
            trial.settings.learning_rate: live.folders[key_of(trial)]
            for trial in asked[name]
            if key_of(trial) in live.folders
        }
        found = choose(plan, finished)
        if found is None:
            failures.append(Failure(name, "none of the runs that were to choose its learning rate finished"))
        else:
            chosen[name] = found
    return chosen, failures


def _carry_out(plans: Sequence[Plan], readies: Readies, engine: Engine, live: LiveTable) -> None:
    """What is finished already is read, the rest is made."""
    with live:
        missing = []
        for plan in plans:
            live.marks[key_of(plan)] = _mark(plan, readies)
            folder = runs.find_run(plan.settings.runs, live.marks[key_of(plan)])
            if folder is None:
                missing.append(plan)
            else:
                live.kept(plan, folder)
        engine.run(missing, live)


def _answer(
    settings: CompareSettings,
    results: Results,
    tuned: Mapping[str, Tuned],
    readies: Readies,
    protocols: Mapping[str, Results],
    fairness: str,
    mark: str,
) -> Comparison:
    judgement = judge(results, settings.metric)
    models = list(dict.fromkeys(contestant.model for contestant in results.contestants))
    data = next(iter(readies.values())).name
    return Comparison(
        settings,
        f"{data}, {', '.join(models)}",
        results,
        judgement,
        verdict(results, judgement, fairness),
        tuned,
        settings.runs / f"comparison_{data}_{mark}",
        readies,
        protocols,
    )


def _fairness(results: Results, tuned: tuple[Sequence[float], Sequence[float]] | None) -> str:
    steps: dict[str, list[int]] = {}
    rates = []
    for contestant in results.contestants:
        for run in results.runs.get(contestant.name, {}).values():
            steps.setdefault(contestant.model, []).append(run.final["step"])
            rates.append(run.learning_rate)
    return fairness_said(steps, rates, tuned=tuned) if rates else ""


def _identity(settings: CompareSettings) -> dict[str, Any]:
    """What makes the comparison: not where it lies, nor how many processes made it."""
    own = asdict(settings)
    return {name: own[name] for name in ("metric", "protocols", "tune", "tune_factors", "seeds")}


def _mark(plan: Plan, readies: Readies) -> str:
    return run_mark(plan.settings, readies[plan.contestant.model])
