"""The authors' checkpoints: their weights under our names, and the settings that fit them.

Every tensor must find its place and every place its tensor; what does not is listed. Partial loading does not exist.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tercet.models.catalogue import build
from tercet.models.checkpoint import read_checkpoint
from tercet.models.xvlm_import import RENAMES as _XVLM
from tercet.models.xvlm_import import converted, settings_of_states

States = list[dict[str, Tensor]]
# Pattern of an authors' key -> ours; None for what is known and not needed.
Renames = list[tuple[str, str | None]]

_WORDS: Renames = [(r"embed\.", "words.embedding."), (r"rnn\.", "words.gru.")]
_RESNET: Renames = [
    (r"conv1\.", "embedder.embedder.convolution."),
    (r"bn1\.", "embedder.embedder.normalization."),
    (r"layer(\d)\.(\d+)\.conv(\d)\.", "encoder.stages.{-1}.layers.{2}.layer.{-3}.convolution."),
    (r"layer(\d)\.(\d+)\.bn(\d)\.", "encoder.stages.{-1}.layers.{2}.layer.{-3}.normalization."),
    (r"layer(\d)\.(\d+)\.downsample\.0\.", "encoder.stages.{-1}.layers.{2}.shortcut.convolution."),
    (r"layer(\d)\.(\d+)\.downsample\.1\.", "encoder.stages.{-1}.layers.{2}.shortcut.normalization."),
]
_VSEPP: list[Renames] = [
    [(r"fc\.", "image_head."), *((rf"cnn\.(?:module\.)?{old}", f"backbone.model.{new}") for old, new in _RESNET)],
    _WORDS,
]
_VSRN: list[Renames] = [
    [
        (r"fc\.", "region_head."),
        (r"Rs_GCN_(\d)\.W\.0\.", "blocks.{-1}.out."),
        (r"Rs_GCN_(\d)\.W\.1\.", "blocks.{-1}.norm."),
        (r"Rs_GCN_(\d)\.(theta|phi|g)\.", "blocks.{-1}.{2}."),
        (r"img_rnn\.", "reader."),
        (r"bn\.", "final_norm."),
    ],
    _WORDS,
    [
        (r"encoder\.vid2hid\.", "captioner.region_head."),
        (r"encoder\.rnn\.", "captioner.reader."),
        (r"decoder\.embedding\.", "captioner.embedding."),
        (r"decoder\.attention\.linear1\.", "captioner.attention_hidden."),
        (r"decoder\.attention\.linear2\.", "captioner.attention_out."),
        (r"decoder\.rnn\.", "captioner.writer."),
        (r"decoder\.out\.", "captioner.out."),
    ],
]
_VSE_INFINITY: list[Renames] = [
    [
        (r"fc\.", "regions.linear."),
        (r"mlp\.layers\.0\.", "regions.hidden.0."),
        (r"mlp\.bns\.0\.", "regions.hidden.1."),
        (r"mlp\.layers\.1\.", "regions.hidden.3."),
        # Made by the authors, never used.
        (r"mlp\.bns\.1\.(weight|bias|running_mean|running_var|num_batches_tracked)$", None),
        (r"gpool\.", "regions.pool."),
    ],
    [
        (r"bert\.embeddings\.position_ids$", None),  # a buffer of older transformers
        (r"bert\.", "captions.bert."),
        (r"linear\.", "captions.linear."),
        (r"gpool\.", "captions.pool."),
        (r"embed\.", "captions.words.embedding."),
        (r"rnn\.", "captions.words.gru."),
    ],
]

# SCAN and BFAN: a variant of SCAN keeps the direction and the length of its projection apart.
_PART_SETS: list[Renames] = [
    [
        (r"fc\.weight_g$", "regions.linear.parametrizations.weight.original0"),
        (r"fc\.weight_v$", "regions.linear.parametrizations.weight.original1"),
        (r"fc\.", "regions.linear."),
    ],
    [(old, f"captions.{new}") for old, new in _WORDS],
]


class Original(NamedTuple):
    renames: list[Renames]
    settings: Callable[[States, dict[str, Any]], dict[str, Any]]
    convert: Callable[[States, Any], States] = lambda states, model: states
    """Tensors as the built model holds them, before they are renamed."""


def _vsepp_settings(states: States, options: dict[str, Any]) -> dict[str, Any]:
    image, text = states[:2]
    raw = any(key.startswith("cnn.") for key in image)
    if any(".features." in key or "classifier" in key for key in image):
        raise ValueError("a VGG19 backbone: Tercet has none; ResNet backbones can be imported")
    return {
        **({"backbone": _resnet_config(image)} if raw else {"image_dim": image["fc.weight"].shape[1]}),
        **_gru_settings(text),
        "measure": options.get("measure", "cosine"),
        "absolute": bool(options.get("use_abs", False)),
        "image_norm": not options.get("no_imgnorm", False),
    }


def _resnet_config(image: dict[str, Tensor]) -> dict[str, Any]:
    places = [re.search(r"layer(\d)\.(\d+)\.conv3", key) for key in image]
    found = {(int(place[1]), int(place[2])) for place in places if place}
    depths = [sum(stage == wanted for stage, _ in found) for wanted in range(1, 5)]
    return {"model_type": "resnet", "depths": depths, "layer_type": "bottleneck"}


def _vsrn_settings(states: States, options: dict[str, Any]) -> dict[str, Any]:
    image, text = states[:2]
    coco, final_norm = "coco" in str(options.get("data_name", "")), "bn.weight" in image
    captioner: dict[str, Any] = {}
    if len(states) > 2:
        embedding = states[2]["decoder.embedding.weight"]
        captioner = {
            "captioner": True,
            "caption_dim": states[2]["encoder.vid2hid.weight"].shape[0],
            "caption_word_dim": embedding.shape[1],
            "caption_length": int(options.get("max_len", 60)),
        }
    return {
        "image_dim": image["fc.weight"].shape[1],
        **_gru_settings(text),
        "variant": ("both" if coco else "f30k") if final_norm else "coco",
        "absolute": bool(options.get("use_abs", False)),
        "image_norm": not options.get("no_imgnorm", False),
        **captioner,
    }


def _vse_infinity_settings(states: States, options: dict[str, Any]) -> dict[str, Any]:
    image, text = states[:2]
    reader: dict[str, Any] = {"bert": _bert_config(text)} if "linear.weight" in text else _gru_settings(text)
    return {
        **reader,
        "image_dim": image["fc.weight"].shape[1],
        "joint_dim": image["fc.weight"].shape[0],
        "residual": "mlp.layers.0.weight" in image,
        "image_norm": not options.get("no_imgnorm", False),
        "text_norm": not options.get("no_txtnorm", False),
    }


def _scan_settings(states: States, options: dict[str, Any]) -> dict[str, Any]:
    image, text = states[:2]
    _refuse_options(options, "SCAN", ("focal_type", "measure"))
    attends = str(options.get("cross_attn", "t2i"))
    return _part_set_settings(states, options) | {
        "attends": attends,
        "sharpness": float(options.get("lambda_softmax", 9.0 if attends == "t2i" else 4.0)),
        "norm": str(options.get("raw_feature_norm", "clipped_l2norm")),
        "pooling": str(options.get("agg_func", "LogSumExp")),
        "pooling_sharpness": float(options.get("lambda_lse", 6.0)),
        "both_directions": "rnn.weight_hh_l0_reverse" in text,
        "weight_norm": "fc.weight_v" in image,
    }


def _bfan_settings(states: States, options: dict[str, Any]) -> dict[str, Any]:
    _refuse_options(options, "BFAN", ("cross_attn", "measure"))
    return _part_set_settings(states, options) | {
        "focus": str(options.get("focal_type", "equal")),
        "sharpness": float(options.get("lambda_softmax", 20.0)),
    }


def _refuse_options(options: dict[str, Any], system: str, others: tuple[str, ...]) -> None:
    """Weights of these systems have the same names and shapes; the calls of their programs tell them apart."""
    for name in others:
        if name in options:
            raise ValueError(f"its program was called with {name}, which {system} does not have")


def _part_set_settings(states: States, options: dict[str, Any]) -> dict[str, Any]:
    image, text = states[:2]
    projection = image["fc.weight_v"] if "fc.weight_v" in image else image["fc.weight"]
    return {
        "image_dim": projection.shape[1],
        **_gru_settings(text),
        "image_norm": not options.get("no_imgnorm", False),
        "text_norm": not options.get("no_txtnorm", False),
    }


def _gru_settings(text: dict[str, Tensor]) -> dict[str, Any]:
    words, word_dim = text["embed.weight"].shape
    layers = sum(re.fullmatch(r"rnn\.weight_hh_l\d+", key) is not None for key in text)
    joint_dim = text["rnn.weight_hh_l0"].shape[1]
    return {"words": words, "word_dim": word_dim, "layers": layers, "joint_dim": joint_dim}


def _bert_config(text: dict[str, Tensor]) -> dict[str, Any]:
    """From the shapes; that heads are 64 wide, as in all published BERTs, shapes do not tell."""
    vocabulary, hidden = text["bert.embeddings.word_embeddings.weight"].shape
    return {
        "model_type": "bert",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_hidden_layers": len({key.split(".")[3] for key in text if key.startswith("bert.encoder.layer.")}),
        "num_attention_heads": max(1, hidden // 64),
        "intermediate_size": text["bert.encoder.layer.0.intermediate.dense.weight"].shape[0],
        "max_position_embeddings": text["bert.embeddings.position_embeddings.weight"].shape[0],
    }


ORIGINALS = {
    "vsepp": Original(_VSEPP, _vsepp_settings),
    "vsrn": Original(_VSRN, _vsrn_settings),
    "vse-infinity": Original(_VSE_INFINITY, _vse_infinity_settings),
    "scan": Original(_PART_SETS, _scan_settings),
    "bfan": Original(_PART_SETS, _bfan_settings),
    "xvlm": Original(_XVLM, settings_of_states, converted),
}


def original_model(system: str, path: str | Path, **settings: Any) -> nn.Module:
    """The authors' model with their weights, in evaluation mode. Nothing in the file is executed.

    Settings are read off the file; the ones named here win (a BERT with heads of another width, say).
    """
    if system not in ORIGINALS:
        raise ValueError(f"no originals of {system!r} can be imported; known: {', '.join(ORIGINALS)}")
    checkpoint = read_checkpoint(Path(path))
    original = ORIGINALS[system]
    try:
        found = original.settings(checkpoint.states, checkpoint.options)
    except (KeyError, IndexError, ValueError) as error:
        what = f"has no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path} is no checkpoint of {system}: {what}") from error
    model = build(system, **(found | settings))
    load_states(model, original.convert(checkpoint.states, model), original.renames, str(path))
    return model.eval()


def load_states(model: nn.Module, states: States, renames: list[Renames], place: str) -> None:
    """All or nothing. Counters of BatchNorm, which very old files lack, start at 0."""
    wanted = model.state_dict()
    given: dict[str, Tensor] = {}
    wrong: list[str] = []
    for number, state in enumerate(states):
        for key, tensor in state.items():
            name = _renamed(key, renames[number] if number < len(renames) else [])
            if name is None:
                continue
            if name not in wanted:
                wrong.append(f"unexpected: {key} (part {number})")
            elif name in given:
                wrong.append(f"twice, under two names: {key} (part {number})")
            elif tensor.is_floating_point() != wanted[name].is_floating_point():
                wrong.append(f"of another kind: {key} {tensor.dtype}, expected {wanted[name].dtype}")
            elif wanted[name].shape != (fitted := _fitted(tensor, wanted[name])).shape:
                wrong.append(f"of another shape: {key} {tuple(tensor.shape)}, expected {tuple(wanted[name].shape)}")
            else:
                given[name] = fitted
    given |= {name: torch.zeros_like(w) for name, w in wanted.items() if _may_lack(name) and name not in given}
    wrong += [f"missing: {name}" for name in wanted if name not in given]
    if wrong:
        raise ValueError(f"{place} does not fit the model, nothing was loaded: {'; '.join(wrong)}")
    model.load_state_dict(given)


def _may_lack(name: str) -> bool:
    return name.endswith("num_batches_tracked")


def _fitted(tensor: Tensor, place: Tensor) -> Tensor:
    """A convolution of width 1 is a linear layer."""
    return tensor.squeeze(-1) if tensor.ndim == 3 and place.ndim == 2 and tensor.shape[-1] == 1 else tensor


def _renamed(key: str, renames: Renames) -> str | None:
    """Our name; the key itself where no rule fits, which is then unexpected; None for what is not needed."""
    for pattern, new in renames:
        match = re.match(pattern, key)
        if match:
            return None if new is None else _filled(new, match) + key[match.end() :]
    return f"? {key}"


def _filled(new: str, match: re.Match[str]) -> str:
    """{2} is the second group, {-1} the first one as a number counted from 0."""

    def fill(place: re.Match[str]) -> str:
        number = int(place[1])
        return match[number] if number > 0 else str(int(match[-number]) - 1)

    return re.sub(r"\{(-?\d)\}", fill, new)
