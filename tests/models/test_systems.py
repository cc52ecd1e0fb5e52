"""Properties of every system: the interface, independence of order and padding, gradients, and that it can learn."""

import numpy as np
import pytest
import torch

import tercet
from tercet.data.encoders.registry import bag_of_words
from tercet.data.image_io import ImageFiles
from tercet.data.scenes import scenes
from tercet.data.scenes import world as w
from tercet.data.scenes.render import Drawing
from tercet.data.text.tokenized import tokenize_captions
from tercet.data.text.vocabulary import build_vocabulary
from tercet.data.transforms import Pixels, TransformSettings
from tercet.interfaces import RetrievalModel
from tercet.models import build
from tests.tiny_models import BERT as TINY_BERT
from tests.tiny_models import RESNET as TINY_RESNET
from tests.tiny_models import SWIN as TINY_SWIN

RESNET = TINY_RESNET | {"embedding_size": 16, "hidden_sizes": [32, 64], "layer_type": "basic"}
BERT = TINY_BERT | {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "intermediate_size": 64,
    "max_position_embeddings": 512,
}
SWIN = TINY_SWIN | {"image_size": 48, "embed_dim": 16, "window_size": 6, "initializer_range": 0.1}
VOCAB_SIZE = 40
# name -> system, settings at a reduced width, form of the images
SYSTEMS = {
    "heads": ("heads", {"image_dim": 256, "caption_dim": 256, "embed_dim": 64}, "global"),
    "heads, mlp": ("heads", {"image_dim": 256, "caption_dim": 256, "embed_dim": 64, "kind": "mlp"}, "global"),
    "heads, regions": ("heads", {"image_dim": 256, "caption_dim": 256, "embed_dim": 64, "pooling": "gpo"}, "regions"),
    "vsepp": ("vsepp", {"image_dim": 256, "embed_dim": 64, "word_dim": 32}, "global"),
    "vsepp, order": (
        "vsepp",
        {"image_dim": 256, "embed_dim": 64, "word_dim": 32, "measure": "order", "absolute": True},
        "global",
    ),
    "vsepp, pixels": ("vsepp", {"backbone": RESNET, "train_backbone": True, "embed_dim": 64, "word_dim": 32}, "pixels"),
    "vsrn, f30k": ("vsrn", {"image_dim": 256, "embed_dim": 64, "word_dim": 32}, "regions"),
    "vsrn, coco": ("vsrn", {"image_dim": 256, "embed_dim": 64, "word_dim": 32, "variant": "coco"}, "regions"),
    "vsrn, both and captioner": (
        "vsrn",
        {
            "image_dim": 256,
            "embed_dim": 64,
            "word_dim": 32,
            "variant": "both",
            "captioner": True,
            "caption_dim": 32,
            "caption_word_dim": 16,
            "caption_length": 40,
        },
        "regions",
    ),
    "vse-infinity, bigru": ("vse-infinity", {"image_dim": 256, "embed_dim": 64, "word_dim": 32}, "regions"),
    "vse-infinity, bert": ("vse-infinity", {"image_dim": 256, "embed_dim": 64, "bert": BERT}, "regions"),
    "scan, t2i": ("scan", {"image_dim": 256, "embed_dim": 64, "word_dim": 32}, "regions"),
    "scan, i2t": (
        "scan",
        {
            "image_dim": 256,
            "embed_dim": 64,
            "word_dim": 32,
            "direction": "i2t",
            "inverse_temperature": 4.0,
            "weight_norm": True,
        },
        "regions",
    ),
    "bfan, equal": ("bfan", {"image_dim": 256, "embed_dim": 64, "word_dim": 32}, "regions"),
    "bfan, prob": ("bfan", {"image_dim": 256, "embed_dim": 64, "word_dim": 32, "focus": "prob"}, "regions"),
    "xvlm": (
        "xvlm",
        {"vision": SWIN, "text": BERT | {"num_hidden_layers": 3, "initializer_range": 0.1}, "fusion_layer": 2},
        "pixels",
    ),
    "vse-infinity, grid": ("vse-infinity", {"backbone": RESNET, "embed_dim": 64, "word_dim": 32}, "pixels"),
}


