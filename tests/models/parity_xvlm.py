"""X-VLM: every number of the authors' program beside ours, in the form of parity.py."""

from collections.abc import Callable, Iterator

import torch

import tercet
from tercet.evaluation.rerank import rerank
from tercet.models.checkpoint import read_checkpoint
from tercet.models.original import load_states
from tercet.models.xvlm import XVLM, Negatives, XVLMSettings
from tercet.models.xvlm_import import RENAMES, converted, resized_table, settings_of_states
from tests.models.parity import GOLDENS, Row, golden, notes, states_of


def xvlm(states, **settings):
    """The authors' weights, with the number of BERT's heads, which no shape tells."""
    found = settings_of_states(states, {}) | {"text": text_config()} | settings
    model = XVLM(XVLMSettings(**found))
    load_states(model, converted(states, model), RENAMES, "golden")
    return model.eval()


def text_config():
    known = ("architectures", "fusion_layer", "encoder_width")
    return {key: value for key, value in notes("xvlm_text")["text_config"].items() if key not in known}


def from_golden():
    return xvlm(states_of(golden("xvlm_retrieval"), ["state."]))


def lengths_of(g):
    return g["in.text_atts"].sum(dim=1)


def retrieval() -> Iterator[Row]:
    g = golden("xvlm_retrieval")
    yield from outputs(from_golden(), g)
    yield from losses(from_golden(), g)


def outputs(model, g) -> Iterator[Row]:
    """What can be had from a checkpoint without training: features, matches, re-ranking."""
    lengths = lengths_of(g)
    with torch.no_grad():
        tokens, states = model.image_tokens(g["in.images"].float()), model.word_states(g["in.text_ids"], lengths)
        yield Row("image tokens", tokens, g["out.image_embeds"])
        yield Row("word states", states, g["out.text_embeds"])
        images, captions = model.image_features(tokens), model.caption_features(states)
        yield Row("images", images, g["out.image_feat"])
        yield Row("captions", captions, g["out.text_feat"])
        S = model.similarity(images, captions)
        yield Row("similarity", S, g["out.sim"])
        beside = tokens[:1].expand(len(states), -1, -1)
        yield Row("beside an image", model.text.read_beside(beside, states, lengths), g["out.cross_embeds.image0"])
        # They hide two tokens by a mask, which retrieval never does; here they are left out.
        fewer = model.text.read_beside(beside[:, :-2], states, lengths)
        yield Row("beside an image, two tokens hidden", fewer, g["out.cross_embeds.image0.last2hidden"])
        pairs = torch.cartesian_prod(torch.arange(4), torch.arange(7)).T
        both = model.matching(tokens[pairs[0]], states[pairs[1]], lengths[pairs[1]])
        yield Row("match and no match", both.view(4, 7, 2), g["out.itm_logits"])
        found = rerank(S, lambda i, c: model.match(tokens[i], states[c], lengths[c]), k=3, pairs_at_once=4)
    yield Row("re-ranked, i2t", found.i2t, g["out.eval.score_i2t"])
    yield Row("re-ranked, t2i", found.t2i.T, g["out.eval.score_t2i"])
    yield from metrics(found, g["in.pair_image"])


def metrics(found, owners) -> Iterator[Row]:
    """With 3 candidates of 7, their R@5 depends on how unranked ones are ordered: theirs have the last one first."""
    published, positives = notes("xvlm_retrieval")["eval_result"], torch.arange(4)[:, None] == owners
    i2t = found.i2t.double() + 1e-9 * torch.arange(7)
    t2i = found.t2i.double() + 1e-9 * torch.arange(4)[:, None]
    both = {"txt": ("i2t", tercet.evaluate(i2t, positives)), "img": ("t2i", tercet.evaluate(t2i, positives))}
    for theirs, (side, ours) in both.items():
        for key, name in (("r1", "r1"), ("r5", "r5"), ("r10", "r10"), ("r_mean", "ar")):
            wanted = torch.tensor(published[f"{theirs}_{key}"])
            yield Row(f"re-ranked, {side} {name}", torch.tensor(ours[f"{side}_{name}"]), wanted)
    mean = (both["txt"][1]["i2t_ar"] + both["img"][1]["t2i_ar"]) / 2
    yield Row("re-ranked, mean of recalls", torch.tensor(mean), torch.tensor(published["r_mean"]))


