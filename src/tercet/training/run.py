"""One run from settings to a finished folder: `tercet train` and `tercet.train`."""

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tercet import runs
from tercet.data.mined import guards_of, is_shortlisted, open_mined, table_checksum
from tercet.data.whole import LOCK, alone
from tercet.models import SYSTEMS, preset
from tercet.objectives import RowObjective, objective
from tercet.objectives.from_file import is_file_name, source_checksum
from tercet.retriever import WEIGHTS
from tercet.training import distributed
from tercet.training.board import Board
from tercet.training.config import train_settings
from tercet.training.evaluating import checksum_of_weights
from tercet.training.learned_scale import objective_for, takes_scale
from tercet.training.loop import Loop
from tercet.training.memory import Memory
from tercet.training.mined import check_wanted
from tercet.training.mining import guards_again
from tercet.training.ready import Ready, make_ready
from tercet.training.report import Report, TerminalReport
from tercet.training.settings import TrainSettings, identity_of
from tercet.training.validation import check_selection, evaluated, selected
from tercet.training.watch import NotFiniteError

NOT_HASHED = ("data", "images", "mined")  # checksums say more than the places they lie in


@dataclass(frozen=True)
class Trained:
    """A finished run: `tercet.load(run.folder)` is its model."""

    folder: Path
    metrics: dict[str, float]
    """With the weights that were best on validation."""
    split: str
    """What the metrics are of: test, or validation where the data has no test."""


def finished_run(folder: Path) -> Trained:
    return Trained(folder, runs.read_metrics(folder), runs.final_split(folder))


def train(**given: Any) -> Trained:
    """`tercet train` as a function: takes its settings by name."""
    return train_run(train_settings(given))


def train_run(settings: TrainSettings, ready: Ready | None = None, report: Report | None = None) -> Trained:
    """With data that is ready already, where several runs share it."""
    device = chosen_device(settings.device)
    main, first, identity = resolve(settings)  # before any work: a wrong name costs nothing
    ready = make_ready(settings) if ready is None else ready
    with distributed.together(device.type):
        if distributed.leads():
            runs.make_root(settings.runs)
        mark = _mark(identity, ready)
        finished = runs.find_run(settings.runs, mark)
        if finished is not None:
            if not settings.resume:
                raise ValueError(f"{finished} is finished, and never overwritten: remove it to run it again")
            if distributed.leads():
                runs.tidy_run(finished)
            return finished_run(finished)
        distributed.wait_for_all()
        if distributed.leads():
            runs.open_run(settings.runs, mark, data=ready.name, settings=identity)
        distributed.wait_for_all()
        folder = runs.open_run(settings.runs, mark, data=ready.name, settings=identity)
        return _conducted(settings, ready, (first or main, main), folder, report, device, mark)


def run_mark(settings: TrainSettings, ready: Ready) -> str:
    """The hash that names the run: of its settings and its data."""
    return _mark(resolve(settings)[2], ready)


def _mark(identity: dict[str, Any], ready: Ready) -> str:
    return runs.run_hash({name: value for name, value in identity.items() if name not in NOT_HASHED}, ready.checksum)


def chosen_device(name: str | None) -> torch.device:
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise ValueError(f"--device: {str(error).splitlines()[0]}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: there is none on this machine")
    return device


def resolve(settings: TrainSettings) -> tuple[RowObjective, RowObjective | None, dict[str, Any]]:
    """The objective, that of the first epochs, and all that makes the run, ready for JSON."""
    check_selection(settings.select)
    if settings.model.endswith("-finetuned") and settings.start_from is None:
        raise ValueError(f"{settings.model} is a second stage: --start-from names the run of the first")
    main = objective_for(settings.model, settings.objective, settings.objective_settings)
    first = _first_objective(settings)
    check_wanted(main, first, settings)
    own = is_file_name(settings.objective)
    early = settings.first_objective
    identity = identity_of(settings) | {
        "objective": settings.objective if own else main.name,
        "objective_settings": main.settings,
        "objective_source": source_checksum(settings.objective) if own else None,
        "first_source": source_checksum(early) if early is not None and is_file_name(early) else None,
        "learned_scale": takes_scale(settings.model, main.settings, settings.objective_settings),
        "pretrained": _pretrained_checksums(settings),
        "mined_checksum": None if settings.mined is None else table_checksum(Path(settings.mined)),
        "start_checksum": None if settings.start_from is None else _start_checksum(Path(settings.start_from)),
    }
    if settings.mined is not None and settings.mine_every is not None:
        identity["mined_again"] = _mined_again(Path(settings.mined))
    return main, first, identity


def _mined_again(table: Path) -> dict[str, Any]:
    """What later tables are made with, and the lists of the first do not show."""
    guards = {name: value for name, value in guards_of(table).items() if name != "pairs"}
    return guards | {"shortlist": is_shortlisted(table)}


def _pretrained_checksums(settings: TrainSettings) -> dict[str, str]:
    """Of weights in local folders that the model begins with; a name of the hub says it itself."""
    system, wanted = preset(settings.model)
    wanted = wanted | settings.model_settings
    found = {}
    for part in sorted({SYSTEMS[system].vision or "", SYSTEMS[system].text or ""}):
        folder = wanted.get(part)
        if isinstance(folder, str) and Path(folder).is_dir():
            files = sorted(f for kind in ("*.safetensors", "*.bin", "config.json") for f in Path(folder).glob(kind))
            digest = hashlib.sha256()
            for file in files:
                digest.update(hashlib.sha256(file.read_bytes()).digest())
            found[part] = digest.hexdigest()[:16]
    return found