def full_caption(world, scene):
    """A caption that describes everything in the scene."""
    phrases = []
    for thing, (x, y) in zip(world.objects[scene], world.centres[scene], strict=True):
        if thing[w.SHAPE] != w.ABSENT:
            words = [w.ATTRIBUTES[a][thing[a]][0] for a in (w.SIZE, w.PATTERN, w.COLOUR, w.SHAPE)]
            position = ("left", "middle", "right")[int(x * 3)], ("top", "centre", "bottom")[int(y * 3)]
            phrases.append(" ".join([*words, *position]))
    return " and ".join(phrases) + f" on {w.BACKGROUNDS[world.backgrounds[scene]][0]}"


@pytest.fixture(scope="module")
def full_scenes():
    """32 scenes with a distinct full caption each, in every form."""
    dataset = scenes("train", 32)
    texts = [full_caption(dataset.world, scene) for scene in range(32)]
    assert len(set(texts)) == 32
    vocabulary = build_vocabulary(texts, 1)
    indices = torch.arange(32)
    image_files = ImageFiles([Drawing(dataset.world, scene, str(scene)) for scene in range(32)])
    images = {
        "global": dataset.as_split("global").features.take(indices)[0],
        "regions": dataset.as_split("regions").features.take(indices)[0],
        "pixels": Pixels(image_files, TransformSettings(side=48, shorter_side=None)).take(indices)[0],
    }
    return (
        images,
        (torch.from_numpy(bag_of_words(texts, 256)), None),
        tokenize_captions(texts, vocabulary).take(indices),
        vocabulary,
    )


def make(name, vocabulary=None):
    system, settings, _ = SYSTEMS[name]
    size = VOCAB_SIZE if vocabulary is None else len(vocabulary)
    if "bert" in settings:
        settings = settings | {"bert": BERT | {"vocab_size": size}}
    elif system != "heads":
        settings = settings | {"vocab_size": size}  # of X-VLM too
    torch.manual_seed(0)
    return build(system, **settings)


def inputs(name, count=5):
    generator = torch.Generator().manual_seed(1)
    system, _, kind = SYSTEMS[name]
    shape = {"global": (256,), "regions": (7, 256), "pixels": (3, 48, 48)}[kind]
    images = torch.randn(count, *shape, generator=generator)
    lengths = torch.tensor([7, 3, 5, 1, 7][:count]) if kind == "regions" else None
    if system == "heads":
        return images, lengths, torch.randn(count, 256, generator=generator), None
    return (
        images,
        lengths,
        torch.randint(4, VOCAB_SIZE, (count, 9), generator=generator),
        torch.tensor([9, 2, 6, 4, 9][:count]),
    )


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_interface(name):
    model = make(name).eval()
    assert isinstance(model, RetrievalModel)
    images, lengths, captions, caption_lengths = inputs(name)
    with torch.no_grad():
        a, b = model.encode_images(images, lengths), model.encode_captions(captions, caption_lengths)
        S = model.similarity(a, b[:3])
        assert S.shape == (5, 3)
        if model.dot_product:
            torch.testing.assert_close(S, a @ b[:3].T)
            torch.testing.assert_close(a.norm(dim=1), torch.ones(5))
        assert torch.equal(a, model.encode_images(images, lengths))  # deterministic


