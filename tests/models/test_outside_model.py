"""A model that Tercet does not know, `--model file.py:Class`: trained, evaluated, mined, analysed, searched."""

import json
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import tercet
from tercet.cli.main import main
from tercet.data.formats import open_data
from tercet.interfaces import LateInteraction, LogitScale, RetrievalModel
from tercet.models import build
from tercet.plugins import trust
from tercet.search.searcher import Searcher
from tests.checksums import forge, record_again
from tests.commands import tercet as tercet_
from tests.shared_runs import small_run

MAXSIM = Path(__file__).parents[2] / "examples" / "maxsim.py"
SCENES = "scenes:60"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a copy of the model's file, and a run trained with it."""
    folder = tmp_path_factory.mktemp("outside")
    shutil.copy(MAXSIM, folder / "maxsim.py")
    name = f"{folder / 'maxsim.py'}:MaxSim"
    run = tercet.train(model=name, data=SCENES, objective="nt-xent", epochs=3, runs=folder / "runs")
    return folder, name, run


def test_it_satisfies_the_protocols_and_learns(place):
    _, name, run = place
    model = build(name, vocab_size=9)
    assert isinstance(model, RetrievalModel)
    assert isinstance(model, LateInteraction)
    assert not isinstance(model, LogitScale)
    assert run.metrics["rsum"] > 100  # chance is 77
    settings = json.loads((run.folder / "settings.json").read_text())
    assert (settings["batch_size"], settings["image_size"]) == (32, 64)  # from its own spec


def test_similarities_of_pairs_are_the_diagonal(place):
    model = tercet.load(place[2].folder).model
    images = model.encode_images(torch.randn(5, 3, 64, 64))
    captions = model.encode_captions(torch.randint(1, 9, (5, 4)), torch.tensor([4, 2, 1, 3, 4]))
    assert torch.allclose(model.similarity(images, captions).diagonal(), model.similarity_of_pairs(images, captions))


def test_it_is_evaluated_mined_and_trained_on_what_was_mined(place, capsys):
    folder, name, run = place
    main(["evaluate", str(run.folder), "--data", SCENES, "--out", str(folder / "evaluations")])
    assert "R@1" in capsys.readouterr().out
    mined = folder / "mined"
    main(["mine", str(run.folder), "--data", SCENES, "--out", str(mined), "--top-captions", "9", "--top-images", "9"])
    second = tercet.train(
        model=name, data=SCENES, objective="aoq", mined=str(mined), epochs=1, runs=folder / "runs", init_from=run.folder
    )
    assert second.metrics["rsum"] > 0


def test_it_is_analysed(place, capsys):
    folder, _, run = place
    main(["analyse", str(run.folder), "--cocos", "--breakdown", "--out", str(folder / "analysis")])
    assert "breakdown" in capsys.readouterr().out
    main(["doctor", str(run.folder), "--out", str(folder / "doctor")])
    assert (folder / "doctor" / "doctor.html").is_file()


def test_it_is_indexed_and_searched(place, capsys):
    folder, _, run = place
    index = folder / "index"
    main(["index", str(run.folder), "--images", SCENES, "--out", str(index)])
    text = open_data(SCENES).split("test").texts[0]
    main(["search", str(index), text, "--json"])
    printed = capsys.readouterr().out
    assert len(json.loads(printed[printed.index("[") :] if "[" in printed else printed)) > 0
    searcher = Searcher.open(index)
    hits = searcher.search_text(text, k=5)
    images = tercet.load(run.folder)
    words = images.embed_texts([text])
    regions = torch.from_numpy(searcher.index.regions.take([hit.number for hit in hits]))
    expected = images.model.similarity(regions, words)[:, 0]
    assert torch.allclose(torch.tensor([hit.similarity for hit in hits]), expected, atol=1e-5)
    assert expected.tolist() == sorted(expected.tolist(), reverse=True)


def test_its_code_is_not_run_without_consent(place):
    folder, _, run = place
    command = ("evaluate", run.folder, "--data", SCENES, "--out", folder / "trusted")
    refused = tercet_(*command, cwd=folder)
    assert refused.returncode == 2
    assert "--trust" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    assert tercet_(*command, "--trust", folder / "maxsim.py", cwd=folder).returncode == 0


