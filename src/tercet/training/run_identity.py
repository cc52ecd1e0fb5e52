"""What defines a run: its objectives and resolved settings, and the hash that names its folder."""

import hashlib
from pathlib import Path
from typing import Any

from tercet import runs
from tercet.data.hard_negatives import filters_of, is_shortlisted, table_checksum
from tercet.inference import WEIGHTS, checksum_of_weights
from tercet.models import preset, system_of
from tercet.objectives import RowObjective, objective
from tercet.plugins import is_file_name, source_checksum
from tercet.training.aoq_step import check_mined_settings
from tercet.training.eval_loop import check_select_metric
from tercet.training.prepare import PreparedData
from tercet.training.settings import CODE_SETTINGS, TrainSettings, identity_of
from tercet.training.step import objective_for, takes_scale

NOT_HASHED = ("data", "images", "mined")  # paths; the run hash contains the checksums of their content


def resolve(settings: TrainSettings) -> tuple[RowObjective, RowObjective | None, dict[str, Any]]:
    """Return the objective, the warmup objective, and everything that defines the run, ready for JSON."""
    check_select_metric(settings.select_metric)
    if settings.model.endswith("-finetuned") and settings.init_from is None:
        raise ValueError(f"{settings.model} is a second stage: --init-from must name the run of the first stage")
    main = objective_for(settings.model, settings.objective, settings.objective_settings)
    warmup = _warmup_objective(settings)
    check_mined_settings(main, warmup, settings)
    custom = is_file_name(settings.objective)
    warmup_name = settings.warmup_objective
    identity = identity_of(settings) | {
        "objective": settings.objective if custom else main.name,
        "objective_settings": main.settings,
        "objective_source": source_checksum(settings.objective) if custom else None,
        "warmup_source": (
            source_checksum(warmup_name) if warmup_name is not None and is_file_name(warmup_name) else None
        ),
        "learned_scale": takes_scale(settings.model, main.settings, settings.objective_settings),
        "pretrained": _pretrained_checksums(settings),
        "mined_checksum": None if settings.mined is None else table_checksum(Path(settings.mined)),
        "init_checksum": None if settings.init_from is None else _init_checksum(Path(settings.init_from)),
    }
    if is_file_name(settings.model):
        identity["model_source"] = source_checksum(settings.model)
    if settings.mined is not None and settings.mine_every is not None:
        identity["mined_again"] = _mining_identity(Path(settings.mined))
    return main, warmup, identity


def run_id_of(settings: TrainSettings, prepared: PreparedData) -> str:
    """Return the hash of settings and data that names the run."""
    return hash_identity(resolve(settings)[2], prepared)


def hash_identity(identity: dict[str, Any], prepared: PreparedData) -> str:
    """The same, of an identity that is resolved already."""
    hashed = {name: value for name, value in identity.items() if name not in NOT_HASHED}
    for name in CODE_SETTINGS:  # the checksum of a file is part of the hash, its place is not
        if isinstance(hashed.get(name), str) and is_file_name(hashed[name]):
            hashed[name] = Path(hashed[name]).name
    return runs.run_hash(hashed, prepared.checksum)


def _warmup_objective(settings: TrainSettings) -> RowObjective | None:
    """With those objective settings that the warmup objective has too: one margin for both."""
    if settings.warmup_objective is None:
        return None
    known = objective(settings.warmup_objective).settings
    shared = {name: value for name, value in settings.objective_settings.items() if name in known}
    return objective_for(settings.model, settings.warmup_objective, shared)


def _mining_identity(table: Path) -> dict[str, Any]:
    """What later tables depend on besides the lists of the first: its filters, and whether it had a shortlist."""
    filters = {name: value for name, value in filters_of(table).items() if name != "pairs"}
    return filters | {"shortlist": is_shortlisted(table)}


def _pretrained_checksums(settings: TrainSettings) -> dict[str, str]:
    """Checksums of pretrained weights in local folders; a model name on the hub identifies itself."""
    system, model_settings = preset(settings.model)
    model_settings = model_settings | settings.model_settings
    checksums = {}
    spec = system_of(system).spec
    for part in sorted({spec.vision or "", spec.text or ""}):
        folder = model_settings.get(part)
        if isinstance(folder, str) and Path(folder).is_dir():
            files = sorted(f for kind in ("*.safetensors", "*.bin", "config.json") for f in Path(folder).glob(kind))
            digest = hashlib.sha256()
            for file in files:
                digest.update(hashlib.sha256(file.read_bytes()).digest())
            checksums[part] = digest.hexdigest()[:16]
    return checksums


def _init_checksum(folder: Path) -> str:
    if not (folder / WEIGHTS).is_file():
        raise ValueError(f"--init-from: {folder / WEIGHTS}: no such file")
    return checksum_of_weights(folder)
