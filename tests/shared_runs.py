"""Small finished runs, trained once for all test processes."""

import os
from functools import cache
from pathlib import Path
from tempfile import gettempdir, mkdtemp

import tercet

SMALL = {"data": "scenes:90", "epochs": 2, "batch_size": 50, "model_settings": {"embed_dim": 16}, "cocos_every": 3}


@cache
def root() -> Path:
    """A folder of its own for one call of pytest; its worker processes share it, and a run locks its own folder."""
    shared = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    return Path(gettempdir(), f"tercet_runs_{shared}") if shared else Path(mkdtemp(prefix="tercet_runs_"))


@cache
def small_run(objective: str = "nt-xent", seed: int = 0, **settings) -> Path:
    return tercet.train(**SMALL | {"objective": objective, "seed": seed, "runs": root()} | settings).folder
