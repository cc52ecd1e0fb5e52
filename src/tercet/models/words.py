"""Words -> states: the GRU text encoder that VSE++, VSRN, SCAN, BFAN and VSE-infinity share."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tercet.models.norms import check_lengths
from tercet.models.packed_gru import Packed, gru_states
from tercet.models.word_tree import tree_last, tree_states


class WordGRU(nn.Module):
    """Embedding (uniform in +-0.1, an ordinary row for padding too) and GRU; two directions are averaged."""

    def __init__(self, words: int, word_dim: int, dim: int, layers: int = 1, *, both_directions: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, word_dim)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.gru = nn.GRU(word_dim, dim, layers, batch_first=True, bidirectional=both_directions)

    def states(
        self, token_ids: Int[Tensor, "caption word"], lengths: Int[Tensor, " caption"]
    ) -> Float[Tensor, "caption longest dim"]:
        """At every real word; zeros where padded. Captions in any order."""
        check_lengths(lengths, token_ids, "captions")
        if self._is_plain():
            if not torch.is_grad_enabled():
                return tree_states(self.gru, self.embedding.weight, token_ids, lengths)
            places = Packed(lengths)
            return places.padded(gru_states(self.gru, self.embedding, token_ids, places))
        packed, _ = self.gru(self._packed(token_ids, lengths))
        states, _ = pad_packed_sequence(packed, batch_first=True)
        if not self.gru.bidirectional:
            return states
        return (states[..., : self.gru.hidden_size] + states[..., self.gru.hidden_size :]) / 2

    def last(
        self, token_ids: Int[Tensor, "caption word"], lengths: Int[Tensor, " caption"]
    ) -> Float[Tensor, "caption dim"]:
        """At each caption's last word, which is its end sign."""
        check_lengths(lengths, token_ids, "captions")
        if self._is_plain() and not self.gru.bidirectional:
            if not torch.is_grad_enabled():
                return tree_last(self.gru, self.embedding.weight, token_ids, lengths)
            places = Packed(lengths)
            return gru_states(self.gru, self.embedding, token_ids, places)[places.last()]
        _, hidden = self.gru(self._packed(token_ids, lengths))
        return hidden[-1]

    def _is_plain(self) -> bool:
        """On a processor, in its plain precision: elsewhere the fused GRU of torch is the quicker one."""
        return not (
            torch.is_autocast_enabled("cpu")
            or torch.compiler.is_compiling()
            or self.embedding.weight.device.type != "cpu"
            or self.gru.num_layers > 1
        )

    def _packed(self, token_ids: Tensor, lengths: Tensor) -> nn.utils.rnn.PackedSequence:
        words = self.embedding(token_ids)
        return pack_padded_sequence(words, lengths.cpu(), batch_first=True, enforce_sorted=False)
