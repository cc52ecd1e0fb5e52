"""X-VLM: interface, matching and hard negatives, checkpoints, re-ranking."""

import doctest
import json
from dataclasses import asdict
from importlib import import_module

import pytest
import torch

import tercet
from tercet.evaluation.rerank import UNRANKED, rerank
from tercet.interfaces import RetrievalModel
from tercet.models.convert.safe_load import read_checkpoint
from tercet.models.convert.state_dicts import load_states
from tercet.models.convert.xvlm import RENAMES, convert_states, infer_settings, resize_position_table
from tercet.models.xvlm import XVLM, Negatives, XVLMSettings, draw_negatives
from tests.models.parity import GOLDENS, golden, states_of
from tests.models.parity_xvlm import text_config, xvlm
from tests.tiny_models import BERT, SWIN

PIXELS = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
CAPTIONS = torch.randint(4, 30, (4, 7), generator=torch.Generator().manual_seed(2))
LENGTHS = torch.tensor([7, 3, 1, 5])


def make(seed=0, **settings):
    torch.manual_seed(seed)
    return XVLM(XVLMSettings(**{"vision": SWIN, "text": BERT, "fusion_layer": 1, "embed_dim": 8} | settings))


def same_ids(*ids):
    return torch.tensor(ids)[:, None] == torch.tensor(ids)


def matching_loss(model, positives, seed=0):
    """The matching loss, and the negatives sampled for it."""
    tokens, states = model.image_tokens(PIXELS), model.word_states(CAPTIONS, LENGTHS)
    S = model.similarity(model.image_features(tokens), model.caption_features(states))
    generator = torch.Generator().manual_seed(seed)
    drawn = draw_negatives(S, positives, temperature=model.temperature, generator=generator)
    return model.matching_loss(tokens, states, LENGTHS, drawn), drawn


def test_the_interface_is_deterministic_and_independent_of_order():
    model = make().double().eval()
    assert isinstance(model, RetrievalModel)
    order = torch.tensor([2, 0, 3, 1])
    with torch.no_grad():
        images, captions = model.encode_images(PIXELS.double()), model.encode_captions(CAPTIONS, LENGTHS)
        torch.testing.assert_close(model.similarity(images, captions), images @ captions.T)
        torch.testing.assert_close(captions.norm(dim=1), torch.ones(4).double())
        torch.testing.assert_close(model.encode_images(PIXELS[order].double()), images[order])
        torch.testing.assert_close(model.encode_captions(CAPTIONS[order], LENGTHS[order]), captions[order])
        assert torch.equal(model.encode_captions(CAPTIONS, LENGTHS), captions)
        assert torch.equal(model.encode_images(PIXELS.double()), images)


def test_padding_of_captions_has_no_effect():
    model = make().double().eval()
    corrupted = CAPTIONS.clone()
    corrupted[torch.arange(7) >= LENGTHS[:, None]] = 9
    wider = torch.nn.functional.pad(corrupted, (0, 5), value=3)
    with torch.no_grad():
        tokens, states = model.image_tokens(PIXELS.double()), model.word_states(CAPTIONS, LENGTHS)
        again = model.word_states(wider, LENGTHS)
        torch.testing.assert_close(model.caption_features(again), model.caption_features(states))
        torch.testing.assert_close(model.match(tokens, again, LENGTHS), model.match(tokens, states, LENGTHS))
        states[torch.arange(7) >= LENGTHS[:, None]] = 1e3  # only lengths define what is padding
        torch.testing.assert_close(model.match(tokens, states, LENGTHS), model.match(tokens, again, LENGTHS))


