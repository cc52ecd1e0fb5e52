"""S -> ranks -> metrics. Ties count against the positive."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.contracts import PairMask, Similarity

CUTOFFS = (1, 5, 10)


def evaluate(similarity: Similarity, positives: PairMask) -> dict[str, float]:
    """Recalls in percent ("any positive in the top k"), ranks 1-based, mAP in 0..1, for i2t and t2i.

    >>> similarity, positives = torch.tensor([[0.9, 0.1], [0.8, 0.3]]), torch.eye(2, dtype=torch.bool)
    >>> metrics = evaluate(similarity, positives)
    >>> metrics["i2t_r1"], metrics["t2i_r1"], metrics["i2t_meanr"]
    (50.0, 100.0, 1.5)
    """
    if not torch.is_tensor(positives) or not torch.is_tensor(similarity):
        raise ValueError("similarity and positives must be tensors: both are image x caption")
    if positives.shape != similarity.shape or positives.dtype != torch.bool or similarity.ndim != 2:
        raise ValueError(
            f"positives {tuple(positives.shape)} {positives.dtype} must be a boolean mask that matches "
            f"similarity {tuple(similarity.shape)}: both are image x caption"
        )
    if not similarity.isfinite().all():
        raise ValueError("similarity holds NaN or infinity: nothing can be ranked by it")
    i2t, t2i = _direction(similarity, positives), _direction(similarity.T, positives.T)
    metrics = {f"i2t_{name}": number for name, number in i2t.items()}
    metrics |= {f"t2i_{name}": number for name, number in t2i.items()}
    metrics["rsum"] = sum(metrics[f"{side}_r{k}"] for side in ("i2t", "t2i") for k in CUTOFFS)
    return metrics


def ranks_of_positives(
    similarity: Float[Tensor, "anchor candidate"], positives: Bool[Tensor, "anchor candidate"]
) -> Int[Tensor, "anchor slot"]:
    """1-based ranks of an anchor's positives among all candidates, ascending; 0 where it has no more.

    A negative of equal similarity comes first, so that a collapsed model scores 0 rather than luck.
    """
    slots = int(positives.sum(dim=1).max())
    found = similarity.masked_fill(~positives, -torch.inf).topk(slots, dim=1).values  # descending
    negatives = similarity.masked_fill(positives, -torch.inf).sort(dim=1).values
    below = torch.searchsorted(negatives, found.contiguous())  # strictly less similar; the rest is ahead or equal
    ranks = similarity.shape[1] - below + torch.arange(1, slots + 1, device=similarity.device)
    return torch.where(found.isinf(), 0, ranks)


def _direction(similarity: Tensor, positives: Tensor) -> dict[str, float]:
    queries = positives.any(dim=1)
    if not queries.any():
        raise ValueError("no query has a positive: there is nothing to evaluate")
    ranks = ranks_of_positives(similarity[queries], positives[queries])
    best = ranks[:, 0]
    metrics = {f"r{k}": 100 * (best <= k).double().mean().item() for k in CUTOFFS}
    metrics["ar"] = sum(metrics.values()) / len(CUTOFFS)
    metrics["medr"] = float(best.double().quantile(0.5).floor())
    metrics["meanr"] = best.double().mean().item()
    hits = (ranks > 0) & (ranks <= 5)
    precision = hits.cumsum(dim=1).double() / ranks.clamp(min=1)
    precision_at_hits = (precision * hits).sum(dim=1)
    wanted = (ranks > 0).sum(dim=1).clamp(max=5)
    metrics["map5"] = (precision_at_hits / wanted).mean().item()
    metrics["map5_published"] = (precision_at_hits / hits.sum(dim=1).clamp(min=1)).mean().item()
    metrics["queries"] = float(queries.sum())
    return metrics
