"""Search by text and by image, from the command line and from Python."""

import json
import os
import sys

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

import tercet
from tercet.cli.main import main
from tercet.data.image_io import ImageFile
from tercet.search.index import open_index
from tercet.search.metadata import IndexedImages, checksum_of
from tercet.search.searcher import Searcher
from tests.commands import tercet as command
from tests.search.test_index import draw
from tests.test_inference import minilm, retrievers  # noqa: F401 - a fixture


@pytest.fixture(scope="module")
def searched(tmp_path_factory, minilm):  # noqa: F811
    folder = tmp_path_factory.mktemp("search")
    retrievers(minilm)["vsepp pixels"].save(folder / "model")
    draw(folder / "photos", [f"p{n:02d}" for n in range(12)])
    (folder / "photos" / "broken.jpg").write_text("no image")
    output = run(folder, "index", "model", "--images", "photos", "--out", "found", "--skip-bad")
    return folder, output


def run(folder, *arguments):
    done = command(*arguments, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_update_prints_its_counts(searched):
    folder, output = searched
    assert "found: 12 added, 0 changed, 0 unchanged, 0 removed" in output
    assert "skipped" in output
    assert "broken.jpg" in output
    assert "0 added, 0 changed, 12 unchanged" in run(
        folder, "index", "model", "--images", "photos", "--out", "found", "--skip-bad"
    )


def test_text_and_image_search_agree_with_the_model(searched):
    folder, _ = searched
    searcher = Searcher.open(folder / "found")
    model = tercet.load(folder / "model")
    paths = [item.path for item in searcher.index.items]
    images = model.embed_images(paths)
    similarity = (model.embed_texts(["two dogs"]) @ images.T)[0]
    hits = searcher.search_text("two dogs", k=5)
    assert [hit.item.path for hit in hits] == [paths[n] for n in similarity.argsort(descending=True)[:5]]
    assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5]
    assert np.allclose([hit.similarity for hit in hits], similarity.sort(descending=True).values[:5], atol=1e-6)
    assert searcher.search_image(paths[7], k=1)[0].item.path == paths[7]
    assert searcher.search_image(Image.open(paths[7]), k=1)[0].similarity == pytest.approx(1.0, abs=1e-5)


def test_the_command_prints_a_table_or_json(searched):
    folder, _ = searched
    assert "similarity" in run(folder, "search", "found", "two dogs in snow")
    hits = json.loads(run(folder, "search", "found", "--image", "photos/p03.png", "--k", "2", "--json"))
    assert [hit["rank"] for hit in hits] == [1, 2]
    assert hits[0]["path"].endswith("p03.png")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("search", "found"), "either a query text or --image"),
        (("search", "found", "dogs", "--image", "photos/p03.png"), "either a query text or --image"),
        (("search", "nowhere", "dogs"), "not an index (no index.json)"),
        (("search", "found", "dogs", "--k", "0"), "k must be from 1 to 1,000"),
        (("search", "found", "x" * 1001), "at most 1,000"),
        (("search", "found", " "), "text 0"),
        (("search", "found", "--image", "photos/broken.jpg"), "broken.jpg"),
        (("search", "found", "dogs", "--model", "nowhere"), "not a saved model"),
        (("index", "model", "--images", "nowhere"), "nowhere"),
        (("index", "nowhere", "--images", "photos"), "not a saved model"),
    ],
)
def test_mistakes_get_one_line(searched, arguments, message, monkeypatch, capsys, without_shape_checks):
    monkeypatch.chdir(searched[0])
    monkeypatch.setattr(sys, "argv", ["tercet", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert "Traceback" not in printed
    assert len(printed.strip().splitlines()) == 1


def test_brackets_are_not_markup(tmp_path, minilm):  # noqa: F811
    retrievers(minilm)["vsepp pixels"].save(tmp_path / "model")
    draw(tmp_path / "photos", ["[red]a", "[", "[bold"])
    run(tmp_path, "index", "model", "--images", "photos", "--out", "found")
    output = run(tmp_path, "search", "found", "dogs")
    assert "[red]a.png" in "".join(output.split())


def test_images_inside_a_data_file_are_readable_from_any_directory(tmp_path, minilm, monkeypatch):  # noqa: F811
    retrievers(minilm)["vsepp pixels"].save(tmp_path / "model")
    draw(tmp_path / "photos", ["a", "b"])
    photos = [path.read_bytes() for path in sorted((tmp_path / "photos").iterdir())]
    rows = {"image": [{"bytes": photo, "path": None} for photo in photos], "caption": ["a [/bold] dog", "a cat"]}
    parquet.write_table(pyarrow.table(rows), tmp_path / "scenes_packed.parquet")
    run(tmp_path, "index", "model", "--images", "scenes_packed.parquet", "--out", "found")
    assert "a [/bold] dog" in run(tmp_path, "search", "found", "dogs")
    monkeypatch.chdir("/")
    index = open_index(tmp_path / "found")
    source = IndexedImages(index.manifest["source"])
    assert [checksum_of(source.image_file(item).content()) for item in index.items] == [i.checksum for i in index.items]
    os.utime(tmp_path / "photos" / "a.png", (0, 0))  # a modification time of 0 is still a file
    run(tmp_path, "index", "model", "--images", "photos", "--out", "old")
    item = open_index(tmp_path / "old").items[0]
    assert isinstance(IndexedImages(None).image_file(item), ImageFile)
