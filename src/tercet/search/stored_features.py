"""Features of `tercet features` by the content of their image: an index of the photos that a model was trained on
embeds them without decoding or encoding any of them again.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tercet.data.encoders.extract import checksums_of_images, encoders_of
from tercet.data.feature_array import FeatureArray
from tercet.data.formats import open_data
from tercet.data.formats.precomp import MANIFEST
from tercet.inference import Retriever
from tercet.search.two_stage import IndexedVectors, encode_features_for_index


class StoredFeatures:
    """The features of a model's image encoder in these folders; those of other encoders and formats are passed over."""

    def __init__(self, retriever: Retriever, folders: Iterable[Path]) -> None:
        self.retriever = retriever
        self._rows: dict[str, tuple[FeatureArray, int]] = {}
        encoder = (retriever.preprocessor.image_encoder, retriever.preprocessor.grid)
        for folder in folders:
            if encoder[0] is None or not (folder / MANIFEST).is_file() or encoders_of(folder).images != encoder:
                continue
            for name, split in open_data(folder).splits.items():
                if split.features is not None and split.features.lengths is None:
                    checksums = checksums_of_images(folder, name)
                    self._rows.update((checksum, (split.features, row)) for row, checksum in enumerate(checksums))

    def __contains__(self, checksum: str) -> bool:
        return checksum in self._rows

    def embed(self, checksums: Sequence[str]) -> IndexedVectors:
        return encode_features_for_index(self.retriever, torch.stack([self._row(checksum) for checksum in checksums]))

    def _row(self, checksum: str) -> Tensor:
        features, row = self._rows[checksum]
        return torch.from_numpy(features.raw(np.array([row]))[0].astype(np.float32))
