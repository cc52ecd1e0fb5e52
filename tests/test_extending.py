"""docs/extending.md: the package on the page is installed, and every extension point is used by its entry point."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tercet
from tercet import plugins
from tercet.cli.main import main
from tercet.data.encoders.registry import text_encoder
from tercet.data.formats import open_data
from tercet.search.searcher import Searcher

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tests" / "extension_package"
PAGE = (ROOT / "docs" / "extending.md").read_text()
SCENES = "scenes:90"


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory):
    """The package, installed by pip into a folder of its own that is on sys.path."""
    folder = tmp_path_factory.mktemp("installed")
    source = shutil.copytree(PACKAGE, folder / "source")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target"]
    subprocess.run([*command, str(folder / "site"), str(source)], check=True)
    sys.path.insert(0, str(folder / "site"))
    plugins._entry_points.cache_clear()
    yield
    sys.path.remove(str(folder / "site"))
    plugins._entry_points.cache_clear()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of the package's model and objective."""
    return tercet.train(
        model="mean-words", objective="squared", data=SCENES, epochs=3, runs=tmp_path_factory.mktemp("runs")
    )


@pytest.mark.parametrize("file", sorted((PACKAGE / "tercet_examples").glob("[a-z]*.py")), ids=lambda file: file.stem)
def test_the_page_shows_the_files_of_the_package_in_less_than_30_lines(file):
    text = file.read_text()
    assert f"```python\n{text.rstrip()}\n```" in PAGE
    assert len([line for line in text.splitlines() if line.strip()]) < 30


def test_the_page_shows_its_pyproject():
    assert (PACKAGE / "pyproject.toml").read_text().rstrip() in PAGE
    for group in re.findall(r'entry-points."(tercet\.\w+)"', PAGE):
        assert plugins.installed(group), group


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("objectives", ["squared", "nt-xent"]),
        ("models", ["mean-words", "vsepp"]),
        ("recipes", ["vsrn-f30k"]),
        ("formats", ["pairs", "karpathy"]),
        ("metrics", ["worst", "mrr", "fr5"]),
        ("encoders", ["thumbnail", "minilm"]),
        ("protocols", ["coco-5k"]),
        ("executors", ["in-turn", "local"]),
        ("stores", ["numpy", "faiss"]),
    ],
)
def test_list_prints_what_there_is(what, names, capsys):
    main(["list", what])
    first_words = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert set(names) <= set(first_words)


def test_objective_and_model(run):
    assert tercet.check_objective("squared", processes=False)
    settings = json.loads((run.folder / "settings.json").read_text())
    assert (settings["objective"], settings["objective_settings"]["weight"]) == ("squared", 1.0)
    assert (settings["learning_rate"], settings["batch_size"]) == (0.005, 32)
    assert run.metrics["rsum"] > 120  # chance is 96
    assert tercet.load(run.folder).embed_texts(["a red circle"]).shape == (1, 32)


def test_metric(run, capsys):
    assert run.metrics["t2i_worst"] == run.metrics["t2i_meanr"]  # a caption has one image
    assert run.metrics["i2t_worst"] > run.metrics["i2t_meanr"]
    with pytest.raises(ValueError, match="i2t_worst' cannot select weights"):
        tercet.train(data=SCENES, select_metric="i2t_worst")


def test_format_and_encoder(tmp_path, capsys):
    split = open_data(SCENES).split("train")
    lines = []
    for number in range(12):
        split.image_files.open(number).save(tmp_path / f"{number}.png")
        lines.append(f"{'train' if number < 8 else 'test'} | {number}.png | {split.texts[5 * number]}")
    (tmp_path / "photos.pairs").write_text("\n".join(lines) + "\n")
    target = tmp_path / "features"
    given = ["--image-encoder", "thumbnail", "--text-encoder", "bag-of-words"]
    main(["features", str(tmp_path / "photos.pairs"), str(target), *given])
    data = open_data(target)
    assert data.split("train").features.shape == (8, 192)
    (tmp_path / "bad.pairs").write_text("no bars here\n")
    with pytest.raises(ValueError, match="line 1: expected split"):
        open_data(tmp_path / "bad.pairs")
    with pytest.raises(ValueError, match="'thumbnail' does not encode texts"):
        text_encoder("thumbnail")


def test_executor(tmp_path):
    comparison = tercet.compare(
        data=SCENES,
        objectives=("squared", "nt-xent"),
        seeds=1,
        epochs=1,
        no_tune=True,
        runs=tmp_path,
        executor="in-turn",
    )
    assert sorted(comparison.results.names()) == ["nt-xent", "squared"]
    with pytest.raises(ValueError, match=r"unknown executor 'in-trun' \(did you mean in-turn\?\)"):
        tercet.compare(data=SCENES, executor="in-trun", runs=tmp_path)


def test_store(run, tmp_path):
    from tests.search.small_indexes import model

    model("vsepp").save(tmp_path / "model")
    main(["index", str(tmp_path / "model"), "--images", "scenes:20", "--out", str(tmp_path / "a"), "--store", "numpy"])
    main(["index", str(tmp_path / "model"), "--images", "scenes:20", "--out", str(tmp_path / "b")])
    one, other = (Searcher.open(tmp_path / name) for name in "ab")
    assert type(one.index.store).__name__ == "NumpyStore"
    first, second = one.search_text("a red circle", k=9), other.search_text("a red circle", k=9)
    assert [hit.item.path for hit in first] == [hit.item.path for hit in second]
    np.testing.assert_allclose([hit.similarity for hit in first], [hit.similarity for hit in second], atol=1e-5)
    # An update keeps the store.
    main(["index", str(tmp_path / "model"), "--images", "scenes:25", "--out", str(tmp_path / "a")])
    assert type(Searcher.open(tmp_path / "a").index.store).__name__ == "NumpyStore"
