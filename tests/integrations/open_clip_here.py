"""open_clip where torchvision has no build for this torch: its two operators, never called, are only declared."""

from importlib.util import find_spec

import torch

_kept = []


def available():
    """Whether open_clip is installed; declares what its import needs."""
    if find_spec("open_clip") is None:
        return False
    if not _kept and not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)  # operators live as long as their library
    return True
