"""What a person sees while the runs are made: a table that fills in, and a bar for each run under way."""

import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from tercet.comparison.plan import Plan
from tercet.comparison.results import Failure, Results, Run, read_run
from tercet.comparison.tables import recalls_table

SECONDS_BETWEEN_FRAMES = 0.25


class LiveTable:
    """A watcher of the engine. Keeps what finished and what failed; elsewhere than in a terminal a line for each."""

    def __init__(self, console: Console, results: Results, total: int, *, metric: str, what: str) -> None:
        self.failures: list[Failure] = []
        self.trials = False
        self.folders: dict[str, Path] = {}
        self.marks: dict[str, str] = {}
        """Of the runs as they were planned."""
        self.results = results
        self._console, self._metric = console, metric
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("{task.fields[news]}"),
            console=console,
            auto_refresh=False,
        )
        self._all = self._progress.add_task(f"[bold]{escape(what)}", total=total, news="")
        self._bars: dict[str, TaskID] = {}
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._next_frame = 0.0

    def __enter__(self) -> "LiveTable":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def kept(self, plan: Plan, folder: Path) -> None:
        """It was there already, finished."""
        try:
            self._take(plan, folder)
        except ValueError as error:
            self.failed(plan, str(error))

    def began(self, plan: Plan) -> None:
        self._bars[key_of(plan)] = self._progress.add_task(escape(key_of(plan)), total=None, news="")

    def step(self, plan: Plan, done: int, total: int, news: Mapping[str, str]) -> None:
        shown = f"monitor {news['monitor']}" if "monitor" in news else ""
        self._progress.update(self._bars[key_of(plan)], completed=done, total=total, news=shown)

    def finished(self, plan: Plan, folder: Path) -> None:
        if not folder.name.endswith(self.marks.get(key_of(plan), "")):
            self.failed(plan, f"the file of {plan.contestant.objective} was changed meanwhile: call again")
            return
        run = self._take(plan, folder)
        self._line(f"{key_of(plan)}: rsum {run.metrics['rsum']:.1f} in {run.machine['seconds']:.0f} s")

    def failed(self, plan: Plan, why: str) -> None:
        self._end(plan)
        self.failures.append(Failure(key_of(plan), why, self.trials))
        self._console.print(f"[red]{escape(key_of(plan))} failed:[/] {escape(why)}", highlight=False, soft_wrap=True)

    def idle(self) -> None:
        if self._live is not None and time.monotonic() >= self._next_frame:
            self._next_frame = time.monotonic() + SECONDS_BETWEEN_FRAMES
            self._live.update(self._frame(), refresh=True)

    def _keep(self, plan: Plan, run: Run) -> None:
        self.results.runs.setdefault(plan.contestant.name, {})[plan.settings.seed] = run

    def _take(self, plan: Plan, folder: Path) -> Run:
        run = read_run(folder, plan.settings.seed)
        self._end(plan)
        self.folders[key_of(plan)] = folder
        self._keep(plan, run)
        return run

    def _end(self, plan: Plan) -> None:
        bar = self._bars.pop(key_of(plan), None)
        if bar is not None:
            self._progress.remove_task(bar)
        self._progress.advance(self._all)

    def _frame(self) -> Group:
        rows = self._console.height - len(self._bars) - 6
        names = self.results.ordered(self._metric)
        table = recalls_table(self.results, names[: max(1, rows)]).terminal() if names else Text("")
        more = Text(f"and {len(names) - rows} more", style="dim") if len(names) > rows else Text("")
        return Group(table, more, self._progress)

    def _line(self, text: str) -> None:
        if self._live is None:
            self._console.print(text, highlight=False, soft_wrap=True, markup=False)


class Trials(LiveTable):
    """The same for runs that only choose a learning rate: they are no results."""

    def __init__(self, console: Console, total: int) -> None:
        super().__init__(console, Results((), {}), total, metric="rsum", what="choosing learning rates")
        self.trials = True

    def _keep(self, plan: Plan, run: Run) -> None:
        pass


def key_of(plan: Plan) -> str:
    return f"{plan.name} lr {plan.settings.learning_rate:g}"
