"""Data as people have it: other columns, sub-folders, Windows paths, broken images, images in two splits."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from tercet.data.formats import open_data
from tercet.data.formats.columns import Columns
from tercet.data.image_io import ImageFile, open_image
from tests.commands import tercet
from tests.data.small_datasets import image_bytes

NAMES = ("a", "b", "c", "d", "e", "f")
SPLITS = ("train", "train", "train", "val", "test", "test")


@pytest.fixture
def messy(tmp_path):
    """Photos in sub-folders, and a semicolon CSV with a byte order mark and columns of other names."""
    for number, name in enumerate(NAMES):
        folder = tmp_path / "photos" / str(2000 + number % 2)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.jpg").write_bytes(image_bytes(number))
    rows = [
        "Foto;Text auf Deutsch;Teil",
        *(f"{n}.jpg;Bild {n};{split}" for n, split in zip(NAMES, SPLITS, strict=True)),
    ]
    (tmp_path / "fotos.csv").write_text("\n".join(rows), encoding="utf-8-sig")
    return tmp_path


FLAGS = ("--image-column", "foto", "--caption-column", "Text auf Deutsch", "--split-column", "teil")
COLUMNS = Columns("Foto", "text auf deutsch", "Teil")


def test_named_columns_and_images_in_subfolders(messy):
    data = open_data(messy / "fotos.csv", images=messy / "photos", columns=COLUMNS)
    assert {name: split.image_names for name, split in data.splits.items()} == {
        "train": ("a.jpg", "b.jpg", "c.jpg"),
        "val": ("d.jpg",),
        "test": ("e.jpg", "f.jpg"),
    }
    assert data.splits["train"].image_files.sources[1].path == messy / "photos" / "2001" / "b.jpg"
    assert open_data(messy / "fotos.csv", columns=COLUMNS).splits["val"].image_files is not None  # found beside the CSV
    done = tercet("data", "inspect", "fotos.csv", *FLAGS, cwd=messy)
    assert done.returncode == 0, done.stderr
    (messy / "photos" / "2001" / "a.jpg").write_bytes(image_bytes(9))
    with pytest.raises(ValueError, match=r"line 2: 2 image files a\.jpg in .*2000/a\.jpg and .*2001/a\.jpg"):
        open_data(messy / "fotos.csv", images=messy / "photos", columns=COLUMNS)


def test_columns_are_named_in_parquet_and_data_frames(messy):
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(messy / "fotos.csv", sep=";")
    frame.to_parquet(messy / "fotos.parquet")
    columns = Columns("Foto", "Text auf Deutsch", "Teil")
    for given in (frame, messy / "fotos.parquet"):
        data = open_data(given, images=messy / "photos", columns=columns)
        assert data.splits["test"].texts == ("Bild e", "Bild f")
        with pytest.raises(
            ValueError, match="no image column: the columns are Foto, Text auf Deutsch, Teil; name yours"
        ):
            open_data(given)


def test_windows_paths(messy):
    (messy / "windows.csv").write_text("image,caption\n2000\\a.jpg,one\n2001\\b.jpg,two\n")
    data = open_data(messy / "windows.csv", images=messy / "photos")
    assert [source.path.name for source in data.splits["all"].image_files] == ["a.jpg", "b.jpg"]
    (messy / "windows.csv").write_text("image,caption\nC:\\Users\\me\\a.jpg,one\n")
    with pytest.raises(ValueError, match=r"no image file C:.* is an absolute path"):
        open_data(messy / "windows.csv", images=messy / "photos")


def test_an_image_in_two_splits_is_a_finding(messy):
    shutil.copy(messy / "photos" / "2000" / "a.jpg", messy / "photos" / "2000" / "e.jpg")
    done = tercet("data", "inspect", "fotos.csv", *FLAGS, cwd=messy)
    assert done.returncode == 3
    assert "finding train and test share 1 images" in done.stdout
    assert "a.jpg (train) = e.jpg (test)" in done.stdout
    assert "1 finding in fotos.csv" in done.stderr
    (messy / "photos" / "2001" / "b.jpg").write_bytes(b"")
    assert tercet("data", "inspect", "fotos.csv", *FLAGS, cwd=messy).returncode == 1
    assert tercet("data", "inspect", "fotos.csv", *FLAGS, "--skip-bad", cwd=messy).returncode == 3


def test_data_without_any_of_its_images_is_an_error_of_inspect(messy):
    shutil.rmtree(messy / "photos")
    done = tercet("data", "inspect", "fotos.csv", *FLAGS, cwd=messy)
    assert done.returncode == 1
    assert "no image was found: a.jpg and the others are not in" in done.stdout


@pytest.mark.slow
def test_every_command_skips_and_lists_the_same_items(messy):
    """One image of train and one of test cannot be decoded; a model that reads pixels trains without them."""
    for name in ("2000/c.jpg", "2000/e.jpg"):
        (messy / "photos" / name).write_bytes(b"<html>404</html>")
    data = ("fotos.csv", *FLAGS)
    small = ("--batch-size", "2", "--epochs", "1", "--cocos-every", "0", "--image-size", "16")
    backbone = {"model_type": "resnet", "embedding_size": 4, "hidden_sizes": [4, 4], "depths": [1, 1]}
    (messy / "settings.json").write_text(
        json.dumps({"model": "vsepp", "model_settings": {"backbone": backbone, "embed_dim": 4, "word_dim": 3}})
    )
    train = ("train", *data, "--config", "settings.json", *small)
    stopped = tercet(*train, cwd=messy)
    assert stopped.returncode == 2
    assert "c.jpg: not an image" in stopped.stderr
    done = tercet(*train, "--skip-bad", cwd=messy, check=True)
    assert [line.split(":")[0] for line in skipped(done)] == ["train, image c.jpg", "test, image e.jpg"]
    run = next(folder for folder in (messy / "runs").iterdir() if (folder / "weights.safetensors").exists())
    evaluate = ("evaluate", run, "--data", *data)
    assert tercet(*evaluate, cwd=messy).returncode == 2
    done = tercet(*evaluate, "--skip-bad", cwd=messy, check=True)
    assert [line.split(":")[0] for line in skipped(done)] == ["test, image e.jpg"]
    done = tercet("mine", run, cwd=messy, check=True)  # reads the data as the run did
    assert [line.split(":")[0] for line in skipped(done)] == ["train, image c.jpg"]
    index = ("index", run, "--images", *data, "--image-folder", "photos", "--out", "index")
    stopped = tercet(*index, cwd=messy)
    assert stopped.returncode == 2
    assert "c.jpg: not an image" in stopped.stderr
    assert "--skip-bad" in stopped.stderr
    tercet(*index, "--skip-bad", cwd=messy, check=True)
    assert len(next((messy / "index").glob("generation_*/unreadable.txt")).read_text().splitlines()) == 2


def skipped(done):
    return [line.strip() for line in done.stderr.splitlines() if line.startswith("  ") and ", image " in line]


def test_heic(tmp_path):
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.register_heif_opener()
    pixels = np.tile(np.array([200, 40, 90], dtype=np.uint8), (64, 96, 1))
    Image.fromarray(pixels).save(tmp_path / "a.heic")
    image = open_image(ImageFile(tmp_path / "a.heic"))
    assert image.size == (96, 64)
    np.testing.assert_allclose(np.asarray(image)[32, 48], [200, 40, 90], atol=6)
