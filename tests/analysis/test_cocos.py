"""COCOS equals the released counters, their corrected versions, and loops from the paper's equations for every key."""

import json
from math import exp
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import tercet
from tercet.objectives import OBJECTIVES
from tests.objectives.batches import CASES

GOLDENS = Path(__file__).parents[1] / "goldens"
TENSORS = load_file(GOLDENS / "ecir22_losses.safetensors")
RESULTS = json.loads((GOLDENS / "ecir22_losses.json").read_text())["results"]
FIVE = torch.arange(8)[:, None] == torch.arange(8).repeat_interleave(5)
BATCHES = pytest.mark.parametrize("batch", [0, 1, 2])


def counts(name, batch, **options):
    if name == "smooth-ap":
        return tercet.cocos(tercet.objective(name), TENSORS[f"out.sim_all.{batch}"], FIVE, **options)
    return tercet.cocos(tercet.objective(name), TENSORS[f"out.sim_first.{batch}"], **options)


def same(actual, expected, tolerance=1e-6):
    assert actual == pytest.approx(expected, abs=tolerance, nan_ok=True)


@BATCHES
@pytest.mark.parametrize(("name", "key"), [("triplet", "triplet"), ("triplet-sh", "triplet_sh")])
def test_released_hinge_counters(name, key, batch):
    result, coded = counts(name, batch, as_published=True), RESULTS[f"batch{batch}"]["as_coded"][key]
    same(result["i2t"], {"C_q": coded["i2t_grads_mean"], "C_B": coded["i2t_grads_sum"], "C_0": coded["zeros_i2t"]})
    same(result["t2i"], {"C_q": coded["t2i_grads_mean"], "C_B": coded["t2i_grad_sum"], "C_0": coded["zeros_t2i"]})


@BATCHES
@pytest.mark.parametrize(("epsilon", "key"), [(0.01, "ntxent_thr0_01"), (0.05, "ntxent_thr0_05")])
def test_released_nt_xent_counters(epsilon, key, batch):
    result, coded = (
        counts("nt-xent", batch, as_published=True, epsilon=epsilon),
        RESULTS[f"batch{batch}"]["as_coded"][key],
    )
    for direction in ("i2t", "t2i"):
        expected = {
            "C_qv": coded[f"{direction}_n_high_grad"],
            "W_neg": coded[f"{direction}_high_grad"],
            "W_pos": coded[f"1-s_{direction}.diag.mean"],
        }
        same(result[direction], expected)


@BATCHES
def test_released_smooth_ap_counters(batch):
    result, coded = counts("smooth-ap", batch, as_published=True), RESULTS[f"batch{batch}"]["as_coded"]["smoothap"]
    for direction in ("i2t", "t2i"):
        same(result[direction], {"C_q": coded[f"sum_{direction}"], "C_0": coded[f"zeros_{direction}"]})


@BATCHES
@pytest.mark.parametrize(
    ("name", "key", "names"),
    [
        ("triplet", "triplet", {"C_q": "Cq", "C_B": "CB", "C_0": "C0"}),
        ("triplet-sh", "triplet_sh", {"C_q": "Cq", "C_B": "CB", "C_0": "C0"}),
        ("nt-xent", "ntxent_eps0_01", {"C_qv": "C", "W_neg": "Wneg", "W_pos": "Wpos"}),
        ("smooth-ap", "smoothap_eps0_01_with_inv_tau", {"C_q": "Cq", "C_0": "C0"}),
    ],
)
def test_corrected_counters(name, key, names, batch):
    result, corrected = counts(name, batch), RESULTS[f"batch{batch}"]["corrected"][key]
    for direction in ("i2t", "t2i"):
        same({ours: result[direction][ours] for ours in names}, {k: corrected[direction][v] for k, v in names.items()})


# Loops. A query is (its positives, its negatives) as {candidate: s}.
def queries(similarity, positives, ignored):
    for row, mask, out in zip(similarity.tolist(), positives.tolist(), ignored.tolist(), strict=True):
        p = {j: s for j, s in enumerate(row) if mask[j] and not out[j]}
        n = {j: s for j, s in enumerate(row) if not mask[j] and not out[j]}
        if p:
            yield p, n


