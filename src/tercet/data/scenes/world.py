"""The generated world as arrays: scenes of objects, captions as claims about a scene, and which claims are true.

A caption mentions some of the objects, attributes and relations of its scene, in one of several wordings. Because
claims are structured, every false negative of the dataset is known.
"""

from dataclasses import dataclass, fields
from itertools import permutations

import numpy as np
from jaxtyping import Bool, Float, Int

# Attribute values, each with its synonyms.
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

MAX_OBJECTS = 4
ABSENT = -1
EXTENT = np.array([0.06, 0.09, 0.12])  # half the side of an object by size, as a fraction of the image side
MIN_DISTANCE = 0.12  # minimum distance in a direction for a relation to hold

MAX_MENTIONED = 2  # objects per caption
UNSPECIFIED = ABSENT
# Probability that an attribute of a mentioned object is specified: shape, colour, size, pattern.
MENTION_PROBABILITIES = (0.95, 0.9, 0.5, 0.45)
COUNT_WORDS = {2: ("two",), 3: ("three",), 4: ("four",)}
CONJUNCTIONS = ("and", "with")
OBJECT_NOUNS = ("thing", "shape", "object")
BLOCK_SIZE = 256  # scenes per block, so that 3,000 x 15,000 pairs need only a few hundred MB


@dataclass(frozen=True)
class World:
    """Scenes of two to four objects on a background. Values index the tables above; absent objects are -1."""

    objects: Int[np.ndarray, "scene object attribute"]
    centres: Float[np.ndarray, "scene object 2"]
    """x to the right, y down, 0 to 1."""
    backgrounds: Int[np.ndarray, " scene"]

    def __len__(self) -> int:
        return len(self.backgrounds)

    def counts(self) -> Int[np.ndarray, " scene"]:
        """Number of objects per scene."""
        return (self.objects[:, :, SHAPE] != ABSENT).sum(axis=1)

    def boxes(self) -> Float[np.ndarray, "scene object 4"]:
        """Left, top, right, bottom; empty boxes for absent objects."""
        half = EXTENT[self.objects[:, :, SIZE]][..., None] * (self.objects[:, :, SHAPE] != ABSENT)[..., None]
        return np.concatenate([self.centres - half, self.centres + half], axis=-1)


