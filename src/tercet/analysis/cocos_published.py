"""The counters as their authors released them, errors included: for reading the published tables, not for use.

Two counters of caption queries look in the wrong place:
- `triplet`: a caption's violations stand in a column, but are summed along rows;
- `smooth-ap`: for caption i of k x B the rows k i to k i + k - 1 of its B x B comparison are read; its one positive is
  row i // k. From i = B / k on there is no such row, and the caption counts as one without a gradient, whatever the
  model. Both directions of `smooth-ap` also leave out the factor 1 / temperature.
`triplet-sh` and `nt-xent` count what they should.
"""

import torch
from torch import Tensor

from tercet.objectives.base import RowObjective
from tercet.objectives.masks import Rows
from tercet.objectives.nt_xent import NTXent
from tercet.objectives.smooth_ap import SmoothAP
from tercet.objectives.triplet import Triplet
from tercet.objectives.triplet_sh import HardestTriplet
from tercet.objectives.weights import logistic

Counts = dict[str, float]


def as_released(objective: RowObjective, rows: Rows, epsilon: float) -> dict[str, Counts]:
    """{'i2t': counts, 't2i': counts} under today's names."""
    if rows.ignored is not None:
        raise ValueError("the released counters know no ignored pairs: leave out ignored or as_published")
    if isinstance(objective, SmoothAP):
        return _smooth_ap(objective, rows, epsilon)
    if not isinstance(objective, Triplet | HardestTriplet | NTXent):
        raise ValueError(f"the study released no counter for {objective.name}: leave out as_published")
    images, captions = rows.similarity.shape
    if images != captions or not rows.positives.equal(
        torch.eye(images, dtype=torch.bool, device=rows.positives.device)
    ):
        raise ValueError("the released counter takes one caption an image, in order: positives must be the diagonal")
    if isinstance(objective, NTXent):
        return _nt_xent(objective, rows, epsilon)
    return _hinge(objective, rows)


def _hinge(objective: Triplet | HardestTriplet, rows: Rows) -> dict[str, Counts]:
    similarity, positive = rows.similarity, rows.similarity.diagonal()
    for_images = (objective.margin + similarity - positive[:, None]).masked_fill(rows.positives, 0).relu()
    for_captions = (objective.margin + similarity - positive[None, :]).masked_fill(rows.positives, 0).relu()
    if isinstance(objective, HardestTriplet):
        for_images = for_images.max(dim=1, keepdim=True).values
        for_captions = for_captions.max(dim=0, keepdim=True).values.T
    # summed along rows for both: right for images, and for the hardest negative of captions, which was made a vector
    return {"i2t": _violations((for_images > 0).sum(dim=1)), "t2i": _violations((for_captions > 0).sum(dim=1))}


def _violations(count: Tensor) -> Counts:
    some = count[count > 0].double()
    mean = float(some.mean()) if len(some) else float("nan")
    return {"C_q": mean, "C_B": float(count.sum()), "C_0": float((count == 0).sum())}


def _nt_xent(objective: NTXent, rows: Rows, epsilon: float) -> dict[str, Counts]:
    def side(rows: Rows) -> Counts:
        probability = (rows.similarity / objective.temperature).softmax(dim=1).double()
        counted = (probability > epsilon) & ~rows.positives
        return {
            "C_qv": float(counted.sum(dim=1).double().mean()),
            "W_neg": float((probability * counted).sum(dim=1).mean()),
            "W_pos": float(1 - probability.diagonal().mean()),
        }

    return {"i2t": side(rows), "t2i": side(rows.transposed())}


def _smooth_ap(objective: SmoothAP, rows: Rows, epsilon: float) -> dict[str, Counts]:
    images, captions = rows.similarity.shape
    each = captions // max(1, images)
    owners = torch.arange(images, device=rows.positives.device)
    if not rows.positives.equal(owners[:, None] == owners.repeat_interleave(max(1, each))[None, :]):
        raise ValueError("the released counter takes the same number of captions of every image, image by image")
    i2t = [
        _terms(rows.similarity[i], slice(each * i, each * i + each), objective.temperature, epsilon) / each
        for i in range(images)
    ]
    t2i = [
        _terms(rows.similarity[:, c], slice(each * c, each * c + each), objective.temperature, epsilon)
        for c in range(captions)
    ]
    return {"i2t": _ranked(i2t), "t2i": _ranked(t2i)}


def _terms(similarity: Tensor, read: slice, temperature: float, epsilon: float) -> float:
    """How many comparisons of the rows that are read count; rows beyond the last are none."""
    above = logistic((similarity[None, :] - similarity[read, None]) / temperature)  # read candidate
    above[torch.arange(len(above)), torch.arange(len(similarity))[read]] = 0
    rank = 1 + above.sum(dim=1, keepdim=True)
    return float((above * (1 - above) / rank.square() > epsilon).sum())


def _ranked(counts: list[float]) -> Counts:
    some = [count for count in counts if count > 0]
    return {"C_q": sum(some) / len(some) if some else 0.0, "C_0": float(len(counts) - len(some))}
