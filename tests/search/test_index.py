"""Index updates: only new images are embedded, a kill loses at most one batch, and updates are atomic."""

import json
import multiprocessing
import os
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tercet.data.encoders.registry import EfficientNetLite2
from tercet.inference import load
from tercet.search.index import EMBED_BATCH_SIZE, open_index, update_index
from tercet.search.metadata import images_in_folder
from tercet.search.two_stage import IndexedVectors
from tercet.search.vector_store import FaissStore, measure_recall
from tests.checksums import record_again
from tests.search.small_indexes import call

MODEL = {"path": "a/model", "system": "vsepp", "weights": "abc"}


def draw(folder, names, seed=0):
    folder.mkdir(exist_ok=True)
    generator = np.random.default_rng(seed)
    for name in names:
        Image.fromarray(generator.integers(256, size=(8, 8, 3), dtype=np.uint8)).save(folder / f"{name}.png")


@dataclass
class Embedder:
    """Uses pixels as vectors; counts the embedded images."""

    count: int = 0
    pause: float = 0.0

    def __call__(self, images):
        self.count += len(images)
        time.sleep(self.pause)
        vectors = np.stack([np.asarray(image, dtype=np.float32).ravel() - 127 for image in images])
        return IndexedVectors(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def test_only_what_is_new_or_changed_is_embedded(tmp_path):
    photos, embed = tmp_path / "photos", Embedder()
    draw(photos, [f"p{n:03d}" for n in range(70)])
    first = update_index(tmp_path / "index", images_in_folder(photos), embed, MODEL)
    assert (first.added, first.changed, first.unchanged, first.removed, embed.count) == (70, 0, 0, 0, 70)
    index = open_index(tmp_path / "index")
    assert [item.path for item in index.items] == sorted(str(path.resolve()) for path in photos.iterdir())
    assert np.array_equal(index.vectors[3], embed([Image.open(index.items[3].path)]).vectors[0])
    embed.count = 0
    assert update_index(tmp_path / "index", images_in_folder(photos), embed, MODEL).unchanged == 70
    assert embed.count == 0
    draw(photos, ["new_a", "new_b", "p005"], seed=1)
    (photos / "p006.png").unlink()
    shutil.copy(photos / "p007.png", photos / "copy.png")
    os.utime(photos / "p008.png", (1, 1))  # touched, not changed
    second = update_index(tmp_path / "index", images_in_folder(photos), embed, MODEL)
    assert (second.added, second.changed, second.unchanged, second.removed) == (3, 1, 68, 1)
    assert embed.count == 3  # a copy is in the cache
    assert sorted(path.name for path in (tmp_path / "index").iterdir()) == [".lock", "generation_000003", "index.json"]


def test_features_on_disk_are_not_computed_again(tmp_path, monkeypatch):
    """A run on features of photos indexes these photos, and the feature folder itself, without encoding them."""
    photos, features, runs = tmp_path / "photos", tmp_path / "features", tmp_path / "runs"
    draw(photos, "abcd")
    rows = "".join(
        f"{name}.png,caption of {name},{split}\n" for name, split in zip("abcd", 2 * ["train", "val"], strict=True)
    )
    (photos / "pairs.csv").write_text("image,caption,split\n" + rows)
    call(["features", str(photos / "pairs.csv"), str(features), "--text-encoder", "bag-of-words"])
    call(["train", str(features), "--runs", str(runs), "--batch-size", "2", "--epochs", "1", "--cocos-every", "0"])
    (run,) = (folder for folder in runs.iterdir() if (folder / "weights.safetensors").exists())
    files = sorted(photos.glob("*.png"))
    expected = load(run).embed_images(files).numpy()

    def fail(*_):
        raise AssertionError("encoded again")

    monkeypatch.setattr(EfficientNetLite2, "encode", fail)
    for images in (photos, features):
        call(["index", str(run), "--images", str(images), "--out", str(tmp_path / f"index_of_{images.name}")])
        found = open_index(tmp_path / f"index_of_{images.name}")
        assert sorted(item.path for item in found.items) == [str(file) for file in files]
        for item, vector in zip(found.items, found.vectors, strict=True):
            np.testing.assert_allclose(vector, expected[files.index(Path(item.path))], atol=1e-5)
    draw(photos, "b", seed=9)  # its features are those of another image now
    with pytest.raises(AssertionError, match="encoded again"):
        call(["index", str(run), "--images", str(photos), "--out", str(tmp_path / "index_of_photos")])


def test_unreadable_images_are_skipped_and_listed(tmp_path):
    photos = tmp_path / "photos"
    draw(photos, ["a", "b"])
    (photos / "empty.jpg").touch()
    (photos / "text.png").write_text("no image")
    shutil.copy(photos / "text.png", photos / "text_again.png")
    updated = update_index(tmp_path / "index", images_in_folder(photos), Embedder(), MODEL)
    assert updated.added == 2
    assert len(updated.unreadable) == 3
    listed = (tmp_path / "index" / "generation_000001" / "unreadable.txt").read_text()
    assert "empty.jpg: empty file" in listed
    assert "text.png" in listed
    shutil.rmtree(photos)
    draw(photos, [])
    (photos / "text.png").write_text("no image")
    with pytest.raises(ValueError, match="none of 1 images could be read; first error"):
        update_index(tmp_path / "other", images_in_folder(photos), Embedder(), MODEL)


def _update_slowly(folder):
    update_index(folder / "index", images_in_folder(folder / "photos"), Embedder(pause=0.05), MODEL)


@pytest.mark.slow
def test_a_killed_update_resumes_and_embeds_nothing_twice(tmp_path):
    draw(tmp_path / "photos", [f"p{n:03d}" for n in range(10 * EMBED_BATCH_SIZE)])
    spawn, cache = multiprocessing.get_context("spawn"), tmp_path / "index" / "unfinished"
    for batches in (2, 4):
        process = spawn.Process(target=_update_slowly, args=(tmp_path,))
        process.start()
        while process.is_alive() and len(list(cache.glob("batch_*.npz"))) < batches:
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    cached = len(list(cache.glob("batch_*.npz")))
    assert cached >= 4
    with pytest.raises(ValueError, match=r"not an index \(no index.json\)"):
        open_index(tmp_path / "index")
    embed = Embedder()
    updated = update_index(tmp_path / "index", images_in_folder(tmp_path / "photos"), embed, MODEL)
    assert embed.count == (10 - cached) * EMBED_BATCH_SIZE
    assert updated.added == 10 * EMBED_BATCH_SIZE
    index = open_index(tmp_path / "index")
    uninterrupted = update_index(tmp_path / "other", images_in_folder(tmp_path / "photos"), Embedder(), MODEL)
    assert uninterrupted.added == updated.added
    assert np.array_equal(index.vectors, open_index(tmp_path / "other").vectors)
    assert not cache.exists()


def test_a_kill_between_two_generations_leaves_the_old_one(tmp_path, monkeypatch):
    photos = tmp_path / "photos"
    draw(photos, ["a", "b"])
    update_index(tmp_path / "index", images_in_folder(photos), Embedder(), MODEL)
    draw(photos, ["c"], seed=2)
    with monkeypatch.context() as patched:
        patched.setattr("tercet.search.index.write_items", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            update_index(tmp_path / "index", images_in_folder(photos), Embedder(), MODEL)
    assert len(open_index(tmp_path / "index").items) == 2
    embed = Embedder()
    update_index(tmp_path / "index", images_in_folder(photos), embed, MODEL)
    assert embed.count == 0  # it was cached before the generation was written
    assert len(open_index(tmp_path / "index").items) == 3


def test_another_model_is_refused(tmp_path):
    draw(tmp_path / "photos", ["a"])
    update_index(tmp_path / "index", images_in_folder(tmp_path / "photos"), Embedder(), MODEL)
    with pytest.raises(ValueError, match="another model, a/model: an index cannot mix"):
        update_index(tmp_path / "index", images_in_folder(tmp_path / "photos"), Embedder(), MODEL | {"weights": "xyz"})


def test_damaged_indexes_are_reported(tmp_path):
    draw(tmp_path / "photos", ["a", "b"])
    folder = tmp_path / "index"
    update_index(folder, images_in_folder(tmp_path / "photos"), Embedder(), MODEL)
    generation = folder / "generation_000001"
    items = (generation / "items.jsonl").read_text()
    (generation / "items.jsonl").write_text(items.splitlines()[0] + "\n")
    record_again(folder / "index.json", generation)  # what is checked besides the checksums
    with pytest.raises(ValueError, match="1 items, 2 vectors, 2 in the store"):
        open_index(folder)
    (generation / "items.jsonl").write_text("{}\n")
    record_again(folder / "index.json", generation)
    with pytest.raises(ValueError, match=r"items.jsonl, line 1: not an index item"):
        open_index(folder)
    (generation / "items.jsonl").write_text(items)
    (generation / "index.faiss").write_bytes(b"nothing")
    record_again(folder / "index.json", generation)
    with pytest.raises(ValueError, match="not a faiss index"):
        open_index(folder)
    (folder / "index.json").write_text(json.dumps({"what": "else"}))
    with pytest.raises(ValueError, match="not an index manifest"):
        open_index(folder)


def test_stores_find_the_nearest():
    vectors = np.random.default_rng(0).standard_normal((500, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    flat, hnsw = FaissStore.of(vectors), FaissStore.of(vectors, "hnsw")
    expected = np.argsort(-(vectors[:20] @ vectors.T), axis=1)[:, :7]
    similarity, found = flat.search(vectors[:20], 7)
    assert np.array_equal(found, expected)
    assert np.allclose(similarity, np.take_along_axis(vectors[:20] @ vectors.T, expected, axis=1), atol=1e-6)
    assert measure_recall(hnsw, vectors) > 0.9
    assert flat.search(vectors[:2], 1000)[1].shape == (2, 500)
    assert flat.search(vectors[:0], 3)[1].shape == (0, 0)


def test_foreign_folders_are_not_touched(tmp_path):
    draw(tmp_path / "photos", ["a"])
    for taken in ("generation_of_leaders", "unfinished"):
        (tmp_path / taken / taken).mkdir(parents=True)
        (tmp_path / taken / taken / "thesis.txt").write_text("years of work")
        with pytest.raises(ValueError, match="is not an index and is not empty"):
            update_index(tmp_path / taken, images_in_folder(tmp_path / "photos"), Embedder(), MODEL)
        assert (tmp_path / taken / taken / "thesis.txt").exists()
    update_index(tmp_path / "index", images_in_folder(tmp_path / "photos"), Embedder(), MODEL)
    (tmp_path / "index" / "generation_of_leaders").mkdir()
    (tmp_path / "index" / "unfinished").mkdir()
    (tmp_path / "index" / "unfinished" / "novel.txt").write_text("a chapter")
    update_index(tmp_path / "index", images_in_folder(tmp_path / "photos"), Embedder(), MODEL)
    assert (tmp_path / "index" / "generation_of_leaders").exists()
    assert (tmp_path / "index" / "unfinished" / "novel.txt").exists()


def test_a_file_that_changes_during_an_update_has_the_vector_of_the_embedded_content(tmp_path):
    photos = tmp_path / "photos"
    draw(photos, ["a", "b"])
    before = (photos / "b.png").read_bytes()

    image_files = images_in_folder(photos)

    class Changing:
        """Changes before it is read a second time."""

        reads = 0

        def content(self):
            self.reads += 1
            if self.reads == 2:
                draw(photos, ["b"], seed=5)
            return (photos / "b.png").read_bytes()

    image_files[str(photos / "b.png")] = (Changing(), ())
    update_index(tmp_path / "index", image_files, Embedder(), MODEL)
    index = open_index(tmp_path / "index")
    vector = Embedder()([Image.open(photos / "b.png")]).vectors[0]
    assert np.array_equal(index.vectors[1], vector)
    (photos / "old.png").write_bytes(before)
    embed = Embedder()
    update_index(tmp_path / "index", images_in_folder(photos), embed, MODEL)
    assert embed.count == 1  # the old content has no vector yet
    index = open_index(tmp_path / "index")
    old = [item.path for item in index.items].index(str(photos / "old.png"))
    assert np.array_equal(index.vectors[old], Embedder()([Image.open(photos / "old.png")]).vectors[0])


def test_odd_names_and_links(tmp_path):
    photos = tmp_path / "photos"
    draw(photos, ["plain", "two\nlines", "[bold]brackets[", "zeit"])
    os.rename(photos / "zeit.png", os.fsencode(photos) + b"/\xff.png")
    (photos / "nowhere.png").symlink_to(tmp_path / "gone.png")
    with open(os.fsencode(photos) + b"/\xfe.jpg", "wb") as broken:
        broken.write(b"no image")
    updated = update_index(tmp_path / "index", images_in_folder(photos), Embedder(), MODEL)
    assert updated.added == 4
    listed = (tmp_path / "index" / "generation_000001" / "unreadable.txt").read_text().splitlines()
    assert len(listed) == 2
    assert any("udcfe" in line for line in listed)
    assert len(open_index(tmp_path / "index").items) == 4


def test_pipes_and_devices_are_not_read(tmp_path):
    photos = tmp_path / "photos"
    draw(photos, ["a"])
    os.mkfifo(photos / "pipe.jpg")
    (photos / "to_pipe.jpg").symlink_to(photos / "pipe.jpg")
    (photos / "endless.jpg").symlink_to("/dev/zero")
    updated = update_index(tmp_path / "index", images_in_folder(photos, Path("/")), Embedder(), MODEL)
    assert updated.added == 1
    assert {error.rpartition(": ")[2] for error in updated.unreadable} == {"not a regular file"}
    assert len(updated.unreadable) == 2  # the links; a pipe itself is not an image file


def test_an_update_keeps_the_kind_of_the_index(tmp_path):
    draw(tmp_path / "photos", [f"p{n:02d}" for n in range(20)])
    image_files = images_in_folder(tmp_path / "photos")
    assert update_index(tmp_path / "index", image_files, Embedder(), MODEL, kind="hnsw").recall is not None
    assert update_index(tmp_path / "index", image_files, Embedder(), MODEL).recall is not None
    assert open_index(tmp_path / "index").manifest["kind"] == "hnsw"
    assert update_index(tmp_path / "index", image_files, Embedder(), MODEL, kind="flat").recall is None


def test_a_damaged_batch_is_embedded_again(tmp_path):
    draw(tmp_path / "photos", ["a", "b"])
    (tmp_path / "index" / "unfinished").mkdir(parents=True)
    (tmp_path / "index" / "unfinished" / "batch_000004.npz").write_bytes(b"no archive")
    embed = Embedder()
    update_index(tmp_path / "index", images_in_folder(tmp_path / "photos"), embed, MODEL)
    assert embed.count == 2
