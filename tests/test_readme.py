"""README is true: its snippets run, its tree exists, its commands are commands."""

import re
from pathlib import Path

from tercet.cli import COMMANDS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_snippets_run():
    snippets = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(snippets) >= 2
    exec("\n".join(snippets), {})


def test_the_tree_exists_and_is_whole():
    tree = README.split("## The tree")[1].split("```")[1]
    named = set(re.findall(r"[\w/]+(?:\.py|/)(?=[\s])", tree))
    found = {path.name for path in (ROOT / "src").rglob("*.py")} | {f"{p.name}/" for p in (ROOT / "src").rglob("*")}
    for name in named - {"src/tercet/", "tests/", "docs/decisions/", "goldens/", "benchmarks/"}:
        assert name in found, name
    objectives = {path.name for path in (ROOT / "src/tercet/objectives").glob("*.py")} - {"__init__.py"}
    assert objectives <= named


def test_make_targets_and_commands_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`?make ([\w-]+)`?", README):
        assert f"\n{target}: " in makefile
    for command in re.findall(r"^tercet (\w+)", README, flags=re.MULTILINE):
        assert command in COMMANDS


def test_papers_name_files_that_exist():
    for name in re.findall(
        r"`((?:objectives|analysis|data|models|mining|evaluation|comparison)/\w+\.py)`",
        (ROOT / "PAPERS.md").read_text(),
    ):
        assert (ROOT / "src/tercet" / name).is_file(), name
