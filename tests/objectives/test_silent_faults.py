"""What was silently wrong once: NaN, scale with a default temperature, second derivatives, directions of a loss."""

import warnings

import pytest
import torch

import tercet
from tercet.analysis.triplet_diagram import plane
from tercet.objectives import OBJECTIVES, inputs
from tests.objectives.named_settings import named

every_objective = pytest.mark.parametrize("name", OBJECTIVES)


def unit(rows, dim, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(rows, dim, generator=generator, dtype=torch.float64), dim=1)


@every_objective
@pytest.mark.parametrize("entries", [(slice(None), slice(None)), (1, 3), (2, 2)], ids=["all", "negative", "positive"])
@pytest.mark.parametrize("diagonal", [True, False])
def test_nan_in_nan_out(name, entries, diagonal):
    objective = tercet.objective(name)
    S = torch.rand(6, 6, generator=torch.Generator().manual_seed(0))
    S[entries] = torch.nan
    S.requires_grad_()
    positives = None if diagonal else torch.eye(6, dtype=torch.bool)
    scalar = objective.on_similarity(S, positives)
    scalar.backward()
    assert scalar.isnan()
    assert S.grad.isnan().any()
    assert objective.pair_gradient(S.detach(), positives).isnan().any()


@every_objective
def test_nan_embeddings_give_nan_streamed(name):
    x, y = unit(70, 6, 0).float(), unit(70, 6, 1).float()
    x[3] = torch.nan
    x.requires_grad_()
    scalar = tercet.objective(name)(x, y, streamed=True)
    scalar.backward()
    assert scalar.isnan()
    assert x.grad.isnan().any()


@pytest.mark.parametrize("name", ["nt-xent", "smooth-ap", "sigmoid"])
def test_scale_needs_a_named_temperature(name):
    x, y = unit(5, 4, 0), unit(5, 4, 1)
    with pytest.raises(ValueError, match=rf"{name} has temperature=.* by default, which scale= would be combined with"):
        tercet.objective(name)(x, y, scale=2.0)
    expected = tercet.objective(name, temperature=0.5)(x, y)
    torch.testing.assert_close(tercet.objective(name, temperature=1.0)(x, y, scale=2.0), expected)


def test_bias_needs_a_named_bias():
    x, y = unit(5, 4, 0), unit(5, 4, 1)
    with pytest.raises(ValueError, match=r"sigmoid has bias=-10 by default, which bias= would be combined with"):
        tercet.objective("sigmoid", temperature=1.0)(x, y, scale=10.0, bias=-10.0)
    siglip = tercet.objective("sigmoid", temperature=1.0, bias=0.0)(x, y, scale=10.0, bias=-10.0)
    torch.testing.assert_close(siglip, tercet.objective("sigmoid")(x, y))


@pytest.fixture
def fresh_warnings(monkeypatch):
    monkeypatch.setattr(inputs, "_WARNINGS", inputs._Warnings())


def test_embeddings_that_are_not_normalized_are_warned_of_once(fresh_warnings):
    objective, x, y = tercet.objective("triplet"), 3 * unit(5, 4, 0), unit(5, 4, 1)
    with pytest.warns(UserWarning, match=r"not L2-normalized \(norms from 1 to 3\)"):
        objective(x, y)
    with warnings.catch_warnings(action="error"):
        objective(x, y)


def test_ids_without_any_match_are_warned_of_once(fresh_warnings):
    objective, x, y = tercet.objective("triplet"), unit(5, 4, 0), unit(5, 4, 1)
    for _ in range(5):
        objective(x, y)  # paired by rows: checked on their own
    with pytest.warns(UserWarning, match="no caption id equals an image id"):
        objective(x, y, image_ids=torch.arange(5), caption_ids=torch.arange(5) + 9)
    with warnings.catch_warnings(action="error"):
        objective(x, y, image_ids=torch.arange(5), caption_ids=torch.arange(5) + 9)


@every_objective
@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("with_ids", [True, False])
def test_a_second_derivative_is_exact_or_refused(name, streamed, with_ids):
    objective, x, y = named(name), unit(8, 5, 0).requires_grad_(), unit(8, 5, 1).requires_grad_()
    ids = {"image_ids": torch.arange(8), "caption_ids": torch.arange(8)} if with_ids else {}
    (first,) = torch.autograd.grad(objective(x, y, streamed=streamed, **ids), x, create_graph=True)
    penalty = first.square().sum()
    if with_ids or streamed or not objective.has_diagonal_form:
        with pytest.raises(RuntimeError, match="no second derivative: the pair gradient is a constant"):
            torch.autograd.grad(penalty, (x, y))
        return
    (reference,) = torch.autograd.grad(objective.value(x @ y.T), x, create_graph=True)
    second, expected = (
        torch.autograd.grad(of.square().sum(), (x, y), allow_unused=True, materialize_grads=True)
        for of in (first, reference)
    )
    for found, wanted in zip(second, expected, strict=True):
        torch.testing.assert_close(found, wanted)


