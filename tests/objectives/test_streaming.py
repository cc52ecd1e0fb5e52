"""Streamed equals dense: value, gradients of both embeddings, of scale and of bias; S is never allocated."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tercet
from tercet.objectives import OBJECTIVES
from tercet.objectives.streaming import tiles
from tests.objectives.named_settings import named

EVERY = [(name, {}) for name in OBJECTIVES]
EVERY += [(name, {"reading": "code"}) for name in OBJECTIVES if "/" in name]
EVERY += [("triplet", {"reduction": "mean"}), ("sigmoid", {"reduction": "sum"}), ("cir/sig-ms", {"reduction": "mean"})]
EVERY += [("circle", {"detach_weights": False}), ("multi-similarity", {"slack": None})]
EVERY += [("triplet", {"top_k": 1}), ("triplet", {"top_k": 3, "reduction": "mean"})]
every_objective = pytest.mark.parametrize(("name", "settings"), EVERY, ids=str)


def unit(rows, dim, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(rows, dim, generator=generator, dtype=torch.float64), dim=1)


IDS = {
    "house 3 x 15": (torch.arange(3), torch.arange(3).repeat_interleave(5)),
    "ragged 13 x 22, some without": (torch.arange(13) % 9, (torch.arange(22) * 7) % 11),
    "square 17": (torch.arange(17), torch.arange(17)),
    "one image": (torch.zeros(1, dtype=torch.long), torch.tensor([0, 0, 1])),
    "no positive": (torch.arange(4), torch.arange(4) + 9),
    "no negative": (torch.zeros(4, dtype=torch.long), torch.zeros(6, dtype=torch.long)),
}


MANY, ONE = 4, 1024  # tiles


@every_objective
@pytest.mark.parametrize(
    ("tile_size", "ids"),
    [
        pytest.param(size, ids, marks=pytest.mark.slow if size == ONE and ids != "house 3 x 15" else [])
        for size in (MANY, ONE)
        for ids in IDS
    ],
)
def test_streamed_equals_dense(name, settings, ids, tile_size, monkeypatch):
    monkeypatch.setattr(tiles, "TILE_SIZE", tile_size)
    o = named(name, **settings)
    image_ids, caption_ids = IDS[ids]
    leaves = [unit(len(image_ids), 6, 0), unit(len(caption_ids), 6, 1), torch.tensor(1.7), torch.tensor(-0.2)]

    def gradients(streamed):
        x, y, scale, bias = (leaf.double().clone().requires_grad_() for leaf in leaves)
        scalar = o(x, y, image_ids=image_ids, caption_ids=caption_ids, scale=scale, bias=bias, streamed=streamed)
        (1.5 * scalar).backward()
        return scalar.detach(), x.grad, y.grad, scale.grad, bias.grad

    for actual, expected in zip(gradients(True), gradients(False), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("tile_size", [MANY, ONE])
def test_the_bias_of_the_batch_is_the_same_streamed(ids, tile_size, monkeypatch):
    monkeypatch.setattr(tiles, "TILE_SIZE", tile_size)
    image_ids, caption_ids = IDS[ids]
    results = []
    for streamed in (True, False):
        x, y = unit(len(image_ids), 6, 0).requires_grad_(), unit(len(caption_ids), 6, 1)
        o = tercet.objective("sigmoid", bias="batch")
        o(x, y, image_ids=image_ids, caption_ids=caption_ids, streamed=streamed).backward()
        results.append(x.grad)
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)


@every_objective
def test_equal_similarities_choose_the_same_negative_streamed(name, settings, monkeypatch):
    monkeypatch.setattr(tiles, "TILE_SIZE", 2)
    o = tercet.objective(name, **settings)
    results = []
    for streamed in (True, False):
        x, y = torch.ones(5, 2, requires_grad=True), torch.ones(7, 2)
        o(x, y * torch.arange(7)[:, None].fmod(2), owners=torch.arange(7) % 5, streamed=streamed).backward()
        results.append(x.grad)
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-5)


class LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor that any operation returns."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for output in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(output, torch.Tensor):
                self.numel = max(self.numel, output.untyped_storage().nbytes() // output.element_size())
        return result


@pytest.mark.parametrize("name", OBJECTIVES)
def test_no_tensor_is_larger_than_one_tile(name, monkeypatch, without_shape_checks):
    monkeypatch.setattr(tiles, "TILE_SIZE", 32)
    images, captions = unit(150, 4, 0).requires_grad_(), unit(250, 4, 1).requires_grad_()
    owners = torch.arange(250) % 150
    one_tile = max(32 * 32, captions.numel())

    def largest(streamed):
        with LargestTensor() as watch:
            tercet.objective(name)(images, captions, owners=owners, streamed=streamed).backward()
        return watch.numel

    assert largest(True) <= one_tile
    assert largest(False) >= 150 * 250  # the watch detects the dense matrix


def test_large_batches_stream_by_default_and_small_ones_do_not(monkeypatch):
    o = tercet.objective("triplet-sh")
    called = []
    monkeypatch.setattr(
        "tercet.objectives.base.streamed_scalar", lambda *_, **__: called.append(True) or torch.zeros(())
    )
    o(torch.zeros(20, 2), torch.zeros(20, 2))
    assert not called
    o(torch.zeros(100, 2), torch.zeros(100, 2))
    assert called


def test_streaming_an_objective_that_needs_the_dense_matrix_is_an_error():
    def pull(similarity, positives):
        return -positives.to(similarity.dtype)

    with pytest.raises(ValueError, match="pull needs the dense similarity and cannot be streamed"):
        tercet.objective(pull)(torch.zeros(3, 2), torch.zeros(3, 2), streamed=True)


@pytest.mark.parametrize("name", ["triplet-sh", "nt-xent", "cir/sig-ms"])
def test_streaming_under_autocast_agrees_with_dense_under_autocast(name, monkeypatch):
    monkeypatch.setattr(tiles, "TILE_SIZE", 8)
    o, results = tercet.objective(name), []
    for streamed in (True, False):
        x, y = unit(12, 16, 0).float().requires_grad_(), unit(30, 16, 1).float().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scalar = o(x, y, owners=torch.arange(30) % 12, streamed=streamed)
        scalar.backward()
        results.append((scalar.detach(), x.grad))
    torch.testing.assert_close(results[0], results[1], rtol=0.02, atol=0.05)


def test_dense_smooth_ap_allocates_no_3d_tensor(without_shape_checks):
    images, captions = unit(40, 4, 0).requires_grad_(), unit(200, 4, 1).requires_grad_()
    with LargestTensor() as watch:
        tercet.objective("smooth-ap")(images, captions, owners=torch.arange(40).repeat_interleave(5)).backward()
    assert watch.numel <= 40 * 5 * 200


@every_objective
@pytest.mark.parametrize("tile_size", [4, 1024], ids=["many tiles", "one tile"])
def test_a_retained_graph_allows_repeated_backward(name, settings, tile_size, monkeypatch):
    monkeypatch.setattr(tiles, "TILE_SIZE", tile_size)
    x, y = unit(7, 6, 0).requires_grad_(), unit(11, 6, 1).requires_grad_()
    scalar = tercet.objective(name, **settings)(x, y, owners=torch.arange(11) % 7, streamed=True)
    results = [torch.autograd.grad(factor * scalar, (x, y), retain_graph=True) for factor in (1.0, -2.0, 1.0)]
    for first, second, third in zip(*results, strict=True):
        torch.testing.assert_close(second, -2 * first)
        torch.testing.assert_close(third, first)


def test_embeddings_changed_in_place_before_backward_raise_an_error():
    x, y = unit(80, 6, 0).requires_grad_(), unit(80, 6, 1)
    embedded = x * 1.0
    scalar = tercet.objective("triplet-sh")(embedded, y, streamed=True)
    with torch.no_grad():
        embedded += 1.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        scalar.backward()


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize(("images", "captions"), [(0, 3), (3, 0), (0, 0)])
def test_streaming_an_empty_batch_gives_zero(name, images, captions):
    x, y = torch.zeros(images, 4, requires_grad=True), torch.zeros(captions, 4, requires_grad=True)
    ids = {"image_ids": torch.arange(images), "caption_ids": torch.arange(captions)}
    scalar = tercet.objective(name)(x, y, streamed=True, **ids)
    scalar.backward()
    assert scalar == 0
    assert x.grad.shape == x.shape


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("name", ["triplet", "triplet-sh", "nt-xent", "sigmoid", "smooth-ap", "cir/sig-ms"])
def test_one_tensor_may_be_the_ids_of_both(name, streamed):
    o, ids = tercet.objective(name), torch.tensor([1002, 1002, 1000, 1001])
    x, y = unit(4, 6, 0), unit(4, 6, 1)
    expected = o(x, y, image_ids=ids, caption_ids=ids.clone(), streamed=streamed)
    torch.testing.assert_close(o(x, y, image_ids=ids, caption_ids=ids, streamed=streamed), expected)


@pytest.mark.parametrize("name", ["triplet", "triplet-sh", "nt-xent", "sigmoid", "smooth-ap", "cir/sig-ms"])
@pytest.mark.parametrize("shape", [(1,), (1, 1)])
def test_a_learned_scale_may_have_a_shape(name, shape, monkeypatch, without_shape_checks):
    monkeypatch.setattr(tiles, "TILE_SIZE", 4)
    scale, bias = (torch.full(shape, number, requires_grad=True) for number in (1.3, 0.1))
    x, y = unit(7, 6, 0).float().requires_grad_(), unit(11, 6, 1).float()
    named(name)(x, y, owners=torch.arange(11) % 7, scale=scale, bias=bias, streamed=True).backward()
    assert scale.grad.shape == shape
    assert bias.grad.shape == shape


@pytest.mark.parametrize("streamed", [True, False])
def test_a_second_derivative_is_refused(streamed):
    x, y = unit(80, 6, 0).requires_grad_(), unit(90, 6, 1)
    scalar = tercet.objective("nt-xent")(x, y, owners=torch.arange(90) % 80, streamed=streamed)
    (first,) = torch.autograd.grad(scalar, x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative: the pair gradient is a constant"):
        first.sum().backward()


@pytest.mark.parametrize("name", ["triplet", "nt-xent", "sigmoid", "cir/sig-ms"])
def test_backward_may_run_under_autocast(name):
    scale, x, y = (
        torch.tensor(1.3, requires_grad=True),
        unit(12, 16, 0).float().requires_grad_(),
        unit(30, 16, 1).float(),
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        named(name)(x, y, owners=torch.arange(30) % 12, scale=scale, streamed=True).backward()
    assert x.grad.dtype == torch.float32


@pytest.mark.parametrize("width", [0.35, 5.0, 30.0])
@pytest.mark.parametrize("name", ["con/sig-ms", "nca/sig-ms", "cir/sig-ms", "cir/lin-ms"])
def test_similarities_wider_than_cosines_agree_over_many_tiles(name, width, monkeypatch):
    """Also where terms of M- are below exp(-60), at which the dense form bounds them."""
    monkeypatch.setattr(tiles, "TILE_SIZE", 8)
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(rows, 16, generator=generator, dtype=torch.float64) for rows in (20, 33))
    x = width * x
    results = []
    for streamed in (True, False):
        leaf = x.clone().requires_grad_()
        tercet.objective(name)(leaf, y, owners=torch.arange(33) % 20, streamed=streamed).backward()
        results.append(leaf.grad)
    largest = results[1].abs().max()
    torch.testing.assert_close(results[0] / largest, results[1] / largest, rtol=1e-9, atol=1e-12)


def test_own_weights_without_a_negative_stay_finite():
    o = tercet.objective((lambda p, n: torch.ones_like(p), torch.ones_like, lambda n: 1 / n))
    x = unit(3, 6, 0).requires_grad_()
    o(x, unit(4, 6, 1), owners=torch.zeros(4, dtype=torch.long), streamed=True).backward()
    assert x.grad.isfinite().all()
