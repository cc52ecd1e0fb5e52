"""Small finished runs, trained once per test process."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import tercet

SMALL = {"data": "scenes:90", "epochs": 2, "batch_size": 50, "model_settings": {"embed_dim": 16}, "cocos_every": 3}


@cache
def root() -> Path:
    return Path(mkdtemp(prefix="tercet_runs_"))


@cache
def small_run(objective: str = "nt-xent", seed: int = 0, **settings) -> Path:
    return tercet.train(**SMALL | {"objective": objective, "seed": seed, "runs": root()} | settings).folder
