"""Training: one run from settings to a finished run folder (`tercet train`, `tercet.train`), and the training loop.

All randomness in a step comes from the seed of that step, so an interrupted and resumed run makes exactly the steps of
an uninterrupted one.
"""

import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tercet import runs
from tercet.analysis.cocos import cocos
from tercet.analysis.triplet_diagram import batch_triplets
from tercet.data.augment import SizeAugmentation
from tercet.data.collate import Collator
from tercet.data.hard_negatives import (
    MinedTable,
    count_empty_lists,
    open_mined,
)
from tercet.data.paired_dataset import PairedData
from tercet.data.samplers import BatchIndices, image_batches, pair_batches
from tercet.data.transforms import Pixels
from tercet.inference import WEIGHTS, Retriever
from tercet.interfaces import RetrievalModel, TrainableBackbone
from tercet.models import preset
from tercet.objectives import RowObjective
from tercet.storage import LOCK, atomic_write, exclusive_lock
from tercet.training import process_group
from tercet.training.aoq_step import hard_negative_sampler
from tercet.training.checkpoint import newest_state, save_state
from tercet.training.eval_loop import evaluate_split, selection_value
from tercet.training.grad_cache import refuse_batch_norm
from tercet.training.mine_run import filters_of_table, remine
from tercet.training.monitor import HealthMonitor, NotFiniteError, PeakMemory, Throughput, first_not_finite
from tercet.training.optim import freeze, make_optimizer, ramp, schedule
from tercet.training.prepare import PreparedData, prepare_data
from tercet.training.progress import RunProgress, TensorBoardLog, TerminalProgress
from tercet.training.run_identity import hash_identity, resolve
from tercet.training.runtime import Interrupt, select_device, to_device
from tercet.training.settings import TrainSettings, train_settings
from tercet.training.step import Outcome, Step, apply_scale, with_model_bias
from tercet.types import Batch


@dataclass(frozen=True)
class Trained:
    """A finished run: `tercet.load(run.folder)` is its model."""

    folder: Path
    metrics: dict[str, float]
    """With the weights that were best on validation."""
    split: str
    """The split of the metrics: test, or validation if the dataset has no test split."""


def train(**given: Any) -> Trained:
    """`tercet train` as a function: takes its settings by name."""
    return train_run(train_settings(given))


def train_run(
    settings: TrainSettings, prepared: PreparedData | None = None, progress: RunProgress | None = None
) -> Trained:
    """Train, resume, or return a finished run. Runs that share a dataset can pass it as `prepared`."""
    device = select_device(settings.device)
    main, warmup, identity = resolve(settings)  # before any work, so that a wrong name fails at once
    prepared = prepare_data(settings) if prepared is None else prepared
    with process_group.distributed_run(device.type):
        if process_group.is_main_process():
            runs.make_root(settings.runs)
        run_id = hash_identity(identity, prepared)
        finished = runs.find_run(settings.runs, run_id)
        if finished is not None:
            if not settings.resume:
                raise ValueError(f"{finished} is finished and never overwritten: remove the folder to train it again")
            if process_group.is_main_process():
                runs.remove_checkpoints(finished)
            return finished_run(finished)
        process_group.barrier()
        if process_group.is_main_process():
            runs.open_run(settings.runs, run_id, data=prepared.name, settings=identity)
        process_group.barrier()
        folder = runs.open_run(settings.runs, run_id, data=prepared.name, settings=identity)
        return _run_in_folder(settings, prepared, (warmup or main, main), folder, progress, device, run_id)


def finished_run(folder: Path) -> Trained:
    return Trained(folder, runs.read_metrics(folder), runs.final_split(folder))


