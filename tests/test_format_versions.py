"""Every folder that Tercet writes carries a format version; another version gets one clear line."""

import json
import shutil

import pytest

import tercet
from tercet.cli.main import main
from tercet.data.formats import open_data
from tercet.storage import FORMAT_VERSION
from tests.checksums import forge
from tests.search.small_indexes import model
from tests.shared_runs import SMALL, small_run

SCENES = SMALL["data"]


@pytest.fixture
def run():
    return small_run()


def with_version(folder, name, version):
    content = json.loads((folder / name).read_text())
    assert content["format_version"] == FORMAT_VERSION
    if version is None:
        del content["format_version"]
    else:
        content["format_version"] = version
    (folder / name).write_text(json.dumps(content))


def refuses(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        main([*map(str, arguments)])
    error = capsys.readouterr().err.strip().splitlines()
    assert caught.value.code == 2
    assert f"reads version {FORMAT_VERSION}" in error[-1]


@pytest.mark.parametrize("version", [None, 0, FORMAT_VERSION + 1])
def test_a_run_and_its_model(run, tmp_path, capsys, version):
    copy = shutil.copytree(run, tmp_path / "runs" / run.name)
    with_version(copy, "config.json", version)
    refuses(capsys, "evaluate", copy, "--data", SCENES, "--out", tmp_path / "out")
    shutil.copy(run / "config.json", copy)
    with_version(copy, "machine.json", version)
    refuses(capsys, "doctor", copy, "--out", tmp_path / "doctor")
    with pytest.raises(ValueError, match="format version"):
        tercet.train(**SMALL, objective="nt-xent", runs=tmp_path / "runs")  # a finished run is not returned unread


def test_a_mined_table_and_features(run, tmp_path, capsys):
    table, features = tmp_path / "table", tmp_path / "features"
    main(["mine", str(run), "--data", SCENES, "--out", str(table), "--top-captions", "9", "--top-images", "9"])
    with_version(table, "mined.json", 7)
    refuses(capsys, "mine", run, "--data", SCENES, "--out", table, "--top-captions", 9, "--top-images", 9)
    refuses(capsys, "train", SCENES, "--objective", "aoq", "--mined", table, "--runs", tmp_path)
    command = ["features", "scenes:9", features, "--image-encoder", "none", "--text-encoder", "bag-of-words"]
    main([*map(str, command)])
    with_version(features, "features.json", 7)
    refuses(capsys, *command)


def test_an_index(tmp_path, capsys):
    model("vsepp").save(tmp_path / "model")
    index = ["index", tmp_path / "model", "--images", "scenes:9", "--out", tmp_path / "index"]
    main([*map(str, index)])
    with_version(tmp_path / "index", "index.json", 7)
    refuses(capsys, "search", tmp_path / "index", "a red circle")


def test_features_remember_where_their_images_are(tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    split = open_data("scenes:9").split("train")
    lines = ["image,caption,split"]
    for number in range(6):
        split.image_files.open(number).save(photos / f"{number}.png")
        lines.append(f'{number}.png,"{split.texts[5 * number]}",{"train" if number < 4 else "test"}')
    (tmp_path / "photos.csv").write_text("\n".join(lines) + "\n")
    command = ["features", tmp_path / "photos.csv", tmp_path / "out", "--text-encoder", "bag-of-words"]
    main([*map(str, command), "--image-encoder", "efficientnet-lite2", "--images", str(photos)])
    features = open_data(tmp_path / "out").split("test")
    assert features.image_files is None
    assert [file.path.name for file in features.images()] == ["4.png", "5.png"]
    (tmp_path / "photos.csv").rename(tmp_path / "moved.csv")
    assert open_data(tmp_path / "out").split("test").images() is None


@pytest.mark.parametrize("source", [None, 5, {}, {"path": None}, {"path": 5, "format": None, "images": None}, "itself"])
def test_a_damaged_source_of_features_is_no_source(tmp_path, source):
    command = ["features", "scenes:9", tmp_path / "out", "--image-encoder", "none", "--text-encoder", "bag-of-words"]
    main([*map(str, command)])
    if source == "itself":
        source = {"path": str(tmp_path / "out"), "format": "precomp", "images": None}
    forge(tmp_path / "out" / "features.json", source=source)
    assert open_data(tmp_path / "out").split("train").images() is None


def test_an_unfinished_run_of_another_version_is_not_started_over(tmp_path):
    from tercet.training.checkpoint import newest_state, save_state

    save_state(tmp_path, 3, {"step": 3})
    assert newest_state(tmp_path, print, lambda state: None) == {"step": 3}
    with_version(tmp_path, "step_00000003.json", 7)
    with pytest.raises(ValueError, match="has format version 7"):
        newest_state(tmp_path, print, lambda state: None)
