"""Checks of settings that several objectives share."""

import math
from numbers import Real


def require_numbers(objective: object, *names: str) -> None:
    for name in names:
        given = getattr(objective, name)
        if not isinstance(given, Real) or isinstance(given, bool) or not math.isfinite(given):
            raise ValueError(f"{name} must be a number, got {given!r}")


def require_positive(objective: object, *names: str) -> None:
    require_numbers(objective, *names)
    for name in names:
        if getattr(objective, name) <= 0:
            raise ValueError(f"{name} must be a positive number, got {getattr(objective, name)!r}")


def require_one_of(objective: object, name: str, allowed: tuple[str | bool, ...]) -> None:
    given = getattr(objective, name)
    if not any(given == each and type(given) is type(each) for each in allowed):  # 1 is not True
        raise ValueError(f"{name} must be one of {', '.join(map(str, allowed))}, got {given!r}")
