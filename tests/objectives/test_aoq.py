"""AOQ objectives equal loops and the authors' code, dense and streamed, in both directions."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import tercet
from tercet.models import build
from tercet.objectives import AOQ_OBJECTIVES, OBJECTIVES
from tercet.similarity import zero_pad
from tests.examples import examples
from tests.objectives.test_goldens import golden

SETTINGS = {"margin": 0.25, "mined_margin": 0.05, "adapt_alpha": 0.2, "adapt_beta": 0.8}
VARIANTS = [{}, {"detach_weights": True}, {"clamp_weights": True}]


def random_batch(images=5, owners=(0, 0, 1, 2, 3, 3, 3), seed=0, spread=0.6):
    """(similarity, positives, mined), with several positives per image and an image without any."""
    generator = torch.Generator().manual_seed(seed)
    positives = torch.tensor(owners)[None, :] == torch.arange(images)[:, None]
    similarity = spread * torch.randn(positives.shape, generator=generator, dtype=torch.float64)
    mined = spread * torch.randn(int(positives.sum()), 4, generator=generator, dtype=torch.float64)
    return similarity, positives, mined


def looped(name, similarity, positives, mined, reduction="sum", ignored=None, **options):
    """The equation in loops over pairs, differentiable."""
    ignored = torch.zeros_like(positives) if ignored is None else ignored
    margin, offline = options.get("margin", 0.2), options.get("mined_margin", 0.0)
    alpha, beta = options.get("adapt_alpha", 0.3), options.get("adapt_beta", 1.5)
    used = [(i, t) for i, t in positives.nonzero().tolist() if not ignored[i, t]]
    weights = {"i2t": 1.0, "t2i": 1.0}
    if reduction == "mean":
        weights = {"i2t": 0.5 / len({i for i, _ in used}), "t2i": 0.5 / len({t for _, t in used})}
    total = similarity.new_zeros(())
    for (i, t), negatives in zip(positives.nonzero().tolist(), mined, strict=True):
        if ignored[i, t]:
            continue
        s_p = similarity[i, t]
        captions = [similarity[i, j] for j in range(len(similarity.T)) if not (positives | ignored)[i, j]]
        images = [similarity[j, t] for j in range(len(similarity)) if not (positives | ignored)[j, t]]
        for direction, own, candidates in (("i2t", negatives[0], captions), ("t2i", negatives[1], images)):
            if candidates:
                hardest = max(candidates, key=lambda s: s.item())
                weight = beta - (own - hardest) / alpha if name == "aoq" else 1.0
                if options.get("clamp_weights") and name == "aoq":
                    weight = weight.clamp(min=0)
                if options.get("detach_weights") and name == "aoq":
                    weight = weight.detach()
                total = total + weights[direction] * weight * (margin + hardest - s_p).relu()
            total = total + weights[direction] * (offline + own - s_p).relu()
            if name != "off-tri":
                for s_mined in negatives[2:]:
                    total = total + weights[direction] * 0.5 * (offline + s_mined - s_p).relu()
    return total


@pytest.mark.parametrize("name", AOQ_OBJECTIVES)
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("with_ignored", [False, True])
def test_value_and_both_gradients_equal_the_loop(name, reduction, variant, with_ignored):
    similarity, positives, mined = random_batch()
    ignored = torch.zeros_like(positives)
    ignored[0, 1] = ignored[2, 5] = with_ignored  # a positive and a negative
    objective = tercet.objective(name, reduction=reduction, **SETTINGS, **variant)
    S, M = similarity.clone().requires_grad_(), mined.clone().requires_grad_()
    expected = looped(name, S, positives, M, reduction, ignored, **SETTINGS, **variant)
    G, for_mined = torch.autograd.grad(expected, (S, M))
    assert_close(objective.value(similarity, positives, ignored, mined=mined), expected.detach())
    assert_close(objective.pair_gradient(similarity, positives, ignored, mined=mined), G)
    assert_close(objective.mined_gradient(similarity, positives, ignored, mined=mined), for_mined)
    S, M = similarity.clone().requires_grad_(), mined.clone().requires_grad_()
    (3.5 * objective.on_similarity(S, positives, ignored, mined=M)).backward()
    assert_close(S.grad, 3.5 * G)
    assert_close(M.grad, 3.5 * for_mined)


@pytest.mark.parametrize("name", AOQ_OBJECTIVES)
def test_directions_add_up_and_are_split_by_column(name):
    similarity, positives, mined = random_batch(seed=1)
    objective = tercet.objective(name)
    i2t, t2i = objective.pair_gradients(similarity, positives, mined=mined)
    assert_close(i2t + t2i, objective.pair_gradient(similarity, positives, mined=mined))
    # Column 0 shares the image and changes i2t only, column 1 shares the caption and changes t2i only.
    far = mined.clone()
    far[:, 1] = -9
    near = far.clone()
    near[:, 0] = similarity[positives] + 0.1
    changed = [objective.pair_gradients(similarity, positives, mined=similarities) for similarities in (far, near)]
    assert not torch.equal(changed[0][0], changed[1][0])
    assert_close(changed[0][1], changed[1][1])


def embeddings(images=7, captions=12, dim=5, seed=3):
    generator = torch.Generator().manual_seed(seed)

    def unit(*shape):
        return torch.nn.functional.normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1)

    ids = torch.tensor([4, 9, 4, 2, 7, 7, 1])[:images], torch.tensor([4, 2, 9, 9, 4, 7, 1, 1, 2, 7, 5, 4])[:captions]
    pairs = int((ids[0][:, None] == ids[1][None]).sum())
    return unit(images, dim), unit(captions, dim), ids, (unit(pairs, 2, dim), unit(pairs, 2, dim))


@pytest.mark.parametrize("name", AOQ_OBJECTIVES)
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("scaled", [False, True])
def test_on_embeddings_dense_and_streamed_equal_autograd_of_the_loop(name, reduction, scaled):
    x, y, (image_ids, caption_ids), negatives = embeddings()
    numbers = [torch.tensor(number, dtype=torch.float64) for number in ((1.7, -0.1) if scaled else ())]
    positives = image_ids[:, None] == caption_ids[None]

    def leaves():
        return [tensor.clone().requires_grad_() for tensor in (x, y, *negatives, *numbers)]

    def affine(product, scale=None, bias=None):
        return product if scale is None else scale * product + bias

    a, b, i, t, *numbers_ = leaf = leaves()
    pairs = positives.nonzero()
    M = torch.stack(
        [
            torch.stack([affine(p @ q, *numbers_) for p, q in couples])
            for couples in (
                [(a[r], t[k, 0]) for k, (r, _) in enumerate(pairs)],
                [(i[k, 0], b[c]) for k, (_, c) in enumerate(pairs)],
                [(i[k, 0], t[k, 0]) for k in range(len(pairs))],
                [(i[k, 1], t[k, 1]) for k in range(len(pairs))],
            )
        ],
        dim=1,
    )
    expected = looped(name, affine(a @ b.T, *numbers_), positives, M, reduction)
    gradients = torch.autograd.grad(expected, leaf, allow_unused=True)
    objective = tercet.objective(name, reduction=reduction)
    for streamed in (False, True):
        a, b, i, t, *numbers_ = leaf = leaves()
        named = dict(zip(("scale", "bias"), numbers_, strict=False))
        value = objective(a, b, image_ids=image_ids, caption_ids=caption_ids, mined=(i, t), streamed=streamed, **named)
        assert_close(value.detach(), expected.detach())
        for actual, reference in zip(torch.autograd.grad(value, leaf, allow_unused=True), gradients, strict=True):
            zero = torch.zeros(())
            assert_close(zero if actual is None else actual, zero if reference is None else reference)


@pytest.mark.parametrize("variant", ["v0", "v1", "v2"])
@pytest.mark.parametrize("name", AOQ_OBJECTIVES)
def test_aoq_on_vsrn(name, variant):
    tensors, about = golden("aoq_vsrn_loss")
    params = about["variants"][variant]["params"]
    settings_ = {"margin": params["marginonline"], "mined_margin": float(params["marginoffline"])}
    settings_ |= {"adapt_alpha": params["alpha"], "adapt_beta": params["beta"]}
    names = ("im", "s", "im_off", "s_off", "im_off2", "s_off2")
    leaf = {key: tensors[f"in.{key}"].clone().requires_grad_() for key in names}
    mined = tuple(torch.stack([leaf[f"{side}_off"], leaf[f"{side}_off2"]], dim=1) for side in ("im", "s"))
    value = tercet.objective(name, **settings_)(leaf["im"], leaf["s"], mined=mined)
    value.backward()
    scalar = {"aoq": "out.loss.aoq", "off-quin": "out.loss.offquin", "off-tri": "ref.offtri_loss"}[name]
    grad = {"aoq": "out.grad", "off-quin": "out.grad_offquin", "off-tri": "ref.grad_offtri"}[name]
    assert_close(value.detach(), tensors[f"{scalar}.{variant}"], atol=1e-9, rtol=0)
    for key, tensor in leaf.items():
        if f"{grad}.{key}.{variant}" in tensors:
            assert_close(tensor.grad, tensors[f"{grad}.{key}.{variant}"], atol=1e-9, rtol=0)
        else:
            assert name == "off-tri"
            assert key.endswith("off2")
            assert not tensor.grad.any()
    with torch.no_grad():
        S = leaf["im"] @ leaf["s"].T
        pairs = [("im", "s_off"), ("im_off", "s"), ("im_off", "s_off"), ("im_off2", "s_off2")]
        M = torch.stack([(leaf[a] * leaf[b]).sum(dim=1) for a, b in pairs], dim=1)
        active = tercet.objective(name, **settings_).mined_active(S, mined=M)
    expected = about["variants"][variant]["active_offline"]
    assert active == (expected if name != "off-tri" else [*expected[:2], 0, 0])


@given(seed=st.integers(0, 10_000), images=st.integers(1, 5), captions=st.integers(1, 6))
@examples(60)
def test_any_batch_equals_the_loop(seed, images, captions):
    generator = torch.Generator().manual_seed(seed)
    positives = torch.rand(images, captions, generator=generator) < 0.4
    similarity = torch.rand(images, captions, generator=generator, dtype=torch.float64)
    mined = torch.rand(int(positives.sum()), 4, generator=generator, dtype=torch.float64)
    for name in AOQ_OBJECTIVES:
        S, M = similarity.clone().requires_grad_(), mined.clone().requires_grad_()
        expected = looped(name, S, positives, M)
        objective = tercet.objective(name)
        assert_close(objective.value(similarity, positives, mined=mined), expected.detach())
        if expected.requires_grad:
            G, for_mined = torch.autograd.grad(expected, (S, M), materialize_grads=True)
            assert_close(objective.pair_gradient(similarity, positives, mined=mined), G)
            assert_close(objective.mined_gradient(similarity, positives, mined=mined), for_mined)


def test_an_exact_zero_of_a_hinge_has_no_weight():
    similarity, mined = torch.tensor([[0.5, 0.25], [0.0, 0.5]]), torch.full((2, 4), 0.5)
    objective = tercet.objective("off-quin", margin=0.25)
    assert not objective.pair_gradient(similarity, mined=mined).any()
    assert not objective.mined_gradient(similarity, mined=mined).any()
    assert objective.mined_active(similarity, mined=mined) == [0, 0, 0, 0]


def test_half_precision_is_widened():
    similarity, positives, mined = random_batch()
    for name in AOQ_OBJECTIVES:
        value = tercet.objective(name).on_similarity(similarity.half(), positives, mined=mined.half())
        assert value.dtype == torch.float32
        assert value.isfinite()


def test_mined_is_required_by_aoq_objectives_and_rejected_by_the_others():
    similarity, positives, mined = random_batch()
    x, y, (image_ids, caption_ids), negatives = embeddings()
    for name in AOQ_OBJECTIVES:
        objective = tercet.objective(name)
        assert objective.has_value
        for call in (objective.on_similarity, objective.value, objective.pair_gradient, objective.pair_gradients):
            with pytest.raises(ValueError, match=f"{name} needs mined="):
                call(similarity, positives)
        with pytest.raises(ValueError, match=f"{name} needs mined="):
            objective(x, y, image_ids=image_ids, caption_ids=caption_ids)
    for name in OBJECTIVES:
        objective = tercet.objective(name)
        for call in (objective.on_similarity, objective.pair_gradient):
            with pytest.raises(TypeError, match="mined"):
                call(similarity, positives, mined=mined)
        with pytest.raises(TypeError, match="mined"):
            objective(x, y, image_ids=image_ids, caption_ids=caption_ids, mined=negatives)


@pytest.mark.parametrize("wrong", [lambda m: m[:-1], lambda m: m[:, :3], lambda m: m.long(), lambda m: "nothing"])
def test_a_wrong_shape_of_mined_is_an_error(wrong, without_shape_checks):
    similarity, positives, mined = random_batch()
    with pytest.raises(ValueError, match=r"pair x 4 matrix, \(7, 4\) here"):
        tercet.objective("aoq").on_similarity(similarity, positives, mined=wrong(mined))
    x, y, (image_ids, caption_ids), (images, captions) = embeddings()
    with pytest.raises(ValueError, match=r"mined captions .* must be pair x 2 x dim"):
        tercet.objective("aoq")(x, y, image_ids=image_ids, caption_ids=caption_ids, mined=(images, captions[1:]))


@pytest.mark.parametrize("name", AOQ_OBJECTIVES)
def test_settings_names_and_repr(name, without_shape_checks):
    objective = tercet.objective(name, **SETTINGS)
    assert objective.name == name
    assert tercet.objective(objective.name, **objective.settings) == objective
    assert eval(repr(objective), {"tercet": tercet}) == objective
    for setting, value in itertools.product(("margin", "adapt_alpha"), (float("nan"), "much")):
        with pytest.raises(ValueError, match=setting):
            tercet.objective(name, **{setting: value})
    for setting, value in (("detach_weights", "yes"), ("clamp_weights", 1)):
        with pytest.raises(ValueError, match=f"{setting} must be one of True, False"):
            tercet.objective(name, **{setting: value})
    with pytest.raises(ValueError, match="adapt_alpha must be a positive number"):
        tercet.objective(name, adapt_alpha=0)


@pytest.mark.parametrize("focus", ["equal", "prob"])
def test_aoq_on_bfan(focus):
    """B x B and 4 B pairs of cross attention, from padded sets as in the authors' code."""
    tensors, about = golden("aoq_bfan_loss")
    model = build(
        "bfan",
        vocab_size=10,
        image_dim=8,
        embed_dim=16,
        focus=focus,
        inverse_temperature=float(about["lambda_softmax"]),
    )
    names = ("im", "s", "im_off", "s_off", "im_off2", "s_off2")
    leaf = {key: tensors[f"in.{key}"].clone().requires_grad_() for key in names}
    words = {"s": "len", "s_off": "len_off", "s_off2": "len_off2"}
    sets = dict(leaf)
    for key, length in words.items():
        is_real = torch.arange(leaf[key].shape[1]) < tensors[f"in.{length}"][:, None]
        sets[key] = zero_pad(leaf[key], is_real)
    S = model.similarity(sets["im"], sets["s"])
    assert_close(S.detach(), tensors[f"out.score.{focus}"], atol=1e-9, rtol=0)
    of_pairs = model.similarity_of_pairs(sets["im"], sets["s"])
    assert_close(of_pairs.detach(), tensors[f"out.pair_score.{focus}"], atol=1e-9, rtol=0)
    pairs = [("im", "s_off"), ("im_off", "s"), ("im_off", "s_off"), ("im_off2", "s_off2")]
    M = torch.stack([model.similarity_of_pairs(sets[a], sets[b]) for a, b in pairs], dim=1)
    value = tercet.objective("aoq").on_similarity(S, mined=M)
    assert_close(value.detach(), tensors[f"out.loss.{focus}"], atol=1e-9, rtol=0)
    plain = tercet.objective("off-quin").on_similarity(S.detach(), mined=M.detach())
    assert_close(plain, tensors[f"out.loss_offquin.{focus}"], atol=1e-9, rtol=0)
    value.backward()
    for key, tensor in leaf.items():
        assert_close(tensor.grad.float(), tensors[f"out.grad.{key}.{focus}"], atol=1e-5, rtol=1e-5)
