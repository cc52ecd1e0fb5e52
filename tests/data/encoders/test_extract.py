"""Feature extraction: written once, resumed after a kill, and rejected if the manifest differs."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from tercet.data.dataset import select_splits
from tercet.data.encoders import extract as extraction
from tercet.data.encoders.extract import extract
from tercet.data.encoders.registry import BagOfWords
from tercet.data.formats import open_data
from tercet.data.textio import ErrorPolicy
from tests.checksums import flip_bit
from tests.data.small_datasets import PLAIN, write_folder, write_images, write_karpathy
from tests.examples import others_slow


class Means:
    """A fast image encoder: the mean colour of the four quarters."""

    def __init__(self, name="means"):
        self.about = {"encoder": name}

    def prepare(self, image):
        return torch.from_numpy(np.asarray(image.resize((8, 8)), dtype=np.float32)).permute(2, 0, 1)

    def encode(self, pixels):
        return torch.nn.functional.adaptive_avg_pool2d(pixels, 2).flatten(2).mT.contiguous()


@pytest.fixture
def data(tmp_path):
    write_images(PLAIN, tmp_path / "images")
    return open_data(write_karpathy(PLAIN, tmp_path))


def test_the_folder_is_a_dataset_with_both_features(data, tmp_path):
    assert extract(data, tmp_path / "out", Means(), BagOfWords())
    extracted = open_data(tmp_path / "out")
    assert list(extracted.splits) == ["train", "val", "test"]
    for name, split in extracted.splits.items():
        assert split.texts == data.splits[name].texts
        assert split.image_names == data.splits[name].image_names
        encoder = Means()
        for item in range(len(split.image_names)):
            expected = encoder.encode(encoder.prepare(data.splits[name].image_files.open(item))[None])
            assert np.array_equal(split.features.raw(np.array([item])), expected.numpy())
        expected = BagOfWords().encode(split.texts).numpy()
        assert np.array_equal(split.caption_features.raw(np.arange(len(split.texts))), expected)
    assert not list((tmp_path / "out").glob("progress.json"))


def test_the_same_features_are_not_written_again_and_other_ones_are_rejected(data, tmp_path):
    extract(data, tmp_path / "out", Means(), BagOfWords())
    before = (tmp_path / "out" / "train_ims.npy").stat().st_mtime_ns
    assert not extract(data, tmp_path / "out", Means(), BagOfWords())
    assert (tmp_path / "out" / "train_ims.npy").stat().st_mtime_ns == before
    with pytest.raises(ValueError, match=r"holds other features: its image_encoder is .*means.*, requested is .*other"):
        extract(data, tmp_path / "out", Means("other"), BagOfWords())
    with pytest.raises(ValueError, match="its dtype is"):
        extract(data, tmp_path / "out", Means(), BagOfWords(), dtype="float16")


@pytest.mark.parametrize("name", ["train_ims.npy", "dev_txt.npy", "test_caps.txt"])
def test_a_missing_or_changed_file_is_detected(data, tmp_path, name):
    extract(data, tmp_path / "out", Means(), BagOfWords())
    content = bytearray((tmp_path / "out" / name).read_bytes())
    content[-2] ^= 1
    (tmp_path / "out" / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name} is missing or was changed: remove"):
        extract(data, tmp_path / "out", Means(), BagOfWords())
    (tmp_path / "out" / name).unlink()
    with pytest.raises(ValueError, match=f"{name} is missing or was changed"):
        extract(data, tmp_path / "out", Means(), BagOfWords())


def test_values_too_large_for_the_dtype_are_an_error(data, tmp_path):
    class Large(Means):
        def encode(self, pixels):
            return super().encode(pixels) * 1e6

    with pytest.raises(ValueError, match="values too large for float16"):
        extract(data, tmp_path / "out", Large(), None, dtype="float16")


def test_a_damaged_manifest_is_named(data, tmp_path):
    extract(data, tmp_path / "out", Means(), None)
    for content in ("[1]", "{"):
        (tmp_path / "out" / "features.json").write_text(content)
        with pytest.raises(ValueError, match=r"features\.json"):
            extract(data, tmp_path / "out", Means(), None)


def test_a_changed_image_is_detected(data, tmp_path):
    extract(data, tmp_path / "out", Means(), None)
    (tmp_path / "images" / "a.jpg").write_bytes((tmp_path / "images" / "b.jpg").read_bytes())
    with pytest.raises(ValueError, match="holds other features: its splits"):
        extract(data, tmp_path / "out", Means(), None)


def test_another_existing_folder_is_not_overwritten(data, tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(ValueError, match="already exists and is not a feature folder of Tercet"):
        extract(data, tmp_path / "out", Means(), None)


def test_without_an_image_encoder_features_are_copied(data, tmp_path):
    extract(data, tmp_path / "one", Means(), None, dtype="float16")
    extract(open_data(tmp_path / "one"), tmp_path / "two", None, BagOfWords())
    for split in ("train", "dev", "test"):
        assert (tmp_path / "one" / f"{split}_ims.npy").read_bytes() == (
            tmp_path / "two" / f"{split}_ims.npy"
        ).read_bytes()
    assert open_data(tmp_path / "two").splits["train"].caption_features is not None


def test_a_bad_image_is_reported_before_anything_is_encoded(tmp_path):
    folder = write_folder(PLAIN, tmp_path)
    (folder / "test" / "e.jpg").write_bytes(b"")

    class Never(Means):
        def encode(self, pixels):
            raise AssertionError("nothing may be encoded before all images are checked")

    with pytest.raises(ValueError, match=r"test, image e\.jpg: .*empty file"):
        extract(open_data(folder), tmp_path / "out", Never(), None)
    errors = ErrorPolicy(skip=True)
    extract(open_data(folder), tmp_path / "out", Means(), None, errors=errors)
    assert len(errors.messages) == 1
    assert open_data(tmp_path / "out").splits["test"].image_names == ("f.jpg",)


def test_an_encoder_that_returns_nan_is_an_error(data, tmp_path):
    class Broken(Means):
        def encode(self, pixels):
            return super().encode(pixels) * torch.nan

    with pytest.raises(ValueError, match="train_ims: NaN or values too large for float32 in the items"):
        extract(data, tmp_path / "out", Broken(), None)


def test_two_processes_at_the_same_time_are_rejected(data, tmp_path):
    class Nested(Means):
        def encode(self, pixels):
            with pytest.raises(ValueError, match="another process is writing to"):
                extract(data, tmp_path / "out", Means(), None)
            return super().encode(pixels)

    extract(data, tmp_path / "out", Nested(), None)


@pytest.mark.slow
def test_an_interrupted_extraction_resumes_to_the_same_files(tmp_path, monkeypatch):
    """Interrupted repeatedly, after a fixed number of batches."""
    monkeypatch.setattr(extraction, "FLUSH_INTERVAL", 2)
    monkeypatch.setattr(extraction, "IMAGE_BATCH_SIZE", 3)
    data = open_data("scenes:21")
    extract(data, tmp_path / "uninterrupted", Means(), BagOfWords())

    class Interrupted(Means):
        remaining = 0

        def encode(self, pixels):
            if self.remaining == 0:
                raise KeyboardInterrupt
            self.remaining -= 1
            return super().encode(pixels)

    for batches in (2, 5, 13):
        encoder = Interrupted()
        for _ in range(20):
            encoder.remaining = batches
            try:
                extract(data, tmp_path / "resumed", encoder, BagOfWords())
                break
            except KeyboardInterrupt:
                assert not (tmp_path / "resumed").exists()
        for file in (tmp_path / "uninterrupted").iterdir():
            assert file.read_bytes() == (tmp_path / "resumed" / file.name).read_bytes()
        (tmp_path / "resumed").rename(tmp_path / f"done{batches}")


@pytest.mark.slow
def test_killed_and_resumed_with_the_real_encoders(tmp_path):
    """SIGKILL during the command, then run it again: the same files as without interruption."""
    command = [sys.executable, "-m", "tercet", "features", "scenes:160", "--splits", "train"]
    killed = subprocess.Popen([*command, str(tmp_path / "out")], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    progress = tmp_path / "out.unfinished" / "progress.json"
    while not progress.exists() and killed.poll() is None:
        time.sleep(0.05)
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    for target in ("out", "uninterrupted"):
        subprocess.run([*command, str(tmp_path / target)], check=True, capture_output=True)
    for file in (tmp_path / "uninterrupted").iterdir():
        assert file.read_bytes() == (tmp_path / "out" / file.name).read_bytes()


@pytest.mark.parametrize("name", ["train_ims.npy", "progress.json"])
@pytest.mark.parametrize("place", others_slow([0.3, 0.01, 0.1, 0.99], 1))
def test_one_bit_of_an_unfinished_extraction_does_not_change_the_finished_one(tmp_path, monkeypatch, name, place):
    monkeypatch.setattr(extraction, "FLUSH_INTERVAL", 2)
    monkeypatch.setattr(extraction, "IMAGE_BATCH_SIZE", 3)
    data = select_splits(open_data("scenes:21"), ["train"])
    extract(data, tmp_path / "uninterrupted", Means(), None)

    class Interrupted(Means):
        remaining = 6

        def encode(self, pixels):
            if self.remaining == 0:
                raise KeyboardInterrupt
            self.remaining -= 1
            return super().encode(pixels)

    with pytest.raises(KeyboardInterrupt):
        extract(data, tmp_path / "resumed", Interrupted(), None)
    file = tmp_path / "resumed.unfinished" / name
    flip_bit(file, int(place * file.stat().st_size), bit=3)
    extract(data, tmp_path / "resumed", Means(), None)
    for file in (tmp_path / "uninterrupted").iterdir():
        assert file.read_bytes() == (tmp_path / "resumed" / file.name).read_bytes()
