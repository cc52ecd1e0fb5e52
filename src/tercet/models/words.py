"""Words -> states: the GRU text encoder that VSE++, VSRN, SCAN, BFAN and VSE-infinity share."""

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tercet.models.norms import check_lengths


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
        packed, _ = self.gru(self._packed(token_ids, lengths))
        states, _ = pad_packed_sequence(packed, batch_first=True)
        if not self.gru.bidirectional:
            return states
        return (states[..., : self.gru.hidden_size] + states[..., self.gru.hidden_size :]) / 2

    def last(
        self, token_ids: Int[Tensor, "caption word"], lengths: Int[Tensor, " caption"]
    ) -> Float[Tensor, "caption dim"]:
        """At each caption's last word, which is its end sign."""
        _, hidden = self.gru(self._packed(token_ids, lengths))
        return hidden[-1]

    def _packed(self, token_ids: Tensor, lengths: Tensor) -> nn.utils.rnn.PackedSequence:
        check_lengths(lengths, token_ids, "captions")
        words = self.embedding(token_ids)
        return pack_padded_sequence(words, lengths.cpu(), batch_first=True, enforce_sorted=False)
