"""One training step: encode, similarity, pair gradient, backward; and the objective as the model needs it.

Models with a learned scale (CLIP, SigLIP, X-VLM) replace the temperature of an objective by it, unless the user sets
`temperature`. Objectives with a margin take unscaled cosines: a scale would undo the margin.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.data.collate import SizeAugmentation, drop_regions
from tercet.data.feature_array import BufferPool
from tercet.interfaces import AuxiliaryLoss, GridEncoder, LogitScale, RetrievalModel
from tercet.models import learns_scale, training_defaults
from tercet.names import is_sum
from tercet.objectives import Composed, Queue, RowObjective, objective
from tercet.objectives.aoq import AOQ
from tercet.objectives.inputs import BatchFacts
from tercet.training import runtime
from tercet.training.aoq_step import MinedMembers, all_gather_mined
from tercet.training.grad_cache import CachedEncoding, has_batch_norm, refuse_batch_norm
from tercet.training.runtime import reseed
from tercet.training.settings import TrainSettings
from tercet.types import Batch, MinedItems, Similarity

Named = Mapping[str, Any]
"""Objective settings that the user set explicitly."""

HALF_PRECISION = {"bf16": torch.bfloat16, "fp16": torch.float16}
MAX_DENSE_ENTRIES = 1 << 20  # largest S that is computed as a whole next to mined members
_BUFFERS = BufferPool()


def objective_for(model: str, name: str, named: Named) -> RowObjective:
    """Return the objective with the settings of the model's recipe that it has; `named` settings override them.

    The terms of a sum have those of the recipe too; a learned scale of the model is not for them.
    """
    recipe = training_defaults(model).get("objective_settings", {})
    if is_sum(name):
        terms = Composed.terms_of(objective(name, **named))
        return Composed(tuple((weight, _with_recipe(term, recipe)) for weight, term in terms))
    if named.get("learn") and learns_scale(model):
        raise ValueError(f"learn={named['learn']}: {model} has a learned scale already, which replaces the temperature")
    defaults = objective(name, **named).settings
    settings = {key: value for key, value in recipe.items() if key in defaults} | dict(named)
    if takes_scale(model, defaults, named):
        settings["temperature"] = 1.0
    return objective(name, **settings)


def _with_recipe(term: RowObjective, recipe: Named) -> RowObjective:
    settings = {key: recipe[key] for key in recipe if key in term.settings and key not in term.changed_settings}
    return term.with_settings(**settings) if settings else term


def takes_scale(model: str, settings: Mapping[str, Any], named: Named) -> bool:
    """Whether an objective with these settings uses the model's learned scale."""
    return "temperature" in settings and "temperature" not in named and learns_scale(model)


def with_model_bias(objective: RowObjective, model: RetrievalModel, named: Named) -> RowObjective:
    """Return the objective with bias 0 if the bias learned by the model is used instead."""
    if scale_and_bias(model, objective, named)[1] is None:
        return objective
    return objective.with_settings(bias=0.0)


def apply_scale(similarity: Similarity, model: RetrievalModel, objective: RowObjective, named: Named) -> Similarity:
    """Return the similarity with the model's learned scale and bias, if the objective uses them."""
    scale, bias = scale_and_bias(model, objective, named)
    similarity = similarity if scale is None else scale * similarity
    return similarity if bias is None else similarity + bias


def scale_and_bias(
    model: RetrievalModel, objective: RowObjective, named: Named
) -> tuple[Float[Tensor, ""] | None, Float[Tensor, ""] | None]:
    """Return the learned scale and bias of the model that this objective uses; None for what it does not use."""
    if not isinstance(model, LogitScale) or "temperature" not in objective.settings or "temperature" in named:
        return None, None
    scale, bias = model.scale_and_bias()
    return scale, bias if "bias" in objective.settings and "bias" not in named else None


@dataclass(frozen=True)
class Outcome:
    """Result of a step: the objective's scalar, and detached embeddings."""

    scalar: float
    images: Tensor
    captions: Tensor
    members: MinedMembers | None = None
    """Only if the objective takes mined negatives."""


