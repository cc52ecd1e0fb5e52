"""Passages and queries, both texts: BEIR's folders, and tables of (query, passage) pairs.

    FOLDER/corpus.jsonl                     {"_id": "p1", "title": "", "text": "..."}: the passages
    FOLDER/queries.jsonl                    {"_id": "q1", "text": "..."}
    FOLDER/qrels/{train,dev,test}.tsv       query-id, corpus-id, score: which passages answer which queries

`corpus.tsv` and `queries.tsv` may take the place of the JSON lines: id and text, or a header that names id, text and
title. Judgments may also have TREC's four columns. A pair with a score of 0 is no positive. The passages of every split
are the whole corpus, as in the published evaluations: those that belong to no query of a split are distractors.

A table in one file has the columns query and passage, perhaps split; equal texts are one item, and a row without a
query is a distractor.

`tercet features` writes the same folder with `corpus.npy` and `queries.npy`, a row for each line of the two files.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tercet.data.dataset import DataSet, Split, split_name
from tercet.data.feature_array import FeatureArray, map_array
from tercet.data.formats.builder import DEFAULT_SPLIT, sort_splits
from tercet.data.formats.csv_tsv import PASSAGE_COLUMNS, QUERY_COLUMNS, column, header_names, table_rows
from tercet.data.formats.precomp import MANIFEST, check_features
from tercet.data.textio import ErrorPolicy, caption_error, numbered_lines
from tercet.types import TEXT_TEXT

CORPUS, QUERIES, QRELS = "corpus", "queries", "qrels"
SUFFIXES = (".jsonl", ".tsv")
ID_COLUMNS = ("_id", "id", "pid", "qid", "passage_id", "query_id", "query-id")
JUDGED_COLUMNS = ("query-id", "query_id", "qid", "query")
BEIR_SPLIT_NAMES = {"val": "dev"}


@dataclass
class Texts:
    """Passages or queries: id -> row among the valid ones; texts; the line of each, which is its row of features."""

    rows: dict[str, int] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    line_count: int = 0
    """Lines of the file, also invalid ones; empty ones and a header are not counted."""

    def add(self, name: str, text: str, line: int) -> None:
        self.rows[name] = len(self.texts)
        self.texts.append(text)
        self.lines.append(line)


Judged = dict[str, dict[tuple[int, int], str]]
"""Split -> positive (passage, query) rows -> where the pair was read."""


def recognise(path: Path) -> bool:
    if path.is_file() and path.stem not in (CORPUS, QUERIES):
        return False
    return _find(_folder(path), CORPUS) is not None and (_folder(path) / QRELS).is_dir()


def read(path: Path, images: Path | None, errors: ErrorPolicy) -> DataSet:
    if images is not None:
        raise ValueError(f"--images {images}: {path} has passages and queries, and no images")
    is_table = path.is_file() and path.stem not in (CORPUS, QUERIES)
    folder = None
    if is_table:
        passages, queries, judged = _read_pairs(path, errors)
    else:
        folder = _folder(path)
        if (folder / MANIFEST).is_file():
            check_features(folder)
        passages, queries = _read_texts(folder, CORPUS, errors), _read_texts(folder, QUERIES, errors)
        judged = _read_judgments(folder / QRELS, passages, queries, errors)
    if not passages.texts or not queries.texts:
        missing = "passage" if not passages.texts else "query"
        raise ValueError(f"{path}: no valid {missing}" + _first_error(errors))
    features = _features(folder, CORPUS, passages)
    names, texts = tuple(passages.rows), tuple(passages.texts)
    splits = {
        name: _split(names, texts, features, queries, _features(folder, QUERIES, queries), list(judged[name]))
        for name in sort_splits(judged)
        if judged[name]
    }
    if not splits:
        raise ValueError(f"{path}: no query has a positive passage" + _first_error(errors))
    return DataSet(folder or path, "query-table" if is_table else "beir", splits, errors.messages)


def _split(
    names: tuple[str, ...],
    texts: tuple[str, ...],
    features: FeatureArray | None,
    queries: Texts,
    query_features: FeatureArray | None,
    pairs: list[tuple[int, int]],
) -> Split:
    """The queries that have a positive passage, in the order of the first of these; the rest are `more_pairs`."""
    passages_of: dict[int, list[int]] = {}
    for passage, query in sorted(pairs):
        passages_of.setdefault(query, []).append(passage)
    chosen = sorted(passages_of, key=lambda query: (passages_of[query][0], query))
    more = sorted((p, caption) for caption, query in enumerate(chosen) for p in passages_of[query][1:])
    ids = list(queries.rows)
    return Split(
        image_names=names,
        texts=tuple(queries.texts[query] for query in chosen),
        owners=np.array([passages_of[query][0] for query in chosen], dtype=np.int64),
        features=features,
        caption_features=query_features and query_features.subset(np.array(chosen, dtype=np.int64)),
        image_texts=texts,
        caption_names=tuple(ids[query] for query in chosen),
        more_pairs=np.array(more, dtype=np.int64) if more else None,
        sides=TEXT_TEXT,
    )


def _folder(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _find(folder: Path, stem: str) -> Path | None:
    files = (folder / f"{stem}{suffix}" for suffix in (".jsonl", ".tsv"))
    return next((file for file in files if file.is_file()), None)


def _read_texts(folder: Path, stem: str, errors: ErrorPolicy) -> Texts:
    """The valid texts of a file; those that are not are reported, and so are ids that occur twice."""
    file = _find(folder, stem)
    if file is None:
        raise ValueError(f"{folder}: no {stem}.jsonl or {stem}.tsv")
    noun = TEXT_TEXT.image if stem == CORPUS else TEXT_TEXT.caption
    lines = _json_lines(file, errors, noun) if file.suffix == ".jsonl" else _tsv(file, errors)
    found, first = Texts(), dict[str, str]()
    for line, (location, name, text) in enumerate(lines):
        found.line_count += 1
        if name is None:
            continue  # reported
        error = _id_error(name) or caption_error(text, noun)
        if error is None and name in first:
            error = f"duplicate id {name!r}, first in {first[name]}"
        if error is not None:
            errors.report(location, error)
            continue
        first[name] = location.rsplit(", ", 1)[-1]
        found.add(name, str(text), line)
    return found


def _id_error(name: str) -> str | None:
    if name and name.isprintable() and name == name.strip():
        return None
    return f"expected an id without tabs, line breaks or spaces around it, got {name!r}"


def _json_lines(file: Path, errors: ErrorPolicy, noun: str) -> Iterator[tuple[str, str | None, Any]]:
    """Place, id and text of every line that is not empty; the id is None if the line was reported."""
    for number, line in numbered_lines(file, errors):
        location = f"{file}, line {number}"
        if line is not None and not line.strip():
            continue
        try:
            content = None if line is None else json.loads(line)
        except (ValueError, RecursionError) as error:
            message = error.msg if isinstance(error, json.JSONDecodeError) else "too deep or too long a number"
            errors.report(location, f"invalid JSON: {message}")
            content = None
        else:
            if line is not None and not isinstance(content, dict):
                errors.report(location, f"expected an object with _id and text, got {type(content).__name__}")
                content = None
        if content is None:
            yield location, None, None
            continue
        name, text, title = content.get("_id", content.get("id")), content.get("text"), content.get("title")
        if not isinstance(name, (str, int)) or isinstance(name, bool):
            errors.report(location, f"expected an _id of the {noun}, got {name!r}")
            yield location, None, None
            continue
        yield location, str(name), _with_title(title, text)


def _tsv(file: Path, errors: ErrorPolicy) -> Iterator[tuple[str, str | None, Any]]:
    names = header_names(file)
    name, text, title = column(names, ID_COLUMNS), column(names, ("text", *QUERY_COLUMNS)), column(names, ("title",))
    has_header = name is not None and text is not None
    width = len(names) if has_header else 2
    for row_number, (location, row) in enumerate(table_rows(file, errors)):
        if has_header and row_number == 0:
            continue
        if len(row) != width:
            errors.report(location, f"expected {width} columns, got {len(row)}")
            yield location, None, None
        elif has_header:
            assert name is not None
            assert text is not None
            yield location, row[name].strip(), _with_title(None if title is None else row[title], row[text])
        else:
            yield location, row[0].strip(), row[1]


def _with_title(title: object, text: object) -> object:
    """BEIR's models read the title before the text."""
    if isinstance(title, str) and title.strip() and isinstance(text, str):
        return f"{title.strip()} {text}".strip()
    return text


