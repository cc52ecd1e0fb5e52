"""Hugging Face: the package in a version that works; names on the hub, with an error within seconds if there is no
connection. Code from the hub is never run.
"""

import json
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
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
DUAL_ENCODERS = ("clip", "siglip")


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


def is_pretrained(name: str) -> bool:
    """Whether this is a folder of a Hugging Face model, or could be the name of one on the hub (org/model)."""
    path = Path(name)
    if path.exists():
        return "model_type" in _local_config(path)
    organization = name.partition("/")[0]
    return HUB_NAME.fullmatch(name) is not None and path.suffix != ".py" and not Path(organization).exists()


def is_siglip(name: str) -> bool:
    """Whether a model that `is_pretrained` was trained with a sigmoid loss: by its configuration, or by its name."""
    return "siglip" in str(_local_config(Path(name)).get("model_type", Path(name).name)).lower()


def _local_config(folder: Path) -> dict[str, Any]:
    """The configuration in the folder of a Hugging Face model; empty if it is none. A model of Tercet has a system."""
    try:
        content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) and "system" not in content else {}


def hub_options(name: str) -> dict[str, Any]:
    """Options of `from_pretrained` for a folder or a name on the hub.

    Without a connection, a name is looked up in the local cache alone; `ValueError` if it is not there either.
    """
    from huggingface_hub import try_to_load_from_cache

    if Path(name).exists():
        return {}
    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return {} if is_reachable() else {"local_files_only": True}
    if any(os.environ.get(key) for key in OFFLINE):
        why = f"{' and '.join(key for key in OFFLINE if os.environ.get(key))} forbids asking the hub"
    elif is_reachable():
        return {}
    else:
        why = "the hub cannot be reached"
    raise ValueError(
        f"{name!r} is neither a folder here nor in the local cache of Hugging Face models, and {why}: give the path of "
        "a downloaded model"
    )


def cached_dual_encoders() -> list[str]:
    """CLIP and SigLIP models in the local cache of the hub, the smallest first."""
    try:
        from huggingface_hub import scan_cache_dir
        from huggingface_hub.errors import CacheNotFound

        cached = sorted(scan_cache_dir().repos, key=lambda repo: repo.size_on_disk)
    except (ImportError, CacheNotFound, ValueError, OSError):
        return []
    names = []
    for repo in cached:
        snapshots = [revision.snapshot_path for revision in repo.revisions]
        kinds = [str(_local_config(Path(folder)).get("model_type", "")) for folder in snapshots]
        if repo.repo_type == "model" and any(kind in DUAL_ENCODERS for kind in kinds):
            names.append(repo.repo_id)
    return names


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
    if any(os.environ.get(key) for key in OFFLINE):
        return False
    if any(os.environ.get(key) for key in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    try:
        with socket.create_connection((address.hostname or "", address.port or 443), timeout=CONNECTION_TIMEOUT):
            return True
    except OSError:
        return False
