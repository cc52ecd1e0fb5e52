"""Generated scenes as a dataset."""

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tercet.data.dataset import DataSet, Split
from tercet.data.encoders.registry import bag_of_words
from tercet.data.feature_array import FeatureArray
from tercet.data.image_io import ImageFiles
from tercet.data.scenes.render import Drawing, encode_regions, encode_scenes
from tercet.data.scenes.world import (
    Claims,
    World,
    generate_captions,
    generate_claims,
    generate_scenes,
    select_claims,
    select_scenes,
    true_pairs,
)

TEXT_DIM = 256
SPLITS = {"train": 1.0, "val": 1 / 3, "test": 1 / 3}  # number of scenes relative to train


@dataclass(frozen=True)
class Scenes:
    """One split of generated scenes. All properties are computed on first access."""

    split: str
    count: int
    captions_per_image: int = 5

    def _random(self, purpose: int) -> np.random.Generator:
        """A separate random stream for each split and purpose."""
        return np.random.default_rng([int.from_bytes(self.split.encode(), "big") % 2**63, purpose])

    @functools.cached_property
    def world(self) -> World:
        return generate_scenes(self.count, self._random(0))

    @functools.cached_property
    def owners(self) -> Int[np.ndarray, " caption"]:
        return np.repeat(np.arange(self.count), self.captions_per_image)

    @functools.cached_property
    def claims(self) -> Claims:
        return generate_claims(self.world, self.owners, self._random(1))

    @functools.cached_property
    def texts(self) -> tuple[str, ...]:
        return tuple(generate_captions(self.claims, self._random(2)))

    @functools.cached_property
    def true_pairs(self) -> Bool[np.ndarray, "image caption"]:
        """Which captions are true of which scenes, their own or others."""
        return true_pairs(self.world, self.claims)

    def truth(self, images: Int[Tensor, " image"], captions: Int[Tensor, " caption"]) -> Bool[Tensor, "image caption"]:
        """The same for the items of a batch."""
        world, claims = select_scenes(self.world, images.numpy()), select_claims(self.claims, captions.numpy())
        return torch.from_numpy(true_pairs(world, claims))

    def as_split(self, features: str = "global") -> Split:
        """With `global` features (scene dim) or `regions` (scene region dim) and their boxes."""
        boxes = None
        if features == "global":
            array = encode_scenes(self.world, self._random(3))
        elif features == "regions":
            array, box_array = encode_regions(self.world, self._random(4))
            boxes = FeatureArray((box_array,), f"boxes of scenes {self.split}")
        else:
            raise ValueError(f"features of scenes must be global or regions, got {features!r}")
        names = tuple(f"{self.split}_{scene:06d}.png" for scene in range(self.count))
        return Split(
            image_names=names,
            texts=self.texts,
            owners=self.owners,
            image_files=ImageFiles([Drawing(self.world, scene, name) for scene, name in enumerate(names)]),
            features=FeatureArray((array,), f"{features} features of scenes {self.split}"),
            caption_features=FeatureArray((bag_of_words(self.texts, TEXT_DIM),), f"captions of scenes {self.split}"),
            boxes=boxes,
            truth=self.truth,
        )


def scenes(split: str, count: int, captions_per_image: int = 5) -> Scenes:
    """Generate a split. The same arguments always give the same scenes."""
    if count < 1 or captions_per_image < 1:
        raise ValueError(f"count and captions_per_image must be at least 1, got {count} and {captions_per_image}")
    return Scenes(split, count, captions_per_image)


@functools.lru_cache(maxsize=2)  # nothing in it is ever modified, and every run of a comparison opens it
def scenes_data_set(count: int = 3000, features: str = "global") -> DataSet:
    """Splits train, val and test; val and test have a third as many scenes as train."""
    if count < 3:
        raise ValueError(f"expected at least 3 training scenes, got {count}")
    splits = {split: scenes(split, round(count * share)).as_split(features) for split, share in SPLITS.items()}
    return DataSet(Path(f"scenes:{count}"), "scenes", splits)
