"""Which captions are true of which scenes: every false negative of this world is known."""

from dataclasses import fields
from itertools import permutations

import numpy as np
from jaxtyping import Bool, Int

from tercet.data.scenes.captions import TOLD, UNTOLD, Claims
from tercet.data.scenes.world import ABSENT, MOST_THINGS, SHAPE, World, relations

BLOCK = 256  # scenes at a time, so that 3,000 x 15,000 pairs need no more memory than a few hundred MB


def pick(world: World, scenes: Int[np.ndarray, " some"]) -> World:
    return World(world.things[scenes], world.centres[scenes], world.backgrounds[scenes])


def pick_claims(claims: Claims, captions: Int[np.ndarray, " some"]) -> Claims:
    return Claims(*(getattr(claims, field.name)[captions] for field in fields(claims)))


def true_pairs(world: World, claims: Claims) -> Bool[np.ndarray, "scene caption"]:
    """A caption is true of a scene where its things can be found there, each another one, standing as it says."""
    blocks = [slice(start, start + BLOCK) for start in range(0, len(world), BLOCK)]
    return np.concatenate([_block(world, block, claims) for block in blocks])


def _block(world: World, block: slice, claims: Claims) -> Bool[np.ndarray, "scene caption"]:
    things, held = world.things[block], relations(world)[block]
    # fits[told][thing]: (scene, caption), the thing of the scene is what the caption's told thing says
    fits = [[_fits(things[:, thing], claims.things[:, told]) for thing in range(MOST_THINGS)] for told in range(TOLD)]
    alone = np.logical_or.reduce(fits[0])
    wanted = np.where(claims.relation == UNTOLD, 0, 1 << np.maximum(claims.relation, 0))
    together = np.zeros_like(alone)
    for first, second in permutations(range(MOST_THINGS), TOLD):
        stands = (held[:, None, first, second] & wanted) == wanted
        together |= fits[0][first] & fits[1][second] & stands
    found = np.where(claims.told == 1, alone, together)
    for said, is_so in ((claims.background, world.backgrounds[block]), (claims.count, world.counts()[block])):
        found &= (said == UNTOLD) | (said == is_so[:, None])
    return found


def _fits(thing: np.ndarray, said: np.ndarray) -> Bool[np.ndarray, "scene caption"]:
    right = np.broadcast_to((thing[:, SHAPE] != ABSENT)[:, None], (len(thing), len(said))).copy()
    for attribute in range(said.shape[1]):
        right &= (said[:, attribute] == UNTOLD) | (said[:, attribute] == thing[:, None, attribute])
    return right
