"""Ranks and metrics equal those of the authors' evaluation code."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import tercet
from tercet.evaluation import (
    Positives,
    evaluate_tiles,
    mean_of_tiles,
    rank_positives,
    tiles_of_embeddings,
    tiles_of_matrix,
)
from tercet.evaluation.blocked_similarity import tiles_of_blocks
from tercet.evaluation.eccv_caption import (
    CAPTION_THRESHOLD,
    IMAGE_THRESHOLD,
    coco_test,
    intra_recalls,
    positives_of_lists,
    rated_pairs,
    siblings,
)
from tercet.evaluation.evaluator import Task, annotated_metrics, evaluate_folds
from tercet.evaluation.metrics import direction_metrics
from tercet.legacy.printed_metrics import explain_legacy, summary
from tercet.similarity import order

GOLDENS = Path(__file__).parents[1] / "goldens"
COLUMNS = ("r1", "r5", "r10", "medr", "meanr")
FOLD_COLUMNS = [f"{direction}_{name}" for direction in ("i2t", "t2i") for name in COLUMNS] + [
    "i2t_ar",
    "t2i_ar",
    "rsum",
]


def golden(name):
    return load_file(GOLDENS / f"{name}.safetensors"), json.loads((GOLDENS / f"{name}.json").read_text())


def best_ranks(ranks):
    """The 0-based rank of each anchor's best positive."""
    best = np.full(ranks.anchor.max() + 1, np.inf)
    np.minimum.at(best, ranks.anchor, ranks.rank)
    return best - 1


def assert_same_ranks(ranks, tensors, name):
    assert best_ranks(ranks.i2t).tolist() == tensors[f"{name[0]}.i2t.ranks{name[1]}"].tolist()
    assert best_ranks(ranks.t2i).tolist() == tensors[f"{name[0]}.t2i.ranks{name[1]}"].tolist()


@pytest.mark.parametrize("measure", ["cosine", "order"])
def test_vsepp_ranks_and_metrics(measure):
    tensors, notes = golden("vsepp_eval")
    x, y = tensors["in.images_5x"][::5], tensors["in.captions"]
    owners = torch.arange(40).repeat_interleave(5)
    tiles = tiles_of_embeddings(x, y)
    if measure == "order":  # theirs is the order similarity of absolute values, in float32
        tiles = tiles_of_blocks(order, x.abs().float(), y.abs().float(), entries=1000)
    evaluation = evaluate_tiles(tiles, owners)
    assert_same_ranks(evaluation.ranks, tensors, ("out", f".{measure}.npts40"))
    for direction, values in notes["metrics"][f"{measure}.npts40"].items():
        assert [evaluation.metrics[f"{direction}_{name}"] for name in COLUMNS] == pytest.approx(values, abs=1e-9)


def test_vsepp_with_fewer_queries_keeps_all_candidates():
    tensors, notes = golden("vsepp_eval")
    tiles = tiles_of_embeddings(tensors["in.images_5x"][::5], tensors["in.captions"])
    rows = torch.arange(20).repeat_interleave(5)
    ranks = rank_positives(
        tiles, Positives.of_owners(rows)
    )  # queries are 20 images and their captions; the rest are only candidates
    assert_same_ranks(ranks, tensors, ("out", ".cosine.npts20"))
    for direction, values in notes["metrics"]["cosine.npts20"].items():
        metrics = direction_metrics(getattr(ranks, direction))
        assert [metrics[name] for name in COLUMNS] == pytest.approx(values, abs=1e-9)


@pytest.fixture(scope="module")
def vseinf():
    return golden("vseinf_eval")


OWNERS = torch.arange(50).repeat_interleave(5)


def tiles_of(tensors, name):
    first = tiles_of_matrix(tensors["out.sim1"])
    return first if name == "model1" else mean_of_tiles([first, tiles_of_matrix(tensors["out.sim2"])])