def hinge(S, positives):
    """triplet-sh of both directions, as a plain torch loss."""
    total = S.new_zeros(())
    for s, is_positive in ((S, positives), (S.T, positives.T)):
        hardest = s.masked_fill(is_positive, -torch.inf).amax(dim=1, keepdim=True)
        violation = (0.2 + hardest - s).relu()
        total = total + torch.where(is_positive & hardest.isfinite(), violation, 0.0).sum()
    return total


def mean_of_hinges(S, positives):
    return hinge(S, positives) / (2 * len(S))


def hinge_gradient(S, positives):
    return tercet.objective("triplet-sh").row_gradient(inputs.as_rows(S, positives, None))


@pytest.mark.parametrize("loss", [hinge, mean_of_hinges])
def test_counts_do_not_depend_on_how_an_objective_is_written(loss):
    S = torch.rand(9, 12, generator=torch.Generator().manual_seed(1)) / 3
    positives = torch.arange(9)[:, None] == torch.arange(12) % 9
    S[positives] += 0.3
    by_loss, by_gradient = (tercet.cocos(tercet.objective(which), S, positives) for which in (loss, hinge_gradient))
    built_in = tercet.cocos(tercet.objective("triplet-sh"), S, positives)
    for direction in ("i2t", "t2i"):
        assert by_loss[direction] == pytest.approx(by_gradient[direction], rel=1e-5)
        assert 0 < built_in[direction]["silent"] < 9
        assert by_loss[direction]["silent"] == built_in[direction]["silent"]


def test_a_loss_that_is_no_sum_over_queries_has_no_directions():
    objective = tercet.objective(lambda S, positives: (S.exp().sum() - (S * positives).sum()).log())
    S = torch.rand(4, 4)
    i2t, t2i = objective.pair_gradients(S)
    torch.testing.assert_close(i2t, t2i)
    torch.testing.assert_close(i2t + t2i, objective.pair_gradient(S))


def test_the_diagram_of_a_loss_is_that_of_the_same_weights():
    weights = tercet.objective((lambda p, n: (0.2 + n > p).double(), torch.ones_like, torch.ones_like))
    by_weights, by_loss = plane(weights, points=6), plane(tercet.objective(hinge), points=6)
    torch.testing.assert_close(by_loss.pull, by_weights.pull)
    torch.testing.assert_close(by_loss.push, by_weights.push)


class Counting:
    """An objective that changes with every call, and has no state_dict."""

    def __init__(self):
        self.calls = 0

    def __call__(self, S, positives):
        self.calls += 1
        return hinge(S, positives) * self.calls


class CountingMean(Counting):
    def __call__(self, S, positives):
        self.calls += 1
        return -S[positives].mean() * self.calls


class Temperature(torch.nn.Module):
    """NT-Xent with a trainable temperature, and a buffer that counts its calls."""

    def __init__(self):
        super().__init__()
        self.log_scale = torch.nn.Parameter(torch.tensor(1.0))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, S, positives):
        self.calls += 1
        z = self.log_scale.exp() * S * (1 + 0.001 * self.calls)
        shares = positives / positives.sum(dim=1, keepdim=True).clamp(min=1)
        return -(z.log_softmax(dim=1) * shares).sum() / len(S)


def test_hidden_state_is_refused():
    with pytest.raises(ValueError, match=r"Counting returned other values .* it changes between calls"):
        tercet.objective(Counting())
    with pytest.raises(ValueError, match="it changes between calls"):
        tercet.objective(CountingMean())


def test_the_state_of_a_module_is_as_before_its_trial_call():
    module = Temperature()
    tercet.objective(module)
    assert module.calls == 0


def test_a_class_of_modules_is_built():
    assert tercet.objective(Temperature).name == "Temperature"


def test_transforms_of_torch_func_are_told_what_to_use():
    o, rows = tercet.objective("triplet-sh"), torch.eye(3)
    for call in (
        lambda: torch.func.grad(o.on_similarity)(rows),
        lambda: torch.func.grad(lambda x: o(x, rows, streamed=True))(rows),
        lambda: torch.vmap(o.on_similarity)(rows[None]),
    ):
        with pytest.raises(RuntimeError, match=r"torch\.func .* use objective\.value"):
            call()
    assert torch.allclose(torch.func.grad(o.value)(rows), o.pair_gradient(rows))
