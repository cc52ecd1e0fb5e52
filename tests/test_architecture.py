"""Who may import whom: the flow goes one way."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "tercet"

# part -> the parts of tercet it may import, besides itself. Parts that do not exist yet are listed when they come.
MAY_IMPORT = {
    "contracts": set(),
    "data": {"contracts"},
    "objectives": {"contracts"},
    "evaluation": {"contracts"},
    "similarity": {"contracts"},
    "models": {"contracts", "similarity"},
    "analysis": {"contracts", "objectives", "evaluation"},
    "runs": {"contracts"},
    "retriever": {"contracts", "data", "models", "similarity"},
    "mining": {"contracts", "data", "similarity", "analysis"},
    "training": {
        "mining",
        "contracts",
        "data",
        "models",
        "similarity",
        "objectives",
        "evaluation",
        "analysis",
        "runs",
        "retriever",
    },
    "pages": {"data"},
    "comparison": {
        "pages",
        "contracts",
        "data",
        "models",
        "similarity",
        "objectives",
        "evaluation",
        "runs",
        "retriever",
        "training",
    },
    "dissection": {
        "similarity",
        "contracts",
        "data",
        "objectives",
        "evaluation",
        "analysis",
        "runs",
        "retriever",
        "training",
        "comparison",
        "pages",
    },
    "search": {"contracts", "data", "similarity", "objectives", "analysis", "runs", "retriever", "training", "pages"},
    "cli": {"search", "dissection", "comparison", "data", "retriever", "training"},
}
BANNED_NAMES = {"utils", "util", "common", "helpers", "misc"}


def part_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_parts(source: str) -> set[str]:
    parts = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        parts |= {name.split(".")[1] for name in names if name.startswith("tercet.")}
    return parts


FILES = sorted(file for file in PACKAGE.rglob("*.py") if file != PACKAGE / "__init__.py")


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_follow_the_flow(file):
    part = part_of(file)
    assert part in MAY_IMPORT, f"{part} has no row in the table"
    assert imported_parts(file.read_text()) - {part} <= MAY_IMPORT[part]


def test_a_wrong_import_would_be_seen():
    assert imported_parts("from tercet.training import train\nimport tercet.models") == {"training", "models"}
    assert not imported_parts("from tercet.training import train") <= MAY_IMPORT["objectives"]


def test_no_file_says_nothing_or_too_much():
    for file in FILES:
        assert file.stem not in BANNED_NAMES
        assert len(file.read_text().splitlines()) <= 320, f"{file} is long: one concept a file"