def slow_triplet(o, batch, epsilon):
    active = [sum(o.margin + s_n - s_p > 0 for s_p in p.values() for s_n in n.values()) for p, n in batch]
    nonzero = [count for count in active if count]
    return {"C_q": sum(nonzero) / len(nonzero) if nonzero else float("nan"), "C_B": sum(active), "C_0": active.count(0)}


def slow_triplet_sh(o, batch, epsilon):
    active = [any(n and o.margin + max(n.values()) - s_p > 0 for s_p in p.values()) for p, n in batch]
    return {"C_q": float(any(active)), "C_B": sum(active), "C_0": active.count(False)}


def slow_nt_xent(o, batch, epsilon):
    count = weight_n = weight_p = 0.0
    for p, n in batch:
        total = sum(exp(s / o.temperature) for s in [*p.values(), *n.values()])
        probable = [q for q in (exp(s / o.temperature) / total for s in n.values()) if q > epsilon]
        count += len(probable) / len(batch)
        weight_n += sum(probable) / len(batch)
        weight_p += (1 - sum(exp(s / o.temperature) / total for s in p.values())) / len(batch)
    return {"C_qv": count, "W_neg": weight_n, "W_pos": weight_p}


def slow_smooth_ap(o, batch, epsilon):
    per_query = []
    for p, n in batch:
        count = 0
        for i, s_i in p.items():
            others = {j: s for j, s in {**p, **n}.items() if j != i}
            g = {j: 1 / (1 + exp(max(-60, min(60, (s_i - s) / o.temperature)))) for j, s in others.items()}
            rank = 1 + sum(g.values())
            count += sum(x * (1 - x) / o.temperature / rank**2 > epsilon for x in g.values())
        per_query.append(count / len(p))
    nonzero = [count for count in per_query if count]
    return {"C_q": sum(nonzero) / len(nonzero) if nonzero else 0.0, "C_0": per_query.count(0)}


SLOW = {"triplet": slow_triplet, "triplet-sh": slow_triplet_sh, "nt-xent": slow_nt_xent, "smooth-ap": slow_smooth_ap}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", SLOW)
@pytest.mark.parametrize("epsilon", [0.01, 0.1])
def test_published_counts_equal_loops(name, case, epsilon):
    similarity, positives, ignored = CASES[case]
    ignored = torch.zeros_like(positives) if ignored is None else ignored
    o = tercet.objective(name)
    result = tercet.cocos(o, similarity, positives, ignored=ignored, epsilon=epsilon)
    directions = {"i2t": (similarity, positives, ignored), "t2i": (similarity.T, positives.T, ignored.T)}
    for direction, matrices in directions.items():
        expected = SLOW[name](o, list(queries(*matrices)), epsilon)
        same({key: result[direction][key] for key in expected}, expected, 1e-10)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_general_counts_equal_loops(name, case):
    similarity, positives, ignored = CASES[case]
    ignored = torch.zeros_like(positives) if ignored is None else ignored
    o = tercet.objective(name, reduction="mean")
    result = tercet.cocos(o, similarity, positives, ignored=ignored, epsilon=0.05)
    for direction, gradient in zip(("i2t", "t2i"), o.pair_gradients(similarity, positives, ignored), strict=True):
        rows, mask, out = (m if direction == "i2t" else m.T for m in (gradient, positives, ignored))
        count, silent, effective, share = [], 0, [], []
        for g, p, x in zip(rows.tolist(), mask.tolist(), out.tolist(), strict=True):
            if not any(a and not b for a, b in zip(p, x, strict=True)):
                continue
            push = [abs(v) for v, a, b in zip(g, p, x, strict=True) if not a and not b]
            largest = max(push, default=0.0)
            count.append(sum(v > 0.05 * largest for v in push))
            silent += all(v == 0 for v in g)
            if largest > 0:
                effective.append(sum(push) ** 2 / sum(v * v for v in push))
                share.append(largest / sum(push))
        mean = lambda values: sum(values) / len(values) if values else 0.0  # noqa: E731
        expected = {
            "negatives": mean(count),
            "silent": silent,
            "effective": mean(effective),
            "hardest_share": mean(share),
        }
        same({key: result[direction][key] for key in expected}, expected, 1e-9)


