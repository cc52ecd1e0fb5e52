"""The tests themselves: each one asserts something, and none waits for a fixed time."""

import ast
from pathlib import Path

from tests.conftest import LONGEST

ROOT = Path(__file__).parent
SOURCES = {file: ast.parse(file.read_text(encoding="utf-8")) for file in sorted(ROOT.rglob("*.py"))}
# Functions of libraries that raise if what they check is wrong.
CHECKS = {"raises", "warns", "fail", "assert_close", "assert_allclose", "assert_array_equal"}


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def names_in(file):
    """Name in a file -> (file, name) of the function of the test suite that it means."""
    names = {function.name: (file, function.name) for function in functions(SOURCES[file])}
    for node in ast.walk(SOURCES[file]):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests."):
            origin = ROOT.parent.joinpath(*node.module.split(".")).with_suffix(".py")
            names |= {alias.asname or alias.name: (origin, alias.name) for alias in node.names}
    return names


def asserts(function, names, asserting):
    """Whether a function contains an assertion, or calls a function that does."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert) or (isinstance(node, ast.Raise) and "AssertionError" in ast.unparse(node)):
            return True
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
            is_helper = isinstance(node.func, ast.Name) and names.get(name) in asserting
            if name in CHECKS or is_helper:
                return True
    return False


def without_an_assertion():
    names = {file: names_in(file) for file in SOURCES}
    everything = [(file, function) for file, tree in SOURCES.items() for function in functions(tree)]
    asserting = set()
    while True:
        more = {(file, f.name) for file, f in everything if asserts(f, names[file], asserting)} - asserting
        if not more:
            return [
                f"{file.relative_to(ROOT)}::{f.name}"
                for file, f in everything
                if f.name.startswith("test_") and (file, f.name) not in asserting
            ]
        asserting |= more


def test_files_that_start_first_exist():
    assert all((ROOT / name).is_file() for name in LONGEST)


def test_every_test_asserts_something():
    assert not without_an_assertion()


def test_no_test_waits_for_a_fixed_time():
    """time.sleep of a number only inside a loop that ends when something has happened."""
    wrong = []
    for file, tree in SOURCES.items():
        polls = [node for node in ast.walk(tree) if isinstance(node, (ast.While, ast.For))]
        polled = {id(node) for loop in polls for node in ast.walk(loop)}
        for node in ast.walk(tree):
            is_sleep = isinstance(node, ast.Call) and ast.unparse(node.func) == "time.sleep"
            if is_sleep and isinstance(node.args[0], ast.Constant) and id(node) not in polled:
                wrong.append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert not wrong