@pytest.mark.parametrize("name", SYSTEMS)
def test_items_do_not_depend_on_their_neighbours_order_or_padding(name):
    model = make(name).double().eval()
    images, lengths, captions, caption_lengths = inputs(name)
    images = images.double()
    captions = captions.double() if captions.is_floating_point() else captions
    order = torch.tensor([3, 0, 4, 2, 1])
    with torch.no_grad():
        a, b = model.encode_images(images, lengths), model.encode_captions(captions, caption_lengths)
        shuffled = model.encode_images(images[order], None if lengths is None else lengths[order])
        torch.testing.assert_close(shuffled, a[order], rtol=1e-8, atol=1e-10)
        if caption_lengths is not None:
            torch.testing.assert_close(model.encode_captions(captions[order], caption_lengths[order]), b[order])
            corrupted = captions.clone()
            corrupted[torch.arange(9) >= caption_lengths[:, None]] = 7  # only lengths define what is padding
            wider = torch.nn.functional.pad(corrupted, (0, 4), value=9)
            torch.testing.assert_close(model.encode_captions(wider, caption_lengths), b, rtol=1e-8, atol=1e-10)
        if lengths is not None:
            corrupted = images.clone()
            corrupted[torch.arange(7) >= lengths[:, None]] = 1e3
            wider = torch.nn.functional.pad(corrupted, (0, 0, 0, 3), value=5.0)
            torch.testing.assert_close(model.encode_images(wider, lengths), a, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_parameter_that_is_trained_gets_a_gradient(name):
    model = make(name).train()
    images, lengths, captions, caption_lengths = inputs(name)
    S = model.similarity(model.encode_images(images, lengths), model.encode_captions(captions, caption_lengths))
    tercet.objective("nt-xent").on_similarity(S).backward()
    missing = [key for key, p in model.named_parameters() if p.requires_grad and p.grad is None]
    without_gradient = ("pooler", "captioner", *(("pool.",) if "heads" in name else ()))
    if name == "xvlm":  # the matching head, and the temperature that samples negatives: see test_xvlm.py
        without_gradient += (
            "match_head",
            "text.cross",
            "text.bert.encoder.layer.2",
            "temperature",
            "vision.model.layernorm",
        )
    assert all(any(name_part in key for name_part in without_gradient) for key in missing), missing


def training(name, full_scenes, steps):
    """Train on 32 scenes; yield the model, its similarity function and the loss before each step."""
    images, features, tokens, vocabulary = full_scenes
    model = make(name, vocabulary)
    captions, lengths = features if SYSTEMS[name][0] == "heads" else tokens
    image_files = images[SYSTEMS[name][2]]
    objective = tercet.objective("nt-xent", temperature=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def similarity():
        return model.similarity(model.encode_images(image_files), model.encode_captions(captions, lengths))

    for _ in range(steps):
        model.train()
        optimizer.zero_grad()
        loss = objective.on_similarity(similarity())
        if getattr(model, "captioner", None) is not None:
            regions = model.reason(image_files, torch.full((32,), image_files.shape[1]))
            loss = loss + 0.1 * model.captioner.loss(regions, captions, lengths)
        loss.backward()
        optimizer.step()
        yield model, similarity, loss.item()


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_few_steps_lower_its_loss(name, full_scenes):
    losses = [loss for _, _, loss in training(name, full_scenes, 6)]
    assert min(losses[3:]) < losses[0]


OVERFITTED = ("heads", "vse-infinity, bigru")  # the others are slow


@pytest.mark.parametrize(
    "name", [name if name in OVERFITTED else pytest.param(name, marks=pytest.mark.slow) for name in SYSTEMS]
)
def test_it_overfits_32_scenes(name, full_scenes):
    for step, (model, similarity, _) in enumerate(training(name, full_scenes, 400)):
        if step % 20 == 19:
            with torch.no_grad():
                model.eval()
                metrics = tercet.evaluate(similarity(), torch.eye(32, dtype=torch.bool))
            if metrics["i2t_r1"] == metrics["t2i_r1"] == 100:
                return
    raise AssertionError(f"R@1 {metrics['i2t_r1']} and {metrics['t2i_r1']} after 400 steps")


@pytest.mark.slow
def test_vsrn_learns_from_its_captioner_too(full_scenes):
    images, _, (captions, lengths), vocabulary = full_scenes
    torch.manual_seed(0)
    model = build(
        "vsrn",
        image_dim=256,
        embed_dim=32,
        word_dim=16,
        vocab_size=len(vocabulary),
        captioner=True,
        caption_dim=32,
        caption_word_dim=16,
        caption_length=40,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(30):
        regions = model.reason(images["regions"], torch.full((32,), images["regions"].shape[1]))
        loss = model.captioner.loss(regions, captions, lengths)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    assert model.region_head.weight.grad.abs().sum() > 0


def test_batch_norm_statistics_of_a_backbone_never_change():
    model = build("vsepp", vocab_size=VOCAB_SIZE, backbone=RESNET, train_backbone=True, embed_dim=8, word_dim=4).train()
    before = {key: t.clone() for key, t in model.state_dict().items() if "running" in key}
    assert before
    model.encode_images(torch.randn(4, 3, 48, 48) * 5 + 3)
    assert all(torch.equal(t, model.state_dict()[key]) for key, t in before.items())
    frozen = build("vsepp", vocab_size=VOCAB_SIZE, backbone=RESNET, embed_dim=8, word_dim=4).train()
    frozen.encode_images(torch.randn(4, 3, 48, 48)).sum().backward()
    assert all(p.grad is None for p in frozen.backbone.parameters())
    assert frozen.image_head.weight.grad is not None


def test_zeros_give_finite_gradients():
    """All-zero features, and captions whose order similarity is exactly 0."""
    cross_attention = ("scan, t2i", "scan, i2t", "bfan, equal", "bfan, prob")
    for name in ("vsepp", "vsepp, order", "vsrn, f30k", "vse-infinity, bigru", "heads", *cross_attention):
        model = make(name)
        images, _, captions, lengths = inputs(name)
        S = model.similarity(model.encode_images(images * 0), model.encode_captions(captions, lengths))
        assert S.isfinite().all()
        tercet.objective("triplet-sh").on_similarity(S).backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
        if name in cross_attention:  # an image without features must not cause a huge step
            assert all(p.grad is None or p.grad.abs().max() < 100 for p in model.parameters())


@pytest.mark.parametrize("name", ["scan, t2i", "scan, i2t", "bfan, equal", "bfan, prob"])
def test_one_image_one_region_one_word(name):
    """The published code crashes or gives NaN on each of these."""
    model = make(name)
    for regions, words, count in ((1, 1, 1), (1, 4, 2), (5, 1, 2), (36, 9, 1)):
        images, captions = torch.randn(count, regions, 256), torch.randint(4, VOCAB_SIZE, (count, words))
        encoded = model.encode_images(images), model.encode_captions(captions, torch.full((count,), words))
        S = model.similarity(*encoded)
        assert S.shape == (count, count)
        assert S.isfinite().all()
        model.zero_grad()
        S.sum().backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())
    with pytest.raises(ValueError, match="lengths of images must be from 1"):
        model.encode_images(torch.randn(2, 3, 256), torch.tensor([2, 0]))


def test_dropping_regions_always_leaves_one():
    """Size augmentation never leaves an empty set, with a single region or a high drop probability."""
    from tercet.data.collate import SizeAugmentation, drop_regions

    model = make("bfan, equal")
    for share in (0.2, 0.99):
        augmentation = SizeAugmentation(share, 0.0)
        for regions in (1, 2, 36):
            features, lengths = drop_regions(
                torch.randn(8, regions, 256), None, augmentation, torch.Generator().manual_seed(0)
            )
            assert int(lengths.min()) >= 1
            assert model.encode_images(features, lengths).isfinite().all()


def test_presets_are_the_published_hyper_parameters():
    from tercet.recipes import RECIPES

    vsrn = build("vsrn-f30k", vocab_size=30, embed_dim=8, image_dim=6, caption_dim=5)
    assert vsrn.settings.variant == "f30k"
    assert vsrn.captioner is not None
    assert build("vsepp-order", vocab_size=30).settings.measure == "order"
    assert build("vse-infinity-butd-bigru", vocab_size=30).regions.linear.weight.shape == (1024, 2048)
    assert build("vsepp-precomp", vocab_size=30).words.gru.hidden_size == 1024
    assert build("vsepp-f30k", vocab_size=30, image_dim=12).backbone is None
    scan = build("scan-i2t-coco", vocab_size=30, image_dim=6, embed_dim=8).settings
    assert (scan.direction, scan.inverse_temperature, scan.pooling, scan.pooling_inverse_temperature) == (
        "i2t",
        4.0,
        "LogSumExp",
        20.0,
    )
    assert build("bfan-prob-f30k", vocab_size=30, image_dim=6, embed_dim=8).settings.focus == "prob"
    for system, (settings, _) in RECIPES.values():
        assert system in ("vsepp", "vsrn", "vse-infinity", "scan", "bfan", "xvlm", "clip", "text-towers")
        assert isinstance(settings, dict)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("vseppp", {}, r"no model 'vseppp' \(did you mean vsepp\?\)"),
        ("vsepp", {"word": 3}, r"no setting 'word' \(did you mean word_dim\?\)"),
        ("vsepp", {"vocab_size": 3}, r"give either image_dim \(precomputed features\) or backbone \(pixels\)"),
        ("vse-infinity", {"image_dim": 3}, r"give either vocab_size \(BiGRU\) or bert"),
        ("vsepp", {"image_dim": 3}, r"missing .*argument: 'vocab_size'"),
    ],
)
def test_wrong_settings_are_reported(name, settings, message):
    with pytest.raises(ValueError, match=message):
        build(name, **settings)


