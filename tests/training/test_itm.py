"""Training X-VLM: the matching loss, any objective instead of NT-Xent, re-ranking with `tercet evaluate`."""

import json

import pytest
import torch

import tercet
from tercet import runs
from tercet.evaluation.metrics import metrics_of
from tercet.models import build, preset
from tercet.training.evaluate_run import evaluate_models
from tercet.training.settings import EvaluateSettings
from tercet.training.step import Step, objective_for
from tercet.types import Batch
from tests.examples import others_slow
from tests.tiny_models import SWIN, save_tokenizer
from tests.training.small_training import small_settings

SMALL = {"vision": SWIN | {"embed_dim": 16, "initializer_range": 0.1}, "embed_dim": 16}


def train(folder, **given):
    settings = {"data": "scenes:30", "model": "xvlm-tiny", "epochs": 1, "batch_size": 30, "runs": folder}
    model_settings = SMALL | given.pop("model_settings", {})
    return tercet.train(**settings | {"model_settings": model_settings} | given)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train(tmp_path_factory.mktemp("runs"), objective="nt-xent")


@pytest.mark.parametrize("objective", others_slow(["nt-xent", "cir/sig-ms", "con/sig-ms"], 2))
def test_any_objective_in_place_of_nt_xent(tmp_path, trained, objective):
    run = trained if objective == "nt-xent" else train(tmp_path, objective=objective)
    settings = json.loads((run.folder / "settings.json").read_text())
    assert settings["objective_settings"]["reduction"] == "mean"
    assert settings["itm_weight"] == 1
    if objective == "nt-xent":
        assert settings["objective_settings"]["temperature"] == 1
    model = tercet.load(run.folder)
    temperature = model.model.temperature.item()
    assert (temperature != pytest.approx(0.07, abs=1e-9)) == (
        objective == "nt-xent"
    )  # otherwise it only samples hard negatives
    assert model.embed_texts(["a red circle"]).shape == (1, 16)
    assert "i2t_r1" in run.metrics


def test_the_weights_of_both_losses():
    """Gradients are the weighted sum of both losses; each loss alone has no gradient in the modules of the other."""
    torch.manual_seed(0)
    model = build("xvlm", **preset("xvlm-tiny")[1] | SMALL | {"vocab_size": 20}).eval()  # no dropout
    generator = torch.Generator().manual_seed(1)
    ids = torch.arange(6)
    images, captions = torch.randn(6, 3, 32, 32, generator=generator), torch.randint(4, 20, (6, 5), generator=generator)
    batch = Batch(images, captions, ids, ids, None, torch.full((6,), 5))

    def gradients(**weights):
        model.zero_grad()
        step = Step(model, small_settings(**{"model": "xvlm-tiny"} | weights))
        step(objective_for("xvlm", "nt-xent", {}), batch, seed=5)
        return {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}

    alone = gradients(itm_weight=0.0)
    matching = gradients(itm_weight=1.0, objective_weight=0.0)
    both = gradients(itm_weight=3.0, objective_weight=0.5)
    assert not alone["match_head.0.weight"].any()
    assert not matching["image_head.weight"].any()
    assert not matching["temperature"].any()
    assert matching["match_head.0.weight"].any()
    assert alone["temperature"].any()
    for name, gradient in both.items():
        torch.testing.assert_close(gradient, 0.5 * alone[name] + 3 * matching[name], rtol=1e-3, atol=1e-5)


def test_double_precision_stays_double():
    torch.manual_seed(0)
    model = build("xvlm", **preset("xvlm-tiny")[1] | SMALL | {"vocab_size": 20}).double()
    ids = torch.arange(3)
    batch = Batch(torch.randn(3, 3, 32, 32).double(), torch.randint(4, 20, (3, 5)), ids, ids, None, torch.full((3,), 5))
    step = Step(model, small_settings(model="xvlm-tiny", itm_weight=1.0, precision="float64"))
    outcome = step(objective_for("xvlm", "nt-xent", {}), batch, seed=5)
    assert outcome.images.dtype == outcome.captions.dtype == torch.float64


def test_several_captions_per_image(tmp_path):
    run = train(tmp_path, captions_per_image=2, batch_size=10, objective="smooth-ap")
    assert run.metrics["rsum"] > 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"itm_weight": 1.0, "model": "heads", "model_settings": {}},
            "--itm-weight needs a model with a matching head",
        ),
        ({"grad_cache": 8}, "--grad-cache cannot be combined with"),
        ({"objective_weight": -1.0}, "--objective-weight must be a number of at least 0"),
        ({"adam_beta2": 1.0}, "--adam-beta2"),
    ],
)
def test_invalid_combinations_are_refused(tmp_path, given, message):
    given = {"data": "scenes:30", "model": "xvlm-tiny", "model_settings": SMALL, "runs": tmp_path, **given}
    with pytest.raises(ValueError, match=message):
        tercet.train(**given)
    assert not any(tmp_path.iterdir())