class Step:
    """Adds the gradient of one batch to the `.grad` of the weights."""

    def __init__(self, model: RetrievalModel, settings: TrainSettings, queue: Queue | None = None) -> None:
        self.model, self.settings, self.queue = model, settings, queue
        self.number = 0
        """Of the training step, for an objective that asks for it."""
        wrap: Callable[[Any], Any] = torch.compile if settings.compile else lambda encode: encode
        self._encode_images, self._encode_captions = wrap(model.encode_images), wrap(model.encode_captions)
        self.auxiliary_weight = auxiliary_weight(model, settings)
        if settings.drop_regions and isinstance(model, GridEncoder) and model.has_backbone:
            self._encode_images = partial(_encode_dropped_cells, model, settings.drop_regions)

    def __call__(self, objective: RowObjective, batch: Batch, seed: int, factor: float = 1.0) -> Outcome:
        reseed(seed, batch.images.device)
        objective = with_model_bias(objective, self.model, self.settings.objective_settings)
        if self.settings.grad_cache is not None:
            return self._step_cached(objective, batch, seed, factor)
        members: MinedMembers | None = None
        if isinstance(objective, AOQ) and self._encodes_together(batch):
            images, captions, members = self._encode_together(batch)
            second_loss: Any = 0.0
        else:
            images, captions, second_loss = self._encode_batch(batch)
            members = self._encode_members(batch) if isinstance(objective, AOQ) else None
        scalar = self._scalar(objective, images, captions, batch, members)
        (factor * (self.settings.objective_weight * scalar + second_loss)).backward()
        return Outcome(scalar.item(), images.detach(), captions.detach(), _detached(members))

    def _encode_members(self, batch: Batch) -> MinedMembers:
        items = _mined_of(batch)
        images = self.encode_images(items.images, items.image_lengths)
        return MinedMembers(images, self.encode_captions(items.captions, items.caption_lengths), items)

    def _encodes_together(self, batch: Batch) -> bool:
        """Whether batch and mined items can be encoded in one call: vectors, no second loss, no BatchNorm."""
        vectors = all(items.ndim == 2 and items.is_floating_point() for items in (batch.images, batch.captions))
        return bool(vectors and not self.auxiliary_weight and not has_batch_norm(self.model))

    def _encode_together(self, batch: Batch) -> tuple[Tensor, Tensor, MinedMembers]:
        """Encode batch and mined items in one call: one matrix product, and one gradient of the weights."""
        items = _mined_of(batch)
        images = self.encode_images(_concat_in_buffer(batch.images, items.images), None)
        captions = self.encode_captions(_concat_in_buffer(batch.captions, items.captions), None)
        own_images, mined_images = images.split([len(batch.images), len(items.images)])
        own_captions, mined_captions = captions.split([len(batch.captions), len(items.captions)])
        return own_images, own_captions, MinedMembers(mined_images, mined_captions, items, (images, captions))

    def encode_images(self, items: Tensor, lengths: Tensor | None) -> Float[Tensor, "image *rest"]:
        with self._autocast(items):
            encoded: Tensor = self._encode_images(items, lengths)
        return _widened(encoded)

    def encode_captions(self, items: Tensor, lengths: Tensor | None) -> Float[Tensor, "caption *rest"]:
        with self._autocast(items):
            encoded: Tensor = self._encode_captions(items, lengths)
        return _widened(encoded)

    def _scalar(
        self, objective: RowObjective, images: Tensor, captions: Tensor, batch: Batch, members: MinedMembers | None
    ) -> Float[Tensor, ""]:
        """Return the scalar whose backward is the pair gradient. Dot products may be streamed and all-gathered."""
        has_pair_masks = any(mask is not None for mask in (batch.ignored, batch.also_positive, batch.grades))
        if self.model.dot_product and not has_pair_masks:
            if members is not None and isinstance(objective, AOQ) and _fits_dense(images, captions):
                return members.scalar(objective, images, captions, batch.positives())
            scale, bias = scale_and_bias(self.model, objective, self.settings.objective_settings)
            given: dict[str, Any] = {"image_ids": batch.image_ids, "caption_ids": batch.caption_ids}
            given |= {"scale": scale, "bias": bias} | ({} if members is None else {"mined": members.pair_rows()})
            given |= {} if self.queue is None else {"queue": self.queue}
            given |= {"step": self.number} if objective.asks else {}
            return objective(images, captions, **given)
        if runtime.world()[1] == 1:
            similarity, positives = self._similarity(objective, images, captions), batch.weighted_positives()
            if objective.asks:
                objective = objective.given(facts_of(batch, images, captions, self.number))
            if members is not None and isinstance(objective, AOQ):
                mined = self._scaled(objective, members.similarity(self.model, images, captions, positives))
                return objective.on_similarity(similarity, positives, batch.ignored, mined=mined)
            return objective.on_similarity(similarity, positives, batch.ignored)
        if has_pair_masks:
            raise ValueError(
                "several processes support neither ignored pairs, positives with different ids nor --grades"
            )
        if objective.asks:
            raise ValueError(
                f"{objective.name} asks for facts of the batch, which several processes do not gather here"
            )
        # Each process compares its own images with the captions of all; the gathered rows are S.
        similarity = runtime.all_gather_items(self.model.similarity(images, runtime.all_gather_items(captions)))
        gathered_ids = [runtime.all_gather_items(ids) for ids in (batch.image_ids, batch.caption_ids)]
        positives = gathered_ids[0][:, None] == gathered_ids[1][None, :]
        if members is not None and isinstance(objective, AOQ):
            mined = all_gather_mined(self.model, images, captions, batch, members)
            return objective.on_similarity(similarity, positives, mined=mined)
        return objective.on_similarity(similarity, positives)

    def _similarity(self, objective: RowObjective, images: Tensor, captions: Tensor) -> Similarity:
        return self._scaled(objective, self.model.similarity(images, captions))

    def _scaled(self, objective: RowObjective, plain: Tensor) -> Tensor:
        """With the model's learned scale and bias, if the objective uses them."""
        return apply_scale(plain, self.model, objective, self.settings.objective_settings)

    def _step_cached(self, objective: RowObjective, batch: Batch, seed: int, factor: float) -> Outcome:
        """The step with GradCache."""
        assert self.settings.grad_cache is not None
        refuse_batch_norm(self.model, "--grad-cache would not be exact")
        chunk_size = self.settings.grad_cache
        images = CachedEncoding(self.encode_images, batch.images, batch.image_lengths, chunk_size, seed)
        captions = CachedEncoding(self.encode_captions, batch.captions, batch.caption_lengths, chunk_size, seed ^ 1)
        cached, members = [images, captions], None
        if isinstance(objective, AOQ):
            items = _mined_of(batch)
            cached += [
                CachedEncoding(self.encode_images, items.images, items.image_lengths, chunk_size, seed ^ 2),
                CachedEncoding(self.encode_captions, items.captions, items.caption_lengths, chunk_size, seed ^ 3),
            ]
            members = MinedMembers(cached[2].embeddings, cached[3].embeddings, items)
        scalar = self._scalar(objective, images.embeddings, captions.embeddings, batch, members)
        (factor * self.settings.objective_weight * scalar).backward()
        for encoding in cached:
            encoding.backward()
        return Outcome(scalar.item(), images.embeddings.detach(), captions.embeddings.detach(), _detached(members))

    def _encode_batch(
        self, batch: Batch
    ) -> tuple[Float[Tensor, "image *rest"], Float[Tensor, "caption *rest_of_caption"], Any]:
        """Return image and caption embeddings and the weighted auxiliary loss of the model, if it is used."""
        if not self.auxiliary_weight:
            images = self.encode_images(batch.images, batch.image_lengths)
            return images, self.encode_captions(batch.captions, batch.caption_lengths), 0.0
        assert isinstance(self.model, AuxiliaryLoss)
        with self._autocast(batch.images):
            images, captions, loss = self.model.encode_with_auxiliary_loss(
                batch.images, batch.image_lengths, batch.captions, batch.caption_lengths, batch.positives()
            )
        return _widened(images), _widened(captions), self.auxiliary_weight * loss

    def _autocast(self, items: Tensor) -> Any:
        if self.settings.precision not in HALF_PRECISION:
            return nullcontext()
        return torch.autocast(items.device.type, dtype=HALF_PRECISION[self.settings.precision])


