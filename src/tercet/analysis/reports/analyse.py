"""`tercet analyse`: check the request completely, then run the selected analyses one by one."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console

from tercet import runs
from tercet.analysis.cocos import cocos as count_batch
from tercet.analysis.reports import cocos_report, diagrams, human_judgments
from tercet.analysis.reports.breakdown_page import write_breakdown
from tercet.analysis.reports.cross_ranks import compare_cross_ranks, shared_held_out
from tercet.analysis.reports.loaded_run import LoadedRun, open_run_folder
from tercet.analysis.reports.retrieved_examples import resolve_query, write_examples
from tercet.analysis.reports.settings import AnalyseSettings
from tercet.comparison.plan import parse_variant
from tercet.console import ConsoleProgress
from tercet.data.flickr8k_judgments import read_judgments
from tercet.objectives import RowObjective, objective
from tercet.objectives.aoq import AOQ
from tercet.reporting.output_formats import Table, render_page
from tercet.reporting.svg_figure import Figure

Item = TypeVar("Item")
ANALYSES = ("cocos", "diagram", "breakdown", "examples", "judgments", "integrability")
WITHOUT_RUN = ("diagram", "integrability")
OF_OBJECTIVES = ("cocos", "breakdown", "judgments")  # need an objective besides "goal"
REQUIRED_ANALYSIS = {"queries": "examples", "epochs": "diagram", "as_published": "cocos"}  # setting -> analysis
MAX_RUNS = 2
GOAL = "goal"  # among --objectives: GOAL's Figures 2 and 3


@dataclass(frozen=True)
class ObjectiveOnRun:
    """An objective with its name and settings as the user gave them."""

    label: str
    objective: RowObjective

    @property
    def file_name(self) -> str:
        label = self.label.replace("/", "+")
        return "".join(char if char.isalnum() or char in "-+.=" else "_" for char in label)


def analyse(settings: AnalyseSettings, console: Console) -> Iterator[Path]:
    """Run the selected analyses; yield each file once it is written."""
    settings, is_explicit = _with_defaults(settings)
    loaded = [
        open_run_folder(run, data=settings.data, images=settings.images, mined=settings.mined) for run in settings.runs
    ]
    objectives_by_run = [_objectives_on_run(run, settings) for run in loaded]
    without_run = [] if loaded else _objectives_without_run(settings)
    shows_examples = settings.examples and _check_examples(loaded, settings, is_explicit)
    for run, objectives in zip(loaded, objectives_by_run, strict=True):
        _check(run, objectives, settings)
    runs.make_root(settings.out)
    for run, objectives in zip(loaded, objectives_by_run, strict=True):
        yield from _analyse_run(run, objectives, settings, console)
    if shows_examples:
        second = loaded[1] if len(loaded) > 1 else None
        name = loaded[0].name if second is None else f"{loaded[0].name}_and_{second.name}"
        yield write_examples(loaded[0], second, settings.out / name, queries=settings.queries)
        if second is not None:
            console.print(compare_cross_ranks(loaded[0], second).sentence(), highlight=False, markup=False)
    if not loaded and settings.diagram:
        yield from _write_figures(settings.out, "Triplet diagrams", _figures(without_run, {}, settings))
    if settings.integrability:
        yield _integrability(settings.out, console)


def _with_defaults(settings: AnalyseSettings) -> tuple[AnalyseSettings, bool]:
    """Checked settings, with the default analyses if none is selected; and whether any was selected."""
    settings.check()
    if len(settings.runs) > MAX_RUNS:
        raise ValueError(f"expected one or two runs, got {len(settings.runs)}")
    selected = [analysis for analysis in ANALYSES if getattr(settings, analysis)]
    need_run = [analysis for analysis in selected if analysis not in WITHOUT_RUN]
    if not settings.runs and need_run:
        raise ValueError(f"--{need_run[0]} needs a run folder: tercet analyse RUN --{need_run[0]}")
    if not settings.runs and not selected:
        raise ValueError("give a run folder, or --diagram or --integrability, which need none (see --help)")
    if not selected:
        settings = replace(settings, cocos=True, diagram=True, breakdown=True, examples=True)
    for setting, analysis in REQUIRED_ANALYSIS.items():
        if getattr(settings, setting) and not getattr(settings, analysis):
            raise ValueError(f"--{setting.replace('_', '-')} needs --{analysis}")
    _check_goal(settings)
    return settings, bool(selected)


def _check_goal(settings: AnalyseSettings) -> None:
    if GOAL not in settings.objectives:
        return
    if not settings.diagram:
        raise ValueError(f"--objectives {GOAL} needs --diagram")
    others = [analysis for analysis in OF_OBJECTIVES if getattr(settings, analysis)]
    if others and set(settings.objectives) == {GOAL}:
        raise ValueError(f"--objectives {GOAL} is only for --diagram: name another objective for --{others[0]}")


def _objectives_on_run(run: LoadedRun, settings: AnalyseSettings) -> list[ObjectiveOnRun]:
    if not settings.objectives:
        return [ObjectiveOnRun(run.objective.name, run.objective)]
    return [
        ObjectiveOnRun(label, run.objective_on_run(name, options))
        for label, name, options in _parsed(settings.objectives)
    ]


def _objectives_without_run(settings: AnalyseSettings) -> list[ObjectiveOnRun]:
    return [ObjectiveOnRun(label, objective(name, **options)) for label, name, options in _parsed(settings.objectives)]


def _parsed(labels: Sequence[str]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Label, name and settings of each objective, without "goal" and duplicates."""
    for label in dict.fromkeys(label for label in labels if label != GOAL):
        name, options, train_options = parse_variant(label)
        if train_options:
            raise ValueError(f"{label}: {', '.join(train_options)} is a training setting, and analyse does not train")
        yield label, name, options


