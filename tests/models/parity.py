"""Comparison of our models with outputs of the authors' code, for the tests and for the table in docs/models.md.

python -m tests.models.parity       # writes the table into docs/models.md
"""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file

import tercet
from tercet.models import build
from tercet.models.convert.state_dicts import CHECKPOINT_FORMATS, load_states, original_model
from tercet.models.parts.gpo import GPO, position_codes

ROOT = Path(__file__).parents[2]
GOLDENS = ROOT / "tests" / "goldens"
PAGE = ROOT / "docs" / "models.md"


class Row(NamedTuple):
    name: str
    ours: torch.Tensor
    theirs: torch.Tensor


def golden(name):
    return load_file(GOLDENS / f"{name}.safetensors")


def notes(name):
    return json.loads((GOLDENS / f"{name}.json").read_text())


def states_of(tensors, prefixes):
    """The authors' state dicts, without the `module.` prefix of DataParallel."""
    return [
        {key.removeprefix(prefix).removeprefix("module."): t for key, t in tensors.items() if key.startswith(prefix)}
        for prefix in prefixes
    ]


def loaded(system, tensors, prefixes, options=None, **settings):
    states = states_of(tensors, prefixes)
    model = build(system, **(CHECKPOINT_FORMATS[system].settings(states, options or {}) | settings))
    load_states(model, states, CHECKPOINT_FORMATS[system].renames, "golden")
    return model.eval()


def vsepp_encoders() -> Iterator[Row]:
    g = golden("vsepp_encoders")
    for absolute in (0, 1):
        for no_norm in (0, 1):
            options = {"use_abs": bool(absolute), "no_imgnorm": bool(no_norm)}
            model = loaded("vsepp", g, ["state.0.", "state.1."], options)
            theirs = g[f"out.img.abs{absolute}.noimgnorm{no_norm}"]
            yield Row(f"images, abs {absolute}, no norm {no_norm}", model.encode_images(g["in.images"]), theirs)
        captions = model.encode_captions(g["in.captions"], g["in.lengths"])
        yield Row(f"captions, abs {absolute}", captions, g[f"out.txt.abs{absolute}"])
    yield Row("word embeddings", model.words.embedding(g["in.captions"]), g["out.txt_word_embedding"])
    deep = loaded("vsepp", g, ["state.0.", "state2.1."])
    yield Row("captions, two layers", deep.encode_captions(g["in.captions"], g["in.lengths"]), g["out.txt2layer.abs0"])


def vsrn(variant) -> Iterator[Row]:
    name = f"vsrn_{variant}"
    g, options = golden(name), {"data_name": f"{variant}_precomp"}
    model = loaded("vsrn", g, ["state.0.", "state.1."], options)
    assert model.settings.variant == variant
    images, full = g["in.images"], torch.full((len(g["in.images"]),), g["in.images"].shape[1])
    yield Row("projection", model.region_head(images), g["out.fc"])
    yield Row("after the graph", model.reason(images, full), g["out.gcn"])
    block = model.blocks[0](model.region_head(images), torch.ones(images.shape[:2], dtype=torch.bool))
    yield Row("first block", block, g["out.gcn_block1_f30kinput"])
    encoded, captions = model.encode_images(images), model.encode_captions(g["in.captions"], g["in.lengths"])
    yield Row("images", encoded, g["out.img"])
    yield Row("captions", captions, g["out.txt"])
    for setting, key in (({"image_norm": False}, "no_imgnorm"), ({"absolute": True}, "use_abs")):
        other = loaded("vsrn", g, ["state.0.", "state.1."], options, **setting)
        yield Row(f"images, {key}", other.encode_images(images), g[f"out.img.{key}"])
    S = model.similarity(encoded, captions)
    yield Row("similarity", S, g["out.score"])
    loss = tercet.objective("triplet-sh", margin=0.2).on_similarity(S)
    yield Row("hinge", loss, g["out.loss.max"])
    loss.backward()
    yield Row("gradient of the projection", model.region_head.weight.grad, g["out.grad.fc.weight"])
    theta = model.blocks[0].theta.weight.grad
    yield Row("gradient of theta", theta, g["out.grad.Rs_GCN_1.theta.weight"].squeeze(-1))
    model.train()
    yield Row("training: after the graph", model.reason(images, full), g["out.train_mode.gcn"])
    fresh = loaded("vsrn", g, ["state.0.", "state.1."], options).train()
    yield Row("training: images", fresh.encode_images(images), g["out.train_mode.img"])
    for kind in ("mean", "var"):
        statistic = getattr(fresh.blocks[0].norm, f"running_{kind}")
        yield Row(f"training: running {kind}", statistic, g[f"out.train_mode.bn1_running_{kind}"])


