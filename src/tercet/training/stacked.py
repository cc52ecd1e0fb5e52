"""Stacked training: runs whose heads have equal shapes are trained together, in one process.

The runs of a comparison differ in objective, learning rate and seed. A stack makes the steps of all of its runs at
once: one product per modality projects the items of all runs, S is (run image caption), and runs with the same seed
share their batches. Everything else is a run's own, as if it were trained alone: `Loop` with its optimizer, schedule,
validation, checkpoints and log. So runs may have different numbers of steps, resume from different steps, and end or
fail one by one; on a CPU, a run's weights do not depend on which other runs are in its stack.
"""

import time
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import torch
from jaxtyping import Float
from torch import Tensor

from tercet import runs
from tercet.console import RunProgress
from tercet.data.feature_array import FeatureArray
from tercet.data.samplers import BatchIndices
from tercet.interrupt import Interrupt
from tercet.models import system_of
from tercet.models.heads import Heads, StackedEncoding, StackedHeads, aligned, product
from tercet.names import is_in_memory, split_settings
from tercet.objectives.registry import objective as make_objective
from tercet.objectives.stacks import StackedPairs
from tercet.plugins import is_file_name
from tercet.training.monitor import PeakMemory
from tercet.training.prepare import PreparedData, prepare_data
from tercet.training.runtime import to_device
from tercet.training.settings import TrainSettings
from tercet.training.step import HALF_PRECISION, Outcome
from tercet.training.train import (
    Loop,
    ResolvedRun,
    StepBatches,
    StepWork,
    TrainState,
    finished_run,
    open_loop,
    resolve_run,
)
from tercet.training.trained import Trained
from tercet.types import Batch

EQUAL_IN_A_STACK = ("model", "model_settings", "precision", "device")
DECIDE_THE_BATCHES = ("seed", "batch_size", "captions_per_image", "epoch_steps", "positives", "ignore_equal_text")
NOT_IN_A_STACK = (
    *("mined", "grades", "queue_size", "grad_cache", "grad_accum_steps", "compile", "frozen", "lora"),
    *("caption_weight", "itm_weight"),
)
"""Settings with which a run is trained alone, unless they have their defaults."""

CLIP_EPSILON = 1e-6  # of torch.nn.utils.clip_grad_norm_

Ended = Callable[[int, Trained | Exception], None]
"""Gets the number of a run and its result, or why it failed."""


def stack_key(settings: TrainSettings, prepared: PreparedData) -> Hashable | None:
    """Runs on the same data with equal keys can be trained in one stack; None: this run is trained alone."""
    objectives = [split_settings(name) for name in (settings.objective, settings.warmup_objective) if name is not None]
    names, own_settings = [name for name, _ in objectives], [own for _, own in objectives]
    defaults = TrainSettings.__dataclass_fields__
    if (
        system_of(prepared.system) is not Heads
        or not all(_has_vectors(source) for source in (prepared.train.images, prepared.train.captions))
        or any(is_file_name(name) or is_in_memory(name) or make_objective(name).states for name in names)
        or any("learn" in each for each in (settings.objective_settings, *own_settings))
        or any(getattr(settings, name) != defaults[name].default for name in NOT_IN_A_STACK)
        or settings.precision in HALF_PRECISION
    ):
        return None
    return tuple(repr(getattr(settings, name)) for name in EQUAL_IN_A_STACK)


def _has_vectors(source: object) -> bool:
    return isinstance(source, FeatureArray) and len(source.shape) == 2


def train_stack(
    settings: Sequence[TrainSettings], prepared: PreparedData | None, progress: Sequence[RunProgress], ended: Ended
) -> None:
    """Train runs of one `stack_key`; `progress` is that of each run. A run that fails does not stop the others."""
    runs.make_root(settings[0].runs)
    prepared = prepare_data(settings[0]) if prepared is None else prepared
    resolved = [resolve_run(each, prepared) for each in settings]
    # Settings that differ in how they are written may name the same run: it is made once.
    numbers: dict[str, list[int]] = {}
    for number, run in enumerate(resolved):
        numbers.setdefault(run.run_id, []).append(number)

    def all_ended(number: int, result: Trained | Exception) -> None:
        for equal in numbers[resolved[number].run_id]:
            ended(equal, result)

    _Stack(resolved, [equal[0] for equal in numbers.values()], progress, all_ended).train()


