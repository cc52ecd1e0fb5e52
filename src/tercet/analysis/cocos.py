"""COCOS: counts of the samples that contribute to an objective's gradient, per direction.

After Bleeker and de Rijke (ECIR 2022), who count for triplet and triplet-sh (Eq. 9 and 10), NT-Xent (Eq. 11) and
SmoothAP (Eq. 12 and 13). These published counts are computed from the terms of each objective; the general counts are
computed from the entries of the pair gradient, for every objective. A query is an anchor with at least one positive.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tercet.interfaces import Objective
from tercet.legacy.cocos_released import released_counts
from tercet.objectives import Learned, Queue, RowObjective
from tercet.objectives.aoq import BoundAOQ
from tercet.objectives.hardest_triplet import HardestTriplet
from tercet.objectives.inputs import Rows, as_rows, hardest_negative
from tercet.objectives.nt_xent import NTXent
from tercet.objectives.smooth_ap import SmoothAP
from tercet.objectives.streaming.tiles import EmbeddedBatch
from tercet.objectives.triplet import Triplet
from tercet.types import MaskOrWeights, PairMask, Similarity

Counts = dict[str, float]


@torch.no_grad()
def cocos(
    objective: Objective,
    similarity: Similarity,
    positives: MaskOrWeights | None = None,
    *,
    epsilon: float = 0.01,
    ignored: PairMask | None = None,
    matching: PairMask | None = None,
    as_published: bool = False,
) -> dict[str, Any]:
    """{'i2t': counts, 't2i': counts}; of `aoq.bind(mined)` also 'mined_active', one count per column of `mined`.

    Counts of every objective, where g is a row of the pair gradient restricted to negatives:

    - `negatives`: mean over queries of the number of negatives with |g| > epsilon x the query's largest |g|
    - `silent`: number of queries whose row of the gradient is zero, positives included
    - `effective`: mean effective number of negatives, (sum |g|)^2 / sum g^2
    - `hardest_share`: mean of largest |g| / sum |g|

    The last two are means over queries with a nonzero g, and 0 if there are none.

    `matching` marks pairs that are known to match although `positives` does not contain them. With it, over the same
    queries: `matching_share` (mean share of sum |g| on matching negatives) and `matching_even` (mean share of negatives
    that match, which `matching_share` would be if all negatives were pushed equally).

    Published counts:

    - `triplet` (Eq. 9, 10): `C_q`, mean number of active triplets over queries with any (NaN if none has); `C_B`, their
      sum; `C_0`, number of queries without
    - `triplet-sh` (Eq. 9, 10): `C_q`, 1 if any query is active, else 0; `C_B`, number of active queries; `C_0`
    - `nt-xent` (Eq. 11): `C_qv`, mean number of negatives with probability > epsilon; `W_neg`, mean sum of these
      probabilities; `W_pos`, mean of 1 - the positives' probabilities
    - `smooth-ap` (Eq. 12, 13): `C_q`, mean number per positive of terms with sim / R^2 > epsilon, over queries with any
      (0 if none has); `C_0`

    `as_published=True` returns only what the authors' released counters compute for these four, errors included.
    """
    if isinstance(objective, Learned):
        objective = objective.current()
    similarity = similarity.double()  # so that rounding does not decide at a threshold
    rows = as_rows(similarity, positives, ignored)
    if as_published:
        return released_counts(objective, rows, epsilon)
    i2t, t2i = objective.pair_gradients(similarity, positives, ignored)
    directions = {
        "i2t": (rows, i2t, matching),
        "t2i": (rows.transposed(), t2i.T, None if matching is None else matching.T),
    }
    counts: dict[str, Any] = {
        direction: published_counts(objective, anchored, epsilon)
        | general_counts(anchored, gradient, epsilon)
        | ({} if known is None else matching_counts(anchored, gradient, known))
        for direction, (anchored, gradient, known) in directions.items()
    }
    if isinstance(objective, BoundAOQ):
        counts["mined_active"] = objective.mined_active(similarity, positives, ignored)
    return counts


@torch.no_grad()
def cocos_with_queue(
    objective: RowObjective, queue: Queue, batch: EmbeddedBatch, *, epsilon: float = 0.01
) -> dict[str, Counts]:
    """The counts of `cocos` where the entries of a queue are candidates too."""
    if isinstance(objective, Learned):
        objective = objective.current()
    counts = {}
    for direction, (similarity, positives, ignored) in zip(("i2t", "t2i"), queue.directions(batch), strict=True):
        rows = as_rows(similarity, positives, ignored)
        counts[direction] = published_counts(objective, rows, epsilon) | general_counts(
            rows, objective.row_gradient(rows), epsilon
        )
    return counts


def published_counts(objective: Objective, rows: Rows, epsilon: float) -> Counts:
    """The published counts of one direction; empty for an objective that the paper does not count.

    They count samples: a positive of any weight above 0 is one.
    """
    rows = rows._replace(grades=None)
    counter = PUBLISHED_COUNTERS.get(type(objective))
    is_query = rows.positives.any(dim=1)
    if counter is None or not is_query.any():
        return dict(NO_QUERIES.get(type(objective), {}))
    return counter(objective, rows.map(lambda matrix: matrix[is_query]), epsilon)


def general_counts(rows: Rows, gradient: Float[Tensor, "anchor candidate"], epsilon: float) -> Counts:
    """The general counts of one direction; they do not depend on the scale of a query, so not on the reduction."""
    is_query = rows.positives.any(dim=1)
    row, push = gradient.abs()[is_query], (gradient.abs() * rows.negatives)[is_query]
    if not push.numel():
        return {"negatives": 0.0, "silent": float(len(push)), "effective": 0.0, "hardest_share": 0.0}
    largest = push.max(dim=1).values
    pushes = (
        push[largest > 0] / largest[largest > 0, None]
    )  # relative to the largest, so that squares of tiny entries do not underflow
    effective = pushes.sum(dim=1).square() / pushes.square().sum(dim=1)
    hardest_share = pushes.max(dim=1).values / pushes.sum(dim=1) if len(pushes) else effective
    return {
        "negatives": _mean((push > epsilon * largest[:, None]).sum(dim=1).double()),
        "silent": float((row == 0).all(dim=1).sum()),
        "effective": _mean(effective),
        "hardest_share": _mean(hardest_share),
    }


def matching_counts(
    rows: Rows, gradient: Float[Tensor, "anchor candidate"], matching: Bool[Tensor, "anchor candidate"]
) -> Counts:
    """Mean share of a query's push on negatives that match, and what it would be if all were pushed equally."""
    push = gradient.abs() * rows.negatives * rows.positives.any(dim=1, keepdim=True)
    pushing = push.sum(dim=1) > 0
    push, negatives, known = (matrix[pushing] for matrix in (push, rows.negatives, rows.negatives & matching))
    return {
        "matching_share": _mean((push * known).sum(dim=1) / push.sum(dim=1)),
        "matching_even": _mean(known.sum(dim=1).double() / negatives.sum(dim=1)),
    }


