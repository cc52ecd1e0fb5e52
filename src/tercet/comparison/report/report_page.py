"""The HTML report of a comparison: one file with tables, figures and examples."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from tercet import runs
from tercet.comparison.compare import Comparison
from tercet.comparison.lr_search import LrSearch
from tercet.comparison.report import figures
from tercet.comparison.report.embeddings import EmbeddedSplit, embed_runs, evaluated_data, similarities
from tercet.comparison.report.qualitative import disagreements, example_block
from tercet.comparison.tables import cost_table, pairs_table
from tercet.reporting.html import Section, figure_block, page, scrollable
from tercet.reporting.svg_figure import Figure
from tercet.reporting.table_formats import Cell, Table

MAX_LINES = 8  # variants in line plots; more are hard to distinguish
EXAMPLE_COLUMNS = 3  # variants side by side in examples


def write_report(comparison: Comparison) -> Path:
    """Write report.html, and each figure as PNG and SVG; return the path of the page."""
    embedded = _embedded(comparison)
    drawn = _figures(comparison, embedded)
    for figure in drawn:
        runs.write_artifact(comparison.folder, f"figures/{figure.name}.png", figure.png)
        runs.write_artifact(comparison.folder, f"figures/{figure.name}.svg", figure.file_svg)
    runs.write_artifact(comparison.folder, "report.html", _page(comparison, drawn, _examples(comparison, embedded)))
    return comparison.folder / "report.html"


def _embedded(comparison: Comparison) -> dict[str, EmbeddedSplit]:
    """The evaluated split, embedded once by each run that figures and examples show; by variant."""
    order, seed = list(comparison.significance.order), _shared_seed(comparison)
    if seed is None:
        return {}
    names = [
        name for name in dict.fromkeys([*order[:MAX_LINES], *_shown(order)]) if seed in comparison.results.runs[name]
    ]
    embedded = embed_runs(comparison.results, comparison.prepared_datasets, names, seed)
    return {each.name: each for each in embedded}


def _shown(order: Sequence[str]) -> list[str]:
    """The best, the second and the last variant."""
    return list(dict.fromkeys([*order[: EXAMPLE_COLUMNS - 1], *order[-1:]]))


def _figures(comparison: Comparison, embedded: Mapping[str, EmbeddedSplit]) -> list[Figure]:
    results, order = comparison.results, list(comparison.significance.order)
    if not order:
        return []
    names, seed = order[:MAX_LINES], _shared_seed(comparison)
    histograms = {name: similarities(embedded[name]) for name in names if name in embedded}
    drawn = [
        figures.recalls(results, order, comparison.significance.metric),
        figures.rank_changes(results, order[0], order[1], seed) if seed is not None and len(order) > 1 else None,
        figures.learning_curves(results, names),
        figures.contributing_negatives(results, names),
        figures.similarity_histograms(histograms) if histograms else None,
        figures.cross_ranks(results, order),
        figures.costs(results, order),
    ]
    return [figure for figure in drawn if figure is not None]


def _shared_seed(comparison: Comparison) -> int | None:
    """The first seed that all variants in the figures have."""
    names = comparison.significance.order[:MAX_LINES]
    if not names:
        return None
    shared = set.intersection(*(set(comparison.results.runs[name]) for name in names))
    return min(shared, default=None)


def _examples(comparison: Comparison, embedded: Mapping[str, EmbeddedSplit]) -> str:
    """HTML of the best, the second and the last variant side by side; empty if they cannot be shown."""
    order = list(comparison.significance.order)
    seed = _shared_seed(comparison)
    if len(order) < 2 or seed is None:
        return ""
    shown = [embedded[name] for name in _shown(order) if name in embedded]
    tables = [comparison.results.runs[each.name][seed].ranks for each in shown]
    prepared = next(iter(comparison.prepared_datasets.values()))
    split = evaluated_data(prepared.test, prepared.validation).split
    if split is None:
        return ""
    split = replace(split, image_files=split.images())
    return "".join(
        [
            '<p class="note">Queries with the largest ratio of worst to best rank between these variants, '
            f"seed {seed}. “rank” is that of the best positive; ✓ marks positives.</p>",
            "<h3>Text to image</h3>",
            *(example_block(each, split) for each in disagreements(shown, tables, "t2i")),
            "<h3>Image to text</h3>",
            *(example_block(each, split) for each in disagreements(shown, tables, "i2t")),
        ]
    )


def _page(comparison: Comparison, drawn: Sequence[Figure], examples: str) -> str:
    sections = [Section("table", "Results", "".join(_wide(table) for table in comparison.tables()))]
    order = list(comparison.significance.order)
    if comparison.significance.pairs:
        sections.append(Section("pairs", "Significance tests", _pairs(comparison)))
    if order:
        cost = _wide(cost_table(comparison.results, order)) + _lr_search(comparison)
        sections.append(Section("costs", "Training cost", cost))
    if drawn:
        note = f'<p class="note">Line plots show the best {MAX_LINES} variants.</p>' if len(order) > MAX_LINES else ""
        blocks = "".join(figure_block(figure) for figure in drawn)
        sections.append(Section("figures", "Figures", f'{note}<div class="figures">{blocks}</div>'))
    if examples:
        sections.append(Section("examples", "Largest disagreements", examples))
    if comparison.results.failures:
        rows = "".join(f"<li><b>{escape(f.name)}</b>: {escape(f.why)}</li>" for f in comparison.results.failures)
        sections.append(Section("failures", "Failed runs", f'<div class="failed"><ul>{rows}</ul></div>'))
    sections.append(Section("how", "Methods", _methods(comparison)))
    heading = f"Comparison of objectives: {comparison.title}"
    return page(f"Tercet: {comparison.title}", heading, comparison.verdict, sections)


def _wide(table: Table) -> str:
    return scrollable(table.title, table.html())


def _pairs(comparison: Comparison) -> str:
    """Pairs with the best variant; all pairs in a collapsed block."""
    every = pairs_table(comparison.significance)
    with_best = {f"{pair.first} - {pair.second}" for pair in comparison.significance.against_best()}
    table = Table(every.title, every.headings, [row for row in every.rows if row[0] in with_best])
    if len(table.rows) == len(every.rows):
        return _wide(every)
    return f"{_wide(table)}<details><summary>All {len(every.rows)} pairs</summary>{_wide(every)}</details>"


def _lr_search(comparison: Comparison) -> str:
    if not comparison.tuned:
        return ""
    factors = sorted(comparison.settings.tune_factors)
    rows = []
    for name, search in comparison.tuned.items():
        by_factor = {f"{rate / search.base:.6g}": rate for rate in search.validation}
        rows.append((name, [_lr_cell(search, by_factor.get(f"{factor:.6g}")) for factor in factors]))
    headings = ("objective", *(f"x {factor:g}" for factor in factors))
    return _wide(
        Table("Learning-rate search: rate and validation metric at the best epoch; bold: chosen", headings, rows)
    )


def _lr_cell(search: LrSearch, rate: float | None) -> Cell:
    if rate is None:
        return Cell("failed")
    return Cell(f"{rate:g}: {search.validation[rate]:.1f}", rate == search.chosen)


def _methods(comparison: Comparison) -> str:
    any_run = next((run for by_seed in comparison.results.runs.values() for run in by_seed.values()), None)
    versions = ""
    if any_run is not None:
        machine = any_run.machine
        versions = f"<p>Tercet {machine['tercet']}, torch {machine['torch']}, commit {machine['commit']}.</p>"
    settings = runs.read_settings(any_run.folder) if any_run is not None else {}
    settings_json = escape(json.dumps(settings, indent=2, sort_keys=True))
    return (
        f"{versions}<p>Standard deviations are over seeds (n-1). Tests are two-sided, on a crossed design of seeds and "
        "images: Howe's interval combines the variance between seeds and the variance between images, each with its "
        "own t quantile. The captions of an image are not treated as independent: the unit is the image. p-values are "
        "Holm-corrected over all pairs. The smallest detectable difference is for 80 % power at the corrected level."
        "</p>"
        f"<details><summary>Settings of the first run</summary><pre tabindex=0>{settings_json}</pre></details>"
    )
