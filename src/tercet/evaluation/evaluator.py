"""What users call: a similarity, or embeddings, or tiles of anything -> metrics."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.contracts import PairMask, Similarity
from tercet.evaluation.metrics import metrics_of
from tercet.evaluation.ranks import Positives, Ranks, rank_positives
from tercet.evaluation.tiles import Tiles, tiles_of_embeddings, tiles_of_matrix


@dataclass(frozen=True)
class Evaluation:
    """Metrics, the ranks behind them, and what the protocol has to say."""

    metrics: dict[str, float]
    ranks: Ranks
    folds: tuple[dict[str, float], ...] = ()
    notes: tuple[str, ...] = field(default=())


def evaluate(similarity: Similarity, positives: PairMask, ties: str = "against") -> dict[str, float]:
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
    return metrics_of(rank_positives(tiles_of_matrix(similarity.detach()), Positives.of_mask(positives), ties=ties))


def evaluate_embeddings(
    x: Float[Tensor, "image dim"],
    y: Float[Tensor, "caption dim"],
    owners: Int[Tensor, " caption"] | None = None,
    protocol: str | None = None,
    ties: str = "against",
    image_ids: Int[Tensor, " image"] | None = None,
    caption_ids: Int[Tensor, " caption"] | None = None,
) -> dict[str, float]:
    """The same without ever holding S: x images, y captions, owners[j] the row of caption j's image."""
    if not torch.is_tensor(x) or not torch.is_tensor(y) or x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1]:
        raise ValueError("embeddings must be two tensors of image x dim and caption x dim")
    return evaluate_tiles(
        tiles_of_embeddings(x, y),
        owners,
        protocol=protocol,
        ties=ties,
        image_ids=image_ids,
        caption_ids=caption_ids,
    ).metrics


def evaluate_tiles(
    tiles: Tiles,
    owners: Int[Tensor, " caption"] | None = None,
    *,
    protocol: str | None = None,
    ties: str = "against",
    image_ids: Int[Tensor, " image"] | None = None,
    caption_ids: Int[Tensor, " caption"] | None = None,
) -> Evaluation:
    """What the others and the command use: anything that gives tiles, ensembles and cross attention too."""
    if owners is None:
        owners = torch.arange(tiles.captions)
    ranks = rank_positives(tiles, Positives.of_owners(owners), ties=ties)
    return Evaluation(metrics_of(ranks), ranks)
