"""`tercet analyse`: what was asked for, a part at a time. What can be known to be wrong is known before any work."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console
from rich.progress import track

from tercet import runs
from tercet.analysis.cocos import cocos as count_batch
from tercet.comparison.contestants import parse
from tercet.data.judgements import read_judgements
from tercet.dissection import cocos, diagrams, integrability, judged
from tercet.dissection.anatomy import write_anatomy
from tercet.dissection.cross_ranks import compare_cross_ranks
from tercet.dissection.examples import write_examples
from tercet.dissection.opened import Opened, open_run_folder
from tercet.dissection.pair import shared_held_out
from tercet.dissection.queries import matched
from tercet.dissection.settings import AnalyseSettings
from tercet.objectives import RowObjective, objective
from tercet.pages.figure import Figure
from tercet.pages.page import Section, figure_block, page
from tercet.pages.table import Table

Item = TypeVar("Item")
OF_OBJECTIVES = ("cocos", "anatomy", "judgements")
OF_A_RUN = ("cocos", "diagram", "anatomy", "examples", "judgements")
MOST_RUNS = 2
GOAL = "goal"  # among objectives: the two figures of GOAL, where diagrams are drawn
# A setting that says nothing without the part that it belongs to.
BELONGS_TO = {"queries": "examples", "epochs": "diagram", "as_published": "cocos"}


@dataclass(frozen=True)
class LookedAt:
    """An objective under the name that the user gave it, settings included."""

    label: str
    objective: RowObjective

    @property
    def file_name(self) -> str:
        plain = self.label.replace("/", "+")
        return "".join(sign if sign.isalnum() or sign in "-+.=" else "_" for sign in plain)


def analyse(settings: AnalyseSettings, console: Console) -> Iterator[Path]:
    """The files, as they are written."""
    settings, named = _asked(settings)
    opened = [
        open_run_folder(run, data=settings.data, images=settings.images, mined=settings.mined) for run in settings.runs
    ]
    looked_at = [_looked_at(run, settings) for run in opened] or [_alone(settings)]
    shows_examples = settings.examples and _can_show_examples(opened, settings, named)
    for run, objectives in zip(opened, looked_at, strict=False):
        _check(run, objectives, settings)
    runs.make_root(settings.out)
    for run, objectives in zip(opened, looked_at, strict=False):
        yield from _one_run(run, objectives, settings, console)
    if shows_examples:
        second = opened[1] if len(opened) > 1 else None
        name = opened[0].name if second is None else f"{opened[0].name}_and_{second.name}"
        yield write_examples(opened[0], second, settings.out / name, queries=settings.queries)
        if second is not None:
            console.print(compare_cross_ranks(opened[0], second).sentence(), highlight=False, markup=False)
    if not opened and settings.diagram:
        yield from _write_figures(
            settings.out, "Objectives over the plane of triplets", _figures(looked_at[0], {}, settings)
        )
    if settings.integrability:
        yield _integrability(settings.out, console)


def _asked(settings: AnalyseSettings) -> tuple[AnalyseSettings, bool]:
    """All parts where a run is given and none is named; and whether any was."""
    settings.check()
    if len(settings.runs) > MOST_RUNS:
        raise ValueError(f"one or two runs can be looked at beside each other, got {len(settings.runs)}")
    asked = [part for part in (*OF_A_RUN, "integrability") if getattr(settings, part)]
    wanting = [part for part in asked if part not in ("diagram", "integrability")]
    if not settings.runs and wanting:
        raise ValueError(f"--{wanting[0]} needs a run folder: tercet analyse RUN --{wanting[0]}")
    if not settings.runs and not asked:
        raise ValueError("name a run folder, or --diagram or --integrability, which need none; --help says more")
    if not asked:
        settings = replace(settings, cocos=True, diagram=True, anatomy=True, examples=True)
    for setting, part in BELONGS_TO.items():
        if getattr(settings, setting) and not getattr(settings, part):
            raise ValueError(f"--{setting.replace('_', '-')} is for --{part}, which was not asked for")
    _check_goal(settings)
    return settings, bool(asked)


def _check_goal(settings: AnalyseSettings) -> None:
    if GOAL not in settings.objectives:
        return
    if not settings.diagram:
        raise ValueError(f"--objectives {GOAL} is for --diagram, which was not asked for")
    wanting = [part for part in OF_OBJECTIVES if getattr(settings, part)]
    if wanting and set(settings.objectives) == {GOAL}:
        raise ValueError(f"--objectives {GOAL} is for --diagram alone: name an objective beside it for --{wanting[0]}")


def _looked_at(run: Opened, settings: AnalyseSettings) -> list[LookedAt]:
    if not settings.objectives:
        return [LookedAt(run.objective.name, run.objective)]
    return [LookedAt(given, run.looked_at(name, chosen)) for given, name, chosen in _parsed(settings.objectives)]


def _alone(settings: AnalyseSettings) -> list[LookedAt]:
    return [LookedAt(given, objective(name, **chosen)) for given, name, chosen in _parsed(settings.objectives)]


def _parsed(names: Sequence[str]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for given in dict.fromkeys(each for each in names if each != GOAL):
        name, chosen, others = parse(given)
        if others:
            raise ValueError(f"{given}: {', '.join(others)} is a setting of training, and nothing is trained here")
        yield given, name, chosen


def _can_show_examples(opened: Sequence[Opened], settings: AnalyseSettings, named: bool) -> bool:
    """Asked for by name they must be possible; among all that can be shown they may be left out."""
    if not named and opened[0].ready.test is None and opened[0].ready.validation is None:
        return False
    split = shared_held_out(opened[0], opened[1] if len(opened) > 1 else None)
    for query in settings.queries:
        matched(query, split)
    return True


def _check(run: Opened, looked_at: Sequence[LookedAt], settings: AnalyseSettings) -> None:
    if settings.epochs:
        diagrams.chosen_epochs(runs.read_triplets(run.folder), settings.epochs)
    for each in looked_at:
        if settings.as_published:
            count_batch(each.objective, torch.eye(2), as_published=True)  # refused where none was released
        if settings.cocos or settings.anatomy:
            run.check_members(each.objective)
        if settings.judgements is not None and each.objective.takes_mined:
            raise ValueError(f"--judgements: {each.label} needs mined members, and held-out pairs have none")
        batches = len(run.meetings(each.objective, settings.batch_size))
        if settings.anatomy and settings.batch >= batches:
            raise ValueError(f"--batch {settings.batch}: there are {batches:,} batches, 0 to {batches - 1}")
    if settings.judgements is not None:
        read_judgements(settings.judgements, run.split(run.held_out))


def _one_run(run: Opened, looked_at: Sequence[LookedAt], settings: AnalyseSettings, console: Console) -> Iterator[Path]:
    out = settings.out / run.name
    if settings.cocos:
        yield _cocos(run, looked_at, settings, out, console)
    if settings.diagram:
        laid: diagrams.Laid = runs.read_triplets(run.folder)
        if laid or settings.epochs:
            laid = diagrams.chosen_epochs(laid, settings.epochs)
        else:
            console.print("the run kept no triplets: its diagrams are without them", style="yellow")
        yield from _write_figures(out, f"Diagrams of {run.name}", _figures(looked_at, laid, settings))
    if settings.judgements is not None:
        yield _judged(run, looked_at, settings, out, console)
    if settings.anatomy:
        for each in looked_at:
            place = out if len(looked_at) == 1 else out / each.file_name
            yield write_anatomy(run, each.objective, place, batch=settings.batch, batch_size=settings.batch_size)


def _cocos(run: Opened, looked_at: Sequence[LookedAt], settings: AnalyseSettings, out: Path, console: Console) -> Path:
    how: dict[str, Any] = {"epsilon": settings.epsilon, "as_published": settings.as_published}
    counted = []
    for each in looked_at:
        meetings = _with_bar(run.meetings(each.objective, settings.batch_size), f"{each.label}, batches")
        counted.append(cocos.count_run(run, each.objective, label=each.label, meetings=meetings, **how))
    tables = [cocos.table(each) for each in counted]
    _print(tables, console)
    name = "cocos_as_published" if settings.as_published else "cocos"
    runs.write_beside_runs(out, f"{name}.md", "\n".join(table.markdown() for table in tables))
    return _write_json(out, name, [each.content() for each in counted])


def _judged(run: Opened, looked_at: Sequence[LookedAt], settings: AnalyseSettings, out: Path, console: Console) -> Path:
    assert settings.judgements is not None
    said = read_judgements(settings.judgements, run.split(run.held_out))
    even = judged.even_share(said, run.held_out.owners.numpy())
    pushes = [
        judged.push_on_judged(run, each.objective, said, label=each.label, batch_size=settings.batch_size)
        for each in _with_bar(looked_at, "objectives")
    ]
    table = judged.table(pushes, even)
    _print([table], console)
    runs.write_beside_runs(out, "judged.md", table.markdown())
    return _write_json(out, "judged", {"even": even, "objectives": [each.content() for each in pushes]})


def _figures(
    looked_at: Sequence[LookedAt], laid: diagrams.Laid, settings: AnalyseSettings
) -> list[tuple[Figure, dict[str, Any]]]:
    """Those of GOAL where they are named, or nothing is."""
    how = {"mined": settings.mined_similarity}
    made = [
        diagrams.diagram(each.objective, laid, name=f"diagram_{each.file_name}", label=each.label, **how)
        for each in looked_at
    ]
    if GOAL in settings.objectives or not made:
        made += [diagrams.goal_figure_2(), diagrams.goal_figure_3()]
    return made


def _write_figures(out: Path, heading: str, made: Sequence[tuple[Figure, dict[str, Any]]]) -> Iterator[Path]:
    for figure, content in made:
        runs.write_beside_runs(out, f"figures/{figure.name}.svg", figure.file_svg)
        runs.write_beside_runs(out, f"figures/{figure.name}.json", _json(content))
        runs.write_beside_runs(out, f"figures/{figure.name}.png", figure.png)
        yield out / "figures" / f"{figure.name}.png"
    lead = "Positive similarity to the right, negative upwards: how strongly a triplet there is pulled and pushed."
    shown = Section("diagrams", "Diagrams", "".join(figure_block(figure) for figure, _ in made))
    runs.write_beside_runs(out, "diagrams.html", page(f"Tercet: {heading}", heading, lead, [shown]))
    yield out / "diagrams.html"


def _integrability(out: Path, console: Console) -> Path:
    cells = [integrability.judge(*each) for each in _with_bar(integrability.CELLS, "cells")]
    tables, said = integrability.tables(cells), integrability.explanations(cells)
    _print(tables, console)
    for sentence in said:
        console.print(f"- {sentence}", highlight=False, markup=False)
    text = "\n".join([*(table.markdown() for table in tables), *(f"- {sentence}" for sentence in said), ""])
    runs.write_beside_runs(out, "integrability.md", text)
    return _write_json(out, "integrability", [each.content() for each in cells])


def _print(tables: Sequence[Table], console: Console) -> None:
    for table in tables:  # titles are longer than tables are wide
        console.print(table.title, style="bold", soft_wrap=True, highlight=False, markup=False)
        console.print(replace(table, title="").terminal())
        console.print()


def _with_bar(items: Sequence[Item], what: str) -> Iterable[Item]:
    return track(items, what, console=Console(stderr=True), transient=True)


def _write_json(out: Path, name: str, content: Any) -> Path:
    runs.write_beside_runs(out, f"{name}.json", _json(content, indent=2))
    return out / f"{name}.json"


def _json(content: Any, indent: int | None = None) -> str:
    return json.dumps(runs.without_nan(content), indent=indent, allow_nan=False) + "\n"