def _check_examples(loaded: Sequence[LoadedRun], settings: AnalyseSettings, is_explicit: bool) -> bool:
    """Check the runs and queries. Without a held-out split: False if --examples was only implied, else `ValueError`."""
    if not is_explicit and loaded[0].prepared.test is None and loaded[0].prepared.validation is None:
        return False
    split = shared_held_out(loaded[0], loaded[1] if len(loaded) > 1 else None)
    for query in settings.queries:
        resolve_query(query, split)
    return True


def _check(run: LoadedRun, objectives: Sequence[ObjectiveOnRun], settings: AnalyseSettings) -> None:
    if settings.epochs:
        diagrams.select_epochs(runs.read_triplets(run.folder), settings.epochs)
    for each in objectives:
        if settings.as_published:
            count_batch(each.objective, torch.eye(2), as_published=True)  # raises without a released counter
        if settings.cocos or settings.breakdown:
            run.check_mined(each.objective)
        if settings.judgments is not None and isinstance(each.objective, AOQ):
            raise ValueError(f"--judgments: {each.label} needs mined negatives, and held-out pairs have none")
        batches = len(run.index_batches(each.objective, settings.batch_size))
        if settings.breakdown and settings.batch >= batches:
            raise ValueError(f"--batch {settings.batch}: there are {batches:,} batches, 0 to {batches - 1}")
    if settings.judgments is not None:
        read_judgments(settings.judgments, run.split(run.held_out))


def _analyse_run(
    run: LoadedRun, objectives: Sequence[ObjectiveOnRun], settings: AnalyseSettings, console: Console
) -> Iterator[Path]:
    out = settings.out / run.name
    if settings.cocos:
        yield _cocos(run, objectives, settings, out, console)
    if settings.diagram:
        triplets: diagrams.EpochTriplets = runs.read_triplets(run.folder)
        if triplets or settings.epochs:
            triplets = diagrams.select_epochs(triplets, settings.epochs)
        else:
            console.print("the run has no saved triplets: its diagrams are drawn without them", style="yellow")
        yield from _write_figures(out, f"Triplet diagrams of {run.name}", _figures(objectives, triplets, settings))
    if settings.judgments is not None:
        yield _human_judgments(run, objectives, settings, out, console)
    if settings.breakdown:
        for each in objectives:
            folder = out if len(objectives) == 1 else out / each.file_name
            yield write_breakdown(run, each.objective, folder, batch=settings.batch, batch_size=settings.batch_size)


