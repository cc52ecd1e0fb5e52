"""The snippet of docs/mining.md runs; its commands, flags and grids exist."""

import re
from pathlib import Path

from tercet.cli.main import COMMANDS
from tercet.comparison.plan import GRIDS
from tercet.training.settings import SETTING_NAMES, MineSettings

PAGE = (Path(__file__).parents[1] / "docs" / "mining.md").read_text()


def test_the_snippet_runs():
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    names = {}
    exec(snippet, names)
    assert len(names["counts"]) == 4
    assert names["for_members"].shape == (8, 4)


def test_commands_flags_and_grids_exist():
    for command in re.findall(r"^tercet (\w+)", PAGE, flags=re.MULTILINE):
        assert command in COMMANDS
    known = {*SETTING_NAMES, *MineSettings.__dataclass_fields__, "grid", "models", "train", "examples"}
    for flag in re.findall(r"--([a-z][\w-]*)", PAGE):
        assert flag.replace("-", "_") in known, flag
    for grid in re.findall(r"--grid ([\w-]+)", PAGE):
        assert grid in GRIDS
