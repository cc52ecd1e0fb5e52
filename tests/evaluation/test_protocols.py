"""Results of protocols, and their errors: what was expected and what was given."""

import numpy as np
import pytest
import torch

import tercet
from tercet.evaluation import PROTOCOLS, eccv_caption, evaluate_tiles, tiles_of_embeddings
from tercet.evaluation.eccv_caption import coco_test
from tercet.evaluation.evaluator import Task, evaluate_folds
from tercet.legacy.printed_metrics import ALIASES, FRACTIONS, explain_legacy

DIM = 4


def split(images, captions_per_image=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    owners = torch.arange(images).repeat_interleave(captions_per_image)
    x = torch.randn(images, DIM, generator=generator)
    return x, x[owners] + torch.randn(len(owners), DIM, generator=generator), owners


@pytest.fixture(scope="module")
def coco():
    x, y, _ = split(5000)
    published = coco_test()
    ids = torch.from_numpy(published.image_ids), torch.from_numpy(published.caption_ids)
    return x, y, torch.from_numpy(published.owners), *ids


def test_the_published_order_is_that_of_the_original_files():
    """5,000 images, the five captions of an image adjacent, ids of the COCO annotations."""
    published = coco_test()
    assert published.owners.tolist() == np.arange(5000).repeat(5).tolist()
    assert len(np.unique(published.image_ids)) == 5000
    assert len(np.unique(published.caption_ids)) == 25000


def test_flickr_is_the_plain_evaluation_of_a_thousand_images():
    x, y, owners = split(1000)
    assert tercet.evaluate_embeddings(x, y, owners, protocol="flickr-1k") == tercet.evaluate_embeddings(x, y, owners)
    assert tercet.evaluate_embeddings(x, y, owners, protocol="custom") == tercet.evaluate_embeddings(x, y, owners)


def test_coco_1k_is_the_mean_of_five_consecutive_folds(coco):
    x, y, owners, image_ids, _ = coco
    evaluation = evaluate_tiles(tiles_of_embeddings(x, y), owners, protocol="coco-1k", image_ids=image_ids)
    folds = [
        tercet.evaluate_embeddings(x[k : k + 1000], y[5 * k : 5 * k + 5000], owners[5 * k : 5 * k + 5000] - k)
        for k in range(0, 5000, 1000)
    ]
    assert list(evaluation.folds) == [pytest.approx(fold) for fold in folds]
    assert evaluation.metrics["rsum"] == pytest.approx(np.mean([fold["rsum"] for fold in folds]))
    assert evaluation.ranks.arrays()["caption"].tolist() == list(range(25000))
    assert evaluation.ranks.arrays()["t2i_rank"].max() <= 1000
    assert evaluation.notes == (
        "mean of 5 disjoint folds of 1,000 consecutive images in the published order; ranks are within a fold",
    )


def test_an_unchecked_order_is_noted(coco):
    x, y, owners, *_ = coco
    evaluation = evaluate_tiles(tiles_of_embeddings(x, y), owners, protocol="coco-1k")
    assert "in the order given, not checked" in evaluation.notes[0]


def test_folds_must_divide_the_images():
    x, y, owners = split(12)
    with pytest.raises(ValueError, match="12 images cannot be divided into 5 equal folds"):
        evaluate_folds(Task(tiles_of_embeddings(x, y), owners), 5)


@pytest.mark.parametrize(
    ("protocol", "images", "captions_per_image", "message"),
    [
        ("flickr-1k", 1014, 5, "flickr-1k expects exactly 1,000 images, found 1,014"),
        ("flickr-1k", 1000, 4, "exactly 5 captions per image, found 4 for the image in row 0 .1,000 such images"),
        ("coco-5k", 1000, 5, "coco-5k expects exactly 5,000 images, found 1,000"),
        ("coco-1k", 1000, 5, "coco-1k expects exactly 5,000 images, found 1,000"),
        ("eccv-caption", 40, 5, "eccv-caption expects exactly 5,000 images, found 40"),
        ("cxc", 40, 5, "cxc expects exactly 5,000 images, found 40"),
        ("coco5k", 4, 5, "no protocol 'coco5k' .did you mean coco-5k"),
        ("eccv", 4, 5, "did you mean eccv-caption"),
        ("zzz", 4, 5, "no protocol 'zzz'; known: custom, flickr-1k, coco-5k, coco-1k, eccv-caption, cxc$"),
    ],
)
def test_wrong_sizes_and_names_are_refused(protocol, images, captions_per_image, message):
    x, y, owners = split(images, captions_per_image)
    with pytest.raises(ValueError, match=message) as error:
        tercet.evaluate_embeddings(x, y, owners, protocol=protocol)
    assert "\n" not in str(error.value)


def test_one_image_with_six_captions_is_refused():
    x, y, owners = split(1000)
    owners = owners.clone()
    owners[7] = 0
    with pytest.raises(ValueError, match=r"found 6 for the image in row 0 \(2 such images"):
        tercet.evaluate_embeddings(x, y, owners, protocol="flickr-1k")


def changed(ids, row, value):
    ids = ids.clone()
    ids[row] = value
    return ids


def wrong_ids(image_ids, caption_ids):
    """message -> (protocol, ids)."""
    swapped = torch.arange(5000)
    swapped[[3, 4]] = swapped[[4, 3]]
    captions = torch.arange(25000)
    captions[[0, 5]] = captions[[5, 0]]
    return {
        "eccv-caption identifies images by COCO id: give image_ids": ("eccv-caption", {}),
        "5,000 image ids of the COCO test split: 7 is not one": ("cxc", {"image_ids": changed(image_ids, 9, 7)}),
        "image ids of the COCO test split: some are given twice": (
            "coco-5k", {"image_ids": changed(image_ids, 9, image_ids[8])}),
        "25,000 caption ids of the COCO test split: -1 is not one": (
            "eccv-caption", {"image_ids": image_ids, "caption_ids": changed(caption_ids, 9, -1)}),
        "coco-1k expects the images in the published order, row 3": ("coco-1k", {"image_ids": image_ids[swapped]}),
        "belongs to image .*, owners say": (
            "eccv-caption", {"image_ids": image_ids, "caption_ids": caption_ids[captions]}),
        "image_ids must be one integer for each of 5000 rows, given torch.int64 .3,.": (
            "coco-5k", {"image_ids": image_ids[:3]}),
    }  # fmt: skip


@pytest.mark.parametrize("case", range(7))
def test_wrong_ids_are_refused(coco, case, without_shape_checks):
    x, y, owners, *ids = coco
    message, (protocol, given) = list(wrong_ids(*ids).items())[case]
    with pytest.raises(ValueError, match=message) as error:
        tercet.evaluate_embeddings(x, y, owners, protocol=protocol, **given)
    assert "\n" not in str(error.value)


def test_captions_in_an_unknown_order_are_refused(coco):
    x, y, owners, image_ids, _ = coco
    order = torch.arange(25000).flip(0)
    with pytest.raises(ValueError, match="give caption_ids, or reorder captions and owners"):
        tercet.evaluate_embeddings(x, y[order], owners[order], protocol="eccv-caption", image_ids=image_ids)


def test_without_the_annotations_the_error_says_what_to_install(coco, monkeypatch):
    x, y, owners, image_ids, _ = coco
    monkeypatch.setattr(eccv_caption, "PACKAGE", "no_such_package")
    coco_test.cache_clear()
    with pytest.raises(ValueError, match=r"pip install 'tercet\[eccv\]'"):
        tercet.evaluate_embeddings(x, y, owners, protocol="cxc", image_ids=image_ids)
    evaluation = evaluate_tiles(tiles_of_embeddings(x, y), owners, protocol="coco-5k", image_ids=image_ids)
    assert evaluation.notes == ("ids not checked: pip install 'tercet[eccv]'",)


def test_legacy_summaries_swap_metric_names():
    x, y, owners = split(50)
    evaluation = evaluate_folds(Task(tiles_of_embeddings(x, y), owners), 5)
    mean = evaluation.metrics
    lines = "\n".join(explain_legacy(mean, evaluation.folds))
    right, scan, vsepp, infinity = lines.split(":\n")[1:5]
    assert f"rsum: {mean['rsum']:.1f}" in right
    assert f"rsum: {6 * mean['i2t_ar']:.1f}" in scan
    assert f"Average i2t Recall: {mean['t2i_ar']:.1f}" in scan
    assert f"Average t2i Recall: {mean['rsum']:.1f}" in scan
    assert f"rsum: {6 * mean['rsum']:.1f}" in vsepp
    assert f"Average t2i Recall: {mean['t2i_ar']:.1f}" in vsepp
    assert f"rsum: {mean['rsum']:.1f}" in infinity
    assert "ECIR-22" in infinity
    for block in (scan, vsepp, infinity):  # the lines of each direction are right everywhere
        assert right.splitlines()[2] in block
        assert right.splitlines()[4] in block


def test_aliases_are_of_metrics_that_exist():
    x, y, owners = split(10)
    ours = set(tercet.evaluate_embeddings(x, y, owners))
    assert {name for name in ALIASES if not name.startswith(("eccv_", "cxc_"))} <= ours
    assert ALIASES["i2t_r1"]["CLIP_benchmark"] == "text_retrieval_recall@1"
    assert set(FRACTIONS) < set(ALIASES["t2i_r5"])
    assert "custom" in PROTOCOLS
