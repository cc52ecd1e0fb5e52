"""The doctor on small runs: a few quick ones, and all faulty and healthy ones in the slow test."""

import functools
import json
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

import tercet
from tercet import runs
from tercet.analysis.diagnostics.rules import RULES
from tercet.analysis.reports import doctor_report, run_measurements
from tercet.analysis.reports.doctor_report import page_of, print_report, report_on
from tercet.analysis.reports.loaded_run import open_run_folder
from tercet.analysis.reports.run_measurements import find_leaks, measure_run
from tercet.cli.main import main
from tercet.data import paired
from tercet.data.dataset import DataSet, subset
from tercet.data.formats.precomp import write_precomp
from tercet.data.image_io import ImageFiles
from tercet.data.scenes import scenes, scenes_data_set
from tercet.data.text.tokenized import tokenize_captions
from tercet.data.text.vocabulary import build_vocabulary
from tercet.data.transforms import Pixels, TransformSettings
from tests.analysis.reports.faulty_runs import NAMES, SMALL, every_run, make_faulty, make_healthy
from tests.checksums import record_again
from tests.examples import others_slow


def findings_of(run):
    return [finding.name for finding in report_on(open_run_folder(run.folder)).findings]


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """Function that returns a run with a fault, trained once for all tests."""
    root = tmp_path_factory.mktemp("faulty")
    return functools.cache(lambda name: make_faulty(name, 0, root))


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    return make_healthy(1, tmp_path_factory.mktemp("healthy"))


@pytest.mark.parametrize("name", others_slow(["leakage", "false negatives", "dead objective"], 1))
def test_the_fault_of_a_faulty_run_is_found(name, faulty):
    assert name in findings_of(faulty(name))


def test_one_epoch_at_a_tiny_rate_is_under_training(tmp_path):
    assert findings_of(tercet.train(**SMALL | {"epochs": 1, "learning_rate": 1e-6}, runs=tmp_path)) == [
        "under-training"
    ]


@pytest.mark.slow
def test_every_fault_is_found_in_three_of_three_and_nothing_in_healthy_runs(tmp_path):
    wrong = []
    for fault, run in every_run(tmp_path):
        names = findings_of(run)
        if names if fault == "healthy" else fault not in names:
            wrong.append((fault, run.folder.name, names))
    assert not wrong
    assert set(NAMES) == {rule.name for rule in RULES}


def run_command(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["tercet", "doctor", *map(str, arguments)])
    main()


