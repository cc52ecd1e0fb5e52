"""Image names that lead out of the folder of a dataset are refused, unless the user names a folder that holds them."""

import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tercet.data.formats import open_data
from tercet.data.image_io import MAX_BYTES, ImageFile, open_image
from tercet.search.metadata import images_in_dataset, images_in_folder
from tests.commands import tercet
from tests.data.small_datasets import image_bytes


@pytest.fixture
def root(tmp_path):
    """`data` with images, and beside it an image of somebody's own."""
    for folder in ("data/images", "private"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "private" / "secret.png").write_bytes(image_bytes(1))
    (tmp_path / "data" / "images" / "ours.png").write_bytes(image_bytes(0))
    (tmp_path / "data" / "images" / "link.png").symlink_to(tmp_path / "private" / "secret.png")
    (tmp_path / "data" / "images" / "linked").symlink_to(tmp_path / "private", target_is_directory=True)
    return tmp_path


OUTSIDE = {
    "parent": lambda root: "../../private/secret.png",
    "parent of the data": lambda root: "../private/secret.png",
    "parent inside a path": lambda root: "images/../../private/secret.png",
    "absolute": lambda root: str(root / "private" / "secret.png"),
    "link": lambda root: "link.png",
    "link to a folder": lambda root: "linked/secret.png",
}


def write_csv(data, name):
    (data / "train.csv").write_text(f"image,caption\nours.png,a dog\n{name},a cat\n")
    return data / "train.csv", "train.csv, line 3"


def write_list(data, name):
    records = [{"image": "ours.png", "caption": "a dog"}, {"image": name, "caption": "a cat"}]
    (data / "train.json").write_text(json.dumps(records))
    return data / "train.json", "train.json, record 1"


def write_karpathy(data, name):
    images = [{"filename": each, "split": "train", "sentences": [{"raw": "a dog"}]} for each in ("ours.png", name)]
    (data / "dataset.json").write_text(json.dumps({"images": images}))
    return data / "dataset.json", "dataset.json, images[1]"


def write_parquet(data, name):
    table = pa.table({"image": ["ours.png", name], "caption": ["a dog", "a cat"]})
    pq.write_table(table, data / "train.parquet")
    return data / "train.parquet", "train.parquet, row 1"


WRITERS = {"csv": write_csv, "list": write_list, "karpathy": write_karpathy, "parquet": write_parquet}


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
@pytest.mark.parametrize("kind", OUTSIDE)
def test_names_that_lead_out_are_refused(root, kind, writer):
    name = OUTSIDE[kind](root)
    path, location = writer(root / "data", name)
    with pytest.raises(ValueError, match="is outside") as error:
        open_data(path)
    for part in (location, name, str(root / "private" / "secret.png"), "--images"):
        assert part in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    kept = open_data(path, skip_bad=True)
    assert kept.split("train").image_names == ("ours.png",)
    assert len(kept.skipped) == 1


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
@pytest.mark.parametrize("kind", ["parent of the data", "absolute"])
def test_a_folder_that_contains_them_allows_them(root, kind, writer):
    name = OUTSIDE[kind](root)
    path, _ = writer(root / "data", name)
    (root / "ours.png").write_bytes(image_bytes(0))
    split = open_data(path, images=root).split("train")
    assert split.image_names == ("ours.png", name)
    assert split.image_files.sources[1].content() == image_bytes(1)


def test_absolute_names_inside_the_folder_need_nothing(root):
    path, _ = write_csv(root / "data", str(root / "data" / "images" / "." / ".." / "images" / "ours.png"))
    (root / "data" / "images" / "other.png").write_bytes(image_bytes(2))
    write_csv(root / "data", str(root / "data" / "images" / "other.png"))
    assert len(open_data(path).split("train").image_names) == 2


def test_links_inside_the_folder_and_a_linked_image_folder_need_nothing(root):
    (root / "data" / "images" / "again.png").symlink_to("ours.png")
    path, _ = write_csv(root / "data", "again.png")
    assert len(open_data(path).split("train").image_names) == 2
    os.rename(root / "data" / "images", root / "stored")
    (root / "data" / "images").symlink_to(root / "stored", target_is_directory=True)
    assert len(open_data(path).split("train").image_names) == 2


def test_paths_beside_embedded_images(root):
    """Hugging Face stores bytes and path; where there are no bytes, the path is read."""
    (root / "data" / "ours.png").write_bytes(image_bytes(0))
    cells = [{"bytes": None, "path": path} for path in ("ours.png", "../private/secret.png", "images/link.png")]
    image = pa.array(cells, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    pq.write_table(pa.table({"image": image, "caption": ["a", "b", "c"]}), root / "data" / "train.parquet")
    first, *others = open_data(root / "data" / "train.parquet").split("train").image_files
    assert first.content() == image_bytes(0)
    for row, other in enumerate(others, start=1):
        with pytest.raises(ValueError, match=rf"train\.parquet, row {row}: the image .* is outside .*--images"):
            other.content()
    allowed = open_data(root / "data" / "train.parquet", images=root).split("train").image_files
    assert [each.content() for each in allowed] == [image_bytes(0), image_bytes(1), image_bytes(1)]


def test_a_folder_with_caption_files(root):
    for name in ("ours", "link"):
        (root / "data" / "images" / f"{name}.txt").write_text("a dog\n")
    (root / "data" / "images" / "linked").unlink()
    with pytest.raises(ValueError, match=r"link\.txt: the image link\.png .*secret\.png.* is outside"):
        open_data(root / "data" / "images")


def test_ids_of_a_precomp_folder(root):
    folder = root / "data" / "features"
    folder.mkdir()
    np.save(folder / "train_ims.npy", np.eye(2, dtype=np.float32))
    (folder / "train_caps.txt").write_text("a dog\na cat\n")
    (folder / "train_ids.txt").write_text("1\n2\n")
    (folder / "id_mapping.json").write_text(json.dumps({"1": "ours.png", "2": str(root / "private" / "secret.png")}))
    with pytest.raises(ValueError, match=r"train_ids\.txt: the image .*secret\.png is outside"):
        open_data(folder, images=root / "data" / "images")


def test_names_from_a_program_are_the_users_own(root):
    pairs = [(str(root / "private" / "secret.png"), "a dog"), (root / "data" / "images" / "ours.png", "a cat")]
    assert len(open_data(pairs).split("all").image_names) == 2


def test_the_command_line_says_it_in_one_line(root):
    path, _ = write_csv(root / "data", "../private/secret.png")
    done = tercet("data", "convert", path, root / "out")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "train.csv, line 3: the image ../private/secret.png" in done.stderr


def test_an_index_of_a_folder_does_not_read_links_that_lead_out(root):
    images = images_in_folder(root / "data" / "images")
    secret = str(root / "private" / "secret.png")
    with pytest.raises(ValueError, match=r"link\.png .*is outside .*--image-folder"):
        images[secret][0].content()
    assert images_in_folder(root / "data" / "images", root)[secret][0].content() == image_bytes(1)
    path, _ = write_csv(root / "data", secret)
    with pytest.raises(ValueError, match="is outside"):
        images_in_dataset(open_data(path))


def test_a_file_too_large_for_an_image_is_not_read(tmp_path):
    with (tmp_path / "large.png").open("wb") as stream:
        stream.truncate(MAX_BYTES + 1)  # takes no space on disk
    with pytest.raises(ValueError, match=r"large\.png: 1,073,741,825 bytes: at most 1,073,741,824 are allowed"):
        open_image(ImageFile(tmp_path / "large.png"))
