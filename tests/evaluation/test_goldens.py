"""Ranks and metrics that the authors' own evaluations gave."""

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
from tercet.evaluation.annotations import coco_test, positives_of_lists
from tercet.evaluation.intra import CAPTION_THRESHOLD, IMAGE_THRESHOLD, intra_recalls, rated_pairs, siblings
from tercet.evaluation.legacy import explain_legacy, summary
from tercet.evaluation.metrics import direction_metrics
from tercet.evaluation.protocols import Task, annotated_metrics, in_folds
from tercet.evaluation.tiles import tiles_of_blocks
from tercet.similarity import order

GOLDENS = Path(__file__).parents[1] / "goldens"
COLUMNS = ("r1", "r5", "r10", "medr", "meanr")
FOLD_COLUMNS = [f"{side}_{name}" for side in ("i2t", "t2i") for name in COLUMNS] + ["i2t_ar", "t2i_ar", "rsum"]


def golden(name):
    return load_file(GOLDENS / f"{name}.safetensors"), json.loads((GOLDENS / f"{name}.json").read_text())


def best_ranks(ranks):
    """0-based, of each anchor's best positive."""
    best = np.full(ranks.anchor.max() + 1, np.inf)
    np.minimum.at(best, ranks.anchor, ranks.rank)
    return best - 1


def same_ranks(ranks, tensors, name):
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
    found = evaluate_tiles(tiles, owners)
    same_ranks(found.ranks, tensors, ("out", f".{measure}.npts40"))
    for side, numbers in notes["metrics"][f"{measure}.npts40"].items():
        assert [found.metrics[f"{side}_{name}"] for name in COLUMNS] == pytest.approx(numbers, abs=1e-9)


def test_vsepp_with_fewer_queries_keeps_all_candidates():
    tensors, notes = golden("vsepp_eval")
    tiles = tiles_of_embeddings(tensors["in.images_5x"][::5], tensors["in.captions"])
    rows = torch.arange(20).repeat_interleave(5)
    ranks = rank_positives(tiles, Positives.of_owners(rows))  # 20 images' captions; the rest are candidates alone
    same_ranks(ranks, tensors, ("out", ".cosine.npts20"))
    for side, numbers in notes["metrics"]["cosine.npts20"].items():
        metrics = direction_metrics(getattr(ranks, side))
        assert [metrics[name] for name in COLUMNS] == pytest.approx(numbers, abs=1e-9)


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
    wanted = notes["results"][name]
    tiles = tiles_of(tensors, name)
    found = evaluate_tiles(tiles, OWNERS)
    same_ranks(found.ranks, tensors, (f"out.{name}", ""))
    for side in ("i2t", "t2i"):
        assert [found.metrics[f"{side}_{each}"] for each in COLUMNS] == pytest.approx(wanted[side], abs=1e-9)
    assert found.metrics["rsum"] == pytest.approx(wanted["rsum"], abs=1e-9)
    folded = in_folds(Task(tiles, OWNERS), 5)
    for fold, numbers in zip(folded.folds, wanted["folds"], strict=True):
        assert [fold[each] for each in FOLD_COLUMNS] == pytest.approx(numbers, abs=1e-9)
    assert [folded.metrics[each] for each in FOLD_COLUMNS] == pytest.approx(wanted["fold_mean"], abs=1e-9)


def test_vse_infinity_embeddings_give_their_similarity(vseinf):
    tensors, notes = vseinf
    metrics = tercet.evaluate_embeddings(tensors["in.img"], tensors["in.cap"], OWNERS)
    assert metrics["rsum"] == pytest.approx(notes["results"]["model1"]["rsum"], abs=1e-9)


def test_vse_infinity_one_caption_an_image(vseinf):
    tensors, notes = vseinf
    found = evaluate_tiles(tiles_of_embeddings(tensors["in.img"], tensors["in.cap"][::5]))
    same_ranks(found.ranks, tensors, ("out.single", ""))
    for side, numbers in notes["results"]["single_caption_mode"].items():
        assert [found.metrics[f"{side}_{each}"] for each in COLUMNS] == pytest.approx(numbers, abs=1e-9)


def test_vse_infinity_log_lines(vseinf):
    tensors, notes = vseinf
    found = in_folds(Task(tiles_of(tensors, "ensemble"), OWNERS), 5)
    mean = found.metrics
    lines = summary(mean["rsum"], mean["i2t_ar"], mean["t2i_ar"], mean)
    assert lines == notes["results"]["ensemble_log_fold5_tail"]
    whole = evaluate_tiles(tiles_of(tensors, "ensemble"), OWNERS).metrics
    assert [line.strip() for line in explain_legacy(whole)[1:]] == notes["results"]["ensemble_log_full"]


