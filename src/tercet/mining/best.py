"""The k most similar candidates of every anchor, while blocks of S pass by."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

NOBODY = -1  # where an anchor has fewer candidates than k


class Best:
    """Among equals the lowest index, whatever the blocks: candidates come in ascending order.

    Each anchor has a shelf of 2 k places. What beats the k-th best so far is put there; a full shelf is sorted and cut
    to k, which raises the bar. So almost all of S is read once, to be held against a bar, and never sorted.
    """

    def __init__(self, anchors: int, k: int) -> None:
        self.k = k
        self.similarity = torch.full((anchors, 2 * k), -torch.inf)
        self.candidate = torch.full((anchors, 2 * k), NOBODY, dtype=torch.int32)
        self.filled = torch.zeros(anchors, dtype=torch.long)
        self.bar = torch.full((anchors,), -torch.inf)

    def update(self, block: Float[Tensor, "image caption"], anchors: slice, first: int, *, images: bool) -> None:
        """`images`: whether images are the anchors; `first` is the number of the block's first candidate.

        -inf is never kept: so are pairs left out.
        """
        bar = self.bar[anchors]
        above = block > (bar[:, None] if images else bar)
        counts = above.sum(dim=1 if images else 0)
        crowded = (counts > self.k).nonzero().flatten()
        if len(crowded):
            rows = block[crowded] if images else block[:, crowded].T
            chosen = _first_largest(rows, self.k) & (above[crowded] if images else above[:, crowded].T)
            if images:
                above[crowded] = chosen
            else:
                above[:, crowded] = chosen.T
            counts[crowded] = chosen.sum(dim=1)
        crowded = (self.filled[anchors] + counts > 2 * self.k).nonzero().flatten()
        if len(crowded):
            self._cut(crowded + anchors.start)
        self._put(block, above, counts, anchors, first, images=images)

    def result(self) -> tuple[Int[Tensor, "anchor k"], Float[Tensor, "anchor k"]]:
        """Candidates from the most similar on, and their similarities."""
        self._cut(torch.arange(len(self.filled)))
        return self.candidate[:, : self.k], self.similarity[:, : self.k]

    def state(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in ("similarity", "candidate", "filled", "bar")}

    def restore(self, state: dict[str, Tensor]) -> None:
        for name, tensor in self.state().items():
            tensor.copy_(state[name])

    def _put(
        self,
        block: Tensor,
        above: Bool[Tensor, "image caption"],
        counts: Tensor,
        anchors: slice,
        first: int,
        *,
        images: bool,
    ) -> None:
        image, caption = above.nonzero(as_tuple=True)
        similarity = block[image, caption]
        anchor, candidate = (image, caption) if images else (caption, image)
        if not images:
            order = anchor.argsort(stable=True)  # by anchor, its candidates still ascending
            anchor, candidate, similarity = anchor[order], candidate[order], similarity[order]
        before = counts.cumsum(dim=0) - counts
        place = torch.arange(len(anchor)) - before[anchor] + self.filled[anchors][anchor]
        self.similarity[anchors].index_put_((anchor, place), similarity)
        self.candidate[anchors].index_put_((anchor, place), (candidate + first).int())
        self.filled[anchors] += counts

    def _cut(self, rows: Int[Tensor, " row"]) -> None:
        """To the k best, sorted; equal ones stay in their order."""
        for part in rows.split(4096):
            longest = max(self.k, int(self.filled[part].max()) if len(part) else 0)
            similarity, order = self.similarity[part, :longest].sort(dim=1, descending=True, stable=True)
            self.candidate[part, :longest] = self.candidate[part, :longest].gather(1, order)
            self.similarity[part, :longest] = similarity
            self.similarity[part, self.k :] = -torch.inf
            self.candidate[part, self.k :] = NOBODY
            self.filled[part] = self.filled[part].clamp(max=self.k)
            self.bar[part] = similarity[:, self.k - 1]


def _first_largest(rows: Float[Tensor, "row candidate"], k: int) -> Bool[Tensor, "row candidate"]:
    """The k largest of each row; of those equal to the last of them, the first ones."""
    if k >= rows.shape[1]:
        return torch.ones_like(rows, dtype=torch.bool)
    least = rows.topk(k, dim=1, sorted=True).values[:, -1:]
    larger, equal = rows > least, rows == least
    return larger | (equal & (equal.cumsum(dim=1) <= k - larger.sum(dim=1, keepdim=True)))
