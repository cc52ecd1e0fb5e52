"""One's own objective, in each of its three forms, can do what ours can."""

import pytest
import torch
from torch.nn.functional import cross_entropy

import tercet
from tests.objectives.batches import CASES

CASE = CASES["house 3 x 15"]


def hinge_gradient(similarity, positives):
    """triplet-sh written by a user, rows as anchors."""
    hidden = similarity.masked_fill(positives, -torch.inf)
    hardest = hidden.max(dim=1, keepdim=True)
    active = positives & (0.2 + hardest.values > similarity)
    pull = active.to(similarity.dtype)
    return (-pull).scatter_add(1, hardest.indices, pull.sum(dim=1, keepdim=True))


def sees_ignored(similarity, positives, ignored):
    return torch.where(ignored, 0.0, 1.0) * (~positives).to(similarity.dtype)


def clip_loss(similarity, positives):
    target = positives.to(similarity.dtype)
    rows = cross_entropy(similarity / 0.1, target / target.sum(dim=1, keepdim=True))
    columns = cross_entropy(similarity.T / 0.1, target.T / target.T.sum(dim=1, keepdim=True))
    return (rows + columns) / 2


def test_a_gradient_function_gets_both_directions_and_the_monitor():
    own, ours = tercet.objective(hinge_gradient), tercet.objective("triplet-sh")
    torch.testing.assert_close(own.pair_gradient(*CASE[:2]), ours.pair_gradient(*CASE[:2]))
    assert not own.has_value
    assert own.value(*CASE[:2]) is None
    assert own.name == "hinge_gradient"
    similarity = CASE.similarity.clone().requires_grad_()
    scalar = own.on_similarity(similarity, CASE.positives)
    scalar.backward()
    torch.testing.assert_close(scalar, ours.value(*CASE[:2]))
    torch.testing.assert_close(similarity.grad, ours.pair_gradient(*CASE[:2]))


def test_three_weights_make_a_cell():
    own = tercet.objective(
        (lambda s_p, s_n: torch.sigmoid(10 * (s_n - s_p)), lambda s_p: 1 - s_p, lambda s_n: s_n), reduction="mean"
    )
    ours = tercet.objective("nca/lin", reduction="mean")
    torch.testing.assert_close(own.pair_gradient(*CASE[:2]), ours.pair_gradient(*CASE[:2]))


def test_any_torch_loss_is_taken_whole():
    own, ours = tercet.objective(clip_loss), tercet.objective("nt-xent", temperature=0.1)
    assert own.has_value
    torch.testing.assert_close(own.value(*CASE[:2]), ours.value(*CASE[:2]))
    torch.testing.assert_close(own.pair_gradient(*CASE[:2]), ours.pair_gradient(*CASE[:2]))
    i2t, t2i = own.pair_gradients(*CASE[:2])
    assert torch.equal(i2t, t2i)
    similarity = CASE.similarity.clone().requires_grad_()
    (2 * own.on_similarity(similarity, CASE.positives)).backward()
    torch.testing.assert_close(similarity.grad, 2 * ours.pair_gradient(*CASE[:2]))


def test_a_module_is_a_loss_too():
    class Loss(torch.nn.Module):
        def forward(self, similarity, positives):
            return (similarity * ~positives).sum() - (similarity * positives).sum()

    own = tercet.objective(Loss())
    assert own.name == "Loss"
    assert torch.equal(own.pair_gradient(*CASE[:2]), torch.where(CASE.positives, -1.0, 1.0).double())


def test_ignored_pairs_reach_a_third_parameter_and_are_refused_without_one():
    case = CASES["house 3 x 15, ignored pairs"]
    gradient = tercet.objective(sees_ignored).pair_gradient(*case)
    assert not gradient[case.ignored].any()
    with pytest.raises(ValueError, match="add a third parameter, ignored"):
        tercet.objective(hinge_gradient).pair_gradient(*case)


def test_what_is_neither_a_gradient_nor_a_loss_is_refused_at_once():
    with pytest.raises(ValueError, match=r"returned \(3,\)"):
        tercet.objective(lambda similarity, positives: similarity.sum(dim=1))
    with pytest.raises(ValueError, match="does not depend on S"):
        tercet.objective(lambda similarity, positives: similarity.detach().sum())
    with pytest.raises(ValueError, match="three functions"):
        tercet.objective((hinge_gradient, hinge_gradient))


def test_a_function_comes_from_a_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def pull(similarity, positives):\n    return -positives.to(similarity.dtype)\n")
    own = tercet.objective(f"{file}:pull")
    assert own.name == "pull"
    assert torch.equal(own.pair_gradients(*CASE[:2])[0], -CASE.positives.double())
    with pytest.raises(ValueError, match=r"defines no 'push'; it defines: pull"):
        tercet.objective(f"{file}:push")
