"""The loop: epochs of steps, validation, checkpoints. Where it is lies in `Place`, all else follows from the settings.

All that is random in a step comes from the seed of that step, so a run that was stopped and goes on makes the very
steps that one that was never stopped makes.
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
from tercet.analysis.diagram import batch_triplets
from tercet.contracts import Batch
from tercet.data.batches import Batches
from tercet.data.dropout import SizeAugmentation
from tercet.data.meetings import Meeting, k_caption_meetings, paired_meetings
from tercet.data.mined import MinedTable, open_mined, read_empty
from tercet.data.pairs import PairedData
from tercet.data.pixels import Pixels
from tercet.objectives.base import RowObjective
from tercet.training import distributed
from tercet.training.checkpoint import newest_state, save_state
from tercet.training.grad_cache import refuse_batch_norm
from tercet.training.interrupt import Interrupt
from tercet.training.learned_scale import fitted, scaled
from tercet.training.mined import member_draws
from tercet.training.mining import mine_now
from tercet.training.optimizers import freeze, make_optimizer
from tercet.training.placed import placed
from tercet.training.report import Report
from tercet.training.schedule import ramp, schedule
from tercet.training.settings import TrainSettings
from tercet.training.speed import Speed
from tercet.training.step import Outcome, Step
from tercet.training.watch import Watch, first_not_finite


@dataclass
class Place:
    """Where a run is: everything besides weights and the optimizer's memory that a resume needs."""

    epoch: int = 0
    position: int = 0
    """Steps made in this epoch."""
    step: int = 0
    best: float = float("-inf")
    best_epoch: int = -1
    clipped: int = 0
    pairs: int = 0
    """Captions that were seen, each as often as it was."""
    seconds: float = 0.0
    """Of all the times it was at work, up to the checkpoint."""
    metrics_length: int = 0


