"""Two text towers: one or two sets of weights, a GRU or a text model, and what a text's embedding depends on."""

import pytest
import torch

import tercet
from tercet.data.text.vocabulary import build_vocabulary
from tercet.inference import Preprocessor, Retriever
from tercet.models import build
from tercet.types import TEXT_TEXT

TEXTS = ["a dog runs", "two cats sleep on a red sofa in the sun", "a bus"]
BERT = {
    "model_type": "bert",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 32,
    "initializer_range": 0.3,
}
KINDS = {
    "gru": {"embed_dim": 12, "word_dim": 6},
    "two grus": {"embed_dim": 12, "shared": False},
    "bert": {"text": BERT},
}


def retriever(kind):
    torch.manual_seed(0)
    vocabulary = build_vocabulary(TEXTS, 1)
    model = build("text-towers", vocab_size=len(vocabulary), **KINDS[kind])
    return Retriever("text-towers", model, Preprocessor(vocabulary=vocabulary, sides=TEXT_TEXT)).eval()


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_is_embedded_alike_alone_in_a_batch_and_after_loading(kind, tmp_path):
    model = retriever(kind)
    queries, passages = model.embed_texts(TEXTS), model.embed_passages(TEXTS)
    assert torch.allclose(queries.norm(dim=1), torch.ones(3), atol=1e-6)
    assert torch.allclose(queries[1], model.embed_texts(TEXTS[1:2])[0], atol=1e-6)
    assert torch.equal(queries, passages) == (kind != "two grus")
    model.save(tmp_path / "saved")
    loaded = tercet.load(tmp_path / "saved")
    assert loaded.sides == TEXT_TEXT
    assert torch.equal(loaded.embed_passages(TEXTS), passages)
    assert torch.equal(loaded.embed_texts(TEXTS), queries)


@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_learns(kind):
    model = retriever(kind).train()
    ids, lengths = model.tokenize(TEXTS)
    images, captions = model.encode_images(ids, lengths), model.encode_captions(ids.flip(0), lengths.flip(0))
    tercet.objective("nt-xent")(images, captions).backward()
    unused = [name for name, weight in model.model.named_parameters() if weight.grad is None]
    assert [name for name in unused if "pooler" not in name] == []  # the mean of the states is used


@pytest.mark.usefixtures("without_shape_checks")
def test_what_contradicts_is_refused():
    with pytest.raises(ValueError, match=r"give vocab_size \(a GRU\) or text"):
        build("text-towers")
    with pytest.raises(ValueError, match="embed_dim is the width of the GRU"):
        build("text-towers", text=BERT, embed_dim=8)
    with pytest.raises(ValueError, match=r"write embed_passages\(\[text\]\)"):
        retriever("gru").embed_images(["a.jpg"])
    images = Retriever("heads", build("heads", image_dim=4, caption_dim=4), Preprocessor())
    with pytest.raises(ValueError, match=r"write embed_images\(\[path\]\)"):
        images.embed_passages(["a text"])
