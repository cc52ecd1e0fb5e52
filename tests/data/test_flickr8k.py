"""The real Flickr8k, if TERCET_FLICKR8K (Karpathy's JSON, images) and TERCET_FLICKR8K_PRECOMP name its folders.

TERCET_FLICKR8K=path/to/flickr8k TERCET_FLICKR8K_PRECOMP=path/to/precomp python -m pytest tests/data/test_flickr8k.py
"""

import os
from pathlib import Path

import numpy as np
import pytest
from nltk.tokenize import word_tokenize

from tercet.data.dataset import paired
from tercet.data.formats import open_data
from tercet.data.formats.parquet import write_parquet
from tercet.data.formats.precomp import write_precomp
from tercet.data.inspect import summarise
from tercet.data.samplers import pair_batches
from tercet.data.text.tokenized import tokenize_captions
from tercet.data.text.tokenizer import tokenize
from tercet.data.text.vocabulary import build_vocabulary

FOLDER, PRECOMP = (os.environ.get(name) for name in ("TERCET_FLICKR8K", "TERCET_FLICKR8K_PRECOMP"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER or not PRECOMP, reason="TERCET_FLICKR8K and TERCET_FLICKR8K_PRECOMP are not set"),
]


@pytest.fixture(scope="module")
def both():
    return open_data(Path(FOLDER) / "dataset_flickr8k.json"), open_data(PRECOMP)


def test_both_formats_are_the_same_dataset(both):
    karpathy, precomp = both
    sizes = {name: (len(split.image_names), len(split.texts)) for name, split in karpathy.splits.items()}
    assert sizes == {"train": (6000, 30000), "val": (1000, 5000), "test": (1000, 5000)}
    for name, split in karpathy.splits.items():
        other = precomp.splits[name]
        assert split.image_names == other.image_names
        assert split.texts == other.texts
        assert np.array_equal(split.owners, other.owners)


def test_both_summaries_agree_without_errors(both):
    first, second = map(summarise, both)
    assert not first.errors
    assert not second.errors
    for name in first.splits:
        a, b = first.splits[name], second.splits[name]
        assert (a.images, a.captions, a.words_per_caption, a.shared_captions) == (
            b.images,
            b.captions,
            b.words_per_caption,
            b.shared_captions,
        )


def test_conversions_come_back_byte_for_byte(both, tmp_path):
    write_parquet(both[1], tmp_path / "parquet")
    write_precomp(open_data(tmp_path / "parquet"), tmp_path / "precomp")
    for file in Path(PRECOMP).iterdir():
        assert file.read_bytes() == (tmp_path / "precomp" / file.name).read_bytes()
    write_precomp(both[0], tmp_path / "texts")
    for file in (tmp_path / "texts").iterdir():
        assert file.read_bytes() == (Path(PRECOMP) / file.name).read_bytes()


def test_words_are_nltks_on_every_caption(both):
    texts = [text for split in both[0].splits.values() for text in split.texts]
    assert len(texts) == 40000
    assert [tokenize(text) for text in texts] == [word_tokenize(text.lower(), preserve_line=True) for text in texts]


def test_about_one_pair_of_the_same_image_in_a_batch(both):
    split = both[1].splits["train"]
    data = paired("flickr8k", split, captions=tokenize_captions(split.texts, build_vocabulary(split.texts)))
    index_batches = pair_batches(data.owners, 128, seed=0, epoch=0)
    equal = [int((batch.images[:, None] == batch.images[None]).sum() - 128) / 2 for batch in index_batches]
    assert 0.8 < np.mean(equal) < 1.4
