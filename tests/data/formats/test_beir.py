"""Passages and queries: what is read, what is refused and where; damaged files never end in another exception."""

import contextlib
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.data.formats import beir, open_data
from tests.data.small_datasets import PLAIN, write_csv
from tests.examples import examples

PASSAGES = {"p1": "A dog runs .", "p2": "A cat sleeps .", "p3": "Nobody asked for this .", "p4": "Ein Hund läuft ."}
QUERIES = {"q1": "where is the dog", "q2": "which animals", "q3": "a cat ?"}
# q1 and q2 have several passages, p1 several queries, p3 none: a distractor.
TRAIN, TEST = [("q1", "p4", 1), ("q1", "p1", 2), ("q2", "p1", 1), ("q2", "p3", 0), ("q2", "p2", 1)], [("q3", "p2", 1)]


def jsonl(file, texts):
    file.write_text("".join(json.dumps({"_id": name, "text": text}) + "\n" for name, text in texts.items()))


def qrels(file, rows, header="query-id\tcorpus-id\tscore\n"):
    file.parent.mkdir(exist_ok=True)
    file.write_text(header + "".join("\t".join(map(str, row)) + "\n" for row in rows))


def write(folder, passages=PASSAGES, queries=QUERIES, train=TRAIN, test=TEST):
    folder.mkdir(exist_ok=True)
    jsonl(folder / "corpus.jsonl", passages)
    jsonl(folder / "queries.jsonl", queries)
    qrels(folder / "qrels" / "train.tsv", train)
    qrels(folder / "qrels" / "test.tsv", test)
    return folder


def pairs(split):
    """(query, passage) ids of all positive pairs."""
    return {(split.caption_names[caption], split.image_names[image]) for image, caption in split.pairs().tolist()}


def test_every_split_has_the_whole_corpus_and_all_positives(tmp_path):
    data = open_data(write(tmp_path / "beir"))
    assert data.format == "beir"
    assert list(data.splits) == ["train", "test"]
    train, test = data.splits["train"], data.splits["test"]
    assert train.image_names == test.image_names == tuple(PASSAGES)
    assert train.image_texts is test.image_texts
    assert train.image_texts == tuple(PASSAGES.values())
    assert pairs(train) == {("q1", "p1"), ("q1", "p4"), ("q2", "p1"), ("q2", "p2")}  # a score of 0 is no positive
    assert pairs(test) == {("q3", "p2")}
    assert test.more_pairs is None
    assert train.captions_per_image().tolist() == [2, 1, 0, 1]
    assert train.captions_of(0) == [0, 1]
    assert train.sides.short("t2i") == "query -> passage"


def test_other_layouts_give_the_same(tmp_path):
    expected = open_data(write(tmp_path / "beir"))
    headless, titled = write(tmp_path / "headless"), write(tmp_path / "titled")
    for folder in (headless, titled):
        for name in ("corpus", "queries"):
            (folder / f"{name}.jsonl").unlink()
    for stem, texts in (("corpus", PASSAGES), ("queries", QUERIES)):
        (headless / f"{stem}.tsv").write_text("".join(f"{name}\t{text}\n" for name, text in texts.items()))
        rows = [f"{name}\t{text.split(' ', 1)[1]}\t{text.split(' ', 1)[0]}\n" for name, text in texts.items()]
        (titled / f"{stem}.tsv").write_text("id\ttext\ttitle\n" + "".join(rows))
    qrels(headless / "qrels" / "train.tsv", [(query, 0, passage, score) for query, passage, score in TRAIN], header="")
    for data in (open_data(headless), open_data(titled), open_data(headless / "corpus.tsv")):
        for name, split in expected.splits.items():
            assert pairs(data.splits[name]) == pairs(split)
            assert data.splits[name].image_texts == split.image_texts


def test_a_table_of_pairs(tmp_path):
    rows = [
        *(f"{QUERIES[query]}\t{PASSAGES[passage]}\ttrain" for query, passage, score in TRAIN if score),
        f"\t{PASSAGES['p3']}\ttrain",
        f"{QUERIES['q3']}\t{PASSAGES['p2']}\tdev",
    ]
    (tmp_path / "questions.tsv").write_text("question\tpassage\tsplit\n" + "\n".join(rows) + "\n")
    data = open_data(tmp_path / "questions.tsv")
    by_text = {
        (split.texts[caption], split.image_texts[image])
        for split in [data.splits["train"]]
        for image, caption in split.pairs().tolist()
    }
    assert by_text == {(QUERIES[query], PASSAGES[passage]) for query, passage, score in TRAIN if score}
    assert set(data.splits["val"].image_texts) == set(PASSAGES.values())


def test_what_is_written_is_read_again(tmp_path):
    data = open_data(write(tmp_path / "beir"))
    (tmp_path / "again").mkdir()
    beir.write_beir(data, tmp_path / "again")
    again = open_data(tmp_path / "again")
    for name, split in data.splits.items():
        assert pairs(again.splits[name]) == pairs(split)
        assert again.splits[name].texts == split.texts
    images = open_data(write_csv(PLAIN, tmp_path))
    assert not images.sides.image_is_text


