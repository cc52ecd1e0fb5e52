"""Public entry points: a similarity matrix, embeddings, or tiles of any similarity -> metrics."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.evaluation.blocked_similarity import Tiles, tiles_of_embeddings, tiles_of_matrix
from tercet.evaluation.metrics import metrics_of
from tercet.evaluation.positives import Positives
from tercet.evaluation.protocols import Evaluation, Task, run_protocol
from tercet.evaluation.ranks import rank_positives
from tercet.types import PairMask, Similarity


def evaluate(similarity: Similarity, positives: PairMask, ties: str = "against") -> dict[str, float]:
    """Return all metrics for i2t and t2i: recalls in percent ("any positive in the top k"), 1-based ranks, mAP in 0..1.

    `ties`: "against" ranks tied negatives above the positive, "optimistic" below, "expected" averages over all orders.

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
        raise ValueError("similarity contains NaN or infinity and cannot be ranked")
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
    """Return the same metrics without holding S: x images, y captions, owners[j] is the row of caption j's image.

    Without owners, caption i belongs to image i. A protocol checks its inputs and raises ValueError if they do not fit.

    >>> x = torch.eye(3)
    >>> evaluate_embeddings(x, x.repeat_interleave(2, dim=0), owners=torch.tensor([0, 0, 1, 1, 2, 2]))["rsum"]
    600.0
    """
    if not torch.is_tensor(x) or not torch.is_tensor(y) or x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1]:
        shapes = " and ".join(
            str(tuple(value.shape)) if torch.is_tensor(value) else type(value).__name__ for value in (x, y)
        )
        raise ValueError(
            f"embeddings must be tensors (image, dim) and (caption, dim) with the same dim, given {shapes}"
        )
    if not x.is_floating_point() or not y.is_floating_point():
        raise ValueError(f"embeddings must be floating point, given {x.dtype} and {y.dtype}")
    if x.device != y.device:
        raise ValueError(f"embeddings must be on one device, given {x.device} and {y.device}")
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
    """Evaluate any tiled similarity, also ensembles and cross attention; used by `tercet evaluate`."""
    if not tiles.images or not tiles.captions:
        raise ValueError(f"nothing to evaluate: {tiles.images} images and {tiles.captions} captions")
    task = Task(
        tiles,
        _checked_owners(tiles, owners),
        ties,
        _checked_ids("image_ids", image_ids, tiles.images),
        _checked_ids("caption_ids", caption_ids, tiles.captions),
    )
    return run_protocol(protocol, task)


def _checked_owners(tiles: Tiles, owners: Tensor | None) -> Tensor:
    if owners is None:
        if tiles.images != tiles.captions:
            raise ValueError(
                f"{tiles.captions} captions of {tiles.images} images need owners: the image of each caption"
            )
        return torch.arange(tiles.captions)
    if not torch.is_tensor(owners) or owners.shape != (tiles.captions,) or owners.is_floating_point():
        raise ValueError(f"owners must be one integer for each of {tiles.captions} captions, given {_describe(owners)}")
    low, high = int(owners.min()), int(owners.max())
    if low < 0 or high >= tiles.images:
        raise ValueError(f"owners must be rows of images, 0 to {tiles.images - 1}, found {low if low < 0 else high}")
    return owners.detach().cpu().long()


def _checked_ids(name: str, ids: Tensor | None, count: int) -> np.ndarray | None:
    if ids is None:
        return None
    if not torch.is_tensor(ids) or ids.shape != (count,) or ids.is_floating_point():
        raise ValueError(f"{name} must be one integer for each of {count} rows, given {_describe(ids)}")
    return ids.detach().cpu().long().numpy()


def _describe(value: object) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
