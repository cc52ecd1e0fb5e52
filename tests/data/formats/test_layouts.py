"""Precomp folders: rows and captions of each image, in every published layout; contradictions are errors."""

import numpy as np
import pytest

from tercet.data.formats import open_data
from tercet.data.formats.precomp import infer_layout

FEATURES = np.arange(24, dtype=np.float32).reshape(2, 3, 4)  # two images, three regions


def write(folder, captions, ids, features, stem="test"):
    folder.mkdir(exist_ok=True)
    (folder / f"{stem}_caps.txt").write_text("".join(f"caption {n}\n" for n in range(captions)))
    if ids is not None:
        (folder / f"{stem}_ids.txt").write_text("".join(f"{name}\n" for name in ids))
    if features is not None:
        np.save(folder / f"{stem}_ims.npy", features)
    return folder


LAYOUTS = {
    "one row per image (train)": (10, ["7", "9"], FEATURES),
    "rows and ids repeated (dev, test)": (10, ["7"] * 5 + ["9"] * 5, FEATURES.repeat(5, axis=0)),
    "rows repeated, one id per image": (10, ["7", "9"], FEATURES.repeat(5, axis=0)),
    "one id per caption, one row per image": (10, ["7"] * 5 + ["9"] * 5, FEATURES),
    "one row per image, no ids": (10, None, FEATURES),
    "rows repeated, no ids": (10, None, FEATURES.repeat(5, axis=0)),
    "no features": (10, ["7", "9"], None),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_gives_the_same_split(name, tmp_path):
    captions, ids, features = LAYOUTS[name]
    split = open_data(write(tmp_path / "folder", captions, ids, features)).splits["test"]
    assert split.image_names == (("7", "9") if ids else ("0", "1"))
    assert split.owners.tolist() == [0] * 5 + [1] * 5
    if features is not None:
        assert np.array_equal(split.features.raw(np.arange(2)), FEATURES)


def test_ragged_captions_with_one_id_per_caption(tmp_path):
    ids = ["x.jpg", "y.jpg", "y.jpg", "y.jpg"]
    for features in (FEATURES, FEATURES.repeat([1, 3], axis=0)):
        split = open_data(write(tmp_path / f"folder{len(features)}", 4, ids, features)).splits["test"]
        assert split.owners.tolist() == [0, 1, 1, 1]
        assert np.array_equal(split.features.raw(np.arange(2)), FEATURES)


def test_one_caption_per_image(tmp_path):
    split = open_data(write(tmp_path / "folder", 2, ["x", "y"], FEATURES)).splits["test"]
    assert split.owners.tolist() == [0, 1]


CONTRADICTIONS = {
    "captions not divisible": (7, ["7", "9"], FEATURES, "7 captions cannot be divided evenly among 2 feature rows"),
    "number of ids": (10, ["7", "8", "9"], FEATURES, "2 feature rows, 10 captions and 3 ids match no layout"),
    "duplicate id": (10, ["7", "7"], FEATURES, "line 2: duplicate id 7, first in line 1"),
    "id repeated later": (
        4,
        ["7", "9", "9", "7"],
        FEATURES.repeat(2, axis=0),
        "line 4: duplicate id 7, first in line 1",
    ),
    "repeated by ids, not by features": (
        4,
        ["7", "7", "9", "9"],
        FEATURES[[0, 1, 1, 1]],
        "row 1: differs from the previous row, but ids and counts imply",
    ),
    "repeated by features, not by ids": (
        10,
        [str(n) for n in range(10)],
        FEATURES.repeat(5, axis=0),
        "each row has its own id",
    ),
    "empty id": (10, ["7", ""], FEATURES, "line 2: expected an id"),
    "unequal repeats without ids": (
        5,
        None,
        FEATURES[[0, 0, 1, 1, 1]],
        "row 0 occurs 2 times, which does not divide the 5 rows",
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradictions_are_errors(name, tmp_path):
    captions, ids, features, message = CONTRADICTIONS[name]
    with pytest.raises(ValueError, match=message):
        open_data(write(tmp_path / "folder", captions, ids, features))


def test_neither_ids_nor_features(tmp_path):
    with pytest.raises(ValueError, match=r"neither test_ims\.npy nor test_ids\.txt exists"):
        open_data(write(tmp_path / "folder", 4, None, None))


def test_counts_alone_do_not_decide_without_ids():
    assert infer_layout("here", 10, 10, None) is None


def test_dev_is_val_and_both_together_are_an_error(tmp_path):
    folder = write(tmp_path / "folder", 10, ["7", "9"], FEATURES, stem="dev")
    assert list(open_data(folder).splits) == ["val"]
    write(folder, 10, ["7", "9"], FEATURES, stem="val")
    with pytest.raises(ValueError, match="two sets of files for the split val"):
        open_data(folder)


def test_other_features_by_name(tmp_path):
    folder = write(tmp_path / "folder", 10, ["7", "9"], FEATURES)
    np.save(folder / "test_global.npy", FEATURES[:, 0])
    assert open_data(folder, features="global").splits["test"].features.shape == (2, 4)
    with pytest.raises(ValueError, match=r"no feature file \{split\}_grid\.npy for test"):
        open_data(folder, features="grid")


def test_joining_splits_reads_from_both(tmp_path):
    import torch

    folder = write(tmp_path / "folder", 10, ["7", "9"], FEATURES, stem="train")
    write(folder, 2, ["5", "5"], FEATURES[:1].repeat(2, axis=0) + 100, stem="restval")
    data = open_data(folder)
    split = data.split("train+restval")
    assert split.image_names == ("7", "9", "5")
    assert split.owners.tolist() == [0] * 5 + [1] * 5 + [2, 2]
    taken, _ = split.features.take(torch.tensor([2, 0, 2]))
    assert np.array_equal(taken.numpy(), np.concatenate([FEATURES, FEATURES[:1] + 100])[[2, 0, 2]])
    with pytest.raises(ValueError, match=r"no split 'trian' \(did you mean train\?\); it has: train, restval"):
        data.split("trian")
    with pytest.raises(ValueError, match="names the same split twice"):
        data.split("train+train")


def test_ids_map_to_images_by_the_file_of_vse_infinity(tmp_path):
    import json

    from tests.data.small_datasets import image_bytes

    folder = write(tmp_path / "folder", 10, ["7", "9"], FEATURES)
    (folder / "id_mapping.json").write_text(json.dumps({"7": "seven.jpg", "9": "nine.jpg"}))
    (tmp_path / "images").mkdir()
    for name in ("seven.jpg", "nine.jpg"):
        (tmp_path / "images" / name).write_bytes(image_bytes())
    split = open_data(folder, images=tmp_path / "images").splits["test"]
    assert str(split.image_files.sources[1]).endswith("nine.jpg")
