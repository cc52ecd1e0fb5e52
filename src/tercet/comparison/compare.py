"""`tercet compare`: contestants, runs, statistics, tables, report."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from tercet import runs
from tercet.comparison.contestants import contestants_of
from tercet.comparison.engine import Engine
from tercet.comparison.features import data_of
from tercet.comparison.judgement import Judgement, judge
from tercet.comparison.live import LiveTable, Trials, key_of
from tercet.comparison.local import LocalProcesses
from tercet.comparison.plan import Plan, Readies, common_settings, make_all_ready, plan_of, with_rate, with_seed
from tercet.comparison.protocols import check_protocols, under_protocols
from tercet.comparison.results import Failure, Results
from tercet.comparison.settings import CompareSettings, settings_of
from tercet.comparison.tables import Table, cost_table, csv_of, goal_tables, pairs_table, recalls_table, spread_said
from tercet.comparison.tuning import TUNING_SEED, Tuned, choose, trials
from tercet.comparison.verdict import fairness_said, verdict
from tercet.evaluation.by_image import METRICS
from tercet.objectives.catalogue import nearest
from tercet.training.run import find_finished, run_mark


@dataclass(frozen=True)
class Comparison:
    """The answer: numbers, which differences are real, and a paragraph. `save` writes all of it."""

    settings: CompareSettings
    title: str
    results: Results
    judgement: Judgement
    verdict: str
    tuned: Mapping[str, Tuned]
    folder: Path
    readies: Readies
    """The data as the models read it."""
    protocols: Mapping[str, Results]
    """The same runs under named protocols."""

    def tables(self) -> list[Table]:
        order = list(self.judgement.order)
        if not order:
            return []
        title = f"{self.title}; {self.results.split}, {spread_said(self.results)}"
        named = [recalls_table(each, order, f"{protocol}, {title}") for protocol, each in self.protocols.items()]
        return [recalls_table(self.results, order, title), *named, *goal_tables(self.results)]

    def print(self, console: Console) -> None:
        for table in self.tables():
            console.print(table.terminal())
            console.print()
        console.print(self.verdict, highlight=False, markup=False)

    def document(self) -> dict[str, Any]:
        """All numbers, for JSON."""
        return {
            "title": self.title,
            "verdict": self.verdict,
            "metric": self.judgement.metric,
            "results": {name: self._runs_of(name) for name in self.results.names()},
            "failures": [asdict(failure) for failure in self.results.failures],
            "pairs": [
                {
                    "first": pair.first,
                    "second": pair.second,
                    "corrected_p": pair.corrected,
                    "real": pair.real,
                    **{key: value for key, value in asdict(pair.found).items() if key != "spread"},
                    "detectable": pair.found.detectable(self.judgement.level),
                    "seeds_needed": pair.found.seeds_needed(self.judgement.level),
                }
                for pair in self.judgement.pairs
            ],
            "protocols": {
                protocol: {name: [run.metrics for _, run in sorted(each.runs[name].items())] for name in each.names()}
                for protocol, each in self.protocols.items()
            },
            "tuned": {name: asdict(tuned) for name, tuned in self.tuned.items()},
        }

    def _runs_of(self, name: str) -> list[dict[str, Any]]:
        return [
            {
                "seed": seed,
                "run": run.folder.name,
                "learning_rate": run.learning_rate,
                "steps": run.final["step"],
                "pairs_seen": run.final["pairs_seen"],
                "clipped_share": run.clipped,
                "seconds": run.machine["seconds"],
                "memory_mb": run.machine.get("memory_mb"),
                "metrics": run.metrics,
            }
            for seed, run in sorted(self.results.runs[name].items())
        ]

    def save(self) -> Path:
        """Tables as Markdown, LaTeX, CSV and JSON, figures, and the report, whose path is returned."""
        from tercet.comparison.report.page import write_report  # it is made of this

        order = list(self.judgement.order)
        tables = self.tables()
        if order:
            tables += [
                cost_table(self.results, order),
                *([pairs_table(self.judgement)] if self.judgement.pairs else []),
            ]
        markdown = "\n".join([self.verdict, "", *(table.markdown() for table in tables)])
        runs.write_beside_runs(self.folder, "tables.md", markdown)
        runs.write_beside_runs(self.folder, "tables.tex", "\n".join(table.latex() for table in tables))
        if order:
            runs.write_beside_runs(self.folder, "runs.csv", csv_of(self.results, order))
        runs.write_beside_runs(self.folder, "comparison.json", json.dumps(self.document(), indent=2) + "\n")
        return write_report(self)


def compare(**given: Any) -> Comparison:
    """`tercet compare` as a function: takes its settings by name."""
    return run_comparison(settings_of(given), Console(stderr=True))


def run_comparison(settings: CompareSettings, console: Console, engine: Engine | None = None) -> Comparison:
    if settings.metric not in METRICS:
        near = nearest(settings.metric, METRICS)
        raise ValueError(f"--metric {settings.metric!r} cannot be tested{near}; these can: {', '.join(METRICS)}")
    contestants = contestants_of(settings)  # before any work: a wrong name costs nothing
    runs.make_root(settings.runs)
    common = common_settings(settings, data_of(settings, console))
    readies = make_all_ready(contestants, common)
    check_protocols(settings, readies)
    plans = {contestant.name: plan_of(contestant, 0, common, readies) for contestant in contestants}
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
    return _answer(settings, results, tuned, readies, protocols, runs.run_hash(identity, ""))


def _tuned(
    plans: Mapping[str, Plan], settings: CompareSettings, readies: Readies, engine: Engine, console: Console
) -> tuple[dict[str, Tuned], list[Failure]]:
    """The learning rate of each contestant. One whose trials all fail is out."""
    if settings.seeds > TUNING_SEED:
        raise ValueError(f"--seeds must be at most {TUNING_SEED}, which chooses learning rates")
    asked = {name: trials(plan, settings.tune_factors) for name, plan in plans.items()}
    every = [trial for each in asked.values() for trial in each]
    live = Trials(console, Results((), {}), len(every), metric=settings.metric, what="choosing learning rates")
    _carry_out(every, readies, engine, live)
    chosen = {}
    for name, plan in plans.items():
        finished = {
            trial.settings.learning_rate: live.folders[key_of(trial)]
            for trial in asked[name]
            if key_of(trial) in live.folders
        }
        found = choose(plan, finished)
        if found is not None:
            chosen[name] = found
    return chosen, live.failures


def _carry_out(plans: Sequence[Plan], readies: Readies, engine: Engine, live: LiveTable) -> None:
    """What is finished already is read, the rest is made."""
    with live:
        missing = []
        for plan in plans:
            folder = find_finished(plan.settings, readies[plan.contestant.model])
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
    mark: str,
) -> Comparison:
    names = results.names()
    judgement = judge(results, settings.metric)
    made = [run for name in names for run in results.runs[name].values()]
    models = list(dict.fromkeys(contestant.model for contestant in results.contestants))
    fairness = ""
    if made:
        steps, rates = [run.final["step"] for run in made], [run.learning_rate for run in made]
        fairness = fairness_said(
            steps, rates, tuned=settings.tune_factors if settings.tune else None, models=len(models)
        )
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


def _identity(settings: CompareSettings) -> dict[str, Any]:
    """What makes the comparison: not where it lies, nor how many processes made it."""
    own = asdict(settings)
    return {name: own[name] for name in ("metric", "protocols", "tune", "tune_factors", "seeds")}


def _mark(plan: Plan, readies: Readies) -> str:
    return run_mark(plan.settings, readies[plan.contestant.model])
