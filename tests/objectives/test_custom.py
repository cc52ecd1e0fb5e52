"""User-defined objectives in each of the three forms have all methods of the registered ones."""

import dataclasses
import functools

import pytest
import torch
from torch.nn.functional import cross_entropy

import tercet
from tercet.objectives.base import RowObjective
from tests.objectives.batches import CASES

CASE = CASES["house 3 x 15"]


def hinge_gradient(similarity, positives):
    """triplet-sh written by a user, rows as anchors."""
    negatives = similarity.masked_fill(positives, -torch.inf)
    hardest = negatives.max(dim=1, keepdim=True)
    active = positives & (0.2 + hardest.values > similarity)
    pull = active.to(similarity.dtype)
    return (-pull).scatter_add(1, hardest.indices, pull.sum(dim=1, keepdim=True))


def sees_ignored(similarity, positives, ignored):
    return torch.where(ignored, 0.0, 1.0) * (~positives).to(similarity.dtype)


def clip_loss(similarity, positives):
    target = positives.to(similarity.dtype)
    rows = cross_entropy(similarity / 0.1, target / target.sum(dim=1, keepdim=True))
    columns = cross_entropy(similarity.T / 0.1, target.T / target.T.sum(dim=1, keepdim=True))
    return (rows + columns) / 2


def test_a_gradient_function_gets_both_directions_and_the_monitor():
    custom, registered = tercet.objective(hinge_gradient), tercet.objective("triplet-sh")
    torch.testing.assert_close(custom.pair_gradient(*CASE[:2]), registered.pair_gradient(*CASE[:2]))
    assert not custom.has_value
    assert custom.value(*CASE[:2]) is None
    assert custom.name == "hinge_gradient"
    similarity = CASE.similarity.clone().requires_grad_()
    scalar = custom.on_similarity(similarity, CASE.positives)
    scalar.backward()
    torch.testing.assert_close(scalar, registered.value(*CASE[:2]))
    torch.testing.assert_close(similarity.grad, registered.pair_gradient(*CASE[:2]))


def test_three_weights_make_a_cell():
    custom = tercet.objective(
        (lambda s_p, s_n: torch.sigmoid(10 * (s_n - s_p)), lambda s_p: 1 - s_p, lambda s_n: s_n), reduction="mean"
    )
    registered = tercet.objective("nca/lin", reduction="mean")
    torch.testing.assert_close(custom.pair_gradient(*CASE[:2]), registered.pair_gradient(*CASE[:2]))


def test_a_torch_loss_is_a_complete_loss_of_both_directions():
    custom, registered = tercet.objective(clip_loss), tercet.objective("nt-xent", temperature=0.1)
    assert custom.has_value
    torch.testing.assert_close(custom.value(*CASE[:2]), registered.value(*CASE[:2]))
    torch.testing.assert_close(custom.pair_gradient(*CASE[:2]), registered.pair_gradient(*CASE[:2]))
    i2t, t2i = custom.pair_gradients(*CASE[:2])
    assert torch.equal(i2t, t2i)
    similarity = CASE.similarity.clone().requires_grad_()
    (2 * custom.on_similarity(similarity, CASE.positives)).backward()
    torch.testing.assert_close(similarity.grad, 2 * registered.pair_gradient(*CASE[:2]))


def test_a_module_is_a_loss_too():
    class Loss(torch.nn.Module):
        def forward(self, similarity, positives):
            return (similarity * ~positives).sum() - (similarity * positives).sum()

    custom = tercet.objective(Loss())
    assert custom.name == "Loss"
    assert torch.equal(custom.pair_gradient(*CASE[:2]), torch.where(CASE.positives, -1.0, 1.0).double())


def test_ignored_pairs_are_passed_to_an_ignored_parameter_and_are_an_error_without_one():
    case = CASES["house 3 x 15, ignored pairs"]
    gradient = tercet.objective(sees_ignored).pair_gradient(*case)
    assert not gradient[case.ignored].any()
    with pytest.raises(ValueError, match="add a parameter named ignored"):
        tercet.objective(hinge_gradient).pair_gradient(*case)