def test_reranking_with_evaluate(tmp_path, trained):
    results = {
        k: evaluate_models(
            EvaluateSettings(models=(trained.folder,), data="scenes:30", rerank=k, out=tmp_path / "evaluations")
        )
        for k in (None, 1, 10, 10_000)
    }
    files = {result.file for result in results.values()}
    assert len(files) == 4  # none overwrote another
    plain = results[None].evaluation.metrics
    for k, result in results.items():
        metrics = result.evaluation.metrics
        assert metrics["rsum"] == pytest.approx(
            sum(metrics[f"{side}_r{n}"] for side in ("i2t", "t2i") for n in (1, 5, 10))
        )
        if k == 1:  # re-ranking one candidate changes nothing
            assert (metrics["i2t_r1"], metrics["t2i_r1"]) == (plain["i2t_r1"], plain["t2i_r1"])
        if k == 10:  # the same ten, in another order
            assert (metrics["i2t_r10"], metrics["t2i_r10"]) == (plain["i2t_r10"], plain["t2i_r10"])
        assert {name: metrics[name] for name in metrics_of(result.evaluation.ranks)} == metrics_of(
            result.evaluation.ranks
        )
    arrays = results[10].evaluation.ranks.arrays()
    assert len(arrays["i2t_rank"]) == len(arrays["t2i_rank"])


def test_reranking_is_refused_without_a_matching_head(tmp_path):
    run = tercet.train(data="scenes:30", epochs=1, runs=tmp_path, model_settings={"embed_dim": 8})
    for models, k, message in (
        ((run.folder,), 5, "--rerank needs exactly one model, and it must have a matching head"),
        ((run.folder,), 0, "must be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            evaluate_models(EvaluateSettings(models=models, data="scenes:30", rerank=k, out=tmp_path / "out"))


def test_a_pretrained_bert_gets_normalized_captions(tmp_path):
    import transformers as t

    from tercet.data.scenes import scenes

    vocab_size = save_tokenizer(tmp_path / "bert", scenes("train", 50).as_split("global").texts)
    config = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    t.BertModel(t.BertConfig(vocab_size=vocab_size, **config)).save_pretrained(tmp_path / "bert")
    settings = {"text": str(tmp_path / "bert"), "fusion_layer": 1}
    model = tercet.load(train(tmp_path / "runs", model_settings=settings).folder)
    assert (model.preprocessor.tokenizer or "").endswith("tokenizer")
    same = model.embed_texts(["A red circle, and a blue square!", "a red circle and a blue square"])
    torch.testing.assert_close(same[0], same[1])
    long = "red " * 200
    assert model.embed_texts([long]).isfinite().all()
    assert runs.is_finished(next((tmp_path / "runs").glob("*_s0_*")))


def test_the_recipe_reduces_by_the_mean_also_with_given_settings(tmp_path):
    from tercet.training.prepare import resolve
    from tercet.training.settings import train_settings

    named = train_settings({"model": "xvlm-tiny", "objective": "cir/sig-ms", "objective_settings": {"tau": 5.0}})
    main, _, identity = resolve(named)
    assert (main.settings["reduction"], main.settings["tau"]) == ("mean", 5)
    assert not identity["learned_scale"]
    order = train_settings(
        {"model": "vsepp-order", "objective": "nt-xent"}
    )  # its recipe sets a margin, which nt-xent does not have
    assert resolve(order)[0].settings["temperature"] == 0.1
    assert resolve(train_settings({"model": "vsepp-order"}))[0].settings["margin"] == 0.05
    learned, fixed = (
        resolve(train_settings({"model": "xvlm-tiny", "objective": "nt-xent", "objective_settings": settings}))[2]
        for settings in ({}, {"temperature": 1.0})
    )
    assert learned != fixed


def test_a_long_caption_is_truncated(trained):
    model = tercet.load(trained.folder)
    long = model.embed_texts(["red " * 200, "red " * 30])
    torch.testing.assert_close(long[0], long[1])


def test_a_run_repeats_from_its_own_settings(trained):
    again = tercet.train(config=trained.folder / "settings.json", runs=trained.folder.parent)
    assert again.folder == trained.folder