def _start_checksum(folder: Path) -> str:
    if not (folder / WEIGHTS).is_file():
        raise ValueError(f"{folder / WEIGHTS}: no weights there to start from")
    return checksum_of_weights(folder)


def _first_objective(settings: TrainSettings) -> RowObjective | None:
    """With the settings asked for the objective, as far as it has them: one margin for both."""
    if settings.first_objective is None:
        return None
    known = objective(settings.first_objective).settings
    shared = {name: value for name, value in settings.objective_settings.items() if name in known}
    return objective_for(settings.model, settings.first_objective, shared)


def _conducted(
    settings: TrainSettings,
    ready: Ready,
    objectives: tuple[RowObjective, RowObjective],
    folder: Path,
    report: Report | None,
    device: torch.device,
    mark: str,
) -> Trained:
    if not distributed.leads():
        distributed.wait_for_all()  # until the one that leads has the folder to itself, and has emptied it if asked to
        if runs.is_finished(folder):
            return finished_run(folder)
        _trained(settings, ready, objectives, folder, Report(), device)
        distributed.wait_for_all()
        return finished_run(folder)
    shown = report or TerminalReport(folder.name)
    with shown, alone(folder, lambda: shown.say(f"another process writes to {folder}: waits for it")):
        finished = runs.is_finished(folder)
        if not finished and not settings.resume:
            runs.empty_run(folder, but=LOCK)
        distributed.wait_for_all()
        if finished:
            return finished_run(folder)
        shown.begin(folder / runs.LOG)
        shown.say(f"run folder {folder}")
        memory = Memory(device)
        try:
            seconds = _trained(settings, ready, objectives, folder, shown, device)
        except ValueError as error:
            if not runs.has_begun(folder) and not isinstance(error, NotFiniteError):
                shutil.rmtree(folder)  # refused before the first checkpoint: nothing half-written is left
            raise
        conditions = {"device": str(device), "processes": distributed.world()[1], "memory_mb": memory.taken()}
        conditions["mark"] = mark  # the folder may be renamed
        runs.finish_run(folder, conditions, seconds=seconds)
        (folder / LOCK).unlink()
    distributed.wait_for_all()
    return finished_run(folder)


def _trained(
    settings: TrainSettings,
    ready: Ready,
    objectives: tuple[RowObjective, RowObjective],
    folder: Path,
    report: Report,
    device: torch.device,
) -> float:
    """Seconds it took, those before a resume included."""
    with torch.random.fork_rng(devices=[]):
        model = ready.model(settings)
        retriever = ready.retriever(model)
        mined = None if settings.mined is None else open_mined(settings.mined, ready.train)
        if settings.mine_every is not None and settings.mined is not None:
            guards_again(settings.mined)  # now, not after the first epochs
        loop = Loop(model, ready.train, objectives, settings, folder, report, device, mined)
        loop.restore()
        if distributed.leads():
            retriever.write_description(folder)
        board = Board(folder) if settings.tensorboard and distributed.leads() else None
        if preset(settings.model)[1].get("backbone") is not None and "image_dim" in ready.sizes:
            report.say(f"the data has features of images: they take the place of the backbone of {settings.model}")
        if ready.validation is None:
            report.say(f"the data has no split {settings.validation_split!r}: the last weights are kept")
        for epoch in loop.epochs():
            if distributed.leads():
                _validated(loop, epoch, ready, retriever, board)
            else:
                loop.epoch_done(epoch, {}, None)
            distributed.wait_for_all()
        if distributed.leads():
            _final(loop, ready)
        return loop.clock()


def _validated(loop: Loop, epoch: int, ready: Ready, retriever: Any, board: Any) -> None:
    metrics: dict[str, float] = {}
    value = None
    if ready.validation is not None:
        metrics = evaluated(loop.model, ready.validation).metrics
        value = selected(metrics, loop.settings.select)
        loop.watch.validation(metrics, len(ready.validation.images), epoch)
    if loop.epoch_done(epoch, metrics, value):
        runs.write_safely(loop.folder / WEIGHTS, retriever.weights())
    loop.save()
    if metrics:
        shown = f"i2t R@1 {metrics['i2t_r1']:.1f}, t2i R@1 {metrics['t2i_r1']:.1f}, rsum {metrics['rsum']:.1f}"
        best = " (best so far)" if loop.place.best_epoch == epoch else ""
        loop.report.say(f"epoch {epoch + 1} of {loop.settings.epochs}: validation {shown}{best}")
    if board is not None:
        board.write(loop.folder)


def _final(loop: Loop, ready: Ready) -> None:
    """The chosen weights on test, once; on validation where there is no test."""
    assert loop.metrics is not None
    held_out = ready.test if ready.test is not None else ready.validation
    line: dict[str, Any] = {"final": True, "step": loop.place.step, "clipped_steps": loop.place.clipped}
    line["pairs_seen"] = loop.place.pairs
    if held_out is None:
        loop.metrics.append(line)
        return
    loop.model.load_state_dict(_chosen_weights(loop.folder / WEIGHTS, loop.device))
    found = evaluated(loop.model, held_out)
    runs.write_ranks(loop.folder, found.ranks.arrays())
    split = "test" if ready.test is not None else "validation"
    loop.metrics.append(line | {"split": split, "epoch": loop.place.best_epoch + 1, **found.metrics})
    loop.metrics.sync()


def _chosen_weights(file: Path, device: torch.device) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file, device=str(device))
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{file}: cannot be read ({error}); --no-resume begins the run anew") from error
