"""CLIP as a folder of open_clip: `open_clip.create_model_from_pretrained("local-dir:FOLDER")`.

Both programs have the same architecture under other names: open_clip stores the three projections of an attention
layer as one matrix, and the projections to the joint space transposed.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tercet.exporting.pretrained_folders import dual_encoder, pixels_of, write_tokenizer
from tercet.inference import Retriever
from tercet.storage import write_json

ACTIVATIONS = {"quick_gelu": True, "gelu": False}
LEGACY_EOS = 2
"""transformers takes the largest token id as the end of a caption if the configuration has this id."""


def write_open_clip(retriever: Retriever, folder: Path) -> str:
    """Write open_clip_config.json, open_clip_model.safetensors and the tokenizer."""
    from safetensors.torch import save_file

    clip = dual_encoder(retriever, "open_clip")
    config, pixels = clip.model.config, pixels_of(retriever)
    if config.model_type != "clip":
        raise ValueError(
            f"a {config.model_type} model cannot be exported to open_clip, whose image towers of that kind are timm's "
            "of fixed sizes: --to hf and --to sentence-transformers take it"
        )
    if pixels.shorter_side not in (None, pixels.side):
        raise ValueError(
            f"open_clip resizes the shorter side to the size of the crop, {pixels.side} pixels; this model resizes it "
            f"to {pixels.shorter_side}: it can be exported with --to hf"
        )
    preprocess = {
        "size": pixels.side,
        "mode": "RGB",
        "mean": list(pixels.mean),
        "std": list(pixels.std),
        "interpolation": pixels.resampling,
        "resize_mode": "squash" if pixels.shorter_side is None else "shortest",
    }
    write_json(
        folder / "open_clip_config.json",
        {"model_cfg": architecture(config.text_config, config.vision_config, config.projection_dim)}
        | {"preprocess_cfg": preprocess},
    )
    save_file(open_clip_weights(clip.model.state_dict()), folder / "open_clip_model.safetensors")
    write_tokenizer(retriever, folder)
    return """import open_clip
from PIL import Image

model, preprocess = open_clip.create_model_from_pretrained("local-dir:.")
tokenizer = open_clip.get_tokenizer("local-dir:.")
images = model.encode_image(preprocess(Image.open("photo.jpg"))[None], normalize=True)
captions = model.encode_text(tokenizer(["two dogs"]), normalize=True)
"""


def architecture(text: Any, vision: Any, embed_dim: int) -> dict[str, Any]:
    """The `model_cfg` of open_clip; `ValueError` for what it cannot build."""
    if text.hidden_act != vision.hidden_act or text.hidden_act not in ACTIVATIONS:
        raise ValueError(
            f"open_clip has one activation for both towers, {' or '.join(ACTIVATIONS)}; this model has "
            f"{text.hidden_act} for captions and {vision.hidden_act} for images"
        )
    towers = {"text_cfg": text, "vision_cfg": vision}
    model: dict[str, Any] = {"embed_dim": embed_dim, "quick_gelu": ACTIVATIONS[text.hidden_act]}
    for name, tower in towers.items():
        model[name] = {
            "width": tower.hidden_size,
            "layers": tower.num_hidden_layers,
            "mlp_ratio": tower.intermediate_size / tower.hidden_size,
            "norm_kwargs": {"eps": tower.layer_norm_eps},
        }
    model["vision_cfg"] |= {
        "image_size": vision.image_size,
        "patch_size": vision.patch_size,
        "head_width": vision.hidden_size // vision.num_attention_heads,
    }
    model["text_cfg"] |= {
        "context_length": text.max_position_embeddings,
        "vocab_size": text.vocab_size,
        "heads": text.num_attention_heads,
        "hf_tokenizer_name": "local-dir",  # the tokenizer of this folder; on the hub, the name of the repository
        "pool_type": "argmax" if text.eos_token_id == LEGACY_EOS else "eos",
        "eos_id": text.eos_token_id,
    }
    return model


def open_clip_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a `CLIPModel` of transformers by the names of open_clip."""
    renamed: dict[str, Tensor] = {}
    for side, prefix in (("vision", "visual."), ("text", "")):
        layers = sorted({int(name.split(".")[3]) for name in weights if name.startswith(f"{side}_model.encoder.")})
        for layer in layers:
            part, block = f"{side}_model.encoder.layers.{layer}", f"{prefix}transformer.resblocks.{layer}"
            for kind in ("weight", "bias"):
                attention = [weights[f"{part}.self_attn.{name}_proj.{kind}"] for name in "qkv"]
                renamed[f"{block}.attn.in_proj_{kind}"] = torch.cat(attention)
                for theirs, ours in BLOCK.items():
                    renamed[f"{block}.{theirs}.{kind}"] = weights[f"{part}.{ours}.{kind}"]
    renamed |= {theirs: weights[ours] for theirs, ours in OUTSIDE_BLOCKS.items()}
    renamed |= {theirs: weights[ours].T for theirs, ours in TRANSPOSED.items()}
    return {name: tensor.contiguous().clone() for name, tensor in renamed.items()}


BLOCK = {
    "attn.out_proj": "self_attn.out_proj",
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}
OUTSIDE_BLOCKS = {
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "visual.conv1.weight": "vision_model.embeddings.patch_embedding.weight",
    "visual.ln_pre.weight": "vision_model.pre_layrnorm.weight",
    "visual.ln_pre.bias": "vision_model.pre_layrnorm.bias",
    "visual.ln_post.weight": "vision_model.post_layernorm.weight",
    "visual.ln_post.bias": "vision_model.post_layernorm.bias",
    "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "ln_final.weight": "text_model.final_layer_norm.weight",
    "ln_final.bias": "text_model.final_layer_norm.bias",
    "logit_scale": "logit_scale",
}
TRANSPOSED = {"visual.proj": "visual_projection.weight", "text_projection": "text_projection.weight"}
