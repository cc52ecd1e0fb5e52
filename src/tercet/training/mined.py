"""Mined negatives in training: which table, whether it is wanted, and the similarities of a pair's members."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.contracts import Batch, MinedItems, PairMask
from tercet.data.members import MemberDraws
from tercet.data.mined import MinedTable
from tercet.data.pairs import PairedData
from tercet.objectives import RowObjective
from tercet.objectives.offline import Offline
from tercet.training import distributed
from tercet.training.settings import TrainSettings


def check_wanted(objective: RowObjective, first: RowObjective | None, settings: TrainSettings) -> None:
    """Before any work."""
    takers = [each.name for each in (objective, first) if each is not None and each.takes_mined]
    if takers and settings.mined is None:
        raise ValueError(f"{takers[0]} needs --mined: `tercet mine` writes a table of hard negatives")
    if settings.mined is None:
        return
    if settings.mined_as_candidates and takers:
        raise ValueError(f"{takers[0]} has mined members: --mined-as-candidates is for the other objectives")
    if not takers and not settings.mined_as_candidates:
        raise ValueError(
            f"{objective.name} does not look at --mined: off-tri, off-quin and aoq do, or name --mined-as-candidates"
        )


def member_draws(table: MinedTable, data: PairedData, settings: TrainSettings, objective: RowObjective) -> MemberDraws:
    couples = objective.members if isinstance(objective, Offline) else 1
    return MemberDraws(table, data.owners, settings.mined_top, settings.mined_draw, couples)


class Members(NamedTuple):
    """Encoded, two of each side of a pair."""

    images: Float[Tensor, "pair 2 *rest"]
    captions: Float[Tensor, "pair 2 *rest_of_caption"]

    @classmethod
    def of(cls, images: Tensor, captions: Tensor, items: MinedItems) -> "Members":
        return cls(images[items.image_places], captions[items.caption_places])


def mined_similarity(
    model: Any, images: Tensor, captions: Tensor, positives: PairMask, members: Members
) -> Float[Tensor, "pair 4"]:
    """Pair by pair, by the model's own similarity: never a square of what was mined."""
    image, caption = positives.nonzero(as_tuple=True)
    columns = [
        (images[image], members.captions[:, 0]),
        (members.images[:, 0], captions[caption]),
        (members.images[:, 0], members.captions[:, 0]),
        (members.images[:, 1], members.captions[:, 1]),
    ]
    compare = torch.linalg.vecdot if model.dot_product else model.similarity_of_pairs
    return torch.stack([compare(*sides) for sides in columns], dim=1)


def everyones_mined(
    model: Any, images: Tensor, captions: Tensor, batch: Batch, members: Members
) -> Float[Tensor, "pair 4"]:
    """In several processes: the pairs of this one's images with captions of all; together they are in order."""
    caption_ids = distributed.everyones(batch.caption_ids)
    positives = batch.image_ids[:, None] == caption_ids[None, :]
    mined = mined_similarity(model, images, distributed.everyones(captions), positives, members)
    return distributed.everyones(mined)
