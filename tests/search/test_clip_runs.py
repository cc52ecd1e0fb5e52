"""From a fine-tuned CLIP or SigLIP to pictures found: a run is indexed and searched as it lies on disk."""

import pytest

import tercet
from tercet.data.formats import open_data
from tercet.search.query import Searcher
from tests.models.tiny_clips import SAVED
from tests.search.made import SCENES, call


@pytest.mark.parametrize("kind", SAVED)
def test_a_run_is_indexed_and_searched(kind, tmp_path):
    folder = SAVED[kind](tmp_path / kind, open_data(SCENES).split("train").texts)
    given = {"data": SCENES, "model": "clip", "model_settings": {"clip": folder}, "epochs": 1, "batch_size": 9}
    run = tercet.train(**given, objective="nt-xent", runs=tmp_path / "runs")
    call(["index", str(run.folder), "--images", SCENES, "--out", str(tmp_path / "index")])
    searcher, model = Searcher.open(tmp_path / "index"), tercet.load(run.folder)
    split = open_data(SCENES).split("train")
    pictures = model.embed_pictures([split.pictures.open(n) for n in range(len(split.image_names))])
    text = split.texts[0]
    expected = (pictures @ model.embed_texts([text])[0]).tolist()
    found = {hit.number: hit.similarity for hit in searcher.words(text, len(searcher.index.items))}
    assert [found[number] for number in range(len(expected))] == pytest.approx(expected, abs=1e-5)
