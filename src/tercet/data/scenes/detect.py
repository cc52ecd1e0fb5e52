"""Frozen encoders of the world: noisy detections with boxes, and one vector for the whole scene."""

import numpy as np
from jaxtyping import Float

from tercet.data.scenes.world import ABSENT, ATTRIBUTES, BACKGROUNDS, MOST_THINGS, SHAPE, World

DIM = 256
REGIONS = 12
MISSED, TWICE = 0.05, 0.3  # how often a thing is not detected, or detected twice
BOX_NOISE = 0.02
# How much noise drowns what is seen. Set on triplet-sh alone, before any other objective was run on this world.
REGION_NOISE, SCENE_NOISE = 0.5, 0.6


def _encoder() -> list[Float[np.ndarray, "value dim"]]:
    """Random vectors for every attribute value and background: the same encoder for every split."""
    random = np.random.default_rng(1)
    return [random.standard_normal((len(table), DIM)).astype(np.float32) for table in (*ATTRIBUTES, BACKGROUNDS)]


def _look(world: World) -> Float[np.ndarray, "scene thing dim"]:
    """A thing is a squashed mix of its attributes and of where it stands; an absent one is nothing."""
    *tables, _ = _encoder()
    weights = (1.0, 1.0, 0.7, 0.7)
    mix = sum(
        weight * table[world.things[..., a]] for a, (weight, table) in enumerate(zip(weights, tables, strict=True))
    )
    where = np.random.default_rng(2).standard_normal((2, DIM)).astype(np.float32)
    mix = mix + 2.0 * (world.centres - 0.5).astype(np.float32) @ where
    return np.tanh(mix) * (world.things[..., SHAPE] != ABSENT)[..., None]


def see_scenes(world: World, random: np.random.Generator) -> Float[np.ndarray, "scene dim"]:
    """The sum of what is there and some background, in noise, of length 1."""
    seen = _look(world).sum(axis=1) + 0.7 * _encoder()[-1][world.backgrounds]
    seen += SCENE_NOISE * seen.std() * random.standard_normal(seen.shape, dtype=np.float32)
    return seen / np.linalg.norm(seen, axis=1, keepdims=True)


def see_regions(
    world: World, random: np.random.Generator
) -> tuple[Float[np.ndarray, "scene region dim"], Float[np.ndarray, "scene region 4"]]:
    """Detections in random order: things (some missed, some twice) and, for the rest, patches of background."""
    count = len(world)
    looks, boxes = _look(world), world.boxes()
    candidates = np.concatenate([np.arange(MOST_THINGS), np.arange(MOST_THINGS)])  # each thing, and its double
    there = world.things[:, candidates, SHAPE] != ABSENT
    chance = np.repeat([1 - MISSED, TWICE], MOST_THINGS)
    detected = there & (random.random(there.shape) < chance)
    features = np.repeat(_encoder()[-1][world.backgrounds][:, None], REGIONS, axis=1)
    corner = random.uniform(0, 0.7, (count, REGIONS, 2))
    found = np.concatenate([corner, corner + random.uniform(0.1, 0.3, (count, REGIONS, 2))], axis=-1)
    scene, slot = np.nonzero(detected)
    features[scene, slot], found[scene, slot] = looks[scene, candidates[slot]], boxes[scene, candidates[slot]]
    features += REGION_NOISE * features.std() * random.standard_normal(features.shape, dtype=np.float32)
    found = np.clip(found + BOX_NOISE * random.standard_normal(found.shape), 0, 1).astype(np.float32)
    order = random.permuted(np.tile(np.arange(REGIONS), (count, 1)), axis=1)
    return np.take_along_axis(features, order[..., None], axis=1), np.take_along_axis(found, order[..., None], axis=1)
