"""Baseline rows: CCA equals the generalised eigenvectors, zero-shot rows equal the model evaluated as it is."""

import json

import numpy as np
import pytest
import torch

import tercet
from tercet.comparison.cca import cca_heads, covariances, identity_heads
from tercet.data.dataset import PairedData
from tercet.data.feature_array import FeatureArray
from tercet.data.formats import open_data
from tests.commands import tercet as command
from tests.data.test_splitting import photo
from tests.tiny_models import SAVED_DUAL_ENCODERS


def correlated_data(images=200, regions=None, seed=0) -> PairedData:
    rng = np.random.default_rng(seed)
    shared = rng.standard_normal((images, 3))
    x = shared @ rng.standard_normal((3, 6)) + 0.5 * rng.standard_normal((images, 6)) + 2
    owners = np.sort(rng.integers(0, images, size=3 * images))
    y = shared[owners] @ rng.standard_normal((3, 5)) + rng.standard_normal((len(owners), 5)) - 1
    lengths = None
    if regions is not None:
        x, lengths = x[:, None] + rng.standard_normal((images, regions, 6)), rng.integers(1, regions + 1, images)
    sources = FeatureArray((x.astype(np.float32),), "x", lengths=lengths), FeatureArray((y.astype(np.float32),), "y")
    return PairedData("made", *sources, torch.from_numpy(owners), tuple("a" for _ in owners))


@pytest.mark.parametrize("regions", [None, 4])
@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_cca_is_the_generalised_eigenproblem(ridge, regions):
    data = correlated_data(regions=regions)
    x, lengths = data.images.take(torch.arange(len(data.images)))
    if lengths is not None:
        x = torch.stack([rows[:length].mean(dim=0) for rows, length in zip(x, lengths, strict=True)])
    x = x.double().numpy()[data.owners.numpy()]
    y = data.captions.take(torch.arange(len(data.captions)))[0].double().numpy()
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    xx, yy, xy = (a.T @ b / len(x) for a, b in ((x, x), (y, y), (x, y)))
    xx += ridge * np.trace(xx) / len(xx) * np.eye(len(xx))
    yy += ridge * np.trace(yy) / len(yy) * np.eye(len(yy))
    squared = np.linalg.eigvals(np.linalg.inv(xx) @ xy @ np.linalg.inv(yy) @ xy.T).real
    expected = np.sqrt(np.sort(squared)[::-1][:4].clip(0))
    heads = cca_heads(covariances(data), ridge, 4)
    weights = [head.linear.weight.detach().double().numpy() for head in (heads.image_head, heads.caption_head)]
    # Coordinates of variance r, uncorrelated, and of canonical correlation r.
    for product in (weights[0] @ xx @ weights[0].T, weights[1] @ yy @ weights[1].T):
        np.testing.assert_allclose(product, np.diag(expected), atol=1e-4)
    np.testing.assert_allclose(weights[0] @ xy @ weights[1].T, np.diag(expected**2), atol=1e-4)
    if ridge == 0 and regions is None:
        projected = heads.image_head.linear(data.images.take(data.owners)[0])
        torch.testing.assert_close(projected.mean(dim=0), torch.zeros(4), atol=1e-4, rtol=0)


def test_identity_heads_change_nothing():
    features = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(identity_heads(7).encode_images(features), torch.nn.functional.normalize(features))


def test_a_comparison_of_heads_has_the_linear_baseline(tmp_path):
    given = {"objectives": "nt-xent", "seeds": 1, "epochs": 1, "no_tune": True, "train": {"batch_size": 50}}
    result = tercet.compare("scenes:60", **given, runs=tmp_path)
    (row,) = [row for row in result.tables()[0].rows if row[0] == "cca"]
    (baseline,) = result.baselines
    assert row[1][-1].text == f"{baseline.metrics['rsum']:.1f}"
    assert f"cca (regularised CCA, linear, in closed form) has rsum {baseline.metrics['rsum']:.1f}" in result.verdict
    assert "cca" not in result.significance.order
    model = tercet.load(baseline.model)
    split = open_data("scenes:60").split("test")
    images = model.encode_images(split.features.take(torch.arange(len(split.features)))[0])
    captions = model.encode_captions(split.caption_features.take(torch.arange(len(split.texts)))[0])
    metrics = tercet.evaluate_embeddings(images, captions, owners=torch.from_numpy(split.owners))
    assert metrics["rsum"] == pytest.approx(baseline.metrics["rsum"], abs=1e-6)
    result.save()
    document = json.loads((result.folder / "comparison.json").read_text())
    assert document["baselines"][0]["metrics"] == baseline.metrics
    assert "<td>cca</td>" in (result.folder / "report.html").read_text().replace(
        "<th>cca</th>", "<td>cca</td>"
    ).replace('<th scope="row">cca</th>', "<td>cca</td>")
    before = (tmp_path / "baselines").stat().st_mtime_ns
    again = tercet.compare("scenes:60", **given, runs=tmp_path)
    assert (tmp_path / "baselines").stat().st_mtime_ns == before
    assert again.baselines[0].metrics == baseline.metrics


