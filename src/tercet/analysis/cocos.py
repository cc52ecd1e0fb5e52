"""COCOS: counting the samples that contribute to an objective's gradient, per direction.

Published quantities come from each objective's own terms (Bleeker and de Rijke, ECIR 2022, Eq. 10 to 13); the general
ones from the entries of the pair gradient, for every objective. A query is an anchor with at least one positive.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tercet.analysis.cocos_published import as_released
from tercet.contracts import PairMask, Similarity
from tercet.objectives.base import RowObjective
from tercet.objectives.hardest import hardest_negative
from tercet.objectives.masks import Rows, as_rows
from tercet.objectives.nt_xent import NTXent
from tercet.objectives.offline import Offline
from tercet.objectives.smooth_ap import SmoothAP
from tercet.objectives.triplet import Triplet
from tercet.objectives.triplet_sh import HardestTriplet

Counts = dict[str, float]


@torch.no_grad()
def cocos(
    objective: RowObjective,
    similarity: Similarity,
    positives: PairMask | None = None,
    *,
    epsilon: float = 0.01,
    ignored: PairMask | None = None,
    matching: PairMask | None = None,
    mined: Float[Tensor, "pair 4"] | None = None,
    as_published: bool = False,
) -> dict[str, Any]:
    """{'i2t': counts, 't2i': counts}; with `mined` members also 'mined_active', a count for each of the four.

    Every objective: `negatives` (mean over queries of how many negatives have |g| > epsilon x the largest of the
    query's negatives), `silent` (queries whose whole row of the gradient is zero), `effective` (mean of
    (sum |g|)^2 / sum g^2) and `hardest_share` (mean share of the largest |g|), the last two over the queries that push
    any negative, 0 where none does.

    `matching` marks pairs that are known to match, whatever `positives` says. With it: `matching_share` (mean share of
    a query's push that falls on negatives that match) and `matching_even` (what it would be if all negatives were
    pushed alike), both over the queries that push any negative.

    `triplet`: `C_q` (mean number of active triplets over queries that have any, NaN where none has), `C_B` (their sum),
    `C_0` (queries without). `triplet-sh`: `C_q` (1 while any query is active), `C_B` (active queries), `C_0`.
    `nt-xent`: `C_qv` (mean number of negatives with probability > epsilon), `W_neg` (their mean sum), `W_pos` (mean of
    1 - the positives' probabilities). `smooth-ap`: `C_q` (mean over queries that have any, 0 where none has, of the
    terms with sim / R^2 > epsilon per positive), `C_0`.

    `as_published` gives what the released counters print for these four, errors included, and nothing else.
    """
    similarity = similarity.double()  # thresholds should not hang on a rounding
    rows = as_rows(similarity, positives, ignored)
    if as_published:
        return as_released(objective, rows, epsilon)
    mined = None if mined is None else mined.double()
    i2t, t2i = objective.pair_gradients(similarity, positives, ignored, mined=mined)
    sides = {"i2t": (rows, i2t, matching), "t2i": (rows.transposed(), t2i.T, None if matching is None else matching.T)}
    counts: dict[str, Any] = {
        side: own_terms(objective, anchored, epsilon)
        | general(anchored, gradient, epsilon)
        | ({} if known is None else on_matching(anchored, gradient, known))
        for side, (anchored, gradient, known) in sides.items()
    }
    if mined is not None and isinstance(objective, Offline):
        counts["mined_active"] = objective.mined_active(similarity, positives, ignored, mined=mined)
    return counts


def own_terms(objective: RowObjective, rows: Rows, epsilon: float) -> Counts:
    """The published quantities of one direction; none for an objective that the study did not look at."""
    count = OWN_TERMS.get(type(objective))
    is_query = rows.positives.any(dim=1)
    if count is None or not is_query.any():
        return dict(WITHOUT_QUERIES.get(type(objective), {}))
    return count(objective, rows.each(lambda matrix: matrix[is_query]), epsilon)


def general(rows: Rows, gradient: Float[Tensor, "anchor candidate"], epsilon: float) -> Counts:
    """From the entries of one direction's gradient; each query's scale drops out, and with it the reduction."""
    is_query = rows.positives.any(dim=1)
    row, push = gradient.abs()[is_query], (gradient.abs() * rows.negatives)[is_query]
    if not push.numel():
        return {"negatives": 0.0, "silent": float(len(push)), "effective": 0.0, "hardest_share": 0.0}
    largest = push.max(dim=1).values
    pushes = push[largest > 0] / largest[largest > 0, None]  # squares of what has almost vanished would be 0
    effective = pushes.sum(dim=1).square() / pushes.square().sum(dim=1)
    hardest_share = pushes.max(dim=1).values / pushes.sum(dim=1) if len(pushes) else effective
    return {
        "negatives": _mean((push > epsilon * largest[:, None]).sum(dim=1).double()),
        "silent": float((row == 0).all(dim=1).sum()),
        "effective": _mean(effective),
        "hardest_share": _mean(hardest_share),
    }


def on_matching(
    rows: Rows, gradient: Float[Tensor, "anchor candidate"], matching: Bool[Tensor, "anchor candidate"]
) -> Counts:
    """How much of each query's push falls on negatives that match, and how much would if all were pushed alike."""
    push = gradient.abs() * rows.negatives * rows.positives.any(dim=1, keepdim=True)
    pushing = push.sum(dim=1) > 0
    push, negatives, known = (each[pushing] for each in (push, rows.negatives, rows.negatives & matching))
    return {
        "matching_share": _mean((push * known).sum(dim=1) / push.sum(dim=1)),
        "matching_even": _mean(known.sum(dim=1).double() / negatives.sum(dim=1)),
    }


