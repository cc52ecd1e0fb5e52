"""`Queue`: a memory of earlier embeddings, as further candidates of an objective."""

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.objectives.inputs import positives_from_ids
from tercet.objectives.streaming.tiles import EmbeddedBatch

if TYPE_CHECKING:
    from tercet.objectives.base import RowObjective


class Queue:
    """The last `size` image embeddings and the last `size` caption embeddings, with their ids.

    In `objective(x, y, image_ids=a, caption_ids=b, queue=queue)` the images of the batch are also compared with the
    captions of the queue, and the captions of the batch with its images:

        L = L_i2t([S(X, Y) S(X, Q_Y)]) + L_t2i([S(X, Y); S(Q_X, Y)])

    Queries are those of the batch, so its positives are too: an entry of the queue with the id of a query is ignored,
    and every other is a negative. Entries get no gradient. An empty queue changes nothing.

    `push` adds embeddings, after the step: those of the batch, or of a momentum encoder. Under torch.distributed both
    calls are collective: the queue holds the batches of all ranks, and is the same on every rank.

    >>> import tercet
    >>> queue, ids = Queue(4), torch.tensor([0, 1])
    >>> queue.push(torch.eye(2), torch.eye(2), image_ids=ids, caption_ids=ids)
    >>> objective = tercet.objective("triplet-sh")
    >>> x = torch.tensor([[0.6, 0.8], [1.0, 0.0]])
    >>> objective(x, x, image_ids=ids + 1, caption_ids=ids + 1, queue=queue)  # entry 1 is ignored for query 1
    tensor(0.4000)
    """

    def __init__(self, size: int) -> None:
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"the size of a queue must be a whole number of at least 1, got {size!r}")
        self.size = size
        self._images, self._captions = _Side(size), _Side(size)

    def __len__(self) -> int:
        """Number of captions that it holds."""
        return self._captions.count

    def __repr__(self) -> str:
        return f"Queue({self.size}, {self._images.count} images and {self._captions.count} captions)"

    def push(
        self,
        images: Float[Tensor, "image dim"],
        captions: Float[Tensor, "caption dim"],
        *,
        image_ids: Int[Tensor, " image"],
        caption_ids: Int[Tensor, " caption"],
    ) -> None:
        """Add a batch; the oldest entries leave."""
        batch = EmbeddedBatch.of(images.detach(), captions.detach(), None, image_ids, caption_ids, None, None)
        self._images.push(batch.images, batch.ids[0])
        self._captions.push(batch.captions, batch.ids[1])

    def check_call(self, objective: "RowObjective", image_ids: Tensor | None, streamed: bool | None) -> None:
        """Refuse a call of an objective that a queue has no meaning for."""
        if image_ids is None:
            raise ValueError("a queue needs image_ids= and caption_ids=: they tell which entries belong to a query")
        if objective.asks:
            asked = ", ".join(sorted(objective.asks))
            raise ValueError(f"{objective.name} asks for {asked}, which are not defined for the entries of a queue")
        if streamed:
            raise ValueError(f"{objective.name} with a queue needs the dense similarity and cannot be streamed")

    def scalar(self, objective: "RowObjective", batch: EmbeddedBatch) -> Float[Tensor, ""]:
        """The objective of a checked batch with the entries as further candidates."""
        (of_images, *image_masks), (of_captions, *caption_masks) = self.directions(batch)
        return objective.one_direction(of_images, *image_masks) + objective.one_direction(of_captions, *caption_masks)

    def directions(
        self, batch: EmbeddedBatch
    ) -> tuple[
        tuple[Float[Tensor, "image with_captions"], Tensor, Tensor],
        tuple[Float[Tensor, "caption with_images"], Tensor, Tensor],
    ]:
        """(S, positives, ignored) with images of the batch as rows, and with its captions as rows."""
        own = batch.positives()
        images, captions = self._images.held(batch.images), self._captions.held(batch.captions)
        same_image = positives_from_ids(batch.ids[0], self._captions.held_ids(own))
        same_caption = positives_from_ids(batch.ids[1], self._images.held_ids(own))
        return (
            (batch.scaled(batch.images @ torch.cat([batch.captions, captions]).T), *_masks(own, same_image)),
            (batch.scaled(batch.captions @ torch.cat([batch.images, images]).T), *_masks(own.T, same_caption)),
        )

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint, as of a module."""
        return {"size": self.size, "images": self._images.state(), "captions": self._captions.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["size"] != self.size:
            raise ValueError(f"the saved queue has size {state['size']}, this one {self.size}")
        self._images, self._captions = (_Side(self.size, **state[side]) for side in ("images", "captions"))


class _Side:
    """A ring buffer: `end` is the position that is written next."""

    def __init__(
        self, size: int, embeddings: Tensor | None = None, ids: Tensor | None = None, end: int = 0, count: int = 0
    ) -> None:
        self.size, self.embeddings, self.ids, self.end, self.count = size, embeddings, ids, end, count

    def push(self, embeddings: Float[Tensor, "item dim"], ids: Int[Tensor, " item"]) -> None:
        if self.embeddings is None or self.ids is None:
            self.embeddings, self.ids = embeddings.new_zeros(self.size, embeddings.shape[1]), ids.new_zeros(self.size)
        if embeddings.shape[1] != self.embeddings.shape[1]:
            raise ValueError(f"the queue holds {self.embeddings.shape[1]} dims, got {embeddings.shape[1]}")
        embeddings, ids = embeddings[-self.size :], ids[-self.size :]
        position = (self.end + torch.arange(len(ids), device=ids.device)) % self.size
        self.embeddings = self.embeddings.to(embeddings.device)
        self.ids = self.ids.to(ids.device)
        self.embeddings[position], self.ids[position] = embeddings.to(self.embeddings.dtype), ids
        self.end, self.count = (self.end + len(ids)) % self.size, min(self.size, self.count + len(ids))

    def held(self, like: Float[Tensor, "item dim"]) -> Float[Tensor, "entry dim"]:
        return like.new_empty(0, like.shape[1]) if self.embeddings is None else self.embeddings[: self.count].to(like)

    def held_ids(self, like: Tensor) -> Int[Tensor, " entry"]:
        if self.ids is None:
            return torch.empty(0, dtype=torch.long, device=like.device)
        return self.ids[: self.count].to(like.device)

    def state(self) -> dict[str, Any]:
        embeddings, ids = (None if held is None else held.clone() for held in (self.embeddings, self.ids))
        return {"embeddings": embeddings, "ids": ids, "end": self.end, "count": self.count}


def _masks(own: Bool[Tensor, "anchor candidate"], earlier: Bool[Tensor, "anchor entry"]) -> tuple[Tensor, Tensor]:
    """(positives, ignored) over the candidates of the batch, then those of the queue."""
    return torch.cat([own, torch.zeros_like(earlier)], dim=1), torch.cat([torch.zeros_like(own), earlier], dim=1)
