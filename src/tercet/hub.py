"""Hugging Face: the package in a version that works; names on the hub, with an error within seconds if there is no
connection. Code from the hub is never run.
"""

import os
import re
import socket
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

CONNECTION_TIMEOUT = 3.0  # seconds; the hub's own client tries again and again for minutes
# Earlier ones name the parts of Swin otherwise, or prepare images only with torchvision.
MINIMUM_TRANSFORMERS = "5.20.2"


def transformers_for(what: str) -> ModuleType:
    """The package transformers, or `ValueError` with the command that installs it."""
    try:
        import transformers
    except ImportError as error:
        raise ValueError(f"{what} need transformers: pip install 'tercet[hf]'") from error
    if _numbers(transformers.__version__) < _numbers(MINIMUM_TRANSFORMERS):
        raise ValueError(
            f"{what} need transformers {MINIMUM_TRANSFORMERS} or newer, found {transformers.__version__}: "
            "pip install --upgrade 'tercet[hf]'"
        )
    return transformers


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)[:3]]


def hub_options(name: str) -> dict[str, Any]:
    """Options of `from_pretrained` for a folder or a name on the hub.

    Without a connection, a name is looked up in the local cache alone; `ValueError` if it is not there either.
    """
    from huggingface_hub import try_to_load_from_cache

    if Path(name).exists() or any(os.environ.get(key) for key in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")):
        return {}
    if is_reachable():
        return {}
    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return {"local_files_only": True}
    raise ValueError(
        f"{name!r} is neither a folder here nor in the local cache of Hugging Face models, and the hub cannot be "
        "reached: give the path of a downloaded model"
    )


def pretrained_config(name: str) -> Any:
    """The configuration of a model in a folder or on the hub."""
    AutoConfig = transformers_for("pretrained models").AutoConfig
    return without_code(AutoConfig.from_pretrained(name, trust_remote_code=False, **hub_options(name)))


def without_code(config: Any) -> Any:
    """The same configuration; `ValueError` if it names attention kernels on the hub, which are code.

    `trust_remote_code=False` does not cover them.
    """
    attention = getattr(config, "_attn_implementation", None)
    if isinstance(attention, str) and "/" in attention:
        raise ValueError(f"its configuration names code on the hub, which is not run: attn_implementation {attention}")
    for part in vars(config).values():
        if hasattr(part, "_attn_implementation"):  # of a tower
            without_code(part)
    return config


@cache
def is_reachable() -> bool:
    """Whether the hub accepts connections; assumed where a proxy is configured."""
    from huggingface_hub import constants

    address = urlsplit(constants.ENDPOINT)
    if any(os.environ.get(key) for key in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    try:
        with socket.create_connection((address.hostname or "", address.port or 443), timeout=CONNECTION_TIMEOUT):
            return True
    except OSError:
        return False
