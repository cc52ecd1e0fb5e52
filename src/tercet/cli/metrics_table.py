"""Terminal output of `tercet evaluate`."""

from rich.console import Console

from tercet.legacy.printed_metrics import explain_legacy
from tercet.training.evaluate_run import EvaluationResult
from tercet.training.trained import metrics_table


def print_evaluation(result: EvaluationResult, console: Console, *, legacy: bool) -> None:
    metrics = result.evaluation.metrics
    title = f"{result.title}, rsum {metrics['rsum']:.1f}"
    console.print(metrics_table(metrics, title, result.sides).terminal())
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
