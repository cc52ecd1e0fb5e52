"""One step: similarity, pair gradient, backward."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.contracts import Batch, MinedItems, Similarity
from tercet.data.buffers import Buffers
from tercet.data.dropout import SizeAugmentation, drop_regions
from tercet.objectives.base import RowObjective
from tercet.objectives.offline import Offline
from tercet.training import distributed
from tercet.training.grad_cache import Cached, has_batch_norm, refuse_batch_norm
from tercet.training.learned_scale import fitted, scale_and_bias, scaled
from tercet.training.mined import Members, everyones_mined
from tercet.training.randomness import reseed
from tercet.training.settings import TrainSettings

_BUFFERS = Buffers()
SMALL = 1 << 20  # entries of S, up to which it is made whole beside mined members


@dataclass(frozen=True)
class Outcome:
    """What a step saw: embeddings without their graph, and the objective's scalar."""

    scalar: float
    images: Tensor
    captions: Tensor
    members: Members | None = None
    """Where the objective takes mined ones."""


class Step:
    """Adds the gradient of one batch to the weights' `.grad`."""

    def __init__(self, model: Any, settings: TrainSettings) -> None:
        self.model, self.settings = model, settings
        wrap: Callable[[Any], Any] = torch.compile if settings.compile else lambda encode: encode
        self._encode_images, self._encode_captions = wrap(model.encode_images), wrap(model.encode_captions)
        if settings.drop_regions and getattr(model, "backbone", None) is not None and hasattr(model, "encode_regions"):
            self._encode_images = self._encode_some_cells

    def __call__(self, objective: RowObjective, batch: Batch, seed: int, factor: float = 1.0) -> Outcome:
        reseed(seed, batch.images.device)
        objective = fitted(objective, self.model, self.settings.objective_settings)
        if self.settings.grad_cache is not None:
            return self._cached(objective, batch, seed, factor)
        members: Members | None = None
        if objective.takes_mined and self._encodes_together(batch):
            images, captions, members = self._together(batch)
            second_loss: Any = 0.0
        else:
            images, captions, second_loss = self._sides(batch)
            members = self._members(batch) if objective.takes_mined else None
        scalar = self._scalar(objective, images, captions, batch, members)
        (factor * (self.settings.objective_weight * scalar + second_loss)).backward()
        return Outcome(scalar.item(), images.detach(), captions.detach(), _detached(members))

    def _members(self, batch: Batch) -> Members:
        items = _mined_of(batch)
        images = self.encode_images(items.images, items.image_lengths)
        return Members(images, self.encode_captions(items.captions, items.caption_lengths), items)

    def _encodes_together(self, batch: Batch) -> bool:
        """Plain vectors of a model that looks at each by itself: one product, and one gradient of the weights."""
        losses = self.settings.caption_weight or self.settings.match_weight
        vectors = all(each.ndim == 2 and each.is_floating_point() for each in (batch.images, batch.captions))
        return bool(vectors and not losses and not has_batch_norm(self.model))

    def _together(self, batch: Batch) -> tuple[Tensor, Tensor, Members]:
        items = _mined_of(batch)
        images = self.encode_images(_end_to_end(batch.images, items.images), None)
        captions = self.encode_captions(_end_to_end(batch.captions, items.captions), None)
        own_images, mined_images = images.split([len(batch.images), len(items.images)])
        own_captions, mined_captions = captions.split([len(batch.captions), len(items.captions)])
        return own_images, own_captions, Members(mined_images, mined_captions, items, (images, captions))

    def encode_images(self, items: Tensor, lengths: Tensor | None) -> Float[Tensor, "image *rest"]:
        with self._autocast(items):
            encoded: Tensor = self._encode_images(items, lengths)
        return _widened(encoded)

    def _encode_some_cells(self, pixels: Tensor, lengths: Tensor | None) -> Tensor:
        """Size augmentation of a grid, whose cells exist only behind the backbone."""
        how = SizeAugmentation(self.settings.drop_regions, 0.0, grid=True)
        cells, kept = drop_regions(self.model.backbone.cells(pixels), None, how, torch.default_generator)
        encoded: Tensor = self.model.encode_regions(cells, kept)
        return encoded

    def encode_captions(self, items: Tensor, lengths: Tensor | None) -> Float[Tensor, "caption *rest"]:
        with self._autocast(items):
            encoded: Tensor = self._encode_captions(items, lengths)
        return _widened(encoded)

    def _scalar(
        self, objective: RowObjective, images: Tensor, captions: Tensor, batch: Batch, members: Members | None
    ) -> Float[Tensor, ""]:
        """Whose backward delivers the pair gradient. Dot products may be streamed and gathered from all processes."""
        alone = distributed.world()[1] == 1
        special = batch.ignored is not None or batch.also_positive is not None
        whole = members is not None and alone and len(images) * len(captions) <= SMALL
        if self.model.dot_product and not special and whole:
            assert members is not None
            assert isinstance(objective, Offline)
            return members.scalar(objective, images, captions, batch.positives())
        if self.model.dot_product and not special:
            scale, bias = scale_and_bias(self.model, objective, self.settings.objective_settings)
            return objective(
                images,
                captions,
                image_ids=batch.image_ids,
                caption_ids=batch.caption_ids,
                scale=scale,
                bias=bias,
                mined=None if members is None else members.gathered(),
            )
        mined: Tensor | None = None
        if alone:
            similarity, positives = self._similarity(objective, images, captions), batch.positives()
            if members is not None:
                mined = self._scaled(objective, members.similarity(self.model, images, captions, positives))
            return objective.on_similarity(similarity, positives, batch.ignored, mined=mined)
        if special:
            raise ValueError("several processes: no pair may be ignored, nor be a positive although its ids differ")
        # Each process compares its own images with everyone's captions; the rows together are S.
        similarity = distributed.everyones(self.model.similarity(images, distributed.everyones(captions)))
        everyones_ids = [distributed.everyones(ids) for ids in (batch.image_ids, batch.caption_ids)]
        mined = None if members is None else everyones_mined(self.model, images, captions, batch, members)
        return objective.on_similarity(similarity, everyones_ids[0][:, None] == everyones_ids[1][None, :], mined=mined)

    def _similarity(self, objective: RowObjective, images: Tensor, captions: Tensor) -> Similarity:
        return self._scaled(objective, self.model.similarity(images, captions))

    def _scaled(self, objective: RowObjective, plain: Tensor) -> Tensor:
        """As the objective sees it."""
        return scaled(plain, self.model, objective, self.settings.objective_settings)

    def _cached(self, objective: RowObjective, batch: Batch, seed: int, factor: float) -> Outcome:
        assert self.settings.grad_cache is not None
        refuse_batch_norm(self.model, "--grad-cache would not be exact")
        at_once = self.settings.grad_cache
        images = Cached(self.encode_images, batch.images, batch.image_lengths, at_once, seed)
        captions = Cached(self.encode_captions, batch.captions, batch.caption_lengths, at_once, seed ^ 1)
        sides, members = [images, captions], None
        if objective.takes_mined:
            items = _mined_of(batch)
            sides += [
                Cached(self.encode_images, items.images, items.image_lengths, at_once, seed ^ 2),
                Cached(self.encode_captions, items.captions, items.caption_lengths, at_once, seed ^ 3),
            ]
            members = Members(sides[2].embedded, sides[3].embedded, items)
        scalar = self._scalar(objective, images.embedded, captions.embedded, batch, members)
        (factor * self.settings.objective_weight * scalar).backward()
        for side in sides:
            side.backward()
        return Outcome(scalar.item(), images.embedded.detach(), captions.embedded.detach(), _detached(members))

    def _sides(
        self, batch: Batch
    ) -> tuple[Float[Tensor, "image *rest"], Float[Tensor, "caption *rest_of_caption"], Any]:
        """With a second loss, where one is wanted: VSRN's captions written from regions, X-VLM's matching."""
        if self.settings.match_weight:
            with self._autocast(batch.images):
                images, captions, loss = self.model.encode_and_match(
                    batch.images, batch.captions, batch.caption_lengths, batch.positives()
                )
            return _widened(images), _widened(captions), self.settings.match_weight * loss
        if not self.settings.caption_weight:
            images, second_loss = self.encode_images(batch.images, batch.image_lengths), 0.0
        else:
            with self._autocast(batch.images):
                images, loss = self.model.encode_and_write(
                    batch.images, batch.image_lengths, batch.captions, batch.caption_lengths
                )
            images = _widened(images)
            second_loss = self.settings.caption_weight * loss
        return images, self.encode_captions(batch.captions, batch.caption_lengths), second_loss

    def _autocast(self, items: Tensor) -> Any:
        if self.settings.precision != "bf16":
            return nullcontext()
        return torch.autocast(items.device.type, dtype=torch.bfloat16)


def _mined_of(batch: Batch) -> MinedItems:
    assert batch.mined is not None
    return batch.mined


def _end_to_end(own: Float[Tensor, "item dim"], mined: Float[Tensor, "mined dim"]) -> Float[Tensor, "both dim"]:
    """In memory that serves again: a fresh tensor of this size is found and cleared page by page."""
    if own.device.type != "cpu":
        return torch.cat([own, mined])
    return torch.cat([own, mined], out=_BUFFERS.lend((len(own) + len(mined), own.shape[1]), own.dtype))


def _detached(members: Members | None) -> Members | None:
    return None if members is None else Members(members.images.detach(), members.captions.detach(), members.items)


def _widened(encoded: Tensor) -> Tensor:
    """Similarities and gradients on them are never of half precision."""
    return encoded.float() if encoded.dtype == torch.bfloat16 else encoded
