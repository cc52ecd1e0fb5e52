"""The doctor on small runs: a few quick ones here, all that were made ill and all healthy ones in the slow test."""

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
from tercet import cli, runs
from tercet.analysis.doctor import ILLNESSES
from tercet.data import paired
from tercet.data.dataset import DataSet, only
from tercet.data.formats.write import write_precomp
from tercet.data.pictures import Pictures
from tercet.data.pixels import Pixels, PixelSettings
from tercet.data.scenes import scenes, scenes_data_set
from tercet.data.text.tokens import tokens_of
from tercet.data.text.vocabulary import build_vocabulary
from tercet.dissection import doctor, doctor_page, leaks
from tercet.dissection.doctor import examine
from tercet.dissection.doctor_page import page_of, print_report, report_on
from tercet.dissection.leaks import leaks_between
from tercet.dissection.opened import open_run_folder
from tests.dissection.illnesses import FEW, NAMES, every_run, made_healthy, made_ill


def found(run):
    return [finding.name for finding in report_on(open_run_folder(run.folder)).findings]


@pytest.fixture(scope="module")
def ill(tmp_path_factory):
    """A run with an illness, made once for all tests."""
    root = tmp_path_factory.mktemp("ill")
    return functools.cache(lambda name: made_ill(name, 0, root))


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    return made_healthy(1, tmp_path_factory.mktemp("healthy"))


@pytest.mark.parametrize("name", ["leakage", "false negatives", "dead objective"])
def test_a_run_that_was_made_ill_is_found_ill(name, ill):
    assert name in found(ill(name))


def test_one_epoch_at_a_tiny_rate_is_under_training(tmp_path):
    assert found(tercet.train(**FEW | {"epochs": 1, "learning_rate": 1e-6}, runs=tmp_path)) == ["under-training"]


@pytest.mark.slow
def test_every_illness_is_found_in_three_of_three_and_nothing_in_healthy_runs(tmp_path):
    wrong = []
    for made, run in every_run(tmp_path):
        names = found(run)
        if names if made == "healthy" else made not in names:
            wrong.append((made, run.folder.name, names))
    assert not wrong
    assert set(NAMES) == {illness.name for illness in ILLNESSES}


def run_command(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["tercet", "doctor", *map(str, arguments)])
    cli.main()


