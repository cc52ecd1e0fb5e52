"""docs/data.md: its files are written as shown, its commands and snippets run."""

import re
import shlex
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.commands import tercet
from tests.data.formats.test_butd import line as butd_line
from tests.data.small_datasets import image_bytes

PAGE = (Path(__file__).parents[1] / "docs" / "data.md").read_text()
FILES = re.findall(r"```\w+ title=(\S+)\n(.*?)```", PAGE, flags=re.DOTALL)
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL) for line in block.splitlines()]
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    for name, content in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "images").mkdir()
    for seed, name in enumerate(("beach", "snow", "city", "park")):
        (tmp_path / "images" / f"{name}.jpg").write_bytes(image_bytes(seed))
    for seed, path in enumerate(("photos/train/beach.jpg", "photos/test/park.jpg")):
        (tmp_path / path).write_bytes(image_bytes(seed))
    lines = [butd_line(name, np.full((3, 4), 9.0), np.ones((3, 8))) for name in ("beach", "park")]
    (tmp_path / "trainval_36.tsv").write_text("".join(lines))
    (tmp_path / "hub_download").mkdir()
    cells = [{"bytes": image_bytes(n), "path": f"{n}.jpg"} for n in range(2)]
    rows = pa.table({"image": cells, "caption": [["a dog"], ["a cat"]]})
    pq.write_table(rows, tmp_path / "hub_download" / "train-00000-of-00001.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_recipe_runs_as_shown(workspace):
    assert len(COMMANDS) >= 10
    for command in COMMANDS:
        program, *arguments = shlex.split(command)
        assert program == "tercet"
        done = tercet(*arguments)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        if arguments[:2] == ["data", "inspect"]:
            assert "No errors found" in done.stdout


def test_every_snippet_runs(workspace, capsys):
    assert len(SNIPPETS) == 3
    values = {}
    exec("\n".join(SNIPPETS), values)
    assert values["positives"].any()
    assert values["token_ids"]
