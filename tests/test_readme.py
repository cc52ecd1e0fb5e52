"""README and CONTRIBUTING are true: snippets run, the tree exists, commands are commands."""

import re
from pathlib import Path

from tercet.cli.main import COMMANDS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


def test_snippets_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(snippets) >= 2
    exec("\n".join(snippets), {})


def test_the_tree_in_contributing_exists_and_is_whole():
    tree = CONTRIBUTING.split("src/tercet/\n")[1].split("```")[0]
    named = {name.rstrip("/") for name in re.findall(r"[a-z_]+(?:\.py|/)(?=\s|$|,|\))", tree)}
    package = ROOT / "src" / "tercet"
    there = {path.name for path in package.rglob("*")} | {"tests", "benchmarks", "docs", "decisions", "goldens"}
    assert named <= there, named - there
    parts = {path.name for path in package.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert parts - named <= {"__init__.py", "__main__.py", "__pycache__"}


def test_make_targets_and_commands_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`?make ([\w-]+)`?", README):
        assert f"\n{target}: " in makefile
    for command in re.findall(r"^tercet (\w+)", README, flags=re.MULTILINE):
        assert command in COMMANDS


def test_papers_name_files_that_exist():
    for name in re.findall(
        r"`((?:objectives|analysis|data|models|mining|evaluation|comparison|recipes|legacy|training)/[\w/]+\.py)`",
        (ROOT / "PAPERS.md").read_text(),
    ):
        assert (ROOT / "src/tercet" / name).is_file(), name


def test_the_security_page_names_what_exists():
    page = (ROOT / "SECURITY.md").read_text()
    named = re.findall(r"`(tests/[\w/.]+|[\w-]+\.txt)`", page)
    assert len(named) >= 8
    assert all((ROOT / name).exists() for name in named)
    assert all(f"\n{target}: " in (ROOT / "Makefile").read_text() for target in re.findall(r"`make ([\w-]+)`", page))