@pytest.mark.parametrize("name", ["vsepp", "vsrn, f30k", "vse-infinity, bigru", "heads, regions"])
def test_bfloat16_autocast_works(name):
    model = make(name)
    images, lengths, captions, caption_lengths = inputs(name)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        S = model.similarity(model.encode_images(images, lengths), model.encode_captions(captions, caption_lengths))
    exact = model.similarity(model.encode_images(images, lengths), model.encode_captions(captions, caption_lengths))
    tercet.objective("triplet-sh").on_similarity(S.float()).backward()
    assert (S.float() - exact).abs().max() < 0.1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler uses what torch deprecates
@pytest.mark.parametrize("name", ["heads", "vsepp", "vsrn, f30k", "vse-infinity, bigru"])
def test_compiled_models_give_the_same(name, without_shape_checks):
    model = make(name).eval()
    images, lengths, captions, caption_lengths = inputs(name)
    with torch.no_grad():
        a, b = model.encode_images(images, lengths), model.encode_captions(captions, caption_lengths)
        torch.testing.assert_close(torch.compile(model.encode_images)(images, lengths), a, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            torch.compile(model.encode_captions)(captions, caption_lengths), b, rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("vsepp", {"measure": "cosin"}),
        ("vsrn, f30k", {"variant": "cocoo"}),
        ("heads", {"kind": "mpl"}),
        ("heads", {"pooling": "gop"}),
        ("vsepp", {"embed_dim": 0}),
        ("vsepp", {"word_dim": 2.5}),
    ],
)
def test_misspelt_choices_are_reported(name, setting, without_shape_checks):
    system, settings, _ = SYSTEMS[name]
    extra = {} if system == "heads" else {"vocab_size": VOCAB_SIZE}
    with pytest.raises(ValueError, match=next(iter(setting))):
        build(system, **settings | extra | setting)