def test_neither_a_gradient_nor_a_loss_is_an_error_at_construction():
    with pytest.raises(ValueError, match=r"returned \(3,\)"):
        tercet.objective(lambda similarity, positives: similarity.sum(dim=1))
    with pytest.raises(ValueError, match="does not depend on S"):
        tercet.objective(lambda similarity, positives: similarity.detach().sum())
    with pytest.raises(ValueError, match="three functions"):
        tercet.objective((hinge_gradient, hinge_gradient))


def test_a_function_comes_from_a_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def pull(similarity, positives):\n    return -positives.to(similarity.dtype)\n")
    custom = tercet.objective(f"{file}:pull")
    assert custom.name == "pull"
    assert torch.equal(custom.pair_gradients(*CASE[:2])[0], -CASE.positives.double())
    with pytest.raises(ValueError, match=r"defines no 'push'; it defines: pull"):
        tercet.objective(f"{file}:push")


def test_a_default_argument_of_a_user_function_is_kept():
    def scaled(similarity, positives, temperature=0.1):
        return cross_entropy(similarity / temperature, positives.to(similarity.dtype))

    custom = tercet.objective(scaled)
    torch.testing.assert_close(custom.value(*CASE[:2]), scaled(*CASE[:2]))
    half = tercet.objective(functools.partial(scaled, temperature=0.5))
    assert half.name == "scaled"
    torch.testing.assert_close(half.value(*CASE[:2]), scaled(*CASE[:2], temperature=0.5))


def test_a_module_may_take_ignored_pairs_and_have_trainable_parameters():
    class Learned(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(10.0))

        def forward(self, similarity, positives, ignored):
            return (self.scale * similarity * positives * ~ignored).sum()

    module = Learned()
    case = CASES["house 3 x 15, ignored pairs"]
    similarity = case.similarity.float().requires_grad_()
    tercet.objective(module).on_similarity(similarity, case.positives, case.ignored).backward()
    assert module.scale.grad is not None
    assert not similarity.grad[case.ignored].any()


def test_a_user_gradient_at_ignored_pairs_and_without_a_positive_is_set_to_zero():
    case = CASES["house 3 x 15, ignored pairs"]
    ones = tercet.objective(lambda similarity, positives, ignored: torch.ones_like(similarity))
    assert not ones.pair_gradient(*case)[case.ignored].any()
    without = CASES["queries without a positive 4 x 5"]
    shares = tercet.objective(lambda similarity, positives: positives / -positives.sum(dim=1, keepdim=True))
    assert shares.pair_gradient(*without[:2]).isfinite().all()


def test_a_gradient_function_may_use_autograd():
    def by_autograd(similarity, positives):
        s = similarity.detach().requires_grad_()
        return torch.autograd.grad((s.square() * ~positives).sum(), s)[0]

    gradient = tercet.objective(by_autograd).pair_gradients(*CASE[:2])[0]
    torch.testing.assert_close(gradient, 2 * CASE.similarity * ~CASE.positives)


def test_an_objective_is_accepted_and_a_user_function_has_only_the_reduction_setting():
    o = tercet.objective("triplet")
    assert tercet.objective(o) == o
    assert tercet.objective(o, margin=0.3) == tercet.objective("triplet", margin=0.3)
    with pytest.raises(ValueError, match="no setting 'margin'; it has: reduction"):
        tercet.objective(hinge_gradient, margin=3)


