"""Small datasets, written in every format without Tercet's writers, and hypothesis strategies for them."""

import csv
import io
import json
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from PIL import Image

# split -> [(image name, captions)]
Plain = dict[str, list[tuple[str, list[str]]]]

PLAIN: Plain = {
    "train": [
        ("a.jpg", ["a dog", "ein Hund im Schnee"]),
        ("b.jpg", ["two cats"]),
        ("c.jpg", ["犬が走る", "a cat", "a"]),
    ],
    "val": [("d.jpg", ["a red bus", "a bus"])],
    "test": [("e.jpg", ["a tree , green"]), ("f.jpg", ['"quoted", with; signs\tand a tab', "naïve café"])],
}

# Any characters except line ends and surrogates; not only white space.
captions = st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="\r\n\0"), min_size=1, max_size=30
).filter(lambda text: text.strip() and not text.startswith("\ufeff"))  # at the start it is a byte order mark
names = st.from_regex(r"[a-z0-9_]{1,8}\.(jpg|png)", fullmatch=True)


@st.composite
def plain_sets(draw: st.DrawFn, *, ragged: bool = True) -> Plain:
    splits = draw(st.lists(st.sampled_from(["train", "val", "test"]), min_size=1, max_size=3, unique=True))
    max_captions = draw(st.integers(1, 4))
    content: Plain = {}
    for split in sorted(splits, key=["train", "val", "test"].index):
        images = draw(st.lists(names, min_size=1, max_size=4, unique_by=lambda name: Path(name).stem))
        min_captions = 1 if ragged else max_captions
        # Sorted, because a folder is read in the order of the file names.
        content[split] = [
            (name, draw(st.lists(captions, min_size=min_captions, max_size=max_captions))) for name in sorted(images)
        ]
    return content


def plain(data) -> Plain:
    """The content of a `DataSet` as lists."""
    return {
        name: [
            (image, [split.texts[j] for j in np.flatnonzero(split.owners == row)])
            for row, image in enumerate(split.image_names)
        ]
        for name, split in data.splits.items()
    }


def image_bytes(seed: int = 0) -> bytes:
    stream = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (12, 10, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(stream, format="JPEG")
    return stream.getvalue()


def write_images(content: Plain, folder: Path) -> None:
    for seed, name in enumerate(name for images in content.values() for name, _ in images):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(image_bytes(seed))


def write_karpathy(content: Plain, folder: Path) -> Path:
    images = [
        {"filename": name, "split": split, "imgid": 0, "sentences": [{"raw": text} for text in texts]}
        for split, records in content.items()
        for name, texts in records
    ]
    return _json(folder / "dataset.json", {"images": images, "dataset": "mine"})


def write_json_lists(content: Plain, folder: Path) -> Path:
    """Train as in X-VLM, one record per pair; the other splits with one record per image."""
    target = folder / "lists"
    target.mkdir()
    for split, records in content.items():
        pairs = [{"image": name, "caption": text, "image_id": name} for name, texts in records for text in texts]
        lists = [{"image": name, "caption": texts} for name, texts in records]
        _json(target / f"mine_{split}.json", pairs if split == "train" else lists)
    return target


def write_csv(content: Plain, folder: Path, delimiter: str = ",") -> Path:
    target = folder / ("pairs.csv" if delimiter == "," else "pairs.tsv")
    with target.open("w", encoding="utf-8", newline="") as stream:
        rows = csv.writer(stream, delimiter=delimiter)
        rows.writerow(["image", "caption", "split"])
        rows.writerows(
            (name, text, split) for split, records in content.items() for name, texts in records for text in texts
        )
    return target


def write_tsv(content: Plain, folder: Path) -> Path:
    return write_csv(content, folder, "\t")


def write_folder(content: Plain, folder: Path) -> Path:
    target = folder / "images"
    for split, records in content.items():
        write_images({split: records}, target / split)
        for name, texts in records:
            lines = "".join(f"{text}\n" for text in texts)
            (target / split / name).with_suffix(".txt").write_bytes(lines.encode())
    return target


def write_precomp_by_hand(content: Plain, folder: Path, features: dict[str, np.ndarray] | None = None) -> Path:
    """Rows repeated for each caption, as in the published dev and test files."""
    target = folder / "precomp"
    target.mkdir()
    for split, records in content.items():
        stem = {"val": "dev"}.get(split, split)
        pairs = [(name, text) for name, texts in records for text in texts]
        (target / f"{stem}_caps.txt").write_bytes("".join(f"{text}\n" for _, text in pairs).encode())
        (target / f"{stem}_ids.txt").write_bytes("".join(f"{name}\n" for name, _ in pairs).encode())
        if features is not None:
            counts = [len(texts) for _, texts in records]
            np.save(target / f"{stem}_ims.npy", np.repeat(features[split], counts, axis=0))
    return target


def _json(file: Path, content: object) -> Path:
    file.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return file


WRITERS = {
    "karpathy": write_karpathy,
    "json-list": write_json_lists,
    "table": write_csv,
    "precomp": write_precomp_by_hand,
    "folder": write_folder,
}
