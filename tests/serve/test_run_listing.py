"""Runs and comparisons that are damaged, or from somebody else, are listed beside the others, never an error of all."""

import json

import pytest
from pydantic import TypeAdapter

from tercet.search.metadata import Item
from tercet.search.searcher import Hit
from tercet.serve.run_listing import METRICS, ComparisonInfo, Curves, RunInfo, RunListing
from tercet.serve.search_routes import SearchHit, to_search_hit
from tercet.storage import FORMAT_VERSION, write_manifest

NAME = "20260101_photos_heads_nt-xent_s0_0123456789"
GOOD = b'{"split": "validation", "epoch": 1, "step": 7, "rsum": 90.5}\n'


def test_captions_that_no_encoding_can_send_are_shown_as_escapes():
    item = Item("/photos/a\udcff.png", ("a \ud800 dog",), 0, None, "0" * 32)
    hit = json.loads(TypeAdapter(SearchHit).dump_json(to_search_hit(Hit(1, 0.5, item, 1))))
    assert hit["captions"] == ["a \\ud800 dog"]


def run_folder(root, line, settings=b'{"seed": 0, "epochs": 2, "objective": "nt-xent"}'):
    folder = root / NAME
    folder.mkdir()
    (folder / "metrics.jsonl").write_bytes(line + b"\n" + GOOD)
    (folder / "settings.json").write_bytes(settings)


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 100_000,
        b"\xff\xfe",
        b'{"split": "validation", "epoch": 1e999}',
        b'{"split": "validation", "epoch": 1, "step": Infinity, "rsum": NaN}',
        b'{"split": "validation", "epoch": 1, "rsum": "\\ud800"}',
        b'{"step": 1, "cocos": {"i2t": {"silent": NaN}, "t2i": {"silent": ["\\ud800"]}}}',
    ],
)
def test_a_damaged_line_of_a_run_in_training_is_skipped(tmp_path, line):
    run_folder(tmp_path, line)
    listing = RunListing(tmp_path)
    (info,) = json.loads(TypeAdapter(list[RunInfo]).dump_json(listing.all()))
    assert info["metrics"] == {"rsum": 90.5}
    curves = json.loads(TypeAdapter(Curves).dump_json(listing.curves(NAME)))
    assert curves["validation"][-1] == {"epoch": 1, "step": 7, "rsum": 90.5}


@pytest.mark.parametrize(
    ("settings", "listed"),
    [(b'{"seed": 1e999}', 0), (b"[" * 100_000, 0), (b'{"objective": "\\ud800", "data": "a\\u001b[2J"}', 1)],
)
def test_damaged_settings_of_a_run_in_training(tmp_path, settings, listed):
    run_folder(tmp_path, b"{}", settings)
    infos = RunListing(tmp_path).all()
    assert len(infos) == listed
    assert b"ud800" in TypeAdapter(list[RunInfo]).dump_json(infos) or not listed


@pytest.mark.parametrize(
    ("changes", "damaged"),
    [
        ({"title": 1}, True),
        ({"metric": 1}, True),
        ({"results": {"a": [{"metrics": {}}]}}, True),
        ({"results": {"a": [{"metrics": dict.fromkeys(METRICS, float("nan"))}]}}, True),
        ({"results": {"a": [{"metrics": dict.fromkeys(METRICS, 1e308)}] * 2}}, True),
        ({"title": "a \ud800", "verdict": "b\n\ud800 c"}, False),
    ],
)
def test_a_comparison_of_wrong_types_is_listed_as_damaged(tmp_path, changes, damaged):
    (tmp_path / "comparison_x").mkdir()
    content = {"title": "t", "verdict": "v", "metric": "rsum", "results": {}} | changes
    write_manifest(tmp_path / "comparison_x" / "comparison.json", {"format_version": FORMAT_VERSION} | content)
    infos = RunListing(tmp_path).comparisons()
    TypeAdapter(list[ComparisonInfo]).dump_json(infos)
    assert ("is damaged" in infos[0].verdict) == damaged
    if not damaged:
        assert (infos[0].title, infos[0].verdict) == ("a \\ud800", "b\n\\ud800 c")
