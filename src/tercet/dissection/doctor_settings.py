"""What `tercet doctor` can be told. Imports nothing heavy: `--help` must be quick."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class DoctorSettings:
    """Look at a finished run for what often goes wrong, with evidence and advice.

    Writes doctor.json and doctor.html. Findings are no error: the exit code is 0 with and without them.
    """

    run: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="RUN")]]
    """A run folder."""
    data: str | None = None
    """Where its data lies now, if it was moved."""
    images: Path | None = None
    """Folder of image files, where it is not found beside the data."""
    out: Path | None = None
    """Where the page goes; None for analysis/<name of the run>."""
