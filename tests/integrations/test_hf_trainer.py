"""Hugging Face Trainer, the real one: gradients in one and two processes; its own loss; the watcher."""

import pytest
import torch

import tercet
from tests.integrations.processes import (
    IDS,
    OBJECTIVES,
    ROWS,
    gradient_of,
    in_processes,
    plain_gradient,
    relative_difference,
)
from tests.tiny_models import TEXT_TOWER, VISION_TOWER

pytest.importorskip("accelerate", reason="has an environment of its own: make test-integrations")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def clip():
    import transformers

    torch.manual_seed(0)
    config = transformers.CLIPConfig(
        text_config=TEXT_TOWER | {"vocab_size": 30},
        vision_config=VISION_TOWER | {"projection_dim": 16},
        projection_dim=16,
    )
    return transformers.CLIPModel(config).double()


def items(count=2 * ROWS):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(count, 3, 32, 32, generator=generator, dtype=torch.float64)
    texts = torch.randint(3, 30, (count, 6), generator=generator)
    texts[:, -1] = 2
    return pixels, texts


def train(folder, model, loss, accumulation=1, world=1, steps=1, callbacks=(), **options):
    """Train with the real Trainer, rows in their order; the gradient before the last step."""
    import transformers

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *arguments):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    class Gradient(transformers.TrainerCallback):
        def on_pre_optimizer_step(self, arguments, state, control, model=None, **rest):
            self.gradient = gradient_of(model)

    pixels, texts = items()
    rows = [{"pixel_values": p, "input_ids": t, "labels": i} for p, t, i in zip(pixels, texts, IDS, strict=True)]
    last = Gradient()
    arguments = transformers.TrainingArguments(
        str(folder),
        per_device_train_batch_size=ROWS // world,
        gradient_accumulation_steps=accumulation,
        max_steps=steps,
        max_grad_norm=0,
        learning_rate=1e-3,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        logging_steps=1,
        remove_unused_columns=False,
        label_names=["labels"],
        **options,
    )
    trainer = InOrder(model, arguments, train_dataset=rows, compute_loss_func=loss, callbacks=[last, *callbacks])
    trainer.train()
    return last.gradient, trainer


def gradients(rank, world, folder):
    found = {}
    for name in OBJECTIVES:
        for accumulation in (1, 2):
            for across in (True, False):
                loss = tercet.integrations.hf_trainer.compute_loss_func(name)
                options = {"average_tokens_across_devices": across}
                if world > 1:
                    options |= {"ddp_find_unused_parameters": False, "ddp_backend": "gloo"}
                gradient, _ = train(folder, clip(), loss, accumulation, world, **options)
                found[f"{name} {accumulation} {across}"] = gradient
    model = clip()
    loss = tercet.integrations.hf_trainer.compute_loss_func("nt-xent", model=model)
    found["learned scale"], _ = train(folder, model, loss, 2, world)
    return found


def embeddings_of(model):
    pixels, texts = items()

    def embed(rows):
        outputs = model(input_ids=texts[rows], pixel_values=pixels[rows])
        return outputs.image_embeds, outputs.text_embeds

    return embed


@pytest.mark.parametrize("world", [1, 2])
def test_gradients_equal_those_of_plain_pytorch(tmp_path, world):
    """Whether or not the Trainer multiplies by the number of processes, which it does by default."""
    model = clip()
    embed = embeddings_of(model)
    for found in in_processes(world, gradients, tmp_path):
        for name in OBJECTIVES:
            for accumulation in (1, 2):
                expected = plain_gradient(model, embed, name, accumulation)
                for across in (True, False):
                    assert relative_difference(found[f"{name} {accumulation} {across}"], expected) < 1e-10
        scale = {"scale": lambda: model.logit_scale.exp(), "temperature": 1.0}
        expected = plain_gradient(model, embed, "nt-xent", 2, **scale)
        assert relative_difference(found["learned scale"], expected) < 1e-10


def test_nt_xent_equals_the_loss_of_the_host():
    model = clip()
    pixels, texts = items(ROWS)
    outputs = model(input_ids=texts, pixel_values=pixels, return_loss=True)
    outputs.loss.backward()
    expected = gradient_of(model)
    model.zero_grad()
    outputs = model(input_ids=texts, pixel_values=pixels)
    loss = tercet.integrations.hf_trainer.compute_loss_func("nt-xent", model=model)
    loss(outputs, torch.arange(ROWS), num_items_in_batch=ROWS).backward()
    assert relative_difference(gradient_of(model), expected) < 1e-10


def test_sigmoid_equals_the_loss_of_the_host():
    import transformers

    torch.manual_seed(0)
    tower = {**TEXT_TOWER, "vocab_size": 30, "projection_size": 32}
    config = transformers.SiglipConfig(text_config=tower, vision_config=VISION_TOWER)
    model = transformers.SiglipModel(config).double()
    pixels, texts = items(ROWS)
    model(input_ids=texts, pixel_values=pixels, return_loss=True).loss.backward()
    expected = gradient_of(model)
    model.zero_grad()
    outputs = model(input_ids=texts, pixel_values=pixels)
    loss = tercet.integrations.hf_trainer.compute_loss_func("sigmoid", model=model)
    loss(outputs, torch.arange(ROWS), num_items_in_batch=ROWS).backward()
    assert relative_difference(gradient_of(model), expected) < 1e-10


def test_a_batch_without_ids_is_refused():
    outputs = clip()(input_ids=items(ROWS)[1], pixel_values=items(ROWS)[0])
    with pytest.raises(ValueError, match="the batch has no labels: add a column `labels`"):
        tercet.integrations.hf_trainer.compute_loss_func("nt-xent")(outputs)


def test_the_watcher_sees_a_real_run(tmp_path):
    from tercet.integrations import hf_trainer

    lines = []
    watcher = tercet.watch("nt-xent", every=2, log=lines.append)
    model = clip()
    loss = hf_trainer.compute_loss_func("nt-xent", model=model, watcher=watcher)
    _, trainer = train(tmp_path, model, loss, steps=5, callbacks=[hf_trainer.WatchCallback(watcher, attach=False)])
    assert [line.split(":")[1] for line in lines] == [" step 1", " step 3", " step 5"]
    history = [line for line in trainer.state.log_history if "watch/monitor" in line]
    assert [line["step"] for line in history] == [1, 3, 5]
    pixels, texts = items()
    with torch.no_grad():
        outputs = clip()(input_ids=texts[:ROWS], pixel_values=pixels[:ROWS])
    S, ids = outputs.logits_per_image, IDS[:ROWS]
    counts = tercet.cocos(tercet.objective("nt-xent", temperature=1.0), S, ids[:, None] == ids)
    assert history[0]["watch/i2t_effective"] == pytest.approx(counts["i2t"]["effective"], rel=1e-4)


def test_the_watcher_attached_to_the_model_of_the_host(tmp_path):
    """The Trainer's own loss: `return_loss` in the batch, and no ids."""
    from tercet.integrations import hf_trainer

    lines = []
    watcher = tercet.watch("nt-xent", every=2, log=lines.append)
    loss = hf_trainer.compute_loss_func("nt-xent")
    train(tmp_path, clip(), loss, steps=3, callbacks=[hf_trainer.WatchCallback(watcher)])
    assert len(lines) == 2
