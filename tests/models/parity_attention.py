"""SCAN and BFAN compared with outputs of the authors' code: encoders, every similarity, losses, gradients."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

import tercet
from tercet.models.convert.state_dicts import original_model
from tercet.similarity import CrossAttention, PaddedSets, blockwise_similarity
from tests.models.parity import GOLDENS, Row, checkpoint, golden, loaded

MARGIN = 0.2
POOLINGS = ("LogSumExp", "Mean", "Max", "Sum")
NORMS = ("clipped_l2norm", "l2norm", "clipped", "softmax", "no_norm")
HINGES = {"sum": "triplet", "max": "triplet-sh"}


def scan_encoders() -> Iterator[Row]:
    g = golden("scan_encoders")
    words = g["in.captions"], g["in.lengths"]
    model = loaded("scan", g, ["state.0.", "state.1."])
    yield Row("images", model.encode_images(g["in.images"]), g["out.img"])
    yield Row("captions", model.encode_captions(*words), g["out.txt"])
    bare = loaded("scan", g, ["state.0.", "state.1."], {"no_imgnorm": True, "no_txtnorm": True})
    yield Row("images, no norm", bare.encode_images(g["in.images"]), g["out.img_no_imgnorm"])
    yield Row("captions, no norm", bare.encode_captions(*words), g["out.txt_no_txtnorm"])
    other = loaded("scan", g, ["state_wn.0.", "state_uni.1."])
    yield Row("images, weight norm", other.encode_images(g["in.images"]), g["out.img_weight_norm"])
    yield Row("captions, one direction", other.encode_captions(*words), g["out.txt_unigru"])


def scan_compare(direction, pooling="LogSumExp", norm="clipped_l2norm"):
    """SCAN's comparison in the golden's configuration."""
    t2i = direction == "t2i"
    attend = CrossAttention(9.0 if t2i else 4.0, norm, "all", pooling, 6.0 if t2i else 5.0)
    return attend if t2i else lambda images, captions: attend(captions, images).T


def zero_padding(captions, lengths):
    """Set padding to zeros: its values in the golden must have no effect."""
    return captions * (torch.arange(captions.shape[1]) < lengths[:, None])[..., None]


def scan_scores() -> Iterator[Row]:
    g = golden("scan_scores")
    images, captions = g["in.img_emb"].double(), zero_padding(g["in.cap_emb"].double(), g["in.lengths"])
    more = zero_padding(g["in.cap_emb_rect"].double(), g["in.lengths_rect"])
    yield from attention_of_the_first_caption(g, images, captions[0, : int(g["in.lengths"][0])])
    for direction in ("t2i", "i2t"):
        for pooling in POOLINGS:
            for norm in NORMS:
                S = blockwise_similarity(scan_compare(direction, pooling, norm), images, captions)
                yield Row(f"{direction} {pooling} {norm}", S, g[f"out.score.{direction}.{pooling}.{norm}"])
            compare = scan_compare(direction, pooling)
            theirs = g[f"out.score_rect.{direction}.{pooling}.clipped_l2norm"]
            yield Row(f"{direction} {pooling}, more captions", blockwise_similarity(compare, images, more), theirs)
            yield from losses(g, f"{direction}.{pooling}", compare, images, captions)


def attention_of_the_first_caption(g, images, words) -> Iterator[Row]:
    attention = CrossAttention(9.0).attention(PaddedSets.of(images), PaddedSets.of(words[None]))[:, :, 0]
    yield Row("attention of a caption", attention, g["out.attn.t2i.caption0"][:, :, : len(words)])
    attended_vectors = torch.einsum("irw,ird->iwd", attention, images)
    yield Row("attended vector", attended_vectors, g["out.context.t2i.caption0"][:, : len(words)])


def losses(g, name, compare, images, captions) -> Iterator[Row]:
    for hinge, objective in HINGES.items():
        leaves = images.clone().requires_grad_(), captions.clone().requires_grad_()
        loss = tercet.objective(objective, margin=MARGIN).on_similarity(blockwise_similarity(compare, *leaves))
        yield Row(f"{name} {objective}", loss, g[f"out.loss.{name}.{hinge}"])
        if f"out.grad_img.{name}.{hinge}" in g:
            loss.backward()
            yield Row(f"{name} {objective}: gradient of images", leaves[0].grad, g[f"out.grad_img.{name}.{hinge}"])
            real = captions.ne(0).any(dim=2)
            yield Row(
                f"{name} {objective}: gradient of captions",
                leaves[1].grad[real],
                g[f"out.grad_cap.{name}.{hinge}"][real],
            )


def scan_scores_32() -> Iterator[Row]:
    g = golden("scan_scores")
    images, captions = g["in.img_emb"], zero_padding(g["in.cap_emb"], g["in.lengths"])
    for direction in ("t2i", "i2t"):
        for pooling in POOLINGS:
            theirs = g[f"out.score32.{direction}.{pooling}.clipped_l2norm"]
            yield Row(
                f"{direction} {pooling}",
                blockwise_similarity(scan_compare(direction, pooling), images, captions),
                theirs,
            )


def bfan_compare(focus, inverse_temperature):
    attend = CrossAttention(inverse_temperature, focus=focus)
    return lambda images, captions: attend(images, captions) + attend(captions, images).T


def bfan() -> Iterator[Row]:
    g = golden("bfan")
    images, captions = g["in.img_emb"].double(), zero_padding(g["in.cap_emb"].double(), g["in.lengths"])
    more = zero_padding(g["in.cap_emb_rect"].double(), g["in.lengths_rect"])
    for focus in ("equal", "prob"):
        yield Row(f"gate, {focus}", gate(g["in.attn"], focus), (g[f"out.gate.{focus}"] > 0).double())
        for inverse_temperature in (20, 8):
            compare, name = bfan_compare(focus, float(inverse_temperature)), f"{focus}.l{inverse_temperature}"
            yield Row(name, blockwise_similarity(compare, images, captions), g[f"out.score.{name}"])
            yield Row(
                f"{name}, more captions", blockwise_similarity(compare, images, more), g[f"out.score_rect.{name}"]
            )
            yield from losses(g, name, compare, images, captions)


def gate(weights, focus):
    """Mask of the elements that BFAN keeps, for given attention weights (item query context)."""
    from tercet.similarity.cross_attention import _threshold

    items, _, longest = weights.shape
    weights = weights.mT[..., None]
    kept = weights > _threshold(weights, torch.ones(items, longest, dtype=torch.bool), focus)
    return kept[..., 0].mT.double()


def bfan_32() -> Iterator[Row]:
    g = golden("bfan")
    model = loaded("bfan", g, ["state.0.", "state.1."])
    encoded = model.encode_images(g["in.images"]), model.encode_captions(g["in.captions"], g["in.lengths"])
    yield Row("images", encoded[0], g["out.img"])
    yield Row("captions", encoded[1], g["out.txt"])
    captions = zero_padding(g["in.cap_emb"], g["in.lengths"])
    for focus in ("equal", "prob"):
        for inverse_temperature in (20, 8):
            name = f"{focus}.l{inverse_temperature}"
            yield Row(
                name,
                blockwise_similarity(bfan_compare(focus, float(inverse_temperature)), g["in.img_emb"], captions),
                g[f"out.score32.{name}"],
            )
            model = loaded(
                "bfan", g, ["state.0.", "state.1."], focus=focus, inverse_temperature=float(inverse_temperature)
            )
            yield Row(f"{name}, of the encoders", model.similarity(*encoded), g[f"out.score_enc.{name}"])


def ckpt_bfan() -> Iterator[Row]:
    g = golden("bfan")
    model = original_model("bfan", GOLDENS / "ckpt_bfan.pth.tar")
    encoded = model.encode_images(g["in.images"]), model.encode_captions(g["in.captions"], g["in.lengths"])
    yield Row("images", encoded[0], g["out.img"])
    yield Row("captions", encoded[1], g["out.txt"])
    yield Row("similarity", model.similarity(*encoded), g["out.score_enc.equal.l20"])


CASES: dict[str, tuple[str, float, Callable[[], Iterator[Row]]]] = {
    "scan_encoders": ("SCAN", 1e-5, scan_encoders),
    "scan_scores, float64": ("SCAN", 1e-9, scan_scores),
    "scan_scores, float32": ("SCAN", 1e-5, scan_scores_32),
    "bfan, float64": ("BFAN", 1e-9, bfan),
    "bfan, float32": ("BFAN", 2e-5, bfan_32),
    "ckpt_scan": ("SCAN", 1e-5, partial(checkpoint, "scan", "ckpt_scan.pth.tar", ["scan_encoders"] * 2)),
    "ckpt_bfan": ("BFAN", 2e-5, ckpt_bfan),
}