def test_the_command_on_a_healthy_run_prints_one_line_and_all_values(healthy, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before = {file: file.stat().st_mtime_ns for file in healthy.folder.rglob("*")}
    run_command(monkeypatch, healthy.folder)
    printed = capsys.readouterr().out
    assert f"No findings: {len(RULES)} rules were checked." in printed.splitlines()
    for rule in RULES:
        assert any(rule.name in line and rule.limit in line for line in printed.splitlines())
    out = tmp_path / "analysis" / healthy.folder.name
    assert sorted(file.name for file in out.iterdir()) == ["doctor.html", "doctor.json"]
    assert {file: file.stat().st_mtime_ns for file in healthy.folder.rglob("*")} == before


def test_the_command_on_a_faulty_run_prints_the_finding_its_numbers_and_advice(faulty, tmp_path, monkeypatch, capsys):
    run_command(monkeypatch, faulty("collapse").folder, "--out", tmp_path / "page")
    printed = capsys.readouterr().out
    written = json.loads((tmp_path / "page" / "doctor.json").read_text())
    (finding,) = written["findings"]
    assert finding["name"] == "collapse"
    assert f"{written['measurements']['spread']:.2g}" in finding["description"]
    assert "--warmup-objective triplet" in " ".join(printed.split())
    assert [each["name"] for each in written["rules"]] == [rule.name for rule in RULES]
    page = (tmp_path / "page" / "doctor.html").read_text()
    assert finding["advice"] in page
    assert "http" not in page.replace("http://www.w3.org", "")


def test_a_folder_that_is_not_a_run_is_one_line(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit) as stopped:
        run_command(monkeypatch, tmp_path)
    assert stopped.value.code == 2
    assert capsys.readouterr().err.splitlines() == [
        f"tercet doctor: {tmp_path}: not a run folder; expected a folder with {runs.SETTINGS}"
    ]


def test_the_report_lists_the_leaks(faulty):
    report = report_on(open_run_folder(faulty("leakage").folder))
    assert report.measurements.leaked == pytest.approx(0.2)
    assert len(report.leaks) == 20
    assert all(leak["held_out"] == f"leaked_{leak['train']}" for leak in report.leaks)


def test_measurements_are_deterministic_and_a_sample_is_close(healthy, monkeypatch):
    full = measure_run(open_run_folder(healthy.folder))[0]
    assert measure_run(open_run_folder(healthy.folder))[0] == full
    monkeypatch.setattr(run_measurements, "MAX_IMAGES", 150)
    sampled = measure_run(open_run_folder(healthy.folder))[0]
    assert sampled != full
    assert sampled.spread == pytest.approx(full.spread, rel=0.1)
    assert sampled.imbalance == full.imbalance  # from ranks, which are not sampled


def test_leaks_are_searched_in_all_images_whatever_is_sampled(faulty, monkeypatch):
    full = report_on(open_run_folder(faulty("leakage").folder))
    monkeypatch.setattr(run_measurements, "MAX_IMAGES", 10)
    sampled = report_on(open_run_folder(faulty("leakage").folder))
    assert sampled.measurements.leaked == full.measurements.leaked
    assert sampled.leaks == full.leaks


def test_a_limited_number_of_leaks_is_listed_and_all_are_counted(faulty, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(doctor_report, "MAX_LISTED_LEAKS", 3)
    run_command(monkeypatch, faulty("leakage").folder, "--out", tmp_path)
    written = json.loads((tmp_path / "doctor.json").read_text())
    assert (len(written["leaks"]), written["leaked_images"]) == (3, 20)
    assert "20 leaked images, the first 3" in (tmp_path / "doctor.html").read_text()


@pytest.mark.slow
def test_a_recurrent_model_after_two_epochs_is_under_trained_and_not_collapsed(tmp_path, capsys):
    run = tercet.train(
        data="scenes:600",
        model="vsepp",
        objective="triplet-sh",
        model_settings={"embed_dim": 96, "word_dim": 48},
        epochs=2,
        runs=tmp_path,
    )
    report = report_on(open_run_folder(run.folder))
    assert report.measurements.spread < 0.01
    assert [finding.name for finding in report.findings] == ["under-training"]
    print_report(report, Console(width=80))
    (row,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("collapse"))
    assert row.split(maxsplit=2)[2].strip() == "(explained by under-training) below 0.01"
    assert "(explained by under-training)</b>" in page_of(report)
    assert report.as_json()["rules"][0]["findings_that_explain"] == ["under-training"]


def nan_gradient(S, positives):
    return torch.where(positives, torch.nan, 0.0)


def test_a_nan_gradient_is_a_finding_and_the_json_is_strict(healthy, tmp_path, monkeypatch, capsys):
    loaded = replace(open_run_folder(healthy.folder), objective=tercet.objective(nan_gradient))
    monkeypatch.setattr(doctor_report, "open_run_folder", lambda *_, **__: loaded)
    run_command(monkeypatch, healthy.folder, "--out", tmp_path)
    assert "not a number" in capsys.readouterr().out
    written = json.loads((tmp_path / "doctor.json").read_text(), parse_constant=pytest.fail)
    assert written["findings"][0]["name"] == "not a number"
    assert written["measurements"]["silent"] is None


def test_a_nan_validation_metric_is_a_finding(healthy, tmp_path):
    copy = shutil.copytree(healthy.folder, tmp_path / healthy.folder.name)
    lines = [json.loads(line) for line in (copy / runs.METRICS).read_text().splitlines()]
    last = [line for line in lines if line.get("split") == "validation" and not line.get("final")][-1]
    last["rsum"] = None
    (copy / runs.METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    record_again(copy / runs.MACHINE)
    (finding,) = report_on(open_run_folder(copy)).findings
    assert (finding.name, "rise, fall" in finding.description) == ("not a number", True)


def test_without_a_validation_split_the_report_says_so(tmp_path, monkeypatch, capsys):
    data = scenes_data_set(60)
    splits = {name: split for name, split in data.splits.items() if name in ("train", "test")}
    write_precomp(DataSet(data.path, data.format, splits), tmp_path / "data")
    run = tercet.train(**SMALL | {"data": str(tmp_path / "data"), "epochs": 2}, runs=tmp_path / "runs")
    run_command(monkeypatch, run.folder, "--out", tmp_path)
    printed = capsys.readouterr().out
    assert printed.count("no validation split") == 2
    assert "only one validation" not in printed


def test_few_held_out_images_give_a_warning(tmp_path, monkeypatch, capsys):
    data = scenes_data_set(60)
    few = {**data.splits, "test": subset(data.splits["test"], np.arange(6))}
    write_precomp(DataSet(data.path, data.format, few), tmp_path / "data")
    run = tercet.train(**SMALL | {"data": str(tmp_path / "data"), "epochs": 1}, runs=tmp_path / "runs")
    run_command(monkeypatch, run.folder, "--out", tmp_path)
    warning = "Only 6 images are held out"
    assert warning in " ".join(capsys.readouterr().out.split())
    assert warning in json.loads((tmp_path / "doctor.json").read_text())["small_sample_warning"]
    assert warning in (tmp_path / "doctor.html").read_text()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (runs.METRICS, None),
        (runs.METRICS, b""),
        (runs.METRICS, b"[1]"),
        (runs.RANKS, None),
        (runs.RANKS, b""),
        (runs.SETTINGS, b"{"),
        (runs.MACHINE, b"[1]"),
    ],
)
def test_a_damaged_run_is_one_line(name, content, healthy, tmp_path, monkeypatch, capsys):
    copy = shutil.copytree(healthy.folder, tmp_path / healthy.folder.name)
    (copy / name).unlink() if content is None else (copy / name).write_bytes(content)
    with pytest.raises(SystemExit) as stopped:
        run_command(monkeypatch, copy, "--out", tmp_path)
    assert stopped.value.code == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert "call again" not in message  # running the doctor again would not help
    assert "run the command again" not in message


def test_a_model_that_compares_pairs_is_measured_too(tmp_path, monkeypatch):
    monkeypatch.setattr(run_measurements, "MAX_IMAGES_PAIRWISE", 20)
    run = tercet.train(
        data="scenes:60",
        features="regions",
        model="scan",
        model_settings={"embed_dim": 16, "word_dim": 16},
        epochs=1,
        batch_size=32,
        runs=tmp_path,
    )
    report = report_on(open_run_folder(run.folder))
    assert report.measurements.separable_share > 0
    assert report.measurements.evenness is None


@pytest.mark.slow
def test_equal_text_that_training_ignored_is_not_a_false_negative(faulty, tmp_path):
    data = runs.read_settings(faulty("false negatives").folder)["data"]
    ignoring = tercet.train(**SMALL | {"data": data, "ignore_equal_text": True, "epochs": 3}, runs=tmp_path)
    assert "false negatives" not in findings_of(ignoring)


def sources():
    split = scenes("test", 12).as_split("regions")
    words = tokenize_captions(split.texts, build_vocabulary(split.texts, 1))
    pixels = Pixels(ImageFiles(split.image_files.sources), TransformSettings(side=32, shorter_side=None))
    return paired("regions", split), paired("pixels", split, pixels, words)


@pytest.mark.parametrize("data", sources(), ids=lambda data: data.name)
def test_a_subset_of_a_split_has_its_items(data):
    images = torch.tensor([1, 4, 5, 11])
    subset = data.subset(images)
    captions = torch.isin(data.owners, images).nonzero().flatten()
    assert subset.texts == tuple(data.texts[caption] for caption in captions)
    assert images[subset.owners].tolist() == data.owners[captions].tolist()
    for source, full, rows in ((subset.images, data.images, images), (subset.captions, data.captions, captions)):
        items, lengths = source.take(torch.arange(len(rows)))
        expected, expected_lengths = full.take(rows)
        assert torch.equal(items, expected)
        assert (lengths is None and expected_lengths is None) or torch.equal(lengths, expected_lengths)
    assert torch.equal(subset.truth(torch.arange(4), torch.arange(9)), data.truth(images, captions[:9]))


@pytest.mark.parametrize("data", sources(), ids=lambda data: data.name)
def test_copies_are_found_among_regions_and_among_pixels(data):
    held_out, train = (
        data.images.subset(torch.tensor([0, 3, 7]).numpy()),
        data.images.subset(torch.arange(2, 12).numpy()),
    )
    assert [(leak.held_out, leak.train) for leak in find_leaks(held_out, train)] == [(1, 1), (2, 5)]


@pytest.mark.parametrize("data", sources(), ids=lambda data: data.name)
def test_copies_are_found_in_any_block(data, monkeypatch):
    held_out, train = data.images.subset(np.arange(7)), data.images.subset(np.arange(1, 12))
    leaks = find_leaks(held_out, train)
    monkeypatch.setattr(run_measurements, "BLOCK_SIZE", 3)
    monkeypatch.setattr(run_measurements, "HELD_OUT_BLOCK_SIZE", 2)
    monkeypatch.setattr(run_measurements, "MEAN_SAMPLE_SIZE", 9)
    assert find_leaks(held_out, train) == leaks == [(row, row - 1) for row in range(1, 7)]


@pytest.mark.slow
def test_scenes_with_the_same_background_are_not_copies():
    splits = scenes_data_set(300).splits
    settings = TransformSettings(side=64, shorter_side=None)
    held_out, train = (Pixels(ImageFiles(splits[name].image_files.sources), settings) for name in ("test", "train"))
    assert find_leaks(held_out, train) == []
