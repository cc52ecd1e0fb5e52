"""open_clip 3.3, the real one: its training loop in one and two processes, with --accum-freq; its own losses."""

from types import SimpleNamespace

import pytest
import torch

import tercet
from tests.integrations import open_clip_here
from tests.integrations.processes import OBJECTIVES, ROWS, gradient_of, in_processes, relative_difference

if not open_clip_here.available():
    pytest.skip("has an environment of its own: make test-open-clip", allow_module_level=True)
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def clip(bias=False):
    import open_clip

    torch.manual_seed(0)
    vision = {"image_size": 16, "patch_size": 8, "width": 16, "layers": 1, "head_width": 8}
    text = {"context_length": 8, "vocab_size": 20, "width": 16, "heads": 2, "layers": 1}
    init = {"init_logit_bias": -3.0} if bias else {}
    return open_clip.model.CLIP(8, vision, text, output_dict=True, **init).double()


def items(rows):
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2 * ROWS, 3, 16, 16, generator=generator, dtype=torch.float64)
    texts = torch.randint(1, 20, (2 * ROWS, 8), generator=generator)
    return images[rows], texts[rows]


class Data(list):
    """Batches, with what the loop asks of a loader."""

    def __init__(self, batches):
        super().__init__(batches)
        self.num_batches, self.num_samples = len(batches), sum(len(images) for images, _ in batches)
        self.dataloader = self

    def set_epoch(self, epoch):
        pass


def train(model, loss, batches, accum_freq, rank=0, world=1):
    """One step of the host's own loop, at learning rate 0: the gradient stays."""
    from open_clip_train.train import train_one_epoch

    args = SimpleNamespace(
        device="cpu",
        precision="fp32",
        distill=False,
        accum_freq=accum_freq,
        skip_scheduler=True,
        grad_clip_norm=None,
        horovod=False,
        rank=rank,
        local_rank=rank,
        world_size=world,
        log_local=False,
        log_every_n_steps=100,
        batch_size=ROWS // world,
        wandb=False,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    train_one_epoch(model, {"train": Data(batches)}, loss, 0, optimizer, None, None, None, args)
    return gradient_of(model)


def gradients(rank, world):
    open_clip_here.available()
    if world > 1:
        torch.distributed.init_process_group("gloo")
    found = {}
    for name in OBJECTIVES:
        for accum_freq in (1, 2):
            model = clip(bias=name == "sigmoid")
            if world > 1:
                model = torch.nn.parallel.DistributedDataParallel(model)
            args = SimpleNamespace(accum_freq=accum_freq)
            loss = tercet.integrations.open_clip.create_loss(name)(args)
            batches = [items(batch.chunk(world)[rank]) for batch in torch.arange(ROWS * accum_freq).split(ROWS)]
            for _ in range(2):  # DistributedDataParallel stops at the second step if a parameter had no gradient
                gradient = train(model, loss, batches, accum_freq, rank, world)
            found[f"{name} {accum_freq}"] = gradient
    return found


def expected_gradient(name, accum_freq):
    """The whole accumulated batch at once."""
    model = clip(bias=name == "sigmoid")
    out = model(*items(torch.arange(ROWS * accum_freq)))
    factors = {"nt-xent": {"temperature": 1.0}, "sigmoid": {"temperature": 1.0, "bias": 0.0}}.get(name, {})
    given = {"scale": out["logit_scale"]} if factors else {}
    given |= {"bias": out["logit_bias"]} if "bias" in factors else {}
    tercet.objective(name, **factors)(out["image_features"], out["text_features"], **given).backward()
    return gradient_of(model)


@pytest.mark.parametrize("world", [1, 2])
def test_gradients_equal_those_of_plain_pytorch(world):
    for found in in_processes(world, gradients):
        for key, gradient in found.items():
            name, accum_freq = key.split()
            assert relative_difference(gradient, expected_gradient(name, int(accum_freq))) < 1e-10, key


@pytest.mark.parametrize(("name", "host_loss"), [("nt-xent", "ClipLoss"), ("sigmoid", "SigLipLoss")])
def test_it_equals_the_loss_of_the_host(name, host_loss):
    import open_clip.loss

    found = []
    for loss in (getattr(open_clip.loss, host_loss)(), tercet.integrations.open_clip.Loss(name)):
        model = clip(bias=name == "sigmoid")
        value = loss(**model(*items(torch.arange(ROWS))), output_dict=True)["contrastive_loss"]
        value.backward()
        found.append(torch.cat([value.detach().reshape(1), gradient_of(model)]))
    assert relative_difference(found[1], found[0]) < 1e-10


def test_an_accumulated_scale_has_accum_freq_times_its_gradient_with_the_loss_of_the_host():
    """open_clip issues 761 and 957. The embeddings' gradient is right: dividing the loss would break it."""
    from open_clip.loss import ClipLoss

    batches = [items(batch) for batch in torch.arange(2 * ROWS).split(ROWS)]
    of_scale, of_encoders = [], []
    for model, data, accum_freq in ((clip(), batches, 2), (clip(), [items(torch.arange(2 * ROWS))], 1)):
        train(model, ClipLoss(), data, accum_freq)
        of_scale.append(model.logit_scale.grad.item())
        of_encoders.append(model.visual.conv1.weight.grad)
    assert of_scale[0] == pytest.approx(2 * of_scale[1])
    torch.testing.assert_close(*of_encoders)


def test_the_factory_of_the_program_is_replaced(monkeypatch):
    import open_clip_train.main as program

    monkeypatch.setattr(program, "create_loss", tercet.integrations.open_clip.create_loss("cir/sig-ms"))
    loss = program.create_loss(SimpleNamespace(accum_freq=4))
    assert (loss.objective.name, loss.accum_freq) == ("cir/sig-ms", 4)
