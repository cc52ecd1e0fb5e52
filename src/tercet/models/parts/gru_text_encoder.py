"""GRU text encoder of VSE++, VSRN, SCAN, BFAN and VSE-infinity: token ids -> states."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tercet.models.cpu_kernels.gru_prefix_tree import tree_last, tree_states
from tercet.models.cpu_kernels.gru_train import PackedLayout, gru_states
from tercet.models.parts.masking import checked_lengths


class WordGRU(nn.Module):
    """Word embedding (initialized uniformly in +-0.1, padding row included) and GRU; two directions are averaged."""

    def __init__(
        self, vocab_size: int, word_dim: int, dim: int, layers: int = 1, *, bidirectional: bool = False
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, word_dim)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.gru = nn.GRU(word_dim, dim, layers, batch_first=True, bidirectional=bidirectional)

    def states(
        self, token_ids: Int[Tensor, "caption word"], lengths: Int[Tensor, " caption"] | None = None
    ) -> Float[Tensor, "caption longest dim"]:
        """States at every word; zeros where padded. Captions need not be sorted by length."""
        lengths = checked_lengths(lengths, token_ids, "captions")
        if self._use_cpu_kernels():
            if not torch.is_grad_enabled():
                return tree_states(self.gru, self.embedding.weight, token_ids, lengths)
            layout = PackedLayout(lengths)
            return layout.padded(gru_states(self.gru, self.embedding, token_ids, layout))
        packed, _ = self.gru(self._packed(token_ids, lengths))
        states, _ = pad_packed_sequence(packed, batch_first=True)
        if not self.gru.bidirectional:
            return states
        return (states[..., : self.gru.hidden_size] + states[..., self.gru.hidden_size :]) / 2

    def last(
        self, token_ids: Int[Tensor, "caption word"], lengths: Int[Tensor, " caption"] | None = None
    ) -> Float[Tensor, "caption dim"]:
        """State at each caption's last word, the end token."""
        lengths = checked_lengths(lengths, token_ids, "captions")
        if self._use_cpu_kernels() and not self.gru.bidirectional:
            if not torch.is_grad_enabled():
                return tree_last(self.gru, self.embedding.weight, token_ids, lengths)
            layout = PackedLayout(lengths)
            return gru_states(self.gru, self.embedding, token_ids, layout)[layout.last()]
        _, hidden = self.gru(self._packed(token_ids, lengths))
        return hidden[-1]

    def _use_cpu_kernels(self) -> bool:
        """True on a CPU with one layer, no autocast and no compilation; elsewhere torch's fused GRU is faster."""
        return not (
            torch.is_autocast_enabled("cpu")
            or torch.compiler.is_compiling()
            or self.embedding.weight.device.type != "cpu"
            or self.gru.num_layers > 1
        )

    def _packed(self, token_ids: Tensor, lengths: Tensor) -> nn.utils.rnn.PackedSequence:
        words = self.embedding(token_ids)
        return pack_padded_sequence(words, lengths.cpu(), batch_first=True, enforce_sorted=False)
