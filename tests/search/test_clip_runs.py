"""A run of a fine-tuned CLIP or SigLIP is indexed and searched from its run folder."""

import pytest

import tercet
from tercet.data.formats import open_data
from tercet.search.searcher import Searcher
from tests.search.small_indexes import SCENES, call
from tests.tiny_models import SAVED_DUAL_ENCODERS


@pytest.mark.parametrize("kind", SAVED_DUAL_ENCODERS)
def test_a_run_is_indexed_and_searched(kind, tmp_path):
    folder = SAVED_DUAL_ENCODERS[kind](tmp_path / kind, open_data(SCENES).split("train").texts)
    settings = {"data": SCENES, "model": "clip", "model_settings": {"clip": folder}, "epochs": 1, "batch_size": 9}
    run = tercet.train(**settings, objective="nt-xent", runs=tmp_path / "runs")
    call(["index", str(run.folder), "--images", SCENES, "--out", str(tmp_path / "index")])
    searcher, model = Searcher.open(tmp_path / "index"), tercet.load(run.folder)
    split = open_data(SCENES).split("train")
    images = model.embed_images([split.image_files.open(n) for n in range(len(split.image_names))])
    text = split.texts[0]
    expected = (images @ model.embed_texts([text])[0]).tolist()
    similarity = {hit.number: hit.similarity for hit in searcher.search_text(text, len(searcher.index.items))}
    assert [similarity[number] for number in range(len(expected))] == pytest.approx(expected, abs=1e-5)
