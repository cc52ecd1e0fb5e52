"""Values and gradients equal those of the original authors' code, within the tolerance given for each file."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import tercet
from tercet.objectives.inputs import as_rows

GOLDENS = Path(__file__).parents[1] / "goldens"


def golden(name):
    return load_file(GOLDENS / f"{name}.safetensors"), json.loads((GOLDENS / f"{name}.json").read_text())


def value_and_grads(objective, images, captions, **ids):
    images, captions = images.clone().requires_grad_(), captions.clone().requires_grad_()
    value = objective(images, captions, **ids)
    value.backward()
    return value.detach(), images.grad, captions.grad


def close(actual, expected, tolerance):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("measure", ["cosine", "order"])
@pytest.mark.parametrize(("mode", "name"), [("sum", "triplet"), ("max", "triplet-sh")])
@pytest.mark.parametrize("margin", [0.2, 0.05])
def test_vsepp_hinge(dtype, measure, mode, name, margin):
    tensors, _ = golden("vsepp_loss")
    tolerance = {"f32": 1e-5, "f64": 1e-10}[dtype]
    images, captions = tensors[f"in.im.{dtype}"], tensors[f"in.s.{dtype}"]
    if measure == "order":
        images, captions = images.abs(), captions.abs()
    images, captions = images.requires_grad_(), captions.requires_grad_()
    if measure == "order":
        similarity = -(captions[None] - images[:, None]).relu().square().sum(dim=2).sqrt()
    else:
        similarity = images @ captions.T
    close(similarity.detach(), tensors[f"out.sim.{dtype}.{measure}"], tolerance)
    loss = tercet.objective(name, margin=margin).on_similarity(similarity)
    loss.backward()
    key = f"{dtype}.{measure}.{mode}.m{margin}"
    close(loss.detach(), tensors[f"out.loss.{key}"], tolerance)
    close(images.grad, tensors[f"out.grad_im.{key}"], tolerance)
    close(captions.grad, tensors[f"out.grad_s.{key}"], tolerance)


def test_vsepp_hinge_is_zero_on_the_identity():
    tensors, _ = golden("vsepp_loss")
    eye = torch.eye(7, 24)
    value, grad_images, _ = value_and_grads(tercet.objective("triplet-sh"), eye, eye)
    close(value, tensors["out.loss.f32.cosine.max.identity"], 0)
    close(grad_images, tensors["out.grad_im.f32.cosine.max.identity"], 0)


@pytest.mark.parametrize(("mode", "name"), [("warmup_all", "triplet"), ("hardest", "triplet-sh")])
def test_vse_infinity_hinge(mode, name):
    tensors, _ = golden("vseinf_loss")
    value, grad_images, grad_captions = value_and_grads(tercet.objective(name), tensors["in.im"], tensors["in.s"])
    close(value, tensors[f"out.loss.{mode}"], 1e-10)
    close(grad_images, tensors[f"out.grad_im.{mode}"], 1e-10)
    close(grad_captions, tensors[f"out.grad_s.{mode}"], 1e-10)


ECIR22 = {
    "triplet": ("triplet", {}, 1e-10),
    "triplet_sh": ("triplet-sh", {}, 1e-10),
    "ntxent": ("nt-xent", {"temperature": 0.1}, 1e-10),
    "smoothap": ("smooth-ap", {"temperature": 0.01}, 1e-7),  # theirs multiplies by a float32 0.2
    "smoothap_tau0.1": ("smooth-ap", {"temperature": 0.1}, 1e-7),
}


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("batch", [0, 1, 2])
@pytest.mark.parametrize("key", ECIR22)
def test_ecir22_losses(key, batch, dtype):
    tensors, _ = golden("ecir22_losses")
    name, settings, tolerance = ECIR22[key]
    width = {"f32": torch.float32, "f64": torch.float64}[dtype]
    images, captions = tensors[f"in.images.{batch}"].to(width), tensors[f"in.captions.{batch}"].to(width)
    if name == "smooth-ap":
        ids = {"owners": torch.arange(8).repeat_interleave(5)}
    else:
        ids, captions = {}, captions[::5]
    value, grad_images, grad_captions = value_and_grads(tercet.objective(name, **settings), images, captions, **ids)
    tolerance = tolerance if dtype == "f64" else 1e-5
    close(value, tensors[f"out.loss.{key}.{dtype}.{batch}"], tolerance)
    close(grad_images, tensors[f"out.grad_images.{key}.{dtype}.{batch}"], tolerance)
    close(grad_captions, tensors[f"out.grad_captions.{key}.{dtype}.{batch}"], tolerance)


@pytest.mark.parametrize("batch", ["medium", "separated", "random", "hub", "mixed"])
@pytest.mark.parametrize("P", ["con", "lin", "sig", "lin-ms", "sig-ms"])
@pytest.mark.parametrize("T", ["con", "nca", "cir"])
def test_goal_as_released(T, P, batch):
    tensors, _ = golden("goal_gradients")
    cell = tercet.objective(f"{T}/{P}", reading="code")
    _, grad_images, grad_captions = value_and_grads(cell, tensors[f"in.img.{batch}"], tensors[f"in.txt.{batch}"])
    key = f"{T}.{P.replace('-', '_')}.{batch}"
    close(grad_images, tensors[f"out.G_img.{key}"], 1e-9)
    close(grad_captions, tensors[f"out.G_txt.{key}"], 1e-9)


# pytorch-metric-learning 2.9.0 computes one direction, normalizes the embeddings, and has its own reductions.
def one_direction(objective, set_name, direction, tensors, select_positives=None):
    """Value, active pairs, query and reference gradients of one direction, summed over its queries."""
    images, captions = tensors["in.images"], tensors["in.captions"]
    image_labels, caption_labels = tensors["in.image_labels"], tensors["in.caption_labels"]
    if set_name == "one":
        captions, caption_labels = captions[::5], caption_labels[::5]
    images, captions = images.clone().requires_grad_(), captions.clone().requires_grad_()
    normalize = torch.nn.functional.normalize
    similarity = normalize(images) @ normalize(captions).T
    positives = image_labels[:, None] == caption_labels[None, :]
    rows, query, reference = as_rows(similarity, positives, None), images, captions
    if direction == "t2i":
        rows, query, reference = rows.transposed(), captions, images
    if select_positives is not None:
        rows = rows._replace(positives=select_positives(rows))
    gradient = objective.row_gradient(rows._replace(similarity=rows.similarity.detach()))
    rows.similarity.backward(gradient)
    return objective.row_value(rows).detach().sum(), gradient, query.grad, reference.grad


def least_similar_positive(rows):
    """Batch-hard mining uses one positive per query: the least similar."""
    candidates = rows.similarity.detach().masked_fill(~rows.positives, torch.inf)
    return candidates == candidates.min(dim=1, keepdim=True).values


def assert_metric_learning(key, tensors, value, query, reference):
    close(value, tensors[f"out.loss.{key}"], 1e-8)
    close(query.float(), tensors[f"out.grad_query.{key}"], 1e-5)
    close(reference.float(), tensors[f"out.grad_ref.{key}"], 1e-5)


DIRECTIONS = pytest.mark.parametrize("direction", ["i2t", "t2i"])
SETS = pytest.mark.parametrize("set_name", ["one", "multi"])


@DIRECTIONS
@SETS
def test_metric_learning_triplet_hard_mined_sum(set_name, direction):
    tensors, _ = golden("pml_losses")
    value, _, *grads = one_direction(
        tercet.objective("triplet-sh"), set_name, direction, tensors, select_positives=least_similar_positive
    )
    assert_metric_learning(f"triplet_cos_hard_sum.{set_name}.{direction}", tensors, value, *grads)


@DIRECTIONS
@SETS
def test_metric_learning_triplet_all(set_name, direction):
    """Theirs is the mean over active triplets, ours the sum: they differ by the number of active triplets."""
    tensors, _ = golden("pml_losses")
    value, gradient, *grads = one_direction(tercet.objective("triplet"), set_name, direction, tensors)
    active = gradient.clamp(min=0).sum()
    key = f"triplet_cos_all.{set_name}.{direction}"
    assert_metric_learning(key, tensors, *(total / active for total in (value, *grads)))


@DIRECTIONS
@pytest.mark.parametrize(
    ("loss", "set_name", "temperature"),
    [
        ("ntxent_t0.1", "one", 0.1),
        ("ntxent_t0.07", "one", 0.07),
        ("supcon_t0.1", "one", 0.1),
        ("supcon_t0.1", "multi", 0.1),
    ],
)
def test_metric_learning_nt_xent_and_supcon(loss, set_name, temperature, direction):
    """Theirs is the mean over queries of one direction."""
    tensors, _ = golden("pml_losses")
    objective = tercet.objective("nt-xent", temperature=temperature)
    value, gradient, *grads = one_direction(objective, set_name, direction, tensors)
    assert_metric_learning(
        f"{loss}.{set_name}.{direction}", tensors, *(total / len(gradient) for total in (value, *grads))
    )


def test_metric_learning_nt_xent_equals_ours_where_a_query_has_one_positive():
    """With several positives theirs excludes the others from the denominator: t2i, with one positive, agrees."""
    tensors, _ = golden("pml_losses")
    value, gradient, *grads = one_direction(tercet.objective("nt-xent"), "multi", "t2i", tensors)
    totals = (total / len(gradient) for total in (value, *grads))
    assert_metric_learning("ntxent_t0.1.multi.t2i", tensors, *totals)


@pytest.mark.parametrize("name", ["circle", "multi-similarity", "multi-similarity:slack=null"])
def test_losses_of_pytorch_metric_learning(name):
    """Version 2.9.0, which normalizes embeddings; make_metric_learning.py made the file."""
    known = json.loads((GOLDENS / "metric_learning.json").read_text())
    images, captions = (torch.tensor(known[side], dtype=torch.float64) for side in ("images", "captions"))
    positives = torch.tensor(known["image_ids"])[:, None] == torch.tensor(known["caption_ids"])
    objective, values = tercet.objective(name), []
    for direction, anchors, candidates, mask in (
        ("i2t", images, captions, positives),
        ("t2i", captions, images, positives.T),
    ):
        leaf, expected = anchors.clone().requires_grad_(), known["losses"][name][direction]
        similarity = torch.nn.functional.normalize(leaf, dim=1) @ candidates.T
        value = objective.one_direction(similarity, mask.contiguous())
        value.backward()
        values.append(value.item())
        gradient = torch.tensor(expected["gradient"], dtype=torch.float64)
        torch.testing.assert_close(leaf.grad, gradient, rtol=1e-9, atol=1e-9)
    published = sum(known["losses"][name][direction]["value"] for direction in ("i2t", "t2i"))
    valued = objective.with_settings(detach_weights=False) if name == "circle" else objective
    close(valued.value(images @ captions.T, positives).item(), published, 1e-10)
    if name != "circle":
        close(sum(values), published, 1e-10)