def _read_judgments(folder: Path, passages: Texts, queries: Texts, errors: ErrorPolicy) -> Judged:
    files = sorted(folder.glob("*.tsv"))
    if not files:
        raise ValueError(f"{folder}: no judgments: expected train.tsv, dev.tsv or test.tsv")
    judged: Judged = {}
    for file in files:
        name = split_name(file.stem)
        if name in judged:
            raise ValueError(f"{folder}: two files for the split {name}")
        judged[name] = {}
        pairs = dict[tuple[int, int], str]()
        for number, (location, row) in enumerate(table_rows(file, errors)):
            if number == 0 and row[0].strip().lower() in JUDGED_COLUMNS:
                continue
            try:
                query, passage, score = _judgment(row, passages, queries)
                if (passage, query) in pairs:
                    raise ValueError(f"this query and passage are judged twice, first in {pairs[passage, query]}")
            except ValueError as error:
                errors.report(location, str(error))
                continue
            pairs[passage, query] = location.rsplit(", ", 1)[-1]
            if score > 0:
                judged[name][passage, query] = location
    return judged


def _judgment(row: list[str], passages: Texts, queries: Texts) -> tuple[int, int, float]:
    """Query row, passage row and score of a line of judgments."""
    cells = [cell.strip() for cell in row]
    if len(cells) == 4:
        cells = [cells[0], *cells[2:]]  # TREC's: query, iteration, passage, score
    if len(cells) != 3:
        raise ValueError(f"expected query-id, corpus-id and score, separated by tabs, got {len(row)} columns")
    query, passage, score = cells
    if query not in queries.rows:
        raise ValueError(f"unknown query id {query!r}: it is not among the {len(queries.rows):,} valid queries")
    if passage not in passages.rows:
        raise ValueError(f"unknown passage id {passage!r}: it is not among the {len(passages.rows):,} valid passages")
    try:
        value = float(score)
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        raise ValueError(f"expected a number as score, got {score!r}")
    return queries.rows[query], passages.rows[passage], value