@dataclass
class _Member:
    """A run in a stack."""

    number: int
    steps: "Steps"
    loop: Loop
    work: StepWork
    """Of the step that is to be made."""
    position: int = 0
    """In the stacked parameters."""
    spent: float = 0.0
    """Seconds of the step under way that count as the run's."""

    @property
    def batch(self) -> Batch:
        return self.work.batches[0][0]

    @property
    def shape(self) -> tuple[object, ...]:
        """What is equal of batches that are stacked."""
        return self.batch.images.shape, self.batch.captions.shape, self.batch.ignored is None


Steps = Generator[tuple[Loop, StepWork], None, None]
"""A whole run, which stops where a step is to be made."""


class _Stack:
    """`numbers`: which of the runs are to be made."""

    def __init__(
        self,
        resolved: Sequence[ResolvedRun],
        numbers: Sequence[int],
        progress: Sequence[RunProgress],
        ended: Ended,
    ) -> None:
        self._resolved, self._numbers, self._progress, self._ended = resolved, numbers, progress, ended
        self._memory = PeakMemory(resolved[0].device, len(resolved))
        self._batches: dict[Hashable, _SharedBatches] = {}
        self._interrupt = Interrupt()
        self._stopped: KeyboardInterrupt | None = None

    def train(self) -> None:
        """Train all runs to their end. Raises KeyboardInterrupt when all have stopped at a checkpoint."""
        with torch.random.fork_rng(devices=[]), self._interrupt:
            members = self._open_runs()
            models = [member.loop.model for member in members]
            heads = StackedHeads([model for model in models if isinstance(model, Heads)]) if models else None
            while members and heads is not None:
                members = [member for part in _parts(members) for member in self._step(part, heads)]
        if self._stopped is not None:
            raise self._stopped

    def _open_runs(self) -> list[_Member]:
        """The runs that have a step to make, restored."""
        # Locks are taken in one order everywhere: two processes with some of the same runs cannot block each other.
        members = []
        for number in sorted(self._numbers, key=lambda number: self._resolved[number].run_id):
            steps = self._run(number)
            first = self._proceed(number, steps)
            if first is not None:
                first[0].clock()
                members.append(_Member(number, steps, *first))
        members.sort(key=lambda member: member.number)
        for position, member in enumerate(members):
            member.position = position
        return members

    def _run(self, number: int) -> Steps:
        run = self._resolved[number]
        trained = run.finished()
        if trained is None:
            folder = run.open_folder()
            with open_loop(run, folder, self._progress[number], self._memory) as loop:
                if loop is not None:
                    loop.interrupt = self._interrupt
                    order = tuple(getattr(run.settings, name) for name in DECIDE_THE_BATCHES)
                    batches = self._batches.setdefault(order, _SharedBatches(loop))
                    for work in loop.steps(partial(batches.epoch, loop.state)):
                        yield loop, work
                    loop.evaluate_best()
            trained = finished_run(folder)
        self._ended(number, trained)

    def _proceed(self, number: int, steps: Steps, failed: Exception | None = None) -> tuple[Loop, StepWork] | None:
        """Continue a run up to its next step, or end it if this one has failed; None if it has ended."""
        try:
            return next(steps) if failed is None else steps.throw(failed)
        except StopIteration:
            pass
        except KeyboardInterrupt as stopped:
            self._stopped = stopped
        except Exception as error:
            self._ended(number, error)
        return None

    def _step(self, part: Sequence[_Member], heads: StackedHeads) -> list[_Member]:
        """Make a step of these runs; return those that have another one to make."""
        images, captions, scalars = _gradients(part, heads)
        remaining = []
        for index, member in enumerate(part):
            member.loop.start_clock(member.spent)
            outcome = Outcome(scalars[index], images.embeddings[index], captions.embeddings[index])
            failed = None
            try:
                images.write_gradients(index)
                captions.write_gradients(index)
                norm = _clip(member.loop)
                member.loop.state.stacked_steps += 1
                member.loop.update(member.work, outcome, norm, time.perf_counter() - member.spent)
            except Exception as error:
                failed = error
            member.loop.stopping = self._interrupt.requested
            following = self._proceed(member.number, member.steps, failed)
            member.loop.clock()
            if following is not None:
                member.work = following[1]
                remaining.append(member)
        return remaining


