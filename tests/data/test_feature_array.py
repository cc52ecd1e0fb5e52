"""Memory-mapped features: opening reads nothing, and a batch reads only its rows."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

from tercet.data.feature_array import FeatureArray, map_array


@pytest.fixture
def sparse_file(tmp_path):
    """A sparse file: 8 GB by its header, no blocks on disk."""
    file = tmp_path / "train_ims.npy"
    rows = 8_000_000_000 // (36 * 2048 * 4)
    header = {"descr": "<f4", "fortran_order": False, "shape": (rows, 36, 2048)}
    with file.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        stream.truncate(stream.tell() + rows * 36 * 2048 * 4)
    (tmp_path / "train_caps.txt").write_text("a dog\n" * rows * 5)
    (tmp_path / "train_ids.txt").write_text("".join(f"{row}\n" for row in range(rows)))
    return file


@pytest.mark.slow
def test_eight_gigabytes_open_in_little_memory_and_a_batch_reads_only_its_rows(sparse_file):
    """In a separate process, so that the memory of other tests does not count."""
    assert sparse_file.stat().st_size > 7.9e9
    program = """
        import sys, torch
        from tercet.data.formats import open_data

        def resident():
            pages = int(open("/proc/self/statm").read().split()[1])
            return pages * 4096 / 1e6

        open_data("scenes:3")  # imports everything
        torch.zeros(128, 36, 2048).index_select(0, torch.randint(128, (128,)))
        before = resident()
        split = open_data(sys.argv[1]).splits["train"]
        opened = resident() - before
        items = torch.randint(len(split.features), (128,), generator=torch.Generator().manual_seed(0))
        batch, _ = split.features.take(items)
        print(opened, resident() - before, batch.numel() * 4 / 1e6)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(sparse_file.parent)],
        capture_output=True,
        text=True,
        check=True,
    )
    opened, with_batch, batch = map(float, done.stdout.split())
    assert opened < 50
    # The batch itself and the file pages it was read from.
    assert with_batch < 50 + 3 * batch


def test_items_are_rows_by_index_and_come_as_float32(tmp_path):
    array = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float16)
    rows = FeatureArray((array,), "here", index=np.array([4, 0, 4]))
    taken, lengths = rows.take(torch.tensor([2, 1]))
    assert taken.dtype == torch.float32
    assert lengths is None
    assert np.array_equal(taken.numpy(), array[[4, 0]].astype(np.float32))
    assert len(rows) == 3


def test_several_arrays_are_concatenated(tmp_path):
    random = np.random.default_rng(0)
    arrays = [random.standard_normal((n, 2, 3)).astype(np.float32) for n in (3, 1, 4)]
    rows = FeatureArray(tuple(arrays), "here")
    items = torch.randint(8, (20,))
    assert np.array_equal(rows.take(items)[0].numpy(), np.concatenate(arrays)[items.numpy()])


def test_a_read_only_file_is_mapped_without_a_warning(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((3, 2), dtype=np.float32))
    (tmp_path / "x.npy").chmod(0o400)
    array = map_array(tmp_path / "x.npy", ["row dim"])
    assert not array.flags.writeable
    assert FeatureArray((array,), "x").take(torch.tensor([1]))[0].tolist() == [[1.0, 1.0]]


def test_nan_is_reported_with_its_row():
    array = np.zeros((5, 4, 3), dtype=np.float32)
    array[3, 1, 2] = np.nan
    rows = FeatureArray((array,), "train_ims.npy", index=np.array([0, 3]))
    rows.take(torch.tensor([0]))
    with pytest.raises(ValueError, match=r"train_ims\.npy, row 3 \(item 1\): NaN or infinity"):
        rows.take(torch.tensor([0, 1]))


def test_large_finite_values_are_valid():
    rows = FeatureArray((np.full((2, 3), 3e38, dtype=np.float32),), "here")
    assert rows.take(torch.tensor([0, 1]))[0].isfinite().all()


def test_a_checksum_sees_every_change():
    array = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
    first = FeatureArray((array,), "here").checksum()
    assert first == FeatureArray((array.copy(),), "there").checksum()
    changed = array.copy()
    changed[4, 1] += 1
    assert first != FeatureArray((changed,), "here").checksum()
    assert first != FeatureArray((array,), "here", index=np.array([1, 0, 2, 3, 4, 5])).checksum()


BAD = {
    "cut off": (lambda file: file.write_bytes(file.read_bytes()[:-40]), "not a readable .npy array"),
    "empty": (lambda file: file.write_bytes(b""), "not a readable .npy array"),
    "no array": (lambda file: file.write_bytes(b"hello, this is not an array"), "not a readable .npy array"),
    "integers": (
        lambda file: np.save(file, np.zeros((4, 3), dtype=np.int64)),
        "expected float16 or float32 or float64 of shape",
    ),
    "objects": (lambda file: np.save(file, np.array([{}, []], dtype=object)), "not a readable .npy array"),
    "four axes": (
        lambda file: np.save(file, np.zeros((4, 3, 2, 1))),
        r"of shape \(row dim\) or \(row region dim\), got float64 of shape \(4, 3, 2, 1\)",
    ),
    "missing": (lambda file: file.unlink(), "no such file"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_feature_files_are_rejected(name, tmp_path):
    corrupt, message = BAD[name]
    file = tmp_path / "test_ims.npy"
    np.save(file, np.zeros((4, 3), dtype=np.float32))
    corrupt(file)
    with pytest.raises(ValueError, match=message) as error:
        map_array(file, ["row dim", "row region dim"])
    assert str(file) in str(error.value)
