"""Two-stage search: models that re-rank find through an index what they find by exhaustive comparison."""

import numpy as np
import pytest
import torch

from tercet.data.formats import open_data
from tercet.search.index import open_index, update_index
from tercet.search.metadata import images_in_dataset
from tercet.search.searcher import Searcher, words_over_regions
from tercet.search.two_stage import (
    IndexedVectors,
    check_indexable,
    encode_for_index,
    encode_queries,
    rerank_similarity,
)
from tests.examples import others_slow
from tests.search.small_indexes import SCENES, model, shared_index

TEXTS = ["a red square", "two things on snow , a blue ring", "a small star over a big dark cross"]
SYSTEMS = others_slow(["scan", "xvlm", "scan-i2t", "bfan"], 2)


@pytest.fixture(scope="module", params=SYSTEMS)
def searched(request):
    return Searcher.open(shared_index(request.param)), model(request.param).eval()


def exhaustive(retriever, image_files, texts):
    """Similarity of every image to every text, one pair at a time, by the methods of the model."""
    inner = retriever.model
    with torch.inference_mode():
        if retriever.system != "xvlm":
            images = retriever.embed_images(image_files)
            words = [retriever.embed_texts([text]) for text in texts]
            return [torch.stack([inner.similarity(image[None], text)[0, 0] for image in images]) for text in words]
        tokens, similarity = inner.image_tokens(retriever.preprocess_images(image_files)[0]), []
        for text in texts:
            ids, lengths = retriever.tokenize([text])
            states = inner.word_states(ids, lengths)
            similarity.append(torch.stack([inner.match(image[None], states, lengths)[0] for image in tokens]))
        return similarity


def test_the_order_is_that_of_the_model_itself(searched):
    searcher, retriever = searched
    data = open_data(SCENES)
    images = images_in_dataset(data)
    opened = [split.image_files.open(n) for split in data.splits.values() for n in range(len(split.image_names))]
    assert list(images) == [item.path for item in searcher.index.items]
    for text, expected in zip(TEXTS, exhaustive(retriever, opened, TEXTS), strict=True):
        hits = searcher.search_text(text, k=len(opened))
        similarity = torch.tensor([hit.similarity for hit in sorted(hits, key=lambda hit: hit.number)])
        torch.testing.assert_close(similarity, expected.float(), atol=1e-4, rtol=1e-4)
        assert [hit.similarity for hit in hits] == sorted((hit.similarity for hit in hits), reverse=True)
        assert sorted(hit.first_rank for hit in hits) == list(range(1, len(opened) + 1))
        first, ranks = searcher.text_ranks(text, 3)
        assert [hit.number for hit in first] == [hit.number for hit in hits[:3]]
        assert ranks([hit.number for hit in hits]) == list(range(1, len(opened) + 1))


def test_batched_and_single_queries_agree(searched):
    searcher, _ = searched
    batched = searcher.search_texts(TEXTS, 7)
    for text, hits in zip(TEXTS, batched, strict=True):
        single = searcher.search_text(text, 7)
        assert [hit.number for hit in single] == [hit.number for hit in hits]
        assert np.allclose([hit.similarity for hit in single], [hit.similarity for hit in hits], atol=1e-5)


def test_images_find_themselves(searched):
    searcher, _ = searched
    hits = searcher.search_image(open_data(SCENES).split("train").image_files.open(3), 2)
    assert hits[0].number == 3
    assert hits[0].similarity == pytest.approx(1.0, abs=1e-5)
    near = searcher.neighbours(3, 4)
    assert 3 not in [hit.number for hit in near]
    assert [hit.rank for hit in near] == [1, 2, 3, 4]


def test_attention_of_words_over_regions(searched):
    searcher, retriever = searched
    if retriever.system == "xvlm":
        with pytest.raises(ValueError, match="no cross attention"):
            words_over_regions(searcher, TEXTS[0], 0)
        return
    result = words_over_regions(searcher, TEXTS[0], 2)
    assert result.words == ["<start>", "a", "red", "square", "<end>"]
    assert result.side == 9
    attention = np.array(result.attention)
    assert attention.shape == (5, 81)
    i2t = getattr(retriever.model.settings, "direction", "t2i") == "i2t"
    assert np.allclose(attention.sum(axis=0 if i2t else 1), 1, atol=1e-3)


def test_shapes_of_encoded_images_and_queries():
    retriever = model("scan").eval()
    opened = [open_data(SCENES).split("train").image_files.open(n) for n in range(2)]
    embedded, queries = encode_for_index(retriever, opened), encode_queries(retriever, TEXTS)
    assert embedded.regions.shape[:2] == (2, 81)
    assert rerank_similarity(retriever, queries[0], embedded.regions).shape == (2,)
    assert torch.allclose(retriever.model.pool(torch.zeros(1, 3, 4)), torch.zeros(1, 4))


def test_regions_are_cached_through_updates(tmp_path):
    """Known images are not embedded again, and their regions follow the new order."""
    images = images_in_dataset(open_data(SCENES))
    paths, batch_sizes = list(images), []

    def embed(opened):
        batch_sizes.append(len(opened))
        means = np.array([np.asarray(image, dtype=np.float32).mean() for image in opened])
        return IndexedVectors(np.stack([means, means], axis=1), means[:, None, None] * np.ones((1, 3, 2), np.float32))

    about = {"path": "m", "system": "scan", "weights": "w"}
    update_index(tmp_path / "index", {path: images[path] for path in paths[:10]}, embed, about)
    update_index(tmp_path / "index", {path: images[path] for path in reversed(paths)}, embed, about)
    assert sum(batch_sizes) == len(paths)
    updated = open_index(tmp_path / "index")
    assert [item.path for item in updated.items] == paths[::-1]
    assert np.allclose(updated.regions.rows[:, 1, 1], updated.vectors[:, 0])


def test_order_similarity_cannot_be_indexed():
    retriever = model("vsepp", measure="order")
    with pytest.raises(ValueError, match="cannot be indexed"):
        check_indexable(retriever)
