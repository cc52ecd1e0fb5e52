"""Contestants x seeds -> the runs to make: all with the same number of steps."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tercet.comparison.contestants import SEVERAL_CAPTIONS, Contestant
from tercet.comparison.settings import CompareSettings
from tercet.data.members import MemberDraws
from tercet.data.mined import MinedTable, open_mined
from tercet.training.config import train_settings
from tercet.training.mining import guards_again
from tercet.training.ready import Ready, make_ready
from tercet.training.settings import NEED_A_TABLE, TrainSettings

SCENES_EPOCHS = 6
Readies = Mapping[str, Ready]


@dataclass(frozen=True)
class Plan:
    """One run of a contestant."""

    contestant: Contestant
    settings: TrainSettings

    @property
    def name(self) -> str:
        return f"{self.contestant.name} s{self.settings.seed}"


def common_settings(settings: CompareSettings, data: str) -> dict[str, Any]:
    """What all runs are told."""
    common: dict[str, Any] = {
        "data": data,
        "features": settings.features,
        "images": settings.images,
        "ignore_equal_text": settings.ignore_equal_text,
        "model_settings": settings.model_settings,
        "runs": settings.runs,
    }
    epochs = settings.epochs or (SCENES_EPOCHS if data.split(":")[0] == "scenes" else None)
    train = {name: value for name, value in settings.train.items() if name not in NEED_A_TABLE}
    return common | ({} if epochs is None else {"epochs": epochs}) | train


def make_all_ready(contestants: Sequence[Contestant], common: Mapping[str, Any]) -> dict[str, Ready]:
    """The data as each model reads it, opened once for all runs."""
    models = dict.fromkeys(contestant.model for contestant in contestants)
    return {model: make_ready(train_settings({**common, "model": model})) for model in models}


def plan_of(contestant: Contestant, seed: int, common: Mapping[str, Any], readies: Readies) -> Plan:
    """With as many steps as pairs of the common batch size make: the same for every contestant of a model.

    Objectives that rank several positives see several captions of an image, as in their study, and batches may be of
    another size: then steps make the epoch, not passes.
    """
    given = {
        **common,
        **contestant.train,
        "model": contestant.model,
        "objective": contestant.objective,
        "objective_settings": contestant.objective_settings,
        "seed": seed,
    }
    usual = train_settings({**common, "model": contestant.model})
    owners = readies[contestant.model].train.owners
    most = int(owners.bincount().max()) if len(owners) else 1
    several = min(SEVERAL_CAPTIONS.get(contestant.objective, 1), most)
    if several > 1 and usual.positives == "ids":
        given.setdefault("captions_each", several)
    settings = train_settings(given)
    batches_alike = (settings.batch_size, settings.captions_each, settings.accumulate) == (
        usual.batch_size,
        usual.captions_each,
        usual.accumulate,
    )
    if not batches_alike and settings.epoch_steps is None:
        per_pass = len(owners) if usual.captions_each is None else int((owners.bincount() > 0).sum())
        steps = usual.epoch_steps or per_pass // usual.batch_size // usual.accumulate
        if not steps:
            raise ValueError(f"{per_pass} items do not fill one batch of {usual.batch_size}")
        settings = replace(settings, epoch_steps=steps)
    return Plan(contestant, settings)


def check_tables(plans: Iterable[Plan], readies: Readies) -> None:
    """Mined negatives that no run could draw from are known before the first."""
    tables: dict[str, MinedTable] = {}
    for plan in plans:
        asked, data = plan.settings, readies[plan.contestant.model].train
        if asked.mined is not None:
            if asked.mined not in tables:
                tables[asked.mined] = open_mined(asked.mined, data)
            MemberDraws(tables[asked.mined], data.owners, asked.mined_top, asked.mined_draw)
            if asked.mine_every is not None:
                guards_again(asked.mined)


def with_rate(plan: Plan, rate: float) -> Plan:
    """The same run at another learning rate."""
    return replace(plan, settings=replace(plan.settings, learning_rate=rate))


def with_seed(plan: Plan, seed: int) -> Plan:
    return replace(plan, settings=replace(plan.settings, seed=seed))
