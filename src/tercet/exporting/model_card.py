"""The model card of an exported model, from its run: data, objective, settings, metrics, versions.

Runs beside it that differ only in their seed give every metric a mean and a confidence interval.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tercet
from tercet import runs
from tercet.inference import Retriever
from tercet.names import is_in_memory, short_name
from tercet.plugins import is_file_name

METRICS = {
    "i2t_r1": "image to text R@1",
    "i2t_r5": "image to text R@5",
    "i2t_r10": "image to text R@10",
    "t2i_r1": "text to image R@1",
    "t2i_r5": "text to image R@5",
    "t2i_r10": "text to image R@10",
    "rsum": "sum of the six",
}
SETTINGS = (
    *("epochs", "batch_size", "captions_per_image", "positives", "optimizer", "learning_rate", "weight_decay"),
    *("schedule", "warmup_epochs", "grad_clip", "precision", "lora", "frozen", "warmup_objective", "seed"),
)
CONFIDENCE = 0.95


def model_card(source: Path, retriever: Retriever, *, title: str, library: str, task: str, use: str) -> str:
    """The card as Markdown with the header of the hub. `use`: lines of Python that load the model from its folder."""
    is_run = (source / runs.SETTINGS).is_file() and runs.is_finished(source)
    header = {"library_name": library, "pipeline_tag": task, "tags": ["image-text-retrieval", "tercet"]}
    about = [f"A {retriever.system} model for image-text retrieval, exported by Tercet {tercet.__version__}."]
    if is_run:
        settings = runs.read_settings(source)
        header |= _header_of_run(settings, source, title)
        about += [_training(settings, source), _measured(settings, source)]
    else:
        about.append("It was exported from a saved model without a record of its training.")
    use = f"## Use\n\nIn this folder, or with its name on the hub instead of `.`:\n\n```python\n{use}```\n"
    lines = [f"---\n{_yaml(header)}---", f"# {title}", *about, use]
    return "\n\n".join(lines)


def _training(settings: dict[str, Any], run: Path) -> str:
    machine, final = runs.read_machine(run), runs.read_final(run)
    objective = _shown(settings["objective"])
    learned = ("temperature",) if settings.get("learned_scale") else ()
    values = [f"{key} {_shown(value)}" for key, value in settings["objective_settings"].items() if key not in learned]
    values += [f"{name}: the model's learned scale" for name in learned]
    model = ", ".join(f"{name} {_shown(value)}" for name, value in settings["model_settings"].items())
    rows = [
        ("data", f"{_shown(settings['data'])}, split {settings['train_split']}"),
        ("objective", f"`{objective}` ({', '.join(values)})"),
        ("model", f"`{_shown(settings['model'])}`" + (f" ({model})" if model else "")),
    ]
    rows += [(name.replace("_", " "), _shown(settings[name])) for name in SETTINGS if _is_set(settings.get(name))]
    rows += [
        ("steps", f"{final['step']:,}; weights of epoch {final['epoch']}, the best by {settings['select_metric']}"),
        ("trained", f"{str(machine['finished'])[:10]}, {machine['device']}, {machine['seconds']:.0f} seconds"),
        ("versions", f"tercet {machine['tercet']} (commit {machine['commit']}), torch {machine['torch']}"),
        ("run", f"`{run.resolve().name}`"),
    ]
    return "## Training\n\n" + _table(("", ""), rows)


def _measured(settings: dict[str, Any], run: Path) -> str:
    metrics, others = runs.read_metrics(run), runs_of_other_seeds(run)
    if not metrics:
        return "## Metrics\n\nThe data has neither a test nor a validation split: nothing was measured."
    split, shown = runs.final_split(run), [name for name in METRICS if name in metrics]
    named = settings["test_split"] if split == "test" else settings["validation_split"]
    title = f"## Metrics\n\nOn {_shown(settings['data'])}, split {named}: {metrics['i2t_queries']:,.0f} images"
    title += f" and {metrics['t2i_queries']:,.0f} captions. Recalls in percent; ties count against the model."
    if not others:
        rows = [(METRICS[name], f"{metrics[name]:.1f}") for name in shown]
        return f"{title}\n\n{_table(('', 'this model'), rows)}"
    seeds = [metrics, *(runs.read_metrics(other) for other in others)]
    rows = [
        (METRICS[name], f"{metrics[name]:.1f}", interval([each[name] for each in seeds]))  # type: ignore[misc]
        for name in shown
    ]
    heading = ("", "this model", f"mean of {len(seeds)} seeds [{CONFIDENCE:.0%} interval]")
    return f"{title}\n\n{_table(heading, rows)}"


def runs_of_other_seeds(run: Path) -> list[Path]:
    """Finished runs beside this one whose settings differ in the seed alone and that were measured on as much data."""
    own, queries = runs.read_settings(run), runs.read_metrics(run).get("t2i_queries")
    found: dict[Any, Path] = {own["seed"]: run}
    for other in sorted(runs.run_folders(run.resolve().parent)):
        if not runs.is_finished(other):
            continue
        settings = runs.read_settings(other)
        equal = {**settings, "seed": None} == {**own, "seed": None}
        if equal and settings["seed"] not in found and runs.read_metrics(other).get("t2i_queries") == queries:
            found[settings["seed"]] = other
    return [folder for folder in found.values() if folder != run]


def interval(values: Sequence[float]) -> str:
    """Mean and confidence interval of independent values, by Student's t."""
    from scipy import stats

    margin = stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    mean = float(np.mean(values))
    return f"{mean:.1f} [{mean - margin:.1f}, {mean + margin:.1f}]"


def _header_of_run(settings: dict[str, Any], run: Path, title: str) -> dict[str, Any]:
    """Metrics as the hub reads them, and the model that was fine-tuned, if the hub knows it."""
    data = _shown(settings["data"])
    values = {name: value for name, value in runs.read_metrics(run).items() if name in METRICS}
    measured = [{"type": name, "name": METRICS[name], "value": round(value, 2)} for name, value in values.items()]
    result = {"task": {"type": "image-text-retrieval"}, "dataset": {"type": data, "name": data}, "metrics": measured}
    header: dict[str, Any] = {"model-index": [{"name": title, "results": [result]}]} if measured else {}
    clip = settings["model_settings"].get("clip")
    if isinstance(clip, str) and clip.count("/") == 1 and not Path(clip).exists() and not clip.startswith((".", "/")):
        header["base_model"] = clip
    return header


def _is_set(value: object) -> bool:
    return value is not None and value != []


def _shown(value: object) -> str:
    """A setting without the folders of the machine that it was made on."""
    if isinstance(value, str) and is_in_memory(value):
        return short_name(value)
    if isinstance(value, str) and (is_file_name(value) or Path(value).is_absolute() or Path(value).exists()):
        return Path(value).name
    return value if isinstance(value, str) else json.dumps(value)


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _yaml(header: dict[str, Any]) -> str:
    """JSON values are YAML."""
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in header.items())