def _cocos(
    run: LoadedRun, objectives: Sequence[ObjectiveOnRun], settings: AnalyseSettings, out: Path, console: Console
) -> Path:
    options: dict[str, Any] = {"epsilon": settings.epsilon, "as_published": settings.as_published}
    counts = []
    for each in objectives:
        index_batches = _progress(run.index_batches(each.objective, settings.batch_size), f"{each.label}, batches")
        counts.append(
            cocos_report.count_run(run, each.objective, label=each.label, index_batches=index_batches, **options)
        )
    tables = [cocos_report.table(each) for each in counts]
    _print(tables, console)
    name = "cocos_as_published" if settings.as_published else "cocos"
    runs.write_artifact(out, f"{name}.md", "\n".join(table.markdown() for table in tables))
    return _write_json(out, name, [each.content() for each in counts])


def _human_judgments(
    run: LoadedRun, objectives: Sequence[ObjectiveOnRun], settings: AnalyseSettings, out: Path, console: Console
) -> Path:
    assert settings.judgments is not None
    judgments = read_judgments(settings.judgments, run.split(run.held_out))
    even = human_judgments.even_share(judgments, run.held_out.owners.numpy())
    pushes = [
        human_judgments.push_on_judged(run, each.objective, judgments, label=each.label, batch_size=settings.batch_size)
        for each in _progress(objectives, "objectives")
    ]
    table = human_judgments.table(pushes, even)
    _print([table], console)
    runs.write_artifact(out, "human_judgments.md", table.markdown())
    return _write_json(out, "human_judgments", {"even": even, "objectives": [push.content() for push in pushes]})


def _figures(
    objectives: Sequence[ObjectiveOnRun], triplets: diagrams.EpochTriplets, settings: AnalyseSettings
) -> list[tuple[Figure, dict[str, Any]]]:
    """A diagram per objective; GOAL's figures if "goal" is among the objectives, or if there are none."""
    figures = [
        diagrams.diagram(
            each.objective,
            triplets,
            name=f"diagram_{each.file_name}",
            label=each.label,
            mined=settings.mined_similarity,
        )
        for each in objectives
    ]
    if GOAL in settings.objectives or not figures:
        figures += [diagrams.goal_figure_2(), diagrams.goal_figure_3()]
    return figures


def _write_figures(out: Path, heading: str, figures: Sequence[tuple[Figure, dict[str, Any]]]) -> Iterator[Path]:
    for figure, content in figures:
        runs.write_artifact(out, f"figures/{figure.name}.svg", figure.file_svg)
        runs.write_artifact(out, f"figures/{figure.name}.json", _json(content))
        runs.write_artifact(out, f"figures/{figure.name}.png", figure.png)
        yield out / "figures" / f"{figure.name}.png"
    page = render_page("diagrams.html", heading=heading, figures=[figure for figure, _ in figures])
    runs.write_artifact(out, "diagrams.html", page)
    yield out / "diagrams.html"


def _integrability(out: Path, console: Console) -> Path:
    cells = [diagrams.cell_integrability(*cell) for cell in _progress(diagrams.CELLS, "cells")]
    tables, notes = diagrams.integrability_tables(cells), diagrams.integrability_notes(cells)
    _print(tables, console)
    for note in notes:
        console.print(f"- {note}", highlight=False, markup=False)
    text = "\n".join([*(table.markdown() for table in tables), *(f"- {note}" for note in notes), ""])
    runs.write_artifact(out, "integrability.md", text)
    return _write_json(out, "integrability", [cell.content() for cell in cells])


def _print(tables: Sequence[Table], console: Console) -> None:
    for table in tables:
        # Titles are printed separately: rich would wrap them to the width of the table.
        console.print(table.title, style="bold", soft_wrap=True, highlight=False, markup=False)
        console.print(replace(table, title="").terminal())
        console.print()


def _progress(items: Sequence[Item], description: str) -> Iterable[Item]:
    with ConsoleProgress() as progress:
        bar = progress.bar(description, len(items))
        for item in items:
            yield item
            bar.advance()


def _write_json(out: Path, name: str, content: Any) -> Path:
    runs.write_artifact(out, f"{name}.json", _json(content, indent=2))
    return out / f"{name}.json"


def _json(content: Any, indent: int | None = None) -> str:
    return json.dumps(runs.without_nan(content), indent=indent, allow_nan=False) + "\n"
