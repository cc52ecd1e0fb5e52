"""A finished run, loaded: its model with the selected weights, its objective, and its data as the model reads it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tercet import runs
from tercet.comparison.plan import CAPTIONS_PER_IMAGE
from tercet.data.collate import Collator
from tercet.data.dataset import PairedData, Split
from tercet.data.hard_negatives import HardNegativeSampler, open_mined
from tercet.data.samplers import BatchIndices, image_batches, pair_batches
from tercet.evaluation import RankTable
from tercet.inference import Retriever, load
from tercet.interfaces import Objective, RetrievalModel
from tercet.objectives import RowObjective
from tercet.objectives.aoq import AOQ
from tercet.similarity import split_scorer
from tercet.training.eval_loop import Encoded, encode_split
from tercet.training.prepare import PreparedData, prepare_data, resolve, run_id_of
from tercet.training.settings import DERIVED_KEYS, TrainSettings, check_code, read_config, train_settings
from tercet.training.step import objective_for, scale_and_bias
from tercet.types import PairMask, Similarity

SEED = 0  # of the analysed batches, independent of the run's own seed


class EvaluatedBatch(NamedTuple):
    """Similarities of a training batch at the selected weights."""

    similarity: Similarity
    positives: PairMask
    ignored: PairMask | None
    """None if the run was trained without ignored pairs."""
    indices: BatchIndices
    mined: Float[Tensor, "pair 4"] | None = None
    """Similarities of the mined negatives, if the run has a mined table."""

    def bind(self, objective: RowObjective) -> Objective:
        """The objective with the mined negatives of this batch, if it takes some; `ValueError` if there are none."""
        if not isinstance(objective, AOQ):
            return objective
        if self.mined is None:
            raise _needs_mined(objective)
        return objective.bind(self.mined)


@dataclass(frozen=True)
class LoadedRun:
    folder: Path
    settings: TrainSettings
    objective: RowObjective
    """The training objective on unscaled similarities: a learned scale becomes its temperature."""
    retriever: Retriever
    prepared: PreparedData

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def model(self) -> RetrievalModel:
        return self.retriever.model

    @property
    def held_out(self) -> PairedData:
        """The split it was evaluated on: test, or validation if there is no test split."""
        return self.prepared.held_out

    @cached_property
    def ranks(self) -> RankTable:
        """The rank of every positive of the held-out split, as the run stored them."""
        return RankTable(runs.read_ranks(self.folder))

    @cached_property
    def encoded_train(self) -> tuple[Encoded, Encoded]:
        """Images and captions, in evaluation mode: no dropout."""
        return encode_split(self.model, self.prepared.train)

    @cached_property
    def encoded_held_out(self) -> tuple[Encoded, Encoded]:
        return encode_split(self.model, self.held_out)

    def split(self, data: PairedData) -> Split:
        """The split of the dataset, with image files and names, for one of the run's own prepared splits."""
        assert data.split is not None
        return replace(data.split, image_files=data.split.images())

    def batches(self, objective: RowObjective, batch_size: int = 128) -> Iterator[EvaluatedBatch]:
        """Each training caption once, in shuffled batches (for smooth-ap: each image, with several captions)."""
        yield from map(self.evaluate_batch, self.index_batches(objective, batch_size))

    def index_batches(self, objective: RowObjective, batch_size: int = 128) -> list[BatchIndices]:
        """Indices of all training batches, including the last, smaller one."""
        captions_per_image, data = CAPTIONS_PER_IMAGE.get(objective.name), self.prepared.train
        options: dict[str, Any] = {"seed": SEED, "epoch": 0, "keep_short": True, "more_pairs": data.more_pairs}
        if objective.name == self.objective.name and self.settings.captions_per_image is not None:
            captions_per_image = self.settings.captions_per_image
        if captions_per_image is not None:
            return image_batches(data.owners, batch_size, captions_per_image, **options)
        return pair_batches(data.owners, batch_size, **options)

    def evaluate_batch(self, indices: BatchIndices) -> EvaluatedBatch:
        """Similarities and masks of a batch. All captions of an image are its positives, unless trained otherwise."""
        images, captions = self.encoded_train
        similarity = self.similarity(images[indices.images][:], captions[indices.captions][:])
        positives = self._positives(indices)
        ignored = None
        if self.settings.ignore_equal_text:
            ignored = self._collator.equal_text(indices) & ~positives
        return EvaluatedBatch(similarity, positives, ignored, indices, self._mined(indices, positives))

    def check_mined(self, objective: RowObjective) -> None:
        """Raise what `EvaluatedBatch.bind` would raise, before any batch; also if the table cannot be read."""
        if self._mined_sampler is None and isinstance(objective, AOQ):
            raise _needs_mined(objective)

    @torch.inference_mode()
    def similarity(self, images: Tensor, captions: Tensor) -> Similarity:
        return self.model.similarity(images, captions).float()

    def objective_on_run(self, name: str, settings: dict[str, Any]) -> RowObjective:
        """Any objective, on the model's unscaled similarities; a learned scale is the default temperature."""
        return _on_unscaled(self.model, objective_for(self.settings.model, name, settings), settings)

    @cached_property
    def _mined_sampler(self) -> HardNegativeSampler | None:
        if self.settings.mined is None:
            return None
        table = open_mined(self.settings.mined, self.prepared.train)
        return HardNegativeSampler(table, self.prepared.train.owners, self.settings.mined_top, self.settings.mined_draw)

    @torch.inference_mode()
    def _mined(self, indices: BatchIndices, positives: PairMask) -> Float[Tensor, "pair 4"] | None:
        if self._mined_sampler is None:
            return None
        rows, columns = positives.nonzero(as_tuple=True)
        images, captions = indices.images[rows], indices.captions[columns]
        drawn = self._mined_sampler.draw(images, captions, torch.Generator().manual_seed(indices.seed))
        similarity_of = split_scorer(self.model, *self.encoded_train).of_pairs
        pairs = [
            (images, drawn.captions[:, 0]),
            (drawn.images[:, 0], captions),
            (drawn.images[:, 0], drawn.captions[:, 0]),
            (drawn.images[:, 1], drawn.captions[:, 1]),
        ]
        return torch.stack([similarity_of(*pair) for pair in pairs], dim=1).float()

    @cached_property
    def _collator(self) -> Collator:
        return Collator(self.prepared.train, ignore_equal_text=True)

    def _positives(self, indices: BatchIndices) -> PairMask:
        if self.settings.positives == "diagonal" and len(indices.images) == len(indices.captions):
            return torch.eye(len(indices.images), dtype=torch.bool)
        return self.prepared.train.positives(indices.images, indices.captions)


