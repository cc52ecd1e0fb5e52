"""Hugging Face encoders: vision, text or CLIP-like models, by name or local path."""

import hashlib
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from PIL.Image import Image
from torch import Tensor

from tercet.data.text.tokenized import pretrained_tokenizer
from tercet.hub import hub_options, pretrained_config, transformers_for
from tercet.interfaces import ImageFeatures, TextFeatures

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class PretrainedImages:
    """Image features of CLIP-like models; the pooled output, or the mean of the last layer, of other vision models."""

    def __init__(self, name: str, *, grid: bool = False) -> None:
        self.model, self.grid = _load(name), grid
        self.processor = _image_processor(name)
        self.folder = str(Path(name).resolve()) if Path(name).is_dir() else None
        self.about: dict[str, Any] = {
            "encoder": name if not Path(name).is_dir() else Path(name).name,
            "revision": _revision(self.model, name),
            "preprocessing": self.processor.to_json_string(),
            "output": "grid" if grid else "global",
        }

    def prepare(self, image: Image) -> Float[Tensor, "channel height width"]:
        return self.processor(image, return_tensors="pt")["pixel_values"][0]

    @torch.inference_mode()
    def encode(self, pixels: Float[Tensor, "image channel height width"]) -> Float[Tensor, "image *rest"]:
        if self.grid:
            vision = getattr(self.model, "vision_model", self.model)
            return _cells(vision(pixel_values=pixels).last_hidden_state)
        if isinstance(self.model, ImageFeatures):
            return _pooled(self.model.get_image_features(pixel_values=pixels))
        return _pooled(self.model(pixel_values=pixels)).flatten(1)


class PretrainedTexts:
    """Text features of CLIP-like models; the normalized mean of the last layer over tokens of other text models."""

    def __init__(self, name: str, *, display_name: str | None = None) -> None:
        self.model = _load(name)
        self.tokenizer = pretrained_tokenizer(name)
        self.folder = str(Path(name).resolve()) if Path(name).is_dir() and display_name is None else None
        self.max_length = _max_length(self.model, self.tokenizer)
        clip = isinstance(self.model, TextFeatures)
        self.about: dict[str, Any] = {
            "encoder": display_name or (name if not Path(name).is_dir() else Path(name).name),
            "revision": _revision(self.model, name),
            "preprocessing": f"{_tokenizer_digest(self.tokenizer)}, at most {self.max_length} tokens",
            "output": "text features" if clip else "mean of the last layer over tokens, of length 1",
        }

    @torch.inference_mode()
    def encode(self, texts: Sequence[str]) -> Float[Tensor, "caption dim"]:
        # SigLIP was trained with padding to the maximum length and pools the last position.
        padding = "max_length" if "siglip" in self.model.config.model_type else True
        tokens = self.tokenizer(
            list(texts), padding=padding, truncation=True, max_length=self.max_length, return_tensors="pt"
        )
        if padding == "max_length":  # and without a mask
            tokens = {"input_ids": tokens["input_ids"]}
        if isinstance(self.model, TextFeatures):
            return _pooled(self.model.get_text_features(**tokens))
        states = self.model(**tokens).last_hidden_state
        mask = tokens["attention_mask"].unsqueeze(-1).to(states.dtype)
        return torch.nn.functional.normalize((states * mask).sum(dim=1) / mask.sum(dim=1), dim=1)


def _load(name: str) -> Any:
    transformers = transformers_for("Hugging Face encoders")
    transformers.utils.logging.disable_progress_bar()  # Tercet has its own
    try:
        config = pretrained_config(name)
        model = transformers.AutoModel.from_pretrained(
            name, config=config, trust_remote_code=False, **hub_options(name)
        )
        return model.float().eval()  # whatever dtype it was saved in
    except pickle.UnpicklingError as error:
        raise ValueError(f"{name}: its weights are a pickle with code, which is not run") from error
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"no model {name!r}, neither on this machine nor on the hub: {str(error).splitlines()[0]}"
        ) from error


def _image_processor(name: str) -> Any:
    AutoImageProcessor = transformers_for("Hugging Face encoders").AutoImageProcessor
    try:
        return AutoImageProcessor.from_pretrained(name, use_fast=False, trust_remote_code=False, **hub_options(name))
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{name}: cannot load its image preprocessing configuration: {error}") from error


def _revision(model: "PreTrainedModel", name: str) -> str:
    """The hub's commit, or a checksum of the weights for local files."""
    commit = getattr(model.config, "_commit_hash", None)
    if commit:
        return str(commit)
    digest = hashlib.sha256()
    for key, weight in sorted(model.state_dict().items()):
        digest.update(key.encode())
        digest.update(weight.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return f"weights {digest.hexdigest()[:16]}"


def _tokenizer_digest(tokenizer: Any) -> str:
    """Class name and a checksum of the rules and the vocabulary."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = backend.to_str() if backend is not None else repr(sorted(tokenizer.get_vocab().items()))
    return f"{type(tokenizer).__name__} {hashlib.sha256(rules.encode()).hexdigest()[:16]}"


def _max_length(model: "PreTrainedModel", tokenizer: Any) -> int:
    config = getattr(model.config, "text_config", model.config)
    positions = getattr(config, "max_position_embeddings", 512)
    return min(int(tokenizer.model_max_length), int(positions))


def _pooled(output: Any) -> Tensor:
    """One vector per item; the output type differs between versions of transformers."""
    if isinstance(output, Tensor):
        return output
    if getattr(output, "pooler_output", None) is not None:
        return output.pooler_output
    return _cells(output.last_hidden_state).mean(dim=1)


def _cells(state: Tensor) -> Float[Tensor, "image region dim"]:
    """Patches of a transformer unchanged; the feature map of a CNN flattened row by row."""
    return state.flatten(2).mT.contiguous() if state.ndim == 4 else state