@pytest.mark.parametrize("wrong", [[0, 3, 1, 5], [8, 3, 1, 5], [3]])
def test_wrong_lengths_are_reported(wrong, without_shape_checks):
    model = make()
    with pytest.raises(ValueError, match="lengths of captions"):
        model.encode_captions(CAPTIONS, torch.tensor(wrong))
    with pytest.raises(ValueError, match="lengths of captions"):
        model.match(model.image_tokens(PIXELS), model.word_states(CAPTIONS, LENGTHS), torch.tensor(wrong))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fusion_layer": 0}, "fusion_layer must be from 1 to 2, got 0"),
        ({"fusion_layer": 3}, "fusion_layer must be from 1 to 2, got 3"),
        (
            {"text": {"model_type": "distilbert", "n_layers": 1, "dim": 8, "n_heads": 1}},
            "must be a BERT, got distilbert",
        ),
        ({"vision": SWIN | {"window_size": 5}}, "window_size 5 is larger than the Swin's last feature map, 4 x 4"),
    ],
)
def test_wrong_settings_are_reported(settings, message):
    with pytest.raises(ValueError, match=message):
        make(**settings)


def test_images_of_another_size_are_refused_and_leave_the_windows_unchanged():
    model = make().eval()
    before = model.encode_images(PIXELS)
    with pytest.raises(ValueError, match="takes images of 32 x 32 pixels, got"):
        model.encode_images(PIXELS[..., :16, :16])
    assert torch.equal(model.encode_images(PIXELS), before)


def test_a_model_built_from_its_own_settings_takes_its_weights():
    model = make(seed=0).eval()
    settings = json.loads(json.dumps(asdict(model.settings)))  # as a saved model has them
    again = make(seed=1, **settings).eval()
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again.encode_images(PIXELS), model.encode_images(PIXELS))
    torch.testing.assert_close(again.encode_captions(CAPTIONS, LENGTHS), model.encode_captions(CAPTIONS, LENGTHS))
    assert matching_loss(again, same_ids(0, 1, 2, 3))[0].item() == pytest.approx(
        matching_loss(model, same_ids(0, 1, 2, 3))[0].item()
    )


def test_pretrained_towers_are_loaded(tmp_path):
    """All layers of a BERT are used, the fusion layers too; the cross attention is newly initialized."""
    import transformers as t

    bert = t.BertModel(t.BertConfig(**{key: value for key, value in BERT.items() if key != "model_type"}))
    bert.save_pretrained(tmp_path / "bert")
    swin = t.SwinModel(t.SwinConfig(**{key: value for key, value in SWIN.items() if key != "model_type"})).eval()
    swin.save_pretrained(tmp_path / "swin")
    model = make(vision=str(tmp_path / "swin"), text=str(tmp_path / "bert")).eval()
    assert isinstance(model.settings.text, dict)
    for key, tensor in bert.state_dict().items():
        assert "pooler" in key or torch.equal(model.text.bert.state_dict()[key], tensor)
    with torch.no_grad():
        patches = swin(pixel_values=PIXELS).last_hidden_state
        torch.testing.assert_close(model.image_tokens(PIXELS)[:, 1:], patches)
        torch.testing.assert_close(model.image_tokens(PIXELS)[:, 0], patches.mean(dim=1))


def test_hard_negatives_are_never_of_the_same_id_and_follow_the_similarity():
    S, positives = torch.tensor([[0.9, 0.5, 0.4, 0.1]] * 4), same_ids(5, 5, 6, 7)
    generator = torch.Generator().manual_seed(0)
    draws = [draw_negatives(S, positives, temperature=0.2, generator=generator) for _ in range(2000)]
    captions, images = torch.stack([d.captions for d in draws]), torch.stack([d.images for d in draws])
    assert not positives[torch.arange(4), captions].any()
    assert not positives[images, torch.arange(4)].any()
    weights = (S[2] / 0.2).softmax(dim=0) + 1e-5
    weights[2] = 0
    share = torch.stack([(captions[:, 2] == caption).float().mean() for caption in range(4)])
    torch.testing.assert_close(share, weights / weights.sum(), atol=0.04, rtol=0)
    share = torch.stack([(images[:, 3] == image).float().mean() for image in range(4)])
    torch.testing.assert_close(share, torch.tensor([1, 1, 1, 0]) / 3, atol=0.04, rtol=0)


