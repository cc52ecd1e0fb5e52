"""metrics.jsonl for TensorBoard, by option."""

from pathlib import Path
from typing import Any

from tercet import runs


class Board:
    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError("--tensorboard needs its package: pip install tensorboard") from error
        self._writer: Any = SummaryWriter(str(folder / "tensorboard"))
        self._written = 0

    def write(self, folder: Path) -> None:
        """What is new in the file."""
        lines = runs.read_lines(folder)
        for line in lines[self._written :]:
            for name, value in _flat(line).items():
                self._writer.add_scalar(name, value, line["step"])
        self._written = len(lines)
        self._writer.flush()


def _flat(line: dict[str, Any], prefix: str = "") -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in line.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and name not in ("step", "epoch"):
            found[f"{prefix}{name}"] = float(value)
    return found