def _read_pairs(file: Path, errors: ErrorPolicy) -> tuple[Texts, Texts, Judged]:
    """A table of (query, passage) rows. Ids are numbers in order of appearance."""
    names = header_names(file)
    query_column, passage_column, split_column = (
        column(names, known) for known in (QUERY_COLUMNS, PASSAGE_COLUMNS, ("split",))
    )
    if query_column is None or passage_column is None:
        raise ValueError(f"{file}, line 1: expected a header with the columns query and passage")
    passages, queries, judged = Texts(), Texts(), Judged()
    for number, (location, row) in enumerate(table_rows(file, errors)):
        if number == 0:
            continue
        try:
            if len(row) != len(names):
                raise ValueError(f"expected {len(names)} columns, got {len(row)}")
            split = split_name(DEFAULT_SPLIT if split_column is None else row[split_column])
            error = caption_error(row[passage_column], "passage")
            if error is None and row[query_column].strip():
                error = caption_error(row[query_column], "query")
            if error is not None:
                raise ValueError(error)
        except ValueError as error:
            errors.report(location, str(error))
            continue
        passage = _row_of(passages, row[passage_column])
        if not row[query_column].strip():
            continue  # a distractor
        pair = passage, _row_of(queries, row[query_column])
        if pair in judged.setdefault(split, {}):
            errors.report(location, f"this query and passage are a pair twice, first in {judged[split][pair]}")
            continue
        judged[split][pair] = location.rsplit(", ", 1)[-1]
    return _numbered(passages, "p"), _numbered(queries, "q"), judged


def _row_of(items: Texts, text: str) -> int:
    """The row of this text, which gets one if it is new."""
    if text not in items.rows:
        items.add(text, text, len(items.texts))
    return items.rows[text]


def _numbered(items: Texts, letter: str) -> Texts:
    return replace(items, rows={f"{letter}{row + 1}": row for row in range(len(items.texts))})


def _features(folder: Path | None, stem: str, items: Texts) -> FeatureArray | None:
    """Their rows of `corpus.npy` or `queries.npy`, if it exists."""
    file = None if folder is None else folder / f"{stem}.npy"
    if file is None or not file.is_file():
        return None
    array = map_array(file, ["row dim", "row region dim"])
    if len(array) != items.line_count:
        raise ValueError(f"{file}: expected {items.line_count} rows, one per line of {stem}, got {len(array)}")
    index = None if len(array) == len(items.lines) else np.array(items.lines, dtype=np.int64)
    return FeatureArray((array,), str(file), index)


def _first_error(errors: ErrorPolicy) -> str:
    return f"; first of {len(errors.messages)} errors: {errors.messages[0]}" if errors.messages else ""


def queries_of(data: DataSet) -> dict[str, str]:
    """Id -> text of the queries of all splits; a query may be in several."""
    queries: dict[str, str] = {}
    for split in data.splits.values():
        assert split.caption_names is not None
        queries |= dict(zip(split.caption_names, split.texts, strict=True))
    return queries


def write_beir(data: DataSet, folder: Path) -> None:
    """Write passages, queries and judgments of a dataset of two texts into an existing folder."""
    first = next(iter(data.splits.values()))
    assert first.image_texts is not None
    _write_texts(folder / f"{CORPUS}.jsonl", zip(first.image_names, first.image_texts, strict=True))
    _write_texts(folder / f"{QUERIES}.jsonl", queries_of(data).items())
    (folder / QRELS).mkdir(exist_ok=True)
    for name, split in data.splits.items():
        assert split.caption_names is not None
        pairs = sorted((caption, image) for image, caption in split.pairs().tolist())
        rows = [f"{split.caption_names[caption]}\t{split.image_names[image]}\t1\n" for caption, image in pairs]
        content = "".join(["query-id\tcorpus-id\tscore\n", *rows])
        (folder / QRELS / f"{BEIR_SPLIT_NAMES.get(name, name)}.tsv").write_text(content, encoding="utf-8", newline="\n")


def _write_texts(file: Path, texts: Iterable[tuple[str, str]]) -> None:
    with file.open("w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(json.dumps({"_id": name, "text": text}) + "\n" for name, text in texts)
