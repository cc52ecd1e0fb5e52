"""One step: the pair gradient is injected, cached and accumulated gradients are exact, learning-rate multipliers."""

import pytest
import torch

import tercet
from tercet.data.collate import Collator
from tercet.data.dataset import paired
from tercet.data.samplers import image_batches, pair_batches
from tercet.data.scenes import scenes
from tercet.data.text.tokenized import tokenize_captions
from tercet.data.text.vocabulary import build_vocabulary
from tercet.models import build
from tercet.training.optim import freeze, make_optimizer
from tercet.training.runtime import to_device
from tercet.training.step import Step
from tercet.training.train import StepWork
from tercet.types import Batch
from tests.training.small_training import run_through, small_data, small_loop, small_settings


def heads(data, seed=0):
    torch.manual_seed(seed)
    return build("heads", image_dim=data.images.shape[-1], caption_dim=data.captions.shape[-1], embed_dim=16)


def vsrn(variant="f30k", captioner=True):
    split = scenes("train", 12).as_split("regions")
    vocabulary = build_vocabulary(split.texts, 1)
    data = paired("scenes", split, captions=tokenize_captions(split.texts, vocabulary))
    torch.manual_seed(0)
    sizes = {"vocab_size": len(vocabulary), "image_dim": data.images.shape[-1], "embed_dim": 12, "word_dim": 6}
    return data, build("vsrn", variant=variant, captioner=captioner, caption_dim=8, caption_word_dim=6, **sizes)


def gradients(model):
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def hinge(similarity, positives):
    negatives = similarity.masked_fill(positives, -1.0)
    hardest = negatives.max(dim=1, keepdim=True).values, negatives.max(dim=0, keepdim=True).values
    return sum(((0.2 + h - similarity).relu() * positives).sum() for h in hardest)


def test_injecting_the_gradient_trains_as_autograd_of_the_loss_does(tmp_path, monkeypatch):
    """GOAL's validation (its Table 2): con/con by its pair gradient, the hinge by autograd; 100 steps in float64."""
    data = small_data(60)
    given = {"precision": "float64", "epochs": 20, "cocos_every": 0}  # 5 or 6 steps per epoch
    injected = run_through(small_loop(new_folder(tmp_path / "a"), heads(data), data, objective="con/con", **given))
    loop = small_loop(new_folder(tmp_path / "b"), heads(data), data, objective="con/con", **given)
    assert loop.total >= 100
    monkeypatch.setattr(
        loop.step,
        "_scalar",
        lambda objective, images, captions, batch, members: hinge(images @ captions.T, batch.positives()),
    )
    by_autograd = run_through(loop)
    for name, weight in injected.state_dict().items():
        torch.testing.assert_close(weight, by_autograd.state_dict()[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["triplet-sh", "nt-xent", "cir/sig-ms", "smooth-ap"])
@pytest.mark.parametrize("chunk_size", [7, 50, 1000])
def test_grad_cache_is_the_gradient_of_the_whole_batch(name, chunk_size):
    data, objective = small_data(), tercet.objective(name)
    batch = Collator(data).make(image_batches(data.owners, 20, 3, seed=0, epoch=0)[0])
    results = []
    for given in ({}, {"grad_cache": chunk_size}):
        model = heads(data).double()
        batch64 = batch.__class__(
            **vars(batch) | {"images": batch.images.double(), "captions": batch.captions.double()}
        )
        outcome = Step(model, small_settings(**given))(objective, batch64, seed=5)
        results.append((outcome.scalar, gradients(model)))
    assert results[0][0] == pytest.approx(results[1][0], abs=1e-12)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("chunk_size", [7, 1000])
def test_grad_cache_of_region_and_word_sets(chunk_size):
    """Chunks of a batch whose longest captions differ."""
    data = small_data()
    generator = torch.Generator().manual_seed(0)
    batch = Collator(data).make(pair_batches(data.owners, 20, seed=0, epoch=0)[0])
    batch = Batch(
        torch.randn(20, 5, 8, generator=generator).double(),
        torch.randint(4, 30, (20, 9), generator=generator),
        batch.image_ids,
        batch.caption_ids,
        torch.randint(1, 6, (20,), generator=generator),
        torch.randint(1, 10, (20,), generator=generator),
    )
    results = []
    for given in ({}, {"grad_cache": chunk_size}):
        torch.manual_seed(0)
        model = build("scan", vocab_size=30, image_dim=8, embed_dim=6, word_dim=4).double()
        outcome = Step(model, small_settings(**given))(tercet.objective("nt-xent"), batch, seed=5)
        results.append((outcome.scalar, gradients(model)))
    assert results[0][0] == pytest.approx(results[1][0], abs=1e-12)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-12, atol=1e-12)


class Noisy(torch.nn.Module):
    """Heads with dropout: the second encoding must use the same dropout mask as the first."""

    dot_product = True

    def __init__(self, data):
        super().__init__()
        self.heads = heads(data)
        self.spec, self.settings = self.heads.spec, self.heads.settings

    def encode_images(self, images, lengths=None):
        return torch.nn.functional.dropout(self.heads.encode_images(images), 0.3)

    def encode_captions(self, captions, lengths=None):
        return torch.nn.functional.dropout(self.heads.encode_captions(captions), 0.3)

    def similarity(self, images, captions):
        return images @ captions.T


