"""Captions: claims about a scene, and words for them. A caption tells some of what is there, in some of its words."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from tercet.data.scenes.world import (
    ABSENT,
    ATTRIBUTES,
    BACKGROUNDS,
    COLOUR,
    LEFT,
    OPPOSITE,
    PATTERN,
    RELATIONS,
    SHAPE,
    SIZE,
    World,
    relations,
)

TOLD = 2  # at most so many things are told of
UNTOLD = ABSENT
# How often an attribute of a thing that is told of is told: shape, colour, size, pattern.
CHANCE = (0.95, 0.9, 0.5, 0.45)
COUNTS = {2: ("two",), 3: ("three",), 4: ("four",)}
JOINED = ("and", "with")
THING = ("thing", "shape", "object")


@dataclass(frozen=True)
class Claims:
    """What captions say. -1 stands for nothing said."""

    things: Int[np.ndarray, "caption told attribute"]
    told: Int[np.ndarray, " caption"]
    """How many things."""
    relation: Int[np.ndarray, " caption"]
    """Of the first thing to the second."""
    background: Int[np.ndarray, " caption"]
    count: Int[np.ndarray, " caption"]
    """Of all things in the scene."""


def claim(world: World, owners: Int[np.ndarray, " caption"], random: np.random.Generator) -> Claims:
    """True claims about the owners' scenes."""
    captions, counts = len(owners), world.counts()[owners]
    told = 1 + (random.random(captions) < 0.8)
    first = random.integers(counts)
    second = (first + random.integers(1, counts)) % counts
    chosen = np.stack([first, second], axis=1)
    things = world.things[owners[:, None], chosen].copy()
    things[random.random(things.shape) >= np.array(CHANCE)] = UNTOLD
    things[told == 1, 1] = UNTOLD
    held = relations(world)[owners, first, second]
    wanted = random.integers(len(RELATIONS), size=captions)
    relation = np.where((held >> wanted) & 1 & (told == 2), wanted, UNTOLD)
    return Claims(
        things=things,
        told=told,
        relation=relation,
        background=np.where(random.random(captions) < 0.5, world.backgrounds[owners], UNTOLD),
        count=np.where(random.random(captions) < 0.15, counts, UNTOLD),
    )


def put_in_words(claims: Claims, random: np.random.Generator) -> list[str]:
    return [_sentence(claims, caption, random) for caption in range(len(claims.told))]


def _sentence(claims: Claims, caption: int, random: np.random.Generator) -> str:
    phrases = [_phrase(thing, random) for thing in claims.things[caption, : claims.told[caption]]]
    relation = int(claims.relation[caption])
    if relation != UNTOLD and random.random() < 0.5:  # said from the other side
        phrases, relation = phrases[::-1], int(OPPOSITE[relation])
    between = _one_of(JOINED if relation == UNTOLD else RELATIONS[relation], random)
    if relation in (LEFT, OPPOSITE[LEFT]) and random.random() < 0.5:
        between = f"to the {between}"
    scene = f" {between} ".join(phrases)
    if claims.count[caption] != UNTOLD:
        scene = f"{_one_of(COUNTS[int(claims.count[caption])], random)} {_one_of(THING, random)}s , {scene}"
    if claims.background[caption] == UNTOLD:
        return f"there is {scene}" if random.random() < 0.2 and claims.count[caption] == UNTOLD else scene
    background = _one_of(BACKGROUNDS[claims.background[caption]], random)
    return f"on {background} , {scene}" if random.random() < 0.3 else f"{scene} on {background}"


def _phrase(thing: Int[np.ndarray, " attribute"], random: np.random.Generator) -> str:
    told = [
        _one_of(ATTRIBUTES[attribute][thing[attribute]], random)
        for attribute in (SIZE, PATTERN, COLOUR)
        if thing[attribute] != UNTOLD
    ]
    noun = _one_of(THING if thing[SHAPE] == UNTOLD else ATTRIBUTES[SHAPE][thing[SHAPE]], random)
    words = [*told, noun]
    return " ".join(["an" if words[0][0] in "aeiou" else "a", *words])


def _one_of(words: tuple[str, ...], random: np.random.Generator) -> str:
    return words[int(random.integers(len(words)))]
