"""All that is random in a step comes from one seed."""

import torch


def reseed(seed: int, device: torch.device) -> None:
    """Of the processor and the device in use. `torch.manual_seed` also notes a stack trace for every kind of device
    that is not there, which takes a millisecond, and keeps it.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
