"""Terminal output of `tercet train` and `tercet evaluate`."""

from rich.console import Console
from rich.table import Table

from tercet.legacy.printed_metrics import explain_legacy
from tercet.training.evaluate_run import EvaluationResult
from tercet.training.train import Trained

COLUMNS = ("r1", "r5", "r10", "medr", "meanr", "map5")


def metrics_table(metrics: dict[str, float], title: str) -> Table:
    """Return a table with one row per direction."""
    table = Table(title=title, box=None, padding=(0, 2, 0, 0), title_justify="left")
    table.add_column("")
    for heading in ("R@1", "R@5", "R@10", "median rank", "mean rank", "mAP@5"):
        table.add_column(heading, justify="right")
    for direction, label in (("i2t", "image to text"), ("t2i", "text to image")):
        values = [metrics[f"{direction}_{column}"] for column in COLUMNS]
        table.add_row(label, *(f"{value:.1f}" for value in values[:5]), f"{values[5]:.3f}")
    return table


def print_run(run: Trained, console: Console) -> None:
    if run.metrics:
        console.print(metrics_table(run.metrics, f"{run.split}, rsum {run.metrics['rsum']:.1f}"))
    console.print(f"\nrun folder {run.folder}; load its model with tercet.load({str(run.folder)!r})", soft_wrap=True)


def print_evaluation(result: EvaluationResult, console: Console, *, legacy: bool) -> None:
    metrics = result.evaluation.metrics
    console.print(metrics_table(metrics, f"{result.title}, rsum {metrics['rsum']:.1f}"))
    protocol_metrics = [name for name in metrics if name.startswith(("eccv_", "cxc_")) and not name.endswith("queries")]
    for name in protocol_metrics:
        console.print(f"{name} {metrics[name]:.4g}", highlight=False)
    for note in result.evaluation.notes:
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    if legacy:
        console.print()
        for line in explain_legacy(metrics, result.evaluation.folds):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"\nall metrics: {result.file}; the rank of every positive: ranks.npz in the same folder", soft_wrap=True
    )
