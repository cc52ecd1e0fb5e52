"""Rendering of scenes as images, and simulated frozen encoders: noisy detections with boxes, or one global vector."""

import io
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from PIL import Image, ImageChops, ImageDraw

from tercet.data.scenes.world import (
    ABSENT,
    ATTRIBUTES,
    BACKGROUNDS,
    COLOUR,
    EXTENT,
    MAX_OBJECTS,
    PATTERN,
    SHAPE,
    SIZE,
    World,
)

SIDE = 96
RGB = (  # by colour
    (214, 40, 40),
    (38, 84, 196),
    (44, 150, 70),
    (246, 208, 50),
    (28, 28, 30),
    (250, 250, 250),
    (130, 60, 170),
    (240, 130, 40),
)
GROUND = ((226, 202, 150), (140, 190, 110), (232, 238, 246), (110, 170, 215), (170, 96, 80))
TEXTURE = 14  # standard deviation of the background noise

DIM = 256
REGIONS = 12
MISSED, TWICE = 0.05, 0.3  # probability that an object is not detected, or detected twice
BOX_NOISE = 0.02
# Relative noise of the features. Tuned with triplet-sh alone, before any other objective was run on this world.
REGION_NOISE, SCENE_NOISE = 0.5, 0.6


@dataclass(frozen=True)
class Drawing:
    """Image source of one scene, rendered as PNG on access; deterministic."""

    world: World
    scene: int
    name: str

    def content(self) -> bytes:
        stream = io.BytesIO()
        draw(self.world, self.scene).save(stream, format="PNG")
        return stream.getvalue()

    def __str__(self) -> str:
        return f"scenes, {self.name}"


def draw(world: World, scene: int) -> Image.Image:
    random = np.random.default_rng([scene, int(world.backgrounds[scene])])
    ground = np.array(GROUND[world.backgrounds[scene]]) + random.normal(0, TEXTURE, (SIDE, SIDE, 1))
    image = Image.fromarray(np.clip(ground, 0, 255).astype(np.uint8))
    for obj, centre in zip(world.objects[scene], world.centres[scene], strict=True):
        if obj[SHAPE] != ABSENT:
            colour = RGB[obj[COLOUR]]
            stencil = _stencil(int(obj[SHAPE]), centre * SIDE, EXTENT[obj[SIZE]] * SIDE)
            image.paste(colour, mask=stencil)
            shade = tuple(value // 3 if sum(colour) > 150 else value + 130 for value in colour)
            image.paste(shade, mask=ImageChops.multiply(stencil, _pattern(int(obj[PATTERN]))))
    return image


def _pattern(pattern: int) -> Image.Image:
    """Mask of the pattern: plain, striped or dotted."""
    y, x = np.mgrid[:SIDE, :SIDE]
    painted = (np.zeros_like(x, dtype=bool), (x + y) % 7 < 2, (x % 6 < 3) & (y % 6 < 3))[pattern]
    return Image.fromarray((painted * 255).astype(np.uint8))


def _stencil(shape: int, centre: np.ndarray, half: float) -> Image.Image:
    stencil = Image.new("L", (SIDE, SIDE))
    pen = ImageDraw.Draw(stencil)
    (x, y), box = centre, [*(centre - half), *(centre + half)]
    if shape == 0:
        pen.ellipse(box, fill=255)
    elif shape == 4:
        pen.ellipse(box, outline=255, width=max(2, int(half / 2.5)))
    else:
        for corners in _polygons(shape):
            pen.polygon([(x + half * across, y + half * down) for across, down in corners], fill=255)
    return stencil


def _polygons(shape: int) -> list[list[tuple[float, float]]]:
    """Corner coordinates from -1 to 1."""
    square = [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)]
    triangle = [(0.0, -1.0), (1.0, 0.9), (-1.0, 0.9)]
    radius = [1.0 if point % 2 == 0 else 0.42 for point in range(10)]
    turn = [np.pi * point / 5 for point in range(10)]
    star = [(float(r * np.sin(t)), float(-r * np.cos(t))) for r, t in zip(radius, turn, strict=True)]
    upright = [(-0.3, -1.0), (0.3, -1.0), (0.3, 1.0), (-0.3, 1.0)]
    horizontal = [(down, across) for across, down in upright]
    diamond = [(0.0, -1.0), (0.7, 0.0), (0.0, 1.0), (-0.7, 0.0)]
    return {1: [square], 2: [triangle], 3: [star], 5: [upright, horizontal], 6: [diamond], 7: [horizontal]}[shape]


def _encoder() -> list[Float[np.ndarray, "value dim"]]:
    """Fixed random vectors for every attribute value and background, the same for all splits."""
    random = np.random.default_rng(1)
    return [random.standard_normal((len(table), DIM)).astype(np.float32) for table in (*ATTRIBUTES, BACKGROUNDS)]


def _object_features(world: World) -> Float[np.ndarray, "scene object dim"]:
    """tanh of a weighted sum of the attribute vectors and the projected position; 0 for absent objects."""
    *tables, _ = _encoder()
    weights = (1.0, 1.0, 0.7, 0.7)
    mix = sum(
        weight * table[world.objects[..., a]] for a, (weight, table) in enumerate(zip(weights, tables, strict=True))
    )
    projection = np.random.default_rng(2).standard_normal((2, DIM)).astype(np.float32)
    mix = mix + 2.0 * (world.centres - 0.5).astype(np.float32) @ projection
    return np.tanh(mix) * (world.objects[..., SHAPE] != ABSENT)[..., None]


def encode_scenes(world: World, random: np.random.Generator) -> Float[np.ndarray, "scene dim"]:
    """Global features: the normalized sum of object features, background and noise."""
    features = _object_features(world).sum(axis=1) + 0.7 * _encoder()[-1][world.backgrounds]
    features += SCENE_NOISE * features.std() * random.standard_normal(features.shape, dtype=np.float32)
    return features / np.linalg.norm(features, axis=1, keepdims=True)


def encode_regions(
    world: World, random: np.random.Generator
) -> tuple[Float[np.ndarray, "scene region dim"], Float[np.ndarray, "scene region 4"]]:
    """Region features and boxes in random order: objects (some missed, some detected twice) and background patches."""
    count = len(world)
    object_features, object_boxes = _object_features(world), world.boxes()
    candidates = np.concatenate([np.arange(MAX_OBJECTS), np.arange(MAX_OBJECTS)])  # first and second detections
    present = world.objects[:, candidates, SHAPE] != ABSENT
    probability = np.repeat([1 - MISSED, TWICE], MAX_OBJECTS)
    detected = present & (random.random(present.shape) < probability)
    features = np.repeat(_encoder()[-1][world.backgrounds][:, None], REGIONS, axis=1)
    corner = random.uniform(0, 0.7, (count, REGIONS, 2))
    boxes = np.concatenate([corner, corner + random.uniform(0.1, 0.3, (count, REGIONS, 2))], axis=-1)
    scene, slot = np.nonzero(detected)
    features[scene, slot] = object_features[scene, candidates[slot]]
    boxes[scene, slot] = object_boxes[scene, candidates[slot]]
    features += REGION_NOISE * features.std() * random.standard_normal(features.shape, dtype=np.float32)
    boxes = np.clip(boxes + BOX_NOISE * random.standard_normal(boxes.shape), 0, 1).astype(np.float32)
    order = random.permuted(np.tile(np.arange(REGIONS), (count, 1)), axis=1)
    return np.take_along_axis(features, order[..., None], axis=1), np.take_along_axis(boxes, order[..., None], axis=1)
