"""A run folder laid open: its model with the chosen weights, and its data as the model reads it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tercet import runs
from tercet.comparison.contestants import SEVERAL_CAPTIONS
from tercet.contracts import PairMask, Similarity
from tercet.data.batches import Batches
from tercet.data.dataset import Split
from tercet.data.formats import open_data
from tercet.data.meetings import Meeting, k_caption_meetings, paired_meetings
from tercet.data.members import MemberDraws
from tercet.data.mined import open_mined
from tercet.data.pairs import PairedData
from tercet.objectives import RowObjective
from tercet.retriever import Retriever, load
from tercet.similarity import compared
from tercet.training.config import read_config, train_settings
from tercet.training.learned_scale import objective_for, scale_and_bias
from tercet.training.ready import Ready, make_ready
from tercet.training.run import resolve, run_mark
from tercet.training.settings import TrainSettings
from tercet.training.validation import Encoded, encoded

SEED = 0  # of the batches that are looked at; a run's own seed decided what it trained on


class Seen(NamedTuple):
    """A training batch at the chosen weights; `ignored` where the run was trained with pairs left out."""

    similarity: Similarity
    positives: PairMask
    ignored: PairMask | None
    meeting: Meeting
    mined: Float[Tensor, "pair 4"] | None = None
    """Of offline members, where the run has a table of them."""

    def members(self, objective: RowObjective) -> Float[Tensor, "pair 4"] | None:
        """What this objective takes; whoever needs members and has none is told."""
        if objective.takes_mined and self.mined is None:
            raise _without_members(objective)
        return self.mined if objective.takes_mined else None


@dataclass(frozen=True)
class Opened:
    folder: Path
    settings: TrainSettings
    objective: RowObjective
    """That it was trained with, on plain similarities: a learned scale is in its temperature."""
    retriever: Retriever
    ready: Ready

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def model(self) -> Any:
        return self.retriever.model

    @cached_property
    def held_out(self) -> PairedData:
        """What it was evaluated on: test, or validation where there is no test."""
        data = self.ready.test if self.ready.test is not None else self.ready.validation
        if data is None:
            raise ValueError(f"the data of {self.name} has neither a test nor a validation split")
        return data

    @cached_property
    def encoded_train(self) -> tuple[Encoded, Encoded]:
        """Images and captions, in evaluation mode: no dropout."""
        return encoded(self.model, self.ready.train)

    @cached_property
    def encoded_held_out(self) -> tuple[Encoded, Encoded]:
        return encoded(self.model, self.held_out)

    def split(self, data: PairedData) -> Split:
        """With the pictures and names of the data, where `data` is one of the run's own splits."""
        settings = self.settings
        names = {
            id(self.ready.train): settings.train_split,
            id(self.ready.validation): settings.validation_split,
            id(self.ready.test): settings.test_split,
        }
        opened = open_data(settings.data, images=settings.images, features=settings.features)
        return opened.split(names[id(data)])

    def batches(self, objective: RowObjective, batch_size: int = 128) -> Iterator[Seen]:
        """Every training caption once in shuffled batches (for smooth-ap every image, with several of its captions)."""
        yield from map(self.seen, self.meetings(objective, batch_size))

    def meetings(self, objective: RowObjective, batch_size: int = 128) -> list[Meeting]:
        """Who meets in which training batch; the last short one is kept."""
        several, owners = SEVERAL_CAPTIONS.get(objective.name), self.ready.train.owners
        if objective.name == self.objective.name and self.settings.captions_each is not None:
            several = self.settings.captions_each
        if several is not None:
            return k_caption_meetings(owners, batch_size, several, seed=SEED, epoch=0, keep_short=True)
        return paired_meetings(owners, batch_size, seed=SEED, epoch=0, keep_short=True)

    def seen(self, meeting: Meeting) -> Seen:
        """An image that comes twice has its captions as positives of each other, unless it was trained otherwise."""
        images, captions = self.encoded_train
        similarity = self.similarity(images[meeting.images][:], captions[meeting.captions][:])
        positives = self._positives(meeting)
        ignored = None
        if self.settings.ignore_equal_text:
            ignored = self._equal_texts.equal_text(meeting) & ~positives
        return Seen(similarity, positives, ignored, meeting, self._mined(meeting, positives))

    def check_members(self, objective: RowObjective) -> None:
        """What `Seen.members` would say of any batch, before there is one; a table that cannot be read is told too."""
        if self._draws is None and objective.takes_mined:
            raise _without_members(objective)

    @cached_property
    def _draws(self) -> MemberDraws | None:
        if self.settings.mined is None:
            return None
        table = open_mined(self.settings.mined, self.ready.train)
        return MemberDraws(table, self.ready.train.owners, self.settings.mined_top, self.settings.mined_draw)

    @torch.inference_mode()
    def _mined(self, meeting: Meeting, positives: PairMask) -> Float[Tensor, "pair 4"] | None:
        if self._draws is None:
            return None
        image, caption = positives.nonzero(as_tuple=True)
        pairs = meeting.images[image], meeting.captions[caption]
        drawn = self._draws.draw(*pairs, torch.Generator().manual_seed(meeting.seed))
        compare = compared(self.model, *self.encoded_train).of_pairs
        columns = [
            (pairs[0], drawn.captions[:, 0]),
            (drawn.images[:, 0], pairs[1]),
            (drawn.images[:, 0], drawn.captions[:, 0]),
            (drawn.images[:, 1], drawn.captions[:, 1]),
        ]
        return torch.stack([compare(*sides) for sides in columns], dim=1).float()

    @cached_property
    def _equal_texts(self) -> Batches:
        return Batches(self.ready.train, ignore_equal_text=True)

    def _positives(self, meeting: Meeting) -> PairMask:
        if self.settings.positives == "diagonal" and len(meeting.images) == len(meeting.captions):
            return torch.eye(len(meeting.images), dtype=torch.bool)
        return meeting.images[:, None] == self.ready.train.owners[meeting.captions][None, :]

    @torch.inference_mode()
    def similarity(self, images: Tensor, captions: Tensor) -> Similarity:
        return self.model.similarity(images, captions).float()

    def looked_at(self, name: str, named: dict[str, Any]) -> RowObjective:
        """Any objective, on the model's plain similarities: a learned scale is the temperature where none is named."""
        return _on_plain(self.model, objective_for(self.settings.model, name, named), named)


