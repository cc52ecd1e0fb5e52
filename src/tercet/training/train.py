"""Training: one run from settings to a finished run folder (`tercet train`, `tercet.train`), and the training loop.

`Loop.steps` is the whole of it: epochs, batches, steps, then validation, checkpoint and log in the order in which they
happen. All randomness in a step comes from the seed of that step, so an interrupted and resumed run makes exactly the
steps of an uninterrupted one.
"""

import copy
import hashlib
import math
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tercet import runs
from tercet.analysis.cocos import cocos, cocos_with_queue
from tercet.console import ConsoleProgress, RunProgress, print_skipped
from tercet.data.collate import Collator, SizeAugmentation
from tercet.data.dataset import PairedData
from tercet.data.formats.columns import Columns
from tercet.data.grades import Grades, read_grades
from tercet.data.hard_negatives import MinedTable, open_mined
from tercet.data.samplers import BatchIndices, EpochSampler
from tercet.data.transforms import Pixels
from tercet.inference import WEIGHTS, as_safetensors
from tercet.interfaces import Objective, RetrievalModel, TrainableBackbone
from tercet.interrupt import Interrupt
from tercet.models import preset
from tercet.objectives import Queue, RowObjective
from tercet.objectives.aoq import AOQ
from tercet.objectives.streaming.tiles import EmbeddedBatch
from tercet.storage import LOCK, atomic_write, changed_file, checksums_of, exclusive_lock
from tercet.training import runtime
from tercet.training.aoq_step import hard_negative_sampler
from tercet.training.automatic_splits import with_splits
from tercet.training.checkpoint import newest_state, owned, save_state, state_at
from tercet.training.eval_loop import evaluate_split, selection_value
from tercet.training.grad_cache import refuse_batch_norm
from tercet.training.lora import merged_state, remove_adapters
from tercet.training.mine_run import filters_of_table, table_of_epoch
from tercet.training.monitor import (
    HealthMonitor,
    NotFiniteError,
    PeakMemory,
    Throughput,
    batch_triplets,
    not_finite_error,
)
from tercet.training.moving_average import MovingAverage
from tercet.training.optim import freeze, make_optimizer, schedule
from tercet.training.prepare import PreparedData, hash_identity, name_objects, prepare_data, resolve
from tercet.training.report_to import Reports
from tercet.training.runtime import select_device, to_device
from tercet.training.settings import TrainSettings, train_settings
from tercet.training.step import Outcome, Step, apply_scale, facts_of, scale_and_bias, with_model_bias
from tercet.training.trained import Trained
from tercet.types import Batch


def train_with(given: Mapping[str, Any]) -> Trained:
    """`tercet.train` with the settings that the caller gave, by name."""
    return train_run(train_settings(name_objects(given)))


def train_run(
    settings: TrainSettings, prepared: PreparedData | None = None, progress: RunProgress | None = None
) -> Trained:
    """Train, resume, or return a finished run. Runs that share a dataset can pass it as `prepared`."""
    run = resolve_run(settings, prepared)
    with runtime.distributed_run(run.device.type):
        if runtime.is_main_process():
            runs.make_root(settings.runs)
        finished = run.finished()
        if finished is not None:
            return finished
        runtime.barrier()
        if runtime.is_main_process():
            run.open_folder()
        runtime.barrier()
        return _run_in_folder(run, run.open_folder(), progress or RunProgress(ConsoleProgress(transient=False)))


