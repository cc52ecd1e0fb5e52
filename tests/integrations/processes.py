"""Runs of a host in one and in two gloo processes, and the gradient that plain PyTorch has with our objective."""

import os
import socket
import tempfile
import warnings
from pathlib import Path

import torch
import torch.multiprocessing as mp

import tercet

OBJECTIVES = ("triplet-sh", "nt-xent", "sigmoid", "cir/sig-ms")
ROWS = 8  # of the batch of all processes
IDS = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3])  # two batches; images with several captions


def in_processes(world, function, *arguments):
    """What `function(rank, world, *arguments)` returns on each rank, of new processes with torchrun's variables."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_child, (world, port, folder, function, arguments), nprocs=world, start_method="spawn")
        return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(world)]


def _child(rank, world, port, folder, function, arguments):
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world),
        LOCAL_WORLD_SIZE=str(world),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if world == 1:
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            del os.environ[name]
    torch.save(function(rank, world, *arguments), Path(folder) / f"{rank}.pt")
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def gradient_of(model):
    """The gradient of all parameters, as one vector."""
    gradients = [
        (torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in model.parameters() if p.requires_grad
    ]
    return torch.cat(gradients)


def plain_gradient(model, embed, name, accumulation, *, scale=None, bias=None, ids=IDS, **settings):
    """Mean over `accumulation` batches of the objective of `embed(rows) -> (images, captions)`."""
    objective = tercet.objective(name, **settings)
    model.zero_grad()
    for batch in torch.arange(ROWS * accumulation).split(ROWS):
        factors = {"scale": scale and scale(), "bias": bias and bias()}
        images, captions = embed(batch)
        loss = objective(images, captions, image_ids=ids[batch], caption_ids=ids[batch], **factors)
        (loss / accumulation).backward()
    return gradient_of(model)


def relative_difference(actual, expected):
    actual = torch.as_tensor(actual, dtype=torch.float64)
    return float((actual - expected.double()).abs().max() / expected.double().abs().max())
