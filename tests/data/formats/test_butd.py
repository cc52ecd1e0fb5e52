"""BUTD TSV files are converted to a precomp folder with boxes, in the image order of the captions."""

import base64

import numpy as np
import pytest

from tercet.data.formats import butd, open_data
from tercet.data.textio import ErrorPolicy
from tests.data.small_datasets import write_karpathy

CONTENT = {
    "train": [("COCO_train2014_000000000009.jpg", ["a", "b"]), ("COCO_train2014_000000000025.jpg", ["c", "d"])],
    "val": [("COCO_val2014_000000000042.jpg", ["e"])],
}


def line(image_id, boxes, features, width=200, height=100):
    cells = [image_id, width, height, len(boxes)]
    encoded = [base64.b64encode(np.asarray(array, dtype=np.float32).tobytes()).decode() for array in (boxes, features)]
    return "\t".join(map(str, [*cells, *encoded])) + "\n"


@pytest.fixture
def regions():
    random = np.random.default_rng(0)
    return {
        image: (random.uniform(0, 100, (count, 4)), random.standard_normal((count, 5)).astype(np.float32))
        for image, count in ((42, 3), (9, 3), (25, 2), (1000, 3))
    }


@pytest.fixture
def tsv(tmp_path, regions):
    file = tmp_path / "resnet101_genome.tsv.0"
    file.write_text("".join(line(image, *arrays) for image, arrays in regions.items()))
    return file


def test_rows_follow_the_captions_and_boxes_become_relative(tmp_path, tsv, regions):
    assert butd.recognise(tsv)
    butd.convert([tsv], open_data(write_karpathy(CONTENT, tmp_path)), tmp_path / "out", ErrorPolicy())
    data = open_data(tmp_path / "out")
    train = data.splits["train"]
    assert train.image_names == tuple(name for name, _ in CONTENT["train"])
    assert train.features.shape == (2, 3, 5)
    assert train.features.lengths.tolist() == [3, 2]
    features = train.features.raw(np.arange(2))
    assert np.array_equal(features[0], regions[9][1])
    assert np.array_equal(features[1], np.concatenate([regions[25][1], np.zeros((1, 5))]))
    boxes = train.boxes.raw(np.array([0]))[0]
    np.testing.assert_allclose(boxes, regions[9][0] / [200, 100, 200, 100], rtol=1e-6)
    assert np.array_equal(data.splits["val"].features.raw(np.array([0]))[0], regions[42][1])


def test_ragged_captions_get_repeated_rows(tmp_path, tsv, regions):
    content = {"train": [(CONTENT["train"][0][0], ["a", "b", "c"]), (CONTENT["train"][1][0], ["d"])]}
    butd.convert([tsv], open_data(write_karpathy(content, tmp_path)), tmp_path / "out", ErrorPolicy())
    split = open_data(tmp_path / "out").splits["train"]
    assert split.owners.tolist() == [0, 0, 0, 1]
    assert np.array_equal(split.features.raw(np.array([1]))[0, :2], regions[25][1])
    assert len(np.load(tmp_path / "out" / "train_ims.npy")) == 4


def test_an_image_without_regions_is_an_error_or_a_listed_skip(tmp_path, regions):
    file = tmp_path / "some.tsv"
    file.write_text(line(9, *regions[9]) + line(42, *regions[42]))
    captions = open_data(write_karpathy(CONTENT, tmp_path))
    with pytest.raises(ValueError, match=r"image COCO_train2014_000000000025\.jpg: no regions in .*some\.tsv"):
        butd.convert([file], captions, tmp_path / "out", ErrorPolicy())
    assert not (tmp_path / "out").exists()
    errors = ErrorPolicy(skip=True)
    butd.convert([file], captions, tmp_path / "out", errors)
    assert len(errors.messages) == 1
    assert open_data(tmp_path / "out").splits["train"].image_names == (CONTENT["train"][0][0],)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("9\t200\t100\t3\tAAAA\n", "line 1: expected 6 columns, got 5"),
        ("9\t200\tx\t3\tAAAA\tAAAA\n", "line 1: invalid literal"),
        ("9\t200\t100\t3\tAAAAAA==\tAAAAAA==\n", "line 1: 1 box values and 1 feature values do not match num_boxes 3"),
        ("9\t0\t100\t3\tAAAAAA==\tAAAAAA==\n", "line 1: expected an image size"),
        (line(9, np.zeros((1, 4)), [[np.nan]]), "line 1: NaN or infinity"),
    ],
)
def test_bad_lines_are_named(tmp_path, bad, message):
    (tmp_path / "bad.tsv").write_text(bad)
    with pytest.raises(ValueError, match=message):
        butd.convert(
            [tmp_path / "bad.tsv"], open_data(write_karpathy(CONTENT, tmp_path)), tmp_path / "out", ErrorPolicy()
        )
