"""What the command line says to usual mistakes: one line that names the mistake and what to do, and exit code 2.

`PYTHONPATH=. python tests/test_mistakes.py` prints the table of all of them.
"""

import socket
import tempfile
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from tests.commands import tercet

ROWS = (("a.png", "a red square"), ("b.png", "a blue square"), ("c.png", "a green square"), ("d.png", "a grey square"))


def write_csv(folder, name="pairs.csv", header="image,caption,split", rows=None, encoding="utf-8"):
    if rows is None:
        splits = ("train", "train", "val", "test")
        rows = [f"{image},{text},{split}" for (image, text), split in zip(ROWS, splits, strict=True)]
    (folder / name).write_text("\n".join([header, *rows]) + "\n", encoding=encoding)


def write_photos(folder):
    folder.mkdir(exist_ok=True)
    for number, (name, _) in enumerate(ROWS):
        Image.new("RGB", (12, 8), (60 * number, 90, 30)).save(folder / name)


def make_world(folder):
    """Files that people have: photos and captions, right and wrong."""
    write_photos(folder / "images")
    write_csv(folder)
    write_csv(folder, "foto.csv", "foto,beschreibung", ["a.png,ein rotes Quadrat"])
    write_csv(folder, "empty.csv", "", [])
    (folder / "nothing.csv").write_bytes(b"")
    write_csv(folder, "header_only.csv", rows=[])
    write_csv(folder, "latin1.csv", rows=["a.png,ein gr\xfcnes Quadrat,train"], encoding="latin-1")
    write_csv(folder, "excel.csv", encoding="utf-16")
    write_csv(folder, "urls.csv", rows=["https://example.org/a.png,a red square,train"])
    write_csv(folder, "semicolon.csv", "image;caption;split", ["a.png;a red square, large;train", "b.png,no;train"])
    write_csv(folder, "missing.csv", rows=["x.png,a red square,train", "y.png,a blue square,val"])
    write_csv(folder, "one_missing.csv", rows=["a.png,a red square,train", "y.png,a blue square,val"])
    write_csv(folder, "case.csv", rows=["A.PNG,a red square,train"])
    write_csv(folder, "no_caption.csv", rows=["a.png,,train"])
    write_csv(folder, "train_only.csv", rows=["a.png,a red square,train", "b.png,a blue square,train"])
    write_csv(folder, "columns.csv", rows=["a.png,a red square, large,train"])
    with zipfile.ZipFile(folder / "photos.zip", "w") as archive:
        archive.write(folder / "pairs.csv", "pairs.csv")
    with zipfile.ZipFile(folder / "pairs.xlsx", "w") as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>")
    (folder / "broken.json").write_text('{"images": [')
    (folder / "settings.json").write_text('{"epoch": 3}')
    (folder / "notes").mkdir()
    (folder / "notes" / "todo.md").write_text("buy milk")
    (folder / "nobody").mkdir()
    write_photos(folder / "uncaptioned")
    (folder / "broken").mkdir()
    write_csv(folder / "broken", rows=["a.png,a red square,train", "b.png,a blue square,test"])
    write_photos(folder / "broken" / "images")
    (folder / "broken" / "images" / "b.png").write_bytes(b"<html>404 not found</html>")
    (folder / "heic").mkdir()
    (folder / "heic" / "a.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
    (folder / "heic" / "a.txt").write_text("a red square\n")
    (folder / "run").mkdir()
    (folder / "run" / "settings.json").write_text("{}")
    (folder / "index").mkdir()
    (folder / "index" / "index.json").write_text('{"what": "index", "format_version": 1}')


# What was typed, and words that the line must contain: what, where, what was given, what is allowed.
MISTAKES = {
    "command misspelt": ("trian pairs.csv", "trian", "did you mean train?"),
    "objective misspelt": ("train scenes:30 --objective nt-xnet", "nt-xnet", "did you mean nt-xent?"),
    "objective misspelt in compare": (
        "compare scenes:30 --objectives triplet nt-xnet",
        "nt-xnet",
        "did you mean nt-xent?",
    ),
    "model misspelt": ("train scenes:30 --model vsep", "vsep", "did you mean vsepp"),
    "flag misspelt": ("train scenes:30 --epoch 3", "no setting --epoch", "did you mean --epochs?"),
    "setting misspelt": ("train scenes:30 --model-settings embed_dims=8", "embed_dims", "embed_dim"),
    "setting misspelt in a file": ("train scenes:30 --config settings.json", "epoch", "did you mean epochs?"),
    "metric misspelt": ("compare scenes:30 --metric t2i_r2", "t2i_r2", "t2i_r1"),
    "encoder misspelt": ("features pairs.csv out --image-encoder efficientnet-lite", "efficientnet-lite2"),
    "protocol misspelt": ("evaluate run --data pairs.csv --protocol coco1k", "coco1k", "coco-1k"),
    "split misspelt": ("train pairs.csv --train-split trian", "trian", "did you mean train?", "val, test"),
    "wrong path": ("train pair.csv", "pair.csv", "no such file or folder", "did you mean pairs.csv?"),
    "column of another name": ("data inspect foto.csv", "foto.csv, line 1", "foto, beschreibung", "--image-column"),
    "column misspelt": (
        "data inspect foto.csv --image-column fotos --caption-column beschreibung",
        "'fotos'",
        "did you mean foto?",
    ),
    "column of a folder": ("data inspect heic --image-column foto", "format folder", "no columns"),
    "file of 0 bytes": ("data inspect nothing.csv", "nothing.csv", "empty file"),
    "CSV without rows": ("data inspect header_only.csv", "header_only.csv", "no valid captions"),
    "mixed semicolons": ("train semicolon.csv", "semicolon.csv, line 3", "expected 3 columns, got 2"),
    "comma in a caption": ("train columns.csv", "columns.csv, line 2", "expected 3 columns, got 4", "quotation marks"),
    "Excel's file": ("data inspect pairs.xlsx", "pairs.xlsx", "spreadsheet", "CSV UTF-8"),
    "Excel's Unicode text": ("data inspect excel.csv", "excel.csv", "UTF-16", "CSV UTF-8"),
    "Latin-1": ("train latin1.csv", "latin1.csv, line 2", "not UTF-8", "save the file as UTF-8"),
    "archive": ("data inspect photos.zip", "photos.zip", "archive", "unzip"),
    "single image": ("data inspect images/a.png", "a.png", "single image"),
    "photos without captions": ("train uncaptioned", "uncaptioned", "4 images without captions", "CSV"),
    "empty folder": ("data inspect nobody", "nobody", "empty folder"),
    "folder of something else": ("data inspect notes", "notes", "todo.md"),
    "truncated JSON": ("data inspect broken.json", "broken.json, line 1", "invalid JSON"),
    "URLs": ("train urls.csv", "urls.csv, line 2", "URL", "download"),
    "no image is there": ("features missing.csv out --text-encoder none", "no image was found", "x.png", "--images"),
    "one image is missing": ("train one_missing.csv", "one_missing.csv, line 3", "no image file y.png"),
    "another case": ("data inspect case.csv --images images --skip-bad", "no image file A.PNG", "did you mean a.png?"),
    "no such image folder": ("train pairs.csv --images fotos", "fotos", "no such image folder"),
    "no caption": ("train no_caption.csv", "no_caption.csv, line 2", "a.png", "empty caption"),
    "an image that is none": ("features broken/pairs.csv out --text-encoder none", "b.png", "not an image"),
    "HEIC": ("features heic out --text-encoder none", "a.heic", "pip install pillow-heif"),
    "photos without features": ("train pairs.csv", "no image features", "tercet features"),
    "one split only": (
        "compare train_only.csv --image-encoder efficientnet-lite2 --text-encoder bag-of-words",
        "neither a test nor a validation split",
    ),
    "negative epochs": ("train scenes:30 --epochs -1", "--epochs", "at least 1", "-1"),
    "text for a number": ("train scenes:30 --epochs many", "--epochs", "many"),
    "no GPU": ("train scenes:30 --device cuda", "cuda", "no CUDA device"),
    "no such device": ("train scenes:30 --device gpu", "gpu", "cpu"),
    "index in place of a run": ("evaluate index --data pairs.csv", "not a saved model", "a search index"),
    "run in place of an index": ("search run dogs", "run", "not an index", "tercet index"),
    "data in place of a run": ("index pairs.csv", "pairs.csv", "not a saved model", "a file"),
    "run in place of data": ("data inspect run", "a run folder"),
    "port in use": ("serve --port {port} --runs .", "{port}", "in use"),
    "a model of the hub": ("features pairs.csv out --image-encoder no/such-model --text-encoder none", "no/such-model"),
    "missing argument": ("evaluate run", "missing: --data"),
    "no query": ("search index", "query"),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    make_world(folder)
    return folder


@pytest.fixture(scope="module")
def port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_in_one_line(mistake, world, port, monkeypatch):
    monkeypatch.setattr("tercet.hub.is_reachable", lambda: False)  # as on a machine without a network
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    command, *words = (text.format(port=port) for text in MISTAKES[mistake])
    done = tercet(*command.split(), cwd=world)
    assert done.returncode == 2
    *before, line = done.stderr.splitlines()
    assert all(text.startswith(("run folder ", "extracting ")) for text in before), "said before the message"
    assert line.startswith(f"tercet {command.split()[0]}: ")
    assert "Traceback" not in line
    assert not [word for word in words if word not in line], line


def print_table(folder, taken_port):
    """A Markdown table: what was typed, what is said."""
    print("| mistake | command | exit code | message |\n|---|---|---|---|")
    for mistake, (command, *_) in MISTAKES.items():
        done = tercet(*command.format(port=taken_port).split(), cwd=folder)
        message = done.stderr.splitlines()[-1].replace("|", "\\|")
        print(f"| {mistake} | `tercet {command}` | {done.returncode} | {message} |")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as taken:
        make_world(Path(folder))
        print_table(Path(folder), taken.getsockname()[1])
