"""What users call: a similarity, or embeddings, or tiles of anything -> metrics."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.contracts import PairMask, Similarity
from tercet.evaluation.metrics import metrics_of
from tercet.evaluation.pairs import Positives
from tercet.evaluation.protocols import Evaluation, Task, run_protocol
from tercet.evaluation.ranks import rank_positives
from tercet.evaluation.tiles import Tiles, tiles_of_embeddings, tiles_of_matrix


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
    """The same without ever holding S: x images, y captions, owners[j] the row of caption j's image.

    Without owners, caption i belongs to image i. A protocol checks what it is given and refuses what does not fit.

    >>> x = torch.eye(3)
    >>> evaluate_embeddings(x, x.repeat_interleave(2, dim=0), owners=torch.tensor([0, 0, 1, 1, 2, 2]))["rsum"]
    600.0
    """
    if not torch.is_tensor(x) or not torch.is_tensor(y) or x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1]:
        given = " and ".join(
            str(tuple(each.shape)) if torch.is_tensor(each) else type(each).__name__ for each in (x, y)
        )
        raise ValueError(f"embeddings must be tensors of (image, dim) and (caption, dim) with one dim, given {given}")
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
    """What the others and the command use: anything that gives tiles, ensembles and cross attention too."""
    if not tiles.images or not tiles.captions:
        raise ValueError(f"there is nothing to evaluate: {tiles.images} images and {tiles.captions} captions")
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
        given = f"{owners.dtype} {tuple(owners.shape)}" if torch.is_tensor(owners) else type(owners).__name__
        raise ValueError(f"owners must be one integer for each of {tiles.captions} captions, given {given}")
    low, high = int(owners.min()), int(owners.max())
    if low < 0 or high >= tiles.images:
        raise ValueError(f"owners must be rows of images, 0 to {tiles.images - 1}, found {low if low < 0 else high}")
    return owners.detach().cpu().long()


def _checked_ids(name: str, ids: Tensor | None, count: int) -> np.ndarray | None:
    if ids is None:
        return None
    if not torch.is_tensor(ids) or ids.shape != (count,) or ids.is_floating_point():
        given = f"{ids.dtype} {tuple(ids.shape)}" if torch.is_tensor(ids) else type(ids).__name__
        raise ValueError(f"{name} must be one integer for each of {count} rows, given {given}")
    return ids.detach().cpu().long().numpy()
