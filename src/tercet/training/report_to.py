"""Loggers: the lines of metrics.jsonl for other tools (`--report-to tensorboard wandb`).

A logger gets each line once, in order. On a resume a new one is made, which gets the lines from the start.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tercet import runs

PROJECT = "tercet"


class MetricsLogger(Protocol):
    """Takes the numbers of a line of metrics.jsonl, by name, at a step."""

    def log(self, values: Mapping[str, float], step: int, /) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class Reports:
    """All loggers of a run."""

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        self._folder, self._written = folder, 0
        self._loggers = [LOGGERS[name](folder) for name in names]

    def update(self) -> None:
        """Hand on the lines that were appended since the last call."""
        if not self._loggers:
            return
        lines = runs.read_lines(self._folder)
        for line in lines[self._written :]:
            values = dict(_numbers(line))
            for logger in self._loggers:
                logger.log(values, int(line["step"]))
        self._written = len(lines)
        for logger in self._loggers:
            logger.flush()

    def close(self) -> None:
        """Hand on the last lines, and end."""
        self.update()
        for logger in self._loggers:
            logger.close()


def _numbers(line: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in line.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and name not in ("step", "epoch"):
            yield f"{prefix}{name}", float(value)


class TensorBoardLog:
    """TensorBoard events in `tensorboard/`."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError("--report-to tensorboard needs its package: pip install tensorboard") from error
        self._writer: Any = SummaryWriter(str(folder / runs.TENSORBOARD))

    def log(self, values: Mapping[str, float], step: int, /) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbLog:
    """A run of Weights & Biases in `wandb/`, offline unless WANDB_MODE says otherwise."""

    def __init__(self, folder: Path) -> None:
        try:
            import wandb
        except ImportError as error:
            raise ValueError("--report-to wandb needs its package: pip install wandb") from error
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=folder.name,
            dir=str(folder),
            config=runs.read_settings(folder),
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=wandb.Settings(console="off", silent=True),
        )

    def log(self, values: Mapping[str, float], step: int, /) -> None:
        self._run.log(dict(values), step=step)

    def flush(self) -> None:
        """Its process writes by itself."""

    def close(self) -> None:
        self._run.finish()


LOGGERS: Mapping[str, Callable[[Path], MetricsLogger]] = {"tensorboard": TensorBoardLog, "wandb": WandbLog}
