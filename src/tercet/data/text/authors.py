"""The authors' vocabularies: JSON of SCAN, BFAN and VSE-infinity; pickles of VSE++ and VSRN, never trusted."""

import functools
import io
import pickle
from pathlib import Path
from typing import Any

from tercet.data.lines import read_json
from tercet.data.text.vocabulary import Vocabulary


def import_vocabulary(file: Path) -> Vocabulary:
    """`.json` with word2idx, or a pickled `vocab.Vocabulary` with the same fields."""
    fields = read_json(file) if file.suffix == ".json" else _unpickle(file)
    numbers = fields.get("word2idx") if isinstance(fields, dict) else None
    if not isinstance(numbers, dict) or not numbers:
        raise ValueError(f"{file}: expected word2idx, a mapping of words to numbers")
    if not all(isinstance(number, int) for number in numbers.values()):
        raise ValueError(f"{file}: expected whole numbers for the words of word2idx")
    words = {number: word for word, number in numbers.items()}
    if sorted(words) != list(range(len(numbers))):
        raise ValueError(f"{file}: the numbers of its {len(numbers)} words are not 0 to {len(numbers) - 1}, each once")
    return Vocabulary(tuple(str(words[number]) for number in range(len(words))))


class _Pickled:
    """Takes the place of the authors' class: nothing but its fields."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.fields = state


class _Nothing:
    """Takes the place of `object`, which Python 2 names as the base."""


class _Restricted(pickle._Unpickler):
    """Nothing can be looked up by name but the authors' class, so nothing of a pickle can run.

    The unpickler in Python: the quick one takes memory for whatever size a few bytes claim.
    """

    def find_class(self, module: str, name: str) -> Any:
        if (module.split(".")[-1], name) in {("vocab", "Vocabulary"), ("__main__", "Vocabulary")}:
            return _Pickled
        if (module, name) in {("copy_reg", "_reconstructor"), ("copyreg", "_reconstructor")}:
            return functools.partial(_reconstruct)  # a new one each time: a pickle may write to what it is given
        if (module, name) in {("__builtin__", "object"), ("builtins", "object")}:
            return _Nothing
        raise ValueError(f"refused: the pickle asks for {module}.{name}; only vocab.Vocabulary may be loaded")


def _reconstruct(kind: type, base: type, state: object) -> _Pickled:
    """How protocol 0 of Python 2 makes an object."""
    if kind is not _Pickled:
        raise ValueError(f"refused: the pickle makes a {kind!r}; only vocab.Vocabulary may be made")
    return _Pickled()


def _unpickle(file: Path) -> Any:
    try:
        loaded = _Restricted(io.BytesIO(file.read_bytes()), encoding="utf-8").load()
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    except Exception as error:  # a damaged pickle may raise anything
        raise ValueError(f"{file}: not a pickle that can be read: {type(error).__name__}: {error}") from error
    if not isinstance(loaded, _Pickled):
        raise ValueError(f"{file}: expected a pickled vocab.Vocabulary, got {type(loaded).__name__}")
    return getattr(loaded, "fields", None)
