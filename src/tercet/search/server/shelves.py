"""The indexes that are served, opened one after the other in the background: the page does not wait for a model."""

import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tercet.search.items import SourceOfPictures
from tercet.search.looks import looks_again
from tercet.search.query import Hit, Searcher
from tercet.search.server.refused import Refused
from tercet.search.server.together import Together

Question = tuple[str, int]
"""Words, and how many results."""


class Shelf:
    """One index with its model, or why it is not there."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self._searcher: Searcher | None = None
        self._source: SourceOfPictures | None = None
        self._error: str | None = None
        self._questions: Together[Question, list[Hit]] = Together(self._answer, f"questions of {name}")

    def open(self) -> None:
        try:
            searcher = Searcher.open(self.folder)
            searcher.many_words(["a photo"], 1)  # encoders are loaded by the first question: better before a visitor
            self._source = SourceOfPictures(searcher.index.manifest.get("source"))
            self._searcher = searcher
        except Exception as error:  # one index that cannot be opened is no reason to close the others
            print(f"{self.name}: {error or type(error).__name__}", file=sys.stderr, flush=True)
            self._error = "it could not be opened; the terminal of the server says why"  # which may name places

    @property
    def searcher(self) -> Searcher:
        if self._error is not None:
            raise Refused(500, f"{self.name}: {self._error}")
        if self._searcher is None:
            raise Refused(503, f"the index {self.name} is being opened; ask again in a moment")
        return self._searcher

    async def ask(self, text: str, k: int) -> list[Hit]:
        """Together with whatever else is asked at the moment."""
        _ = self.searcher  # refuses at once where it is not there yet
        return await self._questions.ask((text, k))

    def close(self) -> None:
        self._questions.close()

    @property
    def source(self) -> SourceOfPictures:
        assert self._source is not None
        return self._source

    def about(self) -> dict[str, Any]:
        state = "failed" if self._error else "opening" if self._searcher is None else "ready"
        about: dict[str, Any] = {"name": self.name, "state": state, "error": self._error}
        if self._searcher is None:
            return about | {"items": 0, "system": None, "captions": False, "twice": False}
        index, retriever = self._searcher.index, self._searcher.retriever
        return about | {
            "items": len(index.items),
            "system": retriever.system,
            "captions": any(item.captions for item in index.items),
            "twice": looks_again(retriever),
        }

    def check_item(self, number: int) -> None:
        if not 0 <= number < len(self.searcher.index.items):
            most = len(self.searcher.index.items) - 1
            raise Refused(404, f"{self.name} has no picture {number}: they go from 0 to {most}")

    def _answer(self, questions: Sequence[Question]) -> list[list[Hit]]:
        """Read together; each gets as many as it asked for."""
        found = self.searcher.many_words([text for text, _ in questions], max(k for _, k in questions))
        return [hits[:k] for hits, (_, k) in zip(found, questions, strict=True)]


class Shelves:
    def __init__(self, folders: Sequence[Path]) -> None:
        self._shelves = {name: Shelf(name, folder) for name, folder in _named(folders).items()}
        self._opener = threading.Thread(target=self._open_all, name="opens indexes", daemon=True)

    def open(self) -> None:
        self._opener.start()

    def _open_all(self) -> None:
        for shelf in self._shelves.values():
            shelf.open()

    def get(self, name: str | None) -> Shelf:
        """By name; the first where none is named."""
        if name is None:
            if not self._shelves:
                raise Refused(404, "no index is served: name one, tercet serve INDEX")
            return next(iter(self._shelves.values()))
        if name not in self._shelves:
            raise Refused(404, f"no index {name[:80]!r} is served; there are: {', '.join(self._shelves)}")
        return self._shelves[name]

    def __iter__(self) -> Any:
        return iter(self._shelves.values())

    def close(self) -> None:
        for shelf in self._shelves.values():
            shelf.close()


def _named(folders: Sequence[Path]) -> dict[str, Path]:
    """Folder names, with a number where two are the same."""
    named: dict[str, Path] = {}
    for folder in folders:
        name, count = folder.resolve().name, 2
        while name in named:
            name, count = f"{folder.resolve().name} ({count})", count + 1
        named[name] = folder
    return named
