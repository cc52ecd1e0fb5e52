"""A projection whose backward skips rows without a gradient, compared with nn.Linear and autograd."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tercet.models.cpu_kernels.sparse_linear import Projection, l2_normalize_rows
from tercet.models.parts.masking import l2_normalize

ROWS, DIM, EMBED_DIM = 40, 7, 5
ACTIVE = {"none": [], "one": [17], "a few": [0, 3, 39], "half": list(range(0, ROWS, 2)), "all": list(range(ROWS))}


def our_and_plain_layer(bias=True, dtype=torch.float64):
    """Our layer and nn.Linear, with the same weights."""
    torch.manual_seed(0)
    ours, plain = Projection(DIM, EMBED_DIM, bias=bias, dtype=dtype), nn.Linear(DIM, EMBED_DIM, bias=bias, dtype=dtype)
    plain.load_state_dict(ours.state_dict())
    return ours, plain


def gradient_of(active, dtype=torch.float64):
    gradient = torch.zeros(ROWS, EMBED_DIM, dtype=dtype)
    gradient[active] = torch.randn(len(active), EMBED_DIM, dtype=dtype, generator=torch.Generator().manual_seed(1))
    return gradient


def output_and_gradients(layer, features, gradient):
    """Output, and the gradients of weight, bias and input."""
    layer.zero_grad()
    features = features.detach().clone().requires_grad_(features.requires_grad)
    out = layer(features)
    out.backward(gradient)
    return out.detach(), [tensor.grad for tensor in (*layer.parameters(), features)]


# All combinations but those with nothing left to train, or no bias to freeze.
LAYERS = [
    (bias, input_grad, frozen)
    for bias in (True, False)
    for input_grad in (True, False)
    for frozen in ((), ("weight",), ("bias",))
    if (bias or frozen != ("bias",)) and (bias or input_grad or frozen != ("weight",))
]


@pytest.mark.parametrize("active", ACTIVE)
@pytest.mark.parametrize(("bias", "input_grad", "frozen"), LAYERS)
def test_gradients_are_those_of_a_plain_layer(active, bias, input_grad, frozen):
    features = torch.randn(ROWS, DIM, dtype=torch.float64).requires_grad_(input_grad)
    gradient, results = gradient_of(ACTIVE[active]), []
    for layer in our_and_plain_layer(bias):
        for name in frozen:
            getattr(layer, name).requires_grad_(False)
        results.append(output_and_gradients(layer, features, gradient))
    assert_close(results[0], results[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("active", ACTIVE)
def test_a_gradient_may_be_a_view(active):
    """Transposed or expanded gradients, as matrix products and sums produce."""
    ours, plain = our_and_plain_layer()
    features = torch.randn(ROWS, DIM, dtype=torch.float64)
    transposed = gradient_of(ACTIVE[active]).T.contiguous().T
    wide = gradient_of(ACTIVE[active])[:, :1].expand(ROWS, EMBED_DIM)
    for gradient in (transposed, wide):
        assert_close(
            output_and_gradients(ours, features, gradient),
            output_and_gradients(plain, features, gradient),
            rtol=0,
            atol=1e-12,
        )


def test_tiny_gradients_are_not_taken_for_zeros():
    """Their squares underflow to zero."""
    ours, plain = our_and_plain_layer()
    features, gradient = 1e200 * torch.ones(ROWS, DIM, dtype=torch.float64), gradient_of([])
    gradient[4, 2] = 1e-200
    weight_grad = output_and_gradients(ours, features, gradient)[1][0]
    assert weight_grad.abs().max() > 0.5
    assert_close(weight_grad, output_and_gradients(plain, features, gradient)[1][0])


def test_nan_gradients_are_propagated():
    ours, _ = our_and_plain_layer()
    gradient = gradient_of([])
    gradient[4, 2] = torch.nan
    weight, bias, _ = output_and_gradients(ours, torch.randn(ROWS, DIM, dtype=torch.float64), gradient)[1]
    assert weight[2].isnan().all()
    assert bias[2].isnan()


@pytest.mark.parametrize("shape", [(0, DIM), (1, DIM), (6, 4, DIM), (DIM,)])
def test_other_shapes(shape):
    ours, plain = our_and_plain_layer()
    features = torch.randn(shape, dtype=torch.float64)
    gradient = torch.randn(*shape[:-1], EMBED_DIM, dtype=torch.float64)
    assert_close(
        output_and_gradients(ours, features, gradient),
        output_and_gradients(plain, features, gradient),
        rtol=0,
        atol=1e-12,
    )


def test_half_precision_is_that_of_a_plain_layer():
    ours, plain = our_and_plain_layer(dtype=torch.float32)
    features, results = torch.randn(ROWS, DIM), []
    for layer in (ours, plain):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = layer(features)
        assert out.dtype == torch.bfloat16
        out.float().backward(gradient_of([3, 5], torch.float32))
        results.append([parameter.grad for parameter in layer.parameters()])
    assert_close(results[0], results[1])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler uses what torch deprecates
def test_it_compiles_to_one_graph(without_shape_checks):
    ours, plain = our_and_plain_layer(dtype=torch.float32)
    features, gradient = torch.randn(ROWS, DIM), gradient_of([3, 5], torch.float32)
    torch.compile(ours, fullgraph=True)(features).backward(gradient)
    plain(features).backward(gradient)
    assert_close([p.grad for p in ours.parameters()], [p.grad for p in plain.parameters()])


def test_without_grad_it_is_a_plain_layer():
    ours, plain = our_and_plain_layer()
    features = torch.randn(ROWS, DIM, dtype=torch.float64)
    with torch.no_grad():
        assert torch.equal(ours(features), plain(features))
    with torch.inference_mode():
        assert torch.equal(ours(features), plain(features))


def test_a_second_derivative_is_refused_and_not_wrong():
    ours, _ = our_and_plain_layer()
    out = ours(torch.randn(ROWS, DIM, dtype=torch.float64)).square().sum()
    (first,) = torch.autograd.grad(out, ours.weight, create_graph=True)
    with pytest.raises(RuntimeError):
        first.sum().backward()


@pytest.mark.parametrize("length", [0.0, 1e-20, 1e-13, 1e-12, 1e-3, 1.0, 1e9])
@pytest.mark.parametrize("active", ACTIVE)
def test_l2_normalize_rows_equals_l2_normalize(length, active):
    """Also for vectors below the minimum norm."""
    vectors = torch.randn(ROWS, EMBED_DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    vectors[::3] = length * torch.nn.functional.normalize(vectors[::3], dim=1)
    results = []
    for call in (l2_normalize_rows, l2_normalize):
        leaf = vectors.clone().requires_grad_()
        out = call(leaf)
        out.backward(gradient_of(ACTIVE[active]))
        results.append((out.detach(), leaf.grad))
    assert torch.equal(results[0][0], results[1][0])
    assert_close(results[0][1], results[1][1], rtol=1e-12, atol=1e-12)
    silent = torch.ones(ROWS, dtype=torch.bool).index_fill(0, torch.tensor(ACTIVE[active], dtype=torch.long), False)
    assert not results[0][1][silent].any()  # exact zeros stay exact: the projection relies on them
