"""Tables contain the right numbers in every format."""

import csv
import io

import numpy as np
import pytest
from rich.console import Console

from tercet.comparison.family import pairs_table, with_marks
from tercet.comparison.plan import Variant
from tercet.comparison.results import (
    Results,
    cost_table,
    equal_budget_table,
    goal_tables,
    read_run,
    recalls_table,
    runs_csv,
    significance_of,
)
from tercet.objectives.goal.cells import PAIR_WEIGHTS, TRIPLET_WEIGHTS
from tercet.reporting.output_formats import Cell, Table
from tests.comparison.written_results import make_results, ranks_of, write_run


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return make_results(tmp_path_factory.mktemp("runs"), {"good": 6.0, "bad_one": 1.0})


def test_cells_are_mean_and_standard_deviation_and_the_best_is_bold(results):
    values = results.per_seed("good", "rsum")
    mean, spread = sum(values) / 3, (sum((n - sum(values) / 3) ** 2 for n in values) / 2) ** 0.5
    table = recalls_table(results, results.ordered("rsum"))
    assert "mean ± std (n-1) over 3 seeds" in table.title
    assert table.rows[0][0] == "good"
    assert table.rows[0][1][-1] == Cell(f"{mean:.1f}±{spread:.1f}", True)
    assert not any(cell.best for cell in table.rows[1][1])
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table.terminal())
    assert all(len(line) <= 80 for line in console.export_text().splitlines())


def test_group_letters_are_a_column_in_every_format(tmp_path):
    names = {"nt-xent": 6.0, "triplet-sh": 5.9, "cir/sig-ms": 1.0}
    results = make_results(tmp_path, names, images=1000)
    found, order = significance_of(results, "rsum"), results.ordered("rsum")
    whole = with_marks(recalls_table(results, order), found.marks(order))
    assert [cells[-1].text for _, cells in whole.rows] == ["a", "a", "b"]
    table = with_marks(recalls_table(results, order), found.marks(order[:2]))
    assert [cells[-1].text for _, cells in table.rows] == ["a", "a", "n/a"]
    assert table.headings[-1] == "tie"
    assert "rows that share a letter do not differ significantly; n/a: not trained to its end" in table.title
    assert "| a |" in table.markdown()
    assert "& a \\\\" in table.latex()
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table.terminal())
    lines = console.export_text().splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert any(line.startswith("cir/sig-ms ") for line in lines)  # not broken over two lines


def test_a_baseline_has_a_column_of_signs(tmp_path):
    results = make_results(tmp_path, {"good": 9.0, "base": 4.0, "bad": 1.0})
    found = significance_of(results, "rsum", baseline="base")
    table = with_marks(recalls_table(results, found.order), found.marks(found.order))
    assert table.headings[-1] == "base"
    assert [cells[-1].text for _, cells in table.rows] == ["+", "", "-"]
    assert "better (+) or worse (-) than base" in table.title
    equal = significance_of(results, "rsum", baseline="base", rope=599.0)
    assert equal.marks(["good", "base", "bad"]).cells == {"good": "+", "base": "", "bad": "-"}


def test_one_seed_has_no_standard_deviation(tmp_path):
    table = recalls_table(make_results(tmp_path, {"a": 3.0}, seeds=1), ["a"])
    assert "one seed, no standard deviation" in table.title
    assert "±" not in table.rows[0][1][0].text


def test_markdown_and_latex_hold_any_name():
    table = Table("t", ("objective", "x_1"), [("a|b_<c>", [Cell("1 %", True)]), ("$\\x{y}", [Cell("1±2")])])
    assert "\\$\\textbackslash{}x\\{y\\} & 1$\\pm$2" in table.latex()
    assert "| a\\|b_<c> | **1 %** |" in table.markdown()
    assert "a|b\\_<c> & \\textbf{1 \\%} \\\\" in table.latex()


def test_a_line_break_in_a_name_does_not_end_a_comment_or_a_row():
    hostile = "photos\n\\input{secret}\r\u2028x"
    table = Table(hostile, ("objective", "y"), [(hostile, [Cell(hostile)])])
    assert table.latex().splitlines()[0] == "% photos \\input{secret}  x"
    assert sum("photos" in line for line in table.latex().splitlines()) == 2
    assert len(table.latex().splitlines()) == 8
    assert len(table.markdown().splitlines()) == 5


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@x", "\t=1"])
def test_no_name_is_a_formula_in_a_spreadsheet(tmp_path, name):
    lines = list(csv.DictReader(io.StringIO(runs_csv(make_results(tmp_path, {name: 1.0}, seeds=1), [name]))))
    assert lines[0]["objective"] == f"'{name}"
    assert float(lines[0]["rsum"]) > 0


def test_costs_and_every_run_in_csv(results):
    costs = cost_table(results, ["good"])
    assert [cell.text for cell in costs.rows[0][1]] == ["100", "12,800", "0.001", "25 %", "1.0", "12"]
    lines = list(csv.DictReader(io.StringIO(runs_csv(results, ["good", "bad_one"]))))
    assert len(lines) == 6
    assert float(lines[0]["rsum"]) == results.runs["good"][0].metrics["rsum"]
    assert lines[0]["clipped_share"] == "0.25"


def test_pairs_show_their_tests(results):
    table = pairs_table(significance_of(results, "rsum"), "rsum")
    assert table.rows[0][0] == "good - bad_one"
    assert table.rows[0][1][0].best


def test_goals_grid_is_five_by_three(tmp_path):
    names = {f"{T}/{P}": 2.0 + n for n, (T, P) in enumerate((T, P) for T in TRIPLET_WEIGHTS for P in PAIR_WEIGHTS)}
    results = make_results(tmp_path, names, seeds=2, images=30)
    tables = goal_tables(results)
    assert len(tables) == 3
    for table in tables:
        assert table.headings == ("pair weight", *TRIPLET_WEIGHTS)
        assert [row[0] for row in table.rows] == list(PAIR_WEIGHTS)
    sig_cir = tables[2].rows[list(PAIR_WEIGHTS).index("sig")][1][list(TRIPLET_WEIGHTS).index("cir")]
    assert sig_cir.text.startswith(f"{results.mean('cir/sig', 'rsum'):.1f}")
    assert goal_tables(make_results(tmp_path / "x", {"con/con": 1.0})) == []


def test_validation_at_equal_budgets(tmp_path):
    """`wide` takes twice the pairs and four times the seconds of `narrow` for as many steps."""
    by_variant, random = {}, np.random.default_rng(0)
    spent = {"narrow": {"seconds": 5.0, "pairs_seen": 1000}, "wide": {"seconds": 20.0, "pairs_seen": 2000}}
    for name, budget in spent.items():
        curve = (100.0, 300.0, 200.0, 400.0)  # at steps 20, 40, 60 and 80 of 100
        folder = write_run(tmp_path, name, 0, ranks_of(random, 20, 1.0), curve=curve, **budget)
        by_variant[name] = {0: read_run(folder, 0)}
    table = equal_budget_table(Results([Variant(name, name) for name in spent], by_variant, ()), list(spent))
    assert table.headings == ("objective", "100 steps", "1,000 pairs seen", "5 seconds")
    shown = {name: [cell.text for cell in cells] for name, cells in table.rows}
    assert shown == {"narrow": ["400.0", "400.0", "400.0"], "wide": ["400.0", "300.0", "100.0"]}


def test_runs_without_validation_have_no_table_of_equal_budgets(results):
    assert equal_budget_table(results, results.names()) is None
