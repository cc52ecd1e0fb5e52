"""Objectives whose temperature and bias are named, as `scale=` and `bias=` ask for."""

from dataclasses import replace
from typing import Any

import tercet
from tercet.objectives.base import RowObjective


def named(which: Any, **settings: Any) -> RowObjective:
    objective = tercet.objective(which, **settings)
    defaults = {key: objective.settings[key] for key in ("temperature", "bias") if key in objective.settings}
    return replace(objective, **{key: float(value) for key, value in defaults.items()})
