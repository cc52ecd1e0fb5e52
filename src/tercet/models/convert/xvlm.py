"""Conversion of X-VLM checkpoints, fine-tuned or pre-trained: key renames, tensor layout, inferred settings."""

import math
import re
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tercet.models.xvlm import XVLM

PATCH_SIZE = 4
_TABLE = "attn.relative_position_bias_table"

_BLOCK = r"vision_encoder\.layers\.(\d+)\.blocks\.(\d+)\."
_OURS = "vision.model.encoder.layers.{1}.blocks.{2}."
_CROSS = r"text_encoder\.(?:bert\.)?encoder\.layer\.(\d+)\.crossattention\."

# As in state_dicts.py: pattern of an authors' key -> our key; None for keys that are not needed.
RENAMES: list[list[tuple[str, str | None]]] = [
    [
        (r"vision_encoder\.patch_embed\.proj\.", "vision.model.embeddings.patch_embeddings.projection."),
        (r"vision_encoder\.patch_embed\.norm\.", "vision.model.embeddings.norm."),
        # Recomputed from the window and image sizes.
        (_BLOCK + r"(?:attn_mask|attn\.relative_position_index)$", None),
        (_BLOCK + r"attn\.relative_position_bias_", _OURS + "attention.relative_position_bias.relative_position_bias_"),
        (_BLOCK + r"attn\.([qkv])\.", _OURS + "attention.{3}_proj."),
        (_BLOCK + r"attn\.proj\.", _OURS + "attention.o_proj."),
        (_BLOCK + r"norm1\.", _OURS + "layernorm_before."),
        (_BLOCK + r"norm2\.", _OURS + "layernorm_after."),
        (_BLOCK + r"mlp\.", _OURS + "mlp."),
        (r"vision_encoder\.layers\.(\d+)\.downsample\.", "vision.model.encoder.layers.{1}.downsample."),
        (r"vision_encoder\.norm\.", "vision.model.layernorm."),
        (r"text_encoder\.(?:bert\.)?embeddings\.position_ids$", None),  # a buffer of older transformers
        (_CROSS + r"self\.(query|key|value)\.", "text.cross.{1}.{2}."),
        (_CROSS + r"output\.dense\.", "text.cross.{1}.out."),
        (_CROSS + r"output\.LayerNorm\.", "text.cross.{1}.norm."),
        (r"text_encoder\.(?:bert\.)?(embeddings|encoder)\.", "text.bert.{1}."),
        (r"vision_proj\.", "image_head."),
        (r"text_proj\.", "caption_head."),
        (r"itm_head\.", "match_head."),
        (r"temp$", "temperature"),
        # Only used in pre-training: masked language modeling and box prediction.
        (r"text_encoder\.cls\.predictions\.", None),
        (r"bbox_head\.[013]\.(?:weight|bias)$", None),
    ]
]


def infer_settings(states: list[dict[str, Tensor]], options: dict[str, Any]) -> dict[str, Any]:
    """Model settings from the shapes of the tensors."""
    state = _without_prefix(states[0])
    return {
        "vision": _swin_config(state),
        "text": _text_config(state),
        "fusion_layer": _fusion_layer(state),
        "embed_dim": state["vision_proj.weight"].shape[0],
    }


def convert_states(states: list[dict[str, Tensor]], model: XVLM) -> list[dict[str, Tensor]]:
    """Their tensors in the layout of our modules: query, key and value separate, fusion layers counted from 0, and
    relative position tables resized to the model's window size, which may differ from theirs.
    """
    state: dict[str, Tensor] = {}
    first_fusion_layer, window = _fusion_layer(states[0]), model.vision.model.config.window_size
    for key, tensor in states[0].items():
        if ".attn.qkv." in key:
            for name, chunk in zip("qkv", tensor.chunk(3), strict=True):
                state[key.replace(".qkv.", f".{name}.")] = chunk
        elif key.endswith(_TABLE):
            state[key] = resize_position_table(tensor, window)
        else:
            cross = re.fullmatch(r"(.*encoder\.layer\.)(\d+)(\.crossattention\..*)", key)
            state[f"{cross[1]}{int(cross[2]) - first_fusion_layer}{cross[3]}" if cross else key] = tensor
    return [state, *states[1:]]


