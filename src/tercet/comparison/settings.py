"""What `tercet compare` can be told. Imports nothing heavy: `--help` must be quick."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CompareSettings:
    """Train heads on the generated scenes with several objectives and seeds, and compare what they retrieve.

    Finished runs are kept in run folders and never repeated: stop at any moment and call again.
    """

    objectives: tuple[str, ...] = ("triplet", "triplet-sh", "nt-xent", "con/sig", "cir/sig-ms")
    """Names of the catalogue, or your own as path/to/mine.py:function."""
    seeds: int = 2
    """How many seeds; every objective gets the same ones, starting at 0."""
    epochs: int = 6
    """Passes over the training captions, the same number of steps for every objective."""
    scenes: int = 3000
    """Training scenes; a third as many held-out scenes are evaluated."""
    ignore_equal_text: bool = False
    """A caption that stands word for word under another image too is no negative of that image."""
    runs: Path = Path("runs")
    """Where run folders and the table go."""

    def __post_init__(self) -> None:
        # As a function, `compare` may be given a plain string for either.
        object.__setattr__(self, "runs", Path(self.runs))
        if isinstance(self.objectives, str):
            object.__setattr__(self, "objectives", (self.objectives,))
        for name in ("seeds", "epochs"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} must be at least 1, got {getattr(self, name)}")
        if self.scenes < 30:
            raise ValueError(f"--scenes must be at least 30, which fill one batch, got {self.scenes}")
        if not self.objectives:
            raise ValueError("--objectives needs at least one name")