def _parts(members: Sequence[_Member]) -> list[list[_Member]]:
    """Runs that are next to each other in the stack and have batches of the same shape."""
    parts: list[list[_Member]] = []
    for member in members:
        last = parts[-1][-1] if parts else None
        if last is not None and last.position + 1 == member.position and last.shape == member.shape:
            parts[-1].append(member)
        else:
            parts.append([member])
    return parts


@torch.no_grad()
def _gradients(part: Sequence[_Member], heads: StackedHeads) -> tuple[StackedEncoding, StackedEncoding, list[float]]:
    """The encoded batches, ready to write the gradients of the weights, and the scalars of the objectives."""
    began = time.perf_counter()
    positions = slice(part[0].position, part[-1].position + 1)
    images = heads.images.encode(_stacked([member.batch.images for member in part]), positions)
    captions = heads.captions.encode(_stacked([member.batch.captions for member in part]), positions)
    similarity = product(images.embeddings, captions.embeddings.mT)
    scalars, gradient, of_objectives = _pair_gradients(part, similarity)
    gradient = aligned(gradient)
    images.backward(product(gradient, captions.embeddings))
    captions.backward(product(gradient.mT, images.embeddings))
    shared = (time.perf_counter() - began - of_objectives) / len(part)
    for member in part:
        member.spent += shared
    return images, captions, scalars


def _pair_gradients(
    part: Sequence[_Member], similarity: Float[Tensor, "run image caption"]
) -> tuple[list[float], Float[Tensor, "run image caption"], float]:
    """The scalars, the pair gradients, and the seconds of all objectives; runs with equal objectives are one call."""
    positives = {id(member.batch): member.batch.positives() for member in part}
    scalars, gradient, seconds = list[float](), torch.empty_like(similarity), 0.0
    for objective, equal in groupby(part, lambda member: member.work.objective):
        began, group = time.perf_counter(), list(equal)
        of_group = slice(len(scalars), len(scalars) + len(group))
        pairs = StackedPairs.of([positives[id(member.batch)] for member in group])
        ignored = [member.batch.ignored for member in group if member.batch.ignored is not None]
        values, of_objective = objective.on_stack(
            similarity[of_group], pairs, torch.stack(ignored) if ignored else None
        )
        factors = [member.work.ramp * member.loop.settings.objective_weight for member in group]
        gradient[of_group] = of_objective
        if factors != [1.0] * len(group):
            gradient[of_group] *= gradient.new_tensor(factors)[:, None, None]
        scalars += values.tolist()
        for member in group:
            member.spent = (time.perf_counter() - began) / len(group)
        seconds += time.perf_counter() - began
    return scalars, gradient, seconds


@torch.no_grad()
def _clip(loop: Loop) -> float:
    """`clip_grad_norm_`, without a pass over the gradients if their norm is small enough."""
    gradients = [parameter.grad for parameter in loop.parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients).item()
    if norm > loop.max_norm:
        for gradient in gradients:
            gradient *= loop.max_norm / (norm + CLIP_EPSILON)
    return norm


def _stacked(items: Sequence[Float[Tensor, "item dim"]]) -> Float[Tensor, "run item dim"]:
    """Without a copy if all runs have the same batch."""
    if all(each is items[0] for each in items):
        return items[0].expand(len(items), -1, -1)
    return torch.stack(list(items))


class _SharedBatches:
    """The batches of runs that read the data in the same order: each is made once."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._epoch: tuple[int, list[BatchIndices]] | None = None
        self._made: tuple[BatchIndices, Batch] | None = None

    def epoch(self, state: TrainState, epoch: int) -> Iterator[StepBatches]:
        """The batches of an epoch that a run in this state has still to see."""
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = epoch, self._loop.sampler.epoch(epoch)
        for indices in self._epoch[1][state.position :]:
            yield [(self._batch(indices), indices)]

    def _batch(self, indices: BatchIndices) -> Batch:
        if self._made is None or self._made[0] is not indices:
            loop = self._loop
            self._made = indices, to_device(loop.collator.make(indices), loop.device, loop.settings.precision)
        return self._made[1]
