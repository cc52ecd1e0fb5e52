"""Run folders: the only place that reads and writes them.

`<date>_<data>_<model>_<objective>_s<seed>_<hash>/` holds `settings.json`, `machine.json` and `metrics.jsonl`. It
appears whole or not at all. The hash is of the settings and the data's checksum: a folder with it is that run.
"""

import hashlib
import json
import os
import platform
import shutil
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import tercet


def run_hash(settings: dict[str, Any], data_checksum: str) -> str:
    canonical = json.dumps({"settings": settings, "data": data_checksum}, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:10]


def find_run(root: Path, identity: str) -> Path | None:
    """The finished folder of that hash, if there is one."""
    return next(iter(sorted(root.glob(f"*_{identity}/"))), None)


def write_run(
    root: Path, identity: str, *, data: str, settings: dict[str, Any], metrics: dict[str, float], seconds: float
) -> Path:
    """Written beside, then moved into place in one step: a kill leaves either the whole folder or none."""
    root.mkdir(parents=True, exist_ok=True)
    now = datetime.now(timezone.utc)
    objective = settings["objective"].replace("/", "+")
    name = f"{now:%Y%m%d}_{data}_{settings['model']}_{objective}_s{settings['seed']}_{identity}"
    unfinished = Path(tempfile.mkdtemp(prefix=".unfinished_", dir=root))
    try:
        _write_json(unfinished / "settings.json", settings)
        _write_json(unfinished / "machine.json", {**_machine(), "finished": now.isoformat(), "seconds": seconds})
        (unfinished / "metrics.jsonl").write_text(json.dumps(metrics) + "\n")
        os.replace(unfinished, root / name)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return root / name


def read_metrics(run: Path) -> dict[str, float]:
    """The last line of `metrics.jsonl`."""
    metrics: dict[str, float] = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    return metrics


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")


def _machine() -> dict[str, str]:
    import torch

    return {"tercet": tercet.__version__, "torch": torch.__version__, "python": platform.python_version()}
