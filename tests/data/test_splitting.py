"""Splits of data without any: nothing that is linked is apart, the shares hold, the order of rows has no effect."""

import csv
import io
import itertools
import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tercet.data.dataset import Split
from tercet.data.formats import open_data
from tercet.data.splitting import HELD_OUT, Decoded, assign, connected, equal_images, split_images, thumbnail
from tercet.data.text.word_sets import is_near_duplicate, near_duplicate_pairs, words_of
from tercet.training.automatic_splits import with_splits
from tests.commands import tercet

WORDS = st.sampled_from(["a", "dog", "runs", "on", "the", "grass", "red", "ball", "two", "cats", "in", "snow"])
TEXTS = st.lists(WORDS, min_size=1, max_size=7).map(" ".join)


def split_of(captions: list[list[str]], names: list[str] | None = None) -> Split:
    owners = np.repeat(np.arange(len(captions)), [len(each) for each in captions]).astype(np.int64)
    texts = tuple(text for each in captions for text in each)
    return Split(tuple(names or [f"{row}.jpg" for row in range(len(captions))]), texts, owners)


def linked_slowly(captions: list[list[str]], decoded: list[Decoded]) -> list[tuple[int, int]]:
    """Every pair of images that must not be apart, by its definition."""
    return [
        (one, other)
        for one, other in itertools.combinations(range(len(captions)), 2)
        if decoded[one].checksum == decoded[other].checksum
        or np.corrcoef(decoded[one].thumbnail, decoded[other].thumbnail)[0, 1] >= 0.98
        or any(
            a.lower().strip() == b.lower().strip() or is_near_duplicate(words_of(a), words_of(b))
            for a in captions[one]
            for b in captions[other]
        )
    ]


@settings(max_examples=30, deadline=None)
@given(st.lists(TEXTS, max_size=30))
def test_near_duplicate_pairs_are_those_of_all_pairs(texts):
    words = [words_of(text) for text in texts]
    expected = {
        pair
        for pair in itertools.combinations(range(len(words)), 2)
        if is_near_duplicate(*map(words.__getitem__, pair))
    }
    assert sorted(near_duplicate_pairs(words)) == sorted(expected)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 30).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.tuples(*[st.integers(0, n - 1)] * 2)))))
def test_connected_groups_are_those_of_the_closure(given_links):
    count, links = given_links
    reached = np.eye(count, dtype=bool)
    for one, other in links:
        reached[one, other] = reached[other, one] = True
    for _ in range(count):
        reached = (reached.astype(int) @ reached.astype(int)) > 0
    groups = connected(count, links)
    assert sorted(image for group in groups for image in group) == list(range(count))
    assert {tuple(group) for group in groups} == {tuple(np.flatnonzero(row)) for row in reached}


@settings(max_examples=15, deadline=None)
@given(st.integers(10, 60), st.integers(0, 1000), st.integers(0, 2**32 - 1))
def test_linked_images_are_on_one_side_unless_that_is_given_up(count, vocabulary, seed):
    """With few words nearly everything is linked, with many nearly nothing."""
    rng = np.random.default_rng(seed)
    captions = [[" ".join(f"w{w}" for w in rng.integers(0, vocabulary + 3, size=5))] for _ in range(count)]
    decoded = [Decoded(b"%d" % rng.integers(0, 2 * count), rng.random(256, dtype=np.float32) * 255) for _ in captions]
    result = split_images(split_of(captions), decoded, seed=seed % 7)
    side = {image: name for name, images in result.images.items() for image in images}
    assert sorted(side) == list(range(count))
    for name, share in HELD_OUT.items():
        target = max(2, round(share * count))
        assert target <= 2 * len(result.images[name]) <= 2 * target
    apart = [pair for pair in linked_slowly(captions, decoded) if side[pair[0]] != side[pair[1]]]
    assert bool(apart) <= bool(result.apart)


