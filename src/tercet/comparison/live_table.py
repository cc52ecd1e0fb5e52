"""Progress of a comparison: on a terminal a results table that fills in, with a progress bar per active run; in a
notebook one bar; otherwise, and in a notebook, a line per run.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import Progress, TaskID
from rich.text import Text

from tercet.comparison.plan import PlannedRun
from tercet.comparison.results import Failure, Results, Run, read_run, recalls_table
from tercet.comparison.tuning import best_validation
from tercet.console import NO_BAR, SECONDS_BETWEEN_FRAMES, NotebookBar, bar_columns, is_notebook


class LiveTable:
    """Executor events -> results and failures, shown live; prints one line per run if stderr is not a terminal."""

    def __init__(self, console: Console, results: Results, total: int, *, metric: str, title: str) -> None:
        self.failures: list[Failure] = []
        self.trials = False
        self.folders: dict[str, Path] = {}
        self.run_ids: dict[str, str] = {}
        """Run label -> run id of the planned settings."""
        self.results = results
        self._console, self._metric = console, metric
        self._progress = Progress(*bar_columns(width=24), console=console, auto_refresh=False)
        self._all = self._progress.add_task(f"[bold]{escape(title)}", total=total, status="")
        self._bars: dict[str, TaskID] = {}
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._below_cell = NotebookBar(title, total) if is_notebook() else NO_BAR
        self._next_frame = 0.0

    def __enter__(self) -> "LiveTable":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def reused(self, plan: PlannedRun, folder: Path) -> None:
        """A finished run folder already exists."""
        try:
            self._add(plan, folder)
        except ValueError as error:
            self.failed(plan, str(error))

    def started(self, plan: PlannedRun) -> None:
        self._bars[plan.label] = self._progress.add_task(escape(plan.label), total=None, status="")

    def step(self, plan: PlannedRun, done: int, total: int, status: Mapping[str, str]) -> None:
        text = f"monitor {status['monitor']}" if "monitor" in status else ""
        self._progress.update(self._bars[plan.label], completed=done, total=total, status=text)

    def finished(self, plan: PlannedRun, folder: Path) -> None:
        if not folder.name.endswith(self.run_ids.get(plan.label, "")):
            self.failed(plan, f"the file of {plan.variant.objective} changed during the run: run the command again")
            return
        run = self._add(plan, folder)
        self._print_line(f"{plan.label}: rsum {run.metrics['rsum']:.1f} in {run.machine['seconds']:.0f} s")

    def failed(self, plan: PlannedRun, why: str) -> None:
        self._end(plan)
        self.failures.append(Failure(plan.label, why, self.trials))
        self._console.print(f"[red]{escape(plan.label)} failed:[/] {escape(why)}", highlight=False, soft_wrap=True)

    def idle(self) -> None:
        if self._live is not None and time.monotonic() >= self._next_frame:
            self._next_frame = time.monotonic() + SECONDS_BETWEEN_FRAMES
            self._live.update(self._frame(), refresh=True)

    def _record(self, plan: PlannedRun, run: Run) -> None:
        self.results.runs.setdefault(plan.variant.name, {})[plan.settings.seed] = run

    def _add(self, plan: PlannedRun, folder: Path) -> Run:
        run = read_run(folder, plan.settings.seed)
        self._end(plan)
        self.folders[plan.label] = folder
        self._record(plan, run)
        return run

    def _end(self, plan: PlannedRun) -> None:
        bar = self._bars.pop(plan.label, None)
        if bar is not None:
            self._progress.remove_task(bar)
        self._progress.advance(self._all)
        self._below_cell.advance()

    def _frame(self) -> Group:
        bars = self._progress.tasks[: max(2, self._console.height // 2)]  # that of all runs is the first
        rows = self._console.height - len(bars) - 6
        names = self.results.ordered(self._metric)
        table = recalls_table(self.results, names[: max(1, rows)]).terminal() if names else Text("")
        more = Text(f"and {len(names) - rows} more", style="dim") if len(names) > rows else Text("")
        return Group(table, more, self._progress.make_tasks_table(bars))

    def _print_line(self, text: str) -> None:
        if self._live is None:
            self._console.print(text, highlight=False, soft_wrap=True, markup=False)


class TrialsTable(LiveTable):
    """Progress of tuning. Its runs are not results: only their validation metric is shown."""

    def __init__(self, console: Console, total: int, title: str = "tuning") -> None:
        super().__init__(console, Results((), {}), total, metric="rsum", title=title)
        self.trials = True

    def finished(self, plan: PlannedRun, folder: Path) -> None:
        self._add(plan, folder)
        value = best_validation(folder, plan.settings.select_metric)
        shown = "no validation" if value is None else f"validation {plan.settings.select_metric} {value:.1f}"
        self._print_line(f"tuning {plan.label}: {shown}")

    def _record(self, plan: PlannedRun, run: Run) -> None:
        pass