def test_vse_infinity_cxc(vseinf):
    tensors, notes = vseinf
    cxc = notes["results"]["cxc"]
    image_ids, caption_ids = np.array(cxc["img_ids"], dtype=np.int64), np.array(cxc["cap_ids"], dtype=np.int64)
    lists = {
        kind: {int(each): [(other, rating) for other, rating in rated] for each, rated in ratings.items()}
        for kind, ratings in cxc["annot"].items()
    }
    ids = {
        kind: {each: [other for other, _ in rated] for each, rated in lists[kind].items()} for kind in ("i2t", "t2i")
    }
    positives = positives_of_lists(ids["i2t"], ids["t2i"], image_ids, caption_ids)
    ranks = rank_positives(tiles_of(tensors, "model1"), positives)
    metrics = annotated_metrics(ranks, "cxc")
    for side in ("i2t", "t2i"):
        assert [metrics[f"cxc_{side}_r{k}"] for k in (1, 5, 10)] == pytest.approx(cxc[side], abs=1e-9)
    images = rated_pairs(lists["i2i"], image_ids, IMAGE_THRESHOLD)
    found = intra_recalls(tensors["in.img"], images, own_similarity=0.0)
    assert list(found.values()) == pytest.approx(cxc["i2i"], abs=1e-9)
    rated, own = rated_pairs(lists["t2t"], caption_ids, CAPTION_THRESHOLD), siblings(OWNERS)
    captions = rated | own
    found = intra_recalls(tensors["in.cap"], captions, own_similarity=0.0)
    assert list(found.values()) == pytest.approx(cxc["t2t"], abs=1e-9)


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
    column = {each: place for place, each in enumerate(caption_ids.tolist())}
    row = {each: place for place, each in enumerate(image_ids.tolist())}
    i2t, t2i = torch.empty(25, 125, dtype=torch.float64), torch.empty(25, 125, dtype=torch.float64)
    for i, ranking in enumerate(tensors["in.i2t_ranking"].tolist()):
        i2t[i, [column[each] for each in ranking]] = -torch.arange(125.0, dtype=torch.float64)
    for j, ranking in enumerate(tensors["in.t2i_ranking"].tolist()):
        t2i[[row[each] for each in ranking], j] = -torch.arange(25.0, dtype=torch.float64)
    return i2t, t2i, image_ids, caption_ids, notes["small"]


@pytest.mark.parametrize(("theirs", "prefix"), [("original", "coco_5k"), ("cxc", "cxc"), ("eccv", "eccv")])
def test_eccv_caption_small(theirs, prefix):
    i2t, t2i, image_ids, caption_ids, small = eccv_case()
    lists = {
        side: {int(each): [int(other) for other in found] for each, found in small["gts"][theirs][side].items()}
        for side in ("i2t", "t2i")
    }
    positives = positives_of_lists(lists["i2t"], lists["t2i"], image_ids, caption_ids)
    for side, similarity in (("i2t", i2t), ("t2i", t2i)):
        ranks = rank_positives(tiles_of_matrix(similarity), positives)
        metrics = direction_metrics(getattr(ranks, side))
        for k in (1, 5, 10):
            assert metrics[f"r{k}"] == pytest.approx(100 * small["results"][f"{prefix}_r{k}"][side], abs=1e-9)
        if theirs == "eccv":
            assert metrics["map_r"] == pytest.approx(small["results"]["eccv_map_at_r"][side], abs=1e-9)
            assert metrics["rprecision"] == pytest.approx(small["results"]["eccv_rprecision"][side], abs=1e-9)


def real_case(notes):
    random = np.random.RandomState(112)
    x = random.randn(5000, 16)
    y = np.repeat(x, 5, axis=0) + 1.2 * random.randn(25000, 16)
    return torch.from_numpy(x), torch.from_numpy(y), notes["real_ids"]["results"]


@pytest.mark.parametrize(("protocol", "prefix"), [("eccv-caption", "eccv"), ("cxc", "cxc")])
def test_protocols_on_the_real_ids(protocol, prefix):
    x, y, wanted = real_case(golden("eccv_caption")[1])
    published = coco_test()
    ids, owners = torch.from_numpy(published.image_ids), torch.from_numpy(published.owners)
    metrics = tercet.evaluate_embeddings(x.float(), y.float(), owners, protocol=protocol, image_ids=ids)
    for side in ("i2t", "t2i"):
        for k in (1, 5, 10):
            assert metrics[f"{side}_r{k}"] == pytest.approx(100 * wanted[f"coco_5k_r{k}"][side], abs=0.02)
            assert metrics[f"{prefix}_{side}_r{k}"] == pytest.approx(100 * wanted[f"{prefix}_r{k}"][side], abs=0.02)
        if prefix == "eccv":
            assert metrics[f"eccv_{side}_map_r"] == pytest.approx(wanted["eccv_map_at_r"][side], abs=2e-4)
            assert metrics[f"eccv_{side}_rprecision"] == pytest.approx(wanted["eccv_rprecision"][side], abs=2e-4)
    if prefix == "eccv":
        return
    # Captions in any order are the same captions, where their ids say which they are.
    shuffled = torch.randperm(25000, generator=torch.Generator().manual_seed(0))
    again = tercet.evaluate_embeddings(
        x.float(), y.float()[shuffled], owners[shuffled], protocol=protocol, image_ids=ids,
        caption_ids=torch.from_numpy(published.caption_ids)[shuffled],
    )  # fmt: skip
    assert again == pytest.approx(metrics, abs=0.02)
