"""Runs that are made to have an illness, three seeds of each, and healthy ones; a few seconds a run.

python -m tests.dissection.illnesses FOLDER
python docs/results/make.py collect doctor FOLDER/*/*_s[0-9]*_*
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np

import tercet
from tercet.data.dataset import DataSet, Split, join, only
from tercet.data.formats.write import write_precomp
from tercet.data.rows import Rows
from tercet.data.scenes import scenes_data_set
from tercet.training.run import Trained

OWN = Path(__file__).with_name("own_objectives.py")
SEEDS = (0, 1, 2)
LATER = (3, 4, 5)  # made when the thresholds stood
FEW = {"data": "scenes:300", "model": "heads", "objective": "nt-xent", "epochs": 8}

# Made by settings, or by an objective that somebody wrote with a slip in it.
BY_SETTINGS = {
    "collapse": {"objective": f"{OWN}:pull_only", "learning_rate": 1e-2},
    "modality gap": {"objective_settings": {"temperature": 0.01}},
    "flat temperature": {"objective_settings": {"temperature": 5.0}},
    "sharp temperature": {"objective_settings": {"temperature": 0.0005}},
    "dead objective": {"objective": "triplet-sh", "objective_settings": {"margin": -1.0}},
    "unbalanced directions": {"objective": f"{OWN}:one_sign_wrong"},
    "under-training": {"learning_rate": 1e-4, "epochs": 4},
    "over-fitting": {"data": "scenes:150", "epochs": 40, "batch_size": 64, "schedule": "constant"}
    | {"learning_rate": 3e-3, "model_settings": {"kind": "mlp"}},
}

ENOUGH = {"data": "scenes:600", "epochs": 12}
WORDS = {"joint_dim": 96, "word_dim": 48}
HEALTHY = (
    ENOUGH | {"model": "heads", "objective": "triplet-sh"},
    ENOUGH | {"model": "heads", "objective": "nt-xent"},
    ENOUGH | {"model": "heads", "objective": "smooth-ap", "captions_each": 5, "batch_size": 32},
    ENOUGH
    | {"model": "vsepp", "objective": "nt-xent", "learning_rate": 3e-3, "schedule": "cosine", "model_settings": WORDS},
    ENOUGH
    | {"model": "vse-infinity", "objective": "nt-xent", "learning_rate": 3e-3, "schedule": "cosine"}
    | {"model_settings": WORDS, "features": "regions"},
)


def with_hubs(folder: Path, seed: int) -> Path:
    """The same thing is in every test picture, as a watermark is: captions that fit it are near to all of them."""
    data = scenes_data_set(300)
    test, seen = data.splits["test"], _features(data.splits["train"])
    mark = seen[np.random.default_rng(seed).integers(len(seen))]
    return _written(folder, data, test=replace(test, features=Rows((_features(test) + mark,), "made")))


def with_duplicates(folder: Path, seed: int) -> Path:
    """Every training image stands there six times under other names, seen a little differently, with its captions."""
    data = scenes_data_set(300)
    random = np.random.default_rng(seed)
    first = only(data.splits["train"], np.arange(100))
    copies = []
    for copy in range(6):
        seen = _features(first)
        noise = 0.3 * seen.std() * random.standard_normal(seen.shape, dtype=np.float32)
        names = tuple(f"{copy}_{name}" for name in first.image_names)
        copies.append(replace(first, image_names=names, features=Rows((seen + noise,), "made"), truth=None))
    return _written(folder, data, train=join([replace(copy, pictures=None) for copy in copies]))


def with_leaks(folder: Path, seed: int) -> Path:
    """A fifth of the test images are training images under other names."""
    data = scenes_data_set(300)
    train, test = data.splits["train"], data.splits["test"]
    leaked = only(train, np.sort(np.random.default_rng(seed).choice(len(train.image_names), 20, replace=False)))
    kept = only(test, np.arange(20, len(test.image_names)))
    names = tuple(f"leaked_{name}" for name in leaked.image_names)
    return _written(folder, data, test=join([replace(leaked, image_names=names), kept]))


BY_DATA = {"hubness": with_hubs, "false negatives": with_duplicates, "leakage": with_leaks}
NAMES = (*BY_SETTINGS, *BY_DATA)


def made_ill(name: str, seed: int, root: Path) -> Trained:
    """A run with that illness, in a folder of that name."""
    given = FEW | BY_SETTINGS.get(name, {})
    if name in BY_DATA:
        folder = root / "data" / f"{name.replace(' ', '_')}_{seed}"
        folder.parent.mkdir(parents=True, exist_ok=True)
        given["data"] = str(folder if folder.is_dir() else BY_DATA[name](folder, seed))
    return tercet.train(**given, seed=seed, runs=root / name)


def made_healthy(number: int, root: Path, seed: int = 0) -> Trained:
    return tercet.train(**HEALTHY[number], seed=seed, runs=root / "healthy")


def every_run(root: Path, seeds: tuple[int, ...] = SEEDS) -> Iterator[tuple[str, Trained]]:
    """With what is wrong with it."""
    for name, seed in product(NAMES, seeds):
        yield name, made_ill(name, seed, root)
    for number in range(len(HEALTHY)):
        yield "healthy", made_healthy(number, root, seeds[0])


def _features(split: Split) -> np.ndarray:
    return split.features.raw(np.arange(len(split.image_names)))


def _written(folder: Path, data: DataSet, **changed: Split) -> Path:
    write_precomp(DataSet(data.path, data.format, {**data.splits, **changed}), folder)
    return folder


if __name__ == "__main__":
    for seeds in (SEEDS, LATER):
        for name, run in every_run(Path(sys.argv[1]), seeds):
            print(name, run.folder)
