"""docs/search.md: its snippet runs; its commands, flags and URLs exist."""

import re
from pathlib import Path

from tercet.cli.main import COMMANDS
from tercet.data.settings import Features
from tercet.search.settings import IndexSettings, SearchSettings, ServeSettings
from tercet.serve.app import application
from tests.search.small_indexes import index, model
from tests.search.test_index import draw

PAGE = (Path(__file__).parents[1] / "docs" / "search.md").read_text()


def test_the_snippet_runs(tmp_path, monkeypatch, capsys):
    draw(tmp_path / "photos", ["a", "b", "c"])
    index(tmp_path, "photos_index", model("vsepp"), tmp_path / "photos")
    (tmp_path / "photos" / "a.png").rename(tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    capsys.readouterr()
    exec(snippet, {})
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_commands_and_flags_exist():
    for command in re.findall(r"^tercet (\w+)", PAGE, flags=re.MULTILINE):
        assert command in COMMANDS
    known = set()
    for settings in (IndexSettings, SearchSettings, ServeSettings, Features):
        known |= set(settings.__dataclass_fields__)
    for flag in re.findall(r"--([a-z][\w-]*)", PAGE):
        assert flag.replace("-", "_") in known | {"data_binary"}, flag


def test_urls_exist():
    paths = application([], None).openapi()["paths"]
    for path in re.findall(r"8765(/api/[\w/]+)", PAGE):
        assert path in paths
