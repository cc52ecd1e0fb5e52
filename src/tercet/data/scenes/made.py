"""Scenes as a data set like any other."""

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tercet.data.dataset import DataSet, Split
from tercet.data.pictures import Pictures
from tercet.data.rows import Rows
from tercet.data.scenes.captions import Claims, claim, put_in_words
from tercet.data.scenes.detect import see_regions, see_scenes
from tercet.data.scenes.draw import Drawing
from tercet.data.scenes.truth import pick, pick_claims, true_pairs
from tercet.data.scenes.world import World, compose
from tercet.data.text.bag_of_words import bag_of_words

TEXT_DIM = 256
SPLITS = {"train": 1.0, "val": 1 / 3, "test": 1 / 3}  # scenes of each, as shares of those for training


@dataclass(frozen=True)
class Scenes:
    """One split of the world. What follows is made when it is first asked for."""

    split: str
    count: int
    captions_each: int = 5

    def _random(self, purpose: int) -> np.random.Generator:
        """Splits and purposes never share a random stream; that of a purpose does not depend on the others."""
        return np.random.default_rng([int.from_bytes(self.split.encode(), "big") % 2**63, purpose])

    @functools.cached_property
    def world(self) -> World:
        return compose(self.count, self._random(0))

    @functools.cached_property
    def owners(self) -> Int[np.ndarray, " caption"]:
        return np.repeat(np.arange(self.count), self.captions_each)

    @functools.cached_property
    def claims(self) -> Claims:
        return claim(self.world, self.owners, self._random(1))

    @functools.cached_property
    def texts(self) -> tuple[str, ...]:
        return tuple(put_in_words(self.claims, self._random(2)))

    @functools.cached_property
    def true_pairs(self) -> Bool[np.ndarray, "image caption"]:
        """Which captions are true of which scenes: their own, and all that happen to fit."""
        return true_pairs(self.world, self.claims)

    def truth(self, images: Int[Tensor, " image"], captions: Int[Tensor, " caption"]) -> Bool[Tensor, "image caption"]:
        """The same for the items of a batch, and only for them."""
        world, claims = pick(self.world, images.numpy()), pick_claims(self.claims, captions.numpy())
        return torch.from_numpy(true_pairs(world, claims))

    def as_split(self, features: str = "global") -> Split:
        """With `global` features (scene dim) or `regions` (scene region dim) and their boxes."""
        boxes = None
        if features == "global":
            seen = see_scenes(self.world, self._random(3))
        elif features == "regions":
            seen, found = see_regions(self.world, self._random(4))
            boxes = Rows((found,), f"boxes of scenes {self.split}")
        else:
            raise ValueError(f"scenes have features global or regions, not {features!r}")
        names = tuple(f"{self.split}_{scene:06d}.png" for scene in range(self.count))
        return Split(
            image_names=names,
            texts=self.texts,
            owners=self.owners,
            pictures=Pictures([Drawing(self.world, scene, name) for scene, name in enumerate(names)]),
            features=Rows((seen,), f"{features} features of scenes {self.split}"),
            caption_features=Rows((bag_of_words(self.texts, TEXT_DIM),), f"captions of scenes {self.split}"),
            boxes=boxes,
            truth=self.truth,
        )


def scenes(split: str, count: int, captions_each: int = 5) -> Scenes:
    """The same split, count and number of captions always give the same scenes."""
    if count < 1 or captions_each < 1:
        raise ValueError(f"expected at least one scene with one caption, got {count} with {captions_each}")
    return Scenes(split, count, captions_each)


def scenes_data_set(count: int = 3000, features: str = "global") -> DataSet:
    """Train, val and test; the last two hold a third as many scenes."""
    if count < 3:
        raise ValueError(f"expected at least 3 scenes to train on, got {count}")
    made = {split: scenes(split, round(count * share)).as_split(features) for split, share in SPLITS.items()}
    return DataSet(Path(f"scenes:{count}"), "scenes", made)