def _triplet(objective: RowObjective, rows: Rows, epsilon: float) -> Counts:
    active = objective.row_gradient(rows).clamp(min=0).sum(dim=1).double()  # every active triplet pushes by one
    contributing = active > 0
    return {
        "C_q": _mean(active[contributing], empty=float("nan")),
        "C_B": float(active.sum()),
        "C_0": float((~contributing).sum()),
    }


def _hardest_triplet(objective: RowObjective, rows: Rows, epsilon: float) -> Counts:
    assert isinstance(objective, HardestTriplet)
    hardest = hardest_negative(rows)
    violated = objective.margin + hardest.similarity[:, None] > rows.similarity
    active = (violated & rows.positives & hardest.exists[:, None]).any(dim=1)
    return {"C_q": float(active.any()), "C_B": float(active.sum()), "C_0": float((~active).sum())}


def _nt_xent(objective: RowObjective, rows: Rows, epsilon: float) -> Counts:
    assert isinstance(objective, NTXent)
    probability = objective.log_softmax(rows).exp()
    counted = (probability > epsilon) & rows.negatives
    return {
        "C_qv": _mean(counted.sum(dim=1).double()),
        "W_neg": _mean((probability * counted).sum(dim=1)),
        "W_pos": _mean(1 - (probability * rows.positives).sum(dim=1)),
    }


def _smooth_ap(objective: RowObjective, rows: Rows, epsilon: float) -> Counts:
    assert isinstance(objective, SmoothAP)
    soft = objective.soft_ranks(rows)
    rank = soft.among_positives + soft.negatives_above
    weight = soft.above * (1 - soft.above) / objective.temperature / rank[:, :, None].square()
    terms = (weight > epsilon).sum(dim=2) * (soft.share > 0)  # anchor slot
    contributing = terms.sum(dim=1).double() / rows.positives.sum(dim=1)
    counted = contributing > 0
    return {"C_q": _mean(contributing[counted]), "C_0": float((~counted).sum())}


OWN_TERMS: dict[type, Callable[[RowObjective, Rows, float], Counts]] = {
    Triplet: _triplet,
    HardestTriplet: _hardest_triplet,
    NTXent: _nt_xent,
    SmoothAP: _smooth_ap,
}


# Where nobody is a query: counts are 0 and means are what they are over nothing.
WITHOUT_QUERIES: dict[type, Counts] = {
    Triplet: {"C_q": float("nan"), "C_B": 0.0, "C_0": 0.0},
    HardestTriplet: {"C_q": 0.0, "C_B": 0.0, "C_0": 0.0},
    NTXent: {"C_qv": 0.0, "W_neg": 0.0, "W_pos": 0.0},
    SmoothAP: {"C_q": 0.0, "C_0": 0.0},
}


def _mean(numbers: Tensor, empty: float = 0.0) -> float:
    return float(numbers.mean()) if len(numbers) else empty
