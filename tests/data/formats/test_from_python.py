"""DataFrames, Hugging Face datasets and lists of pairs are data like any other."""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tercet
from tercet.data.encoders.registry import ENCODERS, Encoder
from tercet.data.formats.from_python import register_data

CAPTIONS = [f"a square of shade {number}" for number in range(12)]
SPLITS = ["train"] * 8 + ["test"] * 4


def shade(number):
    return Image.fromarray(np.full((8, 8, 3), 20 * number, dtype=np.uint8))


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Six image files in the working directory, two captions each."""
    monkeypatch.chdir(tmp_path)
    for number in range(6):
        shade(number).save(tmp_path / f"{number}.png")
    return [f"{number // 2}.png" for number in range(12)]


def counts(data):
    return {name: (len(split.image_names), len(split.texts)) for name, split in data.splits.items()}


EXPECTED = {"train": (4, 8), "test": (2, 4)}


@pytest.mark.parametrize("embedded", [False, True])
def test_a_data_frame(files, embedded):
    pandas = pytest.importorskip("pandas")
    images = [shade(number // 2) for number in range(12)] if embedded else files
    frame = pandas.DataFrame({"filename": images, " Caption": CAPTIONS, "split": SPLITS}, index=range(100, 112))
    data = tercet.open_data(frame)
    assert counts(data) == EXPECTED
    assert data.split("test").image_files.open(1).getpixel((0, 0)) == (100, 100, 100)
    assert register_data(data) == register_data(tercet.open_data(frame)) != register_data(tercet.open_data(frame[:10]))
    assert repr(data) == "DataSet(python:DataFrame; train 4 images, 8 captions; test 2 images, 4 captions)"


def test_pairs_in_a_list_or_by_split(files):
    triples = list(zip(files, CAPTIONS, SPLITS, strict=True))
    assert counts(tercet.open_data(triples)) == EXPECTED
    assert counts(tercet.open_data(iter(triples))) == EXPECTED
    by_split = {"train": [triple[:2] for triple in triples[:8]], "test": [triple[:2] for triple in triples[8:]]}
    assert counts(tercet.open_data(by_split)) == EXPECTED
    one_image = shade(3)
    data = tercet.open_data([(one_image, "one"), (one_image.copy(), "two"), (shade(4), ["three", "four"])])
    assert counts(data) == {"all": (2, 4)}  # equal images are one image
    assert tercet.open_data(data) is data


def test_hugging_face_datasets(files):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "caption": datasets.Value("string")})
    with_images = datasets.Dataset.from_dict(
        {"image": [shade(number) for number in range(12)], "caption": CAPTIONS}, features=features
    )
    data = tercet.open_data(with_images)
    assert counts(data) == {"all": (12, 12)}
    assert data.split("all").image_files.open(4).getpixel((0, 0)) == (80, 80, 80)
    rows = {"image": files[::2], "captions": [CAPTIONS[n : n + 2] for n in range(0, 12, 2)]}
    paths = datasets.Dataset.from_dict(rows)
    parts = datasets.DatasetDict({"train": paths.select(range(4)), "test": paths.select(range(4, 6))})
    assert counts(tercet.open_data(parts)) == EXPECTED
    with pytest.raises(ValueError, match="Dataset: no caption column: the columns are image; name yours"):
        tercet.open_data(paths.remove_columns("captions"))
    with pytest.raises(ValueError, match="load it without streaming=True"):
        tercet.open_data(paths.to_iterable_dataset())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "no valid captions"),
        ([("0.png", "one"), ("1.png", " ")], "pairs, row 1, image 1.png: empty caption"),
        ([("0.png", "one"), ("9.png", "two")], r"pairs, row 1: no image file 9\.png in"),
        ([("missing.png", "one")], r"pairs, row 0: no image file missing\.png in"),
        ([("0.png", "one"), ("1.png",)], r"pairs, row 1: expected \(image, caption\) or .*, got 1 items"),
        ([(7, "one")], "pairs, row 0: expected an image path, a PIL image or bytes, got int"),
        ([("0.png", None)], "pairs, row 0, image 0.png: expected a caption string, got NoneType"),
        ([("0.png", "one", "a/b")], "pairs, row 0: expected a split name"),
        ({"train": [("0.png", "one"), ("1.png", "")]}, "pairs train, row 1, image 1.png: empty caption"),
        ([("0.png", "one"), (Image.new("RGB", (4, 4)), "two")], "some images of all are images and others paths"),
    ],
)
def test_errors_name_the_row(files, given, message):
    with pytest.raises(ValueError, match=message):
        tercet.open_data(given)


def test_other_objects_are_refused(without_shape_checks):
    with pytest.raises(ValueError, match=r"data must be a path, scenes, a pandas DataFrame, .*; got int"):
        tercet.open_data(5)


def test_bad_rows_can_be_skipped(files):
    data = tercet.open_data([("0.png", "one"), ("9.png", "two"), (7, "three")], skip_bad=True)
    assert counts(data) == {"all": (1, 1)}
    assert [message.split(":")[0] for message in data.skipped] == ["pairs, row 2", "pairs, row 1"]


class Thumbnail:
    """An image encoder: the pixels."""

    def __init__(self):
        self.about = {"encoder": "thumbnail"}

    def prepare(self, image):
        return torch.from_numpy(np.asarray(image, dtype=np.float32)).permute(2, 0, 1)

    def encode(self, pixels):
        return pixels.flatten(1)


def test_pairs_are_compared_with_features_of_their_images(tmp_path, monkeypatch):
    monkeypatch.setitem(ENCODERS, "thumbnail", Encoder(image=lambda grid: Thumbnail()))
    pairs = [(shade(number), f"{text} {n}", "train") for number, text in enumerate(CAPTIONS) for n in range(5)]
    pairs += [(shade(number), text, "test") for number, text in enumerate(CAPTIONS)]
    settings = {"image_encoder": "thumbnail", "text_encoder": "bag-of-words", "train": {"batch_size": 10}}
    given = {"objectives": "nt-xent", "seeds": 2, "epochs": 1, "no_tune": True, "runs": tmp_path, **settings}
    result = tercet.compare(pairs, **given)
    assert not result.results.failures
    assert len(result.embedded.data("nt-xent").split.images()) == 12  # the report shows them
    assert tercet.compare(pairs, **given).folder == result.folder
    assert all("_pairs_" in run.name for run in tmp_path.glob("2*"))


def test_an_opened_dataset_is_trained_on(tmp_path):
    given = {"epochs": 1, "batch_size": 50, "runs": tmp_path}
    run = tercet.train(tercet.open_data("scenes:60"), **given)
    assert "_scenes_heads_" in run.folder.name
    assert tercet.train("scenes:60", **given).folder == run.folder  # the same data and settings are the same run
    assert tercet.load(run.folder).embed_texts(["a red square"]).shape[0] == 1
    with pytest.raises(ValueError, match="features='regions' selects files"):
        tercet.train(tercet.open_data("scenes:60"), features="regions", **given)


def test_neither_package_is_imported_with_tercet():
    package = Path(tercet.__file__).parent
    for file in package.rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & {"pandas", "datasets", "IPython", "ipywidgets"}, file
