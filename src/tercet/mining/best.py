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
        image, caption = above.nonzero(as_tuple=True)
        counts = (image if images else caption).bincount(minlength=len(bar))
        crowded = (counts > self.k).nonzero().flatten()
        if len(crowded):
            if images:
                above[crowded] &= self._largest(block[crowded], crowded + anchors.start)
            else:
                above[:, crowded] &= self._largest(block[:, crowded].T.contiguous(), crowded + anchors.start).T
            image, caption = above.nonzero(as_tuple=True)
            counts = (image if images else caption).bincount(minlength=len(bar))
        full = (self.filled[anchors] + counts > 2 * self.k).nonzero().flatten()
        if len(full):
            self._cut(full + anchors.start)
        self._put(block, image, caption, counts, anchors, first, images=images)

    def result(self) -> tuple[Int[Tensor, "anchor k"], Float[Tensor, "anchor k"]]:
        """Candidates from the most similar on, and their similarities."""
        self._cut(torch.arange(len(self.filled)))
        return self.candidate[:, : self.k], self.similarity[:, : self.k]

    def state(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in ("similarity", "candidate", "filled", "bar")}

    def restore(self, state: dict[str, Tensor]) -> None:
        for name, tensor in self.state().items():
            tensor.copy_(state[name])

    def _largest(
        self, rows: Float[Tensor, "row candidate"], anchors: Int[Tensor, " row"]
    ) -> Bool[Tensor, "row candidate"]:
        """The k largest of each row; of those equal to the last of them, the first ones. The bar rises to that last."""
        largest = rows.topk(self.k + 1, dim=1).values  # there are more than k
        least = largest[:, self.k - 1 : self.k]
        self.bar[anchors] = torch.maximum(self.bar[anchors], least[:, 0])
        chosen = rows >= least
        for row in (largest[:, self.k] == least[:, 0]).nonzero().flatten().tolist():
            larger, equal = rows[row] > least[row], rows[row] == least[row]
            chosen[row] = larger | (equal & (equal.cumsum(dim=0) <= self.k - larger.sum()))
        return chosen

    def _put(
        self,
        block: Float[Tensor, "image caption"],
        image: Int[Tensor, " kept"],
        caption: Int[Tensor, " kept"],
        counts: Int[Tensor, " anchor"],
        anchors: slice,
        first: int,
        *,
        images: bool,
    ) -> None:
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
