"""CLIP and SigLIP from a folder: equal to transformers' models, trained with a learned scale and bias."""

import json
from dataclasses import asdict

import pytest
import torch

import tercet
from tercet.data.scenes import scenes
from tercet.interfaces import RetrievalModel
from tercet.models import build
from tercet.training.step import objective_for, scale_and_bias, with_model_bias
from tests.tiny_models import SAVED_DUAL_ENCODERS

PIXELS = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
CAPTIONS = torch.tensor([[1, 5, 6, 7, 2], [1, 8, 2, 0, 0], [1, 4, 9, 2, 0], [1, 2, 0, 0, 0]])
LENGTHS = torch.tensor([5, 3, 4, 2])


@pytest.fixture(scope="module", params=SAVED_DUAL_ENCODERS)
def folder(request, tmp_path_factory):
    texts = scenes("train", 50).as_split("global").texts
    return SAVED_DUAL_ENCODERS[request.param](tmp_path_factory.mktemp(request.param), texts)


def test_equal_to_transformers(folder):
    """Captions one by one, as they are usually fed: CLIP without padding, SigLIP padded to the maximum length."""
    from transformers import AutoModel

    theirs, model = AutoModel.from_pretrained(folder).eval(), build("clip", clip=folder).eval()
    assert isinstance(model, RetrievalModel)
    with torch.no_grad():
        images, captions = model.encode_images(PIXELS), model.encode_captions(CAPTIONS, LENGTHS)
        S = model.similarity(images, captions)
        for row, length in enumerate(LENGTHS):
            ids = CAPTIONS[row : row + 1, :length]
            if theirs.config.model_type == "siglip":
                ids = torch.nn.functional.pad(ids, (0, 48 - int(length)))
            output = theirs(input_ids=ids, pixel_values=PIXELS)
            torch.testing.assert_close(captions[row], output.text_embeds[0], rtol=0, atol=1e-6)
            torch.testing.assert_close(images, output.image_embeds, rtol=0, atol=1e-6)
            scale, bias = model.scale_and_bias()
            expected = scale * S[:, row] + (0 if bias is None else bias)
            torch.testing.assert_close(expected, output.logits_per_image[:, 0], rtol=0, atol=1e-5)


def test_padding_has_no_effect(folder):
    model = build("clip", clip=folder).double().eval()
    corrupted = torch.nn.functional.pad(CAPTIONS, (0, 3), value=7)
    corrupted[torch.arange(8) >= LENGTHS[:, None]] = 9
    with torch.no_grad():
        torch.testing.assert_close(model.encode_captions(corrupted, LENGTHS), model.encode_captions(CAPTIONS, LENGTHS))


def test_saved_and_loaded_without_the_folder(folder):
    model = build("clip", clip=folder).eval()
    settings = json.loads(json.dumps(asdict(model.settings)))
    assert isinstance(settings["clip"], dict)
    again = build("clip", **settings).eval()
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again.encode_images(PIXELS), model.encode_images(PIXELS))


@pytest.mark.parametrize("name", ["nt-xent", "sigmoid", "cir/sig-ms", "triplet-sh"])
@pytest.mark.parametrize("streamed", [False, True])
def test_gradients_of_scale_and_bias_are_those_of_autograd(folder, name, streamed):
    """For any objective."""
    model = build("clip", clip=folder).double()
    images, captions = model.encode_images(PIXELS.double()), model.encode_captions(CAPTIONS, LENGTHS)
    settings = {"nt-xent": {"temperature": 1.0}, "sigmoid": {"temperature": 1.0, "bias": -10.0}}
    objective = tercet.objective(name, **settings.get(name, {}))
    scale, bias = model.scale_and_bias()
    bias = torch.tensor(-0.3, dtype=torch.float64, requires_grad=True) if bias is None else bias
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(
        objective(images, captions, scale=scale, bias=bias, streamed=streamed),
        [scale, bias, *weights],
        retain_graph=True,
        allow_unused=True,
    )
    S = scale * (images @ captions.T) + bias
    expected = torch.autograd.grad(
        S, [scale, bias, *weights], objective.pair_gradient(S.detach()), retain_graph=True, allow_unused=True
    )
    for ours, theirs in zip(gradients, expected, strict=True):
        if ours is None or theirs is None:
            assert ours is None or not ours.any()
            assert theirs is None or not theirs.any()
            continue
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