def resize_position_table(table: Float[Tensor, "offset head"], window: int) -> Float[Tensor, "resized_offset head"]:
    """Resize a relative position table to another window size, as published: cubic spline interpolation with the old
    entries at geometrically growing distances, so that the nearest offsets keep their positions.
    """
    from scipy.interpolate import RectBivariateSpline  # slow to import, rarely needed

    old_side, new_side = math.isqrt(len(table)), 2 * window - 1
    if old_side == new_side:
        return table
    positions = _geometric_positions(old_side // 2, new_side // 2)
    targets = np.arange(new_side) - new_side // 2
    heads = table.double().T.reshape(-1, old_side, old_side).numpy()
    resized = [RectBivariateSpline(positions, positions, head)(targets, targets) for head in heads]
    return torch.from_numpy(np.stack(resized)).reshape(len(heads), -1).T.to(table.dtype).contiguous()


def _geometric_positions(steps: int, reach: int) -> Float[np.ndarray, " position"]:
    """Positions symmetric about 0 with steps of 1, q, q^2, ... that end at `reach`; q is within 1.01 to 1.5."""
    low, high = 1.01, 1.5
    while high - low > 1e-6:
        ratio = (low + high) / 2
        low, high = (low, ratio) if (ratio ** np.arange(steps)).sum() > reach else (ratio, high)
    outward = (ratio ** np.arange(steps)).cumsum()
    return np.concatenate([-outward[::-1], [0], outward])


def _without_prefix(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key.replace("text_encoder.bert.", "text_encoder."): tensor for key, tensor in state.items()}


def _fusion_layer(state: dict[str, Tensor]) -> int:
    layers = [int(match[1]) for key in state if (match := re.match(_CROSS, key))]
    if not layers:
        raise ValueError("no layer has cross attention")
    return min(layers)


def _swin_config(state: dict[str, Tensor]) -> dict[str, Any]:
    """Swin configuration; the image size follows from the first shifted attention mask, one row per window."""
    dim = state["vision_encoder.patch_embed.proj.weight"].shape[0]
    blocks = [match for key in state if (match := re.match(_BLOCK, key))]
    tables = {(int(block[1]), int(block[2])): state[block[0] + _TABLE] for block in blocks}
    stages = 1 + max(stage for stage, _ in tables)
    depths = [sum(block_stage == stage for block_stage, _ in tables) for stage in range(stages)]
    window = (math.isqrt(len(tables[0, 0])) + 1) // 2
    windows = math.isqrt(len(state["vision_encoder.layers.0.blocks.1.attn_mask"]))
    return {
        "model_type": "swin",
        "image_size": PATCH_SIZE * window * windows,
        "patch_size": PATCH_SIZE,
        "embed_dim": dim,
        "depths": depths,
        "num_heads": [tables[stage, 0].shape[1] for stage in range(len(depths))],
        "window_size": window,
        "drop_path_rate": 0.1,
    }


def _text_config(state: dict[str, Tensor]) -> dict[str, Any]:
    config = bert_config(state, "text_encoder.")
    return config | {"type_vocab_size": state["text_encoder.embeddings.token_type_embeddings.weight"].shape[0]}


def bert_config(state: dict[str, Tensor], prefix: str) -> dict[str, Any]:
    """BERT configuration from the shapes of the tensors under this prefix.

    The number of heads is not in the shapes: a head dimension of 64 is assumed, as in all published BERTs.
    """
    vocab_size, hidden_size = state[f"{prefix}embeddings.word_embeddings.weight"].shape
    layer = re.compile(re.escape(prefix) + r"encoder\.layer\.(\d+)\.")
    return {
        "model_type": "bert",
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": len({match[1] for key in state if (match := layer.match(key))}),
        "num_attention_heads": max(1, hidden_size // 64),
        "intermediate_size": state[f"{prefix}encoder.layer.0.intermediate.dense.weight"].shape[0],
        "max_position_embeddings": state[f"{prefix}embeddings.position_embeddings.weight"].shape[0],
    }