def facts_of(batch: Batch, images: Tensor, captions: Tensor, number: int) -> BatchFacts:
    """What a user's objective may ask for."""
    return BatchFacts(batch.image_ids, batch.caption_ids, images.detach(), captions.detach(), number)


def _encode_dropped_cells(model: GridEncoder, fraction: float, pixels: Tensor, lengths: Tensor | None) -> Tensor:
    """Size augmentation of grid cells, which exist only after the backbone."""
    augmentation = SizeAugmentation(fraction, 0.0, grid=True)
    cells, counts = drop_regions(model.grid_cells(pixels), None, augmentation, torch.default_generator)
    return model.encode_regions(cells, counts)


def auxiliary_weight(model: RetrievalModel, settings: TrainSettings) -> float:
    """Return the weight of the model's own loss, 0 without one. Raises if the model cannot use the weight given."""
    kind = model.auxiliary_loss if isinstance(model, AuxiliaryLoss) else None
    if settings.caption_weight and kind != "captioning":
        raise ValueError("--caption-weight needs a VSRN with --model-settings captioner=true")
    if settings.itm_weight and kind != "matching":
        raise ValueError("--itm-weight needs a model with a matching head, such as X-VLM")
    return settings.caption_weight or settings.itm_weight


def _fits_dense(images: Tensor, captions: Tensor) -> bool:
    """Whether S is held as a whole next to mined members: it is small, and there are no other processes."""
    return runtime.world()[1] == 1 and len(images) * len(captions) <= MAX_DENSE_ENTRIES


def _mined_of(batch: Batch) -> MinedItems:
    assert batch.mined is not None
    return batch.mined


def _concat_in_buffer(own: Float[Tensor, "item dim"], mined: Float[Tensor, "mined dim"]) -> Float[Tensor, "both dim"]:
    """Concatenate into a reused buffer: a new tensor of this size costs a page fault per page."""
    if own.device.type != "cpu":
        return torch.cat([own, mined])
    return torch.cat([own, mined], out=_BUFFERS.borrow((len(own) + len(mined), own.shape[1]), own.dtype))


def _detached(members: MinedMembers | None) -> MinedMembers | None:
    return None if members is None else MinedMembers(members.images.detach(), members.captions.detach(), members.items)


def _widened(encoded: Tensor) -> Tensor:
    """To float32: similarities and their gradients never have half precision."""
    return encoded.float() if encoded.dtype in HALF_PRECISION.values() else encoded
