"""`Composed`: a weighted sum of objectives, `a + 0.1 * b`, or `nt-xent + 0.1*cir/sig-ms` as text."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tercet.objectives.aoq import AOQ
from tercet.objectives.base import RowObjective
from tercet.objectives.inputs import BatchFacts, Rows
from tercet.objectives.streaming.autograd import EmbeddingGradient
from tercet.objectives.streaming.tiles import TiledSimilarity
from tercet.types import MaskOrWeights, PairGradient, PairMask, Similarity

Summand = TypeVar("Summand", Tensor, Float[Tensor, "*any"])


@dataclass(frozen=True, kw_only=True, repr=False)
class Composed(RowObjective):
    """The scalar is the sum of weight x scalar of each term, and so is the gradient; each term has its own reduction.

    It has a value if every term has one. Otherwise the scalar is that of the first term without a value, its monitor,
    and the monitor has that term's reduction. Settings are those of the terms: it has none of its own.
    """

    terms: tuple[tuple[float, RowObjective], ...] = field(kw_only=False)

    def __post_init__(self) -> None:
        for weight, term in self.terms:
            if not isinstance(weight, (int, float)) or isinstance(weight, bool) or not 0 < weight < float("inf"):
                raise ValueError(f"the weight of {term.name} in a sum must be a positive number, got {weight!r}")
            if isinstance(term, AOQ):
                raise ValueError(f"{term.name} cannot be a term of a sum: it needs mined negatives")
        object.__setattr__(self, "reduction", self.terms[self._shown][1].reduction)

    @classmethod
    def terms_of(cls, objective: RowObjective) -> tuple[tuple[float, RowObjective], ...]:
        return objective.terms if isinstance(objective, Composed) else ((1.0, objective),)

    def __mul__(self, weight: int | float) -> "Composed":
        return Composed(tuple((weight * of_term, term) for of_term, term in self.terms))

    __rmul__ = __mul__

    @property
    def name(self) -> str:
        return self.text(_with_settings)

    def text(self, of_term: Callable[[RowObjective], str]) -> str:
        """The sum as text, which `tercet.objective` reads."""
        return " + ".join(
            of_term(term) if weight == 1 else f"{json.dumps(weight)}*{of_term(term)}" for weight, term in self.terms
        )

    @property
    def has_value(self) -> bool:
        return all(term.has_value for _, term in self.terms)

    @property
    def can_stream(self) -> bool:
        return all(term.can_stream for _, term in self.terms)

    @property
    def takes_grades(self) -> bool:
        return all(term.takes_grades for _, term in self.terms)

    @property
    def asks(self) -> frozenset[str]:
        return frozenset().union(*(term.asks for _, term in self.terms))

    def given(self, facts: BatchFacts) -> RowObjective:
        return replace(self, terms=tuple((weight, term.given(facts)) for weight, term in self.terms))

    @property
    def states(self) -> tuple[Any, ...]:
        return tuple(part for _, term in self.terms for part in term.states)

    @property
    def learned(self) -> dict[str, float]:
        return {f"{term.name}:{name}": value for _, term in self.terms for name, value in term.learned.items()}

    @property
    def settings(self) -> dict[str, Any]:
        return {}

    def with_settings(self, **settings: Any) -> RowObjective:
        if settings:
            raise ValueError(
                f"{self.name} has no setting {next(iter(settings))!r}: write settings behind the terms, as in "
                "nt-xent:temperature=0.05 + 0.1*triplet:margin=0.3"
            )
        return self

    def __repr__(self) -> str:
        return " + ".join(repr(term) if weight == 1 else f"{weight} * {term!r}" for weight, term in self.terms)

    def _check_scale(self, scale: float | Tensor | None, bias: float | Tensor | None) -> None:
        for _, term in self.terms:
            term._check_scale(scale, bias)

    def on_similarity(
        self, similarity: Similarity, positives: MaskOrWeights | None = None, ignored: PairMask | None = None
    ) -> Float[Tensor, ""]:
        return self._shown_scalar([term.on_similarity(similarity, positives, ignored) for _, term in self.terms])

    def one_direction(
        self,
        similarity: Float[Tensor, "anchor candidate"],
        positives: MaskOrWeights | None = None,
        ignored: Bool[Tensor, "anchor candidate"] | None = None,
    ) -> Float[Tensor, ""]:
        return self._shown_scalar([term.one_direction(similarity, positives, ignored) for _, term in self.terms])

    def value(
        self, similarity: Similarity, positives: MaskOrWeights | None = None, ignored: PairMask | None = None
    ) -> Float[Tensor, ""] | None:
        if not self.has_value:
            return None
        values = [term.value(similarity, positives, ignored) for _, term in self.terms]
        return self._sum([value for value in values if value is not None])

    def row_gradient(self, rows: Rows) -> Float[Tensor, "anchor candidate"]:
        """With the reduction of every term."""
        return self._directions(rows)[0]

    def stream(self, tiles: TiledSimilarity, into: EmbeddingGradient | None) -> Float[Tensor, ""]:
        scalars = []
        for weight, term in self.terms:
            own = tiles.restarted()
            gradient = None if into is None else EmbeddingGradient(own)
            scalars.append(term.stream(own, gradient))
            if into is not None and gradient is not None:
                into.add_products(gradient, weight)
        return self._sum(scalars) if self.has_value else scalars[self._shown]

    def _directions(self, rows: Rows) -> tuple[PairGradient, PairGradient]:
        i2t, t2i = zip(*(term._directions(rows) for _, term in self.terms), strict=True)
        return self._sum(i2t), self._sum(t2i)

    def _both_directions(self, rows: Rows) -> tuple[Float[Tensor, ""], PairGradient]:
        scalars, gradients = zip(*(term._both_directions(rows) for _, term in self.terms), strict=True)
        return self._sum(scalars) if self.has_value else scalars[self._shown], self._sum(gradients)

    @property
    def _shown(self) -> int:
        """The term whose scalar is shown if the sum has no value."""
        return next((number for number, (_, term) in enumerate(self.terms) if not term.has_value), 0)

    def _shown_scalar(self, scalars: Sequence[Float[Tensor, ""]]) -> Float[Tensor, ""]:
        """A scalar whose backward is that of the sum."""
        total = self._sum(scalars)
        return total if self.has_value else total - total.detach() + scalars[self._shown].detach()

    def _sum(self, parts: Sequence[Summand]) -> Summand:
        return torch.stack([weight * part for (weight, _), part in zip(self.terms, parts, strict=True)]).sum(dim=0)


def _with_settings(term: RowObjective) -> str:
    settings = term.changed_settings.items()
    values = ",".join(f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in settings)
    return f"{term.name}:{values}" if values else term.name
