"""The page itself: one HTML file with everything in it."""

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from tercet import runs
from tercet.comparison.answer import Comparison
from tercet.comparison.report import figures
from tercet.comparison.report.evidence import embed, similarities
from tercet.comparison.report.examples import disagreements, example_block
from tercet.comparison.split import evaluated_split
from tercet.comparison.tables import cost_table, pairs_table
from tercet.comparison.tuning import Tuned
from tercet.pages.figure import Figure
from tercet.pages.page import Section, figure_block, page, scrolling
from tercet.pages.table import Cell, Table

LINES = 8  # contestants in figures of lines: more cannot be told apart by eye
COLUMNS = 3  # contestants side by side in examples


def write_report(comparison: Comparison) -> Path:
    """The page, and each figure as PNG and SVG beside it."""
    made = _figures(comparison)
    for figure in made:
        runs.write_beside_runs(comparison.folder, f"figures/{figure.name}.png", figure.png)
        runs.write_beside_runs(comparison.folder, f"figures/{figure.name}.svg", figure.file_svg)
    runs.write_beside_runs(comparison.folder, "report.html", _page(comparison, made, _examples(comparison)))
    return comparison.folder / "report.html"


def _figures(comparison: Comparison) -> list[Figure]:
    results, order = comparison.results, list(comparison.judgement.order)
    if not order:
        return []
    few, seed = order[:LINES], _seed(comparison)
    embedded = embed(results, comparison.readies, few, seed) if seed is not None else []
    made = [
        figures.recalls(results, order, comparison.judgement.metric),
        figures.rank_changes(results, order[0], order[1], seed) if seed is not None and len(order) > 1 else None,
        figures.learning(results, few),
        figures.contributing(results, few),
        figures.distributions({each.name: similarities(each) for each in embedded}) if embedded else None,
        figures.cross_ranks(results, order),
        figures.costs(results, order),
    ]
    return [figure for figure in made if figure is not None]


def _seed(comparison: Comparison) -> int | None:
    """The first that all contestants of the figures have."""
    few = comparison.judgement.order[:LINES]
    shared = set.intersection(*(set(comparison.results.runs[name]) for name in few))
    return min(shared, default=None)


def _examples(comparison: Comparison) -> str:
    """The first, the second and the last contestant side by side."""
    order = list(comparison.judgement.order)
    seed = _seed(comparison) if order else None
    if len(order) < 2 or seed is None:
        return ""
    names = list(dict.fromkeys([*order[: COLUMNS - 1], order[-1]]))
    names = [name for name in names if seed in comparison.results.runs[name]]
    embedded = embed(comparison.results, comparison.readies, names, seed)
    split = evaluated_split(comparison.settings, comparison.results.split)
    if split is None or len(split.texts) != len(embedded[0].owners):
        return ""
    parts = [
        "<h3>Text to image</h3>",
        *(example_block(each, split) for each in disagreements(embedded, "t2i")),
        "<h3>Image to text</h3>",
        *(example_block(each, split) for each in disagreements(embedded, "i2t")),
    ]
    return "".join(parts)


def _page(comparison: Comparison, made: Sequence[Figure], examples: str) -> str:
    sections = [Section("table", "Results", "".join(_wide(table) for table in comparison.tables()))]
    order = list(comparison.judgement.order)
    if comparison.judgement.pairs:
        sections.append(Section("pairs", "Which differences are real", _pairs(comparison)))
    if order:
        sections.append(
            Section("costs", "What it took", _wide(cost_table(comparison.results, order)) + _tuned(comparison))
        )
    if made:
        few = f'<p class="note">Lines show the first {LINES} contestants.</p>' if len(order) > LINES else ""
        drawn = "".join(figure_block(figure) for figure in made)
        sections.append(Section("figures", "Figures", f'{few}<div class="figures">{drawn}</div>'))
    if examples:
        sections.append(Section("examples", "Where they disagree most", examples))
    if comparison.results.failures:
        rows = "".join(f"<li><b>{escape(f.name)}</b>: {escape(f.why)}</li>" for f in comparison.results.failures)
        sections.append(Section("failures", "Failed runs", f'<div class="failed"><ul>{rows}</ul></div>'))
    sections.append(Section("how", "How it was made", _how(comparison)))
    heading = f"{comparison.title}: which objective wins?"
    return page(f"Tercet: {comparison.title}", heading, comparison.verdict, sections)


def _wide(table: Table) -> str:
    return scrolling(table.title, table.html())


def _pairs(comparison: Comparison) -> str:
    """Those with the best one first; all of them behind a click."""
    every = pairs_table(comparison.judgement)
    best = {f"{pair.first} - {pair.second}" for pair in comparison.judgement.against_best()}
    near = Table(every.title, every.headings, [row for row in every.rows if row[0] in best])
    if len(near.rows) == len(every.rows):
        return _wide(every)
    return f"{_wide(near)}<details><summary>All {len(every.rows)} pairs</summary>{_wide(every)}</details>"


def _tuned(comparison: Comparison) -> str:
    if not comparison.tuned:
        return ""
    factors = comparison.settings.tune_factors
    rows = []
    for name, tuned in comparison.tuned.items():
        found = {f"{rate / tuned.base:.6g}": rate for rate in tuned.validation}
        cells = [_tried(tuned, found.get(f"{factor:.6g}")) for factor in sorted(factors)]
        rows.append((name, cells))
    headings = ("objective", *(f"x {factor:g}" for factor in sorted(factors)))
    return _wide(Table("Learning rates tried and validation at the best epoch; bold: chosen", headings, rows))


def _tried(tuned: Tuned, rate: float | None) -> Cell:
    if rate is None:
        return Cell("failed")
    return Cell(f"{rate:g}: {tuned.validation[rate]:.1f}", rate == tuned.chosen)


def _how(comparison: Comparison) -> str:
    any_run: Any = next((run for each in comparison.results.runs.values() for run in each.values()), None)
    made = ""
    if any_run is not None:
        machine = any_run.machine
        made = f"<p>Tercet {machine['tercet']}, torch {machine['torch']}, commit {machine['commit']}.</p>"
    settings = runs.read_settings(any_run.folder) if any_run is not None else {}
    shown = escape(json.dumps(settings, indent=2, sort_keys=True))
    return (
        f"{made}<p>Standard deviations are over seeds, with n-1. p-values are two-sided: the mean difference against "
        "Howe's interval, which takes the variance between seeds and that between images each with its own quantile of "
        "t; captions of an image count as one with it. Corrected by Holm for all pairs. The smallest difference that "
        "could be found is that of 80 % power at the corrected level.</p>"
        f"<details><summary>Settings of the first run</summary><pre tabindex=0>{shown}</pre></details>"
    )
