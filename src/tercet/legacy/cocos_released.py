"""COCOS counters as in the authors' released code, errors included: for reading the published tables.

Two of the counters index t2i wrongly:
- `triplet`: the violations of a caption are in a column of the matrix, but are summed along rows;
- `smooth-ap`: with k captions per image and B images, the counter reads rows k c to k c + k - 1 of the B x B
  comparison matrix of caption c; its only positive is row c // k. From c = B / k on these rows do not exist, and the
  caption counts as one without a gradient, whatever the model. Both directions also omit the factor 1 / temperature.
`triplet-sh` and `nt-xent` are counted correctly.
"""

import torch
from torch import Tensor

from tercet.interfaces import Objective
from tercet.objectives.hardest_triplet import HardestTriplet
from tercet.objectives.inputs import Rows, logistic
from tercet.objectives.nt_xent import NTXent
from tercet.objectives.smooth_ap import SmoothAP
from tercet.objectives.triplet import Triplet

Counts = dict[str, float]


def released_counts(objective: Objective, rows: Rows, epsilon: float) -> dict[str, Counts]:
    """{'i2t': counts, 't2i': counts}, with the key names of `tercet.cocos`."""
    if rows.ignored is not None:
        raise ValueError("the released counters do not support ignored pairs: remove ignored or as_published")
    if isinstance(objective, SmoothAP):
        return _smooth_ap(objective, rows, epsilon)
    if not isinstance(objective, Triplet | HardestTriplet | NTXent):
        raise ValueError(f"the authors released no counter for {objective.name}: remove as_published")
    images, captions = rows.similarity.shape
    if images != captions or not rows.positives.equal(
        torch.eye(images, dtype=torch.bool, device=rows.positives.device)
    ):
        raise ValueError("the released counter needs one caption per image, in order: positives must be the diagonal")
    if isinstance(objective, NTXent):
        return _nt_xent(objective, rows, epsilon)
    return _hinge(objective, rows)


def _hinge(objective: Triplet | HardestTriplet, rows: Rows) -> dict[str, Counts]:
    similarity, positive = rows.similarity, rows.similarity.diagonal()
    i2t = (objective.margin + similarity - positive[:, None]).masked_fill(rows.positives, 0).relu()
    t2i = (objective.margin + similarity - positive[None, :]).masked_fill(rows.positives, 0).relu()
    if isinstance(objective, HardestTriplet):
        i2t = i2t.max(dim=1, keepdim=True).values
        t2i = t2i.max(dim=0, keepdim=True).values.T
    # Summed along rows for both, as released: right for i2t, and for t2i of triplet-sh, which is transposed above.
    return {"i2t": _violations((i2t > 0).sum(dim=1)), "t2i": _violations((t2i > 0).sum(dim=1))}


def _violations(count: Tensor) -> Counts:
    nonzero = count[count > 0].double()
    mean = float(nonzero.mean()) if len(nonzero) else float("nan")
    return {"C_q": mean, "C_B": float(count.sum()), "C_0": float((count == 0).sum())}


def _nt_xent(objective: NTXent, rows: Rows, epsilon: float) -> dict[str, Counts]:
    def counts(rows: Rows) -> Counts:
        probability = (rows.similarity / objective.temperature).softmax(dim=1).double()
        counted = (probability > epsilon) & ~rows.positives
        return {
            "C_qv": float(counted.sum(dim=1).double().mean()),
            "W_neg": float((probability * counted).sum(dim=1).mean()),
            "W_pos": float(1 - probability.diagonal().mean()),
        }

    return {"i2t": counts(rows), "t2i": counts(rows.transposed())}


def _smooth_ap(objective: SmoothAP, rows: Rows, epsilon: float) -> dict[str, Counts]:
    images, captions = rows.similarity.shape
    k = captions // max(1, images)  # captions per image
    owners = torch.arange(images, device=rows.positives.device)
    if not rows.positives.equal(owners[:, None] == owners.repeat_interleave(max(1, k))[None, :]):
        raise ValueError("the released counter needs the same number of captions per image, grouped by image")
    i2t = [
        _terms(rows.similarity[i], slice(k * i, k * (i + 1)), objective.temperature, epsilon) / k for i in range(images)
    ]
    t2i = [
        _terms(rows.similarity[:, c], slice(k * c, k * (c + 1)), objective.temperature, epsilon)
        for c in range(captions)
    ]
    return {"i2t": _mean_of_nonzero(i2t), "t2i": _mean_of_nonzero(t2i)}


def _terms(similarity: Tensor, rows: slice, temperature: float, epsilon: float) -> float:
    """The number of comparisons above epsilon in these rows of a query's comparison matrix; rows may not exist."""
    above = logistic((similarity[None, :] - similarity[rows, None]) / temperature)  # row candidate
    above[torch.arange(len(above)), torch.arange(len(similarity))[rows]] = 0
    rank = 1 + above.sum(dim=1, keepdim=True)
    return float((above * (1 - above) / rank.square() > epsilon).sum())


def _mean_of_nonzero(counts: list[float]) -> Counts:
    nonzero = [count for count in counts if count > 0]
    return {"C_q": sum(nonzero) / len(nonzero) if nonzero else 0.0, "C_0": float(len(counts) - len(nonzero))}
