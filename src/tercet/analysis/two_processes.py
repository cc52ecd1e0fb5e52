"""An objective on one process and on two, each holding part of the batch: for the gradient contract."""

import multiprocessing
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

SECONDS = 120
FIRST = {"images": 3, "captions": 7}  # what rank 0 holds, where images and captions are not paired by rows


def gradients_of_two_processes(
    call: Any, images: Tensor, captions: Tensor, ids: dict[str, Tensor] | None
) -> tuple[dict[str, Tensor], dict[str, Tensor]] | str:
    """Gradients of two linear encoders (averaged over both ranks, of one process), or why there are none."""
    if not dist.is_available() or not dist.is_gloo_available():
        return "not here: this torch has no gloo"
    if sys.platform == "win32" or dist.is_initialized():
        return "not here: processes cannot be forked from this one"
    expected = _gradients(call, images, captions, ids)
    # A fork takes any callable along, also one that cannot be pickled; the children use one thread and no device.
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        parts = _split(images, captions, ids)
        ranks = [
            context.Process(target=_rank, args=(rank, call, parts[rank], folder), daemon=True) for rank in range(2)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(SECONDS)
        if any(process.exitcode != 0 for process in ranks):
            for process in ranks:
                process.kill()
            return _why(Path(folder), ranks)
        found = [torch.load(Path(folder) / f"{rank}.pt") for rank in range(2)]
    return {name: (found[0][name] + found[1][name]) / 2 for name in expected}, expected


def _gradients(call: Any, images: Tensor, captions: Tensor, ids: dict[str, Tensor] | None) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    encoders = {
        name: torch.randn(images.shape[1], 4, generator=generator, dtype=torch.float64).requires_grad_()
        for name in ("images", "captions")
    }
    scalar = call(images @ encoders["images"], captions @ encoders["captions"], **(ids or {}))
    scalar.backward()
    return {"scalar": scalar.detach(), **{f"{name} encoder": _grad(encoder) for name, encoder in encoders.items()}}


def _grad(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def _split(images: Tensor, captions: Tensor, ids: dict[str, Tensor] | None) -> list[tuple[Any, Any, Any]]:
    cut_images, cut_captions = FIRST["images"], FIRST["captions"] if ids else FIRST["images"]
    image_ids, caption_ids = (ids or {}).get("image_ids"), (ids or {}).get("caption_ids")
    first: Any = None
    second: Any = None
    if image_ids is not None and caption_ids is not None:
        first = {"image_ids": image_ids[:cut_images], "caption_ids": caption_ids[:cut_captions]}
        second = {"image_ids": image_ids[cut_images:], "caption_ids": caption_ids[cut_captions:]}
    return [
        (images[:cut_images], captions[:cut_captions], first),
        (images[cut_images:], captions[cut_captions:], second),
    ]


def _rank(rank: int, call: Any, part: tuple[Any, Any, Any], folder: str) -> None:
    try:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
        torch.save(_gradients(call, *part), Path(folder) / f"{rank}.pt")
        dist.destroy_process_group()
    except BaseException as error:
        Path(folder, f"{rank}.error").write_text(f"{type(error).__name__}: {error}")
        raise SystemExit(1) from None


def _why(folder: Path, ranks: list[Any]) -> str:
    words = [f"rank {path.stem}: {path.read_text().splitlines()[0]}" for path in sorted(folder.glob("*.error"))]
    stuck = [f"rank {rank} did not finish" for rank, process in enumerate(ranks) if process.exitcode is None]
    told = "; ".join(words or stuck or ["a process died"])
    # torch with an accelerator may refuse autograd, or the device, in a forked process: that is not the objective.
    return f"not here: {told}" if "fork" in told else told
