"""A stack of batches gives each of them what it gets alone: scalar and pair gradient, whatever the others hold."""

import pytest
import torch

import tercet
from tercet.objectives import OBJECTIVES
from tercet.objectives.aoq import AOQ
from tercet.objectives.stacks import StackedPairs
from tests.objectives.batches import CASES

EVERY = [(name, {}) for name in OBJECTIVES if not isinstance(tercet.objective(name), AOQ)]
EVERY += [(name, {"reading": "code"}) for name in OBJECTIVES if "/" in name]
EVERY += [(name, {"reduction": "mean"}) for name in ("triplet", "triplet-sh", "cir/sig-ms")]
EVERY += [(name, {"reduction": "sum"}) for name in ("nt-xent", "sigmoid", "smooth-ap")]
EVERY += [("sigmoid", {"bias": "batch"}), ("nt-xent + 0.1*cir/sig-ms", {})]
every_objective = pytest.mark.parametrize(("name", "settings"), EVERY, ids=str)
STACKS = {
    case: [
        (batch.similarity, batch.positives, batch.ignored),
        # Other similarities and, in a batch of the same size, other positives.
        (batch.similarity.flip(0) * 0.7, batch.positives.roll(1, dims=0), batch.ignored),
        (batch.similarity.flip(1) - 0.1, batch.positives, batch.ignored),
    ]
    for case, batch in CASES.items()
}


def on_stack(objective, stack):
    similarity, positives, ignored = zip(*stack, strict=True)
    masks = None if ignored[0] is None else torch.stack(ignored)
    return objective.on_stack(torch.stack(similarity), StackedPairs.of(positives), masks)


QUICK = ("house 3 x 15, ignored pairs", "queries without a positive 4 x 5", "ties on a grid 4 x 9")


@every_objective
@pytest.mark.parametrize("cases", [QUICK, pytest.param(tuple(STACKS), marks=pytest.mark.slow)], ids=["some", "all"])
def test_a_stack_equals_its_batches(name, settings, cases):
    objective = tercet.objective(name, **settings)
    for case in cases:
        stack = STACKS[case]
        scalars, gradients = on_stack(objective, stack)
        for batch, scalar, gradient in zip(stack, scalars, gradients, strict=True):
            expected = objective.on_similarity(*batch), objective.pair_gradient(*batch)
            torch.testing.assert_close((scalar, gradient), expected, rtol=1e-11, atol=1e-11, msg=f"{name}, {case}")


@every_objective
@pytest.mark.parametrize("where", [(0, 0), (0, 4)], ids=["at a positive", "at a negative"])
def test_nan_stays_in_its_run(name, settings, where):
    objective = tercet.objective(name, **settings)
    (before, positives, _), *others = STACKS["square 6 x 6"]
    diverged = before.clone()
    diverged[where] = torch.nan
    scalars, gradients = on_stack(objective, [others[0], (diverged, positives, None), others[1]])
    assert scalars[1].isnan()
    assert gradients[1].isnan().any()
    expected = on_stack(objective, others)
    assert torch.equal(scalars[[0, 2]], expected[0])
    assert torch.equal(gradients[[0, 2]], expected[1])


def test_batches_without_a_positive_or_a_negative():
    shape, none, everything = (3, 4), torch.zeros(3, 4, dtype=torch.bool), torch.ones(3, 4, dtype=torch.bool)
    similarity = torch.linspace(-0.5, 0.9, 12, dtype=torch.float64).view(shape)
    for name, settings in EVERY:
        objective = tercet.objective(name, **settings)
        scalars, gradients = on_stack(objective, [(similarity, mask, None) for mask in (none, everything)])
        assert scalars[0] == 0, name
        assert not gradients[0].any(), name
        torch.testing.assert_close(gradients[1], objective.pair_gradient(similarity, everything), rtol=1e-11, atol=0)


def test_most_objectives_handle_a_stack_at_once():
    one_by_one = {name for name in OBJECTIVES if not tercet.objective(name).has_stacked_form}
    assert one_by_one == {"smooth-ap", "circle", "multi-similarity", "binomial-deviance"}


@pytest.mark.parametrize("name", ["triplet-sh", "nt-xent", "sigmoid", "nca/sig", "cir/con", "cir/sig-ms", "con/lin-ms"])
def test_the_bits_of_a_batch_do_not_depend_on_its_position(name):
    """The last numbers of a tensor may be computed by other instructions than those before; 23 is odd."""
    generator = torch.Generator().manual_seed(1)
    similarity = torch.rand(40, 23, 23, generator=generator) * 2 - 1
    objective, diagonal = tercet.objective(name), torch.eye(23, dtype=torch.bool)
    _, together = objective.on_stack(similarity, StackedPairs.of([diagonal] * 40))
    for run in range(40):
        _, alone = objective.on_stack(similarity[run : run + 1].clone(), StackedPairs.of([diagonal]))
        assert torch.equal(alone[0], together[run])
