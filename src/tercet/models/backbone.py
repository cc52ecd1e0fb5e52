"""Pixels -> features: any vision model of Hugging Face as the trunk of a retrieval model."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Backbone(nn.Module):
    """Frozen or fine-tuned; its BatchNorm statistics never move, whatever mode the model is in.

    Published results depend on that by accident (VSE++ trained most of an epoch in evaluation mode); here it is a rule.
    """

    def __init__(self, config: dict[str, Any] | str, *, trained: bool = False) -> None:
        """`config`: a name or path, whose weights are loaded, or a configuration, whose weights are random."""
        super().__init__()
        self.model: Any = pretrained(config)
        self.set_trained(trained)

    def set_trained(self, trained: bool) -> None:
        self.trained = trained
        self.model.requires_grad_(trained)

    @property
    def dim(self) -> int:
        config = self.model.config
        if hasattr(config, "hidden_sizes"):
            return int(config.hidden_sizes[-1])
        for name in ("hidden_size", "hidden_dim", "num_features"):
            if hasattr(config, name):
                return int(getattr(config, name))
        return self._measured_dim()

    def _measured_dim(self) -> int:
        """Of models whose configuration does not say."""
        mode = self.model.training
        with torch.no_grad():
            width = int(self.eval().vectors(torch.zeros(1, 3, 224, 224)).shape[1])
        self.model.train(mode)
        return width

    def config(self) -> dict[str, Any]:
        """What it takes to build the same one, without weights."""
        return config_of(self.model)

    def train(self, mode: bool = True) -> "Backbone":
        super().train(mode and self.trained)
        for part in self.model.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                part.eval()
        return self

    def vectors(self, pixels: Float[Tensor, "image channel height width"]) -> Float[Tensor, "image dim"]:
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.trained):
            output = self.model(pixel_values=pixels)
            pooled = getattr(output, "pooler_output", None)
            return pooled.flatten(1) if pooled is not None else _cells(output.last_hidden_state).mean(dim=1)

    def cells(self, pixels: Float[Tensor, "image channel height width"]) -> Float[Tensor, "image region dim"]:
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.trained):
            return _cells(self.model(pixel_values=pixels).last_hidden_state)


def config_of(model: Any) -> dict[str, Any]:
    """A configuration from which the same model can be built, without weights."""
    return model.config.to_diff_dict() | {"model_type": model.config.model_type}


def image_side(config: dict[str, Any] | str) -> int:
    """Pixels of a side of the squares that it sees."""
    found = _config(config)
    side = getattr(found, "image_size", None)
    if not isinstance(side, int):
        raise ValueError(f"{found.model_type} does not say how large the images are that it sees: a Swin does")
    return side


def text_places(config: dict[str, Any] | str) -> int:
    """Of a caption's tokens, in the text model or in the text side of a dual encoder."""
    found = _config(config)
    return int(getattr(getattr(found, "text_config", found), "max_position_embeddings", 512))


def _config(config: dict[str, Any] | str) -> Any:
    try:
        from transformers import AutoConfig
    except ImportError as error:
        raise ValueError("backbones need transformers: pip install 'tercet[hf]'") from error
    if isinstance(config, dict):
        settings = dict(config)
        if "model_type" not in settings:
            raise ValueError(
                f"a configuration of Hugging Face names its model_type; this one has {', '.join(settings)}"
            )
        return AutoConfig.for_model(settings.pop("model_type"), **settings)
    try:
        return AutoConfig.from_pretrained(config, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"no model {config!r}, neither on this machine nor on the hub: {error}") from error


def _cells(state: Tensor) -> Float[Tensor, "image region dim"]:
    """The map of a CNN row by row; patches of a transformer as they are."""
    return state.flatten(2).mT if state.ndim == 4 else state


def pretrained(config: dict[str, Any] | str) -> Any:
    """A model of Hugging Face: by name or path with its weights, or from a configuration with random ones."""
    try:
        from transformers import AutoModel
    except ImportError as error:
        raise ValueError("backbones need transformers: pip install 'tercet[hf]'") from error
    if isinstance(config, dict):
        return AutoModel.from_config(_config(config))
    try:
        # Never code that comes with a model; and float32, whatever it was saved in.
        model, report = AutoModel.from_pretrained(config, trust_remote_code=False, output_loading_info=True)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"no backbone {config!r}, neither on this machine nor on the hub: {error}") from error
    missing = sorted(report.get("missing_keys", ()))
    if any("pooler" not in key for key in missing):
        raise ValueError(f"{config}: weights are missing: {', '.join(missing)}")
    if missing:
        model.pooler = None  # a classifier's file has none: a random one would spoil what it is given
    return model.float()
