"""`tercet compare`: plan and execute the runs, test the differences, and write tables and a report."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from tercet import runs
from tercet.comparison.baselines import Baseline, baselines_note, find_baselines, with_baselines
from tercet.comparison.executors import ENTRY_POINTS, EXECUTORS, Executor
from tercet.comparison.family import Looks, Significance, pairs_table, with_marks
from tercet.comparison.live_table import LiveTable, TrialsTable
from tercet.comparison.plan import (
    PlannedRun,
    PreparedDatasets,
    Variant,
    batch_notes,
    before_encoding,
    check_mined_tables,
    common_settings,
    encodes,
    make_variants,
    plan_run,
    planned_together,
    prepare_all,
    prepare_features,
    with_seed,
)
from tercet.comparison.results import (
    Failure,
    Results,
    Run,
    cost_table,
    format_spread,
    goal_tables,
    recalls_table,
    run_records,
    runs_csv,
    significance_of,
)
from tercet.comparison.settings import CompareSettings, make_settings
from tercet.comparison.summary import Caution, cautions, fairness_note, methods, next_step, recommended, verdict
from tercet.comparison.tuning import Search, check_tuning, tune, tuning_note, with_value, without_test
from tercet.console import ConsoleProgress, print_skipped, progress_console, terminal_console
from tercet.data.dataset import DataSet, PairedData
from tercet.data.formats import open_data
from tercet.data.formats.columns import Columns
from tercet.evaluation import evaluate_tiles, tiles_of_embeddings
from tercet.evaluation.metrics import metric_names
from tercet.inference import load
from tercet.names import is_in_memory, short_name, suggest
from tercet.objectives.registry import spec_of
from tercet.plugins import find
from tercet.reporting.output_formats import Table
from tercet.reporting.svg_figure import Figure
from tercet.training.automatic_splits import with_splits
from tercet.training.eval_loop import EmbeddedSplit, encode_split, tiles_of
from tercet.training.evaluate_run import coco_ids
from tercet.training.prepare import name_data, resolve, run_id_of


@dataclass(frozen=True, repr=False)
class Comparison:
    """Result of `compare`: metrics, significance tests and a verdict. `save` writes all of it."""

    settings: CompareSettings
    title: str
    results: Results
    significance: Significance
    verdict: str
    """What to use, how sure that is, what it costs, and what would change it."""
    methods: str
    """A paragraph for the methods section of a paper."""
    cautions: Sequence[Caution]
    """What speaks against a claim about a row."""
    tuned: Mapping[str, Sequence[Search]]
    """Variant -> what was tuned; empty without tuning."""
    folder: Path
    prepared_datasets: PreparedDatasets
    embedded: "EmbeddedRuns"
    protocols: Mapping[str, Results]
    """The same runs, evaluated under named protocols."""
    baselines: Sequence[Baseline]
    """What no objective trained: a pretrained model as it is, or a linear baseline."""

    def __repr__(self) -> str:
        metric, order = self.settings.metric, self.significance.order
        means = ", ".join(f"{name[:40]} {self.results.mean(name, metric):.1f}" for name in order[:3])
        more = f" and {len(order) - 3} more" if len(order) > 3 else ""
        return f"Comparison({self.title[:60]}; {metric}: {means or 'no finished run'}{more}; {self.folder.name})"

    def tables(self) -> list[Table]:
        order = list(self.significance.order)
        if not order:
            return []
        title = f"{self.title}; {self.results.split}, {format_spread(self.results)}"
        marks = self.significance.marks([name for name in order if name not in self.without_claim])
        per_protocol = [
            recalls_table(results, order, f"{protocol}, {title}") for protocol, results in self.protocols.items()
        ]
        recalls = with_baselines(with_marks(recalls_table(self.results, order, title), marks), self.baselines)
        return [recalls, *per_protocol, *goal_tables(self.results)]

    @property
    def without_claim(self) -> list[str]:
        """Rows that were not trained to their end."""
        return [caution.name for caution in self.cautions if caution.voids]

    def next_step(self) -> tuple[Path | None, str]:
        """The folder of the best run, and the command that tells most."""
        return next_step(self.results, self.significance, self.cautions, self.settings.epochs)

    def print(self, console: Console | None = None) -> None:
        console = console or terminal_console()
        for table in self.tables():
            console.print(table.terminal())
            console.print()
        console.print(self.verdict, highlight=False, markup=False)
        best_run, command = self.next_step()
        if best_run is not None:
            lines = f"\nBest run: {best_run}\nNext: {command}"
            console.print(lines, highlight=False, markup=False, soft_wrap=True)

    def _repr_html_(self) -> str:
        from tercet.reporting.output_formats import tables_html

        return tables_html(self.tables(), self.verdict, "save() writes the tables, figures and an HTML report")

    def to_pandas(self) -> Any:
        """A DataFrame of all runs: objective, model, seed, training budget and cost, and every metric."""
        from tercet.reporting.output_formats import data_frame

        return data_frame(run_records(self.results, list(self.significance.order)))

    def plot(self, figure: str = "recalls") -> Any:
        """A figure of the report, as a matplotlib figure: recalls, learning, contributing, cross or costs."""
        from tercet.comparison.report import figures

        order = list(self.significance.order)
        drawings: dict[str, Callable[[], Figure | None]] = {
            "recalls": lambda: figures.recalls(self.results, order, self.settings.metric),
            "learning": lambda: figures.learning_curves(self.results, order),
            "contributing": lambda: figures.contributing_negatives(self.results, order),
            "cross": lambda: figures.cross_ranks(self.results, order),
            "costs": lambda: figures.costs(self.results, order),
        }
        if figure not in drawings:
            raise ValueError(f"unknown figure {figure!r}{suggest(figure, drawings)}; known: {', '.join(drawings)}")
        drawn = drawings[figure]() if order else None
        if drawn is None:
            raise ValueError(f"no figure {figure}: the runs of this comparison did not record what it shows")
        return drawn.canvas

    def document(self) -> dict[str, Any]:
        """All numbers, for JSON."""
        return {
            "title": self.title,
            "verdict": self.verdict,
            "metric": self.settings.metric,
            "methods": self.methods,
            "results": {name: self._run_documents(name) for name in self.results.names()},
            "baselines": [baseline.document() for baseline in self.baselines],
            "failures": [asdict(failure) for failure in self.results.failures],
            "cautions": [asdict(caution) for caution in self.cautions],
            "significance": self.significance.to_dict(),
            "protocols": {
                protocol: {
                    name: [run.metrics for _, run in sorted(results.runs[name].items())] for name in results.names()
                }
                for protocol, results in self.protocols.items()
            },
            "tuned": {name: [search.document() for search in tuned] for name, tuned in self.tuned.items()},
        }

    def _run_documents(self, name: str) -> list[dict[str, Any]]:
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
        """Write tables (Markdown, LaTeX, CSV, JSON), figures and the report; return the path of the report."""
        from tercet.comparison.report.report_page import write_report

        order = list(self.significance.order)
        tables = self.tables()
        if order:
            tables += [
                cost_table(self.results, order),
                *([pairs_table(self.significance, self.settings.metric)] if self.significance.pairs else []),
            ]
        markdown = "\n".join([f"# {self.title}", "", self.verdict, "", *(table.markdown() for table in tables)])
        markdown += f"\n## Methods\n\n{self.methods}\n"
        runs.write_artifact(self.folder, "tables.md", markdown)
        runs.write_artifact(self.folder, "tables.tex", "\n".join(table.latex() for table in tables))
        if order:
            runs.write_artifact(self.folder, "runs.csv", runs_csv(self.results, order))
        runs.write_comparison(self.folder, self.document())
        return write_report(self)


class EmbeddedRuns:
    """The held-out split as the runs embed it: each run encodes it once, for protocols and for the report."""

    def __init__(self, variants: Sequence[Variant], prepared_datasets: PreparedDatasets) -> None:
        self._datasets = {variant.name: prepared_datasets[variant.model] for variant in variants}
        self._cached: dict[Path, EmbeddedSplit] = {}

    def data(self, name: str) -> PairedData:
        return self._datasets[name].held_out

    def of(self, name: str, run: Run) -> EmbeddedSplit:
        if run.folder in self._cached:
            return self._cached[run.folder]
        model, data = load(run.folder).model.eval(), self.data(name)
        embedded = EmbeddedSplit(name, model, *encode_split(model, data), data.pairs)
        if isinstance(embedded.images, torch.Tensor) and isinstance(embedded.captions, torch.Tensor):
            self._cached[run.folder] = embedded  # sets of regions and words are too large to keep for every run
        return embedded


def compare_with(given: Mapping[str, Any]) -> Comparison:
    """`tercet.compare` with the settings that the caller gave, by name."""
    named = dict(given)
    if "data" in given:
        named["data"] = name_data(given)
    if "objectives" in given:
        several = isinstance(given["objectives"], (list, tuple))
        named["objectives"] = [spec_of(each) for each in (given["objectives"] if several else [given["objectives"]])]
    return run_comparison(make_settings(named), progress_console())


def run_comparison(settings: CompareSettings, console: Console) -> Comparison:
    """Execute the missing runs of a comparison and test the results. Wrong input is rejected before any training."""
    allowed = metric_names(larger_is_better=True)
    if settings.metric not in allowed:
        hint = suggest(settings.metric, allowed, cutoff=0.5)
        raise ValueError(f"--metric {settings.metric!r} cannot be tested{hint}; allowed: {', '.join(allowed)}")
    variants = make_variants(settings)
    _check_baseline(settings, variants)
    make_executor = find("executor", settings.executor, EXECUTORS, ENTRY_POINTS)
    source, opened = with_splits(
        settings.data,
        settings.runs,
        images=settings.images,
        features=settings.features,
        skip_bad=settings.skip_bad,
        columns=Columns.of(settings),
    )
    runs.make_root(settings.runs)
    if encodes(settings):  # what does not need the features is checked before they are computed
        _plan(settings, variants, source, before_encoding(settings, opened))
        source = prepare_features(settings, source, opened, console)
        opened = open_data(source)
    prepared_datasets, base_plans = _plan(settings, variants, source, opened)
    print_skipped(list(dict.fromkeys(item for prepared in prepared_datasets.values() for item in prepared.skipped)))
    for note in batch_notes(common_settings(settings, source), prepared_datasets):
        console.print(note, highlight=False, soft_wrap=True)
    not_tuned = "--no-tune" if settings.no_tune else check_tuning(settings, prepared_datasets)
    plans: dict[str, PlannedRun] = base_plans
    tuned: dict[str, list[Search]] = {}
    failures: list[Failure] = []
    if not_tuned is None:
        datasets = without_test(prepared_datasets)
        trial_executor = make_executor(datasets, settings.processes)
        plans, tuned, failures = _tune(base_plans, settings, datasets, trial_executor, console)
    executor = make_executor(prepared_datasets, settings.processes)
    for seeds in settings.looks:
        # Seed by seed, so that variants can be compared early. What failed at an earlier look is not tried again.
        all_plans = [with_seed(plan, seed) for seed in range(seeds) for plan in plans.values()]
        failed = {failure.name for failure in failures}
        live = LiveTable(console, Results(variants, {}), len(all_plans), metric=settings.metric, title="runs")
        _execute([plan for plan in all_plans if plan.label not in failed], settings, prepared_datasets, executor, live)
        failures = sorted([*failures, *live.failures], key=lambda failure: failure.name)
        results = Results(variants, live.results.in_order(variants), failures)
        share = 1 / len(settings.looks)
        significance = significance_of(
            results, settings.metric, baseline=settings.baseline, rope=settings.rope, share=share
        )
        if significance.decided:
            break
    identity = {**_identity(settings), "runs": [_run_id(plan, prepared_datasets) for plan in all_plans]}
    embedded = EmbeddedRuns(variants, prepared_datasets)
    protocols = evaluate_under_protocols(results, embedded, settings, console)
    notes = (_fairness(results, not_tuned), tuning_note(tuned) if tuned else "", _sweep_note(settings))
    fairness = " ".join(filter(None, notes))
    models = list(dict.fromkeys(variant.model for variant in variants))
    data = short_name(settings.data) if is_in_memory(settings.data) else Path(settings.data).name
    folder_name = next(iter(prepared_datasets.values())).name
    if source != settings.data:  # features or a split file: the folder is named by what they were made of
        folder_name = Path(data).stem
    found = cautions(results, tuned)
    looks = _looks(settings, results, seeds) if settings.until_decided else None
    baselines = find_baselines(base_plans, prepared_datasets) if results.names() else []
    concluded = verdict(
        results, significance, settings.metric, found=found, fairness=fairness, tuned=bool(tuned), looks=looks
    )
    if baselines:
        leader = (recommended(significance, found) or list(significance.order))[0]
        concluded += f" {baselines_note(results, baselines, settings.metric, leader)}"
    return Comparison(
        settings,
        f"{data}, {', '.join(models)}",
        results,
        significance,
        concluded,
        methods(results, significance, settings.metric, data=data, fairness=fairness, found=found, looks=looks),
        found,
        tuned,
        settings.runs / f"comparison_{folder_name}_{runs.run_hash(identity, '')}",
        prepared_datasets,
        embedded,
        protocols,
        baselines,
    )


def _plan(
    settings: CompareSettings, variants: Sequence[Variant], data: str, opened: DataSet
) -> tuple[PreparedDatasets, dict[str, PlannedRun]]:
    """The data of every model, and the first run of every variant. Wrong settings and unusable data raise here."""
    common = common_settings(settings, data)
    prepared_datasets = prepare_all(variants, common, opened)
    for prepared in prepared_datasets.values():
        held_out = len(prepared.held_out.images)
        if held_out < 2:
            raise ValueError(f"{settings.data}: significance tests need at least 2 held-out images, got {held_out}")
    check_protocols(settings, prepared_datasets)
    plans = {variant.name: plan_run(variant, 0, common, prepared_datasets) for variant in variants}
    check_mined_tables(plans.values(), prepared_datasets)
    for plan in plans.values():
        resolve(plan.settings)
        prepared_datasets[plan.variant.model].check_effective(plan.settings)
    if not settings.no_tune:
        check_tuning(settings, prepared_datasets)
    return prepared_datasets, plans


def _looks(settings: CompareSettings, results: Results, reached: int) -> Looks:
    all_runs = [run for by_seed in results.runs.values() for run in by_seed.values()]
    return Looks(settings.looks, reached, len(all_runs), sum(run.machine["seconds"] for run in all_runs))


def _check_baseline(settings: CompareSettings, variants: Sequence[Variant]) -> None:
    names = [variant.name for variant in variants]
    if settings.baseline is not None and settings.baseline not in names:
        hint = suggest(settings.baseline, names, cutoff=0.5)
        raise ValueError(f"--baseline {settings.baseline!r} is no row{hint}; rows: {', '.join(names)}")


def check_protocols(settings: CompareSettings, prepared_datasets: PreparedDatasets) -> None:
    """Raise before training if the data does not fit a protocol; checked with random similarities."""
    for prepared in prepared_datasets.values() if settings.protocols else ():
        data = prepared.held_out
        ids = None if data.split is None else coco_ids(data.split)
        tiles = tiles_of_embeddings(torch.rand(len(data.images), 1), torch.rand(len(data.captions), 1))
        for protocol in settings.protocols:
            evaluate_tiles(tiles, data.owners, protocol=protocol, image_ids=ids, more_pairs=data.more_pairs)


def evaluate_under_protocols(
    results: Results, embedded: "EmbeddedRuns", settings: CompareSettings, console: Console
) -> Mapping[str, Results]:
    """Evaluate every run again under each protocol: protocol -> results."""
    if not settings.protocols or not results.names():
        return {}
    evaluated: dict[str, dict[str, dict[int, Run]]] = {protocol: {} for protocol in settings.protocols}
    with ConsoleProgress(console) as progress:
        bar = progress.bar("evaluating", sum(len(results.runs[name]) for name in results.names()))
        for name in results.names():
            data = embedded.data(name)
            ids = None if data.split is None else coco_ids(data.split)
            for seed, run in results.runs[name].items():
                split = embedded.of(name, run)
                tiles = tiles_of(split.model, split.images, split.captions)
                for protocol in settings.protocols:
                    evaluation = evaluate_tiles(
                        tiles, data.owners, protocol=protocol, image_ids=ids, more_pairs=data.more_pairs
                    )
                    metrics = evaluation.metrics
                    evaluated[protocol].setdefault(name, {})[seed] = replace(run, metrics=dict(metrics))
                bar.advance()
    return {protocol: Results(results.variants, by_variant) for protocol, by_variant in evaluated.items()}


def _tune(
    plans: Mapping[str, PlannedRun],
    settings: CompareSettings,
    prepared_datasets: PreparedDatasets,
    executor: Executor,
    console: Console,
) -> tuple[dict[str, PlannedRun], dict[str, list[Search]], list[Failure]]:
    """Plans with tuned settings. A variant whose trials all failed is dropped."""
    failures: list[Failure] = []

    def execute(trials: Sequence[PlannedRun]) -> Mapping[str, Path]:
        live = TrialsTable(console, len(trials))
        _execute(trials, settings, prepared_datasets, executor, live)
        failures.extend(live.failures)
        return live.folders

    tuned = tune(plans, settings, execute)
    chosen: dict[str, PlannedRun] = {}
    for name, plan in plans.items():
        if not tuned[name]:
            failures.append(Failure(name, "no trial of its tuning finished"))
            continue
        for search in tuned[name]:
            plan = with_value(plan, search.setting, search.chosen)
        chosen[name] = plan
    return chosen, tuned, failures


def _execute(
    plans: Sequence[PlannedRun],
    settings: CompareSettings,
    prepared_datasets: PreparedDatasets,
    executor: Executor,
    live: LiveTable,
) -> None:
    """Read finished runs from their folders and execute the rest."""
    with live:
        missing = []
        for plan in planned_together(plans, prepared_datasets, stack=not settings.no_stack):
            run_id = live.run_ids[plan.label] = _run_id(plan, prepared_datasets)
            folder = runs.find_run(plan.settings.runs, run_id)
            if folder is None:
                missing.append(plan)
            else:
                runs.remove_leftovers(folder)
                live.reused(plan, folder)
        executor.run(missing, live)


def _fairness(results: Results, not_tuned: str | None) -> str:
    steps: dict[str, list[int]] = {}
    rates = []
    for variant in results.variants:
        for run in results.runs.get(variant.name, {}).values():
            steps.setdefault(variant.model, []).append(run.final["step"])
            rates.append(run.learning_rate)
    return fairness_note(steps, rates, not_tuned=not_tuned) if rates else ""


def _sweep_note(settings: CompareSettings) -> str:
    if not settings.sweep:
        return ""
    return (
        f"The rows differ in {', '.join(settings.sweep)}, which was not chosen on validation: picking the best row is "
        "a choice on the reported images, and its number is optimistically biased."
    )


def _identity(settings: CompareSettings) -> dict[str, Any]:
    """Settings that identify a comparison, besides its runs: not its folder, nor the number of processes."""
    values = asdict(settings)
    names = ("metric", "protocols", "tune", "no_tune", "tune_factors", "seeds", "baseline", "rope", "until_decided")
    return {name: values[name] for name in names}


def _run_id(plan: PlannedRun, prepared_datasets: PreparedDatasets) -> str:
    return run_id_of(plan.settings, prepared_datasets[plan.variant.model])