@pytest.mark.parametrize("name", ["vsrn, f30k", "vse-infinity, bigru", "heads, regions"])
@pytest.mark.parametrize("wrong", [[0, 3, 5, 1, 7], [8, 3, 5, 1, 7], [-1, 3, 5, 1, 7], [3], [3.0, 3.0, 5.0, 1.0, 7.0]])
def test_wrong_lengths_are_reported(name, wrong, without_shape_checks):
    model = make(name)
    images, *_ = inputs(name)
    with pytest.raises(ValueError, match="lengths of"):
        model.encode_images(images, torch.tensor(wrong))


@pytest.mark.parametrize("name", ["vsrn, f30k", "vse-infinity, bigru", "heads, regions"])
def test_nan_in_padding_has_no_effect(name):
    model = make(name).eval()
    images, lengths, _, _ = inputs(name)
    corrupted = images.clone()
    corrupted[torch.arange(7) >= lengths[:, None]] = torch.nan
    torch.testing.assert_close(model.encode_images(corrupted, lengths), model.encode_images(images, lengths))


def test_the_captioner_does_not_read_padding():
    torch.manual_seed(0)
    model = build(
        "vsrn",
        vocab_size=VOCAB_SIZE,
        image_dim=6,
        embed_dim=8,
        word_dim=4,
        captioner=True,
        caption_dim=5,
        caption_word_dim=3,
        caption_length=12,
    ).eval()
    regions, captions, lengths = torch.randn(3, 4, 8), torch.randint(4, VOCAB_SIZE, (3, 6)), torch.tensor([6, 3, 5])
    short = torch.tensor([4, 2, 3])
    regions[torch.arange(4) >= short[:, None]] = 0
    wider = torch.nn.functional.pad(regions, (0, 0, 0, 5), value=9.0)
    a, b = (model.captioner.loss(features, captions, lengths, short) for features in (regions, wider))
    torch.testing.assert_close(a, b)