def _run_in_folder(
    settings: TrainSettings,
    prepared: PreparedData,
    objectives: tuple[RowObjective, RowObjective],
    folder: Path,
    progress: RunProgress | None,
    device: torch.device,
    run_id: str,
) -> Trained:
    if not process_group.is_main_process():
        process_group.barrier()  # until rank 0 holds the lock and has cleared the folder under --no-resume
        if runs.is_finished(folder):
            return finished_run(folder)
        _train_model(settings, prepared, objectives, folder, RunProgress(), device)
        process_group.barrier()
        return finished_run(folder)
    run_progress = progress or TerminalProgress(folder.name)
    waiting = f"waiting for another process that is writing to {folder}"
    with run_progress, exclusive_lock(folder, lambda: run_progress.log(waiting)):
        finished = runs.is_finished(folder)
        if not finished and not settings.resume:
            runs.clear_run(folder, keep=LOCK)
        process_group.barrier()
        if finished:
            return finished_run(folder)
        run_progress.begin(folder / runs.LOG)
        run_progress.log(f"run folder {folder}")
        memory = PeakMemory(device)
        try:
            seconds = _train_model(settings, prepared, objectives, folder, run_progress, device)
        except ValueError as error:
            if not runs.has_started(folder) and not isinstance(error, NotFiniteError):
                shutil.rmtree(folder)  # rejected before the first checkpoint: leave nothing half-written
            raise
        conditions = {"device": str(device), "processes": process_group.world()[1], "memory_mb": memory.peak_mb()}
        conditions["run_id"] = run_id  # the folder may be renamed
        runs.finish_run(folder, conditions, seconds=seconds)
        (folder / LOCK).unlink()
    process_group.barrier()
    return finished_run(folder)


def _train_model(
    settings: TrainSettings,
    prepared: PreparedData,
    objectives: tuple[RowObjective, RowObjective],
    folder: Path,
    progress: RunProgress,
    device: torch.device,
) -> float:
    """Train and evaluate; return the seconds it took, including those before a resume."""
    with torch.random.fork_rng(devices=[]):
        model = prepared.model(settings)
        retriever = prepared.retriever(model)
        mined = None if settings.mined is None else open_mined(settings.mined, prepared.train)
        if settings.mine_every is not None and settings.mined is not None:
            filters_of_table(settings.mined)  # raises now instead of after the first epochs
        loop = Loop(model, prepared.train, objectives, settings, folder, progress, device, mined)
        loop.restore()
        if process_group.is_main_process():
            retriever.write_description(folder)
        board = TensorBoardLog(folder) if settings.tensorboard and process_group.is_main_process() else None
        if preset(settings.model)[1].get("backbone") is not None and "image_dim" in prepared.sizes:
            progress.log(f"the dataset has image features: they are used instead of the backbone of {settings.model}")
        if prepared.validation is None:
            progress.log(
                f"the dataset has no split {settings.validation_split!r}: the weights of the last epoch are saved"
            )
        for epoch in loop.epochs():
            if process_group.is_main_process():
                _validate(loop, epoch, prepared, retriever, board)
            else:
                loop.epoch_done(epoch, {}, None)
            process_group.barrier()
        if process_group.is_main_process():
            _evaluate_best(loop, prepared)
        return loop.clock()


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
    metrics_length: int = 0