@pytest.mark.parametrize("name", ["model1", "ensemble"])
def test_vse_infinity_ranks_folds_and_ensemble(vseinf, name):
    tensors, notes = vseinf
    expected = notes["results"][name]
    tiles = tiles_of(tensors, name)
    evaluation = evaluate_tiles(tiles, OWNERS)
    assert_same_ranks(evaluation.ranks, tensors, (f"out.{name}", ""))
    for direction in ("i2t", "t2i"):
        assert [evaluation.metrics[f"{direction}_{column}"] for column in COLUMNS] == pytest.approx(
            expected[direction], abs=1e-9
        )
    assert evaluation.metrics["rsum"] == pytest.approx(expected["rsum"], abs=1e-9)
    folded = evaluate_folds(Task(tiles, OWNERS), 5)
    for fold, values in zip(folded.folds, expected["folds"], strict=True):
        assert [fold[column] for column in FOLD_COLUMNS] == pytest.approx(values, abs=1e-9)
    assert [folded.metrics[column] for column in FOLD_COLUMNS] == pytest.approx(expected["fold_mean"], abs=1e-9)


def test_vse_infinity_embeddings_give_their_similarity(vseinf):
    tensors, notes = vseinf
    metrics = tercet.evaluate_embeddings(tensors["in.img"], tensors["in.cap"], OWNERS)
    assert metrics["rsum"] == pytest.approx(notes["results"]["model1"]["rsum"], abs=1e-9)


def test_vse_infinity_one_caption_per_image(vseinf):
    tensors, notes = vseinf
    evaluation = evaluate_tiles(tiles_of_embeddings(tensors["in.img"], tensors["in.cap"][::5]))
    assert_same_ranks(evaluation.ranks, tensors, ("out.single", ""))
    for direction, values in notes["results"]["single_caption_mode"].items():
        assert [evaluation.metrics[f"{direction}_{column}"] for column in COLUMNS] == pytest.approx(values, abs=1e-9)


def test_vse_infinity_log_lines(vseinf):
    tensors, notes = vseinf
    evaluation = evaluate_folds(Task(tiles_of(tensors, "ensemble"), OWNERS), 5)
    mean = evaluation.metrics
    lines = summary(mean["rsum"], mean["i2t_ar"], mean["t2i_ar"], mean)
    assert lines == notes["results"]["ensemble_log_fold5_tail"]
    whole = evaluate_tiles(tiles_of(tensors, "ensemble"), OWNERS).metrics
    assert [line.strip() for line in explain_legacy(whole)[1:]] == notes["results"]["ensemble_log_full"]


def test_vse_infinity_cxc(vseinf):
    tensors, notes = vseinf
    cxc = notes["results"]["cxc"]
    image_ids, caption_ids = np.array(cxc["img_ids"], dtype=np.int64), np.array(cxc["cap_ids"], dtype=np.int64)
    lists = {
        kind: {int(query): [(other, rating) for other, rating in rated] for query, rated in ratings.items()}
        for kind, ratings in cxc["annot"].items()
    }
    ids = {
        kind: {query: [other for other, _ in rated] for query, rated in lists[kind].items()} for kind in ("i2t", "t2i")
    }
    positives = positives_of_lists(ids["i2t"], ids["t2i"], image_ids, caption_ids)
    ranks = rank_positives(tiles_of(tensors, "model1"), positives)
    metrics = annotated_metrics(ranks, "cxc")
    for direction in ("i2t", "t2i"):
        assert [metrics[f"cxc_{direction}_r{k}"] for k in (1, 5, 10)] == pytest.approx(cxc[direction], abs=1e-9)
    images = rated_pairs(lists["i2i"], image_ids, IMAGE_THRESHOLD)
    recalls = intra_recalls(tensors["in.img"], images, own_similarity=0.0)
    assert list(recalls.values()) == pytest.approx(cxc["i2i"], abs=1e-9)
    rated, own = rated_pairs(lists["t2t"], caption_ids, CAPTION_THRESHOLD), siblings(OWNERS)
    captions = rated | own
    recalls = intra_recalls(tensors["in.cap"], captions, own_similarity=0.0)
    assert list(recalls.values()) == pytest.approx(cxc["t2t"], abs=1e-9)


def test_ecir22_average_precision_as_coded_and_correct():
    tensors, _ = golden("ecir22_losses")
    similarity = tensors["in.map.sim"]
    positives = torch.arange(30)[:, None] == torch.arange(30).repeat_interleave(5)[None, :]
    metrics = tercet.evaluate(similarity, positives)
    assert metrics["i2t_map5_published"] == pytest.approx(tensors["out.ap.coded5"].mean().item(), abs=1e-9)
    assert metrics["i2t_map5"] == pytest.approx(tensors["out.ap.correct5"].mean().item(), abs=1e-9)


