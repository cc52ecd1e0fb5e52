"""The same runs under named protocols: a table each, as the papers print them."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from rich.console import Console
from rich.progress import Progress

from tercet.comparison.plan import Readies
from tercet.comparison.report.evidence import held_out
from tercet.comparison.results import Results, Run
from tercet.comparison.settings import CompareSettings
from tercet.comparison.split import evaluated_split
from tercet.evaluation import evaluate_tiles, tiles_of_embeddings
from tercet.retriever import load
from tercet.training.evaluating import coco_ids
from tercet.training.validation import encoded, tiles_of


def check_protocols(settings: CompareSettings, readies: Readies) -> None:
    """Before any training: a protocol refuses data that is not its own, whatever the similarities are."""
    for ready in readies.values() if settings.protocols else ():
        data = held_out(ready.test, ready.validation)
        split = evaluated_split(settings, "test" if ready.test is not None else "validation")
        ids = None if split is None else coco_ids(split)
        tiles = tiles_of_embeddings(torch.rand(len(data.images), 1), torch.rand(len(data.captions), 1))
        for protocol in settings.protocols:
            evaluate_tiles(tiles, data.owners, protocol=protocol, image_ids=ids)


def under_protocols(
    results: Results, readies: Readies, settings: CompareSettings, console: Console
) -> Mapping[str, Results]:
    """Every run evaluated anew under each protocol; one that does not fit the data is refused by its own words."""
    if not settings.protocols or not results.names():
        return {}
    split = evaluated_split(settings, results.split)
    ids = None if split is None else coco_ids(split)
    models = {contestant.name: contestant.model for contestant in results.contestants}
    found: dict[str, dict[str, dict[int, Run]]] = {protocol: {} for protocol in settings.protocols}
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("evaluating", total=sum(len(results.runs[name]) for name in results.names()))
        for name in results.names():
            ready = readies[models[name]]
            data = held_out(ready.test, ready.validation)
            for seed, run in results.runs[name].items():
                model = load(run.folder).model.eval()
                tiles = tiles_of(model, *encoded(model, data))
                for protocol in settings.protocols:
                    metrics = evaluate_tiles(tiles, data.owners, protocol=protocol, image_ids=ids).metrics
                    found[protocol].setdefault(name, {})[seed] = replace(run, metrics=dict(metrics))
                progress.advance(bar)
    return {protocol: Results(results.contestants, each) for protocol, each in found.items()}