@dataclass(frozen=True)
class ResolvedRun:
    """A run with everything that its settings name."""

    settings: TrainSettings
    prepared: PreparedData
    objectives: tuple[RowObjective, RowObjective]
    """Of the warmup epochs, and of the rest."""
    device: torch.device
    identity: dict[str, Any]
    run_id: str
    notes: tuple[str, ...] = ()
    """What the user should know about the settings."""

    def finished(self) -> Trained | None:
        """The result, if the run was made before; `ValueError` with --no-resume."""
        folder = runs.find_run(self.settings.runs, self.run_id)
        if folder is None:
            return None
        if not self.settings.resume:
            raise ValueError(f"{folder} is finished and never overwritten: remove the folder to train it again")
        if runtime.is_main_process():
            runs.remove_leftovers(folder)
            runs.check_run(folder)  # a result whose model cannot be loaded is not reported as finished
        return finished_run(folder)

    def open_folder(self) -> Path:
        """The folder of the unfinished run, or a new one."""
        return runs.open_run(self.settings.runs, self.run_id, data=self.prepared.name, settings=self.identity)

    def make_loop(self, folder: Path, progress: RunProgress) -> "Loop":
        """The loop, with the model as it was at the newest checkpoint."""
        settings, prepared = self.settings, self.prepared
        model = prepared.model(settings)
        prepared.check_effective_for(model, settings)
        mined = None if settings.mined is None else open_mined(settings.mined, prepared.train)
        if settings.mine_every is not None and settings.mined is not None:
            filters_of_table(settings.mined)  # raises now instead of after the first epochs
        splits = prepared.train, prepared.validation, prepared.test
        loop = Loop(model, splits, self.objectives, settings, folder, progress, self.device, mined)
        for note in self.notes:
            progress.log(note)
        loop.restore()
        if runtime.is_main_process():
            prepared.retriever(model).write_description(folder)
            loop.written = checksums_of(folder, set(runs.result_files(folder)) - {WEIGHTS, runs.METRICS, runs.RANKS})
        if preset(settings.model)[1].get("backbone") is not None and "image_dim" in prepared.sizes:
            progress.log(f"the dataset has image features: they are used instead of the backbone of {settings.model}")
        return loop


def resolve_run(settings: TrainSettings, prepared: PreparedData | None = None) -> ResolvedRun:
    """Raises before any work if a setting is wrong."""
    device = select_device(settings.device)
    if prepared is None:
        resolve(settings)  # before the data is opened
        data, opened = with_splits(
            settings.data,
            settings.runs,
            images=settings.images,
            features=settings.features,
            skip_bad=settings.skip_bad,
            columns=Columns.of(settings),
        )
        if data != settings.data:  # a split file, which knows the columns
            settings = replace(settings, data=data, image_column=None, caption_column=None, split_column=None)
        prepared = prepare_data(settings, opened)
        if runtime.is_main_process():
            print_skipped(prepared.skipped)
    given, settings = settings.batch_size, prepared.fitted(settings)
    notes: tuple[str, ...] = ()
    if settings.batch_size < given:
        notes = (f"the batch is all of the training split: {settings.batch_size} items, fewer than {given}",)
    main, warmup, identity = resolve(settings)
    prepared.check_effective(settings)
    if runtime.world()[1] > 1 and prepared.train.more_pairs is not None and settings.positives == "ids":
        sides = prepared.train.sides
        raise ValueError(
            f"{prepared.name} has {sides.captions} of several {sides.images}: several processes support one each"
        )
    if settings.queue_size is not None and prepared.train.more_pairs is not None:
        sides = prepared.train.sides
        raise ValueError(
            f"--queue-size: {prepared.name} has {sides.captions} of several {sides.images}; a queue knows one each"
        )
    run_id = hash_identity(identity, prepared)
    return ResolvedRun(settings, prepared, (warmup or main, main), device, identity, run_id, notes)


def finished_run(folder: Path) -> Trained:
    return Trained(folder, runs.read_metrics(folder), runs.final_split(folder))


def _run_in_folder(run: ResolvedRun, folder: Path, progress: RunProgress) -> Trained:
    with torch.random.fork_rng(devices=[]):
        if runtime.is_main_process():
            with open_loop(run, folder, progress, PeakMemory(run.device)) as loop:
                if loop is not None:
                    loop.run()
        else:
            runtime.barrier()  # until rank 0 holds the lock and has cleared the folder under --no-resume
            if not runs.is_finished(folder):
                run.make_loop(folder, RunProgress()).run()
    runtime.barrier()
    return finished_run(folder)


