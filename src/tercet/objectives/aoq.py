"""`off-tri`, `off-quin`, `aoq`: the hardest negative of the batch plus negatives mined offline.

AOQ (Chen, Deng, Luo, ECCV 2020). Besides S these objectives take `mined` (pair x 4): similarities of the mined
negatives of each positive pair (i, t), rows in the order of `positives.nonzero()`:

| column | pair | shared with (i, t) | direction |
|---|---|---|---|
| 0 | (i, t-) | the image | i2t |
| 1 | (i-, t) | the caption | t2i |
| 2 | (i-, t-) | nothing | half to each |
| 3 | (i-', t-') | nothing; i-' is the image of t-, t-' a caption of i- | half to each |
"""

from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tercet.objectives.aoq_inputs import EmbeddedBatch, MinedEmbeddings
from tercet.objectives.base import TILE_ENTRIES, RowObjective
from tercet.objectives.inputs import (
    Rows,
    hardest_negative,
    hinge,
    require_numbers,
    require_one_of,
    require_positive,
    swap_directions,
)
from tercet.objectives.streaming.accumulators import RunningHardest, both_directions
from tercet.types import PairMask, Similarity

Kind = Literal["off-tri", "off-quin", "aoq"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, kw_only=True, repr=False)
class AOQ(RowObjective):
    """The loss of a positive pair in one direction, with n the anchor's hardest negative and M the mined similarities:

    L = w [margin + S_n - S_p]+ + [mined_margin + M_a - S_p]+ + 1/2 sum over k = 2, 3 of [mined_margin + M_k - S_p]+

    M_a is the mined similarity that shares the anchor (column 0 for i2t, 1 for t2i). `off-tri` has w = 1 and no sum;
    `off-quin` has w = 1; `aoq` has the adaptive weight w = adapt_beta - (M_a - S_n) / adapt_alpha (AOQ's Eq. 5). As
    published, w is differentiated, and it is negative if the mined negative is much harder. `detach_weights` makes w a
    constant, `clamp_weights` clamps it at 0. A query without a negative in the batch keeps its mined terms.

    >>> similarity = torch.tensor([[0.5, 0.4], [0.1, 0.9]])
    >>> mined = torch.tensor([[0.6, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    >>> AOQ("off-tri").pair_gradients(similarity, mined=mined)[0]
    tensor([[-2.,  1.],
            [ 0.,  0.]])
    >>> AOQ("off-tri").mined_gradient(similarity, mined=mined)[0]
    tensor([1., 0., 0., 0.])
    """

    takes_mined = True

    kind: Kind = field(kw_only=False)
    margin: float = 0.2
    mined_margin: float = 0.0
    adapt_alpha: float = 0.3
    adapt_beta: float = 1.5
    detach_weights: bool = False
    clamp_weights: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of(self, "kind", KINDS)
        require_numbers(self, "margin", "mined_margin", "adapt_beta")
        require_positive(self, "adapt_alpha")
        for setting in ("detach_weights", "clamp_weights"):
            require_one_of(self, setting, (True, False))

    @property
    def name(self) -> str:
        return self.kind

    @property
    def negative_pairs(self) -> int:
        """How many of the two mined couples (i-, t-), (i-', t-') of a pair are used."""
        return 1 if self.kind == "off-tri" else 2

    def pair_value(
        self, s_p: Float[Tensor, " pair"], s_n: Float[Tensor, " pair"], exists: Tensor, mined: Float[Tensor, "pair 4"]
    ) -> Float[Tensor, " pair"]:
        """The value of each positive pair in one direction; column 0 of `mined` shares its anchor.

        `exists`: whether the anchor has a negative in the batch.
        """
        online = torch.where(exists, self.online_weight(s_n, mined[:, 0]) * hinge(s_p, s_n, self.margin), 0.0)
        offline = hinge(s_p, mined[:, 0], self.mined_margin)
        if self.kind != "off-tri":
            offline = offline + 0.5 * hinge(s_p[:, None], mined[:, 2:], self.mined_margin).sum(dim=1)
        return online + offline

    def pairs_value(
        self,
        s_p: Float[Tensor, " pair"],
        s_n: Float[Tensor, "2 pair"],
        exists: Bool[Tensor, "2 pair"],
        mined: Float[Tensor, "pair 4"],
        weights: Float[Tensor, "2 pair"],
    ) -> Float[Tensor, ""]:
        """The weighted sum of both directions (i2t first), concatenated to halve the number of autograd operations."""
        both = torch.cat([mined, swap_directions(mined)])
        return torch.dot(self.pair_value(s_p.repeat(2), s_n.flatten(), exists.flatten(), both), weights.flatten())

    def online_weight(self, s_n: Tensor, mined: Tensor) -> Tensor:
        """w, the weight of the hinge with the hardest negative of the batch."""
        if self.kind != "aoq":
            return torch.ones_like(s_n)
        weight = self.adapt_beta - (mined - s_n) / self.adapt_alpha
        weight = weight.clamp(min=0) if self.clamp_weights else weight
        return weight.detach() if self.detach_weights else weight

    def row_value(self, rows: Rows) -> Float[Tensor, " anchor"]:
        assert rows.mined is not None
        anchor, candidate = rows.positives.nonzero(as_tuple=True)
        hardest = hardest_negative(rows)
        value = self.pair_value(
            rows.similarity[anchor, candidate], hardest.similarity[anchor], hardest.exists[anchor], rows.mined
        )
        return value.new_zeros(len(rows.similarity)).index_add(0, anchor, value)

    def row_gradient(self, rows: Rows) -> Float[Tensor, "anchor candidate"]:
        with torch.enable_grad():
            similarity = rows.similarity.detach().requires_grad_()
            total = self.row_value(rows._replace(similarity=similarity)).sum()
        return torch.autograd.grad(total, similarity)[0]

    def on_similarity(
        self,
        similarity: Similarity,
        positives: PairMask | None = None,
        ignored: PairMask | None = None,
        *,
        mined: Float[Tensor, "pair 4"] | None = None,
    ) -> Float[Tensor, ""]:
        value = self.value(similarity, positives, ignored, mined=mined)
        assert value is not None
        return value

    def mined_gradient(
        self,
        similarity: Similarity,
        positives: PairMask | None = None,
        ignored: PairMask | None = None,
        *,
        mined: Float[Tensor, "pair 4"],
    ) -> Float[Tensor, "pair 4"]:
        """dL/dM, including the derivative of the adaptive weight."""
        with torch.enable_grad():
            leaf = mined.detach().requires_grad_()
            total = self.on_similarity(similarity.detach(), positives, ignored, mined=leaf)
        (gradient,) = torch.autograd.grad(total, leaf, allow_unused=True)
        return torch.zeros_like(mined) if gradient is None else gradient

    def mined_active(
        self,
        similarity: Similarity,
        positives: PairMask | None = None,
        ignored: PairMask | None = None,
        *,
        mined: Float[Tensor, "pair 4"],
    ) -> list[int]:
        """The number of positive pairs with an active hinge in each of the four columns; 0 for unused columns."""
        rows = self.rows_of(similarity, positives, ignored, mined)
        assert rows.mined is not None
        active = self.mined_margin + rows.mined > rows.similarity[rows.positives][:, None]
        if self.kind == "off-tri":
            active[:, 2:] = False
        return [int(count) for count in active.sum(dim=0)]

    def _streams(self, entries: int, paired_by_rows: bool) -> bool:
        """Stream only if S does not fit one tile: on a small batch the dense S is cheaper than lists of pairs."""
        return entries > TILE_ENTRIES

    def on_embeddings(self, embedded: EmbeddedBatch, negatives: MinedEmbeddings, streamed: bool) -> Float[Tensor, ""]:
        """The scalar. Streamed, S only serves to find the hardest negatives, without autograd; the rest is per pair."""
        mined = negatives.similarity(embedded)
        if not streamed:
            return self.on_similarity(embedded.similarity(), embedded.positives(), mined=mined)
        image, caption = embedded.pairs
        own_images, own_captions = embedded.images.index_select(0, image), embedded.captions.index_select(0, caption)
        s_p = embedded.similarity_of(own_images, own_captions)
        tiles = embedded.tiles()
        trackers = [RunningHardest(count, s_p.detach()) for count in (len(embedded.images), len(embedded.captions))]
        with torch.no_grad():
            directions = both_directions(tiles, self.reduction)
            for tile in tiles.walk():
                for direction, tracker in zip(directions, trackers, strict=True):
                    tracker.update(*direction.view(tile))
        i2t, t2i = (tracker.result() for tracker in trackers)
        captions = embedded.captions.index_select(0, i2t.candidate[image])
        images = embedded.images.index_select(0, t2i.candidate[caption])
        i2t_s_n = embedded.similarity_of(own_images, captions)
        t2i_s_n = embedded.similarity_of(images, own_captions)
        exists = torch.stack([i2t.exists[image], t2i.exists[caption]])
        weights = torch.stack([directions[0].weights[image], directions[1].weights[caption]])
        return self.pairs_value(s_p, torch.stack([i2t_s_n, t2i_s_n]), exists, mined, weights)