@pytest.fixture(scope="module", params=SAVED_DUAL_ENCODERS)
def pretrained(request, tmp_path_factory):
    """A pretrained model and 30 images with two captions each."""
    folder = tmp_path_factory.mktemp(request.param)
    lines = ["image,caption,split"]
    for number in range(30):
        photo(number, 40).save(folder / f"{number}.png")
        split = "train" if number < 20 else "val" if number < 25 else "test"
        lines += [f"{number}.png,thing{number} on grass,{split}", f"{number}.png,one thing{number},{split}"]
    (folder / "pairs.csv").write_text("\n".join(lines))
    texts = [f"thing{number} on grass one" for number in range(30)]
    SAVED_DUAL_ENCODERS[request.param](folder / "model", texts)
    return folder


def expected_of(folder) -> dict[str, float]:
    """Zero-shot, with transformers alone."""
    import transformers as t
    from PIL import Image

    model = t.AutoModel.from_pretrained(folder / "model").eval()
    tokenizer = t.AutoTokenizer.from_pretrained(folder / "model")
    processor = t.AutoImageProcessor.from_pretrained(folder / "model", use_fast=False)
    split = open_data(folder / "pairs.csv").split("test")
    pixels = processor([Image.open(folder / name) for name in split.image_names], return_tensors="pt")
    padding = {"padding": "max_length", "max_length": 48} if model.config.model_type == "siglip" else {"padding": True}
    tokens = tokenizer(list(split.texts), return_tensors="pt", **padding)
    mask = {} if model.config.model_type == "siglip" else {"attention_mask": tokens["attention_mask"]}
    with torch.no_grad():
        output = model(**pixels, input_ids=tokens["input_ids"], **mask)
    return tercet.evaluate_embeddings(output.image_embeds, output.text_embeds, owners=torch.from_numpy(split.owners))


@pytest.mark.slow
def test_a_model_of_hugging_face_is_taken_as_it_is(pretrained, tmp_path):
    expected = expected_of(pretrained)
    model, data = pretrained / "model", pretrained / "pairs.csv"
    command("evaluate", model, "--data", data, "--out", tmp_path / "evaluations", check=True)
    (file,) = (tmp_path / "evaluations").glob("*/evaluation.json")
    assert json.loads(file.read_text())["metrics"]["rsum"] == pytest.approx(expected["rsum"], abs=1e-6)
    command("index", model, "--images", data, "--out", tmp_path / "index", check=True)
    (hit,) = json.loads(command("search", tmp_path / "index", "one thing3", "--k", "1", "--json", check=True).stdout)
    assert hit["path"].endswith(".png")
    settings = ["--objectives", "nt-xent", "--seeds", "1", "--epochs", "1", "--no-tune", "--train", "batch_size=10"]
    compared = command("compare", data, "--models", model, *settings, "--runs", tmp_path / "runs", check=True)
    assert "untrained" in compared.stdout
    (comparison,) = (tmp_path / "runs").glob("comparison_*/comparison.json")
    (baseline,) = json.loads(comparison.read_text())["baselines"]
    assert baseline["metrics"]["rsum"] == pytest.approx(expected["rsum"], abs=1e-6)
    (run,) = (tmp_path / "runs").glob("*_pairs_model_nt-xent_s0_*")  # not the whole path of the model
    assert tercet.load(run).system == "clip"


@pytest.mark.slow
def test_heads_on_features_of_a_dual_encoder_have_it_as_a_row(pretrained, tmp_path):
    model = str(pretrained / "model")
    result = tercet.compare(
        pretrained / "pairs.csv",
        objectives="nt-xent",
        image_encoder=model,
        text_encoder=model,
        seeds=1,
        epochs=1,
        no_tune=True,
        train={"batch_size": 10},
        runs=tmp_path,
    )
    assert [baseline.name for baseline in result.baselines] == ["untrained", "cca"]
    assert result.baselines[0].metrics["rsum"] == pytest.approx(expected_of(pretrained)["rsum"], abs=1e-6)


def test_a_name_on_the_hub_while_offline_is_one_line(tmp_path):
    """HF_HUB_OFFLINE is set for all tests; without it a connection is given three seconds (tests/test_hub.py)."""
    for arguments in (
        ("evaluate", "some/model", "--data", "scenes:60"),
        ("index", "some/model", "--images", tmp_path),
        ("compare", "scenes:60", "--models", "some/model", "--runs", tmp_path),
    ):
        failed = command(*arguments, cwd=tmp_path)
        assert failed.returncode == 2
        assert "'some/model' is neither a folder here nor in the local cache" in failed.stderr
        assert failed.stderr.count("\n") == 1
    with pytest.raises(ValueError, match="not a saved model"):
        tercet.load(tmp_path / "runs" / "some_run")
