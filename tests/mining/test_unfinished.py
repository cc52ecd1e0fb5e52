"""Half a table that was damaged is made again; what a folder holds instead is told."""

import numpy as np
import pytest
import torch

from tercet.data import paired
from tercet.data.members import MemberDraws
from tercet.data.mined import open_mined, read_empty
from tercet.data.scenes import scenes
from tercet.mining.guards import Guards
from tercet.mining.mine import Wanted, mine
from tercet.models import build
from tercet.similarity import Compared, compared_by_products
from tercet.training.mining import compared_sides
from tests.mining.test_mine import MODEL, products_of, world


def cut(file, size):
    file.write_bytes(file.read_bytes()[:size])


@pytest.mark.parametrize("size", [0, 7, 100, -1])
@pytest.mark.parametrize("name", ["i2t", "i2t_similarity", "t2i"])
@pytest.mark.parametrize("listed", [False, True])
def test_half_a_table_with_a_damaged_list_is_made_again(tmp_path, name, size, listed, monkeypatch):
    monkeypatch.setattr("tercet.mining.shortlist.PAIRS", 64)
    w = world()
    mine(products_of(w), w.data, tmp_path / "quick", Wanted(20, 9), MODEL)
    shortlist = open_mined(tmp_path / "quick", w.data) if listed else None
    products, calls = products_of(w)(None), []

    def counting(found):
        def count(*given):
            calls.append(given)
            if len(calls) == (8 if listed else 4):
                raise KeyboardInterrupt
            return found(*given)

        return count

    compared = Compared(counting(products.block), counting(products.of_pairs), 5)
    given = {"shortlist": shortlist, "saved_every": 0.0}
    mine(products_of(w), w.data, tmp_path / "whole", Wanted(8, 5, Guards(skip=1)), MODEL, **given)
    broken = tmp_path / "broken"
    with pytest.raises(KeyboardInterrupt):
        mine(lambda folder: compared, w.data, broken, Wanted(8, 5, Guards(skip=1)), MODEL, **given)
    assert list(tmp_path.glob("broken.unfinished/progress.*"))
    if (tmp_path / "broken.unfinished" / f"{name}.npy").is_file():
        cut(tmp_path / "broken.unfinished" / f"{name}.npy", size)
    mine(lambda folder: compared, w.data, broken, Wanted(8, 5, Guards(skip=1)), MODEL, **given)
    for file in (tmp_path / "whole").iterdir():
        assert file.read_bytes() == (broken / file.name).read_bytes(), file.name


@pytest.mark.parametrize("size", [0, 7, 100, -1])
@pytest.mark.parametrize("name", ["encoded_images", "encoded_captions"])
def test_damaged_vectors_are_encoded_again(tmp_path, name, size):
    data = paired("scenes", scenes("train", 30).as_split("global"))
    model = build("heads", image_dim=data.images.shape[-1], caption_dim=data.captions.shape[-1], joint_dim=6)
    said = []
    block = compared_sides(model, data, tmp_path, said.append).block(slice(0, 30), slice(0, 150))
    compared_sides(model, data, tmp_path, said.append)
    assert len(said) == 1
    whole = (tmp_path / f"{name}.npy").read_bytes()
    cut(tmp_path / f"{name}.npy", size)
    again = compared_sides(model, data, tmp_path, said.append).block(slice(0, 30), slice(0, 150))
    assert len(said) == 2
    assert torch.equal(block, again)
    assert (tmp_path / f"{name}.npy").read_bytes() == whole


def test_emptied_lists_are_those_of_the_table_before(tmp_path):
    w, later = world(), world(seed=4)
    mine(products_of(w), w.data, tmp_path / "first", Wanted(8, 5), MODEL)
    before = open_mined(tmp_path / "first", w.data)
    compared = compared_by_products(later.x, later.y)
    wanted = Wanted(8, 5, Guards(margin=25.0))
    mine(lambda folder: compared, w.data, tmp_path / "bare", wanted, MODEL)
    mine(lambda folder: compared, w.data, tmp_path / "filled", wanted, MODEL, before=before)
    bare, filled = (open_mined(tmp_path / name, w.data) for name in ("bare", "filled"))
    assert read_empty(tmp_path / "filled") == read_empty(tmp_path / "bare")
    for side in ("captions", "images", "caption_similarity", "image_similarity"):
        lists = "captions" if side.startswith("caption") else "images"
        empty = getattr(bare, lists)[:, :1] < 0
        assert 0 < empty.sum() < len(empty)
        expected = np.where(empty, getattr(before, side), getattr(bare, side))
        assert np.array_equal(getattr(filled, side), expected)
    MemberDraws(filled, w.data.owners)


def test_it_is_told_whether_the_data_or_the_model_is_another(tmp_path):
    w, other = world(), world(seed=9)
    model = MODEL | {"reads": "a"}
    mine(products_of(w), w.data, tmp_path / "table", Wanted(5, 5), model)

    def again(data, model):
        mine(products_of(w), data, tmp_path / "table", Wanted(5, 5), model)

    with pytest.raises(ValueError, match=r"is of other data \(pairing .*, not "):
        again(other.data, model | {"reads": "b"})
    with pytest.raises(ValueError, match=r'is of other data \(reads "a", not "b"\)'):
        again(w.data, model | {"reads": "b"})
    with pytest.raises(ValueError, match=r'is of another model \(weights "abc", not "xyz"\)'):
        again(w.data, model | {"weights": "xyz"})
    with pytest.raises(ValueError, match="is of another model"):  # it reads the same data otherwise
        again(w.data, model | {"weights": "xyz", "reads": "b"})
