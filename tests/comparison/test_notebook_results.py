"""Results as a notebook shows them: short representations, tables, DataFrames, figures; progress without ipywidgets."""

import builtins

import pytest

import tercet
from tercet.training.trained import Trained


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    settings = {"seeds": 2, "epochs": 1, "train": {"batch_size": 50}, "no_tune": True}
    settings["runs"] = tmp_path_factory.mktemp("runs")
    return tercet.compare("scenes:60", objectives=("nt-xent", "triplet"), **settings)


@pytest.fixture
def run(comparison):
    found = comparison.results.runs["nt-xent"][0]
    return Trained(found.folder, found.metrics, "test")


def test_representations_are_short(comparison, run):
    train = comparison.prepared_datasets["heads"].train
    shown = [comparison, run, comparison.results, train, tercet.open_data("scenes:60")]
    shown.append(tercet.check_objective("nt-xent", processes=False))
    for each in shown:
        assert len(repr(each)) < 300, repr(each)
    assert "nt-xent" in repr(comparison)
    assert f"rsum {run.metrics['rsum']:.1f}" in repr(run)
    assert repr(shown[-1]) == f"CheckReport(nt-xent, {len(shown[-1].checks)} checks, passed)"


def test_tables_in_a_notebook(comparison, run):
    page = comparison._repr_html_()
    assert page.count("<table>") == 1
    assert f"{comparison.results.mean('nt-xent', 'rsum'):.1f}" in page
    assert comparison.verdict.split(",")[0] in page
    page = run._repr_html_()
    assert "image to text" in page
    assert run.folder.name in page


def test_print_needs_no_console(comparison, run, capsys):
    comparison.print()
    run.print()
    printed = capsys.readouterr().out
    assert "triplet" in printed
    assert "text to image" in printed


def test_data_frames(comparison, run, monkeypatch):
    pytest.importorskip("pandas")
    frame = comparison.to_pandas()
    assert len(frame) == 4
    mean = frame.groupby("objective").rsum.mean()["nt-xent"]
    assert mean == pytest.approx(comparison.results.mean("nt-xent", "rsum"))
    epochs = run.to_pandas()
    assert list(epochs.split) == ["validation", "test"]
    assert epochs.rsum.iloc[-1] == run.metrics["rsum"]
    without = builtins.__import__

    def missing(name, *rest):
        if name == "pandas":
            raise ImportError(name)
        return without(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ValueError, match="to_pandas needs a package: pip install pandas"):
        run.to_pandas()


def test_figures_are_shown_below_the_cell(comparison, run):
    recalls = comparison.plot()
    assert recalls._repr_png_().startswith(b"\x89PNG")
    assert [axes.get_title("left") for axes in recalls.axes] == ["image to text, R@1", "text to image, R@1", "rsum"]
    assert recalls.axes[0].get_xlim()[0] == 0
    assert len(run.plot().axes) == 1
    with pytest.raises(ValueError, match=r"unknown figure 'recals' \(did you mean recalls\?\)"):
        comparison.plot("recals")
