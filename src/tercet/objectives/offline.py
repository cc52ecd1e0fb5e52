"""`off-tri`, `off-quin`, `aoq`: the hardest negative of the batch, and negatives mined offline (Chen, Deng, Luo, 2020).

Beside S there is a second, narrow waist: `mined` (pair x 4), the similarities of each positive pair's offline members,
rows in the order of `positives.nonzero()`:

| column | pair | what it shares with (i, t) |
|---|---|---|
| 0 | (i, t-) | the image: it belongs to i2t |
| 1 | (i-, t) | the caption: it belongs to t2i |
| 2 | (i-, t-) | nothing: half belongs to each direction |
| 3 | (i-', t-') | nothing; i-' is the image of t-, t-' a caption of i- |
"""

from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tercet.contracts import PairMask, Similarity
from tercet.objectives.base import ONE_TILE, RowObjective
from tercet.objectives.hardest import hardest_negative, hinge
from tercet.objectives.masks import Rows, swapped
from tercet.objectives.members import Embedded, Members
from tercet.objectives.running import RunningHardest
from tercet.objectives.settings import require_numbers, require_one_of, require_positive
from tercet.objectives.sides import both_sides

Kind = Literal["off-tri", "off-quin", "aoq"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, kw_only=True, repr=False)
class Offline(RowObjective):
    """Of each positive pair, in each direction, with n the anchor's hardest negative and M the offline members:

    L = w [margin + S_n - S_p]+ + [mined_margin + M_a - S_p]+ + 1/2 sum over k = 2, 3 of [mined_margin + M_k - S_p]+

    M_a is the member that shares the anchor (column 0 for images, 1 for captions). `off-tri` has no sum and w = 1;
    `off-quin` has w = 1; `aoq` has w = adapt_beta - (M_a - S_n) / adapt_alpha, through which derivatives go, and
    which turns negative where the mined negative is the harder by far: both as published. `detach_weights` makes w a
    constant, `clamp_weights` keeps it at or above 0. A query without a negative in the batch has its offline terms.

    >>> similarity = torch.tensor([[0.5, 0.4], [0.1, 0.9]])
    >>> mined = torch.tensor([[0.6, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    >>> Offline("off-tri").pair_gradients(similarity, mined=mined)[0]
    tensor([[-2.,  1.],
            [ 0.,  0.]])
    >>> Offline("off-tri").mined_gradient(similarity, mined=mined)[0]
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
    def takes_mined(self) -> bool:
        return True

    @property
    def members(self) -> int:
        """How many of a pair's two couples (i-, t-), (i-', t-') it looks at."""
        return 1 if self.kind == "off-tri" else 2

    def pair_value(
        self, s_p: Float[Tensor, " pair"], s_n: Float[Tensor, " pair"], exists: Tensor, mined: Float[Tensor, "pair 4"]
    ) -> Float[Tensor, " pair"]:
        """Of one direction, whose own member stands in column 0; `exists` says whether the batch has a negative."""
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
        """Of both directions at once, i2t first: half as many steps for autograd to take."""
        both = torch.cat([mined, swapped(mined)])
        return torch.dot(self.pair_value(s_p.repeat(2), s_n.flatten(), exists.flatten(), both), weights.flatten())

    def online_weight(self, s_n: Tensor, mined: Tensor) -> Tensor:
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
        """dL/dM, that of the adaptive weights included."""
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
        """How many pairs have an active hinge on each of the four members; 0 of those that it does not look at."""
        rows = self.rows_of(similarity, positives, ignored, mined)
        assert rows.mined is not None
        active = self.mined_margin + rows.mined > rows.similarity[rows.positives][:, None]
        if self.kind == "off-tri":
            active[:, 2:] = False
        return [int(count) for count in active.sum(dim=0)]

    def _streams(self, entries: int, paired_by_rows: bool) -> bool:
        """Only where one tile would not do: on a small batch S itself costs less than lists of pairs."""
        return entries > ONE_TILE

    def on_embeddings(self, embedded: Embedded, members: Members, streamed: bool) -> Float[Tensor, ""]:
        """S is needed for the hardest negatives alone: found without a graph, all else is a list of pairs."""
        mined = members.similarity(embedded)
        if not streamed:
            return self.on_similarity(embedded.similarity(), embedded.positives(), mined=mined)
        image, caption = embedded.pairs
        own_images, own_captions = embedded.images.index_select(0, image), embedded.captions.index_select(0, caption)
        s_p = embedded.similarity_of(own_images, own_captions)
        tiles = embedded.tiles()
        trackers = [RunningHardest(count, s_p.detach()) for count in (len(embedded.images), len(embedded.captions))]
        with torch.no_grad():
            sides = both_sides(tiles, self.reduction)
            for tile in tiles.walk():
                for side, tracker in zip(sides, trackers, strict=True):
                    tracker.update(*side.view(tile))
        i2t, t2i = (tracker.result() for tracker in trackers)
        captions = embedded.captions.index_select(0, i2t.candidate[image])
        images = embedded.images.index_select(0, t2i.candidate[caption])
        for_images = embedded.similarity_of(own_images, captions)
        for_captions = embedded.similarity_of(images, own_captions)
        exists = torch.stack([i2t.exists[image], t2i.exists[caption]])
        weights = torch.stack([sides[0].weights[image], sides[1].weights[caption]])
        return self.pairs_value(s_p, torch.stack([for_images, for_captions]), exists, mined, weights)
