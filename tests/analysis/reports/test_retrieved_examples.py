"""Retrieval examples of one and two runs: the right items and queries, on the page and in the JSON file."""

import json

import numpy as np
import pytest
import torch

import tercet
from tercet.analysis.reports.loaded_run import open_run_folder
from tercet.analysis.reports.retrieved_examples import resolve_query, write_examples
from tercet.comparison.report.report_page import example
from tercet.models import build
from tercet.training.eval_loop import EmbeddedSplit
from tests.analysis.reports.hostile_names import NAME, TEXT, hostile_run
from tests.browser import check_in_browser

SMALL = {"data": "scenes:90", "epochs": 1, "batch_size": 50, "model_settings": {"embed_dim": 16}}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    folders = [tercet.train(objective=name, runs=root, **SMALL).folder for name in ("nt-xent", "triplet")]
    return [open_run_folder(folder) for folder in folders]


@pytest.fixture(scope="module")
def written(loaded, tmp_path_factory):
    out = tmp_path_factory.mktemp("both")
    return write_examples(*loaded, out)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    return hostile_run(tmp_path_factory.mktemp("hostile"))


DOT_PRODUCT = build("heads", image_dim=3, caption_dim=3)  # only its similarity is used


def small_embedded():
    """3 images; captions 0 and 1 of the first, 2 of the second, 3 of the third."""
    S = torch.tensor([[0.1, 0.9, 0.5, 0.9], [0.1, 0.2, 0.4, 0.3], [0.2, 0.8, 0.6, 0.7]])
    return EmbeddedSplit(
        "by hand",
        DOT_PRODUCT,
        torch.eye(3),
        S.T.contiguous(),
        torch.tensor([[0, 0], [0, 1], [1, 2], [2, 3]]),
    )


def test_an_example_by_hand():
    """A tie counts against the query's own, in the rank and in the order."""
    by_image = example([small_embedded()], "i2t", 0, 2).answers[0]
    assert by_image.rank == 2
    assert [(result.item, result.own) for result in by_image.top] == [(3, False), (1, True)]
    assert by_image.nearest.item == 1
    by_caption = example([small_embedded()], "t2i", 2, 2, np.array([False, True, True])).answers[0]
    assert by_caption.rank == 3
    assert [(result.item, result.own, result.also_true) for result in by_caption.top] == [
        (2, False, True),
        (0, False, False),
    ]
    assert by_caption.nearest[:3] == (1, pytest.approx(0.4), True)


def test_the_document_equals_the_saved_ranks(loaded, written):
    document = json.loads((written.parent / "examples.json").read_text())
    saved = [tercet.runs.read_ranks(run.folder) for run in loaded]
    assert [run["folder"] for run in document["runs"]] == [run.name for run in loaded]
    assert {each["direction"] for each in document["examples"]} == {"t2i", "i2t"}
    for each in document["examples"]:
        for answer, ranks in zip(each["answers"], saved, strict=True):
            direction = each["direction"]
            kind = "caption" if direction == "t2i" else "image"
            is_query = ranks[kind] == each["query"][kind]
            assert answer["rank"] == ranks[f"{direction}_rank"][is_query].min()
            assert len(answer["results"]) == 5
            similarities = [result["similarity"] for result in answer["results"]]
            assert similarities == sorted(similarities, reverse=True)
            own = [rank for rank, result in enumerate(answer["results"], 1) if result["own"]]
            assert own[:1] == ([answer["rank"]] if answer["rank"] <= 5 else [])
            if own:
                assert answer["results"][own[0] - 1]["image"] == each["query"]["image"]


def test_queries_are_chosen_where_the_runs_differ_and_where_both_fail(written):
    document = json.loads((written.parent / "examples.json").read_text())
    reasons = set()
    for each in document["examples"]:
        first, second = (answer["rank"] for answer in each["answers"])
        reasons.add(each["why"])
        if each["why"] == "nt-xent is ahead":
            assert first < second
        elif each["why"] == "triplet is ahead":
            assert second < first
        else:
            assert min(first, second) > 5
    assert reasons == {"nt-xent is ahead", "triplet is ahead", "Both fail: not among the first 5"}


