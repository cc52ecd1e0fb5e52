"""An index: only what is new is embedded, a kill loses a batch at most, and readers never see half of it."""

import json
import multiprocessing
import os
import shutil
import signal
import time
from dataclasses import dataclass

import numpy as np
import pytest
from PIL import Image

from tercet.search.index import AT_ONCE, open_index, update_index
from tercet.search.items import pictures_of_folder
from tercet.search.looks import Kept
from tercet.search.store import FaissStore, recall_of

MODEL = {"path": "a/model", "system": "vsepp", "weights": "abc"}


def draw(folder, names, seed=0):
    folder.mkdir(exist_ok=True)
    generator = np.random.default_rng(seed)
    for name in names:
        Image.fromarray(generator.integers(256, size=(8, 8, 3), dtype=np.uint8)).save(folder / f"{name}.png")


@dataclass
class Embedder:
    """Pixels as vectors; counts what it was given."""

    seen: int = 0
    pause: float = 0.0

    def __call__(self, opened):
        self.seen += len(opened)
        time.sleep(self.pause)
        vectors = np.stack([np.asarray(picture, dtype=np.float32).ravel() - 127 for picture in opened])
        return Kept(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def test_only_what_is_new_or_changed_is_embedded(tmp_path):
    photos, embed = tmp_path / "photos", Embedder()
    draw(photos, [f"p{n:03d}" for n in range(70)])
    first = update_index(tmp_path / "index", pictures_of_folder(photos), embed, MODEL)
    assert (first.added, first.changed, first.kept, first.removed, embed.seen) == (70, 0, 0, 0, 70)
    index = open_index(tmp_path / "index")
    assert [item.path for item in index.items] == sorted(str(path.resolve()) for path in photos.iterdir())
    assert np.array_equal(index.vectors[3], embed([Image.open(index.items[3].path)]).vectors[0])
    embed.seen = 0
    assert update_index(tmp_path / "index", pictures_of_folder(photos), embed, MODEL).kept == 70
    assert embed.seen == 0
    draw(photos, ["new_a", "new_b", "p005"], seed=1)
    (photos / "p006.png").unlink()
    shutil.copy(photos / "p007.png", photos / "copy.png")
    os.utime(photos / "p008.png", (1, 1))  # touched, not changed
    again = update_index(tmp_path / "index", pictures_of_folder(photos), embed, MODEL)
    assert (again.added, again.changed, again.kept, again.removed) == (3, 1, 68, 1)
    assert embed.seen == 3  # a copy is known
    assert sorted(path.name for path in (tmp_path / "index").iterdir()) == [".lock", "generation_000003", "index.json"]


def test_what_cannot_be_read_is_left_out_and_listed(tmp_path):
    photos = tmp_path / "photos"
    draw(photos, ["a", "b"])
    (photos / "empty.jpg").touch()
    (photos / "text.png").write_text("no picture")
    shutil.copy(photos / "text.png", photos / "text_again.png")
    updated = update_index(tmp_path / "index", pictures_of_folder(photos), Embedder(), MODEL)
    assert updated.added == 2
    assert len(updated.unreadable) == 3
    listed = (tmp_path / "index" / "generation_000001" / "unreadable.txt").read_text()
    assert "empty.jpg: the file is empty" in listed
    assert "text.png" in listed
    shutil.rmtree(photos)
    draw(photos, [])
    (photos / "text.png").write_text("no picture")
    with pytest.raises(ValueError, match="none of 1 pictures could be read; the first"):
        update_index(tmp_path / "other", pictures_of_folder(photos), Embedder(), MODEL)


def _slowly(folder):
    update_index(folder / "index", pictures_of_folder(folder / "photos"), Embedder(pause=0.05), MODEL)


def test_killed_and_called_again_nothing_is_embedded_twice(tmp_path):
    draw(tmp_path / "photos", [f"p{n:03d}" for n in range(10 * AT_ONCE)])
    spawn, parts = multiprocessing.get_context("spawn"), tmp_path / "index" / "unfinished"
    for wanted in (2, 4):
        process = spawn.Process(target=_slowly, args=(tmp_path,))
        process.start()
        while process.is_alive() and len(list(parts.glob("batch_*.npz"))) < wanted:
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    kept = len(list(parts.glob("batch_*.npz")))
    assert kept >= 4
    with pytest.raises(ValueError, match="no index there"):
        open_index(tmp_path / "index")
    embed = Embedder()
    updated = update_index(tmp_path / "index", pictures_of_folder(tmp_path / "photos"), embed, MODEL)
    assert embed.seen == (10 - kept) * AT_ONCE
    assert updated.added == 10 * AT_ONCE
    index, fresh = open_index(tmp_path / "index"), Embedder()
    whole = update_index(tmp_path / "whole", pictures_of_folder(tmp_path / "photos"), fresh, MODEL)
    assert whole.added == updated.added
    assert np.array_equal(index.vectors, open_index(tmp_path / "whole").vectors)
    assert not parts.exists()


def test_a_kill_between_two_generations_leaves_the_old_one(tmp_path, monkeypatch):
    photos = tmp_path / "photos"
    draw(photos, ["a", "b"])
    update_index(tmp_path / "index", pictures_of_folder(photos), Embedder(), MODEL)
    draw(photos, ["c"], seed=2)
    with monkeypatch.context() as patched:
        patched.setattr("tercet.search.index.write_items", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            update_index(tmp_path / "index", pictures_of_folder(photos), Embedder(), MODEL)
    assert len(open_index(tmp_path / "index").items) == 2
    embed = Embedder()
    update_index(tmp_path / "index", pictures_of_folder(photos), embed, MODEL)
    assert embed.seen == 0  # it was kept before the generation was written
    assert len(open_index(tmp_path / "index").items) == 3


def test_another_model_is_refused(tmp_path):
    draw(tmp_path / "photos", ["a"])
    update_index(tmp_path / "index", pictures_of_folder(tmp_path / "photos"), Embedder(), MODEL)
    with pytest.raises(ValueError, match="another model: vectors of two models"):
        update_index(
            tmp_path / "index", pictures_of_folder(tmp_path / "photos"), Embedder(), MODEL | {"weights": "xyz"}
        )


def test_damaged_indices_are_told(tmp_path):
    draw(tmp_path / "photos", ["a", "b"])
    folder = tmp_path / "index"
    update_index(folder, pictures_of_folder(tmp_path / "photos"), Embedder(), MODEL)
    part = folder / "generation_000001"
    items = (part / "items.jsonl").read_text()
    (part / "items.jsonl").write_text(items.splitlines()[0] + "\n")
    with pytest.raises(ValueError, match="1 items, 2 vectors, 2 in the store"):
        open_index(folder)
    (part / "items.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match=r"items.jsonl, line 1: not an item"):
        open_index(folder)
    (part / "items.jsonl").write_text(items)
    (part / "index.faiss").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="not an index of faiss"):
        open_index(folder)
    (folder / "index.json").write_text(json.dumps({"what": "else"}))
    with pytest.raises(ValueError, match="not the manifest of an index"):
        open_index(folder)


def test_stores_find_the_nearest():
    vectors = np.random.default_rng(0).standard_normal((500, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    flat, hnsw = FaissStore.of(vectors), FaissStore.of(vectors, "hnsw")
    expected = np.argsort(-(vectors[:20] @ vectors.T), axis=1)[:, :7]
    similarity, found = flat.search(vectors[:20], 7)
    assert np.array_equal(found, expected)
    assert np.allclose(similarity, np.take_along_axis(vectors[:20] @ vectors.T, expected, axis=1), atol=1e-6)
    assert recall_of(hnsw, vectors) > 0.9
    assert flat.search(vectors[:2], 1000)[1].shape == (2, 500)
    assert flat.search(vectors[:0], 3)[1].shape == (0, 0)


def test_folders_of_others_are_not_touched(tmp_path):
    draw(tmp_path / "photos", ["a"])
    for taken in ("generation_of_leaders", "unfinished"):
        (tmp_path / taken / taken).mkdir(parents=True)
        (tmp_path / taken / taken / "thesis.txt").write_text("years of work")
        with pytest.raises(ValueError, match="holds no index but other things"):
            update_index(tmp_path / taken, pictures_of_folder(tmp_path / "photos"), Embedder(), MODEL)
        assert (tmp_path / taken / taken / "thesis.txt").exists()
    update_index(tmp_path / "index", pictures_of_folder(tmp_path / "photos"), Embedder(), MODEL)
    (tmp_path / "index" / "generation_of_leaders").mkdir()
    (tmp_path / "index" / "unfinished").mkdir()
    (tmp_path / "index" / "unfinished" / "novel.txt").write_text("a chapter")
    update_index(tmp_path / "index", pictures_of_folder(tmp_path / "photos"), Embedder(), MODEL)
    assert (tmp_path / "index" / "generation_of_leaders").exists()
    assert (tmp_path / "index" / "unfinished" / "novel.txt").exists()


def test_a_file_that_changes_meanwhile_has_the_vector_of_what_was_embedded(tmp_path):
    photos = tmp_path / "photos"
    draw(photos, ["a", "b"])
    before = (photos / "b.png").read_bytes()

    pictures = pictures_of_folder(photos)

    class Changing:
        """Looked at once, then written to."""

        looks = 0

        def content(self):
            self.looks += 1
            if self.looks == 2:
                draw(photos, ["b"], seed=5)
            return (photos / "b.png").read_bytes()

    pictures[str(photos / "b.png")] = (Changing(), ())
    update_index(tmp_path / "index", pictures, Embedder(), MODEL)
    index = open_index(tmp_path / "index")
    now = Embedder()([Image.open(photos / "b.png")]).vectors[0]
    assert np.array_equal(index.vectors[1], now)
    (photos / "old.png").write_bytes(before)
    embed = Embedder()
    update_index(tmp_path / "index", pictures_of_folder(photos), embed, MODEL)
    assert embed.seen == 1  # the old content has no vector yet
    found = open_index(tmp_path / "index")
    old = [item.path for item in found.items].index(str(photos / "old.png"))
    assert np.array_equal(found.vectors[old], Embedder()([Image.open(photos / "old.png")]).vectors[0])


def test_odd_names_and_links(tmp_path):
    photos = tmp_path / "photos"
    draw(photos, ["plain", "two\nlines", "[bold]brackets[", "zeit"])
    os.rename(photos / "zeit.png", os.fsencode(photos) + b"/\xff.png")
    (photos / "nowhere.png").symlink_to(tmp_path / "gone.png")
    with open(os.fsencode(photos) + b"/\xfe.jpg", "wb") as broken:
        broken.write(b"no picture")
    updated = update_index(tmp_path / "index", pictures_of_folder(photos), Embedder(), MODEL)
    assert updated.added == 4
    listed = (tmp_path / "index" / "generation_000001" / "unreadable.txt").read_text().splitlines()
    assert len(listed) == 2
    assert any("udcfe" in line for line in listed)
    assert len(open_index(tmp_path / "index").items) == 4


def test_the_kind_of_an_index_stays(tmp_path):
    draw(tmp_path / "photos", [f"p{n:02d}" for n in range(20)])
    pictures = pictures_of_folder(tmp_path / "photos")
    assert update_index(tmp_path / "index", pictures, Embedder(), MODEL, kind="hnsw").recall is not None
    assert update_index(tmp_path / "index", pictures, Embedder(), MODEL).recall is not None
    assert open_index(tmp_path / "index").manifest["kind"] == "hnsw"
    assert update_index(tmp_path / "index", pictures, Embedder(), MODEL, kind="flat").recall is None


def test_a_damaged_batch_is_made_again(tmp_path):
    draw(tmp_path / "photos", ["a", "b"])
    (tmp_path / "index" / "unfinished").mkdir(parents=True)
    (tmp_path / "index" / "unfinished" / "batch_000004.npz").write_bytes(b"no archive")
    embed = Embedder()
    update_index(tmp_path / "index", pictures_of_folder(tmp_path / "photos"), embed, MODEL)
    assert embed.seen == 2