def test_hard_negatives_of_unequal_numbers_of_images_and_captions():
    """Image 0 owns captions 0 and 1, image 1 owns caption 2; all but image 1 have exactly one candidate."""
    positives = torch.tensor([[True, True, False], [False, False, True]])
    drawn = draw_negatives(torch.zeros(2, 3), positives, temperature=0.07)
    assert drawn.images.tolist() == [1, 1, 0]
    assert drawn.captions[0] == 2
    assert drawn.captions[1] in (0, 1)


def test_hard_negatives_are_the_same_with_the_same_generator():
    S = torch.randn(6, 6, generator=torch.Generator().manual_seed(3))
    a, b = (
        draw_negatives(S, same_ids(*range(6)), temperature=0.5, generator=torch.Generator().manual_seed(4))
        for _ in range(2)
    )
    assert torch.equal(a.images, b.images)
    assert torch.equal(a.captions, b.captions)


def test_a_batch_of_one_image_has_no_negatives():
    model = make()
    loss, drawn = matching_loss(model, same_ids(3, 3, 3, 3))
    assert (drawn.images == -1).all()
    assert (drawn.captions == -1).all()
    tokens, states = model.image_tokens(PIXELS), model.word_states(CAPTIONS, LENGTHS)
    matched = model.matching_logits(tokens, states, LENGTHS).log_softmax(dim=1)[:, 1]
    torch.testing.assert_close(loss, -matched.mean())
    loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_matching_loss_is_the_mean_over_the_combinations_that_exist():
    model = make().double()
    tokens, states = model.image_tokens(PIXELS.double()), model.word_states(CAPTIONS, LENGTHS)
    negatives = Negatives(images=torch.tensor([1, -1, 0, 2]), captions=torch.tensor([3, 2, -1, -1]))
    combinations = [(i, i, 1) for i in range(4)] + [(1, 0, 0), (0, 2, 0), (2, 3, 0)] + [(0, 3, 0), (1, 2, 0)]
    losses = [
        -model.matching_logits(tokens[[i]], states[[c]], LENGTHS[[c]]).log_softmax(dim=1)[0, matched]
        for i, c, matched in combinations
    ]
    torch.testing.assert_close(model.matching_loss(tokens, states, LENGTHS, negatives), torch.stack(losses).mean())


@pytest.mark.slow
def test_every_parameter_is_trained_and_it_overfits_four_pairs():
    model, positives = make().train(), same_ids(0, 1, 2, 3)
    objective = tercet.objective("nt-xent", temperature=1.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(60):
        images, captions = model.encode_images(PIXELS), model.encode_captions(CAPTIONS, LENGTHS)
        loss = objective(images, captions, scale=1 / model.temperature) + matching_loss(model, positives, step)[0]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert not [key for key, parameter in model.named_parameters() if parameter.grad is None]
    model.eval()
    with torch.no_grad():
        tokens, states = model.image_tokens(PIXELS), model.word_states(CAPTIONS, LENGTHS)
        S = model.similarity(model.image_features(tokens), model.caption_features(states))
        reranked = rerank(S, lambda i, c: model.match(tokens[i], states[c], LENGTHS[c]), k=4)
    assert tercet.evaluate(S, positives)["rsum"] == 600
    assert tercet.evaluate(reranked.i2t, positives)["i2t_r1"] == 100
    assert tercet.evaluate(reranked.t2i, positives)["t2i_r1"] == 100


def test_bfloat16_autocast_works():
    model = make()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, _ = matching_loss(model, same_ids(0, 1, 2, 3))
    loss.backward()
    assert loss.item() == pytest.approx(matching_loss(model, same_ids(0, 1, 2, 3))[0].item(), abs=0.1)


def test_a_checkpoint_for_other_windows_and_images_gets_larger_tables():
    states = read_checkpoint(GOLDENS / "ckpt_xvlm_pretrained.pth").states
    small, vision = xvlm(states), infer_settings(states, {})["vision"]
    large = xvlm(states, vision=vision | {"image_size": 192, "window_size": 6})
    assert large.encode_images(torch.randn(1, 3, 192, 192)).shape == (1, 12)
    tables = {key: tensor for key, tensor in small.state_dict().items() if key.endswith("bias_table")}
    assert len(tables) == 8
    for key, table in tables.items():
        torch.testing.assert_close(large.state_dict()[key], resize_position_table(table, 6))
    assert resize_position_table(table, 3) is table


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state | {"extra.weight": torch.zeros(1)}, "unexpected: extra.weight"),
        (lambda state: state | {"bbox_head.7.weight": torch.zeros(1)}, "unexpected: bbox_head.7.weight"),
        (lambda state: {key: t for key, t in state.items() if key != "temp"}, "missing: temperature"),
        (
            lambda state: {key: t for key, t in state.items() if not key.endswith("1.blocks.0.attn.qkv.bias")},
            "missing: .*q_proj.bias",
        ),
        (lambda state: state | {"text_proj.weight": torch.zeros(3, 24)}, "wrong shape: text_proj.weight"),
    ],
)
def test_tensors_of_a_checkpoint_that_do_not_fit_are_reported(change, message):
    state = states_of(golden("xvlm_retrieval"), ["state."])[0]
    model = XVLM(XVLMSettings(**infer_settings([state], {}) | {"text": text_config()}))
    with pytest.raises(ValueError, match=message):
        load_states(model, convert_states([change(state)], model), RENAMES, "file")