def test_known_matches_are_marked(loaded, tmp_path):
    """By the ground truth of the scenes: exactly the marked results are true."""
    data = loaded[0].held_out
    images, captions = torch.arange(len(data.images)), torch.arange(len(data.owners))
    true = data.truth(images, captions)
    caption = int((true & (data.owners[None] != images[:, None])).any(dim=0).nonzero()[0])
    image = int((true & (data.owners[None] != images[:, None])).any(dim=1).nonzero()[0])
    page = write_examples(*loaded, tmp_path, queries=[f"caption:{caption}", f"image:{image}"], shown=len(captions))
    of_caption, of_image = json.loads((tmp_path / "examples.json").read_text())["examples"]
    for answer in of_caption["answers"]:
        marked = {each["image"] for each in answer["results"] if each["own"] or each["also_true"]}
        assert marked == set(true[:, caption].nonzero().flatten().tolist())
    for answer in of_image["answers"]:
        marked = {each["caption"] for each in answer["results"] if each["own"] or each["also_true"]}
        assert marked == set(true[image].nonzero().flatten().tolist())
    assert "≈ also true</span>" in page.read_text()


def test_the_page_with_images_in_a_browser(written):
    page = written.read_text()
    assert page.count("data:image/jpeg") > 50
    assert "✓ own</span>" in page
    assert "move up" in page
    assert {file.name for file in (written.parent / "figures").iterdir()} == {"cross_ranks.png", "cross_ranks.svg"}
    check_in_browser(written)


def test_one_run_alone_and_given_queries(loaded, tmp_path):
    split = loaded[0].split(loaded[0].held_out)
    words = " ".join(split.texts[17].split()[:3]).upper()
    queries = ["caption:17", "image:3", split.image_names[4], split.texts[8], words]
    write_examples(loaded[0], None, tmp_path, queries=queries, shown=2)
    document = json.loads((tmp_path / "examples.json").read_text())
    shown = [(each["direction"], each["query"].get("caption", each["query"]["image"])) for each in document["examples"]]
    assert shown[:3] == [("t2i", 17), ("i2t", 3), ("i2t", 4)]
    assert all(split.texts[caption] == split.texts[8] for _, caption in shown[3:4])
    assert all(words.casefold() in split.texts[caption].casefold() for _, caption in shown[4:])
    assert len(shown) > 4
    assert {len(each["answers"]) for each in document["examples"]} == {1}
    assert {len(each["answers"][0]["results"]) for each in document["examples"]} == {2}
    assert "cross_ranks" not in document
    automatic = write_examples(loaded[0], None, tmp_path / "automatic")
    assert "Positive far down the ranking" in automatic.read_text()


def test_a_query_without_a_match_suggests_similar_ones(loaded, tmp_path):
    split = loaded[0].split(loaded[0].held_out)
    shape = next(text for text in split.texts if "triangle" in text)
    with pytest.raises(ValueError, match=r"no held-out caption contains .*similar: .*triangle"):
        write_examples(loaded[0], None, tmp_path, queries=[shape.replace("triangle", "trianggle")])
    with pytest.raises(ValueError, match="caption:0 to caption:"):
        write_examples(loaded[0], None, tmp_path, queries=[f"caption:{len(split.texts)}"])
    with pytest.raises(ValueError, match=split.image_names[5]):
        resolve_query(split.image_names[5] + "x", split)
    with pytest.raises(ValueError, match="empty"):
        resolve_query(" ", split)
    with pytest.raises(ValueError, match="at least 1"):
        write_examples(loaded[0], None, tmp_path, shown=0)
    assert not list(tmp_path.iterdir())


def test_two_runs_must_have_the_same_held_out_split(loaded, hostile, tmp_path):
    with pytest.raises(ValueError, match=r"evaluated on different data.* images and 10"):
        write_examples(loaded[0], hostile, tmp_path)
    with pytest.raises(ValueError, match="given twice"):
        write_examples(loaded[0], loaded[0], tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_hostile_names_are_escaped(hostile, tmp_path):
    """Without image files, names and captions are on the page as text."""
    page = write_examples(hostile, None, tmp_path, queries=["caption:7", f"test {NAME}", TEXT[:8]], shown=10)
    content = page.read_text()
    assert "<script>" not in content
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; ein Hündchen „zu Hause“ 犬" in content
    assert "&lt;b&gt;.jpg" in content
    assert "“&lt;script&gt;”" in content
    assert TEXT in {
        each["query"].get("text") for each in json.loads((tmp_path / "examples.json").read_text())["examples"]
    }
    check_in_browser(page)
