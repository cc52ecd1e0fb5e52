"""VSRN's caption decoder: regions -> the caption, word by word. Used while training only."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from tercet.models.norms import full_lengths, real_parts

DROPOUT = 0.2
END, PAD = 2, 0


class Captioner(nn.Module):
    """A GRU over the regions, then a GRU over the words with additive attention to the first one's states."""

    def __init__(self, region_dim: int, words: int, dim: int = 512, word_dim: int = 300, longest: int = 60) -> None:
        super().__init__()
        self.longest = longest
        self.region_head = nn.Linear(region_dim, dim)
        nn.init.xavier_normal_(self.region_head.weight)
        self.reader = nn.GRU(dim, dim, batch_first=True)
        self.embedding = nn.Embedding(words, word_dim)
        self.attention_hidden = nn.Linear(2 * dim, dim)
        self.attention_out = nn.Linear(dim, 1, bias=False)
        self.writer = nn.GRU(dim + word_dim, dim, batch_first=True)
        self.out = nn.Linear(dim, words)
        nn.init.xavier_normal_(self.out.weight)

    def loss(
        self,
        regions: Float[Tensor, "image region dim"],
        token_ids: Int[Tensor, "image word"],
        lengths: Int[Tensor, " image"],
        region_lengths: Int[Tensor, " image"] | None = None,
    ) -> Float[Tensor, ""]:
        """Negative log-likelihood of the captions, summed over words, mean over the batch.

        Row i of both is a pair. As published, one place past the end sign counts too.
        """
        labels, counted = self.labels(token_ids, lengths)
        predicted = self.log_probabilities(regions, labels, region_lengths)
        steps = predicted.shape[1]
        found = predicted.gather(2, labels[:, 1 : steps + 1, None]).squeeze(2)
        return -(found * counted[:, 1 : steps + 1]).sum() / len(regions)

    def labels(
        self, token_ids: Int[Tensor, "image word"], lengths: Int[Tensor, " image"]
    ) -> tuple[Int[Tensor, "image place"], Float[Tensor, "image place"]]:
        """Captions in `longest` + 1 places, cut with an end sign where they are too long, and which places count."""
        places = self.longest + 1
        labels = F.pad(token_ids, (0, max(0, places - token_ids.shape[1])), value=PAD)[:, :places]
        position = torch.arange(places, device=token_ids.device)
        labels = labels.masked_fill(position >= lengths[:, None], PAD)
        cut = lengths > self.longest - 1
        labels = torch.where(cut[:, None] & (position == self.longest - 1), END, labels)
        labels = torch.where(cut[:, None] & (position >= self.longest), PAD, labels)
        written = torch.where(cut, self.longest, lengths)
        return labels, (position <= written[:, None]).float()

    def log_probabilities(
        self,
        regions: Float[Tensor, "image region dim"],
        labels: Int[Tensor, "image place"],
        region_lengths: Int[Tensor, " image"] | None = None,
    ) -> Float[Tensor, "image step word"]:
        """Each step is told the right word before it."""
        region_lengths = full_lengths(regions) if region_lengths is None else region_lengths
        padded = ~real_parts(region_lengths, regions.shape[1])
        states, _ = self._read(regions)
        hidden = states[torch.arange(len(states), device=states.device), region_lengths - 1][None]
        projected = self._keys(states)
        steps = []
        for step in range(self.longest - 1):
            context = self._attend(hidden, states, projected, padded)
            words = self.embedding(labels[:, step])
            given = F.dropout(torch.cat([words, context], dim=1), DROPOUT, self.training)
            output, hidden = self.writer(given[:, None], hidden)
            steps.append(output.squeeze(1))
        return self.out(torch.stack(steps, dim=1)).log_softmax(dim=2)

    def _read(self, regions: Tensor) -> tuple[Float[Tensor, "image region dim"], Float[Tensor, "1 image dim"]]:
        return self.reader(F.dropout(self.region_head(regions), DROPOUT, self.training))

    def _keys(self, states: Tensor) -> Tensor:
        """The part of the attention that does not change from word to word."""
        return F.linear(states, self.attention_hidden.weight[:, : states.shape[2]], self.attention_hidden.bias)

    def _attend(self, hidden: Tensor, states: Tensor, keys: Tensor, padded: Tensor) -> Float[Tensor, "image dim"]:
        query = F.linear(hidden[0], self.attention_hidden.weight[:, states.shape[2] :])
        heights = self.attention_out(torch.tanh(keys + query[:, None])).squeeze(2).masked_fill(padded, -torch.inf)
        return torch.einsum("ir,ird->id", heights.softmax(dim=1), states)
