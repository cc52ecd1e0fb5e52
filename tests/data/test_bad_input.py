"""Bad input: an error that names the location, or with skip_bad a listed skip; never a silent drop."""

import contextlib
import io
import json
import os
import struct
import tempfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from PIL import EpsImagePlugin, Image, features

from tercet.console import Bar
from tercet.data.formats import FORMATS, open_data
from tercet.data.image_io import ImageBytes, ImageFile, as_rgb, content_checksum, open_image
from tests.data.small_datasets import (
    PLAIN,
    WRITERS,
    image_bytes,
    plain,
    write_csv,
    write_folder,
    write_images,
    write_karpathy,
)
from tests.examples import examples


def bomb() -> bytes:
    """A PNG whose header promises 60,000 x 60,000 pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    )


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"

BAD_IMAGES = {
    "truncated": (image_bytes()[:-150], "damaged or unsupported image"),
    "zero bytes": (b"", "empty file"),
    "text": (b"this is not an image", "not an image in one of the formats JPEG, PNG"),
    "PostScript": (POSTSCRIPT, "not an image in one of the formats JPEG, PNG"),
    "bomb": (bomb(), "pixels"),
    "cut header": (image_bytes()[:20], "image"),
}


@pytest.mark.parametrize("name", BAD_IMAGES)
def test_bad_images_are_named(name, tmp_path):
    content, message = BAD_IMAGES[name]
    file = tmp_path / "bad.jpg"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        open_image(ImageFile(file))
    assert str(file) in str(error.value)


def test_16_bit_grey_is_scaled_and_float_images_are_rejected(tmp_path):
    shades = np.linspace(0, 65535, 16).astype(np.uint16).reshape(4, 4)
    Image.fromarray(shades).save(tmp_path / "x.png")
    opened = np.asarray(open_image(ImageFile(tmp_path / "x.png")))[..., 0]
    assert np.array_equal(opened, shades >> 8)
    Image.fromarray(np.linspace(0, 1, 16, dtype=np.float32).reshape(4, 4)).save(tmp_path / "x.tiff")
    with pytest.raises(ValueError, match=r"x\.tiff: .*float images \(mode F\) are not supported"):
        open_image(ImageFile(tmp_path / "x.tiff"))


def test_a_missing_image_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"gone\.jpg: cannot read the file: No such file"):
        open_image(ImageFile(tmp_path / "gone.jpg"))


def test_postscript_is_not_passed_to_ghostscript(tmp_path, monkeypatch):
    started = tmp_path / "started"
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {started}\necho 10.0\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # looked for again
    with pytest.raises(ValueError, match="not an image"):
        open_image(ImageBytes(POSTSCRIPT))
    assert not started.exists()


def test_the_text_of_a_decoder_is_not_shown(monkeypatch):
    def fail(*args, **kwargs):
        raise OSError("decoder of /tmp/secret failed")

    monkeypatch.setattr(Image, "open", fail)
    with pytest.raises(ValueError, match=r"^the image: damaged or unsupported image$"):
        open_image(ImageBytes(b"x"))


@pytest.mark.parametrize("kind", ["pipe", "link to a pipe", "device", "folder"])
def test_only_regular_files_are_opened(tmp_path, kind):
    """A pipe would block for ever, /dev/zero has no end."""
    os.mkfifo(tmp_path / "pipe")
    paths = {"pipe": tmp_path / "pipe", "link to a pipe": tmp_path / "x.jpg", "device": Path("/dev/zero")}
    (tmp_path / "x.jpg").symlink_to(tmp_path / "pipe")
    file = ImageFile(paths.get(kind, tmp_path))
    for read in (open_image, content_checksum):
        with pytest.raises(ValueError, match="not a regular file"):
            read(file)


@examples(200)
@given(
    kind=st.sampled_from(["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "AVIF"]),
    position=st.integers(0, 600),
    value=st.integers(0, 255),
    cut=st.integers(0, 700),
)
def test_a_damaged_image_opens_or_is_a_value_error(kind, position, value, cut):
    if kind in ("WEBP", "AVIF") and not features.check(kind.lower()):
        kind = "PNG"
    stream = io.BytesIO()
    Image.open(io.BytesIO(image_bytes(3))).save(stream, format=kind)
    content = bytearray(stream.getvalue())
    content[position % len(content)] = value
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "x.jpg"
        file.write_bytes(bytes(content[: max(1, cut % (len(content) + 1))]))
        with contextlib.suppress(ValueError):
            assert open_image(ImageFile(file)).mode == "RGB"


def test_images_come_upright_and_in_rgb(tmp_path):
    stream = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by 90 degrees
    Image.new("L", (8, 4), 77).save(stream, format="JPEG", exif=exif)
    (tmp_path / "x.jpg").write_bytes(stream.getvalue())
    opened = open_image(ImageFile(tmp_path / "x.jpg"))
    assert opened.size == (4, 8)
    assert opened.mode == "RGB"
    own = Image.open(tmp_path / "x.jpg")
    assert as_rgb(own).size == (4, 8)
    assert (own.size, own.mode) == ((8, 4), "L")  # unchanged
    assert as_rgb(opened) is opened  # no copy of a large image


def corrupt_json(change):
    def corrupt(folder):
        file = write_karpathy(PLAIN, folder)
        content = json.loads(file.read_text())
        change(content["images"])
        file.write_text(json.dumps(content))
        return file

    return corrupt


def missing_image(folder):
    write_images(PLAIN, folder / "images")
    (folder / "images" / "b.jpg").unlink()
    return write_karpathy(PLAIN, folder)


def replace_bytes(writer, old: bytes, new: bytes, file: str | None = None):
    def corrupt(folder):
        path = writer(PLAIN, folder)
        target = path / file if file else path
        content = target.read_bytes()
        assert old in content
        target.write_bytes(content.replace(old, new, 1))
        return path

    return corrupt


def missing_caption_file(folder):
    path = write_folder(PLAIN, folder)
    (path / "train" / "b.txt").unlink()
    return path


def caption_file_without_image(folder):
    path = write_folder(PLAIN, folder)
    (path / "train" / "b.jpg").unlink()
    return path


# name -> function that writes the bad data, message, valid images of 6, valid captions of 11
BAD_ITEMS = {
    "missing image": (missing_image, r"images\[1\]: no image file b\.jpg in .*images", 5, 10),
    "non-UTF-8 line": (
        replace_bytes(WRITERS["precomp"], "naïve".encode(), b"na\xefve", "test_caps.txt"),
        r"test_caps\.txt, line 3: not UTF-8 \(byte 0xef at column 3\)",
        6,
        10,
    ),
    "non-UTF-8 line of a table": (
        replace_bytes(write_csv, "naïve".encode(), b"na\xefve"),
        r"pairs\.csv, line 12: not UTF-8",
        6,
        10,
    ),
    "empty caption": (
        replace_bytes(WRITERS["precomp"], b"two cats", b"", "train_caps.txt"),
        r"train_caps\.txt, line 3: empty caption",
        5,
        10,
    ),
    "empty caption in JSON": (
        corrupt_json(lambda images: images[0]["sentences"][1].update(raw="  ")),
        r"images\[0\], image a\.jpg: empty caption",
        6,
        10,
    ),
    "empty caption in a table": (
        replace_bytes(write_csv, b"two cats", b" "),
        r"line 4, image b\.jpg: empty caption",
        5,
        10,
    ),
    "a caption as long as a book": (
        corrupt_json(lambda images: images[0]["sentences"][1].update(raw="a" * 100_001)),
        "caption of 100,001 characters: at most 100,000 are read",
        6,
        10,
    ),
    "a caption that is no text": (
        corrupt_json(lambda images: images[0]["sentences"][1].update(raw=7)),
        "expected a caption string, got int",
        6,
        10,
    ),
    "an id twice": (
        corrupt_json(lambda images: images[1].update(filename="a.jpg")),
        r"images\[1\]: duplicate image a\.jpg in the split train",
        5,
        10,
    ),
    "no captions": (
        corrupt_json(lambda images: images[1].update(sentences=[])),
        r"images\[1\]: image b\.jpg has no caption",
        5,
        10,
    ),
    "no split": (corrupt_json(lambda images: images[1].pop("split")), r'images\[1\]: expected a "split"', 5, 10),
    "no name": (
        corrupt_json(lambda images: images[1].pop("filename")),
        r"images\[1\]: expected an image name, got None",
        5,
        10,
    ),
    "no record": (corrupt_json(lambda images: images.__setitem__(1, "b")), r"images\[1\]: expected an object", 5, 10),
    "a column too few": (
        replace_bytes(write_csv, b",two cats", b""),
        "line 4: expected 3 columns, got 2",
        5,
        10,
    ),
    "no text beside an image": (missing_caption_file, r"b\.jpg: no caption file b\.txt beside it", 5, 10),
    "no image beside a text": (caption_file_without_image, r"b\.txt: no image of the same name", 5, 10),
    "another image_id": (
        replace_bytes(WRITERS["json-list"], b'"image_id": "b.jpg"', b'"image_id": "a.jpg"', "mine_train.json"),
        r"record 2: image b\.jpg with image_id a\.jpg contradicts an earlier record",
        5,
        10,
    ),
    "a record without a caption": (
        replace_bytes(WRITERS["json-list"], b'"caption": "two cats"', b'"text": "two cats"', "mine_train.json"),
        r'record 2: expected an object with "image" and "caption"',
        5,
        10,
    ),
}


@pytest.mark.parametrize("name", BAD_ITEMS)
def test_the_first_bad_item_is_an_error_that_names_its_location(name, tmp_path):
    write, message, _, _ = BAD_ITEMS[name]
    with pytest.raises(ValueError, match=message):
        open_data(write(tmp_path))


@pytest.mark.parametrize("name", BAD_ITEMS)
def test_with_skip_bad_it_is_skipped_and_listed(name, tmp_path):
    write, _, images, captions = BAD_ITEMS[name]
    data = open_data(write(tmp_path), skip_bad=True)
    assert data.skipped
    assert sum(len(split.image_names) for split in data.splits.values()) == images
    assert sum(len(split.texts) for split in data.splits.values()) == captions


UNREADABLE = {
    "cut JSON": (lambda folder: cut(write_karpathy(PLAIN, folder), 100), r"dataset\.json, line 1: invalid JSON"),
    "JSON in Latin-1": (
        replace_bytes(write_karpathy, "ï".encode(), b"\xef"),
        r"dataset\.json, line 1: not UTF-8",
    ),
    "no images in JSON": (lambda folder: text(folder / "x.json", "{}"), 'expected an object with the list "images"'),
    "no such path": (lambda folder: folder / "nowhere", "no such file or folder"),
    "an unknown thing": (lambda folder: text(folder / "x.bin", "abc"), "unknown dataset format"),
    "an empty folder": (lambda folder: folder, "unknown dataset format"),
    "a quote that never ends": (
        lambda folder: text(folder / "x.csv", 'image,caption\na.jpg,"open'),
        r"x\.csv, line 2: unexpected end of data",
    ),
    "nothing but a header": (
        lambda folder: text(folder / "x.csv", "image,caption\n"),
        "no valid captions",
    ),
    "no Parquet": (lambda folder: text(folder / "x.parquet", "PAR1 no"), r"x\.parquet: not a readable parquet file"),
    "other columns": (
        lambda folder: parquet(folder / "x.parquet", {"a": [1]}),
        "no image column: the columns are a; name yours with --image-column",
    ),
    "several lists without splits": (
        lambda folder: (text(folder / "a.json", "[]"), text(folder / "b.json", "[]"))[0].parent,
        "no split in the file name",
    ),
}


def cut(file: Path, bytes_left: int) -> Path:
    file.write_bytes(file.read_bytes()[:bytes_left])
    return file


def text(file: Path, content: str) -> Path:
    file.write_text(content)
    return file


def parquet(file: Path, columns: dict) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), file)
    return file


@pytest.mark.parametrize("skip_bad", [False, True])
@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_at_all_is_an_error_either_way(name, skip_bad, tmp_path):
    write, message = UNREADABLE[name]
    with pytest.raises(ValueError, match=message):
        open_data(write(tmp_path), skip_bad=skip_bad)


def test_two_formats_in_one_folder_are_ambiguous(tmp_path):
    WRITERS["precomp"](PLAIN, tmp_path)
    write_csv(PLAIN, tmp_path / "precomp")
    with pytest.raises(ValueError, match="matches the formats precomp and table: pass --format"):
        open_data(tmp_path / "precomp")
    assert open_data(tmp_path / "precomp", format="table").format == "table"


def test_a_failed_conversion_leaves_no_files(tmp_path):
    from tercet.data.formats.precomp import write_precomp

    data = open_data(write_karpathy(PLAIN, tmp_path))

    class Interrupted(Bar):
        def advance(self, count: int = 1) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_precomp(data, tmp_path / "out", Interrupted())
    assert [file.name for file in tmp_path.iterdir()] == ["dataset.json"]
    write_precomp(data, tmp_path / "out")
    with pytest.raises(ValueError, match="already exists; nothing is overwritten"):
        write_precomp(data, tmp_path / "out")


@pytest.mark.parametrize("name", WRITERS)
@examples(40, suppress_health_check=[HealthCheck.too_slow])
@given(where=st.integers(0, 10_000), junk=st.binary(max_size=6), which=st.integers(0, 100))
def test_any_damage_is_read_listed_or_a_value_error(name, where, junk, which):
    """Fuzzing: random bytes are inserted into one file. No other exception is raised; nothing is dropped silently."""
    with tempfile.TemporaryDirectory() as folder:
        path = WRITERS[name](PLAIN, Path(folder))
        files = sorted(f for f in ([path] if path.is_file() else path.rglob("*")) if f.is_file() and f.suffix != ".jpg")
        file = files[which % len(files)]
        content = file.read_bytes()
        at = where % (len(content) + 1)
        file.write_bytes(content[:at] + junk + content[at:])
        try:
            data = open_data(path, format=name, skip_bad=True)
        except ValueError:
            return
        kept = sum(len(split.texts) for split in data.splits.values())
        assert kept >= 11 or data.skipped or plain(data) != PLAIN


def test_feature_files_of_different_lengths_are_rejected(tmp_path):
    folder = tmp_path / "precomp"
    folder.mkdir()
    (folder / "test_caps.txt").write_text("a\nb\n")
    (folder / "test_ids.txt").write_text("x\ny\n")
    np.save(folder / "test_ims.npy", np.zeros((2, 3, 4), dtype=np.float32))
    for name, array, message in (
        ("lengths", np.array([1, 4]), "expected 2 integers from 1 to 3, one per feature row, got 1 to 4"),
        ("lengths", np.array([1.0, 2.0]), "expected 2 integers from 1 to 3, one per feature row, got float64"),
        ("boxes", np.zeros((2, 2, 4), dtype=np.float32), "expected 4 values per region"),
        ("txt", np.zeros((3, 4), dtype=np.float32), "expected 2 rows, one per caption, got 3"),
    ):
        np.save(folder / f"test_{name}.npy", array)
        with pytest.raises(ValueError, match=message):
            open_data(folder)
        (folder / f"test_{name}.npy").unlink()


def test_formats_have_a_description():
    assert all(known.description for known in FORMATS.values())
