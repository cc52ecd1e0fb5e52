"""Mined negatives in a training step: checks of the settings, the sampler, and similarities of mined members."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.data.dataset import PairedData
from tercet.data.hard_negatives import HardNegativeSampler, MinedTable
from tercet.interfaces import RetrievalModel
from tercet.objectives import RowObjective
from tercet.objectives.aoq import AOQ
from tercet.objectives.inputs import Rows, hardest_negative, query_weights
from tercet.objectives.streaming.autograd import products_of_entries
from tercet.similarity import as_pair_scorer
from tercet.training import runtime
from tercet.training.settings import TrainSettings
from tercet.types import Batch, MinedItems, PairMask


def hard_negative_sampler(
    table: MinedTable, data: PairedData, settings: TrainSettings, objectives: Sequence[RowObjective]
) -> HardNegativeSampler:
    """Return the sampler of the table, with as many negative pairs as any of the objectives uses."""
    negative_pairs = max(
        [objective.negative_pairs for objective in objectives if isinstance(objective, AOQ)], default=1
    )
    return HardNegativeSampler(table, data.owners, settings.mined_top, settings.mined_draw, negative_pairs)


class MinedMembers(NamedTuple):
    """Encoded mined items, and the positive pairs they belong to."""

    images: Float[Tensor, "mined_image *rest"]
    captions: Float[Tensor, "mined_caption *rest_of_caption"]
    items: MinedItems
    concatenated: tuple[Float[Tensor, "image_or_mined dim"], Float[Tensor, "caption_or_mined dim"]] | None = None
    """Batch and mined items concatenated, if they were encoded together: images, captions."""

    def pair_rows(self) -> tuple[Float[Tensor, "pair 2 *rest"], Float[Tensor, "pair 2 *rest_of_caption"]]:
        """Return two mined images and two mined captions per positive pair."""
        return _rows(self.images, self.items.image_indices), _rows(self.captions, self.items.caption_indices)

    def similarity(
        self, model: RetrievalModel, images: Tensor, captions: Tensor, positives: PairMask
    ) -> Float[Tensor, "pair 4"]:
        """Return S of the four mined members per positive pair, by the model's similarity; never a full matrix."""
        image, caption = positives.nonzero(as_tuple=True)
        if model.dot_product:
            return self._entries(images, captions, *self._pairs(image, caption, len(images), len(captions))).T
        scorer = as_pair_scorer(model)
        (i, i_other), (t, t_other) = self.items.image_indices.unbind(dim=1), self.items.caption_indices.unbind(dim=1)
        own_images, own_captions = _rows(images, image), _rows(captions, caption)
        i, i_other, t, t_other = (
            *(_rows(self.images, indices) for indices in (i, i_other)),
            *(_rows(self.captions, indices) for indices in (t, t_other)),
        )
        members = (own_images, t), (i, own_captions), (i, t), (i_other, t_other)
        return torch.stack([scorer.similarity_of_pairs(*member) for member in members], dim=1)

    def scalar(self, objective: AOQ, images: Tensor, captions: Tensor, positives: PairMask) -> Float[Tensor, ""]:
        """Return the objective on dot products.

        It uses seven entries per positive pair; S only selects the hardest negatives. So S needs no graph, and only one
        list of entries has a gradient.
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
                query_weights(direction.positives.any(dim=1), objective.reduction, images.dtype)
                for direction in (of_images, of_captions)
            ]
            weights = torch.stack([of_queries[0][image], of_queries[1][caption]])
        s_p, s_n, mined = self._entries(images, captions, rows, columns, known).split([1, 2, 4])
        return objective.pairs_value(s_p[0], s_n, exists, mined.T, weights)

    def _pairs(
        self, image: Int[Tensor, " pair"], caption: Int[Tensor, " pair"], images: int, captions: int
    ) -> tuple[Int[Tensor, "4 pair"], Int[Tensor, "4 pair"]]:
        """Return rows and columns of the four members in the concatenation of batch and mined items."""
        (i, i_other), (t, t_other) = (self.items.image_indices + images).T, (self.items.caption_indices + captions).T
        return torch.stack([image, i, i, i_other]), torch.stack([t, caption, t, t_other])

    def _entries(
        self,
        images: Tensor,
        captions: Tensor,
        rows: Int[Tensor, "kind pair"],
        columns: Int[Tensor, "kind pair"],
        known: Float[Tensor, "known_kind pair"] | None = None,
    ) -> Float[Tensor, "kind pair"]:
        both = self.concatenated or (torch.cat([images, self.images]), torch.cat([captions, self.captions]))
        known = None if known is None else known.flatten()
        return products_of_entries(*both, rows.flatten(), columns.flatten(), known).view(rows.shape)


def _rows(encoded: Float[Tensor, "item *rest"], indices: Int[Tensor, "*shape"]) -> Tensor:
    """Return encoded[indices]. The backward of index_select is many times as fast as that of plain indexing."""
    return encoded.index_select(0, indices.flatten()).unflatten(0, indices.shape)


def all_gather_mined(
    model: RetrievalModel, images: Tensor, captions: Tensor, batch: Batch, members: MinedMembers
) -> Float[Tensor, "pair 4"]:
    """All-gather member similarities: each rank computes the pairs of its own images with captions of all ranks."""
    caption_ids = runtime.all_gather_items(batch.caption_ids)
    positives = batch.image_ids[:, None] == caption_ids[None, :]
    all_captions = runtime.all_gather_items(captions)
    mined = members._replace(concatenated=None).similarity(model, images, all_captions, positives)
    return runtime.all_gather_items(mined)
