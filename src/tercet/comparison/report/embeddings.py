"""Embeddings of the evaluated split by trained models, and their similarities."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.comparison.plan import PreparedDatasets
from tercet.comparison.results import Results
from tercet.data.dataset import PairedData
from tercet.inference import load
from tercet.interfaces import RetrievalModel
from tercet.training.eval_loop import Encoded, encode_split

IMAGES_PER_BLOCK = 256


@dataclass(frozen=True)
class EmbeddedSplit:
    """The evaluated split, embedded by one trained model."""

    name: str
    model: RetrievalModel
    images: Encoded
    captions: Encoded
    owners: Int[Tensor, " caption"]

    def captions_for(self, image: int) -> Float[np.ndarray, " caption"]:
        return self._similarity(self.images[image : image + 1], self.captions[:])[0]

    def images_for(self, caption: int) -> Float[np.ndarray, " image"]:
        return self._similarity(self.images[:], self.captions[caption : caption + 1])[:, 0]

    def blocks(self) -> Iterator[tuple[slice, Float[np.ndarray, "image caption"]]]:
        """Blocks of rows of S, so that the full matrix is never in memory."""
        for start in range(0, len(self.images), IMAGES_PER_BLOCK):
            block = slice(start, start + IMAGES_PER_BLOCK)
            yield block, self._similarity(self.images[block], self.captions[:])

    @torch.inference_mode()
    def _similarity(self, images: Tensor, captions: Tensor) -> np.ndarray:
        return np.asarray(self.model.similarity(images, captions).float().cpu().numpy())


def embed_runs(
    results: Results, prepared_datasets: PreparedDatasets, names: Sequence[str], seed: int
) -> list[EmbeddedSplit]:
    """Embed the evaluated split with the runs of one seed."""
    models = {variant.name: variant.model for variant in results.variants}
    embedded = []
    for name in names:
        prepared = prepared_datasets[models[name]]
        data = evaluated_data(prepared.test, prepared.validation)
        model = load(results.runs[name][seed].folder).model.eval()
        embedded.append(EmbeddedSplit(name, model, *encode_split(model, data), data.owners))
    return embedded


def evaluated_data(test: PairedData | None, validation: PairedData | None) -> PairedData:
    """The split that runs are evaluated on: test, or validation if there is no test split."""
    data = test if test is not None else validation
    if data is None:
        raise ValueError("the data has neither a test nor a validation split: runs cannot be evaluated")
    return data


@dataclass(frozen=True)
class Similarities:
    """Similarity of each caption to its own image and to the most similar other image."""

    own: Float[np.ndarray, " caption"]
    hardest: Float[np.ndarray, " caption"]


def similarities(embedded: EmbeddedSplit) -> Similarities:
    owners = embedded.owners.numpy()
    captions = np.arange(len(owners))
    own = np.zeros(len(owners), dtype=np.float32)
    hardest = np.full(len(owners), -np.inf, dtype=np.float32)
    for block, S in embedded.blocks():
        in_block = (owners >= block.start) & (owners < block.stop)
        rows = owners[in_block] - block.start
        own[in_block] = S[rows, captions[in_block]]
        S[rows, captions[in_block]] = -np.inf
        hardest = np.maximum(hardest, S.max(axis=0))
    return Similarities(own, hardest)
