"""`scenes`: a small generated world of coloured shapes with ambiguous captions; it needs no files."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tercet.data.features import FeatureSet, bag_of_words_features

DIM = 256
# How much a detector's noise drowns the scene. Set on triplet-sh alone, before any other objective was run.
NOISE = 1.3

# Every attribute value with the words that may stand for it.
SHAPES = (("circle", "disc"), ("square", "box"), ("triangle",), ("star",), ("ring", "hoop"), ("cross",), ("heart",))
COLOURS = (("red", "crimson"), ("blue",), ("green",), ("yellow", "golden"), ("black", "dark"), ("white",), ("purple",))
SIZES = (("small", "tiny"), ("", "medium"), ("large", "big"))
BACKGROUNDS = (("sand",), ("grass", "meadow"), ("snow",), ("water", "sea"), ("brick",))
RELATIONS = ("next to", "beside", "with", "and")


@dataclass(frozen=True)
class Scene:
    """Two or three things (shape, colour, size) before a background, all as indices into the tables above."""

    things: tuple[tuple[int, int, int], ...]
    background: int


def scenes(split: str, count: int, captions_each: int = 5) -> FeatureSet:
    """The same split and count always give the same scenes; splits never share a random stream."""
    random = np.random.default_rng([int.from_bytes(split.encode(), "big") % 2**63, 7])
    world = [_compose(random) for _ in range(count)]
    texts = [_describe(scene, random) for scene in world for _ in range(captions_each)]
    return FeatureSet(
        name="scenes",
        images=_image_features(world, random),
        captions=bag_of_words_features(texts, DIM),
        owners=torch.arange(count).repeat_interleave(captions_each),
        texts=tuple(texts),
    )


def _compose(random: np.random.Generator) -> Scene:
    things = tuple(
        (int(random.integers(len(SHAPES))), int(random.integers(len(COLOURS))), int(random.integers(len(SIZES))))
        for _ in range(random.integers(2, 4))
    )
    return Scene(things, int(random.integers(len(BACKGROUNDS))))


def _describe(scene: Scene, random: np.random.Generator) -> str:
    """Some of the scene in some of its words: two scenes can share a caption, as two photos can."""
    told = random.permutation(len(scene.things))[: random.integers(1, len(scene.things) + 1)]
    phrases = [_name_thing(scene.things[index], random) for index in told]
    relation = f" {_one_of(RELATIONS, random)} "
    background = f" on {_one_of(BACKGROUNDS[scene.background], random)}" if random.random() < 0.6 else ""
    return relation.join(phrases) + background


def _name_thing(thing: tuple[int, int, int], random: np.random.Generator) -> str:
    shape, colour, size = thing
    words = [_one_of(SIZES[size], random)] if random.random() < 0.6 else []
    if random.random() < 0.8:
        words.append(_one_of(COLOURS[colour], random))
    return " ".join(["a", *filter(None, words), _one_of(SHAPES[shape], random)])


def _image_features(world: list[Scene], random: np.random.Generator) -> Float[Tensor, "image dim"]:
    """A frozen image encoder: each thing is a squashed mix of its attributes; the image is their noisy sum."""
    encoder = np.random.default_rng(1)  # the same encoder for every split
    shape, colour, size, background = (
        encoder.standard_normal((len(table), DIM)) for table in (SHAPES, COLOURS, SIZES, BACKGROUNDS)
    )
    features = np.stack(
        [
            sum(np.tanh(shape[s] + colour[c] + 0.7 * size[z]) for s, c, z in scene.things)
            + 0.5 * background[scene.background]
            for scene in world
        ]
    )
    features += NOISE * features.std() * random.standard_normal(features.shape)
    return torch.nn.functional.normalize(torch.from_numpy(features).float(), dim=1)


def _one_of(words: tuple[str, ...], random: np.random.Generator) -> str:
    return words[random.integers(len(words))]