def _triplet(objective: Objective, rows: Rows, epsilon: float) -> Counts:
    """Eq. 9 and 10 for triplet."""
    assert isinstance(objective, Triplet)
    active = objective.row_gradient(rows).clamp(min=0).sum(dim=1).double()  # every active triplet pushes with weight 1
    contributing = active > 0
    return {
        "C_q": _mean(active[contributing], empty=float("nan")),
        "C_B": float(active.sum()),
        "C_0": float((~contributing).sum()),
    }


def _hardest_triplet(objective: Objective, rows: Rows, epsilon: float) -> Counts:
    """Eq. 9 and 10 for triplet-sh."""
    assert isinstance(objective, HardestTriplet)
    hardest = hardest_negative(rows)
    violated = objective.margin + hardest.similarity[:, None] > rows.similarity
    active = (violated & rows.positives & hardest.exists[:, None]).any(dim=1)
    return {"C_q": float(active.any()), "C_B": float(active.sum()), "C_0": float((~active).sum())}


def _nt_xent(objective: Objective, rows: Rows, epsilon: float) -> Counts:
    """Eq. 11: C^qv, W^- and W^+ of NT-Xent."""
    assert isinstance(objective, NTXent)
    probability = objective.log_softmax(rows).exp()
    counted = (probability > epsilon) & rows.negatives
    return {
        "C_qv": _mean(counted.sum(dim=1).double()),
        "W_neg": _mean((probability * counted).sum(dim=1)),
        "W_pos": _mean(1 - (probability * rows.positives).sum(dim=1)),
    }


def _smooth_ap(objective: Objective, rows: Rows, epsilon: float) -> Counts:
    """Eq. 12 and 13: C^q and C^0 of SmoothAP, with the factor 1 / temperature."""
    assert isinstance(objective, SmoothAP)
    soft = objective.soft_ranks(rows)
    rank = soft.among_positives + soft.negatives_above
    weight = soft.above * (1 - soft.above) / objective.temperature / rank[:, :, None].square()
    terms = (weight > epsilon).sum(dim=2) * (soft.share > 0)  # anchor slot
    contributing = terms.sum(dim=1).double() / rows.positives.sum(dim=1)
    counted = contributing > 0
    return {"C_q": _mean(contributing[counted]), "C_0": float((~counted).sum())}


PUBLISHED_COUNTERS: dict[type, Callable[[Objective, Rows, float], Counts]] = {
    Triplet: _triplet,
    HardestTriplet: _hardest_triplet,
    NTXent: _nt_xent,
    SmoothAP: _smooth_ap,
}


# Published counts of a batch without queries: counts are 0, means have their empty value.
NO_QUERIES: dict[type, Counts] = {
    Triplet: {"C_q": float("nan"), "C_B": 0.0, "C_0": 0.0},
    HardestTriplet: {"C_q": 0.0, "C_B": 0.0, "C_0": 0.0},
    NTXent: {"C_qv": 0.0, "W_neg": 0.0, "W_pos": 0.0},
    SmoothAP: {"C_q": 0.0, "C_0": 0.0},
}


def _mean(values: Tensor, empty: float = 0.0) -> float:
    return float(values.mean()) if len(values) else empty
