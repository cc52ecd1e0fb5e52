"""Every example in a docstring of the package gives what it shows."""

import ast
import doctest
import importlib
from pathlib import Path

import pytest

import tercet

PACKAGE = Path(tercet.__file__).parent


def shown(file):
    """The number of examples in a file, without those that need files of the reader."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return sum(">>> " in line and "doctest: +SKIP" not in line for line in lines)


FILES = [file for file in sorted(PACKAGE.rglob("*.py")) if shown(file)]


def docstrings(file):
    """Name -> docstring with examples, from the source: decorated functions hide theirs from doctest's own search."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        text = ast.get_docstring(node) if isinstance(node, kinds) else None
        if text and ">>> " in text:
            yield getattr(node, "name", file.stem), text


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_examples_in_docstrings(file):
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    module = importlib.import_module(".".join(part for part in parts if part != "__init__"))
    runner, parser = doctest.DocTestRunner(), doctest.DocTestParser()
    for name, text in docstrings(file):
        runner.run(parser.get_doctest(text, vars(module).copy(), name, str(file), 0))
    assert runner.tries == shown(file)
    assert runner.failures == 0
