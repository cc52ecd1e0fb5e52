"""examples/notebook.ipynb is executed, and shows what results look like in a notebook."""

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