def eccv_case():
    tensors, notes = golden("eccv_caption")
    image_ids, caption_ids = tensors["in.image_ids"].numpy(), tensors["in.caption_ids"].numpy()
    column = {caption: index for index, caption in enumerate(caption_ids.tolist())}
    row = {image: index for index, image in enumerate(image_ids.tolist())}
    i2t, t2i = torch.empty(25, 125, dtype=torch.float64), torch.empty(25, 125, dtype=torch.float64)
    for i, ranking in enumerate(tensors["in.i2t_ranking"].tolist()):
        i2t[i, [column[caption] for caption in ranking]] = -torch.arange(125.0, dtype=torch.float64)
    for j, ranking in enumerate(tensors["in.t2i_ranking"].tolist()):
        t2i[[row[image] for image in ranking], j] = -torch.arange(25.0, dtype=torch.float64)
    return i2t, t2i, image_ids, caption_ids, notes["small"]


@pytest.mark.parametrize(("theirs", "prefix"), [("original", "coco_5k"), ("cxc", "cxc"), ("eccv", "eccv")])
def test_eccv_caption_small(theirs, prefix):
    i2t, t2i, image_ids, caption_ids, small = eccv_case()
    lists = {
        direction: {
            int(query): [int(other) for other in listed] for query, listed in small["gts"][theirs][direction].items()
        }
        for direction in ("i2t", "t2i")
    }
    positives = positives_of_lists(lists["i2t"], lists["t2i"], image_ids, caption_ids)
    for direction, similarity in (("i2t", i2t), ("t2i", t2i)):
        ranks = rank_positives(tiles_of_matrix(similarity), positives)
        metrics = direction_metrics(getattr(ranks, direction))
        for k in (1, 5, 10):
            assert metrics[f"r{k}"] == pytest.approx(100 * small["results"][f"{prefix}_r{k}"][direction], abs=1e-9)
        if theirs == "eccv":
            assert metrics["map_r"] == pytest.approx(small["results"]["eccv_map_at_r"][direction], abs=1e-9)
            assert metrics["rprecision"] == pytest.approx(small["results"]["eccv_rprecision"][direction], abs=1e-9)


def real_case(notes):
    random = np.random.RandomState(112)
    x = random.randn(5000, 16)
    y = np.repeat(x, 5, axis=0) + 1.2 * random.randn(25000, 16)
    return torch.from_numpy(x), torch.from_numpy(y), notes["real_ids"]["results"]


@pytest.mark.parametrize(
    ("protocol", "prefix"), [("eccv-caption", "eccv"), pytest.param("cxc", "cxc", marks=pytest.mark.slow)]
)
def test_protocols_on_the_real_ids(protocol, prefix):
    x, y, expected = real_case(golden("eccv_caption")[1])
    published = coco_test()
    ids, owners = torch.from_numpy(published.image_ids), torch.from_numpy(published.owners)
    metrics = tercet.evaluate_embeddings(x.float(), y.float(), owners, protocol=protocol, image_ids=ids)
    for direction in ("i2t", "t2i"):
        for k in (1, 5, 10):
            assert metrics[f"{direction}_r{k}"] == pytest.approx(100 * expected[f"coco_5k_r{k}"][direction], abs=0.02)
            assert metrics[f"{prefix}_{direction}_r{k}"] == pytest.approx(
                100 * expected[f"{prefix}_r{k}"][direction], abs=0.02
            )
        if prefix == "eccv":
            assert metrics[f"eccv_{direction}_map_r"] == pytest.approx(expected["eccv_map_at_r"][direction], abs=2e-4)
            assert metrics[f"eccv_{direction}_rprecision"] == pytest.approx(
                expected["eccv_rprecision"][direction], abs=2e-4
            )
    if prefix == "eccv":
        return
    # With caption ids, the order of captions does not matter.
    shuffled = torch.randperm(25000, generator=torch.Generator().manual_seed(0))
    again = tercet.evaluate_embeddings(
        x.float(), y.float()[shuffled], owners[shuffled], protocol=protocol, image_ids=ids,
        caption_ids=torch.from_numpy(published.caption_ids)[shuffled],
    )  # fmt: skip
    assert again == pytest.approx(metrics, abs=0.02)
