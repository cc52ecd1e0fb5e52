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
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.objectives import distributed
from tercet.objectives.base import TILE_ENTRIES, RowObjective, weights_of
from tercet.objectives.inputs import (
    Hardest,
    Reduction,
    Rows,
    at_least_float32,
    hardest_negative,
    hinge,
    is_distributed,
    require_numbers,
    require_one_of,
    require_positive,
)
from tercet.objectives.streaming.accumulators import RunningHardest, both_directions
from tercet.objectives.streaming.tiles import EmbeddedBatch
from tercet.types import MaskOrWeights, PairGradient, PairMask, Similarity

if TYPE_CHECKING:
    from tercet.objectives.queue import Queue

Kind = Literal["off-tri", "off-quin", "aoq"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Mined = Float[Tensor, "pair 4"]


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
    def has_value(self) -> bool:
        return True

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

    def one_direction(
        self,
        similarity: Float[Tensor, "anchor candidate"],
        positives: MaskOrWeights | None = None,
        ignored: Bool[Tensor, "anchor candidate"] | None = None,
    ) -> Float[Tensor, ""]:
        raise self._refuses_a_queue()

    def _refuses_a_queue(self) -> ValueError:
        return ValueError(f"{self.name} has mined negatives of its own: it cannot be used with a queue")

    def anchor_values(self, rows: Rows, mined: Mined) -> Float[Tensor, " anchor"]:
        """The value of each anchor before reduction; column 0 of `mined` shares the anchors of the rows."""
        anchor, candidate = rows.positives.nonzero(as_tuple=True)
        hardest = hardest_negative(rows)
        value = self.pair_value(
            rows.similarity[anchor, candidate], hardest.similarity[anchor], hardest.exists[anchor], mined
        )
        return value.new_zeros(len(rows.similarity)).index_add(0, anchor, value)

    def anchor_gradients(self, rows: Rows, mined: Mined) -> Float[Tensor, "anchor candidate"]:
        """d(sum of anchor values)/dS before reduction."""
        with torch.enable_grad():
            similarity = rows.similarity.detach().requires_grad_()
            total = self.anchor_values(rows._replace(similarity=similarity), mined).sum()
        return torch.autograd.grad(total, similarity)[0]

    def row_gradient(self, rows: Rows) -> Float[Tensor, "anchor candidate"]:
        raise self._needs_mined()

    def __call__(
        self,
        images: Float[Tensor, "image dim"],
        captions: Float[Tensor, "caption dim"],
        *,
        owners: Int[Tensor, " caption"] | None = None,
        image_ids: Int[Tensor, " image"] | None = None,
        caption_ids: Int[Tensor, " caption"] | None = None,
        scale: float | Float[Tensor, ""] | None = None,
        bias: float | Float[Tensor, ""] | None = None,
        streamed: bool | None = None,
        queue: "Queue | None" = None,
        step: int | None = None,
        mined: tuple[Float[Tensor, "pair 2 dim"], Float[Tensor, "pair 2 dim"]] | None = None,
    ) -> Float[Tensor, ""]:
        """As for every objective, with `mined`: embeddings of two mined images and captions of each positive pair."""
        if mined is None:
            raise self._needs_mined()
        if queue is not None:
            raise self._refuses_a_queue()
        batch = EmbeddedBatch.of(images, captions, owners, image_ids, caption_ids, scale, bias)
        if is_distributed():
            mined = distributed.all_gather_rows(mined[0]), distributed.all_gather_rows(mined[1])
        similarity = MinedEmbeddings(*mined).similarity(batch)
        # On a small batch the dense S is cheaper than lists of pairs.
        if (batch.entries > TILE_ENTRIES if streamed is None else streamed) and batch.entries:
            return self._streamed(batch, similarity)
        return self.on_similarity(batch.similarity(), batch.positives(), mined=similarity)

    def on_similarity(
        self,
        similarity: Similarity,
        positives: MaskOrWeights | None = None,
        ignored: PairMask | None = None,
        *,
        mined: Mined | None = None,
    ) -> Float[Tensor, ""]:
        return self.value(similarity, positives, ignored, mined=mined)

    def value(
        self,
        similarity: Similarity,
        positives: MaskOrWeights | None = None,
        ignored: PairMask | None = None,
        *,
        mined: Mined | None = None,
    ) -> Float[Tensor, ""]:
        rows, mined = self._checked(similarity, positives, ignored, mined)
        if not rows.similarity.numel():
            return rows.similarity.sum()
        columns, of_columns = rows.transposed(), _transposed(mined, rows.positives)
        i2t = (self.anchor_values(rows, mined) * weights_of(rows, self.reduction)).sum()
        t2i = (self.anchor_values(columns, of_columns) * weights_of(columns, self.reduction)).sum()
        return i2t + t2i

    def pair_gradient(
        self,
        similarity: Similarity,
        positives: MaskOrWeights | None = None,
        ignored: PairMask | None = None,
        *,
        mined: Mined | None = None,
    ) -> PairGradient:
        i2t, t2i = self.pair_gradients(similarity, positives, ignored, mined=mined)
        return i2t + t2i

    @torch.no_grad()
    def pair_gradients(
        self,
        similarity: Similarity,
        positives: MaskOrWeights | None = None,
        ignored: PairMask | None = None,
        *,
        mined: Mined | None = None,
    ) -> tuple[PairGradient, PairGradient]:
        rows, mined = self._checked(similarity, positives, ignored, mined)
        if not rows.similarity.numel():
            return torch.zeros_like(similarity), torch.zeros_like(similarity)
        columns, of_columns = rows.transposed(), _transposed(mined, rows.positives)
        i2t = self.anchor_gradients(rows, mined) * weights_of(rows, self.reduction)[:, None]
        t2i = self.anchor_gradients(columns, of_columns) * weights_of(columns, self.reduction)[:, None]
        return i2t.to(similarity.dtype), t2i.T.to(similarity.dtype)

    def bind(self, mined: Mined) -> "BoundAOQ":
        """This objective with these mined similarities: on (S, positives) it can be used like any other."""
        return BoundAOQ(self, mined)

    def _checked(
        self, similarity: Similarity, positives: MaskOrWeights | None, ignored: PairMask | None, mined: Mined | None
    ) -> tuple[Rows, Float[Tensor, "kept 4"]]:
        """Check the caller's input and return it with images as anchors; mined rows of ignored pairs are dropped."""
        if mined is None:
            raise self._needs_mined()
        rows = self._rows(similarity, positives, None)
        pairs = int(rows.positives.sum())
        if not torch.is_tensor(mined) or not mined.is_floating_point() or tuple(mined.shape) != (pairs, 4):
            got = f"{mined.dtype} {tuple(mined.shape)}" if torch.is_tensor(mined) else type(mined).__name__
            raise ValueError(
                f"mined must be a floating-point pair x 4 matrix, {(pairs, 4)} here: one row per positive pair, in the "
                f"order of positives.nonzero(); got {got}"
            )
        mined = at_least_float32(mined)
        if ignored is None:
            return rows, mined
        return self._rows(similarity, positives, ignored), mined[~ignored[rows.positives]]

    def _needs_mined(self) -> ValueError:
        return ValueError(f"{self.name} needs mined=, mined negatives of its positive pairs: run `tercet mine`")

    def mined_gradient(
        self,
        similarity: Similarity,
        positives: MaskOrWeights | None = None,
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
        positives: MaskOrWeights | None = None,
        ignored: PairMask | None = None,
        *,
        mined: Float[Tensor, "pair 4"],
    ) -> list[int]:
        """The number of positive pairs with an active hinge in each of the four columns; 0 for unused columns."""
        rows, mined = self._checked(similarity, positives, ignored, mined)
        active = self.mined_margin + mined > rows.similarity[rows.positives][:, None]
        if self.kind == "off-tri":
            active[:, 2:] = False
        return [int(count) for count in active.sum(dim=0)]

    def _streamed(self, embedded: EmbeddedBatch, mined: Mined) -> Float[Tensor, ""]:
        """The scalar. S only finds the hardest negatives, in tiles and without autograd; the rest is per pair."""
        image, caption = embedded.pairs
        own_images, own_captions = embedded.images.index_select(0, image), embedded.captions.index_select(0, caption)
        s_p = embedded.similarity_of(own_images, own_captions)
        tiles = embedded.tiles()
        tracker = RunningHardest(tiles)
        with torch.no_grad():
            directions = both_directions(tiles, self.reduction)
            for tile in tiles.walk():
                tracker.update(tile)
        sizes = len(embedded.images), len(embedded.captions)
        i2t, t2i = (Hardest(*side) for side in zip(*(field.split(sizes) for field in tracker.result()), strict=True))
        captions = embedded.captions.index_select(0, i2t.candidate[image])
        images = embedded.images.index_select(0, t2i.candidate[caption])
        i2t_s_n = embedded.similarity_of(own_images, captions)
        t2i_s_n = embedded.similarity_of(images, own_captions)
        exists = torch.stack([i2t.exists[image], t2i.exists[caption]])
        weights = torch.stack([directions[0].weights[image], directions[1].weights[caption]])
        return self.pairs_value(s_p, torch.stack([i2t_s_n, t2i_s_n]), exists, mined, weights)


class BoundAOQ(NamedTuple):
    """An AOQ objective with the mined similarities of a batch: an `Objective` on (S, positives)."""

    objective: AOQ
    mined: Mined

    @property
    def name(self) -> str:
        return self.objective.name

    @property
    def has_value(self) -> bool:
        return True

    @property
    def reduction(self) -> Reduction:
        return self.objective.reduction

    def on_similarity(
        self, similarity: Similarity, positives: MaskOrWeights | None = None, ignored: PairMask | None = None
    ) -> Float[Tensor, ""]:
        return self.value(similarity, positives, ignored)

    def value(
        self, similarity: Similarity, positives: MaskOrWeights | None = None, ignored: PairMask | None = None
    ) -> Float[Tensor, ""]:
        return self.objective.value(similarity, positives, ignored, mined=self.mined.to(similarity.dtype))

    def pair_gradient(
        self, similarity: Similarity, positives: MaskOrWeights | None = None, ignored: PairMask | None = None
    ) -> PairGradient:
        return self.objective.pair_gradient(similarity, positives, ignored, mined=self.mined.to(similarity.dtype))

    def pair_gradients(
        self, similarity: Similarity, positives: MaskOrWeights | None = None, ignored: PairMask | None = None
    ) -> tuple[PairGradient, PairGradient]:
        return self.objective.pair_gradients(similarity, positives, ignored, mined=self.mined.to(similarity.dtype))

    def monitor(
        self, similarity: Similarity, positives: MaskOrWeights | None = None, ignored: PairMask | None = None
    ) -> Float[Tensor, ""]:
        return self.objective.monitor(similarity, positives, ignored)

    def mined_active(
        self, similarity: Similarity, positives: MaskOrWeights | None = None, ignored: PairMask | None = None
    ) -> list[int]:
        """The number of positive pairs with an active hinge in each of the four columns."""
        return self.objective.mined_active(similarity, positives, ignored, mined=self.mined.to(similarity.dtype))


class MinedEmbeddings(NamedTuple):
    """Mined images and captions of every positive pair, in the order of `positives.nonzero()`.

    Along the axis of size 2, index 0 is (i-, t-) and index 1 is (i-', t-'). Under torch.distributed each rank gives the
    rows of the pairs of its own images with the captions of all ranks.
    """

    images: Float[Tensor, "pair 2 dim"]
    captions: Float[Tensor, "pair 2 dim"]

    def similarity(self, embedded: EmbeddedBatch) -> Mined:
        """The pair x 4 similarities that the objectives take as `mined=` (columns: see the top of this file)."""
        image, caption = embedded.pairs
        self._check(len(image), embedded.images.shape[1])
        own_images = embedded.images.index_select(0, image)  # its backward is index_add; that of [image] is slow
        own_captions = embedded.captions.index_select(0, caption)
        # unbind: its backward is one stack, whereas that of every slice fills a tensor with zeros.
        (i, i_other), (t, t_other) = self.images.unbind(dim=1), self.captions.unbind(dim=1)
        columns = (own_images, t), (i, own_captions), (i, t), (i_other, t_other)
        return torch.stack([embedded.similarity_of(images, captions) for images, captions in columns], dim=1)

    def _check(self, pairs: int, dim: int) -> None:
        for name, mined in (("images", self.images), ("captions", self.captions)):
            if tuple(mined.shape) != (pairs, 2, dim):
                raise ValueError(
                    f"mined {name} {tuple(mined.shape)} must be pair x 2 x dim, {(pairs, 2, dim)}: two for "
                    f"each of the {pairs} positive pairs, in the order of positives.nonzero()"
                )


def _transposed(mined: Mined, positives: PairMask) -> Mined:
    """The mined similarities with captions as anchors: rows by caption, then by image."""
    return swap_directions(mined[positives.nonzero()[:, 1].argsort(stable=True)])


def swap_directions(mined: Mined) -> Mined:
    """Swap columns 0 and 1, so that column 0 shares the anchor of the other direction."""
    return mined.index_select(1, torch.tensor([1, 0, 2, 3], device=mined.device))