@contextmanager
def open_loop(run: ResolvedRun, folder: Path, progress: RunProgress, memory: PeakMemory) -> Iterator["Loop | None"]:
    """The loop of a run in its folder, which is locked meanwhile; the run is finished when the block ends.

    None if another process has finished the run.
    """
    waiting = f"waiting for another process that is writing to {folder}"
    with progress, exclusive_lock(folder, lambda: progress.log(waiting)):
        finished = runs.is_finished(folder)
        if not finished and not run.settings.resume:
            runs.clear_run(folder, keep=LOCK)
        runtime.barrier()
        if finished:
            runs.remove_leftovers(folder)
            yield None
            return
        runs.write_settings(folder, run.identity)
        progress.begin(folder / runs.LOG)
        progress.log(f"run folder {folder}")
        try:
            loop = run.make_loop(folder, progress)
            yield loop
            loop.reports.close()
        except ValueError as error:
            if not runs.has_started(folder) and not isinstance(error, NotFiniteError):
                shutil.rmtree(folder)  # rejected before the first checkpoint: leave nothing half-written
            raise
        conditions = {"device": str(run.device), "processes": runtime.world()[1], "memory_mb": memory.peak_mb()}
        conditions["stacked_steps"] = loop.state.stacked_steps
        conditions["run_id"] = run.run_id  # the folder may be renamed
        if loop.metrics is not None:
            loop.written |= {WEIGHTS: loop.state.weights_checksum, runs.METRICS: loop.metrics.checksum}
        runs.finish_run(folder, conditions, loop.written, seconds=loop.clock())


@dataclass
class TrainState:
    """Progress of a run: everything a resume needs besides the weights and the optimizer state."""

    epoch: int = 0
    position: int = 0
    """Steps made in this epoch."""
    step: int = 0
    best: float = float("-inf")
    best_epoch: int = -1
    clipped: int = 0
    pairs: int = 0
    """Captions processed, repetitions included."""
    seconds: float = 0.0
    """Training time up to the checkpoint, summed over all resumes."""
    skipped: int = 0
    """Steps that were left out because a gradient in half precision overflowed."""
    stacked_steps: int = 0
    """Steps that were made together with those of other runs: their sums are rounded in another order."""
    metrics_length: int = 0
    metrics_checksum: str = ""
    weights_checksum: str = ""
    """Of the selected weights."""


DECODING_WORKERS = 2  # threads that prefetch batches of images, if --workers is not given
StepBatches = list[tuple[Batch, BatchIndices]]
"""The batches whose gradients one step averages."""


class StepWork(NamedTuple):
    """What one step is made of."""

    objective: RowObjective
    batches: StepBatches
    ramp: float = 1.0
    """Factor on the gradient."""