def generate_scenes(count: int, random: np.random.Generator) -> World:
    """Random scenes. Objects are in different cells of a 3 x 3 grid, near the cell centers, so that none overlap."""
    present = np.arange(MAX_OBJECTS) < random.integers(2, MAX_OBJECTS + 1, size=(count, 1))
    objects = np.stack([random.integers(len(table), size=(count, MAX_OBJECTS)) for table in ATTRIBUTES], axis=-1)
    cells = random.permuted(np.tile(np.arange(9), (count, 1)), axis=1)[:, :MAX_OBJECTS]
    centres = (
        np.stack([cells % 3, cells // 3], axis=-1) * 0.3 + 0.2 + random.uniform(-0.03, 0.03, (count, MAX_OBJECTS, 2))
    )
    return World(
        objects=np.where(present[..., None], objects, ABSENT),
        centres=centres,
        backgrounds=random.integers(len(BACKGROUNDS), size=count),
    )


def relations(world: World) -> Int[np.ndarray, "scene object object_b"]:
    """Bit r of entry (scene, a, b) is set if "a is r of b" holds. Several bits can be set: left of and above."""
    offset = world.centres[:, :, None] - world.centres[:, None, :]  # a minus b
    x, y = offset[..., 0], offset[..., 1]
    holds = (x < -MIN_DISTANCE, x > MIN_DISTANCE, y < -MIN_DISTANCE, y > MIN_DISTANCE)
    return np.sum([np.where(mask, 1 << relation, 0) for relation, mask in enumerate(holds)], axis=0)


@dataclass(frozen=True)
class Claims:
    """The claims of captions; -1 where nothing is specified."""

    objects: Int[np.ndarray, "caption mentioned attribute"]
    mentioned: Int[np.ndarray, " caption"]
    """Number of mentioned objects."""
    relation: Int[np.ndarray, " caption"]
    """Of the first object to the second."""
    background: Int[np.ndarray, " caption"]
    count: Int[np.ndarray, " caption"]
    """Claimed number of objects in the scene."""


def generate_claims(world: World, owners: Int[np.ndarray, " caption"], random: np.random.Generator) -> Claims:
    """True claims about the owners' scenes."""
    captions, counts = len(owners), world.counts()[owners]
    mentioned = 1 + (random.random(captions) < 0.8)
    first = random.integers(counts)
    second = (first + random.integers(1, counts)) % counts
    chosen = np.stack([first, second], axis=1)
    objects = world.objects[owners[:, None], chosen].copy()
    objects[random.random(objects.shape) >= np.array(MENTION_PROBABILITIES)] = UNSPECIFIED
    objects[mentioned == 1, 1] = UNSPECIFIED
    true_relations = relations(world)[owners, first, second]
    candidate = random.integers(len(RELATIONS), size=captions)
    relation = np.where((true_relations >> candidate) & 1 & (mentioned == 2), candidate, UNSPECIFIED)
    return Claims(
        objects=objects,
        mentioned=mentioned,
        relation=relation,
        background=np.where(random.random(captions) < 0.5, world.backgrounds[owners], UNSPECIFIED),
        count=np.where(random.random(captions) < 0.15, counts, UNSPECIFIED),
    )


def generate_captions(claims: Claims, random: np.random.Generator) -> list[str]:
    """Captions that express the claims, with random synonyms and word order."""
    return [_sentence(claims, caption, random) for caption in range(len(claims.mentioned))]


def _sentence(claims: Claims, caption: int, random: np.random.Generator) -> str:
    phrases = [_phrase(obj, random) for obj in claims.objects[caption, : claims.mentioned[caption]]]
    relation = int(claims.relation[caption])
    if relation != UNSPECIFIED and random.random() < 0.5:  # expressed in the opposite direction
        phrases, relation = phrases[::-1], int(OPPOSITE[relation])
    connective = _choose(CONJUNCTIONS if relation == UNSPECIFIED else RELATIONS[relation], random)
    if relation in (LEFT, OPPOSITE[LEFT]) and random.random() < 0.5:
        connective = f"to the {connective}"
    scene = f" {connective} ".join(phrases)
    if claims.count[caption] != UNSPECIFIED:
        scene = f"{_choose(COUNT_WORDS[int(claims.count[caption])], random)} {_choose(OBJECT_NOUNS, random)}s , {scene}"
    if claims.background[caption] == UNSPECIFIED:
        return f"there is {scene}" if random.random() < 0.2 and claims.count[caption] == UNSPECIFIED else scene
    background = _choose(BACKGROUNDS[claims.background[caption]], random)
    return f"on {background} , {scene}" if random.random() < 0.3 else f"{scene} on {background}"


def _phrase(obj: Int[np.ndarray, " attribute"], random: np.random.Generator) -> str:
    adjectives = [
        _choose(ATTRIBUTES[attribute][obj[attribute]], random)
        for attribute in (SIZE, PATTERN, COLOUR)
        if obj[attribute] != UNSPECIFIED
    ]
    noun = _choose(OBJECT_NOUNS if obj[SHAPE] == UNSPECIFIED else ATTRIBUTES[SHAPE][obj[SHAPE]], random)
    words = [*adjectives, noun]
    return " ".join(["an" if words[0][0] in "aeiou" else "a", *words])


def _choose(words: tuple[str, ...], random: np.random.Generator) -> str:
    return words[int(random.integers(len(words)))]


def select_scenes(world: World, scenes: Int[np.ndarray, " some"]) -> World:
    return World(world.objects[scenes], world.centres[scenes], world.backgrounds[scenes])


def select_claims(claims: Claims, captions: Int[np.ndarray, " some"]) -> Claims:
    return Claims(*(getattr(claims, field.name)[captions] for field in fields(claims)))


def true_pairs(world: World, claims: Claims) -> Bool[np.ndarray, "scene caption"]:
    """A caption is true of a scene if its claims hold for some assignment of distinct objects of the scene."""
    blocks = [slice(start, start + BLOCK_SIZE) for start in range(0, len(world), BLOCK_SIZE)]
    return np.concatenate([_block(world, block, claims) for block in blocks])


def _block(world: World, block: slice, claims: Claims) -> Bool[np.ndarray, "scene caption"]:
    objects, true_relations = world.objects[block], relations(world)[block]
    # matches[m][o] (scene, caption): object o of the scene has the attributes of the m-th mentioned object.
    matches = [
        [_matches(objects[:, obj], claims.objects[:, mention]) for obj in range(MAX_OBJECTS)]
        for mention in range(MAX_MENTIONED)
    ]
    single = np.logical_or.reduce(matches[0])
    claimed = np.where(claims.relation == UNSPECIFIED, 0, 1 << np.maximum(claims.relation, 0))
    pair = np.zeros_like(single)
    for first, second in permutations(range(MAX_OBJECTS), MAX_MENTIONED):
        related = (true_relations[:, None, first, second] & claimed) == claimed
        pair |= matches[0][first] & matches[1][second] & related
    true = np.where(claims.mentioned == 1, single, pair)
    for claim, actual in ((claims.background, world.backgrounds[block]), (claims.count, world.counts()[block])):
        true &= (claim == UNSPECIFIED) | (claim == actual[:, None])
    return true


def _matches(obj: np.ndarray, claim: np.ndarray) -> Bool[np.ndarray, "scene caption"]:
    """Whether the object exists and has all claimed attributes."""
    matches = np.broadcast_to((obj[:, SHAPE] != ABSENT)[:, None], (len(obj), len(claim))).copy()
    for attribute in range(claim.shape[1]):
        matches &= (claim[:, attribute] == UNSPECIFIED) | (claim[:, attribute] == obj[:, None, attribute])
    return matches
