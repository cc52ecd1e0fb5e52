"""Conversion of the authors' checkpoints: keys renamed to ours, and settings inferred from the shapes.

Every tensor must match a parameter and every parameter a tensor; mismatches are listed. There is no partial loading.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tercet.interfaces import RetrievalModel, TorchModule
from tercet.models.convert.safe_load import read_checkpoint
from tercet.models.convert.xvlm import RENAMES as _XVLM
from tercet.models.convert.xvlm import bert_config, convert_states, infer_settings
from tercet.models.registry import build, misfit

States = list[dict[str, Tensor]]
EXTRA_WORDS = {"vse-infinity": ("<mask>",)}  # system -> words that the original program adds to its vocabulary
# Pattern of an authors' key -> our key; None for keys that are not needed.
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
        # Created by the authors, never used.
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

# SCAN and BFAN; SCAN optionally weight-normalizes its projection.
_REGION_WORD: list[Renames] = [
    [
        (r"fc\.weight_g$", "regions.linear.parametrizations.weight.original0"),
        (r"fc\.weight_v$", "regions.linear.parametrizations.weight.original1"),
        (r"fc\.", "regions.linear."),
    ],
    [(old, f"captions.{new}") for old, new in _WORDS],
]


class CheckpointFormat(NamedTuple):
    """How to convert the checkpoints of one system."""

    renames: list[Renames]
    """Per state dict of the checkpoint."""
    settings: Callable[[States, dict[str, Any]], dict[str, Any]]
    """(state dicts, options of the training script) -> model settings."""
    convert: Callable[[States, Any], States] = lambda states, model: states
    """Reshapes or splits tensors to fit the built model, before the renaming."""


def _vsepp_settings(states: States, options: dict[str, Any]) -> dict[str, Any]:
    image, text = states[:2]
    has_backbone = any(key.startswith("cnn.") for key in image)
    if any(".features." in key or "classifier" in key for key in image):
        raise ValueError("VGG19 backbones are not supported; ResNet backbones are")
    return {
        **({"backbone": _resnet_config(image)} if has_backbone else {"image_dim": image["fc.weight"].shape[1]}),
        **_gru_settings(text),
        "measure": options.get("measure", "cosine"),
        "absolute": bool(options.get("use_abs", False)),
        "image_norm": not options.get("no_imgnorm", False),
    }


def _resnet_config(image: dict[str, Tensor]) -> dict[str, Any]:
    matches = [re.search(r"layer(\d)\.(\d+)\.conv3", key) for key in image]
    blocks = {(int(match[1]), int(match[2])) for match in matches if match}
    depths = [sum(block_stage == stage for block_stage, _ in blocks) for stage in range(1, 5)]
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
    text_settings: dict[str, Any] = (
        {"bert": bert_config(text, "bert.")} if "linear.weight" in text else _gru_settings(text)
    )
    return {
        **text_settings,
        "image_dim": image["fc.weight"].shape[1],
        "embed_dim": image["fc.weight"].shape[0],
        "residual": "mlp.layers.0.weight" in image,
        "image_norm": not options.get("no_imgnorm", False),
        "text_norm": not options.get("no_txtnorm", False),
    }


def _scan_settings(states: States, options: dict[str, Any]) -> dict[str, Any]:
    image, text = states[:2]
    _refuse_options(options, "SCAN", ("focal_type", "measure"))
    direction = str(options.get("cross_attn", "t2i"))
    return _region_word_settings(states, options) | {
        "direction": direction,
        "inverse_temperature": float(options.get("lambda_softmax", 9.0 if direction == "t2i" else 4.0)),
        "norm": str(options.get("raw_feature_norm", "clipped_l2norm")),
        "pooling": str(options.get("agg_func", "LogSumExp")),
        "pooling_inverse_temperature": float(options.get("lambda_lse", 6.0)),
        "bidirectional": "rnn.weight_hh_l0_reverse" in text,
        "weight_norm": "fc.weight_v" in image,
    }


def _bfan_settings(states: States, options: dict[str, Any]) -> dict[str, Any]:
    _refuse_options(options, "BFAN", ("cross_attn", "measure"))
    return _region_word_settings(states, options) | {
        "focus": str(options.get("focal_type", "equal")),
        "inverse_temperature": float(options.get("lambda_softmax", 20.0)),
    }


def _refuse_options(options: dict[str, Any], system: str, foreign: tuple[str, ...]) -> None:
    """Raise if an option belongs to the other system: SCAN's and BFAN's weights have the same names and shapes."""
    for name in foreign:
        if name in options:
            raise ValueError(f"it was trained with option {name}, which {system} does not have")


def _region_word_settings(states: States, options: dict[str, Any]) -> dict[str, Any]:
    image, text = states[:2]
    projection = image["fc.weight_v"] if "fc.weight_v" in image else image["fc.weight"]
    return {
        "image_dim": projection.shape[1],
        **_gru_settings(text),
        "image_norm": not options.get("no_imgnorm", False),
        "text_norm": not options.get("no_txtnorm", False),
    }


def _gru_settings(text: dict[str, Tensor]) -> dict[str, Any]:
    vocab_size, word_dim = text["embed.weight"].shape
    layers = sum(re.fullmatch(r"rnn\.weight_hh_l\d+", key) is not None for key in text)
    embed_dim = text["rnn.weight_hh_l0"].shape[1]
    return {"vocab_size": vocab_size, "word_dim": word_dim, "layers": layers, "embed_dim": embed_dim}


CHECKPOINT_FORMATS = {
    "vsepp": CheckpointFormat(_VSEPP, _vsepp_settings),
    "vsrn": CheckpointFormat(_VSRN, _vsrn_settings),
    "vse-infinity": CheckpointFormat(_VSE_INFINITY, _vse_infinity_settings),
    "scan": CheckpointFormat(_REGION_WORD, _scan_settings),
    "bfan": CheckpointFormat(_REGION_WORD, _bfan_settings),
    "xvlm": CheckpointFormat(_XVLM, infer_settings, convert_states),
}


def original_model(system: str, path: str | Path, **settings: Any) -> RetrievalModel:
    """Load a checkpoint of the authors into our model, in evaluation mode. No code in the file is executed.

    Settings are inferred from the file; the given ones override them (say, a BERT with another head dimension).
    """
    if system not in CHECKPOINT_FORMATS:
        raise ValueError(f"no checkpoints of {system!r} can be imported; known: {', '.join(CHECKPOINT_FORMATS)}")
    checkpoint = read_checkpoint(Path(path))
    checkpoint_format = CHECKPOINT_FORMATS[system]
    try:
        inferred = checkpoint_format.settings(checkpoint.states, checkpoint.options)
    except (KeyError, IndexError, ValueError) as error:
        reason = f"missing key {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path}: not a {system} checkpoint: {reason}") from error
    model = build(system, **(inferred | settings))
    load_states(model, checkpoint_format.convert(checkpoint.states, model), checkpoint_format.renames, str(path))
    model.eval()
    return model


def load_states(model: TorchModule, states: States, renames: list[Renames], path: str) -> None:
    """Load all tensors, or raise and load none. BatchNorm counters, which very old files lack, start at 0."""
    expected = model.state_dict()
    loaded: dict[str, Tensor] = {}
    problems: list[str] = []
    for index, state in enumerate(states):
        for key, tensor in state.items():
            name = _renamed(key, renames[index] if index < len(renames) else [])
            if name is None:
                continue
            if name not in expected:
                problems.append(f"unexpected: {key} (state dict {index})")
            elif name in loaded:
                problems.append(f"duplicate: {key} (state dict {index})")
            elif tensor.is_floating_point() != expected[name].is_floating_point():
                problems.append(f"wrong dtype: {key} {tensor.dtype}, expected {expected[name].dtype}")
            elif expected[name].shape != (fitted := _fitted(tensor, expected[name])).shape:
                problems.append(f"wrong shape: {key} {tuple(tensor.shape)}, expected {tuple(expected[name].shape)}")
            else:
                loaded[name] = fitted
    loaded |= {name: torch.zeros_like(t) for name, t in expected.items() if _is_optional(name) and name not in loaded}
    problems += [f"missing: {name}" for name in expected if name not in loaded]
    if problems:
        raise misfit(path, problems)
    model.load_state_dict(loaded)


def _is_optional(name: str) -> bool:
    return name.endswith("num_batches_tracked")


def _fitted(tensor: Tensor, parameter: Tensor) -> Tensor:
    """Squeeze the weight of a 1x1 convolution that is a linear layer here."""
    return tensor.squeeze(-1) if tensor.ndim == 3 and parameter.ndim == 2 and tensor.shape[-1] == 1 else tensor


def _renamed(key: str, renames: Renames) -> str | None:
    """Our key; None for keys that are not needed; a marked key, which is then unexpected, if no rule matches."""
    for pattern, template in renames:
        match = re.match(pattern, key)
        if match:
            return None if template is None else _filled(template, match) + key[match.end() :]
    return f"? {key}"


def _filled(template: str, match: re.Match[str]) -> str:
    """Fill in groups of the match: {2} is the second group, {-1} the first group as a number minus 1 (0-based)."""

    def fill(placeholder: re.Match[str]) -> str:
        group = int(placeholder[1])
        return match[group] if group > 0 else str(int(match[-group]) - 1)

    return re.sub(r"\{(-?\d)\}", fill, template)
