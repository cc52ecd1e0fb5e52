"""Streaming top-k: the k most similar candidates of every anchor, updated block by block of S."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

NO_ITEM = -1  # padding of lists with fewer than k candidates
CUT_BATCH_ROWS = 4096


class RunningTopK:
    """The top k per anchor; ties go to the lowest index, since blocks come in ascending order of candidates.

    Each anchor has a buffer of 2 k entries. A candidate above the anchor's threshold, the k-th best so far, is
    appended; a full buffer is sorted and cut to k, which raises the threshold. So almost all of S is only compared
    with a threshold and never sorted.
    """

    def __init__(self, anchors: int, k: int) -> None:
        self.k = k
        self.similarity = torch.full((anchors, 2 * k), -torch.inf)
        self.candidate = torch.full((anchors, 2 * k), NO_ITEM, dtype=torch.int32)
        self.filled = torch.zeros(anchors, dtype=torch.long)
        self.threshold = torch.full((anchors,), -torch.inf)

    def update(self, block: Float[Tensor, "image caption"], anchors: slice, first: int, *, images: bool) -> None:
        """Add a block of S; `first` is the index of its first candidate, `images` whether images are the anchors.

        Entries of -inf, such as excluded pairs, are never added.
        """
        threshold = self.threshold[anchors]
        above = block > (threshold[:, None] if images else threshold)
        image, caption = above.nonzero(as_tuple=True)
        counts = (image if images else caption).bincount(minlength=len(threshold))
        crowded = (counts > self.k).nonzero().flatten()
        if len(crowded):
            if images:
                above[crowded] &= self._top_k_mask(block[crowded], crowded + anchors.start)
            else:
                above[:, crowded] &= self._top_k_mask(block[:, crowded].T.contiguous(), crowded + anchors.start).T
            image, caption = above.nonzero(as_tuple=True)
            counts = (image if images else caption).bincount(minlength=len(threshold))
        full = (self.filled[anchors] + counts > 2 * self.k).nonzero().flatten()
        if len(full):
            self._cut(full + anchors.start)
        self._append(block, image, caption, counts, anchors, first, images=images)

    def result(self) -> tuple[Int[Tensor, "anchor k"], Float[Tensor, "anchor k"]]:
        """Return the candidates, most similar first, and their similarities."""
        self._cut(torch.arange(len(self.filled)))
        return self.candidate[:, : self.k], self.similarity[:, : self.k]

    def state(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in ("similarity", "candidate", "filled", "threshold")}

    def restore(self, state: dict[str, Tensor]) -> None:
        for name, tensor in self.state().items():
            tensor.copy_(state[name])

    def _top_k_mask(
        self, rows: Float[Tensor, "row candidate"], anchors: Int[Tensor, " row"]
    ) -> Bool[Tensor, "row candidate"]:
        """Select the k largest of each row, the first ones on ties, and raise the thresholds to the k-th largest."""
        largest = rows.topk(self.k + 1, dim=1).values  # there are more than k
        kth = largest[:, self.k - 1 : self.k]
        self.threshold[anchors] = torch.maximum(self.threshold[anchors], kth[:, 0])
        selected = rows >= kth
        for row in (largest[:, self.k] == kth[:, 0]).nonzero().flatten().tolist():
            larger, equal = rows[row] > kth[row], rows[row] == kth[row]
            selected[row] = larger | (equal & (equal.cumsum(dim=0) <= self.k - larger.sum()))
        return selected

    def _append(
        self,
        block: Float[Tensor, "image caption"],
        image: Int[Tensor, " entry"],
        caption: Int[Tensor, " entry"],
        counts: Int[Tensor, " anchor"],
        anchors: slice,
        first: int,
        *,
        images: bool,
    ) -> None:
        similarity = block[image, caption]
        anchor, candidate = (image, caption) if images else (caption, image)
        if not images:
            order = anchor.argsort(stable=True)  # by anchor, with candidates still ascending
            anchor, candidate, similarity = anchor[order], candidate[order], similarity[order]
        start = counts.cumsum(dim=0) - counts
        position = torch.arange(len(anchor)) - start[anchor] + self.filled[anchors][anchor]
        self.similarity[anchors].index_put_((anchor, position), similarity)
        self.candidate[anchors].index_put_((anchor, position), (candidate + first).int())
        self.filled[anchors] += counts

    def _cut(self, rows: Int[Tensor, " row"]) -> None:
        """Sort the buffers of these anchors and keep the k best; the sort is stable, so ties keep their order."""
        for batch in rows.split(CUT_BATCH_ROWS):
            length = max(self.k, int(self.filled[batch].max()) if len(batch) else 0)
            similarity, order = self.similarity[batch, :length].sort(dim=1, descending=True, stable=True)
            self.candidate[batch, :length] = self.candidate[batch, :length].gather(1, order)
            self.similarity[batch, :length] = similarity
            self.similarity[batch, self.k :] = -torch.inf
            self.candidate[batch, self.k :] = NO_ITEM
            self.filled[batch] = self.filled[batch].clamp(max=self.k)
            self.threshold[batch] = similarity[:, self.k - 1]
