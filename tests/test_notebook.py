"""examples/notebook.ipynb is executed, and shows what results look like in a notebook; progress in a real kernel."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "examples" / "notebook.ipynb"


def outputs_of(notebook):
    """Types of the outputs of each code cell."""
    return {
        cell.source.strip().splitlines()[-1]: [kind for output in cell.outputs for kind in output.get("data", {})]
        for cell in notebook.cells
        if cell.cell_type == "code"
    }


def test_the_notebook_has_its_outputs():
    nbformat = pytest.importorskip("nbformat")
    outputs = outputs_of(nbformat.read(NOTEBOOK, 4))
    for line in ("run", "comparison"):
        assert "text/html" in outputs[line]
    for line in ("run.plot()", "comparison.plot()"):
        assert "image/png" in outputs[line]
    assert str(ROOT) not in NOTEBOOK.read_text()


PROGRESS = """
from tercet.console import ConsoleProgress
with ConsoleProgress() as progress:
    bar = progress.bar("encoding <b>", 3)
    for _ in range(3):
        bar.advance()
    progress.log("a line that is longer than a terminal is wide and is not cut off: " + "x" * 99)
"""


def test_progress_is_one_bar_that_moves_and_plain_lines(tmp_path, monkeypatch):
    from nbclient import NotebookClient
    from nbformat.v4 import new_code_cell, new_notebook

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    notebook = new_notebook(cells=[new_code_cell(PROGRESS)])
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    bar, line = notebook.cells[0].outputs
    assert bar.data["text/html"].startswith('<progress max="3" value="3"></progress> encoding &lt;b&gt;: 3 of 3, ')
    assert bar.data["text/plain"].startswith("encoding <b>: 3 of 3, ")
    assert (line.name, line.text.count("\n"), line.text[-5:]) == ("stdout", 1, "xxxx\n")


@pytest.mark.slow
def test_the_notebook_runs(tmp_path, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("pandas")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    shown = nbformat.read(NOTEBOOK, 4)
    executed = nbformat.read(NOTEBOOK, 4)
    nbclient.NotebookClient(executed, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    for line, kinds in outputs_of(shown).items():
        assert set(kinds) <= set(outputs_of(executed)[line]), line
    streams = [output for cell in executed.cells for output in cell.get("outputs", []) if "text" in output]
    assert not [output.text for output in streams if "Warning" in output.text]