def test_a_file_may_use_dataclasses_and_modules_of_its_folder_and_errors_name_the_line(tmp_path):
    (tmp_path / "neighbour.py").write_text("MARGIN = 0.3\n")
    good = tmp_path / "good_objective.py"
    good.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom neighbour import MARGIN\n"
        "@dataclass\nclass Settings:\n    margin: float = MARGIN\n"
        "def pull(similarity, positives):\n    return -Settings().margin * positives.to(similarity.dtype)\n"
    )
    assert tercet.objective(f"{good}:pull").pair_gradients(*CASE[:2])[0].min() == pytest.approx(-0.3)
    for content, message in (("x = 1\ndef pull(:\n", "line 2: SyntaxError"), ("import os\n1 / 0\n", "line 2: ZeroDiv")):
        bad = tmp_path / "bad_objective.py"
        bad.write_text(content)
        with pytest.raises(ValueError, match=message):
            tercet.objective(f"{bad}:pull")


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Squared(RowObjective):
    """Written as CONTRIBUTING says: one `row_gradient`, one `row_value`, nothing about streaming."""

    name = "squared"

    def row_gradient(self, rows):
        return torch.where(rows.positives, 2 * (rows.similarity - 1), 2 * rows.similarity) * rows.positives.any(
            dim=1, keepdim=True
        )

    def row_value(self, rows):
        target = rows.positives.to(rows.similarity.dtype)
        return (rows.similarity - target).square().sum(dim=1)


@pytest.mark.parametrize("size", [3, 64, 200, 1100])
def test_a_class_with_one_row_gradient_works_at_any_size(size):
    x, y = torch.randn(2, size, 6, dtype=torch.float64).unbind()
    x.requires_grad_()
    objective = tercet.objective(Squared)
    objective(x, y).backward()
    expected = objective.pair_gradient(x.detach() @ y.T) @ y
    torch.testing.assert_close(x.grad, expected)
    with pytest.raises(ValueError, match="squared needs the dense similarity"):
        objective(x, y, streamed=True)


def test_such_a_class_comes_from_a_file_with_its_settings(tmp_path):
    file = tmp_path / "scaled.py"
    file.write_text(
        "from dataclasses import dataclass\n"
        "from tercet.objectives.base import RowObjective\n"
        "@dataclass(frozen=True, kw_only=True, repr=False)\n"
        "class Scaled(RowObjective):\n"
        "    name = 'scaled'\n"
        "    has_value = False\n"
        "    factor: float = 2.0\n"
        "    def row_gradient(self, rows):\n"
        "        return self.factor * (rows.negatives.double() - rows.positives.double())\n"
    )
    objective = tercet.objective(f"{file}:Scaled", factor=3.0)
    assert objective.settings == {"reduction": "sum", "factor": 3.0}
    assert objective.pair_gradient(torch.zeros(2, 2, dtype=torch.float64)).tolist() == [[-6, 6], [6, -6]]
    with pytest.raises(ValueError, match=r"scaled has no setting 'fctor'.*did you mean factor"):
        tercet.objective(f"{file}:Scaled", fctor=3.0)


def test_a_file_is_imported_once_per_process(tmp_path):
    file = tmp_path / "counted.py"
    file.write_text(
        "from pathlib import Path\nlog = Path(__file__).with_suffix('.log')\n"
        "log.write_text(log.read_text() + 'x' if log.exists() else 'x')\n"
        "def f(S, positives): return 1.0 * ~positives - 1.0 * positives\n"
    )
    for _ in range(3):
        tercet.objective(f"{file}:f")
    assert (tmp_path / "counted.log").read_text() == "x"
    file.write_text(file.read_text().replace("1.0 * ~", "2.0 * ~"))  # an edited file is another objective
    assert tercet.objective(f"{file}:f").pair_gradient(torch.zeros(2, 2))[0, 1] == 4


def write(
    folder, body, head="from tercet.objectives import RowObjective, objective\nfrom dataclasses import dataclass\n"
):
    (folder / "classes.py").write_text(head + body)
    return f"{folder / 'classes.py'}"


CLASS = "@dataclass(frozen=True, kw_only=True, repr=False)\nclass Own(RowObjective):\n    name = 'own'\n"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (CLASS, "Own cannot be built: .*row_gradient"),
        (CLASS + "    factor: float\n    def row_gradient(self, rows): ...\n", "Own cannot be built: .*factor"),
    ],
)
def test_a_class_that_cannot_be_built_is_refused_in_one_line(tmp_path, body, message):
    with pytest.raises(ValueError, match=message):
        tercet.objective(write(tmp_path, body) + ":Own")
    with pytest.raises(ValueError, match="own has no setting 'other'"):
        tercet.objective(write(tmp_path, body) + ":Own", other=1)


