"""Per-image results of any program, for `tercet compare --from`: what each image contributes to a metric, by seed.

| file | content |
|---|---|
| `.npz` | an array (seed, image) for each objective, named by it |
| `.npz` with ranks | `image`, `caption`, `i2t_rank`, `t2i_rank`: one run, named by its file, NAME_sSEED.npz |
| `.csv` | a line for each value, with the columns objective, seed, image, value |
| run folder | the ranks of a run of Tercet |
"""

import csv
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from rich.console import Console

from tercet import runs
from tercet.comparison.family import Significance, Values, check_values, compare_family, methods_of_tests, pairs_table
from tercet.comparison.settings import CompareSettings
from tercet.comparison.summary import statement
from tercet.data.feature_array import numpy_error
from tercet.evaluation import RankTable
from tercet.evaluation.metrics import contributions, largest_value, metric_names

RANKS = ("image", "caption", "i2t_rank", "t2i_rank")
COLUMNS = ("objective", "seed", "image", "value")

Rows = dict[str, dict[int, Float[np.ndarray, " image"]]]
"""Name -> seed -> contribution of each image."""


def compare_files(settings: CompareSettings, console: Console) -> Significance:
    """Test the differences, print the result, and write its tables."""
    values, from_ranks = read_values(settings.from_files, settings.metric)
    metric = settings.metric if from_ranks else "metric"
    largest = largest_value(metric) if from_ranks else np.inf
    significance = compare_family(values, baseline=settings.baseline, rope=settings.rope, largest=largest)
    text = statement(significance, metric)
    tables = [significance.table(), *([pairs_table(significance, metric)] if significance.pairs else [])]
    for table in tables:
        console.print(table.title, highlight=False, markup=False)  # a title of its own would be as narrow as the table
        console.print(replace(table, title="").terminal())
        console.print()
    console.print(text, highlight=False, markup=False)
    document = {"metric": metric, "verdict": text, **significance.to_dict()}
    folder = settings.runs / f"significance_{runs.run_hash(document, '')}"
    methods = " ".join(methods_of_tests(significance)) if significance.pairs else ""
    markdown = [text, "", *(table.markdown() for table in tables), methods]
    runs.write_artifact(folder, "tables.md", "\n".join(markdown) + "\n")
    runs.write_artifact(folder, "tables.tex", "\n".join(table.latex() for table in tables))
    runs.write_artifact(folder, "significance.json", json.dumps(document, indent=2) + "\n")
    console.print(f"\nTables (Markdown, LaTeX, JSON): {folder}", highlight=False, markup=False, soft_wrap=True)
    return significance


def read_values(files: Sequence[Path], metric: str) -> tuple[Values, bool]:
    """Read all files; `metric` is computed from ranks, other values are taken as they are. True: all are ranks."""
    if sum(file.suffix == ".csv" for file in files) > 1:
        raise ValueError("--from: one .csv file with all objectives, so that their images can be paired by name")
    folders = {file: file.parent if file.name == runs.RANKS else file for file in files}
    run_folders = [folder for folder in folders.values() if (folder / runs.SETTINGS).is_file()]
    names = _names_of_runs(run_folders)
    rows: Rows = {}
    from_ranks = True
    source: dict[tuple[str, int], Path] = {}
    for file, folder in folders.items():
        read, are_ranks = _run(folder, names[folder], metric) if folder in names else _file(file, metric)
        from_ranks &= are_ranks
        for name, by_seed in read.items():
            for seed, row in by_seed.items():
                if (name, seed) in source:
                    raise ValueError(f"{file}: {name} seed {seed} is also in {source[name, seed]}")
                source[name, seed] = file
                rows.setdefault(name, {})[seed] = row
    return check_values(_stacked(rows, source)), from_ranks


def _stacked(rows: Rows, source: Mapping[tuple[str, int], Path]) -> Values:
    """Arrays with a row for every seed, NaN where it is missing."""
    seeds = sorted({seed for by_seed in rows.values() for seed in by_seed})
    first, images = next((source[name, seed], len(row)) for name, by in rows.items() for seed, row in by.items())
    for name, by_seed in rows.items():
        for seed, row in by_seed.items():
            if len(row) != images:
                raise ValueError(
                    f"{source[name, seed]}: {name} seed {seed} has {len(row):,} images, {first} has {images:,}: "
                    "results are paired image by image"
                )
    missing = np.full(images, np.nan)
    return {name: np.stack([by_seed.get(seed, missing) for seed in seeds]) for name, by_seed in rows.items()}


