"""LoRA (Hu et al., ICLR 2022): low-rank updates of the linear layers of Hugging Face towers, through peft.

A tower's own weights are frozen; its adapters train, and so does everything outside of towers, with the projections and
the scale of CLIP and SigLIP. Checkpoints hold the adapters; saved weights are merged, so that a run's folder is that of
a model without them.
"""

from typing import Any

import torch
from torch import Tensor, nn

from tercet.interfaces import RetrievalModel, TorchModule
from tercet.models.clip import CLIP, HEADS

ALPHA_PER_RANK = 2  # lora_alpha / rank: the factor on an update
ADAPTER = "default"


def add_adapters(model: RetrievalModel, rank: int, seed: int) -> None:
    """Add adapters to the linear layers of every tower that is trained; `ValueError` if there is none."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ValueError("--lora needs peft: pip install 'tercet[hf]'") from error
    if isinstance(model, CLIP) and model.settings.trained == "heads":
        raise ValueError("--lora trains the towers, and --model-settings trained=heads freezes them: use one of them")
    trained = {name: tower for name, tower in towers(model).items() if any(p.requires_grad for p in tower.parameters())}
    if not trained:
        raise ValueError("--lora adapts Hugging Face towers that are trained, and this model has none")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for name, tower in trained.items():
            layers = adapted_layers(tower)
            if not layers:
                raise ValueError(
                    f"--lora adapts linear layers, and the {tower.config.model_type} {name} has none: give another "
                    "model, or freeze it with --model-settings train_backbone=false"
                )
            config = LoraConfig(r=rank, lora_alpha=ALPHA_PER_RANK * rank, target_modules=layers)
            inject_adapter_in_model(config, tower, ADAPTER)  # freezes the other parameters
            for parameter_name, parameter in tower.named_parameters():
                if isinstance(model, CLIP) and parameter_name.startswith(HEADS):
                    parameter.requires_grad_(True)


def towers(model: TorchModule) -> dict[str, Any]:
    """Name -> the Hugging Face models that are not part of another one."""
    from tercet.hub import transformers_for

    pretrained = transformers_for("LoRA").PreTrainedModel
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        if isinstance(module, pretrained) and not any(name.startswith(f"{outer}.") for outer in found):
            found[name] = module
    return found


def adapted_layers(tower: nn.Module) -> list[str]:
    """Names of the linear layers of a tower, without the projections that are trained as a whole."""
    return [
        name
        for name, module in tower.named_modules()
        if type(module) is nn.Linear and not name.startswith(HEADS)  # attention of torch reads its weights itself
    ]


def merged_state(model: TorchModule) -> dict[str, Tensor]:
    """The weights of the model without adapters that computes the same; `state_dict` if it has none."""
    adapted = _adapted(model)
    state = {
        name.replace(".base_layer.", "."): tensor
        for name, tensor in model.state_dict().items()
        if not (".lora_" in name and adapted)
    }
    with torch.no_grad():
        for name, layer in adapted.items():
            state[f"{name}.weight"] = state[f"{name}.weight"] + layer.get_delta_weight(ADAPTER)
    return state


def remove_adapters(model: TorchModule) -> None:
    """Put the original layers back, with the weights that they had."""
    modules = dict(model.named_modules())
    for name, layer in _adapted(model).items():
        parent, _, child = name.rpartition(".")
        setattr(modules[parent], child, layer.get_base_layer())


def _adapted(model: TorchModule) -> dict[str, Any]:
    """Name -> layer with an adapter."""
    return {name: layer for name, layer in model.named_modules() if hasattr(layer, "lora_A")}
