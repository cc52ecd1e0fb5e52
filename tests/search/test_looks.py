"""Two looks: models that compare parts or match pairs find through an index what they find by themselves."""

import numpy as np
import pytest
import torch

from tercet.data.formats import open_data
from tercet.search.attention import words_over_regions
from tercet.search.index import open_index, update_index
from tercet.search.items import pictures_of_data
from tercet.search.looks import Kept, asked_of, check_indexable, kept_of, mean_part, second_look
from tercet.search.query import Searcher
from tests.search.made import SCENES, index, model

TEXTS = ["a red square", "two things on snow , a blue ring", "a small star over a big dark cross"]
SYSTEMS = ["scan", "scan-i2t", "bfan", "xvlm"]


@pytest.fixture(scope="module", params=SYSTEMS)
def searched(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("looks")
    made = model(request.param)
    return Searcher.open(index(folder, "found", made)), made.eval()


def exhaustive(retriever, pictures, texts):
    """Every picture with every text by itself, by the model's own methods."""
    inner = retriever.model
    with torch.inference_mode():
        if retriever.system != "xvlm":
            images = retriever.embed_pictures(pictures)
            words = [retriever.embed_texts([text]) for text in texts]
            return [torch.stack([inner.similarity(each[None], read)[0, 0] for each in images]) for read in words]
        tokens, found = inner.image_tokens(retriever.see(pictures)[0]), []
        for text in texts:
            ids, lengths = retriever.read([text])
            states = inner.word_states(ids, lengths)
            found.append(torch.stack([inner.match(each[None], states, lengths)[0] for each in tokens]))
        return found


def test_the_order_is_that_of_the_model_itself(searched):
    searcher, retriever = searched
    data = open_data(SCENES)
    places = pictures_of_data(data)
    opened = [split.pictures.open(n) for split in data.splits.values() for n in range(len(split.image_names))]
    assert list(places) == [item.path for item in searcher.index.items]
    for text, expected in zip(TEXTS, exhaustive(retriever, opened, TEXTS), strict=True):
        hits = searcher.words(text, k=len(opened))
        found = torch.tensor([hit.similarity for hit in sorted(hits, key=lambda hit: hit.number)])
        torch.testing.assert_close(found, expected.float(), atol=1e-4, rtol=1e-4)
        assert [hit.similarity for hit in hits] == sorted((hit.similarity for hit in hits), reverse=True)
        assert sorted(hit.first_rank for hit in hits) == list(range(1, len(opened) + 1))
        first, ranks = searcher.words_and_ranks(text, 3)
        assert [hit.number for hit in first] == [hit.number for hit in hits[:3]]
        assert ranks([hit.number for hit in hits]) == list(range(1, len(opened) + 1))


def test_together_and_alone_are_the_same(searched):
    searcher, _ = searched
    together = searcher.many_words(TEXTS, 7)
    for text, hits in zip(TEXTS, together, strict=True):
        alone = searcher.words(text, 7)
        assert [hit.number for hit in alone] == [hit.number for hit in hits]
        assert np.allclose([hit.similarity for hit in alone], [hit.similarity for hit in hits], atol=1e-5)


def test_pictures_find_themselves(searched):
    searcher, _ = searched
    hits = searcher.picture(open_data(SCENES).split("train").pictures.open(3), 2)
    assert hits[0].number == 3
    assert hits[0].similarity == pytest.approx(1.0, abs=1e-5)
    near = searcher.neighbours(3, 4)
    assert 3 not in [hit.number for hit in near]
    assert [hit.rank for hit in near] == [1, 2, 3, 4]


def test_words_look_at_regions(searched):
    searcher, retriever = searched
    if retriever.system == "xvlm":
        with pytest.raises(ValueError, match="no cross attention"):
            words_over_regions(searcher, TEXTS[0], 0)
        return
    shown = words_over_regions(searcher, TEXTS[0], 2)
    assert shown.words == ["<start>", "a", "red", "square", "<end>"]
    assert shown.side == 9
    attention = np.array(shown.attention)
    assert attention.shape == (5, 81)
    i2t = getattr(retriever.model.settings, "attends", "t2i") == "i2t"
    assert np.allclose(attention.sum(axis=0 if i2t else 1), 1, atol=1e-3)


def test_a_second_look_is_asked_for_what_was_read():
    retriever = model("scan").eval()
    opened = [open_data(SCENES).split("train").pictures.open(n) for n in range(2)]
    kept, asked = kept_of(retriever, opened), asked_of(retriever, TEXTS)
    assert kept.parts.shape[:2] == (2, 81)
    assert second_look(retriever, asked[0], kept.parts).shape == (2,)
    assert torch.allclose(mean_part(torch.zeros(1, 3, 4)), torch.zeros(1, 4))


def test_parts_are_kept_through_updates(tmp_path):
    """As vectors are: what is known is not made again, and lands in the new order."""
    places = pictures_of_data(open_data(SCENES))
    names, made = list(places), []

    def embed(opened):
        made.append(len(opened))
        numbers = np.array([np.asarray(each, dtype=np.float32).mean() for each in opened])
        return Kept(np.stack([numbers, numbers], axis=1), numbers[:, None, None] * np.ones((1, 3, 2), np.float32))

    about = {"path": "m", "system": "scan", "weights": "w"}
    update_index(tmp_path / "index", {name: places[name] for name in names[:10]}, embed, about)
    update_index(tmp_path / "index", {name: places[name] for name in reversed(names)}, embed, about)
    assert sum(made) == len(names)
    found = open_index(tmp_path / "index")
    assert [item.path for item in found.items] == names[::-1]
    assert np.allclose(found.parts[:, 1, 1], found.vectors[:, 0])


def test_order_similarity_cannot_be_indexed():
    retriever = model("vsepp", measure="order")
    with pytest.raises(ValueError, match="compares by order"):
        check_indexable(retriever)
