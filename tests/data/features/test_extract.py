"""Features are made once, resumed after a kill, and never taken for others."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from tercet.data.faults import Faults
from tercet.data.features import extract as extraction
from tercet.data.features.encoders import BagOfWords
from tercet.data.features.extract import extract
from tercet.data.formats import open_data
from tests.data.sets import PLAIN, write_folder, write_karpathy, write_pictures


class Means:
    """An image encoder that is quick: the mean colour of the four quarters."""

    def __init__(self, name="means"):
        self.about = {"encoder": name}

    def prepare(self, picture):
        return torch.from_numpy(np.asarray(picture.resize((8, 8)), dtype=np.float32)).permute(2, 0, 1)

    def encode(self, pixels):
        return torch.nn.functional.adaptive_avg_pool2d(pixels, 2).flatten(2).mT.contiguous()


@pytest.fixture
def data(tmp_path):
    write_pictures(PLAIN, tmp_path / "images")
    return open_data(write_karpathy(PLAIN, tmp_path))


def test_the_folder_is_a_data_set_with_both_features(data, tmp_path):
    assert extract(data, tmp_path / "out", Means(), BagOfWords())
    made = open_data(tmp_path / "out")
    assert list(made.splits) == ["train", "val", "test"]
    for name, split in made.splits.items():
        assert split.texts == data.splits[name].texts
        assert split.image_names == data.splits[name].image_names
        encoder = Means()
        for item in range(len(split.image_names)):
            wanted = encoder.encode(encoder.prepare(data.splits[name].pictures.open(item))[None])
            assert np.array_equal(split.features.raw(np.array([item])), wanted.numpy())
        wanted = BagOfWords().encode(split.texts).numpy()
        assert np.array_equal(split.caption_features.raw(np.arange(len(split.texts))), wanted)
    assert not list((tmp_path / "out").glob("progress.json"))


def test_what_is_there_is_kept_and_what_was_made_otherwise_is_refused(data, tmp_path):
    extract(data, tmp_path / "out", Means(), BagOfWords())
    before = (tmp_path / "out" / "train_ims.npy").stat().st_mtime_ns
    assert not extract(data, tmp_path / "out", Means(), BagOfWords())
    assert (tmp_path / "out" / "train_ims.npy").stat().st_mtime_ns == before
    with pytest.raises(ValueError, match=r"made otherwise: its image_encoder is .*means.*, asked for is .*other"):
        extract(data, tmp_path / "out", Means("other"), BagOfWords())
    with pytest.raises(ValueError, match="its dtype is"):
        extract(data, tmp_path / "out", Means(), BagOfWords(), dtype="float16")


@pytest.mark.parametrize("name", ["train_ims.npy", "dev_txt.npy", "test_caps.txt"])
def test_a_lost_or_altered_file_is_seen(data, tmp_path, name):
    extract(data, tmp_path / "out", Means(), BagOfWords())
    content = bytearray((tmp_path / "out" / name).read_bytes())
    content[-2] ^= 1
    (tmp_path / "out" / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name} is missing or was changed since it was made"):
        extract(data, tmp_path / "out", Means(), BagOfWords())
    (tmp_path / "out" / name).unlink()
    with pytest.raises(ValueError, match=f"{name} is missing or was changed"):
        extract(data, tmp_path / "out", Means(), BagOfWords())


def test_numbers_too_large_for_their_type_are_told(data, tmp_path):
    class Large(Means):
        def encode(self, pixels):
            return super().encode(pixels) * 1e6

    with pytest.raises(ValueError, match="too large for float16"):
        extract(data, tmp_path / "out", Large(), None, dtype="float16")


def test_a_damaged_manifest_is_named(data, tmp_path):
    extract(data, tmp_path / "out", Means(), None)
    for content in ("[1]", "{"):
        (tmp_path / "out" / "features.json").write_text(content)
        with pytest.raises(ValueError, match=r"features\.json"):
            extract(data, tmp_path / "out", Means(), None)


def test_a_changed_picture_is_seen(data, tmp_path):
    extract(data, tmp_path / "out", Means(), None)
    (tmp_path / "images" / "a.jpg").write_bytes((tmp_path / "images" / "b.jpg").read_bytes())
    with pytest.raises(ValueError, match="made otherwise: its splits"):
        extract(data, tmp_path / "out", Means(), None)


def test_a_folder_of_something_else_is_left_alone(data, tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(ValueError, match="holds no features of Tercet; nothing is overwritten"):
        extract(data, tmp_path / "out", Means(), None)


def test_without_an_image_encoder_features_are_taken_over(data, tmp_path):
    extract(data, tmp_path / "one", Means(), None, dtype="float16")
    extract(open_data(tmp_path / "one"), tmp_path / "two", None, BagOfWords())
    for split in ("train", "dev", "test"):
        assert (tmp_path / "one" / f"{split}_ims.npy").read_bytes() == (
            tmp_path / "two" / f"{split}_ims.npy"
        ).read_bytes()
    assert open_data(tmp_path / "two").splits["train"].caption_features is not None


def test_a_bad_picture_is_told_before_anything_is_encoded(tmp_path):
    folder = write_folder(PLAIN, tmp_path)
    (folder / "test" / "e.jpg").write_bytes(b"")

    class Never(Means):
        def encode(self, pixels):
            raise AssertionError("nothing may be encoded before all pictures are checked")

    with pytest.raises(ValueError, match=r"test, image e\.jpg: .*the file is empty"):
        extract(open_data(folder), tmp_path / "out", Never(), None)
    faults = Faults(skip=True)
    extract(open_data(folder), tmp_path / "out", Means(), None, faults=faults)
    assert len(faults.listed) == 1
    assert open_data(tmp_path / "out").splits["test"].image_names == ("f.jpg",)


def test_an_encoder_that_gives_nan_is_told(data, tmp_path):
    class Broken(Means):
        def encode(self, pixels):
            return super().encode(pixels) * torch.nan

    with pytest.raises(ValueError, match="train_ims: NaN, or too large for float32, for the items"):
        extract(data, tmp_path / "out", Broken(), None)


def test_two_at_once_are_refused(data, tmp_path):
    class Nested(Means):
        def encode(self, pixels):
            with pytest.raises(ValueError, match="another process is writing to"):
                extract(data, tmp_path / "out", Means(), None)
            return super().encode(pixels)

    extract(data, tmp_path / "out", Nested(), None)


def test_stopped_anywhere_it_ends_as_if_never_stopped(tmp_path, monkeypatch):
    """Interrupted again and again, after so many batches."""
    monkeypatch.setattr(extraction, "FLUSHED_EVERY", 2)
    monkeypatch.setattr(extraction, "PICTURES_AT_ONCE", 3)
    data = open_data("scenes:21")
    extract(data, tmp_path / "whole", Means(), BagOfWords())

    class Stops(Means):
        left = 0

        def encode(self, pixels):
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            return super().encode(pixels)

    for batches in (2, 5, 13):
        stops = Stops()
        for _ in range(20):
            stops.left = batches
            try:
                extract(data, tmp_path / "parts", stops, BagOfWords())
                break
            except KeyboardInterrupt:
                assert not (tmp_path / "parts").exists()
        for file in (tmp_path / "whole").iterdir():
            assert file.read_bytes() == (tmp_path / "parts" / file.name).read_bytes()
        (tmp_path / "parts").rename(tmp_path / f"done{batches}")


@pytest.mark.slow
def test_killed_and_resumed_with_the_real_encoders(tmp_path):
    """SIGKILL in the middle of a real run of the command, then again to the end: equal to a run never stopped."""
    command = [sys.executable, "-m", "tercet.cli", "features", "scenes:160", "--splits", "train"]
    killed = subprocess.Popen([*command, str(tmp_path / "out")], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    progress = tmp_path / "out.unfinished" / "progress.json"
    while not progress.exists() and killed.poll() is None:
        time.sleep(0.05)
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    for target in ("out", "whole"):
        subprocess.run([*command, str(tmp_path / target)], check=True, capture_output=True)
    for file in (tmp_path / "whole").iterdir():
        assert file.read_bytes() == (tmp_path / "out" / file.name).read_bytes()
