"""Pictures of scenes, drawn when they are asked for."""

import io
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageChops, ImageDraw

from tercet.data.scenes.world import ABSENT, COLOUR, EXTENT, PATTERN, SHAPE, SIZE, World

SIDE = 96
RGB = (
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
TEXTURE = 14  # how much backgrounds waver


@dataclass(frozen=True)
class Drawing:
    """One scene as the bytes of a PNG file, always the same."""

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
    picture = Image.fromarray(np.clip(ground, 0, 255).astype(np.uint8))
    for thing, centre in zip(world.things[scene], world.centres[scene], strict=True):
        if thing[SHAPE] != ABSENT:
            colour = RGB[thing[COLOUR]]
            stencil = _stencil(int(thing[SHAPE]), centre * SIDE, EXTENT[thing[SIZE]] * SIDE)
            picture.paste(colour, mask=stencil)
            shade = tuple(value // 3 if sum(colour) > 150 else value + 130 for value in colour)
            picture.paste(shade, mask=ImageChops.multiply(stencil, _pattern(int(thing[PATTERN]))))
    return picture


def _pattern(pattern: int) -> Image.Image:
    """What is painted over a thing: nothing, stripes or dots."""
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
    """Corners in a square from -1 to 1."""
    square = [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)]
    triangle = [(0.0, -1.0), (1.0, 0.9), (-1.0, 0.9)]
    radius = [1.0 if point % 2 == 0 else 0.42 for point in range(10)]
    turn = [np.pi * point / 5 for point in range(10)]
    star = [(float(r * np.sin(t)), float(-r * np.cos(t))) for r, t in zip(radius, turn, strict=True)]
    upright = [(-0.3, -1.0), (0.3, -1.0), (0.3, 1.0), (-0.3, 1.0)]
    lying = [(down, across) for across, down in upright]
    diamond = [(0.0, -1.0), (0.7, 0.0), (0.0, 1.0), (-0.7, 0.0)]
    return {1: [square], 2: [triangle], 3: [star], 5: [upright, lying], 6: [diamond], 7: [lying]}[shape]
