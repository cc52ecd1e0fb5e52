"""Captions as a text-text dataset: the first caption of an image is the query, its other captions are the passages.

    python examples/text_pairs.py dataset_flickr8k.json flickr8k_texts --distractors 2000
    python examples/text_pairs.py scenes:300 scenes_texts

The first argument is anything that `tercet data inspect` reads. Writes BEIR's layout: corpus.jsonl, queries.jsonl and
qrels/{train,dev,test}.tsv. `--distractors N` leaves the last N images of the training split without a query: their
captions are passages that answer nothing. Captions of one image with equal words are one passage.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from tercet.data.dataset import Split
from tercet.data.formats import open_data


def captions_by_image(split: Split) -> Iterator[list[str]]:
    """The different captions of every image with at least two."""
    for image in range(len(split.image_names)):
        captions = list(dict.fromkeys(split.texts[caption] for caption in split.captions_of(image)))
        if len(captions) > 1:
            yield captions


def write(source: str, target: Path, distractors: int, limit: int | None) -> None:
    target.mkdir(parents=True)
    (target / "qrels").mkdir()
    passages: dict[str, str] = {}
    queries: dict[str, str] = {}
    for name, split in open_data(source, images=None).splits.items():
        groups = list(captions_by_image(split))[:limit]
        without_query = distractors if name == "train" else 0
        rows = ["query-id\tcorpus-id\tscore\n"]
        for number, (first, *others) in enumerate(groups):
            ids = [f"{name}{number}-{position}" for position in range(1, len(others) + 1)]
            passages |= dict(zip(ids, others, strict=True))
            if number < len(groups) - without_query:
                queries[f"{name}{number}"] = first
                rows += [f"{name}{number}\t{passage}\t1\n" for passage in ids]
        file = {"val": "dev"}.get(name, name)
        (target / "qrels" / f"{file}.tsv").write_text("".join(rows), encoding="utf-8")
    for file, texts in (("corpus", passages), ("queries", queries)):
        lines = [json.dumps({"_id": name, "text": text}) + "\n" for name, text in texts.items()]
        (target / f"{file}.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="dataset of images with captions")
    parser.add_argument("target", type=Path, help="new folder")
    parser.add_argument("--distractors", type=int, default=0, help="training images whose captions get no query")
    parser.add_argument("--limit", type=int, default=None, help="images of each split; all if not given")
    given = parser.parse_args()
    write(given.source, given.target, given.distractors, given.limit)