def test_the_command_on_a_healthy_run_says_so_in_a_line_with_all_numbers(healthy, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before = {file: file.stat().st_mtime_ns for file in healthy.folder.rglob("*")}
    run_command(monkeypatch, healthy.folder)
    said = capsys.readouterr().out
    assert f"Nothing was found: {len(ILLNESSES)} things were looked at." in said.splitlines()
    for illness in ILLNESSES:
        assert any(illness.name in line and illness.limit in line for line in said.splitlines())
    out = tmp_path / "analysis" / healthy.folder.name
    assert sorted(file.name for file in out.iterdir()) == ["doctor.html", "doctor.json"]
    assert {file: file.stat().st_mtime_ns for file in healthy.folder.rglob("*")} == before


def test_the_command_on_an_ill_run_names_the_illness_its_numbers_and_what_to_try(ill, tmp_path, monkeypatch, capsys):
    run_command(monkeypatch, ill("collapse").folder, "--out", tmp_path / "page")
    said = capsys.readouterr().out
    written = json.loads((tmp_path / "page" / "doctor.json").read_text())
    (finding,) = written["findings"]
    assert finding["name"] == "collapse"
    assert f"{written['evidence']['spread']:.2g}" in finding["seen"]
    assert "--first-objective triplet" in " ".join(said.split())
    assert [each["name"] for each in written["looked_at"]] == [illness.name for illness in ILLNESSES]
    page = (tmp_path / "page" / "doctor.html").read_text()
    assert finding["advice"] in page
    assert "http" not in page.replace("http://www.w3.org", "")


def test_what_is_no_run_is_told_in_a_line(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit) as stopped:
        run_command(monkeypatch, tmp_path)
    assert stopped.value.code == 2
    assert capsys.readouterr().err.splitlines() == [
        f"tercet doctor: {tmp_path}: no run there; expected a folder with {runs.SETTINGS}"
    ]


def test_the_page_names_the_leaks(ill):
    report = report_on(open_run_folder(ill("leakage").folder))
    assert report.evidence.leaked == pytest.approx(0.2)
    assert len(report.leaks) == 20
    assert all(leak["held_out"] == f"leaked_{leak['train']}" for leak in report.leaks)


def test_the_same_run_gives_the_same_numbers_and_a_sample_nearly_the_same(healthy, monkeypatch):
    whole = examine(open_run_folder(healthy.folder))[0]
    assert examine(open_run_folder(healthy.folder))[0] == whole
    monkeypatch.setattr(doctor, "SAMPLE", 150)
    part = examine(open_run_folder(healthy.folder))[0]
    assert part != whole
    assert part.spread == pytest.approx(whole.spread, rel=0.1)
    assert part.imbalance == whole.imbalance  # from ranks, which are whole


def test_leaks_are_looked_for_among_all_images_whatever_is_sampled(ill, monkeypatch):
    whole = report_on(open_run_folder(ill("leakage").folder))
    monkeypatch.setattr(doctor, "SAMPLE", 10)
    part = report_on(open_run_folder(ill("leakage").folder))
    assert part.evidence.leaked == whole.evidence.leaked
    assert part.leaks == whole.leaks


def test_so_many_leaks_are_named_and_all_are_counted(ill, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(doctor_page, "NAMED", 3)
    run_command(monkeypatch, ill("leakage").folder, "--out", tmp_path)
    written = json.loads((tmp_path / "doctor.json").read_text())
    assert (len(written["leaks"]), written["leaked_images"]) == (3, 20)
    assert "20 equal images, the first 3" in (tmp_path / "doctor.html").read_text()


def test_a_recurrent_model_after_two_epochs_is_under_trained_and_not_collapsed(tmp_path, capsys):
    run = tercet.train(
        data="scenes:600",
        model="vsepp",
        objective="triplet-sh",
        model_settings={"joint_dim": 96, "word_dim": 48},
        epochs=2,
        runs=tmp_path,
    )
    report = report_on(open_run_folder(run.folder))
    assert report.evidence.spread < 0.01
    assert [finding.name for finding in report.findings] == ["under-training"]
    print_report(report, Console(width=80))
    (row,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("collapse"))
    assert row.split(maxsplit=2)[2].strip() == "(follows from under-training) below 0.01"
    assert "(follows from under-training)</b>" in page_of(report)
    assert report.as_json()["looked_at"][0]["follows_from"] == ["under-training"]


def no_numbers(S, positives):
    return torch.where(positives, torch.nan, 0.0)


def test_a_gradient_of_no_numbers_is_told_and_the_json_is_strict(healthy, tmp_path, monkeypatch, capsys):
    opened = replace(open_run_folder(healthy.folder), objective=tercet.objective(no_numbers))
    monkeypatch.setattr(doctor_page, "open_run_folder", lambda *_, **__: opened)
    run_command(monkeypatch, healthy.folder, "--out", tmp_path)
    assert "not a number" in capsys.readouterr().out
    written = json.loads((tmp_path / "doctor.json").read_text(), parse_constant=pytest.fail)
    assert written["findings"][0]["name"] == "not a number"
    assert written["evidence"]["silent"] is None


def test_a_validation_that_was_no_number_is_told(healthy, tmp_path):
    copy = shutil.copytree(healthy.folder, tmp_path / healthy.folder.name)
    lines = [json.loads(line) for line in (copy / runs.METRICS).read_text().splitlines()]
    last = [line for line in lines if line.get("split") == "validation" and not line.get("final")][-1]
    last["rsum"] = None
    (copy / runs.METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (told,) = report_on(open_run_folder(copy)).findings
    assert (told.name, "rise, fall" in told.seen) == ("not a number", True)


def test_without_a_validation_split_that_is_what_is_said(tmp_path, monkeypatch, capsys):
    data = scenes_data_set(60)
    splits = {name: split for name, split in data.splits.items() if name in ("train", "test")}
    write_precomp(DataSet(data.path, data.format, splits), tmp_path / "data")
    run = tercet.train(**FEW | {"data": str(tmp_path / "data"), "epochs": 2}, runs=tmp_path / "runs")
    run_command(monkeypatch, run.folder, "--out", tmp_path)
    said = capsys.readouterr().out
    assert said.count("no validation split") == 2
    assert "one validation" not in said


def test_few_held_out_images_are_told_beside_what_is_found(tmp_path, monkeypatch, capsys):
    data = scenes_data_set(60)
    few = {**data.splits, "test": only(data.splits["test"], np.arange(6))}
    write_precomp(DataSet(data.path, data.format, few), tmp_path / "data")
    run = tercet.train(**FEW | {"data": str(tmp_path / "data"), "epochs": 1}, runs=tmp_path / "runs")
    run_command(monkeypatch, run.folder, "--out", tmp_path)
    caution = "Only 6 images are held out"
    assert caution in " ".join(capsys.readouterr().out.split())
    assert caution in json.loads((tmp_path / "doctor.json").read_text())["caution"]
    assert caution in (tmp_path / "doctor.html").read_text()


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
def test_a_damaged_run_is_told_in_a_line(name, content, healthy, tmp_path, monkeypatch, capsys):
    copy = shutil.copytree(healthy.folder, tmp_path / healthy.folder.name)
    (copy / name).unlink() if content is None else (copy / name).write_bytes(content)
    with pytest.raises(SystemExit) as stopped:
        run_command(monkeypatch, copy, "--out", tmp_path)
    assert stopped.value.code == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "call again" not in said


def test_a_model_that_compares_pairs_is_looked_at_too(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "SAMPLE_COMPARED", 20)
    run = tercet.train(
        data="scenes:60",
        features="regions",
        model="scan",
        model_settings={"joint_dim": 16, "word_dim": 16},
        epochs=1,
        batch_size=32,
        runs=tmp_path,
    )
    report = report_on(open_run_folder(run.folder))
    assert report.evidence.told_apart > 0
    assert report.evidence.evenness is None


def test_equal_text_that_training_ignored_is_no_false_negative(ill, tmp_path):
    data = runs.read_settings(ill("false negatives").folder)["data"]
    ignoring = tercet.train(**FEW | {"data": data, "ignore_equal_text": True, "epochs": 3}, runs=tmp_path)
    assert "false negatives" not in found(ignoring)


def sources():
    split = scenes("test", 12).as_split("regions")
    words = tokens_of(split.texts, build_vocabulary(split.texts, 1))
    pixels = Pixels(Pictures(split.pictures.sources), PixelSettings(side=32, shorter_side=None))
    return paired("regions", split), paired("pixels", split, pixels, words)


@pytest.mark.parametrize("data", sources(), ids=lambda data: data.name)
def test_a_part_of_a_split_has_the_items_of_the_whole(data):
    images = torch.tensor([1, 4, 5, 11])
    part = data.only(images)
    captions = torch.isin(data.owners, images).nonzero().flatten()
    assert part.texts == tuple(data.texts[caption] for caption in captions)
    assert images[part.owners].tolist() == data.owners[captions].tolist()
    for source, whole, kept in ((part.images, data.images, images), (part.captions, data.captions, captions)):
        taken, lengths = source.take(torch.arange(len(kept)))
        expected, expected_lengths = whole.take(kept)
        assert torch.equal(taken, expected)
        assert (lengths is None and expected_lengths is None) or torch.equal(lengths, expected_lengths)
    assert torch.equal(part.truth(torch.arange(4), torch.arange(9)), data.truth(images, captions[:9]))


@pytest.mark.parametrize("data", sources(), ids=lambda data: data.name)
def test_copies_are_found_among_regions_and_among_pixels(data):
    held_out, train = data.images.only(torch.tensor([0, 3, 7]).numpy()), data.images.only(torch.arange(2, 12).numpy())
    assert [(leak.held_out, leak.train) for leak in leaks_between(held_out, train)] == [(1, 1), (2, 5)]


@pytest.mark.parametrize("data", sources(), ids=lambda data: data.name)
def test_copies_are_found_in_whatever_block_they_are(data, monkeypatch):
    held_out, train = data.images.only(np.arange(7)), data.images.only(np.arange(1, 12))
    whole = leaks_between(held_out, train)
    monkeypatch.setattr(leaks, "AT_ONCE", 3)
    monkeypatch.setattr(leaks, "HELD_OUT_AT_ONCE", 2)
    monkeypatch.setattr(leaks, "FOR_THE_MEAN", 9)
    assert leaks_between(held_out, train) == whole == [(row, row - 1) for row in range(1, 7)]


def test_drawings_on_one_ground_are_no_copies_of_each_other():
    splits = scenes_data_set(300).splits
    settings = PixelSettings(side=64, shorter_side=None)
    held_out, train = (Pixels(Pictures(splits[name].pictures.sources), settings) for name in ("test", "train"))
    assert leaks_between(held_out, train) == []