def test_an_objective_with_a_row_gradient_alone_has_no_value_and_trains(tmp_path):
    body = CLASS + "    def row_gradient(self, rows): return rows.negatives.float() - rows.positives.float()\n"
    name = write(tmp_path, body) + ":Own"
    own = tercet.objective(name)
    assert not own.has_value
    assert own.value(torch.zeros(2, 2)) is None
    run = tercet.train(data="scenes:30", epochs=1, objective=name, runs=tmp_path, model_settings={"embed_dim": 8})
    assert run.metrics["rsum"] > 0


def test_an_objective_of_a_file_may_be_an_instance(tmp_path):
    name = write(tmp_path, "mine = objective('triplet', margin=0.3)\n") + ":mine"
    assert tercet.objective(name).margin == 0.3
    assert tercet.objective(name, margin=0.4).margin == 0.4


def test_a_loss_gets_the_facts_that_it_asks_for_by_name():
    seen = {}

    def loss(similarity, positives, image_ids, caption_ids, images, captions, step, scale=1.0):
        seen.update(image_ids=image_ids, caption_ids=caption_ids, images=images, captions=captions, step=step)
        return scale * (similarity - (image_ids[:, None] == caption_ids).float()).square().mean()

    o = tercet.objective(loss, scale=2.0)
    assert o.settings == {"scale": 2.0, "reduction": "sum"}
    x, y, ids = torch.rand(3, 4, requires_grad=True), torch.rand(5, 4), torch.tensor([5, 7, 5, 9, 7])
    o(x, y, image_ids=torch.tensor([7, 5, 2]), caption_ids=ids, step=41).backward()
    assert seen["step"] == 41
    assert torch.equal(seen["caption_ids"], ids)
    assert torch.equal(seen["images"], x.detach())
    assert not seen["images"].requires_grad
    assert tercet.check_objective(o, processes=False)
    with pytest.raises(ValueError, match="loss asks for image_ids, which is not known here"):
        o.on_similarity(torch.rand(3, 3))
    with pytest.raises(ValueError, match=r"loss asks for step, which is not known here.*step="):
        o(x, y, image_ids=torch.tensor([7, 5, 2]), caption_ids=ids)


def test_a_gradient_gets_the_facts_of_its_rows_and_columns():
    def gradient(similarity, positives, anchor_ids, candidates):
        return similarity.detach() * anchor_ids[:, None] * candidates.norm(dim=1)

    o = tercet.objective(gradient)
    x, y = torch.rand(3, 4, requires_grad=True), torch.rand(5, 4)
    ids = {"image_ids": torch.tensor([1, 2, 3]), "caption_ids": torch.tensor([1, 2, 3, 1, 2])}
    o(x, y, **ids).backward()
    similarity = (x @ y.T).detach()
    i2t = similarity * ids["image_ids"][:, None] * y.norm(dim=1)
    t2i = similarity * ids["caption_ids"] * x.detach().norm(dim=1)[:, None]
    torch.testing.assert_close(x.grad, (i2t + t2i) @ y)
    both = o + 0.5 * tercet.objective("triplet-sh")
    leaf = x.detach().clone().requires_grad_()
    both(leaf, y, **ids).backward()
    torch.testing.assert_close(
        leaf.grad,
        x.grad
        + 0.5
        * tercet.objective("triplet-sh").pair_gradient(similarity, ids["image_ids"][:, None] == ids["caption_ids"])
        @ y,
    )


def test_a_gradient_does_not_ask_for_images():
    with pytest.raises(ValueError, match="ask for anchor_ids instead of image_ids"):
        tercet.objective(lambda S, P, image_ids: -P.to(S.dtype))


def test_weights_of_positives_are_passed_to_a_function_that_asks():
    case = CASES["house 3 x 15"]
    weights = case.positives.double() * 0.25

    def gradient(similarity, positives, grades):
        return -grades

    torch.testing.assert_close(tercet.objective(gradient).pair_gradients(case.similarity, weights)[0], -weights)
    with pytest.raises(ValueError, match="does not define weights of positives"):
        tercet.objective(hinge_gradient).pair_gradient(case.similarity, weights)