def test_an_edited_file_is_refused(place, tmp_path):
    run = place[2]
    copy = tmp_path / "run"
    shutil.copytree(run.folder, copy)
    edited = tmp_path / "maxsim.py"
    edited.write_text(MAXSIM.read_text() + "\n")
    forge(copy / "config.json", system=f"{edited}:MaxSim")
    record_again(copy / "machine.json")
    trust([edited])
    with pytest.raises(ValueError, match="was edited"):
        tercet.load(copy)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("Model = 3", "not a model class"),
        ("class Model: pass", "SystemSpec"),
        ("raise KeyError('oops')", "line 1: KeyError"),
        ("x = 1", "defines no 'Model'"),
    ],
)
def test_a_file_without_a_model_is_refused_in_one_line(tmp_path, code, message):
    file = tmp_path / "broken_model.py"
    file.write_text(code)
    with pytest.raises(ValueError, match=message) as caught:
        tercet.train(model=f"{file}:Model", data=SCENES, runs=tmp_path / "runs")
    assert "\n" not in str(caught.value)


def test_a_class_that_lacks_a_method_is_told_which(tmp_path):
    file = tmp_path / "half.py"
    file.write_text(MAXSIM.read_text().replace("def similarity(", "def similarities("))
    with pytest.raises(ValueError, match="it has no similarity"):
        build(f"{file}:MaxSim", vocab_size=9)


def evil(folder, name="evil.py"):
    """A file that leaves a trace when it is run."""
    file = folder / name
    file.write_text(
        f"open({str(folder / 'RAN')!r}, 'w')\ndef loss(S, positives): return -positives.float()\nclass Model: pass\n"
    )
    return file


@pytest.mark.parametrize("key", ["objective", "warmup_objective", "model", "config"])
def test_code_that_a_run_folder_names_is_not_run(tmp_path, capsys, key):
    run = shutil.copytree(small_run(), tmp_path / "runs" / small_run().name)
    settings = json.loads((run / "settings.json").read_text())
    file = evil(tmp_path)
    if key == "config":
        (tmp_path / "config.json").write_text(json.dumps({"objective": f"{file}:loss"}))
        del settings["objective"]
        settings["config"] = str(tmp_path / "config.json")
    else:
        settings[key] = f"{file}:{'Model' if key == 'model' else 'loss'}"
    (run / "settings.json").write_text(json.dumps(settings))
    for command in (
        ["doctor", run, "--out", tmp_path / "out"],
        ["analyse", run, "--cocos", "--out", tmp_path / "out"],
        ["train", "nowhere", "--config", run / "settings.json", "--runs", tmp_path / "again"],
        ["train", "--config", run / "settings.json", "--help"],
    ):
        with suppress(SystemExit):  # a config that a config names is not read at all
            main([*map(str, command)])
        assert not (tmp_path / "RAN").exists(), command
    assert "--trust" in capsys.readouterr().err or key == "config"


def test_a_trusted_file_may_have_moved(place, tmp_path):
    folder, _, run = place
    moved = tmp_path / "elsewhere" / "maxsim.py"
    moved.parent.mkdir()
    shutil.copy(folder / "maxsim.py", moved)
    copy = shutil.copytree(run.folder, tmp_path / "run")
    forge(copy / "config.json", system="maxsim.py:MaxSim")  # as typed where it was trained
    record_again(copy / "machine.json")
    command = ("evaluate", copy, "--data", SCENES, "--out", tmp_path / "out")
    assert "there is no file" in tercet_(*command, cwd=tmp_path).stderr
    assert tercet_(*command, "--trust", moved, cwd=tmp_path).returncode == 0


def test_a_config_of_a_run_needs_trust_and_then_trains(tmp_path):
    (tmp_path / "mine.py").write_text("def pull(S, positives): return 1.0 * ~positives - 1.0 * positives\n")
    (tmp_path / "config.json").write_text(
        json.dumps({"objective": "mine.py:pull", "data": "scenes:30", "epochs": 1, "model_settings": {"embed_dim": 8}})
    )
    command = ("train", "--config", "config.json", "--runs", tmp_path / "runs")
    refused = tercet_(*command, cwd=tmp_path)
    assert (refused.returncode, "--trust mine.py" in refused.stderr) == (2, True)
    assert tercet_(*command, "--trust", "mine.py", cwd=tmp_path).returncode == 0
