"""How many examples are tried: few by default, all with TERCET_TESTS=full, which `make test-all` sets."""

import os
from collections.abc import Sequence

import pytest
from hypothesis import settings

FULL = os.environ.get("TERCET_TESTS") == "full"
settings.register_profile("quick", max_examples=5, deadline=None)
settings.register_profile("full", deadline=None)
settings.load_profile("full" if FULL else "quick")


def examples(count: int, **more) -> settings:
    """Settings with this number of examples, or with the few of the profile quick."""
    return settings(max_examples=count, **more) if FULL else settings(**more)


def others_slow(values: Sequence, quick: int) -> list:
    """The first values for the default tier, the others marked slow."""
    return [*values[:quick], *(pytest.param(value, marks=pytest.mark.slow) for value in values[quick:])]
