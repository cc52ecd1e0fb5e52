"""Precomp folders: which row and which captions belong to which image, in every layout that exists, never guessed."""

import numpy as np
import pytest

from tercet.data.formats import open_data
from tercet.data.formats.layout import lay_out

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
    "a row an image (train)": (10, ["7", "9"], FEATURES),
    "rows and ids repeated (dev, test)": (10, ["7"] * 5 + ["9"] * 5, FEATURES.repeat(5, axis=0)),
    "rows repeated, an id an image": (10, ["7", "9"], FEATURES.repeat(5, axis=0)),
    "an id a caption, a row an image": (10, ["7"] * 5 + ["9"] * 5, FEATURES),
    "a row an image, no ids": (10, None, FEATURES),
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


def test_ragged_captions_by_an_id_for_each(tmp_path):
    ids = ["x.jpg", "y.jpg", "y.jpg", "y.jpg"]
    for features in (FEATURES, FEATURES.repeat([1, 3], axis=0)):
        split = open_data(write(tmp_path / f"folder{len(features)}", 4, ids, features)).splits["test"]
        assert split.owners.tolist() == [0, 1, 1, 1]
        assert np.array_equal(split.features.raw(np.arange(2)), FEATURES)


def test_one_caption_an_image(tmp_path):
    split = open_data(write(tmp_path / "folder", 2, ["x", "y"], FEATURES)).splits["test"]
    assert split.owners.tolist() == [0, 1]


WRONG = {
    "captions cannot be shared out": (7, ["7", "9"], FEATURES, "7 captions cannot be shared out evenly over 2"),
    "ids do not fit": (10, ["7", "8", "9"], FEATURES, "2 feature rows, 10 captions and 3 ids do not fit"),
    "an id twice": (10, ["7", "7"], FEATURES, "line 2: the id 7 came before, in line 1"),
    "an id comes back": (4, ["7", "9", "9", "7"], FEATURES.repeat(2, axis=0), "line 4: the id 7 came before"),
    "ids say repeated, features do not": (4, ["7", "7", "9", "9"], FEATURES[[0, 1, 1, 1]], "row 1: ids and counts say"),
    "features say repeated, ids do not": (
        10,
        [str(n) for n in range(10)],
        FEATURES.repeat(5, axis=0),
        "each row has an id of its own",
    ),
    "an empty id": (10, ["7", ""], FEATURES, "line 2: expected an id"),
    "rows unlike and no ids": (5, None, FEATURES[[0, 0, 1, 1, 1]], "row 0 stands there 2 times, which does not divide"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_contradicts_itself_is_an_error(name, tmp_path):
    captions, ids, features, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        open_data(write(tmp_path / "folder", captions, ids, features))


def test_neither_ids_nor_features(tmp_path):
    with pytest.raises(ValueError, match=r"neither test_ims\.npy nor test_ids\.txt is there"):
        open_data(write(tmp_path / "folder", 4, None, None))


def test_counts_alone_do_not_decide_without_ids():
    assert lay_out("here", 10, 10, None) is None


def test_dev_is_val_and_twice_is_an_error(tmp_path):
    folder = write(tmp_path / "folder", 10, ["7", "9"], FEATURES, stem="dev")
    assert list(open_data(folder).splits) == ["val"]
    write(folder, 10, ["7", "9"], FEATURES, stem="val")
    with pytest.raises(ValueError, match="holds the split val twice"):
        open_data(folder)


def test_other_features_by_their_name(tmp_path):
    folder = write(tmp_path / "folder", 10, ["7", "9"], FEATURES)
    np.save(folder / "test_global.npy", FEATURES[:, 0])
    assert open_data(folder, features="global").splits["test"].features.shape == (2, 4)
    with pytest.raises(ValueError, match="there are no features grid"):
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
    with pytest.raises(ValueError, match="names one part twice"):
        data.split("train+train")


def test_ids_lead_to_pictures_by_vse_infinitys_mapping(tmp_path):
    import json

    from tests.data.sets import picture

    folder = write(tmp_path / "folder", 10, ["7", "9"], FEATURES)
    (folder / "id_mapping.json").write_text(json.dumps({"7": "seven.jpg", "9": "nine.jpg"}))
    (tmp_path / "images").mkdir()
    for name in ("seven.jpg", "nine.jpg"):
        (tmp_path / "images" / name).write_bytes(picture())
    split = open_data(folder, images=tmp_path / "images").splits["test"]
    assert str(split.pictures.sources[1]).endswith("nine.jpg")