def test_counts_do_not_depend_on_the_reduction():
    case = CASES["house 3 x 15"]
    for name in OBJECTIVES:
        one, other = (tercet.cocos(tercet.objective(name, reduction=r), *case[:2]) for r in ("sum", "mean"))
        for direction in ("i2t", "t2i"):
            same(one[direction], other[direction], 1e-9)


def test_the_released_counters_reject_unsupported_batches():
    case = CASES["house 3 x 15"]
    with pytest.raises(ValueError, match="released no counter for cir/lin"):
        tercet.cocos(tercet.objective("cir/lin"), *case[:2], as_published=True)
    with pytest.raises(ValueError, match="one caption per image"):
        tercet.cocos(tercet.objective("triplet"), *case[:2], as_published=True)
    ragged = CASES["ragged 4 x 10"]
    with pytest.raises(ValueError, match="same number of captions"):
        tercet.cocos(tercet.objective("smooth-ap"), *ragged[:2], as_published=True)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("shape", [(3, 4), (3, 0), (0, 4), (0, 0)])
def test_a_batch_without_queries(name, shape):
    counts = tercet.cocos(tercet.objective(name), torch.zeros(shape), torch.zeros(shape, dtype=torch.bool))
    assert counts["i2t"]["silent"] == 0
    assert counts["t2i"].get("C_0", 0.0) == 0


def test_tiny_gradients_do_not_underflow_in_shares():
    similarity = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    counts = tercet.cocos(tercet.objective("nt-xent", temperature=0.005), similarity)
    assert counts["i2t"]["effective"] == 1.0


def test_released_counters_reject_ignored_pairs():
    ignored = torch.eye(3, dtype=torch.bool).roll(1, dims=1)
    with pytest.raises(ValueError, match="do not support ignored pairs"):
        tercet.cocos(tercet.objective("triplet"), torch.zeros(3, 3), ignored=ignored, as_published=True)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_share_on_matching_negatives_against_loops(name):
    generator = torch.Generator().manual_seed(3)
    S = torch.rand(6, 9, generator=generator, dtype=torch.float64)
    positives = torch.arange(6)[:, None] == torch.tensor([0, 0, 1, 1, 2, 2, 3, 3, 4])  # image 5 has none
    matching = torch.rand(6, 9, generator=generator) < 0.3
    objective = tercet.objective(name)
    result = tercet.cocos(objective, S, positives, matching=matching)
    for direction, G in zip(("i2t", "t2i"), objective.pair_gradients(S, positives), strict=True):
        G, own, known = (m if direction == "i2t" else m.T for m in (G, positives, matching))
        shares, evens = [], []
        for row, mine, true in zip(G.tolist(), own.tolist(), known.tolist(), strict=True):
            push = [abs(g) for g, positive in zip(row, mine, strict=True) if not positive]
            matches = [fit for fit, positive in zip(true, mine, strict=True) if not positive]
            if any(mine) and sum(push) > 0:
                shares.append(sum(p for p, fit in zip(push, matches, strict=True) if fit) / sum(push))
                evens.append(sum(matches) / len(matches))
        assert result[direction]["matching_share"] == pytest.approx(sum(shares) / len(shares), abs=1e-9)
        assert result[direction]["matching_even"] == pytest.approx(sum(evens) / len(evens), abs=1e-9)


def test_matching_counts_are_zero_without_a_push():
    S, none = torch.eye(3), torch.zeros(3, 3, dtype=torch.bool)
    result = tercet.cocos(tercet.objective("triplet-sh"), S, matching=none)
    assert result["i2t"]["matching_share"] == result["t2i"]["matching_even"] == 0.0
    assert "matching_share" not in tercet.cocos(tercet.objective("triplet-sh"), S)["i2t"]