def vsrn_captioner() -> Iterator[Row]:
    g = golden("vsrn_captioner")
    vsrn_states, states = golden("vsrn_f30k"), states_of(g, ["state.2."])
    all_states = [*states_of(vsrn_states, ["state.0.", "state.1."]), *states]
    settings = CHECKPOINT_FORMATS["vsrn"].settings(all_states, {"max_len": 12})
    model = build("vsrn", **settings)
    load_states(model, all_states, CHECKPOINT_FORMATS["vsrn"].renames, "golden")
    captioner = model.eval().captioner
    regions = g["in.gcn"].clone().requires_grad_()
    yield Row("log-probabilities", captioner.log_probabilities(regions, g["in.labels"]), g["out.logprobs"])
    ids, lengths = caption_ids(g["in.labels"])
    labels, counted = captioner.labels(ids, lengths)
    yield Row("labels", labels, g["in.labels"])
    yield Row("mask", counted, g["in.masks"].float())
    loss = captioner.loss(regions, ids, lengths)
    yield Row("caption loss", loss, g["out.caption_loss"])
    loss.backward()
    yield Row("gradient of regions", regions.grad, g["out.grad_gcn"])
    for ours, theirs in (
        ("attention_hidden", "decoder.attention.linear1"),
        ("out", "decoder.out"),
        ("region_head", "encoder.vid2hid"),
    ):
        yield Row(f"gradient of {ours}", getattr(captioner, ours).weight.grad, g[f"out.grad.{theirs}.weight"])


def caption_ids(labels):
    """The captions that the labels were made from; the first is longer than the labels."""
    overlong = notes("vsrn_captioner")["overlong_caption_ids_row0"]
    rows = [overlong, *([int(n) for n in row if n] for row in labels[1:])]
    lengths = torch.tensor([len(row) for row in rows])
    ids = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
    for row, caption in enumerate(rows):
        ids[row, : len(caption)] = torch.tensor(caption)
    return ids, lengths


def vseinf_gpo() -> Iterator[Row]:
    g = golden("vseinf_gpo")
    pool = GPO()
    pool.load_state_dict({key.removeprefix("state."): t for key, t in g.items() if key.startswith("state.")})
    lengths = g["in.lengths"].long()
    features = g["in.features"].clone().requires_grad_()
    pooled = pool(features, lengths)
    yield Row("pooled", pooled, g["out.pooled"])
    yield Row("weights", pool.weights(lengths), g["out.weights"].squeeze(-1))
    pooled.square().sum().backward()
    yield Row("gradient of features", features.grad, g["out.grad_features.sumsq"])
    for name, parameter in pool.named_parameters():
        yield Row(f"gradient of {name}", parameter.grad, g[f"out.grad_param.sumsq.{name}"])
    full = torch.full((6,), 9)
    yield Row("pooled, none padded", pool(g["in.features_full"], full), g["out.pooled_full"])
    yield Row("weights, none padded", pool.weights(full), g["out.weights_full"].squeeze(-1))
    for length in (1, 2, 5, 36):
        yield Row(
            f"weights of {length}", pool.weights(torch.tensor([length]))[..., None], g[f"out.weights_only.L{length}"]
        )
        yield Row(f"codes of {length}", position_codes(length, 32), g[f"out.pe.{length}"])


def vseinf_image_region() -> Iterator[Row]:
    g, text = golden("vseinf_image_region"), golden("vseinf_text_bigru")
    images, lengths = g["in.images"], g["in.image_lengths"].long()

    def model(prefix="state.0.", **settings):
        return loaded(
            "vse-infinity",
            g | {k: t for k, t in text.items() if k.startswith("state.1.")},
            [prefix, "state.1."],
            **settings,
        )

    ours = model()
    yield Row("projection", ours.regions.linear(images), g["out.fc"])
    yield Row("hidden layer", ours.regions.hidden(images.flatten(0, 1)).view(6, 9, -1), g["out.mlp"])
    yield Row("images", ours.encode_images(images, lengths), g["out.img"])
    yield Row("images, no norm", model(image_norm=False).encode_images(images, lengths), g["out.img.no_imgnorm"])
    yield Row("one region", ours.encode_images(images[:, :1], torch.ones(6, dtype=torch.long)), g["out.img.one_region"])
    yield Row("no hidden layer", model("state_nomlp.").encode_images(images, lengths), g["out.img.nomlp"])
    ours.train()
    yield Row("training: images", ours.encode_images(images, lengths), g["out.train_mode.img"])
    for kind in ("mean", "var"):
        yield Row(
            f"training: running {kind}",
            getattr(ours.regions.hidden[1], f"running_{kind}"),
            g[f"out.train_mode.bns0.running_{kind}"],
        )


def vseinf_text(kind) -> Iterator[Row]:
    g, image = golden(f"vseinf_text_{kind}"), golden("vseinf_image_region")
    tensors = {k: t for k, t in image.items() if k.startswith("state.0.")} | g
    settings = {"bert": {"model_type": "bert", **notes("vseinf_text_bert")["bert_config"]}} if kind == "bert" else {}
    model = loaded("vse-infinity", tensors, ["state.0.", "state.1."], **settings)
    lengths = g["in.lengths"].long()
    yield Row("captions", model.encode_captions(g["in.captions"], lengths), g["out.txt"])
    if kind == "bert":
        mask = (g["in.captions"] != 0).long()
        states = model.captions.bert(input_ids=g["in.captions"], attention_mask=mask).last_hidden_state
        yield Row("last layer", states, g["out.bert_last_hidden"])
    else:
        model.settings = replace(model.settings, text_norm=False)
        yield Row("captions, no norm", model.encode_captions(g["in.captions"], lengths), g["out.txt.no_txtnorm"])


