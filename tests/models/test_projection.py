"""A projection whose backward skips rows without a gradient: beside plain nn.Linear and autograd."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tercet.models.norms import unit
from tercet.models.projection import Projection, unit_rows

ROWS, DIM, JOINT = 40, 7, 5
ACTIVE = {"none": [], "one": [17], "a few": [0, 3, 39], "half": list(range(0, ROWS, 2)), "all": list(range(ROWS))}


def both(bias=True, dtype=torch.float64):
    """Ours, and the plain one of the same weights."""
    torch.manual_seed(0)
    ours, plain = Projection(DIM, JOINT, bias=bias, dtype=dtype), nn.Linear(DIM, JOINT, bias=bias, dtype=dtype)
    plain.load_state_dict(ours.state_dict())
    return ours, plain


def gradient_of(active, dtype=torch.float64):
    gradient = torch.zeros(ROWS, JOINT, dtype=dtype)
    gradient[active] = torch.randn(len(active), JOINT, dtype=dtype, generator=torch.Generator().manual_seed(1))
    return gradient


def delivered(layer, features, gradient):
    """Output, and what arrives at weights, bias and input."""
    layer.zero_grad()
    features = features.detach().clone().requires_grad_(features.requires_grad)
    out = layer(features)
    out.backward(gradient)
    return out.detach(), [each.grad for each in (*layer.parameters(), features)]


@pytest.mark.parametrize("active", ACTIVE)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("frozen", [(), ("weight",), ("bias",)])
def test_gradients_are_those_of_a_plain_layer(active, bias, wanted, frozen):
    features = torch.randn(ROWS, DIM, dtype=torch.float64).requires_grad_(wanted)
    gradient, found = gradient_of(ACTIVE[active]), []
    if (frozen == ("weight",) and not (bias or wanted)) or (frozen == ("bias",) and not bias):
        pytest.skip("nothing is left to train, or to freeze")
    for layer in both(bias):
        for name in frozen:
            getattr(layer, name).requires_grad_(False)
        found.append(delivered(layer, features, gradient))
    assert_close(found[0], found[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("active", ACTIVE)
def test_a_gradient_may_be_a_view(active):
    """Transposed, or one number for all: what sums and products hand back."""
    ours, plain = both()
    features = torch.randn(ROWS, DIM, dtype=torch.float64)
    transposed = gradient_of(ACTIVE[active]).T.contiguous().T
    wide = gradient_of(ACTIVE[active])[:, :1].expand(ROWS, JOINT)
    for gradient in (transposed, wide):
        assert_close(delivered(ours, features, gradient), delivered(plain, features, gradient), rtol=0, atol=1e-12)


def test_the_smallest_numbers_are_not_taken_for_zeros():
    """Their squares are."""
    ours, plain = both()
    features, gradient = 1e200 * torch.ones(ROWS, DIM, dtype=torch.float64), gradient_of([])
    gradient[4, 2] = 1e-200
    found = delivered(ours, features, gradient)[1][0]
    assert found.abs().max() > 0.5
    assert_close(found, delivered(plain, features, gradient)[1][0])


def test_what_is_not_finite_is_handed_on():
    ours, _ = both()
    gradient = gradient_of([])
    gradient[4, 2] = torch.nan
    weight, bias, _ = delivered(ours, torch.randn(ROWS, DIM, dtype=torch.float64), gradient)[1]
    assert weight[2].isnan().all()
    assert bias[2].isnan()


@pytest.mark.parametrize("shape", [(0, DIM), (1, DIM), (6, 4, DIM), (DIM,)])
def test_other_shapes(shape):
    ours, plain = both()
    features = torch.randn(shape, dtype=torch.float64)
    gradient = torch.randn(*shape[:-1], JOINT, dtype=torch.float64)
    assert_close(delivered(ours, features, gradient), delivered(plain, features, gradient), rtol=0, atol=1e-12)


def test_half_precision_is_that_of_a_plain_layer():
    ours, plain = both(dtype=torch.float32)
    features, found = torch.randn(ROWS, DIM), []
    for layer in (ours, plain):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = layer(features)
        assert out.dtype == torch.bfloat16
        out.float().backward(gradient_of([3, 5], torch.float32))
        found.append([each.grad for each in layer.parameters()])
    assert_close(found[0], found[1])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler uses what torch deprecates
def test_compiled_it_is_one_graph(without_shape_checks):
    ours, plain = both(dtype=torch.float32)
    features, gradient = torch.randn(ROWS, DIM), gradient_of([3, 5], torch.float32)
    torch.compile(ours, fullgraph=True)(features).backward(gradient)
    plain(features).backward(gradient)
    assert_close([p.grad for p in ours.parameters()], [p.grad for p in plain.parameters()])


def test_without_a_graph_there_is_nothing_to_keep():
    ours, plain = both()
    features = torch.randn(ROWS, DIM, dtype=torch.float64)
    with torch.no_grad():
        assert torch.equal(ours(features), plain(features))
    with torch.inference_mode():
        assert torch.equal(ours(features), plain(features))


def test_a_second_derivative_is_refused_and_not_wrong():
    ours, _ = both()
    out = ours(torch.randn(ROWS, DIM, dtype=torch.float64)).square().sum()
    (first,) = torch.autograd.grad(out, ours.weight, create_graph=True)
    with pytest.raises(RuntimeError):
        first.sum().backward()


@pytest.mark.parametrize("length", [0.0, 1e-20, 1e-13, 1e-12, 1e-3, 1.0, 1e9])
@pytest.mark.parametrize("active", ACTIVE)
def test_unit_rows_are_those_of_a_plain_norm(length, active):
    """Also of vectors that are too short to have a direction."""
    vectors = torch.randn(ROWS, JOINT, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    vectors[::3] = length * torch.nn.functional.normalize(vectors[::3], dim=1)
    found = []
    for call in (unit_rows, unit):
        leaf = vectors.clone().requires_grad_()
        out = call(leaf)
        out.backward(gradient_of(ACTIVE[active]))
        found.append((out.detach(), leaf.grad))
    assert torch.equal(found[0][0], found[1][0])
    assert_close(found[0][1], found[1][1], rtol=1e-12, atol=1e-12)
    silent = torch.ones(ROWS, dtype=torch.bool).index_fill(0, torch.tensor(ACTIVE[active], dtype=torch.long), False)
    assert not found[0][1][silent].any()  # exact zeros stay exact: the projection looks for them