class Loop:
    """Epochs of steps with checkpoints. The caller validates between epochs."""

    def __init__(
        self,
        model: RetrievalModel,
        data: PairedData,
        objectives: tuple[RowObjective, RowObjective],
        settings: TrainSettings,
        folder: Path,
        progress: RunProgress,
        device: torch.device,
        mined: MinedTable | None = None,
    ) -> None:
        """`objectives`: of the warmup epochs, and of the rest."""
        self.model, self.data, self.objectives, self.settings = model, data, objectives, settings
        self.folder, self.progress, self.device, self.mined = folder, progress, device, mined
        model.to(device, torch.float64 if settings.precision == "float64" else torch.float32)
        freeze(model, settings.frozen)
        self.optimizer = make_optimizer(model, settings)
        self.base_lrs = [group["lr"] for group in self.optimizer.param_groups]
        self.step, self.health, self.state = Step(model, settings), HealthMonitor(progress.log), TrainState()
        augmentation = SizeAugmentation(settings.drop_regions, settings.drop_words)
        # A recipe for pixels also runs on precomputed features, which cannot be cropped.
        crop = settings.crop if isinstance(data.images, Pixels) else "none"
        if settings.mined_as_candidates and not model.dot_product:
            raise ValueError("--mined-as-candidates is for dual encoders: the similarity must be a dot product")
        self.collator = Collator(
            data,
            augmentation,
            settings.ignore_equal_text,
            crop=crop,
            diagonal=settings.positives == "diagonal",
            negative_sampler=None if mined is None else hard_negative_sampler(mined, data, settings, objectives),
            mined_as_candidates=settings.mined_as_candidates,
        )
        self.steps_per_epoch = settings.epoch_steps or len(self._pass(0)) // settings.grad_accum_steps
        if not self.steps_per_epoch:
            raise ValueError(
                f"{len(data.owners)} captions do not fill --grad-accum-steps {settings.grad_accum_steps} batches"
            )
        self._clock_start = time.perf_counter()
        self.lr_factor = schedule(settings, self.steps_per_epoch)
        self.status: dict[str, str] = {}
        self.throughput = Throughput()

    def restore(self) -> None:
        """Restore the newest valid checkpoint, if there is one."""
        checkpoint = newest_state(self.folder / runs.STATE, self.progress.log, self._error_in)
        if checkpoint is not None:
            self.model.load_state_dict(checkpoint["model"])
            self.optimizer.load_state_dict(checkpoint["optimizer"])
            self.state = TrainState(**checkpoint["state"])
            self.progress.log(f"resuming after step {self.state.step} of {self.total}")
        self.metrics = (
            runs.MetricsFile(self.folder, self.state.metrics_length) if process_group.is_main_process() else None
        )

    def _error_in(self, checkpoint: Mapping[str, Any]) -> str | None:
        file = self.folder / runs.METRICS
        length = file.stat().st_size if file.is_file() else 0
        if length < checkpoint["state"]["metrics_length"]:
            return f"{runs.METRICS} is shorter than at that checkpoint"
        return None

    @property
    def total(self) -> int:
        return self.steps_per_epoch * self.settings.epochs

    def epochs(self) -> Iterator[int]:
        """Train; yield after each epoch, for the caller to validate and to call `epoch_done` and `save`."""
        if not self.settings.ignore_equal_text:
            self.health.check_data(self.data)
        with Interrupt() as interrupt:
            for epoch in range(self.state.epoch, self.settings.epochs):
                self._start_epoch(epoch)
                for _ in self._steps(epoch):
                    if interrupt.requested or self._checkpoint_is_due():
                        self.save()
                    if interrupt.requested:
                        raise KeyboardInterrupt
                yield epoch
                if interrupt.requested:
                    raise KeyboardInterrupt

    def _checkpoint_is_due(self) -> bool:
        """Not after an epoch's last step: validation follows, and a checkpoint after it."""
        due = self.state.step % self.settings.checkpoint_every == 0
        return due and self.state.position < self.steps_per_epoch

    def epoch_done(self, epoch: int, metrics: Mapping[str, float], value: float | None) -> bool:
        """Record the validation metrics; return True if these weights are the best so far."""
        better = value is None or value > self.state.best
        if better:
            self.state.best, self.state.best_epoch = self.state.best if value is None else value, epoch
        if self.metrics is not None and metrics:
            self.metrics.append({"epoch": epoch + 1, "step": self.state.step, "split": "validation", **metrics})
        self.state.epoch, self.state.position = epoch + 1, 0
        return better

    def save(self) -> None:
        """Write a checkpoint (rank 0 only)."""
        if self.metrics is not None:
            self.metrics.sync()
            self.state.metrics_length = self.metrics.length
            self.clock()
            checkpoint = {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "state": asdict(self.state),
            }
            save_state(self.folder / runs.STATE, self.state.step, checkpoint)

    def clock(self) -> float:
        """Return the training time so far in seconds, including the time before a resume."""
        now = time.perf_counter()
        self.state.seconds, self._clock_start = self.state.seconds + now - self._clock_start, now
        return self.state.seconds

    def _start_epoch(self, epoch: int) -> None:
        self._refresh_mined(epoch)
        if self.settings.unfreeze_epoch and isinstance(self.model, TrainableBackbone):
            self.model.set_backbone_trained(epoch >= self.settings.unfreeze_epoch)
        self.model.train()
        if process_group.world()[1] > 1:
            refuse_batch_norm(self.model, "training in several processes would not be exact")

    def _refresh_mined(self, epoch: int) -> None:
        """Mine again every `mine_every` epochs, at the start of the epoch.

        Tables are kept in the state folder: a run resumed within an epoch opens the table of that epoch again.
        """
        every, table = self.settings.mine_every, self.mined
        if every is None or table is None or epoch < every:
            return
        current = epoch - epoch % every
        folder, previous = (self.folder / runs.STATE / f"mined_{mined_at}" for mined_at in (current, current - every))
        if process_group.is_main_process() and not folder.exists():
            self.progress.log(f"mining the training split again before epoch {epoch + 1}")
            before = table if current == every else open_mined(previous, self.data)
            remine(self.model, self.data, folder, table, f"epoch {current}", before)
            empty = count_empty_lists(folder)
            if any(empty.values()):
                self.progress.log(
                    f"filters left no candidates for {empty['images']:,} images and {empty['captions']:,} captions: "
                    "their lists of the previous table are kept"
                )
            for old in range(every, current - every, every):  # a resume may still need the previous table
                shutil.rmtree(self.folder / runs.STATE / f"mined_{old}", ignore_errors=True)
        process_group.barrier()
        sampler = hard_negative_sampler(open_mined(folder, self.data), self.data, self.settings, self.objectives)
        self.collator = replace(self.collator, negative_sampler=sampler)

    def _index_batches(self, epoch: int) -> list[BatchIndices]:
        """Return the batches of one epoch: one pass, or as many as `epoch_steps` takes."""
        if self.settings.epoch_steps is None:
            return self._pass(epoch)
        count = self.steps_per_epoch * self.settings.grad_accum_steps
        per_pass = len(self._pass(0))
        first = epoch * count // per_pass
        start = epoch * count - first * per_pass
        passes = range(first, first - (-(start + count) // per_pass))
        return [indices for number in passes for indices in self._pass(number)][start : start + count]

    def _pass(self, number: int) -> list[BatchIndices]:
        """Return the batches of one pass over the captions, or over the images with `captions_per_image`."""
        settings = self.settings
        if settings.captions_per_image is not None:
            return image_batches(
                self.data.owners, settings.batch_size, settings.captions_per_image, seed=settings.seed, epoch=number
            )
        return pair_batches(self.data.owners, settings.batch_size, seed=settings.seed, epoch=number)

    def _steps(self, epoch: int) -> Iterator[None]:
        accumulated = self.settings.grad_accum_steps
        first, end = self.state.position * accumulated, self.steps_per_epoch * accumulated
        index_batches = self._index_batches(epoch)[first:end]
        objective = self.objectives[0 if epoch < self.settings.warmup_objective_epochs else 1]
        batches = self.collator.run(index_batches, workers=self.settings.workers)
        for start in range(0, len(index_batches), accumulated):
            self.throughput.start_waiting()
            micro_batches = [
                (to_device(next(batches), self.device, self.settings), indices)
                for indices in index_batches[start : start + accumulated]
            ]
            self.throughput.start_working()
            self._one_step(
                objective, micro_batches, ramp(self.settings, epoch, self.state.position, self.steps_per_epoch)
            )
            self.state.position += 1
            self.state.step += 1
            self.state.pairs += sum(len(indices.captions) for _, indices in micro_batches)
            self.throughput.step_done(sum(len(batch.caption_ids) for batch, _ in micro_batches))
            self.progress.step(self.state.step, self.total, self.status | self.throughput.status())
            yield

    def _one_step(
        self, objective: RowObjective, micro_batches: list[tuple[Batch, BatchIndices]], factor: float
    ) -> None:
        for group, base_lr in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = base_lr * self.lr_factor(self.state.step)
        self.optimizer.zero_grad()
        for batch, indices in micro_batches:
            outcome = self.step(objective, batch, indices.seed, factor / len(micro_batches))
        process_group.average_gradients(self.model)
        limit = float("inf") if self.settings.grad_clip is None else self.settings.grad_clip
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit).item()
        self.state.clipped += norm > limit
        self.health.check_finite(
            outcome.scalar, norm, lambda: first_not_finite(_named_tensors(batch, outcome), self.model)
        )
        self.optimizer.step()
        if self.settings.cocos_every and self.state.step % self.settings.cocos_every == 0:
            self._log_cocos(objective, batch, outcome, norm)
        if self.settings.cocos_every and self.state.position + 1 == self.steps_per_epoch:
            self._log_triplets(batch, outcome)

    def _log_cocos(self, objective: RowObjective, batch: Batch, outcome: Outcome, norm: float) -> None:
        """Log contributing-sample counts of this process's shard of the batch."""
        similarity = self.model.similarity(outcome.images, outcome.captions)
        positives = batch.positives()
        monitor = objective.monitor(similarity, positives, batch.ignored).item()
        named = self.settings.objective_settings
        rescaled = apply_scale(similarity, self.model, objective, named).detach()
        mined = None
        if objective.takes_mined:
            if outcome.members is None or process_group.world()[1] > 1:
                return  # mined members belong to captions of all processes, this similarity only to those of one
            mined = outcome.members.similarity(self.model, outcome.images, outcome.captions, positives)
        counts = cocos(
            with_model_bias(objective, self.model, named), rescaled, positives, ignored=batch.ignored, mined=mined
        )
        self.status["monitor"] = f"{monitor:.3g}"
        self.health.check_step(similarity, monitor, sum(similarity.shape), objective.reduction, counts)
        if self.metrics is not None:
            line = {"step": self.state.step, "monitor": monitor, "scalar": outcome.scalar, "gradient_norm": norm}
            self.metrics.append(line | {"cocos": counts})

    def _log_triplets(self, batch: Batch, outcome: Outcome) -> None:
        """Log the triplets of an epoch's last batch, for the run's triplet diagram."""
        if self.metrics is not None:
            similarity = self.model.similarity(outcome.images, outcome.captions)
            triplets = batch_triplets(similarity, batch.positives(), batch.ignored)
            self.metrics.append({"step": self.state.step, "epoch": self.state.epoch + 1, "triplets": triplets})


def _named_tensors(batch: Batch, outcome: Outcome) -> list[tuple[str, Tensor | None]]:
    captions = batch.captions if batch.captions.is_floating_point() else None
    return [
        ("the images of the batch", batch.images),
        ("the captions of the batch", captions),
        ("the image embeddings", outcome.images),
        ("the caption embeddings", outcome.captions),
    ]


def _validate(
    loop: Loop, epoch: int, prepared: PreparedData, retriever: Retriever, board: TensorBoardLog | None
) -> None:
    """Evaluate on validation, save the weights if they are the best so far, write a checkpoint."""
    metrics: dict[str, float] = {}
    value = None
    if prepared.validation is not None:
        metrics = evaluate_split(loop.model, prepared.validation).metrics
        value = selection_value(metrics, loop.settings.select_metric)
        loop.health.check_validation(metrics, len(prepared.validation.images), epoch)
    if loop.epoch_done(epoch, metrics, value):
        atomic_write(loop.folder / WEIGHTS, retriever.weights())
    loop.save()
    if metrics:
        recalls = f"i2t R@1 {metrics['i2t_r1']:.1f}, t2i R@1 {metrics['t2i_r1']:.1f}, rsum {metrics['rsum']:.1f}"
        best = " (best so far)" if loop.state.best_epoch == epoch else ""
        loop.progress.log(f"epoch {epoch + 1} of {loop.settings.epochs}: validation {recalls}{best}")
    if board is not None:
        board.write(loop.folder)


def _evaluate_best(loop: Loop, prepared: PreparedData) -> None:
    """Evaluate the selected weights once on test, or on validation if there is no test split."""
    assert loop.metrics is not None
    held_out = prepared.test if prepared.test is not None else prepared.validation
    line: dict[str, Any] = {"final": True, "step": loop.state.step, "clipped_steps": loop.state.clipped}
    line["pairs_seen"] = loop.state.pairs
    if held_out is None:
        loop.metrics.append(line)
        return
    loop.model.load_state_dict(_best_weights(loop.folder / WEIGHTS, loop.device))
    evaluation = evaluate_split(loop.model, held_out)
    runs.write_ranks(loop.folder, evaluation.ranks.arrays())
    split = "test" if prepared.test is not None else "validation"
    loop.metrics.append(line | {"split": split, "epoch": loop.state.best_epoch + 1, **evaluation.metrics})
    loop.metrics.sync()


def _best_weights(file: Path, device: torch.device) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file, device=str(device))
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{file}: cannot be read ({error}); --no-resume starts the run over") from error
