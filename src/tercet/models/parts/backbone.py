"""Hugging Face models as towers: a vision backbone for pixels, and loading by name, path or configuration."""

import pickle
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tercet.hub import hub_options, pretrained_config, transformers_for, without_code

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Backbone(nn.Module):
    """A vision model, frozen or fine-tuned. Its BatchNorm statistics never change, in training mode too.

    Published results depend on that by accident (VSE++ trained most of an epoch in evaluation mode); here it is a rule.
    """

    def __init__(self, config: dict[str, Any] | str, *, trained: bool = False) -> None:
        """`config`: a name or path (loads the weights), or a configuration (random weights)."""
        super().__init__()
        self.model: PreTrainedModel = hugging_face_model(config)
        self.set_trained(trained)

    def set_trained(self, trained: bool) -> None:
        """Freeze or unfreeze the weights."""
        self.trained = trained
        self.model.requires_grad_(trained)

    @property
    def dim(self) -> int:
        """Feature dimension."""
        config = self.model.config
        if hasattr(config, "hidden_sizes"):
            return int(config.hidden_sizes[-1])
        for name in ("hidden_size", "hidden_dim", "num_features"):
            if hasattr(config, name):
                return int(getattr(config, name))
        return self._measured_dim()

    def _measured_dim(self) -> int:
        """Feature dimension from a forward pass, for models whose configuration does not contain it."""
        mode = self.model.training
        with torch.no_grad():
            dim = int(self.eval().vectors(torch.zeros(1, 3, 224, 224)).shape[1])
        self.model.train(mode)
        return dim

    def config(self) -> dict[str, Any]:
        """The configuration from which the same model can be built, without weights."""
        return config_of(self.model)

    def train(self, mode: bool = True) -> "Backbone":
        super().train(mode and self.trained)
        for module in self.model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
        return self

    def vectors(self, pixels: Float[Tensor, "image channel height width"]) -> Float[Tensor, "image dim"]:
        """One vector per image: the pooler output, or the mean over the grid cells if there is no pooler."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.trained):
            output = self.model(pixel_values=pixels)
            pooled = getattr(output, "pooler_output", None)
            return pooled.flatten(1) if pooled is not None else _grid_cells(output.last_hidden_state).mean(dim=1)

    def cells(self, pixels: Float[Tensor, "image channel height width"]) -> Float[Tensor, "image region dim"]:
        """Grid cells of a CNN's feature map, or patches of a transformer, as regions."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.trained):
            return _grid_cells(self.model(pixel_values=pixels).last_hidden_state)


def check_image_input(image_dim: int | None, backbone: str | dict[str, Any] | None) -> None:
    """Raise unless exactly one is given: the dimension of precomputed features, or a backbone."""
    if (image_dim is None) == (backbone is None):
        raise ValueError("give either image_dim (precomputed features) or backbone (pixels)")


def backbone_and_dim(
    image_dim: int | None, backbone: str | dict[str, Any] | None, *, trained: bool
) -> tuple[Backbone | None, int]:
    """Build the backbone, if any; returns it with the dimension of its features or of the precomputed ones."""
    if backbone is None:
        assert image_dim is not None
        return None, image_dim
    model = Backbone(backbone, trained=trained)
    return model, model.dim


def config_of(model: "PreTrainedModel") -> dict[str, Any]:
    """The configuration from which the same model can be built, without weights."""
    return model.config.to_diff_dict() | {"model_type": model.config.model_type}


def image_size_of(config: dict[str, Any] | str) -> int:
    """Input size in pixels of a vision model with square images."""
    model_config = _config(config)
    size = getattr(model_config, "image_size", None)
    if not isinstance(size, int):
        raise ValueError(f"the configuration of {model_config.model_type} has no image_size (a Swin has one)")
    return size


def max_positions(config: dict[str, Any] | str) -> int:
    """Maximum caption length in tokens, of a text model or of the text tower of a dual encoder."""
    model_config = _config(config)
    return int(getattr(getattr(model_config, "text_config", model_config), "max_position_embeddings", 512))


def hugging_face_model(config: dict[str, Any] | str) -> Any:
    """A Hugging Face model: by name or path with its weights, or from a configuration with random weights."""
    with torch.device("cpu"):  # the import computes with tensors, which have no values where a model is only sized
        transformers = transformers_for("backbones")
        AutoModel = transformers.AutoModel
    if isinstance(config, dict):
        return AutoModel.from_config(_config(config), trust_remote_code=False)
    options = hub_options(config)  # says itself what is wrong
    transformers.utils.logging.disable_progress_bar()
    try:
        # Never run code that comes with a model. Always float32, whatever precision it was saved in.
        model, report = AutoModel.from_pretrained(
            config,
            config=pretrained_config(config),
            trust_remote_code=False,
            output_loading_info=True,
            **options,
        )
    except pickle.UnpicklingError as error:
        raise ValueError(f"{config}: its weights are a pickle with code, which is not run") from error
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"no backbone {config!r}, neither on this machine nor on the hub: {str(error).splitlines()[0]}"
        ) from error
    missing = sorted(report.get("missing_keys", ()))
    if any("pooler" not in key for key in missing):
        raise ValueError(f"{config}: weights are missing: {', '.join(missing)}")
    if missing:
        model.pooler = None  # a classifier's checkpoint has no pooler: do not use a randomly initialized one
    return model.float()


def _config(config: dict[str, Any] | str) -> Any:
    AutoConfig = transformers_for("backbones").AutoConfig
    if isinstance(config, dict):
        settings = dict(config)
        if "model_type" not in settings:
            raise ValueError(f"a Hugging Face configuration needs model_type, got only: {', '.join(settings)}")
        return without_code(AutoConfig.for_model(settings.pop("model_type"), **settings))
    try:
        return pretrained_config(config)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"no model {config!r}, neither on this machine nor on the hub: {error}") from error


def _grid_cells(state: Tensor) -> Float[Tensor, "image region dim"]:
    """Flatten a CNN's feature map row by row; transformer patches are returned unchanged."""
    return state.flatten(2).mT if state.ndim == 4 else state