def checkpoint(system, file, outputs, **settings) -> Iterator[Row]:
    model = original_model(system, GOLDENS / file, **settings)
    images, text = (golden(name) for name in outputs)
    image_lengths = images["in.image_lengths"].long() if "in.image_lengths" in images else None
    theirs = images["out.img.abs0.noimgnorm0"] if "out.img" not in images else images["out.img"]
    yield Row("images", model.encode_images(images["in.images"], image_lengths), theirs)
    captions = text["out.txt.abs0"] if "out.txt" not in text else text["out.txt"]
    yield Row("captions", model.encode_captions(text["in.captions"], text["in.lengths"].long()), captions)
    if "aoq" in file:
        g = golden("vsrn_captioner")
        yield Row("captioner", model.captioner.log_probabilities(g["in.gcn"], g["in.labels"]), g["out.logprobs"])


def _bert():
    return {"bert": {"model_type": "bert", **notes("vseinf_text_bert")["bert_config"]}}


# golden (and precision, if there are several) -> system, tolerance, rows
CASES: dict[str, tuple[str, float, Callable[[], Iterator[Row]]]] = {
    "vsepp_encoders": ("VSE++", 1e-5, vsepp_encoders),
    "vsrn_f30k": ("VSRN", 2e-5, lambda: vsrn("f30k")),
    "vsrn_coco": ("VSRN", 2e-5, lambda: vsrn("coco")),
    "vsrn_captioner": ("VSRN", 2e-5, vsrn_captioner),
    "vseinf_gpo": ("VSE-infinity", 1e-5, vseinf_gpo),
    "vseinf_image_region": ("VSE-infinity", 2e-5, vseinf_image_region),
    "vseinf_text_bigru": ("VSE-infinity", 2e-5, lambda: vseinf_text("bigru")),
    "vseinf_text_bert": ("VSE-infinity", 2e-5, lambda: vseinf_text("bert")),
    "ckpt_vsepp": ("VSE++", 1e-5, lambda: checkpoint("vsepp", "ckpt_vsepp.pth.tar", ["vsepp_encoders"] * 2)),
    "ckpt_vsrn_f30k": ("VSRN", 2e-5, lambda: checkpoint("vsrn", "ckpt_vsrn_f30k.pth.tar", ["vsrn_f30k"] * 2)),
    "ckpt_vsrn_coco": ("VSRN", 2e-5, lambda: checkpoint("vsrn", "ckpt_vsrn_coco.pth.tar", ["vsrn_coco"] * 2)),
    "ckpt_aoq_vsrn": (
        "VSRN",
        2e-5,
        lambda: checkpoint("vsrn", "ckpt_aoq_vsrn.pth.tar", ["vsrn_f30k"] * 2, caption_length=12),
    ),
    "ckpt_vseinf_region_bigru": (
        "VSE-infinity",
        2e-5,
        lambda: checkpoint(
            "vse-infinity", "ckpt_vseinf_region_bigru.pth", ["vseinf_image_region", "vseinf_text_bigru"]
        ),
    ),
    "ckpt_vseinf_region_bert": (
        "VSE-infinity",
        2e-5,
        lambda: checkpoint(
            "vse-infinity", "ckpt_vseinf_region_bert.pth", ["vseinf_image_region", "vseinf_text_bert"], **_bert()
        ),
    ),
}


def all_cases():
    """All cases, including the systems with a file of their own."""
    from tests.models import parity_attention, parity_xvlm

    return CASES | parity_attention.CASES | parity_xvlm.CASES


def table(cases=None) -> str:
    lines = ["| system | golden | compared | largest error | tolerance |", "|---|---|---|---|---|"]
    for name, (system, tolerance, rows) in (cases or all_cases()).items():
        compared = list(rows())
        largest = max(float((row.ours.detach().double() - row.theirs.double()).abs().max()) for row in compared)
        # Rounded up to a power of ten: the last digits differ between machines.
        bound = "0" if largest == 0 else f"< 1e{math.ceil(math.log10(largest))}"
        lines.append(f"| {system} | `{name}` | {len(compared)} | {bound} | {tolerance:g} |")
    return "\n".join(lines)


def main() -> None:
    page = PAGE.read_text()
    before, _, rest = page.partition("<!-- parity -->\n")
    after = rest.partition("<!-- end of parity -->")[2]
    PAGE.write_text(f"{before}<!-- parity -->\n{table()}\n<!-- end of parity -->{after}")


if __name__ == "__main__":
    main()