def _file(file: Path, metric: str) -> tuple[Rows, bool]:
    """The values of a file, and whether they are computed from ranks."""
    if file.suffix == ".csv":
        return _csv(file), False
    if file.suffix != ".npz" or file.is_dir():
        raise ValueError(f"{file}: --from reads .npz and .csv files and run folders")
    try:
        with np.load(file, allow_pickle=False) as content:
            arrays = dict(content)
    except OSError:
        raise
    except Exception as error:  # zipfile, zlib and numpy raise exceptions of many kinds for damaged files
        raise ValueError(f"{file} is not an .npz file of arrays of numbers: {numpy_error(error)}") from error
    if "i2t_rank" in arrays:
        return _ranks(file, arrays, metric), True
    if not arrays:
        raise ValueError(f"{file} has no arrays")
    return {name: _by_seed(file, name, array) for name, array in arrays.items()}, False


def _by_seed(file: Path, name: str, array: np.ndarray) -> dict[int, np.ndarray]:
    """Rows without those of missing seeds."""
    if array.ndim != 2 or array.dtype.kind not in "fiub":
        kind = f"shape {array.shape} of {array.dtype}"
        raise ValueError(f"{file}: {name} must be an array (seed, image) of numbers, got {kind}")
    return {seed: row for seed, row in enumerate(array.astype(np.float64)) if not np.isnan(row).all()}


def _ranks(file: Path, arrays: Mapping[str, np.ndarray], metric: str) -> Rows:
    missing = [name for name in RANKS if name not in arrays]
    if missing:
        raise ValueError(f"{file}: ranks need the arrays {', '.join(RANKS)}; there is no {missing[0]}")
    found = re.fullmatch(r"(.+)_s(\d+)", file.stem)
    name, seed = (found[1], int(found[2])) if found else (file.stem, 0)
    return {name: {seed: _contributions(arrays, metric)}}


def _contributions(arrays: Mapping[str, np.ndarray], metric: str) -> Float[np.ndarray, " image"]:
    allowed = metric_names(larger_is_better=True)
    if metric not in allowed:
        raise ValueError(f"--metric {metric!r} cannot be computed from ranks; allowed: {', '.join(allowed)}")
    return contributions(RankTable(arrays), metric).astype(np.float64)


def _csv(file: Path) -> Rows:
    """Images are paired by their number, or by their name in sorted order."""
    values: dict[str, dict[int, dict[str, float]]] = {}
    with file.open(encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        if not set(COLUMNS) <= set(reader.fieldnames or ()):
            raise ValueError(f"{file}: line 1 must have the columns {', '.join(COLUMNS)}")
        for line in reader:
            where = f"{file}: line {reader.line_num}"
            try:
                seed, value = int(line["seed"]), float(line["value"])
            except (TypeError, ValueError) as error:
                raise ValueError(f"{where}: {error}") from error
            by_image = values.setdefault(line["objective"], {}).setdefault(seed, {})
            if line["image"] in by_image:
                raise ValueError(f"{where}: {line['objective']} seed {seed} has image {line['image']!r} already")
            by_image[line["image"]] = value
    if not values:
        raise ValueError(f"{file} has no values")
    images = {image for by_seed in values.values() for by_image in by_seed.values() for image in by_image}
    order = sorted(images, key=int) if all(image.isdecimal() for image in images) else sorted(images)
    return {
        name: {seed: _row(f"{file}: {name} seed {seed}", by_image, order) for seed, by_image in by_seed.items()}
        for name, by_seed in values.items()
    }


def _row(where: str, by_image: Mapping[str, float], order: Sequence[str]) -> Float[np.ndarray, " image"]:
    for image in order:
        if image not in by_image:
            raise ValueError(f"{where} has no value of image {image!r}")
    return np.array([by_image[image] for image in order])


def _run(folder: Path, name: str, metric: str) -> tuple[Rows, bool]:
    seed = runs.read_settings(folder).get("seed")
    return {name: {seed if isinstance(seed, int) else 0: _contributions(runs.read_ranks(folder), metric)}}, True


def _names_of_runs(folders: Sequence[Path]) -> dict[Path, str]:
    """The objective of each run, with the settings that differ between runs of this objective."""
    settings = {folder: _flat(runs.read_settings(folder)) for folder in folders}
    evaluated = {(each.get("data"), each.get("test_split")) for each in settings.values()}
    if len(evaluated) > 1:
        data = ", ".join(sorted(str(name) for name, _ in evaluated))
        raise ValueError(f"the runs are of different data: {data}; results are paired image by image")
    names = {}
    for folder, own in settings.items():
        alike = [other for other in settings.values() if other.get("objective") == own.get("objective")]
        differing = [key for key in own if key != "seed" and any(other.get(key) != own[key] for other in alike)]
        parts = [f"{key}={own[key] if isinstance(own[key], str) else json.dumps(own[key])}" for key in differing]
        names[folder] = " ".join([str(own.get("objective")), *parts])
    return names


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the objective and the model by their own names."""
    nested = {key: value for value in settings.values() if isinstance(value, dict) for key, value in value.items()}
    return {key: value for key, value in settings.items() if not isinstance(value, dict)} | nested
