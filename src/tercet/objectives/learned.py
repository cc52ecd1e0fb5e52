"""`Learned`: settings are trained with the model: `tercet.objective("nt-xent", learn="temperature")`."""

import copy
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from tercet.objectives.base import RowObjective, weights_of
from tercet.objectives.inputs import Rows
from tercet.objectives.streaming.autograd import without_autocast
from tercet.types import MaskOrWeights, PairMask, Similarity

LOG = "log_"


@dataclass(frozen=True, kw_only=True, repr=False)
class Learned(RowObjective):
    """The base objective, with parameters in place of the settings named by `learn` (several are joined by +).

    Their gradient, and that of S, is autograd of the value, so the base needs one. A setting that must be positive is
    learned as its logarithm. S is dense: `scale=` of a call trains a temperature also on tiles.

    A hinge never decreases when its margin grows: alone, a learned margin only shrinks.
    """

    base: RowObjective = field(kw_only=False)
    learn: str = ""
    module: nn.ParameterDict = field(default_factory=nn.ParameterDict, compare=False, kw_only=False)

    def __post_init__(self) -> None:
        base, names = self.base, self.learn.split("+")
        numbers = [key for key, value in base.settings.items() if isinstance(value, float)]
        for name in names:
            if name not in numbers:
                allowed = ", ".join(numbers) or "none"
                raise ValueError(f"{base.name}: learn must name settings that are numbers ({allowed}), got {name!r}")
        if len(set(names)) < len(names):
            raise ValueError(f"{base.name}: learn names a setting twice: {self.learn}")
        if not base.has_value:
            raise ValueError(f"{base.name} has no value: its settings have no derivative and cannot be learned")
        object.__setattr__(self, "reduction", base.reduction)
        for name in names:
            value = float(base.settings[name])
            positive = _must_be_positive(base, name)
            parameter = nn.Parameter(torch.tensor(math.log(value) if positive else value))
            self.module[f"{LOG}{name}" if positive else name] = parameter
        self._check_derivatives()

    @property
    def name(self) -> str:
        return self.base.name

    @property
    def has_value(self) -> bool:
        return True

    @property
    def takes_grades(self) -> bool:
        return self.base.takes_grades

    @property
    def states(self) -> tuple[Any, ...]:
        return (self.module,)

    @property
    def settings(self) -> dict[str, Any]:
        """Those of the base, where training starts, and `learn`."""
        return self.base.settings | {"learn": self.learn}

    @property
    def learned(self) -> dict[str, float]:
        return {name: value.item() for name, value in self._values().items()}

    def with_settings(self, **settings: Any) -> RowObjective:
        """Other settings; training starts from their values."""
        learn = settings.pop("learn", self.learn)
        base = self.base.with_settings(**settings)
        return Learned(base, learn=learn) if learn else base

    def _defaults(self) -> dict[str, Any]:
        return self.base._defaults()

    def _check_scale(self, scale: float | Tensor | None, bias: float | Tensor | None) -> None:
        self.base._check_scale(scale, bias)

    def current(self) -> RowObjective:
        """The base objective with the present values."""
        return self.base.with_settings(**self.learned)

    def on_similarity(
        self, similarity: Similarity, positives: MaskOrWeights | None = None, ignored: PairMask | None = None
    ) -> Float[Tensor, ""]:
        with without_autocast(similarity):
            return self.value(similarity, positives, ignored)

    def one_direction(
        self,
        similarity: Float[Tensor, "anchor candidate"],
        positives: MaskOrWeights | None = None,
        ignored: Bool[Tensor, "anchor candidate"] | None = None,
    ) -> Float[Tensor, ""]:
        with without_autocast(similarity):
            rows = self._rows(similarity, positives, ignored)
            return (self._differentiable().row_value(rows) * weights_of(rows, self.reduction)).sum()

    def value(
        self, similarity: Similarity, positives: MaskOrWeights | None = None, ignored: PairMask | None = None
    ) -> Float[Tensor, ""]:
        value = self._differentiable().value(similarity, positives, ignored)
        assert value is not None
        return value

    def row_value(self, rows: Rows) -> Float[Tensor, " anchor"]:
        return self._differentiable().row_value(rows)

    def row_gradient(self, rows: Rows) -> Float[Tensor, "anchor candidate"]:
        return self.current().row_gradient(rows)

    def _values(self) -> dict[str, Tensor]:
        return {
            key.removeprefix(LOG): parameter.exp() if key.startswith(LOG) else parameter
            for key, parameter in self.module.items()
        }

    def _differentiable(self) -> RowObjective:
        """The base with tensors as settings."""
        base = copy.copy(self.base)
        for name, value in self._values().items():
            object.__setattr__(base, name, value)
        return base

    def _check_derivatives(self) -> None:
        similarity = torch.linspace(-0.5, 0.5, 9).reshape(3, 3)
        parameters, value = list(self.module.values()), self.value(similarity)
        used = torch.autograd.grad(value, parameters, allow_unused=True) if value.requires_grad else None
        for number, key in enumerate(self.module):
            if used is None or used[number] is None:
                raise ValueError(f"{self.name}: its value has no derivative with respect to {key.removeprefix(LOG)}")


def _must_be_positive(base: RowObjective, name: str) -> bool:
    try:
        base.with_settings(**{name: -1.0})
    except ValueError:
        return True
    return False
