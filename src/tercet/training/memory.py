"""How much memory a run takes, above what its process held before."""

from pathlib import Path

import torch

_STATUS, _FORGET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Memory:
    """Begins to watch when it is made."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        self._before = _held("VmRSS") if _forget_peak() else None

    def taken(self) -> float | None:
        """The peak in MB: of the device, or of the process. None where the system does not tell."""
        if self._device.type == "cuda":
            return round(torch.cuda.max_memory_allocated(self._device) / 2**20, 1)
        return None if self._before is None else round(max(0.0, _held("VmHWM") - self._before), 1)


def _forget_peak() -> bool:
    """Linux lets a process begin its peak anew."""
    try:
        _FORGET.write_text("5")
    except OSError:
        return False
    return True


def _held(what: str) -> float:
    """In MB."""
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(what))
    return int(line.split()[1]) / 1024