class Loop:
    """A model, its optimizer and its data, and the loop over them."""

    def __init__(
        self,
        model: RetrievalModel,
        splits: tuple[PairedData, PairedData | None, PairedData | None],
        objectives: tuple[RowObjective, RowObjective],
        settings: TrainSettings,
        folder: Path,
        progress: RunProgress,
        device: torch.device,
        mined: MinedTable | None = None,
    ) -> None:
        """`splits`: train, validation, test. `objectives`: of the warmup epochs, and of the rest."""
        self.model, self.settings = model, settings
        if any(objective.states for objective in objectives):
            objectives = copy.deepcopy(objectives)  # a user's objective has state of its own in every run
        self.objectives = objectives
        self.data, self.validation, self.test = splits
        self.folder, self.progress, self.device, self.mined = folder, progress, device, mined
        self.is_main, self.processes = runtime.is_main_process(), runtime.world()[1]
        model.to(device, torch.float64 if settings.precision == "float64" else torch.float32)
        freeze(model, settings.frozen)
        self.objective_states = unique_states(objectives)
        modules = [part for part in self.objective_states if isinstance(part, torch.nn.Module)]
        self.objective_module = torch.nn.ModuleList(modules).to(device)
        self.optimizer = make_optimizer(model, settings, self.objective_module)
        self.max_norm = math.inf if settings.grad_clip is None else settings.grad_clip
        self.parameters = [*model.parameters(), *self.objective_module.parameters()]
        self.queue = None if settings.queue_size is None else Queue(settings.queue_size)
        if self.queue is not None and not model.dot_product:
            raise ValueError("--queue-size is for dual encoders: the similarity must be a dot product")
        self.average = None if settings.queue_momentum is None else MovingAverage(model, settings.queue_momentum)
        self.step, self.health, self.state = (
            Step(model, settings, self.queue),
            HealthMonitor(progress.log),
            TrainState(),
        )
        # A recipe for pixels also runs on precomputed features, which cannot be cropped.
        crop = settings.crop if isinstance(self.data.images, Pixels) else "none"
        if settings.mined_as_candidates and not model.dot_product:
            raise ValueError("--mined-as-candidates is for dual encoders: the similarity must be a dot product")
        decodes = isinstance(self.data.images, Pixels)
        self.workers = (DECODING_WORKERS if decodes else 0) if settings.workers is None else settings.workers
        self.collator = Collator(
            self.data,
            SizeAugmentation(settings.drop_regions, settings.drop_words),
            settings.ignore_equal_text,
            crop=crop,
            diagonal=settings.positives == "diagonal",
            negative_sampler=None if mined is None else hard_negative_sampler(mined, self.data, settings, objectives),
            mined_as_candidates=settings.mined_as_candidates,
            grades=_grades(settings, self.data),
        )
        self.sampler = EpochSampler(
            self.data.owners,
            settings.batch_size,
            settings.captions_per_image,
            seed=settings.seed,
            steps=settings.epoch_steps,
            batches_per_step=settings.grad_accum_steps,
            more_pairs=self.data.more_pairs,
        )
        self.steps_per_epoch = self.sampler.steps_per_epoch
        if not self.steps_per_epoch:
            raise ValueError(
                f"{len(self.data.pairs)} pairs do not fill --grad-accum-steps {settings.grad_accum_steps} batches"
            )
        self.total = self.steps_per_epoch * settings.epochs
        self.interrupt, self.stopping = Interrupt(), False
        self.written: dict[str, str] = {}
        """Checksums of the files that this run has written."""
        self._clock_start = time.perf_counter()
        self.status: dict[str, str] = {}
        self.throughput = Throughput()
        self.scaler = torch.amp.GradScaler(device.type, enabled=settings.precision == "fp16")
        self.reports = Reports(settings.report_to if self.is_main else (), folder)

    def run(self) -> None:
        """Train from the current state, validating after each epoch, and evaluate the selected weights."""
        with self.interrupt:
            for work in self.steps(self.batches):
                self.train_step(work)
        self.evaluate_best()

    def steps(self, batches: Callable[[int], Iterator[StepBatches]]) -> Iterator[StepWork]:
        """Yield what each step needs that is still to be made; the caller makes it before it asks for the next one.

        Between the steps this validates, saves and logs. `batches(epoch)`: of the remaining steps of an epoch.
        """
        settings, state = self.settings, self.state
        self._check_data()
        for epoch in range(state.epoch, settings.epochs):
            if self._is_out_of_patience():
                break
            self._start_epoch(epoch)
            objective = self.objectives[0 if epoch < settings.warmup_objective_epochs else 1]
            for step_batches in batches(epoch):
                # In the epoch `ramp_epoch` the gradient rises from 0 to its full size.
                ramp = state.position / self.steps_per_epoch if epoch == settings.ramp_epoch else 1.0
                yield StepWork(objective, step_batches, ramp)
                # After an epoch's last step validation follows, and a checkpoint after it.
                is_due = state.step % settings.checkpoint_every == 0 and state.position < self.steps_per_epoch
                if self.stopping or is_due:
                    self.save()
                if self.stopping:
                    self.interrupt.stop()
            metrics = self._validate(epoch)
            if self.is_main and state.best_epoch == epoch:
                self._write_weights()
            state.epoch, state.position = epoch + 1, 0
            self.save()
            self._log_epoch(epoch, metrics)
            if runtime.any_process(self.interrupt.requested):
                self.interrupt.stop()

    def batches(self, epoch: int) -> Iterator[StepBatches]:
        """The batches of every step of an epoch that is still to be made, on the device."""
        accumulated = self.settings.grad_accum_steps
        index_batches = self.sampler.epoch(epoch)[self.state.position * accumulated :]
        fetched = self.collator.run(index_batches, workers=self.workers)
        for start in range(0, len(index_batches), accumulated):
            self.throughput.start_waiting()
            batches = [
                (to_device(next(fetched), self.device, self.settings.precision), indices)
                for indices in index_batches[start : start + accumulated]
            ]
            yield batches

    def train_step(self, work: StepWork) -> None:
        """One update of the weights: similarity and gradient of every batch, then the optimizer."""
        began = time.perf_counter()
        self.optimizer.zero_grad()
        outcomes, self.step.number = [], self.state.step
        scale = self.scaler.scale(torch.ones((), device=self.device)).item()  # 1 unless --precision fp16
        for batch, indices in work.batches:
            outcome = self.step(work.objective, batch, indices.seed, scale * work.ramp / len(work.batches))
            if self.queue is not None:
                outcomes.append((batch, outcome))
        self.stopping = self.interrupt.requested
        if self.processes > 1:  # all stop after the same step, though a signal reaches them at different moments
            self.stopping = runtime.average_gradients(self.model, self.stopping)
            runtime.average_gradients(self.objective_module)
        self._unscale()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.max_norm).item()
        self.update(work, outcome, norm, began)
        if self.queue is not None:
            self._remember(self.queue, outcomes)

    def _remember(self, queue: Queue, outcomes: Sequence[tuple[Batch, Outcome]]) -> None:
        """Add the items of a step to the queue, as they were encoded or as the moving average encodes them."""
        if self.average is not None:
            self.average.update(self.model)
        for batch, outcome in outcomes:
            embeddings = outcome.images, outcome.captions
            if self.average is not None:
                embeddings = self.average.encode(batch)
            queue.push(*embeddings, image_ids=batch.image_ids, caption_ids=batch.caption_ids)

    def _unscale(self) -> None:
        """Divide the gradients by the factor of the scaler, which avoids underflow in float16."""
        if self.scaler.is_enabled():
            self.scaler.unscale_(self.optimizer)

    def update(self, work: StepWork, outcome: Outcome, norm: float, began: float) -> None:
        """Update the weights by their clipped gradients, whose norm was `norm`; check, count and log the step."""
        settings, state, batch = self.settings, self.state, work.batches[-1][0]
        overflowed = self.scaler.get_scale() > 1 and not math.isfinite(norm)
        if not (math.isfinite(outcome.scalar) and (math.isfinite(norm) or overflowed)):
            raise not_finite_error(batch, outcome.images, outcome.captions, self.model)
        state.skipped += overflowed
        self.scaler.step(self.optimizer)
        self.scaler.update()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)  # left out by fp16
            self.schedule.step()
        state.clipped += norm > self.max_norm and not overflowed
        if settings.cocos_every and state.step % settings.cocos_every == 0:
            self._log_cocos(work.objective, batch, outcome, norm)
        if settings.cocos_every and state.position + 1 == self.steps_per_epoch:
            self._log_triplets(batch, outcome)
        state.position += 1
        state.step += 1
        state.pairs += sum(len(indices.captions) for _, indices in work.batches)
        self.throughput.step_done(began, sum(len(batch.caption_ids) for batch, _ in work.batches))
        self.progress.step(state.step, self.total, self.status | self.throughput.status())

    def _is_out_of_patience(self) -> bool:
        """Whether the last validations, as many as --patience, were all below the best one."""
        patience, state = self.settings.patience, self.state
        if patience is None or not runtime.any_process(self.is_main and state.epoch - 1 - state.best_epoch >= patience):
            return False
        best = f"epoch {state.best_epoch + 1} is the best"
        self.progress.log(f"stopped after {state.epoch} epochs: {patience} validations without improvement, {best}")
        return True

    def _check_data(self) -> None:
        if not self.settings.ignore_equal_text:
            self.health.check_data(self.data)
        if self.validation is None:
            self.progress.log(
                f"the dataset has no split {self.settings.validation_split!r}: the weights of the last epoch are saved"
            )

    def _start_epoch(self, epoch: int) -> None:
        every = self.settings.mine_every
        if self.mined is not None and every is not None and epoch >= every:
            tables = self.folder / runs.STATE
            table = table_of_epoch(self.model, self.data, self.mined, epoch, every, tables, self.progress.log)
            sampler = hard_negative_sampler(table, self.data, self.settings, self.objectives)
            self.collator = replace(self.collator, negative_sampler=sampler)
        if self.settings.unfreeze_epoch and isinstance(self.model, TrainableBackbone):
            self.model.set_backbone_trained(epoch >= self.settings.unfreeze_epoch)
        self.model.train()
        if self.processes > 1:
            refuse_batch_norm(self.model, "training in several processes would not be exact")

    def _validate(self, epoch: int) -> dict[str, float]:
        """Evaluate on the validation split, if there is one, and note whether these weights are the best so far."""
        state = self.state
        if self.validation is None:
            state.best_epoch = epoch
        if self.validation is None or self.metrics is None:
            return {}
        metrics = evaluate_split(self.model, self.validation).metrics
        self.health.check_validation(metrics, len(self.validation.images), epoch)
        value = selection_value(metrics, self.settings.select_metric)
        if value > state.best:
            state.best, state.best_epoch = value, epoch
        self.metrics.append({"epoch": epoch + 1, "step": state.step, "split": "validation", **metrics})
        return metrics

    def _write_weights(self) -> None:
        adapted = self.settings.lora is not None
        content = as_safetensors(merged_state(self.model) if adapted else self.model.state_dict())
        self.state.weights_checksum = hashlib.sha256(content).hexdigest()
        atomic_write(self.folder / WEIGHTS, content)

    def evaluate_best(self) -> None:
        """Evaluate the selected weights once on test, or on validation if there is no test split."""
        if self.metrics is None:
            return
        line: dict[str, Any] = {"final": True, "step": self.state.step, "clipped_steps": self.state.clipped}
        line["pairs_seen"] = self.state.pairs
        if self.settings.precision == "fp16":
            line["skipped_steps"] = self.state.skipped
        held_out = self.test if self.test is not None else self.validation
        if held_out is None:
            self.metrics.append(line)
            return
        if self.settings.lora is not None:
            remove_adapters(self.model)
        self.model.load_state_dict(_read_weights(self.folder / WEIGHTS, self.state.weights_checksum, self.device))
        evaluation = evaluate_split(self.model, held_out)
        runs.write_ranks(self.folder, evaluation.ranks.arrays())
        split = "test" if self.test is not None else "validation"
        self.metrics.append(line | {"split": split, "epoch": self.state.best_epoch + 1, **evaluation.metrics})
        self.metrics.sync()

    # Checkpoints.

    def restore(self) -> None:
        """Restore the newest valid checkpoint, if there is one.

        Rank 0 chooses, and continues only when every rank has read that checkpoint: it may write a newer one at once.
        """
        states = self.folder / runs.STATE
        checkpoint = newest_state(states, self.progress.log, self._error_in) if self.is_main else None
        step = runtime.from_main(-1 if checkpoint is None else checkpoint["state"]["step"])
        if not self.is_main and step >= 0:
            checkpoint = state_at(states, step)
        if checkpoint is not None:
            self.model.load_state_dict(checkpoint["model"])
            self.optimizer.load_state_dict(checkpoint["optimizer"])
            self.scaler.load_state_dict(checkpoint["scaler"])
            for part, saved in zip(self.objective_states, checkpoint["objective"], strict=True):
                part.load_state_dict(saved)
            if self.queue is not None:
                self.queue.load_state_dict(checkpoint["queue"])
            if self.average is not None:
                self.average.model.load_state_dict(checkpoint["average"])
            self.state = TrainState(**checkpoint["state"])
            self.progress.log(f"resuming after step {self.state.step} of {self.total}")
        self.schedule = schedule(self.optimizer, self.settings, self.steps_per_epoch, self.state.step)
        self.metrics = runs.MetricsFile(self.folder, self.state.metrics_length) if self.is_main else None
        runtime.barrier()

    def _error_in(self, checkpoint: Mapping[str, Any]) -> str | None:
        file, state = self.folder / runs.METRICS, checkpoint["state"]
        content = file.read_bytes() if file.is_file() else b""
        if len(content) < state["metrics_length"]:
            return f"{runs.METRICS} is shorter than at that checkpoint"
        if hashlib.sha256(content[: state["metrics_length"]]).hexdigest() != state["metrics_checksum"]:
            return f"{runs.METRICS} was changed since that checkpoint"
        return None

    def save(self) -> None:
        """Write a checkpoint (rank 0 only)."""
        if self.metrics is not None:
            self.metrics.sync()
            self.state.metrics_length, self.state.metrics_checksum = self.metrics.length, self.metrics.checksum
            self.clock()
            checkpoint = {
                "model": {name: owned(tensor) for name, tensor in self.model.state_dict().items()},
                "optimizer": self.optimizer.state_dict(),
                "objective": [part.state_dict() for part in self.objective_states],
                "scaler": self.scaler.state_dict(),
                "state": asdict(self.state),
            }
            if self.queue is not None:
                checkpoint["queue"] = self.queue.state_dict()
            if self.average is not None:
                checkpoint["average"] = self.average.model.state_dict()
            save_state(self.folder / runs.STATE, self.state.step, checkpoint)

    def start_clock(self, spent: float = 0.0) -> None:
        """Let the time run from now on, with these seconds in addition: a run in a stack does not always have it."""
        self._clock_start = time.perf_counter() - spent

    def clock(self) -> float:
        """Return the training time so far in seconds, including the time before a resume."""
        now = time.perf_counter()
        self.state.seconds, self._clock_start = self.state.seconds + now - self._clock_start, now
        return self.state.seconds

    # Logs.

    def _log_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        self.reports.update()
        if not metrics:
            return
        shown = [f"{self.data.sides.short(way)} R@1 {metrics[f'{way}_r1']:.1f}" for way in ("i2t", "t2i")]
        recalls = f"{', '.join(shown)}, rsum {metrics['rsum']:.1f}"
        best = " (best so far)" if self.state.best_epoch == epoch else ""
        self.progress.log(f"epoch {epoch + 1} of {self.settings.epochs}: validation {recalls}{best}")

    def _log_cocos(self, objective: RowObjective, batch: Batch, outcome: Outcome, norm: float) -> None:
        """Log contributing-sample counts of this process's shard of the batch."""
        similarity = self.model.similarity(outcome.images, outcome.captions)
        positives = batch.weighted_positives()
        if objective.asks:
            objective = objective.given(facts_of(batch, outcome.images, outcome.captions, self.state.step))
        monitor = objective.monitor(similarity, positives, batch.ignored).item()
        named = self.settings.objective_settings
        rescaled = apply_scale(similarity, self.model, objective, named).detach()
        counted: Objective = with_model_bias(objective, self.model, named)
        if isinstance(objective, AOQ):
            if outcome.members is None or self.processes > 1:
                return  # mined members belong to captions of all processes, this similarity only to those of one
            mined = outcome.members.similarity(self.model, outcome.images, outcome.captions, positives)
            counted = objective.bind(mined)
        if self.queue is None:
            counts = cocos(counted, rescaled, positives, ignored=batch.ignored)
        else:
            scale, bias = scale_and_bias(self.model, objective, named)
            ids = batch.image_ids, batch.caption_ids
            embedded = EmbeddedBatch(outcome.images.double(), outcome.captions.double(), ids, scale, bias)
            counts = cocos_with_queue(with_model_bias(objective, self.model, named), self.queue, embedded)
        self.status["monitor"] = f"{monitor:.3g}"
        self.health.check_step(similarity, monitor, sum(similarity.shape), objective.reduction, counts)
        if self.metrics is not None:
            line = {"step": self.state.step, "monitor": monitor, "scalar": outcome.scalar, "gradient_norm": norm}
            learned = {"learned": objective.learned} if objective.learned else {}
            self.metrics.append(line | learned | {"cocos": counts})

    def _log_triplets(self, batch: Batch, outcome: Outcome) -> None:
        """Log the triplets of an epoch's last batch, for the run's triplet diagram."""
        if self.metrics is not None:
            similarity = self.model.similarity(outcome.images, outcome.captions)
            triplets = batch_triplets(similarity, batch.positives(), batch.ignored)
            self.metrics.append({"step": self.state.step, "epoch": self.state.epoch + 1, "triplets": triplets})


def _grades(settings: TrainSettings, data: PairedData) -> Grades | None:
    if settings.grades is None:
        return None
    assert data.split is not None
    return read_grades(Path(settings.grades), data.split)


def unique_states(objectives: Sequence[RowObjective]) -> list[Any]:
    """The parts of the objectives that have state, each once."""
    parts = {id(part): part for objective in objectives for part in objective.states}
    return list(parts.values())


def _read_weights(file: Path, checksum: str, device: torch.device) -> dict[str, Any]:
    from safetensors.torch import load

    try:
        content = file.read_bytes()
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error}); --no-resume starts the run over") from error
    if hashlib.sha256(content).hexdigest() != checksum:
        raise changed_file(file, "--no-resume starts the run over")
    return {name: tensor.to(device) for name, tensor in load(content).items()}