def test_grad_cache_replays_the_random_state():
    data, objective = small_data(), tercet.objective("nt-xent")
    batch = Collator(data).make(pair_batches(data.owners, 40, seed=0, epoch=0)[0])
    model = Noisy(data).double()
    batch = batch.__class__(**vars(batch) | {"images": batch.images.double(), "captions": batch.captions.double()})
    step = Step(model, small_settings(grad_cache=9))
    step(objective, batch, seed=5)
    cached_gradients = gradients(model)
    # Reference: the same noise, all chunks in one graph.
    from tercet.training.grad_cache import CachedEncoding

    model.zero_grad()
    cached = [
        CachedEncoding(step.encode_images, batch.images, None, 9, 5),
        CachedEncoding(step.encode_captions, batch.captions, None, 9, 4),
    ]
    images, captions = (torch.cat([side._encode_chunk(n) for n in range(len(side.chunks))]) for side in cached)
    objective(images, captions, image_ids=batch.image_ids, caption_ids=batch.caption_ids).backward()
    torch.testing.assert_close(cached_gradients, gradients(model), rtol=0, atol=1e-12)


def test_grad_cache_refuses_batch_norm():
    data, model = vsrn()
    batch = Collator(data).make(pair_batches(data.owners, 20, seed=0, epoch=0)[0])
    with pytest.raises(ValueError, match=r"is a BatchNorm.*would not be exact"):
        Step(model.train(), small_settings(grad_cache=4))(tercet.objective("triplet"), batch, seed=0)


def test_accumulated_gradients_are_the_mean_of_the_batches(tmp_path):
    data = small_data()
    loop = small_loop(tmp_path, heads(data), data, grad_accum_steps=2, grad_clip=None, objective="nt-xent", epochs=1)
    assert loop.steps_per_epoch == 3
    first_two = [to_device(batch, loop.device, "float32") for batch in loop.collator.run(loop.sampler.epoch(0)[:2])]
    expected = []
    for batch in first_two:
        loop.model.zero_grad()
        loop.step(loop.objectives[1], batch, seed=0)
        expected.append(gradients(loop.model))
    for group in loop.optimizer.param_groups:
        group["lr"] = 0.0  # the gradient of the step stays that of these weights
    loop.train_step(StepWork(loop.objectives[1], next(loop.batches(0))))
    for name, gradient in gradients(loop.model).items():
        torch.testing.assert_close(gradient, (expected[0][name] + expected[1][name]) / 2)


def test_the_captioner_is_trained_too_and_the_graph_reasoning_runs_once():
    data, model = vsrn()
    batch = Collator(data).make(pair_batches(data.owners, 20, seed=0, epoch=0)[0])
    runs = []
    reason = model.reason
    model.reason = lambda *given: runs.append(1) or reason(*given)
    Step(model.train(), small_settings(caption_weight=1.0))(tercet.objective("triplet-sh"), batch, seed=0)
    assert len(runs) == 1
    assert model.captioner.out.weight.grad.abs().sum() > 0
    without = vsrn(captioner=False)[1]
    with pytest.raises(ValueError, match="captioner=true"):
        Step(without, small_settings(caption_weight=1.0))(tercet.objective("triplet-sh"), batch, seed=0)


def test_learning_rate_multipliers_and_frozen_parameters():
    model = heads(small_data())
    settings = small_settings(lr_multipliers={"image_head": 0.1}, frozen=["caption_head"])
    freeze(model, settings.frozen)
    assert not any(parameter.requires_grad for parameter in model.caption_head.parameters())
    groups = make_optimizer(model, settings).param_groups
    assert [group["lr"] for group in groups] == pytest.approx([1e-3, 1e-4])
    assert groups[1]["params"][0] is model.image_head.linear.weight
    with pytest.raises(
        ValueError, match="no parameter name starts with 'images'; the modules of the model are: image_head"
    ):
        freeze(model, ["images"])


@pytest.mark.parametrize("given", [{"precision": "bf16"}, {"objective": "con/sig", "ignore_equal_text": True}])
def test_variants_of_the_step_learn(tmp_path, given):
    data = small_data()
    model = heads(data)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    run_through(small_loop(tmp_path, model, data, **given))
    assert all(not torch.equal(before[name], weight) for name, weight in model.state_dict().items())


def test_the_gradient_rises_from_zero_in_the_ramp_epoch(tmp_path, monkeypatch):
    data = small_data()
    loop = small_loop(tmp_path, heads(data), data, ramp_epoch=1, epochs=3)
    factors, step = [], loop.step
    monkeypatch.setattr(loop, "step", lambda *given: factors.append(given[-1]) or step(*given))
    run_through(loop)
    count = loop.steps_per_epoch
    assert factors == [1.0] * count + [n / count for n in range(count)] + [1.0] * count


def test_the_warmup_objective_trains_the_first_epochs(tmp_path, monkeypatch):
    data = small_data()
    loop = small_loop(tmp_path, heads(data), data, warmup_objective="triplet", epochs=2)
    used = []
    step = loop.step
    monkeypatch.setattr(loop, "step", lambda objective, *rest: used.append(objective.name) or step(objective, *rest))
    run_through(loop)
    assert used == ["triplet"] * loop.steps_per_epoch + ["triplet-sh"] * loop.steps_per_epoch


def test_diagonal_positives_as_in_the_published_code(tmp_path):
    data = small_data(12)
    own, diagonal = (
        small_loop(new_folder(tmp_path / name), heads(data), data, positives=name) for name in ("ids", "diagonal")
    )
    batches = [next(loop.collator.run(loop.sampler.epoch(0))) for loop in (own, diagonal)]
    assert loop_positives(own, batches[0]) > 50
    assert loop_positives(diagonal, batches[1]) == 50


def loop_positives(loop, batch):
    return int(to_device(batch, loop.device, "float32").positives().sum())


def new_folder(folder):
    folder.mkdir()
    return folder
