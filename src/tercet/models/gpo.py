"""GPO, the pooling of VSE-infinity: channels sorted by value, then a weighted sum whose weights are learned."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tercet.models.norms import real_parts

TEMPERATURE = 0.1
LEAST = -10000.0  # stands for what is not there, before sorting and before the softmax


class GPO(nn.Module):
    """The weights come from a small GRU over codes of the positions: they depend on the length alone."""

    def __init__(self, code_dim: int = 32, hidden_dim: int = 32) -> None:
        super().__init__()
        self.code_dim = code_dim
        self.gru = nn.GRU(code_dim, hidden_dim, 1, batch_first=True, bidirectional=True)
        self.linear = nn.Linear(hidden_dim, 1, bias=False)

    def forward(
        self, features: Float[Tensor, "item part dim"], lengths: Int[Tensor, " item"]
    ) -> Float[Tensor, "item dim"]:
        weights = self.weights(lengths)
        features = features[:, : weights.shape[1]]
        real = real_parts(lengths, weights.shape[1])
        # Sorting along the last axis, where numbers are neighbours, is several times as quick.
        columns = features.masked_fill(~real[..., None], LEAST).mT.contiguous()
        ordered = columns.sort(dim=2, descending=True).values.masked_fill(~real[:, None], 0)
        return torch.matmul(ordered, weights[..., None]).squeeze(2)

    def weights(self, lengths: Int[Tensor, " item"]) -> Float[Tensor, "item part"]:
        """Computed once for each length that occurs."""
        different, which = lengths.unique(return_inverse=True)
        longest = int(different[-1])
        codes = position_codes(longest, self.code_dim).to(self.linear.weight)
        packed = pack_padded_sequence(
            codes.expand(len(different), -1, -1), different.cpu(), batch_first=True, enforce_sorted=False
        )
        states, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True)
        half = self.gru.hidden_size
        heights = self.linear((states[..., :half] + states[..., half:]) / 2).squeeze(-1)
        heights = heights.masked_fill(~real_parts(different, longest), LEAST)
        # Divided by a small temperature: the gradient is a difference of large numbers, hence the precision.
        return (heights.double() / TEMPERATURE).softmax(dim=1)[which].to(heights.dtype)


def position_codes(length: int, dim: int) -> Float[Tensor, "part dim"]:
    """Sines and cosines of position / 10000^(2i / dim), in turns."""
    angles = torch.arange(length)[:, None] * torch.exp(torch.arange(0, dim, 2) * -(math.log(10000.0) / dim))
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)
