"""X-VLM's checkpoints, fine-tuned or pre-trained: their names in ours, and what their shapes tell of the settings."""

import math
import re
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

PATCH = 4
_TABLE = "attn.relative_position_bias_table"

_BLOCK = r"vision_encoder\.layers\.(\d+)\.blocks\.(\d+)\."
_OURS = "vision.model.encoder.layers.{1}.blocks.{2}."
_CROSS = r"text_encoder\.(?:bert\.)?encoder\.layer\.(\d+)\.crossattention\."

# As in original.py: pattern of an authors' key -> ours; None for what is known and not needed.
RENAMES: list[list[tuple[str, str | None]]] = [
    [
        (r"vision_encoder\.patch_embed\.proj\.", "vision.model.embeddings.patch_embeddings.projection."),
        (r"vision_encoder\.patch_embed\.norm\.", "vision.model.embeddings.norm."),
        # Made anew from the sizes of windows and images.
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
        # Of pre-training alone: masked words and boxes.
        (r"text_encoder\.cls\.predictions\.", None),
        (r"bbox_head\.[013]\.(?:weight|bias)$", None),
    ]
]


def settings_of_states(states: list[dict[str, Tensor]], options: dict[str, Any]) -> dict[str, Any]:
    """From the shapes; that BERT's heads are 64 wide, as in all published ones, shapes do not tell."""
    state = _without_prefix(states[0])
    return {
        "vision": _swin_config(state),
        "text": _bert_config(state),
        "fusion_layer": _fusion_layer(state),
        "joint_dim": state["vision_proj.weight"].shape[0],
    }


def converted(states: list[dict[str, Tensor]], model: Any) -> list[dict[str, Tensor]]:
    """Their tensors as our modules hold them: query, key and value apart, the layers that look at images counted from
    the first of them, tables of positions in the size of the model's windows, which may be other than theirs.
    """
    found: dict[str, Tensor] = {}
    first, window = _fusion_layer(states[0]), model.vision.model.config.window_size
    for key, tensor in states[0].items():
        if ".attn.qkv." in key:
            for part, each in zip("qkv", tensor.chunk(3), strict=True):
                found[key.replace(".qkv.", f".{part}.")] = each
        elif key.endswith(_TABLE):
            found[key] = resized_table(tensor, window)
        else:
            cross = re.fullmatch(r"(.*encoder\.layer\.)(\d+)(\.crossattention\..*)", key)
            found[f"{cross[1]}{int(cross[2]) - first}{cross[3]}" if cross else key] = tensor
    return [found, *states[1:]]


def resized_table(table: Float[Tensor, "offset head"], window: int) -> Float[Tensor, "resized_offset head"]:
    """A table of relative positions for windows of another size, as published: splines of degree 3 through its values,
    which are placed at distances that grow geometrically, so that the nearest keep their places.
    """
    from scipy.interpolate import RectBivariateSpline  # slow to import, seldom needed

    side, wanted = math.isqrt(len(table)), 2 * window - 1
    if side == wanted:
        return table
    places = _growing(side // 2, wanted // 2)
    targets = np.arange(wanted) - wanted // 2
    heads = table.double().T.reshape(-1, side, side).numpy()
    resized = [RectBivariateSpline(places, places, head)(targets, targets) for head in heads]
    return torch.from_numpy(np.stack(resized)).reshape(len(heads), -1).T.to(table.dtype).contiguous()


def _growing(steps: int, reach: int) -> Float[np.ndarray, " place"]:
    """Symmetric about 0: steps of 1, q, q^2 .. that end at `reach`; q is kept between 1.01 and 1.5."""
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
        raise ValueError("no layer looks at images")
    return min(layers)


def _swin_config(state: dict[str, Tensor]) -> dict[str, Any]:
    """The size of images is in the mask of the first shifted windows: one for each window."""
    dim = state["vision_encoder.patch_embed.proj.weight"].shape[0]
    blocks = [match for key in state if (match := re.match(_BLOCK, key))]
    tables = {(int(block[1]), int(block[2])): state[block[0] + _TABLE] for block in blocks}
    depths = [sum(stage == wanted for stage, _ in tables) for wanted in range(1 + max(stage for stage, _ in tables))]
    window = (math.isqrt(len(tables[0, 0])) + 1) // 2
    windows = math.isqrt(len(state["vision_encoder.layers.0.blocks.1.attn_mask"]))
    return {
        "model_type": "swin",
        "image_size": PATCH * window * windows,
        "patch_size": PATCH,
        "embed_dim": dim,
        "depths": depths,
        "num_heads": [tables[stage, 0].shape[1] for stage in range(len(depths))],
        "window_size": window,
        "drop_path_rate": 0.1,
    }


def _bert_config(state: dict[str, Tensor]) -> dict[str, Any]:
    vocabulary, hidden = state["text_encoder.embeddings.word_embeddings.weight"].shape
    layers = {match[1] for key in state if (match := re.match(r"text_encoder\.encoder\.layer\.(\d+)\.", key))}
    return {
        "model_type": "bert",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_hidden_layers": len(layers),
        "num_attention_heads": max(1, hidden // 64),
        "intermediate_size": state["text_encoder.encoder.layer.0.intermediate.dense.weight"].shape[0],
        "max_position_embeddings": state["text_encoder.embeddings.position_embeddings.weight"].shape[0],
        "type_vocab_size": state["text_encoder.embeddings.token_type_embeddings.weight"].shape[0],
    }