class Loop:
    def __init__(
        self,
        model: Any,
        data: PairedData,
        objectives: tuple[RowObjective, RowObjective],
        settings: TrainSettings,
        folder: Path,
        report: Report,
        device: torch.device,
        mined: MinedTable | None = None,
    ) -> None:
        """`objectives`: of the first epochs, and of the rest."""
        self.model, self.data, self.objectives, self.settings = model, data, objectives, settings
        self.folder, self.report, self.device, self.mined = folder, report, device, mined
        model.to(device, torch.float64 if settings.precision == "float64" else torch.float32)
        freeze(model, settings.frozen)
        if settings.caption_weight and getattr(model, "captioner", None) is None:
            raise ValueError("--caption-weight needs a VSRN with --model-settings captioner=true")
        if settings.match_weight and not hasattr(model, "encode_and_match"):
            raise ValueError("--match-weight needs an X-VLM")
        self.optimizer = make_optimizer(model, settings)
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.step, self.watch, self.place = Step(model, settings), Watch(report.say), Place()
        augmentation = SizeAugmentation(settings.drop_regions, settings.drop_words)
        # A recipe of pixels also runs on features that were made before: then there is nothing to crop.
        crop = settings.crop if isinstance(data.images, Pixels) else "none"
        if settings.mined_as_candidates and not model.dot_product:
            raise ValueError("--mined-as-candidates is for dual encoders: their similarity is a dot product")
        self.batches = Batches(
            data,
            augmentation,
            settings.ignore_equal_text,
            crop=crop,
            diagonal=settings.positives == "diagonal",
            members=None if mined is None else member_draws(mined, data, settings, objectives),
            as_candidates=settings.mined_as_candidates,
        )
        self.steps_an_epoch = settings.epoch_steps or len(self._pass(0)) // settings.accumulate
        if not self.steps_an_epoch:
            raise ValueError(f"{len(data.owners)} captions do not fill --accumulate {settings.accumulate} batches")
        self._since = time.perf_counter()
        self.factor = schedule(settings, self.steps_an_epoch)
        self.news: dict[str, str] = {}
        self.speed = Speed()

    def restore(self) -> None:
        """To the newest good checkpoint, if there is one."""
        state = newest_state(self.folder / runs.STATE, self.report.say, self._fault)
        if state is not None:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.place = Place(**state["place"])
            self.report.say(f"goes on after step {self.place.step} of {self.total}")
        self.metrics = runs.MetricsFile(self.folder, self.place.metrics_length) if distributed.leads() else None

    def _fault(self, state: Mapping[str, Any]) -> str | None:
        file = self.folder / runs.METRICS
        there = file.stat().st_size if file.is_file() else 0
        return f"{runs.METRICS} is shorter than it was then" if there < state["place"]["metrics_length"] else None

    @property
    def total(self) -> int:
        return self.steps_an_epoch * self.settings.epochs

    def epochs(self) -> Iterator[int]:
        """Trains; yields after each epoch, for the caller to validate, say `epoch_done` and `save`."""
        if not self.settings.ignore_equal_text:
            self.watch.data(self.data)
        with Interrupt() as interrupt:
            for epoch in range(self.place.epoch, self.settings.epochs):
                self._begin(epoch)
                for _ in self._steps(epoch):
                    if interrupt.asked or self._checkpoint_is_due():
                        self.save()
                    if interrupt.asked:
                        raise KeyboardInterrupt
                yield epoch
                if interrupt.asked:
                    raise KeyboardInterrupt

    def _checkpoint_is_due(self) -> bool:
        """Not after an epoch's last step: validation follows, and a checkpoint after it."""
        due = self.place.step % self.settings.checkpoint_every == 0
        return due and self.place.position < self.steps_an_epoch

    def epoch_done(self, epoch: int, metrics: Mapping[str, float], value: float | None) -> bool:
        """Writes down what validation gave; True where these weights are the best so far."""
        better = value is None or value > self.place.best
        if better:
            self.place.best, self.place.best_epoch = self.place.best if value is None else value, epoch
        if self.metrics is not None and metrics:
            self.metrics.append({"epoch": epoch + 1, "step": self.place.step, "split": "validation", **metrics})
        self.place.epoch, self.place.position = epoch + 1, 0
        return better

    def save(self) -> None:
        if self.metrics is not None:
            self.metrics.sync()
            self.place.metrics_length = self.metrics.length
            self.clock()
            state = {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "place": asdict(self.place),
            }
            save_state(self.folder / runs.STATE, self.place.step, state)

    def clock(self) -> float:
        """Seconds at work so far, those before a resume included."""
        now = time.perf_counter()
        self.place.seconds, self._since = self.place.seconds + now - self._since, now
        return self.place.seconds

    def _begin(self, epoch: int) -> None:
        self._mine_again(epoch)
        backbone = getattr(self.model, "backbone", None)
        if backbone is not None and self.settings.thaw_epoch:
            backbone.set_trained(epoch >= self.settings.thaw_epoch)
        self.model.train()
        if distributed.world()[1] > 1:
            refuse_batch_norm(self.model, "several processes would not be exact")

    def _mine_again(self, epoch: int) -> None:
        """With the weights that the last epoch ended with: a run that goes on in the middle finds the same table."""
        every, table = self.settings.mine_every, self.mined
        if every is None or table is None or epoch < every:
            return
        since = epoch - epoch % every
        folder, earlier = (self.folder / runs.STATE / f"mined_{number}" for number in (since, since - every))
        if distributed.leads() and not folder.exists():
            self.report.say(f"mines the training set again before epoch {epoch + 1}")
            before = table if since == every else open_mined(earlier, self.data)
            mine_now(self.model, self.data, folder, table, f"epoch {since}", before)
            empty = read_empty(folder)
            if any(empty.values()):
                self.report.say(
                    f"guards left nothing for {empty['images']:,} images and {empty['captions']:,} captions: "
                    "they keep their lists of the table before"
                )
            for old in range(every, since - every, every):  # the one before may still be gone back to
                shutil.rmtree(self.folder / runs.STATE / f"mined_{old}", ignore_errors=True)
        distributed.wait_for_all()
        draws = member_draws(open_mined(folder, self.data), self.data, self.settings, self.objectives)
        self.batches = replace(self.batches, members=draws)

    def _meetings(self, epoch: int) -> list[Meeting]:
        """Of one epoch: of one pass, or of as many as its steps take."""
        if self.settings.epoch_steps is None:
            return self._pass(epoch)
        wanted = self.steps_an_epoch * self.settings.accumulate
        a_pass = len(self._pass(0))
        first = epoch * wanted // a_pass
        start = epoch * wanted - first * a_pass
        passes = range(first, first - (-(start + wanted) // a_pass))
        return [meeting for number in passes for meeting in self._pass(number)][start : start + wanted]

    def _pass(self, number: int) -> list[Meeting]:
        """Once over the captions, or over the images."""
        chosen = self.settings
        if chosen.captions_each is not None:
            return k_caption_meetings(
                self.data.owners, chosen.batch_size, chosen.captions_each, seed=chosen.seed, epoch=number
            )
        return paired_meetings(self.data.owners, chosen.batch_size, seed=chosen.seed, epoch=number)

    def _steps(self, epoch: int) -> Iterator[None]:
        several = self.settings.accumulate
        meetings = self._meetings(epoch)[self.place.position * several : self.steps_an_epoch * several]
        objective = self.objectives[0 if epoch < self.settings.first_epochs else 1]
        batches = self.batches.run(meetings, workers=self.settings.workers)
        for start in range(0, len(meetings), several):
            self.speed.waiting()
            together = [
                (placed(next(batches), self.device, self.settings), meeting)
                for meeting in meetings[start : start + several]
            ]
            self.speed.working()
            self._one_step(objective, together, ramp(self.settings, epoch, self.place.position, self.steps_an_epoch))
            self.place.position += 1
            self.place.step += 1
            self.place.pairs += sum(len(meeting.captions) for _, meeting in together)
            self.speed.done(sum(len(batch.caption_ids) for batch, _ in together))
            self.report.step(self.place.step, self.total, self.news | self.speed.news())
            yield

    def _one_step(self, objective: RowObjective, together: list[tuple[Batch, Meeting]], factor: float) -> None:
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * self.factor(self.place.step)
        self.optimizer.zero_grad()
        for batch, meeting in together:
            outcome = self.step(objective, batch, meeting.seed, factor / len(together))
        distributed.average_gradients(self.model)
        limit = float("inf") if self.settings.clip is None else self.settings.clip
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit).item()
        self.place.clipped += norm > limit
        self.watch.finite(outcome.scalar, norm, lambda: first_not_finite(_tensors(batch, outcome), self.model))
        self.optimizer.step()
        if self.settings.cocos_every and self.place.step % self.settings.cocos_every == 0:
            self._count(objective, batch, outcome, norm)
        if self.settings.cocos_every and self.place.position + 1 == self.steps_an_epoch:
            self._keep_triplets(batch, outcome)

    def _count(self, objective: RowObjective, batch: Batch, outcome: Outcome, norm: float) -> None:
        """Of this process's share of the batch."""
        similarity = self.model.similarity(outcome.images, outcome.captions)
        positives = batch.positives()
        monitor = objective.monitor(similarity, positives, batch.ignored).item()
        named = self.settings.objective_settings
        seen = scaled(similarity, self.model, objective, named).detach()
        mined = None
        if objective.takes_mined:
            if outcome.members is None or distributed.world()[1] > 1:
                return  # members are of all processes' captions, and these are one's own
            mined = outcome.members.similarity(self.model, outcome.images, outcome.captions, positives)
        counts = cocos(fitted(objective, self.model, named), seen, positives, ignored=batch.ignored, mined=mined)
        self.news["monitor"] = f"{monitor:.3g}"
        self.watch.step(similarity, monitor, sum(similarity.shape), objective.reduction, counts)
        if self.metrics is not None:
            line = {"step": self.place.step, "monitor": monitor, "scalar": outcome.scalar, "gradient_norm": norm}
            self.metrics.append(line | {"cocos": counts})

    def _keep_triplets(self, batch: Batch, outcome: Outcome) -> None:
        """Of an epoch's last batch, for the run's diagram."""
        if self.metrics is not None:
            similarity = self.model.similarity(outcome.images, outcome.captions)
            triplets = batch_triplets(similarity, batch.positives(), batch.ignored)
            self.metrics.append({"step": self.place.step, "epoch": self.place.epoch + 1, "triplets": triplets})


def _tensors(batch: Batch, outcome: Outcome) -> list[tuple[str, Tensor | None]]:
    captions = batch.captions if batch.captions.is_floating_point() else None
    return [
        ("the images of the batch", batch.images),
        ("the captions of the batch", captions),
        ("embedded images", outcome.images),
        ("embedded captions", outcome.captions),
    ]
