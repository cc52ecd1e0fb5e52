"""What the report shows beyond numbers: similarities and retrieved items, from the weights of one seed's runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.comparison.plan import Readies
from tercet.comparison.results import Results
from tercet.data.pairs import PairedData
from tercet.retriever import load
from tercet.training.validation import Encoded, encoded

IMAGES_AT_ONCE = 256


@dataclass(frozen=True)
class Embedded:
    """The held-out items as one trained model sees them."""

    name: str
    model: Any
    images: Encoded
    captions: Encoded
    owners: Int[Tensor, " caption"]

    def captions_for(self, image: int) -> Float[np.ndarray, " caption"]:
        return self._similarity(self.images[image : image + 1], self.captions[:])[0]

    def images_for(self, caption: int) -> Float[np.ndarray, " image"]:
        return self._similarity(self.images[:], self.captions[caption : caption + 1])[:, 0]

    def blocks(self) -> Iterator[tuple[slice, Float[np.ndarray, "image caption"]]]:
        """S, some images at a time: it is never held whole."""
        for start in range(0, len(self.images), IMAGES_AT_ONCE):
            block = slice(start, start + IMAGES_AT_ONCE)
            yield block, self._similarity(self.images[block], self.captions[:])

    @torch.inference_mode()
    def _similarity(self, images: Tensor, captions: Tensor) -> np.ndarray:
        return np.asarray(self.model.similarity(images, captions).float().cpu().numpy())


def embed(results: Results, readies: Readies, names: Sequence[str], seed: int) -> list[Embedded]:
    """By the runs of this seed."""
    models = {contestant.name: contestant.model for contestant in results.contestants}
    found = []
    for name in names:
        ready = readies[models[name]]
        data = held_out(ready.test, ready.validation)
        model = load(results.runs[name][seed].folder).model.eval()
        found.append(Embedded(name, model, *encoded(model, data), data.owners))
    return found


def held_out(test: PairedData | None, validation: PairedData | None) -> PairedData:
    """What the runs were evaluated on."""
    data = test if test is not None else validation
    if data is None:
        raise ValueError("the data has neither a test nor a validation split: there is nothing to compare on")
    return data


@dataclass(frozen=True)
class Similarities:
    """One number a caption: with its own image, and with the nearest other one."""

    own: Float[np.ndarray, " caption"]
    hardest: Float[np.ndarray, " caption"]


def similarities(embedded: Embedded) -> Similarities:
    owners = embedded.owners.numpy()
    captions = np.arange(len(owners))
    own = np.zeros(len(owners), dtype=np.float32)
    hardest = np.full(len(owners), -np.inf, dtype=np.float32)
    for block, S in embedded.blocks():
        inside = (owners >= block.start) & (owners < block.stop)
        rows = owners[inside] - block.start
        own[inside] = S[rows, captions[inside]]
        S[rows, captions[inside]] = -np.inf
        hardest = np.maximum(hardest, S.max(axis=0))
    return Similarities(own, hardest)