def losses(model, g) -> Iterator[Row]:
    """Contrastive is NT-Xent at the learned temperature; with ids, it has several positives."""
    owners, lengths = g["in.pair_image"], lengths_of(g)
    tokens = g["out.image_embeds"][owners].clone().requires_grad_()
    states = g["out.text_embeds"].clone().requires_grad_()
    images, captions = model.image_features(tokens), model.caption_features(states)
    objective = tercet.objective("nt-xent", temperature=1.0)
    scale = 1 / model.temperature
    yield Row("contrastive", objective(images, captions, scale=scale), g["out.loss_itc.noidx"])
    contrastive = objective(images, captions, scale=scale, image_ids=owners, caption_ids=owners)
    yield Row("contrastive, with ids", contrastive, g["out.loss_itc.idx"])
    negatives = Negatives(images=g["out.itm_neg_image"], captions=g["out.itm_neg_text"])
    positives = owners[:, None] == owners
    drawn = [positives[negatives.images, torch.arange(7)], positives[torch.arange(7), negatives.captions]]
    for name, key, hit in zip(("images", "captions"), ("image", "text"), drawn, strict=True):
        # What was drawn is given to us; that none of it is a positive is what can be compared.
        yield Row(f"negative {name}", getattr(negatives, name).masked_fill(hit, -1), g[f"out.itm_neg_{key}"])
    matching = model.matching_loss(tokens, states, lengths, negatives)
    yield Row("matching", matching, g["out.loss_itm.idx"])
    (contrastive + matching).backward()
    for what, tensor, key in (
        ("image tokens", tokens, "image_embeds"),
        ("word states", states, "text_embeds"),
        ("image head", model.image_head.weight, "vision_proj"),
        ("match head", model.match_head[0].weight, "itm_head0"),
        ("temperature", model.temperature, "temp"),
    ):
        yield Row(f"gradient of {what}", tensor.grad, g[f"out.grad_{key}.itc_plus_itm"])


def swin() -> Iterator[Row]:
    g = golden("xvlm_swin")
    model = from_golden()
    own = {f"vision_encoder.{key}": tensor for key, tensor in states_of(g, ["state."])[0].items()}
    whole = states_of(golden("xvlm_retrieval"), ["state."])[0]
    assert all(torch.equal(whole[key], tensor) for key, tensor in own.items())
    with torch.no_grad():
        seen = model.vision.model(pixel_values=g["in.images"].float(), output_hidden_states=True)
        yield Row("patches", seen.hidden_states[0], g["out.patch_embed"])
        for stage in range(4):
            yield Row(f"stage {stage}", seen.hidden_states[stage + 1], g[f"out.stage{stage}"])
        yield Row("tokens", model.image_tokens(g["in.images"].float()), g["out.tokens"])


def tables() -> Iterator[Row]:
    g = golden("xvlm_swin")
    for old, new in ((7, 12), (7, 8), (4, 6)):
        found = resized_table(g[f"in.rel_table_{old}"], new)
        yield Row(f"windows of {old} to {new}", found, g[f"out.rel_table_{old}_to_{new}"])


def text() -> Iterator[Row]:
    g, lengths = golden("xvlm_text"), lengths_of(golden("xvlm_text"))
    whole = states_of(golden("xvlm_retrieval"), ["state."])[0]
    own = {f"text_encoder.{key}": tensor for key, tensor in states_of(g, ["state."])[0].items()}
    model = xvlm([whole | own])
    with torch.no_grad():
        states = model.word_states(g["in.text_ids"], lengths)
        yield Row("words", states, g["out.text"])
        beside = model.text.read_beside(g["in.image_embeds"], g["out.text"], lengths)
        yield Row("words beside images", beside, g["out.fusion"])
        beside = model.text.read_beside(g["in.image_embeds"], states, lengths)
        yield Row("both in one", beside, g["out.multi_modal"])


def container(file) -> Iterator[Row]:
    model = xvlm(read_checkpoint(GOLDENS / file).states)
    g = golden("xvlm_retrieval")
    yield from outputs(model, g)
    yield from losses(model, g)


# golden -> system, tolerance, its rows
CASES: dict[str, tuple[str, float, Callable[[], Iterator[Row]]]] = {
    "xvlm_retrieval": ("X-VLM", 5e-5, retrieval),
    "xvlm_swin": ("X-VLM", 5e-5, lambda: (*swin(), *tables())),
    "xvlm_text": ("X-VLM", 2e-5, text),
    "ckpt_xvlm_finetuned": ("X-VLM", 5e-5, lambda: container("ckpt_xvlm_finetuned.pth")),
    "ckpt_xvlm_pretrained": ("X-VLM", 5e-5, lambda: container("ckpt_xvlm_pretrained.pth")),
}