def append(file, line):
    with (file).open("a") as stream:
        stream.write(line + "\n")


@pytest.mark.parametrize(
    ("file", "line", "place", "message"),
    [
        ("qrels/train.tsv", "q9\tp1\t1", "line 7", "unknown query id 'q9'"),
        ("qrels/test.tsv", "q1\tp9\t1", "line 3", "unknown passage id 'p9'"),
        ("qrels/test.tsv", "q3\tp2\t1", "line 3", "judged twice, first in line 2"),
        ("qrels/test.tsv", "q3\tp1\tyes", "line 3", "expected a number as score, got 'yes'"),
        ("qrels/test.tsv", "q3\tp1\tnan", "line 3", "expected a number as score"),
        ("qrels/test.tsv", "q3 p1 1", "line 3", "separated by tabs, got 1 columns"),
        ("corpus.jsonl", '{"_id": "p1", "text": "again"}', "line 5", "duplicate id 'p1', first in line 1"),
        ("corpus.jsonl", '{"_id": "p5", "text": "  "}', "line 5", "empty passage"),
        ("corpus.jsonl", '{"_id": "p5"}', "line 5", "expected a passage string, got NoneType"),
        ("corpus.jsonl", '{"text": "no id"}', "line 5", "expected an _id of the passage, got None"),
        ("corpus.jsonl", '{"_id": "p\\t5", "text": "x"}', "line 5", "expected an id without tabs"),
        ("queries.jsonl", '{"_id": "q4", "text": ""}', "line 4", "empty query"),
        ("queries.jsonl", "{", "line 4", "invalid JSON"),
        ("queries.jsonl", "[]", "line 4", "expected an object with _id and text, got list"),
    ],
)
def test_a_bad_line_is_named_or_skipped(tmp_path, file, line, place, message):
    folder = write(tmp_path / "beir")
    expected = {name: pairs(split) for name, split in open_data(folder).splits.items()}
    append(folder / file, line)
    with pytest.raises(ValueError, match=message) as error:
        open_data(folder)
    assert f"{folder / file}, {place}: " in str(error.value)
    skipped = open_data(folder, skip_bad=True)
    assert len(skipped.skipped) == 1
    assert {name: pairs(split) for name, split in skipped.splits.items()} == expected


def test_what_is_missing_is_named(tmp_path):
    folder = write(tmp_path / "beir")
    (folder / "queries.jsonl").unlink()
    with pytest.raises(ValueError, match=r"no queries\.jsonl or queries\.tsv"):
        open_data(folder)
    folder = write(tmp_path / "none", train=[("q1", "p1", 0)], test=[])
    with pytest.raises(ValueError, match="no query has a positive passage"):
        open_data(folder)
    for file in (folder / "qrels").iterdir():
        file.unlink()
    with pytest.raises(ValueError, match=r"qrels: no judgments: expected train\.tsv"):
        open_data(folder)
    with pytest.raises(ValueError, match="share their passages and cannot be joined"):
        open_data(write(tmp_path / "two")).split("train+test")
    with pytest.raises(ValueError, match="has passages and queries, and no images"):
        open_data(tmp_path / "two", images=tmp_path)


def test_features_are_rows_of_lines(tmp_path):
    """A skipped line keeps its row of the feature files."""
    folder = write(tmp_path / "beir", {"bad": " "} | PASSAGES)
    np.save(folder / "corpus.npy", np.arange(10, dtype=np.float32).reshape(5, 2))
    np.save(folder / "queries.npy", np.arange(6, dtype=np.float32).reshape(3, 2))
    split = open_data(folder, skip_bad=True).splits["test"]
    assert split.features.raw(np.arange(4))[:, 0].tolist() == [2, 4, 6, 8]
    assert split.caption_features.raw(np.arange(1)).tolist() == [[4, 5]]
    np.save(folder / "queries.npy", np.zeros((4, 2), dtype=np.float32))
    with pytest.raises(ValueError, match=r"queries\.npy: expected 3 rows, one per line of queries, got 4"):
        open_data(folder, skip_bad=True)


@examples(300)
@given(
    file=st.sampled_from(["corpus.jsonl", "queries.jsonl", "qrels/train.tsv", "qrels/test.tsv"]),
    position=st.integers(0, 300),
    replacement=st.binary(max_size=6),
    cut=st.integers(0, 40),
    skip=st.booleans(),
)
def test_damaged_files_are_refused_or_read(file, position, replacement, cut, skip):
    with tempfile.TemporaryDirectory() as temporary:
        folder = write(Path(temporary) / "beir")
        content = (folder / file).read_bytes()
        start = position % len(content)
        (folder / file).write_bytes(content[:start] + replacement + content[start + cut :])
        with contextlib.suppress(ValueError):
            data = open_data(folder, skip_bad=skip)
            for split in data.splits.values():
                assert len(pairs(split)) == len(split.pairs())
                assert all(text.strip() for text in (*split.texts, *split.image_texts))
