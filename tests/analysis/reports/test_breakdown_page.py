"""The gradient breakdown page: its numbers are those of the objective's gradient."""

import json
from dataclasses import replace

import pytest
import torch

import tercet
from tercet.analysis.reports.breakdown_page import known_false_negatives, write_breakdown
from tercet.analysis.reports.loaded_run import open_run_folder
from tests.analysis.reports.hostile_names import hostile_run
from tests.browser import check_in_browser
from tests.shared_runs import small_run


@pytest.fixture(scope="module")
def loaded():
    return open_run_folder(small_run())


@pytest.fixture(scope="module")
def written(loaded, tmp_path_factory):
    return write_breakdown(loaded, tercet.objective("triplet"), tmp_path_factory.mktemp("breakdown"), batch=1)


def read(page):
    return json.loads(page.with_suffix(".json").read_text())


def test_every_number_is_an_entry_of_the_gradient(loaded, written):
    objective, document = tercet.objective("triplet"), read(written)
    batch = list(loaded.batches(objective))[1]
    assert document["captions"] == batch.indices.captions.tolist()
    i2t, t2i = objective.pair_gradients(batch.similarity.double(), batch.positives)
    columns = {caption: column for column, caption in enumerate(document["captions"])}
    assert [each["direction"] for each in document["anchors"]] == ["i2t"] * 3 + ["t2i"] * 3
    for each in document["anchors"]:
        of_caption = each["direction"] == "t2i"
        anchor = each["anchor"]["caption" if of_caption else "image"]
        row = t2i[:, columns[anchor]] if of_caption else i2t[document["images"].index(anchor)]
        forces = each["pulls"] + each["pushes"]
        assert sum(force["gradient"] for force in forces) == pytest.approx(float(row.sum()))
        assert len(forces) == int((row != 0).sum())
        assert all(force["gradient"] < 0 and force["positive"] for force in each["pulls"])
        assert all(force["gradient"] > 0 and not force["positive"] for force in each["pushes"])
        for kind in (each["pulls"], each["pushes"]):
            assert not kind or sum(force["share"] for force in kind) == pytest.approx(1)
        assert each["pushing"] == len(each["pushes"])  # an active triplet pushes by 1
    roles = {each["role"] for each in document["anchors"]}
    assert {"strongest", "median"} <= roles <= {"strongest", "median", "silent", "weakest"}


def test_the_summary_is_what_cocos_counts(loaded, written):
    """Silent anchors and pushing negatives equal those of COCOS."""
    objective = tercet.objective("triplet")
    batch = list(loaded.batches(objective))[1]
    counts = tercet.cocos(objective, batch.similarity, batch.positives)
    for direction, summary in read(written)["summary"].items():
        assert summary["silent"] == counts[direction]["silent"]
        assert summary["pushing_mean"] == pytest.approx(counts[direction]["negatives"])
        assert summary["hardest_share_mean"] == pytest.approx(counts[direction]["hardest_share"])


def test_false_negatives_are_known_by_ground_truth_words_and_image(loaded):
    data = loaded.prepared.train
    batch = next(loaded.batches(tercet.objective("triplet")))
    images, captions = batch.indices.images, batch.indices.captions
    masks = known_false_negatives(data, batch.indices, batch.positives)
    assert (masks["also true"] == data.truth(images, captions) & ~batch.positives).all()
    assert masks["also true"].any()
    assert not masks["same image"].any()
    texts = list(data.texts)
    image, caption = next((i, c) for i in range(20) for c in range(20) if not batch.positives[i, c])
    own = int((data.owners == images[image]).nonzero()[0])
    texts[own] = texts[int(captions[caption])]
    changed = known_false_negatives(replace(data, texts=tuple(texts), truth=None), batch.indices, batch.positives)
    assert changed["same words"][image, caption]
    assert "also true" not in changed
    diagonal = known_false_negatives(data, batch.indices, torch.eye(len(images), dtype=torch.bool))
    expected = (images[:, None] == data.owners[captions][None]) & ~torch.eye(len(images), dtype=torch.bool)
    assert (diagonal["same image"] == expected).all()
    assert expected.any()


def test_the_page_has_sentences_and_marks(loaded, written, tmp_path):
    document, page = read(written), written.read_text()
    for each in document["anchors"]:
        assert each["sentence"] in page
    assert "✓ own</span>" in page
    assert "hardest</span>" in page
    many = write_breakdown(loaded, tercet.objective("nt-xent"), tmp_path, anchors=60)
    assert "≈ also true</span>" in many.read_text()
    check_in_browser(written)


@pytest.mark.parametrize("name", ["cir/sig-ms", pytest.param("smooth-ap", marks=pytest.mark.slow)])
def test_other_objectives_than_its_own(loaded, name, tmp_path):
    page = write_breakdown(loaded, tercet.objective(name), tmp_path, anchors=3)
    assert [each["direction"] for each in read(page)["anchors"]] == ["i2t", "i2t", "t2i"]
    check_in_browser(page, widths=(360,))


def test_a_batch_or_number_of_anchors_out_of_range_is_refused(loaded, tmp_path):
    with pytest.raises(ValueError, match=r"batch 4: there are 4 batches, 0 to 3"):
        write_breakdown(loaded, tercet.objective("triplet"), tmp_path, batch=4)
    with pytest.raises(ValueError, match="batch -1"):
        write_breakdown(loaded, tercet.objective("triplet"), tmp_path, batch=-1)
    with pytest.raises(ValueError, match="anchors must be at least 1, got 0"):
        write_breakdown(loaded, tercet.objective("triplet"), tmp_path, anchors=0)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_hostile_names_are_escaped(tmp_path):
    run = hostile_run(tmp_path)
    page = write_breakdown(run, tercet.objective("triplet"), tmp_path / "out", anchors=400)
    content = page.read_text()
    assert "<script>" not in content
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; ein Hündchen" in content
    assert "&lt;b&gt;.jpg" in content
    check_in_browser(page)