def test_every_group_stays_together_and_large_ones_train():
    groups = [[*range(60)], [60, 61], [62, 63], *([image] for image in range(64, 100))]
    images = assign(groups, [f"{image:03}" for image in range(100)], seed=3)
    assert {name: len(each) for name, each in images.items()} == {"train": 80, "val": 10, "test": 10}
    assert set(range(60)) <= set(images["train"])
    for group in groups:
        assert sum(bool(set(group) & set(each)) for each in images.values()) == 1


def test_rows_may_be_shuffled_and_a_few_more_images_move_few_others():
    names = [f"photo {number}" for number in range(500)]
    captions = [[f"word{number} of{number}"] for number in range(500)]
    made = split_images(split_of(captions, names), None)
    side = {names[image]: name for name, images in made.images.items() for image in images}
    order = random.Random(1).sample(range(500), 500)
    shuffled = split_images(split_of([captions[row] for row in order], [names[row] for row in order]), None)
    assert side == {names[order[image]]: name for name, images in shuffled.images.items() for image in images}
    assert side != {
        names[i]: name
        for name, images in split_images(split_of(captions, names), None, 1).images.items()
        for i in images
    }
    more = split_images(split_of([*captions, ["one more"], ["and another thing"]], [*names, "x", "y"]), None)
    moved = [i for name, images in more.images.items() for i in images if i < 500 and side[names[i]] != name]
    assert len(moved) <= 4


def photo(seed: int, side: int = 90) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)


def saved(image: Image.Image, quality: int) -> Image.Image:
    stream = io.BytesIO()
    image.save(stream, format="JPEG", quality=quality)
    return Image.open(stream)


def test_a_resized_and_compressed_copy_is_the_same_image():
    images = [photo(0), photo(1), saved(photo(0).resize((61, 47)), 40), photo(2), Image.new("RGB", (50, 50), "white")]
    images.append(Image.new("RGB", (50, 50), "white"))  # of one color: no evidence
    assert list(equal_images(np.stack([thumbnail(image) for image in images]))) == [(0, 2)]


@pytest.fixture(scope="module")
def messy(tmp_path_factory):
    """40 photos in sub-folders without splits: two copies, a byte order mark, two broken files."""
    folder = tmp_path_factory.mktemp("messy")
    rows = []
    for number in range(40):
        name = f"sub{number % 3}/{number}.jpg"
        (folder / name).parent.mkdir(exist_ok=True)
        photo(number if number < 38 else number - 38).save(folder / name, quality=95 - number)
        rows += [(name, f"caption {number} about thing{number}"), (name, f"another{number} one{number}")]
    for name in ("empty.jpg", "text.png"):
        (folder / name).write_bytes(b"" if name.startswith("e") else b"no image")
        rows.append((name, f"not there {name}"))
    with (folder / "pairs.csv").open("w", encoding="utf-8-sig", newline="") as stream:
        csv.writer(stream).writerows([("Image", "Caption"), *rows])
    return folder


def test_data_split_writes_a_file_that_is_data(messy, tmp_path):
    failed = tercet("data", "split", messy / "pairs.csv", tmp_path / "s.json")
    assert failed.returncode == 2
    assert "2 items cannot be read" in failed.stderr
    assert "empty.jpg" in failed.stderr
    assert "text.png" in failed.stderr
    assert failed.stderr.count("\n") == 1
    assert not (tmp_path / "s.json").exists()
    done = tercet("data", "split", messy / "pairs.csv", tmp_path / "s.json", "--skip-bad", check=True)
    assert (
        "32 / 4 / 4 images of train / val / test, nearly equal images on one side, 2 unreadable left out" in done.stdout
    )
    again = tercet("data", "split", messy / "pairs.csv", tmp_path / "s.json", "--skip-bad", check=True)
    assert "already holds" in again.stdout
    other = tercet("data", "split", messy / "pairs.csv", tmp_path / "s.json", "--skip-bad", "--seed", "1")
    assert other.returncode == 2
    data = open_data(tmp_path / "s.json")
    assert {name: len(split.image_names) for name, split in data.splits.items()} == {"train": 32, "val": 4, "test": 4}
    side = {name: split for split, images in data.splits.items() for name in images.image_names}
    assert side["sub0/0.jpg"] == side["sub2/38.jpg"]
    assert side["sub1/1.jpg"] == side["sub0/39.jpg"]
    whole = open_data(messy / "pairs.csv").splits["all"]
    for split in data.splits.values():
        for row, name in enumerate(split.image_names):
            texts = {whole.texts[j] for j in np.flatnonzero(whole.owners == whole.image_names.index(name))}
            assert {split.texts[j] for j in np.flatnonzero(split.owners == row)} == texts


