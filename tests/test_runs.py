"""Run folders: metrics.jsonl is valid JSON and truncated on resume; folders are found by their hash."""

import json

import pytest

from tercet import runs


def test_lines_are_valid_json_and_a_resume_truncates_to_the_checkpoint(tmp_path):
    file = runs.MetricsFile(tmp_path, 0)
    file.append({"step": 1, "cocos": {"i2t": {"C_q": float("nan")}}})
    length_at_checkpoint = file.length
    file.append({"step": 2})
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])["cocos"]["i2t"]["C_q"] is None
    resumed = runs.MetricsFile(tmp_path, length_at_checkpoint)
    resumed.append({"step": 2, "again": True})
    assert [line["step"] for line in runs.read_lines(tmp_path)] == [1, 2]
    assert runs.read_lines(tmp_path)[1]["again"]


def test_a_folder_is_found_by_its_hash_once_it_is_finished(tmp_path):
    settings = {"objective": "cir/sig-ms", "model": "heads", "seed": 3}
    folder = runs.open_run(tmp_path, "0123456789", data="scenes", settings=settings)
    assert folder.name.endswith("_scenes_heads_cir+sig-ms_s3_0123456789")
    runs.write_settings(folder, settings)
    runs.MetricsFile(folder, 0).append({"final": True})
    assert runs.find_run(tmp_path, "0123456789") is None
    assert runs.open_run(tmp_path, "0123456789", data="scenes", settings=settings) == folder
    runs.finish_run(folder, {"device": "cpu"}, {}, seconds=1.0)
    assert runs.find_run(tmp_path, "0123456789") == folder


def test_a_root_that_is_not_writable_fails_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot write run folders to"):
        runs.make_root(tmp_path / "file" / "runs")
