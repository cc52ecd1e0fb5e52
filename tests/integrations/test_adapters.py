"""What needs no host: nothing is imported before its use, a missing package is one line, and open_clip's interfaces."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tercet
from tercet.integrations import ADAPTERS, PACKAGES, host
from tercet.integrations.open_clip import Loss
from tests.integrations.processes import relative_difference

SOURCES = sorted((Path(tercet.__file__).parent / "integrations").glob("*.py"))


def embeddings(rows=6, dim=4):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.nn.functional.normalize(torch.randn(rows, dim, generator=generator, dtype=torch.float64), dim=1)
        for _ in range(2)
    ]


def test_importing_them_imports_no_host():
    hosts = [*PACKAGES, "open_clip", "torchvision"]
    program = (
        "import sys, tercet\n"
        "assert 'torch' not in sys.modules\n"
        f"names = {list(ADAPTERS)}\n"
        "[getattr(tercet.integrations, name) for name in names]\n"
        "tercet.integrations.open_clip.Loss('cir/sig-ms'), tercet.integrations.sentence_transformers.Loss\n"
        f"print([name for name in {hosts} if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True)
    assert ran.stdout.strip() == "[]", ran.stderr


def test_adapters_are_short():
    assert {file.stem for file in SOURCES} == {"__init__", *ADAPTERS}
    assert {
        file.name: len(file.read_text().splitlines()) for file in SOURCES if len(file.read_text().splitlines()) > 60
    } == {}


@pytest.mark.parametrize(
    ("adapter", "class_name", "package"),
    [
        ("pml", "Loss", "pytorch_metric_learning"),
        ("sentence_transformers", "CachedLoss", "sentence_transformers"),
        ("hf_trainer", "WatchCallback", "transformers"),
        ("lightning", "WatchCallback", "lightning"),
    ],
)
def test_a_missing_package_is_one_line_of_advice(monkeypatch, adapter, class_name, package):
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    module = getattr(tercet.integrations, adapter)
    with pytest.raises(ValueError, match=f"^{package} is not installed: pip install .*$"):
        getattr(module, class_name)
    with pytest.raises(AttributeError, match="no attribute 'Lss'"):
        module.Lss  # noqa: B018


def test_a_package_that_misses_another_one_is_not_called_missing(monkeypatch, tmp_path):
    (tmp_path / "lightning.py").write_text("import a_package_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "lightning", raising=False)
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_not_there"):
        host("lightning")


def scale_and_bias():
    return (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (14.0, -3.0))


@pytest.mark.parametrize(
    ("name", "settings", "S"),
    [
        ("nt-xent", {}, lambda s, scale, bias: scale * s),
        ("nt-xent", {"temperature": 0.5}, lambda s, scale, bias: scale * s),
        ("sigmoid", {}, lambda s, scale, bias: scale * s + bias),
        ("sigmoid", {"bias": 2.0}, lambda s, scale, bias: scale * s + bias),
        ("triplet-sh", {}, lambda s, scale, bias: s),
        ("cir/sig-ms", {}, lambda s, scale, bias: s),
    ],
)
def test_a_learned_scale_takes_the_place_of_the_temperature_that_was_not_named(name, settings, S):
    """The call of open_clip 3.3. Those that the objective does not use have a gradient, of 0: DDP waits for one."""
    neutral = {"nt-xent": {"temperature": 1.0}, "sigmoid": {"temperature": 1.0, "bias": 0.0}}.get(name, {})
    objective = tercet.objective(name, **neutral | settings)
    images, captions = embeddings()
    scale, bias = scale_and_bias()
    out = Loss(name, **settings)(
        image_features=images, text_features=captions, logit_scale=scale, logit_bias=bias, output_dict=True
    )
    assert list(out) == ["contrastive_loss"]  # the task adds every value; its main branch those that end in _loss
    out["contrastive_loss"].backward()
    found = [out["contrastive_loss"].detach(), scale.grad, bias.grad]
    scale, bias = scale_and_bias()
    expected = objective.on_similarity(S(images @ captions.T, scale, bias))
    if expected.requires_grad:
        expected.backward()
    for actual, wanted in zip(found, (expected.detach(), scale.grad, bias.grad), strict=True):
        torch.testing.assert_close(actual, torch.zeros_like(actual) if wanted is None else wanted)


def test_a_scale_of_shape_one_as_fsdp_makes_it():
    images, captions = embeddings()
    scale = torch.tensor([14.0], dtype=torch.float64, requires_grad=True)
    Loss("nt-xent")(images, captions, scale).backward()
    assert scale.grad.shape == (1,)


class Task(torch.nn.Module):
    """The interface of a task of open_clip's main branch (4.2.0.dev0), which is not on PyPI: it calls the loss so.

    Only keys that end in _loss are added. `ids` is what a subclass adds that hands `batch["id"]` on.
    """

    def __init__(self, model, *, loss):
        super().__init__()
        self.model, self.loss = model, loss

    def training_forward(self, batch):
        model_out = self.model(batch["image"], batch["text"])
        ids = {"image_ids": batch["id"], "text_ids": batch["id"]} if "id" in batch else {}
        losses = self.loss(**model_out, **ids, output_dict=True)
        return sum(value for name, value in losses.items() if name.endswith("_loss")), losses


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.image, self.text = torch.nn.Linear(4, 3).double(), torch.nn.Linear(4, 3).double()
        self.scale = torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def forward(self, image, text):
        normalize = torch.nn.functional.normalize
        return {
            "image_features": normalize(self.image(image), dim=1),
            "text_features": normalize(self.text(text), dim=1),
            "logit_scale": self.scale.exp(),
        }


def test_a_task_of_the_main_branch_on_a_stand_in_with_its_signature():
    images, captions = embeddings()
    ids = torch.tensor([7, 7, 1, 2, 3, 4])
    for batch in ({"image": images, "text": captions}, {"image": images, "text": captions, "id": ids}):
        model = Model()
        total, _ = Task(model, loss=Loss("nt-xent")).training_forward(batch)
        out = model(images, captions)
        S = out["logit_scale"] * out["image_features"] @ out["text_features"].T
        positives = ids[:, None] == ids if "id" in batch else None
        expected = tercet.objective("nt-xent", temperature=1.0).on_similarity(S, positives)
        torch.testing.assert_close(total, expected)


def test_accumulated_batches_of_open_clip_give_the_scale_its_gradient_once():
    """Its loop calls the loss `accum_freq` times on the whole batch, each time with other rows in the graph."""
    data, found = embeddings(), []
    for accum_freq in (1, 3):
        model = Model()
        loss = Loss("nt-xent", accum_freq=accum_freq)
        kept = {name: value.detach() for name, value in model(*data).items()}
        for rows in torch.arange(6).chunk(accum_freq):
            out = model(*(side[rows] for side in data))
            both = {name: kept[name].index_put((rows,), out[name]) for name in ("image_features", "text_features")}
            loss(**both, logit_scale=out["logit_scale"]).backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert relative_difference(found[1], found[0]) < 1e-12


def test_arguments_of_other_models_are_not_dropped():
    with pytest.raises(TypeError, match="logits"):  # CoCa: its captioning loss would be missing
        Loss("nt-xent")(*embeddings(), torch.tensor(1.0), logits=torch.zeros(1))


def test_trec_files_hold_the_evaluation(tmp_path):
    S = torch.tensor([[0.9, 0.1, 0.3], [0.2, 0.8, 0.4]])
    positives = torch.tensor([[True, False, True], [False, True, False]])
    folder = tercet.integrations.trec.write(tmp_path / "out", S, positives, depth=2)
    assert (folder / "i2t.qrels").read_text() == "i0 0 t0 1\ni0 0 t2 1\ni1 0 t1 1\n"
    ranked = [line.split() for line in (folder / "t2i.run").read_text().splitlines()]
    assert [row[:4] for row in ranked] == [
        ["t0", "Q0", "i0", "1"],
        ["t0", "Q0", "i1", "2"],
        ["t1", "Q0", "i1", "1"],
        ["t1", "Q0", "i0", "2"],
        ["t2", "Q0", "i1", "1"],
        ["t2", "Q0", "i0", "2"],
    ]
    by_query = {(row[0], row[2]): float(row[4]) for row in ranked}
    assert by_query["t1", "i1"] == S[1, 1].item()


@pytest.mark.usefixtures("without_shape_checks")
def test_trec_files_need_a_mask_of_the_same_shape(tmp_path):
    S, positives = torch.rand(2, 3), torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"boolean mask of shape \(2, 3\)"):
        tercet.integrations.trec.write(tmp_path / "other", S, positives.T)
    assert not (tmp_path / "other").exists()