def test_data_that_changed_since_is_named(messy, tmp_path):
    tercet("data", "split", messy / "pairs.csv", tmp_path / "s.json", "--skip-bad", check=True)
    content = json.loads((tmp_path / "s.json").read_text())
    content["splits"]["val"].append("gone.jpg")
    (tmp_path / "gone.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"no longer has gone\.jpg: split it again"):
        open_data(tmp_path / "gone.json")
    content["splits"]["val"] = content["splits"]["val"][:-2]
    (tmp_path / "new.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"has new images, sub\d/\d+\.jpg: split it again"):
        open_data(tmp_path / "new.json")
    (tmp_path / "damaged.json").write_text(json.dumps({"what": "tercet split", "format_version": 2, "splits": 3}))
    with pytest.raises(ValueError, match="not a split file"):
        open_data(tmp_path / "damaged.json")


def test_too_few_images_are_refused():
    with pytest.raises(ValueError, match="9 images are too few for splits: at least 10 are needed"):
        split_images(split_of([[f"word{row}"] for row in range(9)]), None)


def photos_with_table(folder, start=0, count=20):
    (folder / "photos").mkdir(parents=True)
    rows = [f"{number}.jpg,one two three word{number}\n" for number in range(count)]
    (folder / "photos.csv").write_text("image,caption\n" + "".join(rows))
    for number in range(count):
        photo(start + number).save(folder / "photos" / f"{number}.jpg")
    return folder / "photos.csv"


def test_other_photos_with_the_same_names_and_captions_get_splits_of_their_own(tmp_path):
    tables = [photos_with_table(tmp_path / name, start) for name, start in (("one", 0), ("other", 50))]
    found = [with_splits(str(table), tmp_path / "runs", images=table.parent / "photos") for table in tables]
    assert found[0][0] != found[1][0]
    for table, (_, opened) in zip(tables, found, strict=True):
        for split in opened.splits.values():
            assert {source.path.parent for source in split.images()} == {table.parent / "photos"}
    again, _ = with_splits(str(tables[0]), tmp_path / "runs", images=tables[0].parent / "photos")
    assert again == found[0][0]
    photo(99).save(tmp_path / "one" / "photos" / "0.jpg")
    after, _ = with_splits(str(tables[0]), tmp_path / "runs", images=tables[0].parent / "photos")
    assert after != again


def test_without_images_there_are_no_splits(tmp_path):
    table = photos_with_table(tmp_path)
    moved = tmp_path / "elsewhere" / "photos.csv"
    moved.parent.mkdir()
    table.rename(moved)
    for arguments in (("data", "split", moved, tmp_path / "split.json"), ("fit", moved, "--runs", tmp_path / "runs")):
        done = tercet(*arguments)
        assert done.returncode == 2
        assert "no image was found" in done.stderr
        assert "--images" in done.stderr
    assert not list(tmp_path.rglob("*.json"))


def test_a_single_split_that_is_named_is_kept(tmp_path):
    table = photos_with_table(tmp_path)
    lines = table.read_text().splitlines()
    table.write_text("\n".join([f"{lines[0]},split", *(f"{line},test" for line in lines[1:])]) + "\n")
    done = tercet("data", "split", table, tmp_path / "split.json", "--images", tmp_path / "photos")
    assert done.returncode == 0, done.stderr
    assert {name: len(split.image_names) for name, split in open_data(tmp_path / "split.json").splits.items()} == {
        "test": 20
    }
    done = tercet("fit", table, "--images", tmp_path / "photos", "--runs", tmp_path / "runs")
    assert done.returncode == 2
    assert "split" in done.stderr
