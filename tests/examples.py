"""How many examples hypothesis tries: few by default, all with TERCET_TESTS=full, which `make test-all` sets."""

import os

from hypothesis import settings

FULL = os.environ.get("TERCET_TESTS") == "full"
settings.register_profile("quick", max_examples=5, deadline=None)
settings.register_profile("full", deadline=None)
settings.load_profile("full" if FULL else "quick")


def examples(count: int, **more) -> settings:
    """Settings with this number of examples, or with the few of the profile quick."""
    return settings(max_examples=count, **more) if FULL else settings(**more)