def test_of_many_problems_the_first_are_reported_and_all_are_counted():
    state = states_of(golden("xvlm_retrieval"), ["state."])[0]
    model = XVLM(XVLMSettings(**infer_settings([state], {}) | {"text": text_config()}))
    fitting = len(model.state_dict())
    with pytest.raises(ValueError, match="nothing was loaded: missing") as caught:
        load_states(model, [{}], RENAMES, "file")
    assert str(caught.value).count("missing: ") == 10
    assert str(caught.value).endswith(f"and {fitting - 10} more")


def test_the_heads_of_a_published_bert_are_64_wide():
    state = states_of(golden("xvlm_retrieval"), ["state."])[0]
    inferred = infer_settings([state], {})
    assert inferred["vision"]["image_size"] == 96
    assert inferred["vision"]["num_heads"] == [1, 2, 2, 4]
    assert inferred["fusion_layer"] == 2
    assert inferred["text"]["num_attention_heads"] == 1
    other = {key: value for key, value in inferred["text"].items() if key != "num_attention_heads"}
    assert other.items() <= text_config().items()


def pair_codes(images, captions):
    return (10 * images + captions).float()


def test_reranking_matches_the_top_k_of_each_direction_once():
    S = torch.tensor([[0.9, 0.1, 0.5], [0.8, 0.3, 0.2]])
    matched_pairs = []

    def match(images, captions):
        matched_pairs.extend(zip(images.tolist(), captions.tolist(), strict=True))
        return pair_codes(images, captions)

    reranked = rerank(S, match, k=1, batch_size=2)
    no = UNRANKED
    assert reranked.i2t.tolist() == [[0, no, no], [10, no, no]]
    assert reranked.t2i.tolist() == [[0, no, 2], [no, 11, no]]
    assert sorted(matched_pairs) == [(0, 0), (0, 2), (1, 0), (1, 1)]


@pytest.mark.parametrize("k", [3, 4, 1000])
def test_with_more_k_than_candidates_all_are_matched(k):
    S = torch.rand(2, 3, generator=torch.Generator().manual_seed(0))
    reranked = rerank(S, pair_codes, k=k)
    everything = torch.tensor([[0.0, 1, 2], [10, 11, 12]])
    assert torch.equal(reranked.i2t, everything)
    assert torch.equal(reranked.t2i, everything)


def test_k_must_be_positive():
    with pytest.raises(ValueError, match="k must be at least 1"):
        rerank(torch.rand(2, 2), pair_codes, k=0)


def test_the_example_of_reranking_is_true():
    outcome = doctest.testmod(import_module("tercet.evaluation.rerank"), extraglobs={"torch": torch})
    assert outcome.attempted
    assert not outcome.failed
