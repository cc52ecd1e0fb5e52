"""Deliberately faulty runs, three seeds per fault, and healthy runs; a few seconds per run.

python -m tests.analysis.reports.faulty_runs FOLDER
python docs/results/make.py collect doctor FOLDER/*/*_s[0-9]*_*
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np

import tercet
from tercet.data.dataset import DataSet, Split, join, subset
from tercet.data.feature_array import FeatureArray
from tercet.data.formats.precomp import write_precomp
from tercet.data.scenes import scenes_data_set
from tercet.training.train import Trained

OBJECTIVES_FILE = Path(__file__).with_name("faulty_objectives.py")
SEEDS = (0, 1, 2)
LATER_SEEDS = (3, 4, 5)  # made after the thresholds were fixed
SMALL = {"data": "scenes:300", "model": "heads", "objective": "nt-xent", "epochs": 8}

# Faults caused by settings, or by an incorrect objective.
BY_SETTINGS = {
    "collapse": {"objective": f"{OBJECTIVES_FILE}:pull_only", "learning_rate": 1e-2},
    "modality gap": {"objective_settings": {"temperature": 0.01}},
    "flat temperature": {"objective_settings": {"temperature": 5.0}},
    "sharp temperature": {"objective_settings": {"temperature": 0.0005}},
    "dead objective": {"objective": "triplet-sh", "objective_settings": {"margin": -1.0}},
    "unbalanced directions": {"objective": f"{OBJECTIVES_FILE}:one_sign_wrong"},
    "under-training": {"learning_rate": 1e-4, "epochs": 4},
    "over-fitting": {"data": "scenes:150", "epochs": 40, "batch_size": 64, "schedule": "constant"}
    | {"learning_rate": 3e-3, "model_settings": {"kind": "mlp"}},
}

LARGE = {"data": "scenes:600", "epochs": 12}
WORD_MODEL = {"embed_dim": 96, "word_dim": 48}
HEALTHY = (
    LARGE | {"model": "heads", "objective": "triplet-sh"},
    LARGE | {"model": "heads", "objective": "nt-xent"},
    LARGE | {"model": "heads", "objective": "smooth-ap", "captions_per_image": 5, "batch_size": 32},
    LARGE
    | {
        "model": "vsepp",
        "objective": "nt-xent",
        "learning_rate": 3e-3,
        "schedule": "cosine",
        "model_settings": WORD_MODEL,
    },
    LARGE
    | {"model": "vse-infinity", "objective": "nt-xent", "learning_rate": 3e-3, "schedule": "cosine"}
    | {"model_settings": WORD_MODEL, "features": "regions"},
)


def with_hubs(folder: Path, seed: int) -> Path:
    """Every test image has a common component, like a watermark: captions that match it are near to all of them."""
    data = scenes_data_set(300)
    test, features = data.splits["test"], _features(data.splits["train"])
    watermark = features[np.random.default_rng(seed).integers(len(features))]
    return _written(folder, data, test=replace(test, features=FeatureArray((_features(test) + watermark,), "made")))


def with_duplicates(folder: Path, seed: int) -> Path:
    """Every training image six times, under other names and with noise, with its captions."""
    data = scenes_data_set(300)
    random = np.random.default_rng(seed)
    first = subset(data.splits["train"], np.arange(100))
    copies = []
    for copy in range(6):
        features = _features(first)
        noise = 0.3 * features.std() * random.standard_normal(features.shape, dtype=np.float32)
        names = tuple(f"{copy}_{name}" for name in first.image_names)
        copies.append(replace(first, image_names=names, features=FeatureArray((features + noise,), "made"), truth=None))
    return _written(folder, data, train=join([replace(copy, image_files=None) for copy in copies]))


def with_leaks(folder: Path, seed: int) -> Path:
    """A fifth of the test images are training images under other names."""
    data = scenes_data_set(300)
    train, test = data.splits["train"], data.splits["test"]
    leaked = subset(train, np.sort(np.random.default_rng(seed).choice(len(train.image_names), 20, replace=False)))
    rest = subset(test, np.arange(20, len(test.image_names)))
    names = tuple(f"leaked_{name}" for name in leaked.image_names)
    return _written(folder, data, test=join([replace(leaked, image_names=names), rest]))


BY_DATA = {"hubness": with_hubs, "false negatives": with_duplicates, "leakage": with_leaks}
NAMES = (*BY_SETTINGS, *BY_DATA)


def make_faulty(name: str, seed: int, root: Path) -> Trained:
    """A run with that fault, in a folder of that name."""
    settings = SMALL | BY_SETTINGS.get(name, {})
    if name in BY_DATA:
        folder = root / "data" / f"{name.replace(' ', '_')}_{seed}"
        folder.parent.mkdir(parents=True, exist_ok=True)
        settings["data"] = str(folder if folder.is_dir() else BY_DATA[name](folder, seed))
    return tercet.train(**settings, seed=seed, runs=root / name)


def make_healthy(index: int, root: Path, seed: int = 0) -> Trained:
    return tercet.train(**HEALTHY[index], seed=seed, runs=root / "healthy")


def every_run(root: Path, seeds: tuple[int, ...] = SEEDS) -> Iterator[tuple[str, Trained]]:
    """All runs, each with the name of its fault or "healthy"."""
    for name, seed in product(NAMES, seeds):
        yield name, make_faulty(name, seed, root)
    for index in range(len(HEALTHY)):
        yield "healthy", make_healthy(index, root, seeds[0])


def _features(split: Split) -> np.ndarray:
    return split.features.raw(np.arange(len(split.image_names)))


def _written(folder: Path, data: DataSet, **changed: Split) -> Path:
    write_precomp(DataSet(data.path, data.format, {**data.splits, **changed}), folder)
    return folder


if __name__ == "__main__":
    for seeds in (SEEDS, LATER_SEEDS):
        for name, run in every_run(Path(sys.argv[1]), seeds):
            print(name, run.folder)
