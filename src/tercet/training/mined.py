"""Mined negatives in training: which table, whether it is wanted, and the similarities of a pair's members."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.contracts import Batch, MinedItems, PairMask
from tercet.data.members import MemberDraws
from tercet.data.mined import MinedTable
from tercet.data.pairs import PairedData
from tercet.objectives import RowObjective
from tercet.objectives.entries import products_of_entries
from tercet.objectives.hardest import hardest_negative
from tercet.objectives.masks import Rows
from tercet.objectives.offline import Offline
from tercet.objectives.reduction import query_weights
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


def member_draws(
    table: MinedTable, data: PairedData, settings: TrainSettings, objectives: Sequence[RowObjective]
) -> MemberDraws:
    """As many couples as any of the objectives looks at."""
    couples = max([objective.members for objective in objectives if isinstance(objective, Offline)], default=1)
    return MemberDraws(table, data.owners, settings.mined_top, settings.mined_draw, couples)


class Members(NamedTuple):
    """Mined items, encoded, with the word on whose they are."""

    images: Float[Tensor, "mined_image *rest"]
    captions: Float[Tensor, "mined_caption *rest_of_caption"]
    items: MinedItems
    behind: tuple[Float[Tensor, "image_or_mined dim"], Float[Tensor, "caption_or_mined dim"]] | None = None
    """Both sides behind the batch's own items, where they were encoded together."""

    def gathered(self) -> tuple[Float[Tensor, "pair 2 *rest"], Float[Tensor, "pair 2 *rest_of_caption"]]:
        """Two of each side of a pair."""
        return _rows(self.images, self.items.image_places), _rows(self.captions, self.items.caption_places)

    def similarity(self, model: Any, images: Tensor, captions: Tensor, positives: PairMask) -> Float[Tensor, "pair 4"]:
        """Pair by pair, by the model's own similarity: never a square of what was mined."""
        image, caption = positives.nonzero(as_tuple=True)
        if model.dot_product:
            return self._entries(images, captions, *self._pairs(image, caption, len(images), len(captions))).T
        (i, i_other), (t, t_other) = self.items.image_places.unbind(dim=1), self.items.caption_places.unbind(dim=1)
        own_images, own_captions = _rows(images, image), _rows(captions, caption)
        i, i_other, t, t_other = (
            *(_rows(self.images, places) for places in (i, i_other)),
            *(_rows(self.captions, places) for places in (t, t_other)),
        )
        sides_of = (own_images, t), (i, own_captions), (i, t), (i_other, t_other)
        return torch.stack([model.similarity_of_pairs(*each) for each in sides_of], dim=1)

    def scalar(self, objective: Offline, images: Tensor, captions: Tensor, positives: PairMask) -> Float[Tensor, ""]:
        """The objective on dot products. It looks at seven of each pair; S only says which negatives are the hardest.

        So S needs no graph, and all that has a gradient is one list of entries.
        """
        with torch.no_grad():
            of_images = Rows(images @ captions.T, positives, ~positives)
            of_captions = of_images.transposed()
            i2t, t2i = hardest_negative(of_images), hardest_negative(of_captions)
            image, caption = positives.nonzero(as_tuple=True)
            own_rows = torch.stack([image, image, t2i.candidate[caption]])
            own_columns = torch.stack([caption, i2t.candidate[image], caption])
            known = of_images.similarity.flatten()[own_rows * len(captions) + own_columns]
            rows, columns = self._pairs(image, caption, len(images), len(captions))
            rows, columns = torch.cat([own_rows, rows]), torch.cat([own_columns, columns])
            exists = torch.stack([i2t.exists[image], t2i.exists[caption]])
            of_queries = [
                query_weights(side.positives.any(dim=1), objective.reduction, images.dtype)
                for side in (of_images, of_captions)
            ]
            weights = torch.stack([of_queries[0][image], of_queries[1][caption]])
        s_p, s_n, mined = self._entries(images, captions, rows, columns, known).split([1, 2, 4])
        return objective.pairs_value(s_p[0], s_n, exists, mined.T, weights)

    def _pairs(
        self, image: Int[Tensor, " pair"], caption: Int[Tensor, " pair"], images: int, captions: int
    ) -> tuple[Int[Tensor, "4 pair"], Int[Tensor, "4 pair"]]:
        """Of the four members: rows and columns among the batch's own items and the mined ones behind them."""
        (i, i_other), (t, t_other) = (self.items.image_places + images).T, (self.items.caption_places + captions).T
        return torch.stack([image, i, i, i_other]), torch.stack([t, caption, t, t_other])

    def _entries(
        self,
        images: Tensor,
        captions: Tensor,
        rows: Int[Tensor, "kind pair"],
        columns: Int[Tensor, "kind pair"],
        known: Float[Tensor, "known_kind pair"] | None = None,
    ) -> Float[Tensor, "kind pair"]:
        sides = self.behind or (torch.cat([images, self.images]), torch.cat([captions, self.captions]))
        known = None if known is None else known.flatten()
        return products_of_entries(*sides, rows.flatten(), columns.flatten(), known).view(rows.shape)


def _rows(encoded: Float[Tensor, "item *rest"], places: Int[Tensor, "*wanted"]) -> Tensor:
    """encoded[places], whose backward adds row by row: that of plain indexing is many times as slow."""
    return encoded.index_select(0, places.flatten()).unflatten(0, places.shape)


def everyones_mined(
    model: Any, images: Tensor, captions: Tensor, batch: Batch, members: Members
) -> Float[Tensor, "pair 4"]:
    """In several processes: the pairs of this one's images with captions of all; together they are in order."""
    caption_ids = distributed.everyones(batch.caption_ids)
    positives = batch.image_ids[:, None] == caption_ids[None, :]
    mined = members._replace(behind=None).similarity(model, images, distributed.everyones(captions), positives)
    return distributed.everyones(mined)
