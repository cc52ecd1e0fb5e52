"""The world: what things there are, where they stand, and how two of them relate. All of it as arrays."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

# Every value of an attribute with the words that may stand for it.
SHAPES = (
    ("circle", "disc"),
    ("square", "box"),
    ("triangle",),
    ("star",),
    ("ring", "hoop"),
    ("cross",),
    ("diamond", "rhombus"),
    ("bar", "plank"),
)
COLOURS = (
    ("red", "crimson"),
    ("blue",),
    ("green",),
    ("yellow", "golden"),
    ("black", "dark"),
    ("white", "pale"),
    ("purple", "violet"),
    ("orange",),
)
SIZES = (("small", "little", "tiny"), ("medium",), ("large", "big"))
PATTERNS = (("plain",), ("striped", "lined"), ("dotted", "spotted"))
ATTRIBUTES = (SHAPES, COLOURS, SIZES, PATTERNS)
SHAPE, COLOUR, SIZE, PATTERN = range(len(ATTRIBUTES))
BACKGROUNDS = (("sand", "a beach"), ("grass", "a meadow"), ("snow",), ("water", "the sea"), ("brick", "a wall"))
RELATIONS = (("left of",), ("right of",), ("above", "over"), ("below", "under"))
LEFT, RIGHT, ABOVE, BELOW = range(len(RELATIONS))
OPPOSITE = np.array([RIGHT, LEFT, BELOW, ABOVE])

MOST_THINGS = 4
ABSENT = -1
EXTENT = np.array([0.06, 0.09, 0.12])  # half the side of a thing by its size, as a share of the picture
CLEAR = 0.12  # two things must be this far apart in a direction for a relation to be plain


@dataclass(frozen=True)
class World:
    """Scenes of two to four things before a background. Values index the tables above; absent things are -1."""

    things: Int[np.ndarray, "scene thing attribute"]
    centres: Float[np.ndarray, "scene thing 2"]
    """x to the right, y down, 0 to 1."""
    backgrounds: Int[np.ndarray, " scene"]

    def __len__(self) -> int:
        return len(self.backgrounds)

    def counts(self) -> Int[np.ndarray, " scene"]:
        return (self.things[:, :, SHAPE] != ABSENT).sum(axis=1)

    def boxes(self) -> Float[np.ndarray, "scene thing 4"]:
        """Left, top, right, bottom; of absent things, nothing."""
        half = EXTENT[self.things[:, :, SIZE]][..., None] * (self.things[:, :, SHAPE] != ABSENT)[..., None]
        return np.concatenate([self.centres - half, self.centres + half], axis=-1)


def compose(count: int, random: np.random.Generator) -> World:
    """Things stand in different cells of a 3 x 3 board, a little off its centres, so that none hides another."""
    present = np.arange(MOST_THINGS) < random.integers(2, MOST_THINGS + 1, size=(count, 1))
    things = np.stack([random.integers(len(table), size=(count, MOST_THINGS)) for table in ATTRIBUTES], axis=-1)
    cells = random.permuted(np.tile(np.arange(9), (count, 1)), axis=1)[:, :MOST_THINGS]
    centres = (
        np.stack([cells % 3, cells // 3], axis=-1) * 0.3 + 0.2 + random.uniform(-0.03, 0.03, (count, MOST_THINGS, 2))
    )
    return World(
        things=np.where(present[..., None], things, ABSENT),
        centres=centres,
        backgrounds=random.integers(len(BACKGROUNDS), size=count),
    )


def relations(world: World) -> Int[np.ndarray, "scene thing thing_b"]:
    """Bit r of entry (scene, a, b) is set where "a is r of b" is plainly true. Both left of and above can be."""
    apart = world.centres[:, :, None] - world.centres[:, None, :]  # a minus b
    x, y = apart[..., 0], apart[..., 1]
    held = (x < -CLEAR, x > CLEAR, y < -CLEAR, y > CLEAR)
    return np.sum([np.where(holds, 1 << relation, 0) for relation, holds in enumerate(held)], axis=0)
