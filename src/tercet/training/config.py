"""Settings from a recipe, a file and what was asked for, in this order. Imports nothing heavy."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tercet.training.recipes import recipe_of
from tercet.training.settings import TrainSettings, settings_of

RESOLVED = (
    "objective_source",
    "first_source",
    "start_checksum",
    "mined_checksum",
    "mined_again",
    "learned_scale",
    "pretrained",
)  # in a run's settings.json, and no settings


def train_settings(given: dict[str, Any]) -> TrainSettings:
    """With what the recipe of the model says where nothing else is asked for."""
    if given.get("config") is not None:
        given = read_config(Path(given["config"])) | given
    model = given.get("model", "heads")
    return settings_of(recipe_of(model, given.get("round", 1)) if isinstance(model, str) else {}, given)


def read_config(file: Path) -> dict[str, Any]:
    """JSON or YAML; the settings.json of a run is one."""
    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix in (".yaml", ".yml"):
            import yaml  # type: ignore[import-untyped]

            content = yaml.safe_load(text)
        else:
            content = json.loads(text)
    except ImportError as error:
        raise ValueError(f"{file}: YAML needs its package: pip install pyyaml; JSON needs none") from error
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: cannot be read: {error}") from error
    except Exception as error:  # whatever else the YAML package raises is a fault of the file
        raise ValueError(f"{file}: not YAML: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file}: expected settings by name")
    if content.get("learned_scale"):  # its neutral temperature was not named
        content["objective_settings"] = {
            name: value for name, value in content["objective_settings"].items() if name not in ("temperature", "bias")
        }
    return {name: value for name, value in content.items() if name not in RESOLVED}


def defaults_for(arguments: Sequence[str]) -> TrainSettings:
    """Of a command line: what its --model and --config say, so that --help shows the values of the recipe."""
    given: dict[str, Any] = {name: _value(arguments, f"--{name}") for name in ("model", "config", "schedule", "mined")}
    if _value(arguments, "--round") == "2" and not {"-h", "--help"} & set(arguments):
        given["round"] = 2  # with no table anywhere, --config included, that is told at once
    return train_settings({name: value for name, value in given.items() if value is not None})


def _value(arguments: Sequence[str], flag: str) -> str | None:
    for place, argument in enumerate(arguments):
        if argument == flag and place + 1 < len(arguments):
            return arguments[place + 1]
        if argument.startswith(f"{flag}="):
            return argument.removeprefix(f"{flag}=")
    return None
