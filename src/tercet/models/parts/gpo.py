"""GPO, the pooling of VSE-infinity: each channel sorted by value, then a weighted sum with learned weights."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tercet.models.parts.masking import length_mask

TEMPERATURE = 0.1
MASK_VALUE = -10000.0  # replaces padding before the sort and before the softmax, as published


class GPO(nn.Module):
    """Generalized pooling operator. The weights, from a small GRU over position codes, depend only on the length."""

    def __init__(self, code_dim: int = 32, hidden_dim: int = 32) -> None:
        super().__init__()
        self.code_dim = code_dim
        self.gru = nn.GRU(code_dim, hidden_dim, 1, batch_first=True, bidirectional=True)
        self.linear = nn.Linear(hidden_dim, 1, bias=False)

    def forward(
        self, features: Float[Tensor, "item element dim"], lengths: Int[Tensor, " item"]
    ) -> Float[Tensor, "item dim"]:
        weights = self.weights(lengths)
        features = features[:, : weights.shape[1]]
        real = length_mask(lengths, weights.shape[1])
        # Sorting along the last (contiguous) axis is several times faster.
        columns = features.masked_fill(~real[..., None], MASK_VALUE).mT.contiguous()
        ordered = columns.sort(dim=2, descending=True).values.masked_fill(~real[:, None], 0)
        return torch.matmul(ordered, weights[..., None]).squeeze(2)

    def weights(self, lengths: Int[Tensor, " item"]) -> Float[Tensor, "item element"]:
        """Pooling weights, computed once per distinct length."""
        distinct, index = lengths.unique(return_inverse=True)
        longest = int(distinct[-1])
        codes = position_codes(longest, self.code_dim).to(self.linear.weight)
        packed = pack_padded_sequence(
            codes.expand(len(distinct), -1, -1), distinct.cpu(), batch_first=True, enforce_sorted=False
        )
        states, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True)
        half = self.gru.hidden_size
        logits = self.linear((states[..., :half] + states[..., half:]) / 2).squeeze(-1)
        logits = logits.masked_fill(~length_mask(distinct, longest), MASK_VALUE)
        # float64: with the small temperature the gradient is a difference of large numbers.
        return (logits.double() / TEMPERATURE).softmax(dim=1)[index].to(logits.dtype)


def position_codes(length: int, dim: int) -> Float[Tensor, "element dim"]:
    """Sinusoidal position codes: sine and cosine of position / 10000^(2i / dim), interleaved."""
    angles = torch.arange(length)[:, None] * torch.exp(torch.arange(0, dim, 2) * -(math.log(10000.0) / dim))
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)