def test_backbones_saved_in_half_precision_and_without_a_pooler(tmp_path):
    import transformers as t

    t.ResNetModel(t.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])).half().save_pretrained(
        tmp_path / "half"
    )
    model = build("vsepp", vocab_size=VOCAB_SIZE, backbone=str(tmp_path / "half"), embed_dim=8, word_dim=4)
    assert model.encode_images(torch.randn(2, 3, 32, 32)).dtype == torch.float32
    config = t.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=32, patch_size=16
    )
    t.ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    pixels, vectors = torch.randn(2, 3, 32, 32), []
    for seed in (0, 1):  # a randomly initialized pooler would differ
        torch.manual_seed(seed)
        backbone = (
            build("vsepp", vocab_size=VOCAB_SIZE, backbone=str(tmp_path / "vit"), embed_dim=8, word_dim=4)
            .eval()
            .backbone
        )
        vectors.append(backbone.vectors(pixels))
    torch.testing.assert_close(vectors[0], vectors[1])


def test_order_similarity_is_its_formula():
    from tercet import similarity
    from tercet.similarity import order_embedding

    random = np.random.default_rng(0)
    images, captions = (torch.from_numpy(random.random((n, 6))).requires_grad_() for n in (4, 5))
    S = similarity.order(images, captions)
    for i in range(4):
        for j in range(5):
            gap = (captions[j] - images[i]).clamp(min=0)
            assert S[i, j].item() == pytest.approx(-gap.norm().item())
    assert torch.autograd.gradcheck(similarity.order, (images, captions))
    block_elements = order_embedding.MAX_BLOCK_ELEMENTS
    try:
        order_embedding.MAX_BLOCK_ELEMENTS = 40
        torch.testing.assert_close(similarity.order(images, captions), S)
    finally:
        order_embedding.MAX_BLOCK_ELEMENTS = block_elements


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"inverse_temperature": "abc"}, "inverse_temperature must be a number above 0, got 'abc'"),
        ({"pooling_inverse_temperature": 0}, "pooling_inverse_temperature must be a number above 0"),
        ({"image_norm": "maybe"}, "image_norm must be true or false, got 'maybe'"),
        ({"norm": "l2"}, "norm must be one of clipped_l2norm"),
        ({"layers": "two"}, "layers must be a whole number"),
    ],
)
def test_settings_of_another_type_are_reported(settings, message, without_shape_checks):
    with pytest.raises(ValueError, match=message):
        build("scan", **{"vocab_size": 9, "image_dim": 4} | settings)
