"""Write in one format, read in another: the same dataset."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tercet.data.dataset import DataSet, Split
from tercet.data.feature_array import FeatureArray
from tercet.data.formats import FORMATS, open_data
from tercet.data.formats.parquet import write_parquet
from tercet.data.formats.precomp import write_precomp
from tests.data.small_datasets import PLAIN, WRITERS, plain, plain_sets, write_images, write_tsv
from tests.examples import examples

relaxed = examples(25, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_is_recognised_and_read(name, tmp_path):
    path = WRITERS[name](PLAIN, tmp_path)
    data = open_data(path)
    assert data.format == name
    assert plain(data) == PLAIN
    assert not data.skipped


def test_tab_separated_values_are_a_table_too(tmp_path):
    assert plain(open_data(write_tsv(PLAIN, tmp_path))) == PLAIN


@pytest.mark.parametrize("name", WRITERS)
@relaxed
@given(content=plain_sets())
def test_any_captions_round_trip(name, content):
    with tempfile.TemporaryDirectory() as folder:
        data = open_data(WRITERS[name](content, Path(folder)), format=name)
        assert plain(data) == content


@pytest.mark.parametrize("name", WRITERS)
@relaxed
@given(content=plain_sets())
def test_through_parquet_and_precomp_and_back(name, content):
    with tempfile.TemporaryDirectory() as folder:
        first = open_data(WRITERS[name](content, Path(folder)), format=name)
        write_parquet(first, Path(folder) / "as_parquet")
        second = open_data(Path(folder) / "as_parquet", images=None)
        write_precomp(second, Path(folder) / "as_precomp")
        assert plain(open_data(Path(folder) / "as_precomp")) == plain(first) == content


def test_a_caption_that_looks_like_a_byte_order_mark_stays(tmp_path):
    content = {"train": [("0.jpg", ["\ufeff"])]}
    first = open_data(WRITERS["table"](content, tmp_path), format="table")
    write_precomp(first, tmp_path / "as_precomp")
    assert plain(open_data(tmp_path / "as_precomp")) == plain(first) == content


def features_of(content, shape, dtype, seed=0):
    random = np.random.default_rng(seed)
    return {split: random.standard_normal((len(images), *shape)).astype(dtype) for split, images in content.items()}


@relaxed
@given(
    content=plain_sets(),
    shape=st.sampled_from([(3,), (4, 3)]),
    dtype=st.sampled_from([np.float16, np.float32]),
    to_parquet=st.booleans(),
)
def test_features_boxes_lengths_and_caption_features_survive(content, shape, dtype, to_parquet):
    splits = {}
    for split, array in features_of(content, shape, dtype).items():
        captions = [text for _, texts in content[split] for text in texts]
        regions = len(shape) == 2
        lengths = np.random.default_rng(1).integers(1, shape[0] + 1, len(array)) if regions else None
        boxes = np.random.default_rng(2).random((len(array), shape[0], 4)).astype(np.float32)
        splits[split] = Split(
            image_names=tuple(name for name, _ in content[split]),
            texts=tuple(captions),
            owners=np.repeat(np.arange(len(array)), [len(texts) for _, texts in content[split]]),
            features=FeatureArray((array,), "here", lengths=lengths),
            boxes=FeatureArray((boxes,), "here") if regions else None,
            caption_features=FeatureArray((np.random.default_rng(3).random((len(captions), 2)).astype(dtype),), "here"),
        )
    data = DataSet(Path("made"), "made", splits)
    with tempfile.TemporaryDirectory() as folder:
        write = write_parquet if to_parquet else write_precomp
        write(data, Path(folder) / "target")
        again = open_data(Path(folder) / "target")
        assert plain(again) == content
        for name, split in splits.items():
            for field in ("features", "boxes", "caption_features"):
                expected, actual = getattr(split, field), getattr(again.splits[name], field)
                assert (expected is None) == (actual is None)
                if expected is not None:
                    items = np.arange(len(expected))
                    assert np.array_equal(expected.raw(items), actual.raw(items))
                    assert expected.dtype == actual.dtype
            if split.features.lengths is not None:
                assert np.array_equal(split.features.lengths, again.splits[name].features.lengths)


def test_uniform_precomp_folders_round_trip_byte_for_byte(tmp_path):
    content = {s: [(n, [f"{n} {k}" for k in range(5)]) for n, _ in images] for s, images in PLAIN.items()}
    first = open_data(WRITERS["karpathy"](content, tmp_path))
    write_precomp(first, tmp_path / "one")
    write_parquet(open_data(tmp_path / "one"), tmp_path / "two")
    write_precomp(open_data(tmp_path / "two"), tmp_path / "three")
    files = {f"{split}_{suffix}.txt" for split in ("train", "dev", "test") for suffix in ("caps", "ids")}
    assert {file.name for file in (tmp_path / "one").iterdir()} == files | {"converted.json"}
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "three" / file.name).read_bytes()


def test_images_are_found_beside_the_data_or_in_the_given_folder(tmp_path):
    file = WRITERS["karpathy"](PLAIN, tmp_path)
    assert open_data(file).splits["train"].image_files is None
    write_images(PLAIN, tmp_path / "images")
    assert open_data(file).splits["train"].image_files.open(0).size == (10, 12)
    (tmp_path / "images").rename(tmp_path / "elsewhere")
    assert len(open_data(file, images=tmp_path / "elsewhere").splits["test"].image_files) == 2


def test_images_embedded_in_parquet_are_read_on_access(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tests.data.small_datasets import image_bytes

    (tmp_path / "hub").mkdir()
    for split, rows in {"train": 3, "validation": 2}.items():
        table = {
            "image": [{"bytes": image_bytes(n), "path": f"{split}{n}.jpg"} for n in range(rows)],
            "caption": [[f"caption {n} a", f"caption {n} b"] for n in range(rows)],
        }
        pq.write_table(pa.table(table), tmp_path / "hub" / f"{split}-00000-of-00001.parquet", row_group_size=2)
    data = open_data(tmp_path / "hub")
    assert list(data.splits) == ["train", "val"]
    train = data.splits["train"]
    assert train.image_names == ("train0.jpg", "train1.jpg", "train2.jpg")
    assert train.image_files.sources[2].content() == image_bytes(2)
    write_parquet(data, tmp_path / "again")
    assert open_data(tmp_path / "again").splits["train"].image_files.sources[2].content() == image_bytes(2)


def test_a_dataset_saved_by_hugging_face_is_read(tmp_path):
    """`save_to_disk` writes Arrow streams, one folder per split."""
    import pyarrow as pa

    from tests.data.small_datasets import image_bytes

    table = pa.table(
        {"image": [{"bytes": image_bytes(n), "path": None} for n in range(2)], "text": ["one dog", "two dogs"]}
    )
    (tmp_path / "saved" / "train").mkdir(parents=True)
    file = str(tmp_path / "saved" / "train" / "data-00000-of-00001.arrow")
    with pa.OSFile(file, "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    split = open_data(tmp_path / "saved").splits["train"]
    assert split.texts == ("one dog", "two dogs")
    assert split.image_files.open(1).size == (10, 12)


def test_a_split_column_takes_precedence_over_the_file_name(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = {
        "filename": ["a.jpg", "b.jpg"],
        "sentences": [[{"raw": "one"}], [{"raw": "two"}]],
        "split": ["train", "test"],
    }
    pq.write_table(pa.table(table), tmp_path / "test.parquet")
    assert plain(open_data(tmp_path / "test.parquet")) == {"train": [("a.jpg", ["one"])], "test": [("b.jpg", ["two"])]}


def test_every_format_has_a_writer_in_these_tests():
    elsewhere = {"beir", "query-table", "split"}  # test_beir.py and tests/data/test_splitting.py
    assert set(WRITERS) | {"parquet"} | elsewhere == set(FORMATS)
