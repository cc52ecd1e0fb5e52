"""All that the routes share: indexes, runs, and the threads that do the work."""

import asyncio
from pathlib import Path

from tercet.search.server.jobs import Jobs
from tercet.search.server.refused import Refused
from tercet.search.server.runs_shown import RunsShown
from tercet.search.server.shelves import Shelf, Shelves
from tercet.search.server.thumbnails import Thumbnails

COMPARED = 3  # models side by side
UPLOADS = 8  # pictures that are received and looked at at once: each may take some hundred megabytes


class Served:
    def __init__(self, indexes: list[Path], runs: Path | None) -> None:
        self.shelves, self.thumbnails = Shelves(indexes), Thumbnails()
        self.pictures, self.work, self.slow = Jobs(2, 256, "pictures"), Jobs(2, 32, "work"), Jobs(1, 4, "slow work")
        self.uploads = asyncio.Semaphore(UPLOADS)
        self._runs = None if runs is None else RunsShown(runs)

    @property
    def has_runs(self) -> bool:
        return self._runs is not None

    @property
    def runs(self) -> RunsShown:
        if self._runs is None:
            raise Refused(404, "no folder of runs is served: tercet serve --runs FOLDER")
        return self._runs

    def shelf_with(self, number: int, index: str | None) -> Shelf:
        """That has a picture of this number."""
        shelf = self.shelves.get(index)
        shelf.check_item(number)
        return shelf

    def several(self, names: list[str]) -> list[Shelf]:
        asked = [self.shelves.get(name) for name in dict.fromkeys(names)]
        if not 2 <= len(asked) <= COMPARED:
            raise Refused(422, f"from 2 to {COMPARED} indexes are compared, got {len(asked)}")
        return asked

    def close(self) -> None:
        self.shelves.close()
        self.pictures.close()
        self.work.close()
        self.slow.close()
