"""The table says what the numbers say."""

from tercet.comparison.table import COLUMNS, Comparison
from tercet.runs import run_hash


def metrics(number):
    return dict.fromkeys(COLUMNS, number)


GRID = {"data": "scenes", "scenes": 300, "epochs": 2}


def test_cells_are_mean_and_standard_deviation_and_the_best_is_marked():
    table = Comparison({"a": [metrics(10.0), metrics(14.0)], "b": [metrics(20.0), metrics(20.0)]}, GRID)
    assert table.cells() == [("b", ["**20.0±0.0**"] * 7), ("a", ["12.0±2.8"] * 7)]  # sqrt(((-2)^2 + 2^2) / 1)
    assert "mean ± std (n-1) over 2 seeds" in table.title


def test_one_seed_shows_no_spread():
    table = Comparison({"a": [metrics(10.0)]}, GRID)
    assert table.cells() == [("a", ["**10.0**"] * 7)]
    assert "no spread is known" in table.title


def test_a_name_cannot_break_the_table():
    assert "| a\\|b |" in Comparison({"a|b": [metrics(1.0)]}, GRID).markdown()


def test_a_run_is_its_settings_and_its_data():
    assert run_hash({"seed": 0}, "x") == run_hash({"seed": 0}, "x")
    assert run_hash({"seed": 0}, "x") != run_hash({"seed": 1}, "x")
    assert run_hash({"seed": 0}, "x") != run_hash({"seed": 0}, "y")