def open_run_folder(
    folder: str | Path, *, data: str | None = None, images: Path | None = None, mined: Path | None = None
) -> LoadedRun:
    """Load a finished run.

    `data` is the new path of its data, if it was moved; data with other content is refused. `mined` is the new path of
    its mined table; for a run trained without one, it is a table to analyse with.
    """
    folder = Path(folder)
    if not (folder / runs.SETTINGS).is_file():
        raise ValueError(f"{folder}: not a run folder; expected a folder with {runs.SETTINGS}")
    if not runs.is_finished(folder):
        raise ValueError(f"{folder}: the run is not finished; resume it with `tercet train` and its settings first")
    saved = runs.read_settings(folder)
    given = read_config(folder / runs.SETTINGS)
    check_code(given, folder)
    settings = train_settings({name: value for name, value in given.items() if name not in DERIVED_KEYS})
    if data is not None:
        settings = replace(settings, data=data, images=images)
    if mined is not None and settings.mined is not None:
        settings = replace(settings, mined=str(mined))
    retriever = load(folder)
    trained_objective, _, identity = resolve(settings)
    _check_sources(folder, settings, saved, identity)
    try:
        prepared = prepare_data(settings)
    except OSError as error:
        raise ValueError(f"{settings.data}: data not found ({error}); give its new path with --data") from error
    if (runs.read_machine(folder).get("run_id") or folder.resolve().name.rpartition("_")[2]) != run_id_of(
        settings, prepared
    ):
        raise ValueError(
            f"{settings.data} is not the data that {folder.name} was trained on: the data was changed, or the run "
            "folder was renamed"
        )
    objective = _on_unscaled(retriever.model, trained_objective, settings.objective_settings)
    if mined is not None:
        settings = replace(settings, mined=str(mined))
    return LoadedRun(folder, settings, objective, retriever, prepared)


def _needs_mined(objective: RowObjective) -> ValueError:
    return ValueError(f"{objective.name} needs mined negatives: give a mined table of the training split with --mined")


def _on_unscaled(model: RetrievalModel, objective: RowObjective, settings: dict[str, Any]) -> RowObjective:
    """scale * S with temperature 1 equals S with temperature 1 / scale."""
    scale, bias = scale_and_bias(model, objective, settings)
    if scale is None:
        return objective
    learned: dict[str, Any] = {"temperature": 1 / scale.item()} | ({} if bias is None else {"bias": bias.item()})
    return objective.with_settings(**learned)


def _check_sources(folder: Path, settings: TrainSettings, saved: dict[str, Any], identity: dict[str, Any]) -> None:
    """Raise `ValueError` if a custom objective or the mined table has changed since training."""
    for source, name in (("objective_source", settings.objective), ("warmup_source", settings.warmup_objective)):
        if saved.get(source) != identity[source]:
            raise ValueError(f"{name} was edited since {folder.name} was trained with it")
    if saved.get("mined_checksum") != identity["mined_checksum"]:
        raise ValueError(f"{settings.mined} is not the mined table that {folder.name} was trained with")