def _without_members(objective: RowObjective) -> ValueError:
    return ValueError(f"{objective.name} needs mined members: name a table of the training split with --mined")


def _on_plain(model: Any, made: RowObjective, named: dict[str, Any]) -> RowObjective:
    """scale * S under a temperature of 1 is S under a temperature of 1 / scale."""
    scale, bias = scale_and_bias(model, made, named)
    if scale is None:
        return made
    learned: dict[str, Any] = {"temperature": 1 / scale.item()} | ({} if bias is None else {"bias": bias.item()})
    return replace(made, **learned)


def open_run_folder(
    folder: str | Path, *, data: str | None = None, images: Path | None = None, mined: Path | None = None
) -> Opened:
    """A finished run. `data` says where its data lies now, if it was moved; other data is refused.

    `mined` does so for its table; of a run that was trained without one, it is a table to look at.
    """
    folder = Path(folder)
    if not (folder / runs.SETTINGS).is_file():
        raise ValueError(f"{folder}: no run there; expected a folder with {runs.SETTINGS}")
    if not runs.is_finished(folder):
        raise ValueError(f"{folder}: the run is not finished; call `tercet train` again with its settings first")
    settings = train_settings(read_config(folder / runs.SETTINGS))
    if data is not None:
        settings = replace(settings, data=data, images=images)
    if mined is not None and settings.mined is not None:
        settings = replace(settings, mined=str(mined))
    retriever = load(folder)
    made, _, identity = resolve(settings)
    kept = runs.read_settings(folder)
    _check_sources(folder, settings, kept, identity)
    try:
        ready = make_ready(settings)
    except OSError as error:
        raise ValueError(f"{settings.data}: the data is not there ({error}); say where with --data") from error
    if (runs.read_machine(folder).get("mark") or folder.resolve().name.rpartition("_")[2]) != run_mark(settings, ready):
        raise ValueError(
            f"{settings.data} is not the data that {folder.name} was trained on: it has changed since, or the folder "
            "was renamed"
        )
    objective = _on_plain(retriever.model, made, settings.objective_settings)
    if mined is not None:
        settings = replace(settings, mined=str(mined))
    return Opened(folder, settings, objective, retriever, ready)


def _check_sources(folder: Path, settings: TrainSettings, kept: dict[str, Any], identity: dict[str, Any]) -> None:
    """Files besides the data that made the run are what they were."""
    for source, which in (("objective_source", settings.objective), ("first_source", settings.first_objective)):
        if kept.get(source) != identity[source]:
            raise ValueError(f"{which} was edited since {folder.name} was trained with it")
    if kept.get("mined_checksum") != identity["mined_checksum"]:
        raise ValueError(f"{settings.mined} is not the mined table that {folder.name} was trained with")
