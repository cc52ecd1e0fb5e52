"""Cases in which a reader could silently drop or mix up items."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tercet.data.bad_items import without_bad_features
from tercet.data.dataset import DataSet, Split
from tercet.data.feature_array import FeatureArray
from tercet.data.formats import open_data
from tercet.data.formats.parquet import write_parquet
from tercet.data.formats.precomp import write_precomp
from tercet.data.textio import ErrorPolicy
from tests.data.small_datasets import PLAIN, image_bytes, plain, write_csv, write_folder, write_images


def featured(count, offset=0, **more):
    features = (np.arange(count * 3, dtype=np.float32).reshape(count, 3) + offset,)
    return Split(
        tuple(f"{offset}_{n}.jpg" for n in range(count)),
        tuple(f"caption {n}" for n in range(count)),
        np.arange(count),
        features=FeatureArray(features, "here"),
        **more,
    )


def test_coco_train_opens_on_a_machine_with_less_memory_than_it(tmp_path):
    """A sparse file, 31 GiB by its header: the system would refuse a writable mapping."""
    shape = (113_287, 36, 2048)
    with (tmp_path / "train_ims.npy").open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": shape})
        stream.truncate(stream.tell() + int(np.prod(shape)) * 4)
    (tmp_path / "train_caps.txt").write_text("a dog\n" * 5 * shape[0])
    (tmp_path / "train_ids.txt").write_text("".join(f"{n}\n" for n in range(shape[0])))
    split = open_data(tmp_path).splits["train"]
    assert split.features.shape == shape
    assert split.features.raw(np.array([7, 100_000])).shape == (2, 36, 2048)


def test_a_parquet_file_without_features_gets_none_of_another_file(tmp_path):
    write_parquet(DataSet(tmp_path, "made", {"train": featured(2)}), tmp_path / "set")
    for name in ("a_test.parquet", "z_val.parquet"):
        pq.write_table(pa.table({"image": ["t0", "t1"], "captions": [["x"], ["y"]]}), tmp_path / "set" / name)
    data = open_data(tmp_path / "set")
    assert data.splits["train"].features.raw(np.arange(2)).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert data.splits["test"].features is None
    assert data.splits["val"].features is None


def test_lengths_of_some_splits_only(tmp_path):
    random = np.random.default_rng(0)
    rows = FeatureArray((random.random((2, 4, 3)).astype(np.float32),), "here", lengths=np.array([4, 2]))
    other = FeatureArray((random.random((2, 4, 3)).astype(np.float32),), "here")
    split = Split(("a", "b"), ("x", "y"), np.arange(2), features=rows)
    data = DataSet(
        tmp_path, "made", {"train": split, "val": Split(("c", "d"), ("x", "y"), np.arange(2), features=other)}
    )
    write_parquet(data, tmp_path / "set")
    again = open_data(tmp_path / "set")
    assert again.splits["train"].features.lengths.tolist() == [4, 2]
    assert again.splits["val"].features.lengths is None


def test_an_empty_feature_cell_is_an_error(tmp_path):
    write_parquet(DataSet(tmp_path, "made", {"train": featured(3)}), tmp_path / "set")
    table = pq.read_table(tmp_path / "set" / "train.parquet")
    column = pa.array([[0.0, 1, 2], None, [6.0, 7, 8]], type=table.schema.field("features").type)
    table = table.set_column(table.schema.get_field_index("features"), table.schema.field("features"), column)
    pq.write_table(table, tmp_path / "train.parquet")
    with pytest.raises(ValueError, match="row 1: no value in features"):
        open_data(tmp_path / "train.parquet")


def test_columns_of_other_programs_named_features_are_ignored(tmp_path):
    table = {"image": ["a", "b"], "caption": ["x", "y"], "features": ["red", "blue"], "lengths": [[1, 2], [3]]}
    pq.write_table(pa.table(table), tmp_path / "train.parquet")
    assert open_data(tmp_path / "train.parquet").splits["train"].features is None


@pytest.mark.parametrize("kind", [pa.dictionary(pa.int32(), pa.string()), pa.large_string(), pa.string()])
def test_names_of_any_text_type_are_names(tmp_path, kind):
    pq.write_table(
        pa.table({"image": pa.array(["x", "x", "y"]).cast(kind), "caption": ["1", "2", "3"]}), tmp_path / "a.parquet"
    )
    assert plain(open_data(tmp_path / "a.parquet")) == {"all": [("x", ["1", "2"]), ("y", ["3"])]}


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([1, 2]), "expected paths, bytes or structs of bytes and path in the column image, got int64"),
        (pa.array([[{"bytes": b"x", "path": "a"}]] * 2), "expected paths, bytes .* got list"),
    ],
)
def test_images_of_other_types_are_rejected(tmp_path, column, message):
    pq.write_table(pa.table({"image": column, "caption": ["x", "y"]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=message):
        open_data(tmp_path / "a.parquet")


def test_equal_paths_with_different_images_are_an_error(tmp_path):
    cells = [{"bytes": image_bytes(n), "path": "same.jpg"} for n in (0, 0, 1)]
    pq.write_table(pa.table({"image": cells, "caption": ["a", "b", "c"]}), tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=r"row 2: a different image with the name same\.jpg came before"):
        open_data(tmp_path / "train.parquet")
    assert plain(open_data(tmp_path / "train.parquet", skip_bad=True)) == {"train": [("same.jpg", ["a", "b"])]}


def test_hugging_face_cells_with_only_a_path(tmp_path):
    (tmp_path / "z.jpg").write_bytes(image_bytes(4))
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    cells = pa.array([{"bytes": None, "path": str(tmp_path / "z.jpg")}], type=kind)
    pq.write_table(pa.table({"image": cells, "caption": ["a"]}), tmp_path / "train.parquet")
    assert open_data(tmp_path / "train.parquet").splits["train"].image_files.sources[0].content() == image_bytes(4)


def test_a_missing_image_is_an_error_even_if_it_is_the_first(tmp_path):
    write_images(PLAIN, tmp_path / "images")
    (tmp_path / "images" / "a.jpg").unlink()
    with pytest.raises(ValueError, match=r"no image file a\.jpg"):
        open_data(write_csv(PLAIN, tmp_path))


def test_splits_under_two_names(tmp_path):
    folder = write_folder(PLAIN, tmp_path)
    (folder / "dev").mkdir()
    (folder / "dev" / "x.jpg").write_bytes(image_bytes())
    (folder / "dev" / "x.txt").write_text("a dog\n")
    with pytest.raises(ValueError, match="two folders for the split val"):
        open_data(folder)


def test_images_outside_the_splits_and_links_to_folders_are_reported(tmp_path):
    folder = write_folder(PLAIN, tmp_path)
    (folder / "extra").mkdir()
    (folder / "extra" / "x.jpg").write_bytes(image_bytes())
    with pytest.raises(ValueError, match=r"x\.jpg: outside the split folders test, train, val"):
        open_data(folder)
    (folder / "extra" / "x.jpg").unlink()
    (folder / "train" / "more").symlink_to(folder / "extra")
    with pytest.raises(ValueError, match="symbolic links to folders are not followed"):
        open_data(folder)


def test_an_image_with_a_suffix_in_mixed_case(tmp_path):
    (tmp_path / "a.JpG").write_bytes(image_bytes())
    (tmp_path / "a.txt").write_text("a dog\n")
    assert plain(open_data(tmp_path)) == {"all": [("a.JpG", ["a dog"])]}


def test_no_file_in_a_folder_of_tables_or_lists_is_ignored(tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "train.csv").write_text("image,caption\na.jpg,one\n")
    (tmp_path / "tables" / "test.CSV").write_text("image,caption\nb.jpg,two\n")
    assert list(open_data(tmp_path / "tables").splits) == ["train", "test"]
    (tmp_path / "tables" / "val.csv").write_text("img_file,caption\nb.jpg,two\n")
    with pytest.raises(ValueError, match=r"val\.csv, line 1: no image column: the columns are img_file, caption;"):
        open_data(tmp_path / "tables")
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "m_train.json").write_text('[{"image": "a", "caption": "x"}]')
    (tmp_path / "lists" / "m_val.json").write_text("")
    with pytest.raises(ValueError, match=r"m_val\.json, line 1: invalid JSON"):
        open_data(tmp_path / "lists")
    (tmp_path / "lists" / "m_val.json").write_text("{}")
    with pytest.raises(ValueError, match=r"m_val\.json: expected a JSON list"):
        open_data(tmp_path / "lists")


def test_features_or_ids_without_captions_are_an_error(tmp_path):
    write_precomp(DataSet(tmp_path, "made", {"train": featured(2)}), tmp_path / "set")
    np.save(tmp_path / "set" / "dev_ims.npy", np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"dev_ims\.npy: no caption file dev_caps\.txt"):
        open_data(tmp_path / "set")


@pytest.mark.parametrize("name", ["../../evil", "", "a/b", ".hidden"])
def test_a_split_name_that_could_be_a_path_is_rejected(tmp_path, name):
    (tmp_path / "p.csv").write_text(f"image,caption,split\na.jpg,one,{name}\n")
    with pytest.raises(ValueError, match="line 2: expected a split name"):
        open_data(tmp_path / "p.csv")


def test_a_header_with_a_quoted_comma_or_a_duplicate_column(tmp_path):
    (tmp_path / "p.csv").write_text('"id, old",image,caption,source\n7,a.jpg,a dog,web\n')
    assert plain(open_data(tmp_path / "p.csv")) == {"all": [("a.jpg", ["a dog"])]}
    (tmp_path / "q.csv").write_text("image,caption,caption\na.jpg,a dog,another\n")
    with pytest.raises(ValueError, match="duplicate column caption"):
        open_data(tmp_path / "q.csv")


def test_quotation_marks_in_a_tsv_may_be_literal(tmp_path):
    (tmp_path / "p.tsv").write_text('image\tcaption\na.jpg\t"Stop" says a sign\nb.jpg\tplain\n')
    assert plain(open_data(tmp_path / "p.tsv")) == {"all": [("a.jpg", ['"Stop" says a sign']), ("b.jpg", ["plain"])]}


def test_image_names_with_line_breaks_are_rejected_and_spaces_are_kept(tmp_path):
    (tmp_path / "train.json").write_text(json.dumps([{"image": name, "caption": "x"} for name in (" a.jpg", "a.jpg")]))
    data = open_data(tmp_path / "train.json")
    write_precomp(data, tmp_path / "out")
    assert plain(open_data(tmp_path / "out")) == plain(data)
    (tmp_path / "train.json").write_text(json.dumps([{"image": "a\nb.jpg", "caption": "x"}]))
    with pytest.raises(ValueError, match=r"cannot be written as one line of train_ids\.txt"):
        write_precomp(open_data(tmp_path / "train.json"), tmp_path / "other")


def test_lone_surrogates_and_huge_integers_are_errors(tmp_path):
    (tmp_path / "train.json").write_text('[{"image": "a.jpg", "caption": "x \\ud800"}]')
    with pytest.raises(ValueError, match=r"record 0, image a\.jpg: lone surrogate"):
        open_data(tmp_path / "train.json")
    (tmp_path / "train.json").write_text(f'[{{"image": "a.jpg", "caption": "x", "image_id": {"9" * 5000}}}]')
    with pytest.raises(ValueError, match=r"train\.json: invalid JSON"):
        open_data(tmp_path / "train.json")


def test_some_equal_neighbours_without_ids_are_ambiguous(tmp_path):
    rows = np.arange(4, dtype=np.float32).repeat([1, 3, 3, 3])[:, None].repeat(2, axis=1)
    np.save(tmp_path / "test_ims.npy", rows)
    (tmp_path / "test_caps.txt").write_text("a\n" * 10)
    with pytest.raises(ValueError, match="only some rows equal the next row"):
        open_data(tmp_path)
    (tmp_path / "test_ids.txt").write_text("".join(f"{n}\n" for n in range(10)))
    with pytest.raises(ValueError, match="each row has its own id"):
        open_data(tmp_path)
    (tmp_path / "test_ids.txt").write_text("")
    with pytest.raises(ValueError, match=r"test_ids\.txt: no ids: expected one per line"):
        open_data(tmp_path)


@pytest.mark.parametrize("field", ["features", "caption_features"])
def test_nan_is_an_error_or_skipped_and_listed(field):
    rows = np.zeros((3, 2), dtype=np.float32)
    rows[1, 1] = np.nan
    split = featured(3) if field == "caption_features" else Split(("a", "b", "c"), ("x", "y", "z"), np.arange(3))
    split = Split(split.image_names, split.texts, split.owners, **{field: FeatureArray((rows,), "file.npy")})
    data = DataSet(Path("made"), "made", {"train": split})
    with pytest.raises(ValueError, match=r"file\.npy, row 1: NaN or infinity"):
        without_bad_features(data, ErrorPolicy())
    valid = without_bad_features(data, ErrorPolicy(skip=True))
    assert valid.splits["train"].image_names == (split.image_names[0], split.image_names[2])
    assert len(valid.skipped) == 1


def test_a_split_without_any_image_is_skipped_and_listed(tmp_path):
    write_images(PLAIN, tmp_path / "images")
    (tmp_path / "images" / "d.jpg").unlink()
    data = open_data(write_csv(PLAIN, tmp_path), skip_bad=True)
    assert list(data.splits) == ["train", "test"]
    assert len(data.skipped) == 1


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    (tmp_path / ".out.unfinished").mkdir()
    (tmp_path / ".out.unfinished" / "old_caps.txt").write_text("x")
    write_precomp(DataSet(tmp_path, "made", {"train": featured(2)}), tmp_path / "out")
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "converted.json",
        "train_caps.txt",
        "train_ids.txt",
        "train_ims.npy",
    ]
    assert not (tmp_path / ".out.unfinished").exists()


def test_joining_a_split_with_features_and_one_without_is_an_error():
    bare = Split(("z.jpg",), ("x",), np.arange(1))
    data = DataSet(Path("made"), "made", {"train": featured(2), "restval": bare})
    with pytest.raises(ValueError, match="some of the joined splits have FeatureArray, others have none"):
        data.split("train+restval")


def test_a_folder_named_like_a_parquet_file_is_a_folder(tmp_path):
    """As Spark writes it."""
    (tmp_path / "set" / "train.parquet").mkdir(parents=True)
    table = pa.table({"image": ["a"], "caption": ["x"]})
    pq.write_table(table, tmp_path / "set" / "train.parquet" / "part-0.parquet")
    assert plain(open_data(tmp_path / "set")) == {"train": [("a", ["x"])]}


def test_no_valid_image_is_an_error_and_not_an_empty_folder():
    rows = FeatureArray((np.full((1, 2), np.nan, dtype=np.float32),), "file.npy")
    data = DataSet(Path("made"), "made", {"train": Split(("a",), ("x",), np.arange(1), features=rows)})
    with pytest.raises(ValueError, match=r"no image has valid features; first error: file\.npy, row 0"):
        without_bad_features(data, ErrorPolicy(skip=True))
