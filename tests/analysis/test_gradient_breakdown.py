"""Gradient breakdowns equal a slow reference in plain Python, and hand-computed cases."""

import pytest
import torch

import tercet
from tercet.analysis.gradient_breakdown import breakdown_of, most_informative, percent

OBJECTIVES = ("triplet", "triplet-sh", "nt-xent", "smooth-ap", "sigmoid", "cir/sig-ms")


def random_case(seed, images=5, captions=9):
    generator = torch.Generator().manual_seed(seed)
    S = torch.rand(images, captions, generator=generator, dtype=torch.float64)
    owners = torch.randint(images, (captions,), generator=generator)
    return S, owners[None] == torch.arange(images)[:, None]


def slow(G, S, positives):
    """Anchor -> (pulls, pushes, pushing, hardest), by loops over numbers."""
    by_anchor = {}
    for anchor, (row, similar, own) in enumerate(zip(G.tolist(), S.tolist(), positives.tolist(), strict=True)):
        if not any(own):
            continue
        pull = sum(-g for g in row if g < 0)
        push = sum(g for g in row if g > 0)
        pulls = {c: -g / pull for c, g in enumerate(row) if g < 0}
        pushes = {c: g / push for c, g in enumerate(row) if g > 0}
        pushed = [g for g, mine in zip(row, own, strict=True) if not mine and g > 0]
        pushing = sum(g > 0.01 * max(pushed) for g in pushed)
        negatives = [(-s, c) for c, (s, mine) in enumerate(zip(similar, own, strict=True)) if not mine]
        by_anchor[anchor] = (pulls, pushes, pushing, min(negatives)[1] if negatives else None)
    return by_anchor


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("seed", range(4))
def test_breakdowns_equal_the_loops(name, seed):
    S, positives = random_case(seed)
    i2t, t2i = tercet.objective(name).pair_gradients(S, positives)
    for G, similarity, own in ((i2t, S, positives), (t2i.T, S.T, positives.T)):
        expected = slow(G, similarity, own)
        found = breakdown_of(G, similarity, own)
        assert [each.anchor for each in found] == list(expected)
        for each in found:
            pulls, pushes, pushing, hardest = expected[each.anchor]
            assert {force.candidate: force.share for force in each.pulls} == pytest.approx(pulls, abs=1e-12)
            assert {force.candidate: force.share for force in each.pushes} == pytest.approx(pushes, abs=1e-12)
            assert (each.pushing, each.hardest) == (pushing, hardest)
            assert each.hardest_share == pytest.approx(pushes.get(hardest, 0.0), abs=1e-12)
            assert each.strength == pytest.approx(float(G[each.anchor].abs().sum()), abs=1e-12)
            for forces in (each.pulls, each.pushes):
                row = similarity[each.anchor].tolist()
                order = [(abs(force.gradient), row[force.candidate]) for force in forces]
                assert order == sorted(order, reverse=True)


def test_sentences_by_hand():
    S = torch.tensor([[0.5, 0.4, 0.3, 0.1], [0.0, 0.9, 0.1, 0.2], [0.1, 0.2, 0.3, 0.4]])
    positives = torch.tensor([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1]]).bool()
    G = torch.tensor([[-4.0, 3.0, 1.0, 0.001], [0.0, 0.0, 0.0, 0.0], [-1.0, 0.0, -1.0, 2.0]])
    first, silent, odd = breakdown_of(G, S, positives)
    assert first.sentence() == (
        "2 of 3 negatives push by more than 1 % of the strongest; the hardest carries 75 % of the push. "
        "Its positive is at 0.500, its hardest negative at 0.400."
    )
    assert silent.sentence() == (
        "Silent: nothing pulls, and none of 3 negatives pushes. "
        "Its positive is at 0.900, its hardest negative at 0.200."
    )
    assert odd.sentence() == (
        "None of 2 negatives pushes; there are only pulls. Against the mask, 1 negative is pulled and 1 positive is "
        "pushed. Its nearest positive is at 0.400, its hardest negative at 0.200."
    )


def test_an_anchor_without_a_negative_and_one_without_a_positive():
    S, positives = torch.rand(2, 2), torch.tensor([[True, True], [False, False]])
    (alone,) = breakdown_of(torch.zeros(2, 2), S, positives)
    assert (alone.anchor, alone.hardest, alone.negatives, alone.silent) == (0, None, 0, True)


def test_the_strongest_the_median_and_a_silent_one_are_chosen():
    strengths = [3.0, 0.0, 9.0, 1.0, 5.0, 0.0, 7.0]
    G = torch.diag(torch.tensor(strengths)) * -1
    breakdowns = breakdown_of(G, torch.eye(7), torch.eye(7).bool())
    assert [(role, each.anchor) for role, each in most_informative(breakdowns, 3)] == [
        ("strongest", 2),
        ("median", 4),
        ("silent", 1),
    ]
    assert [each.anchor for _, each in most_informative(breakdowns, 5)] == [2, 6, 4, 0, 1]
    assert [each.anchor for _, each in most_informative(breakdowns, 99)] == [2, 6, 4, 0, 3, 1]
    active = [each for each in breakdowns if not each.silent]
    assert [(role, each.anchor) for role, each in most_informative(active, 3)][-1] == ("weakest", 3)
    assert [role for role, _ in most_informative([breakdowns[1]], 3)] == ["silent"]


def test_format_of_small_shares():
    assert [percent(share) for share in (0.0, 1e-9, 0.004, 0.0851, 0.614, 1.0)] == [
        "0 %",
        "under 0.01 %",
        "0.4 %",
        "8.5 %",
        "61 %",
        "100 %",
    ]
