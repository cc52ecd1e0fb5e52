"""A finished run, or an evaluation, in a few lines."""

from rich.console import Console
from rich.table import Table

from tercet.evaluation.legacy import explain_legacy
from tercet.training.evaluating import Evaluated
from tercet.training.run import Trained

COLUMNS = ("r1", "r5", "r10", "medr", "meanr", "map5")


def metrics_table(metrics: dict[str, float], title: str) -> Table:
    """A row a direction."""
    table = Table(title=title, box=None, padding=(0, 2, 0, 0), title_justify="left")
    table.add_column("")
    for heading in ("R@1", "R@5", "R@10", "median rank", "mean rank", "mAP@5"):
        table.add_column(heading, justify="right")
    for side, meaning in (("i2t", "image to text"), ("t2i", "text to image")):
        numbers = [metrics[f"{side}_{column}"] for column in COLUMNS]
        table.add_row(meaning, *(f"{number:.1f}" for number in numbers[:5]), f"{numbers[5]:.3f}")
    return table


def print_run(run: Trained, console: Console) -> None:
    if run.metrics:
        console.print(metrics_table(run.metrics, f"{run.split}, rsum {run.metrics['rsum']:.1f}"))
    console.print(f"\nrun folder {run.folder}; its model: tercet.load({str(run.folder)!r})", soft_wrap=True)


def print_evaluation(evaluated: Evaluated, console: Console, *, legacy: bool) -> None:
    metrics = evaluated.found.metrics
    console.print(metrics_table(metrics, f"{evaluated.title}, rsum {metrics['rsum']:.1f}"))
    further = [name for name in metrics if name.startswith(("eccv_", "cxc_")) and not name.endswith("queries")]
    for name in further:
        console.print(f"{name} {metrics[name]:.4g}", highlight=False)
    for note in evaluated.found.notes:
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    if legacy:
        console.print()
        for line in explain_legacy(metrics, evaluated.found.folds):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(f"\nall metrics: {evaluated.file}; the rank of every positive: ranks.npz beside it", soft_wrap=True)
