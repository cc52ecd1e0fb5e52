"""Run folders: the only place that reads and writes them.

`<date>_<data>_<model>_<objective>_s<seed>_<hash>/` holds `settings.json`, `machine.json` and `metrics.jsonl`. It
appears whole or not at all, and is never overwritten. The hash is of the settings and the data's checksum: a folder
with it is that run.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import tercet

UNFINISHED = ".unfinished_"
STALE_SECONDS = 3600  # writing takes milliseconds: what is older was left by a kill


def make_root(root: Path) -> None:
    """Before any training: a folder that cannot be written should be known at once."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        for left in root.glob(f"{UNFINISHED}*"):
            if time.time() - left.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=root):
            pass
    except OSError as error:
        raise ValueError(f"cannot write run folders to {root}: {error.strerror}") from error


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
    now = datetime.now(timezone.utc)
    objective = re.sub(r"[^\w.+-]+", "_", settings["objective"].replace("/", "+"))
    name = f"{now:%Y%m%d}_{data}_{settings['model']}_{objective[:60]}_s{settings['seed']}_{identity}"
    unfinished = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=root))
    try:
        _write_json(unfinished / "settings.json", settings)
        _write_json(unfinished / "machine.json", {**_machine(), "finished": now.isoformat(), "seconds": seconds})
        (unfinished / "metrics.jsonl").write_text(json.dumps(metrics) + "\n", encoding="utf-8")
        unfinished.chmod(0o777 & ~_umask())
        os.replace(unfinished, root / name)
    except BaseException as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        theirs = find_run(root, identity)
        if isinstance(error, OSError) and theirs is not None:
            return theirs  # another process finished the same run first
        raise
    return root / name


def write_beside_runs(root: Path, name: str, content: str) -> None:
    """A file of the comparison, replaced in one step."""
    with tempfile.NamedTemporaryFile("w", dir=root, prefix=".", delete=False, encoding="utf-8") as unfinished:
        unfinished.write(content)
    os.chmod(unfinished.name, 0o666 & ~_umask())
    os.replace(unfinished.name, root / name)


def read_metrics(run: Path) -> dict[str, float]:
    """The last line of `metrics.jsonl`."""
    file = run / "metrics.jsonl"
    try:
        metrics: dict[str, float] = json.loads(file.read_text(encoding="utf-8").splitlines()[-1])
    except (OSError, ValueError, IndexError) as error:
        raise ValueError(f"{file} is damaged or missing: remove the folder {run.name} and call again") from error
    return metrics


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _machine() -> dict[str, str]:
    import torch

    return {"tercet": tercet.__version__, "torch": torch.__version__, "python": platform.python_version()}


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