def test_nt_xent_and_sigmoid_are_the_published_losses(folder):
    """With the learned scale (and bias): transformers' own loss on the same batch."""
    from transformers import AutoModel

    theirs, model = AutoModel.from_pretrained(folder), build("clip", clip=folder)
    siglip = theirs.config.model_type == "siglip"
    ids = torch.nn.functional.pad(CAPTIONS, (0, 43)) if siglip else CAPTIONS
    mask = None if siglip else (torch.arange(5) < LENGTHS[:, None]).long()
    expected = theirs(input_ids=ids, attention_mask=mask, pixel_values=PIXELS, return_loss=True).loss
    objective = with_model_bias(objective_for("clip", "sigmoid" if siglip else "nt-xent", {}), model, {})
    scale, bias = scale_and_bias(model, objective, {})
    loss = objective(model.encode_images(PIXELS), model.encode_captions(CAPTIONS, LENGTHS), scale=scale, bias=bias)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_a_named_temperature_is_fixed_and_margins_see_cosines(folder):
    model = build("clip", clip=folder)
    assert scale_and_bias(model, objective_for("clip", "nt-xent", {}), {})[0] is not None
    for temperature in (0.1, 1.0):
        named = {"temperature": temperature}
        assert scale_and_bias(model, objective_for("clip", "nt-xent", named), named) == (None, None)
    assert scale_and_bias(model, objective_for("clip", "cir/sig-ms", {}), {}) == (None, None)
    has_bias = model.scale_and_bias()[1] is not None
    sigmoid = objective_for("clip", "sigmoid", {})
    assert with_model_bias(sigmoid, model, {}).settings["bias"] == (0 if has_bias else -10)
    named = {"bias": -3.0}
    sigmoid = with_model_bias(objective_for("clip", "sigmoid", named), model, named)
    assert sigmoid.settings["bias"] == -3
    assert scale_and_bias(model, sigmoid, named)[1] is None
    assert objective_for("heads", "nt-xent", {}).settings["temperature"] == 0.1


FINE_TUNED = [("cir/sig-ms", "whole")]  # in the default tier


@pytest.mark.parametrize(
    ("objective", "trained"),
    [
        (o, t) if (o, t) in FINE_TUNED else pytest.param(o, t, marks=pytest.mark.slow)
        for o in ("nt-xent", "sigmoid", "cir/sig-ms")
        for t in ("whole", "heads")
    ],
)
def test_fine_tuned_on_images_and_loaded_again(folder, objective, trained, tmp_path):
    run = tercet.train(
        data="scenes:40",
        model="clip",
        model_settings={"clip": folder, "trained": trained},
        objective=objective,
        epochs=2,
        batch_size=40,
        learning_rate=1e-3,
        runs=tmp_path,
    )
    model = tercet.load(run.folder)
    before = build("clip", clip=folder).state_dict()
    moved = {name for name, tensor in model.model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved
    scale_moves = objective != "cir/sig-ms"
    assert ("model.logit_scale" in moved) == scale_moves
    assert any("layers.0" in name for name in moved) == (trained == "whole")
    assert model.embed_texts(["a red circle", "two squares"]).shape[0] == 2
    assert model.preprocessor.pixels.side == 32


@pytest.mark.slow
def test_it_overfits_32_scenes_and_its_scale_grows(folder):
    split = scenes("train", 32).as_split("global")
    from tercet.data.image_io import ImageFiles
    from tercet.data.text.tokenized import tokenize_pretrained
    from tercet.data.transforms import Pixels, pretrained_transform

    images = Pixels(ImageFiles(list(split.image_files)), pretrained_transform(folder)).take(torch.arange(32))[0]
    texts = [f"{text} {index}" for index, text in enumerate(split.texts[::5])]  # all distinct
    ids, lengths = tokenize_pretrained(texts, folder, max_length=48).take(torch.arange(32))
    model = build("clip", clip=folder)
    objective = objective_for("clip", "nt-xent", {})
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    first = model.scale_and_bias()[0].item()
    for _ in range(150):
        optimizer.zero_grad()
        scale, bias = scale_and_bias(model, objective, {})
        objective(model.encode_images(images), model.encode_captions(ids, lengths), scale=scale, bias=bias).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        S = model.similarity(model.encode_images(images), model.encode_captions(ids, lengths))
    metrics = tercet.evaluate(S, torch.eye(32, dtype=torch.bool))
    assert metrics["i2t_r1"] == metrics["t2i_r1"] == 100
    assert model.scale_and_bias()[0].item() > first


def test_other_models_are_refused():
    with pytest.raises(ValueError, match="not a dual encoder"):
        build("clip", clip={"model_type": "bert", "hidden_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1})
    with pytest.raises(ValueError, match="neither a folder here nor in the local cache"):
        build("clip", clip="no/such-model")


def test_the_initial_weights_are_part_of_the_run_identity(folder, tmp_path):
    import shutil

    from safetensors.torch import load_file, save_file

    from tercet.training.prepare import resolve
    from tercet.training.settings import train_settings

    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    settings = train_settings({"model": "clip", "model_settings": {"clip": str(copy)}})
    first = resolve(settings)[2]["pretrained"]
    assert resolve(settings)[2]["pretrained"] == first
    weights = load_file(copy / "model.safetensors")
    save_file(weights | {"logit_scale": weights["logit_scale"] + 1}, copy / "model.safetensors", {"format": "pt"})
    assert resolve(settings)[2]["pretrained"] != first


def test_a_folder_without_tokenizer_is_refused(folder, tmp_path):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("tokenizer*", "special_tokens*"))
    with pytest.raises(ValueError, match="tokenizer"):
        tercet.train(data="scenes:20", model="clip", model_settings={"clip": str(copy)}, epochs=1, runs=tmp_path / "r")
