"""The answer of a comparison: in the terminal, in files, as a report."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from tercet import runs
from tercet.comparison.judgement import Judgement
from tercet.comparison.plan import Readies
from tercet.comparison.results import Results
from tercet.comparison.settings import CompareSettings
from tercet.comparison.tables import cost_table, csv_of, goal_tables, pairs_table, recalls_table, spread_said
from tercet.comparison.tuning import Tuned
from tercet.pages.table import Table


@dataclass(frozen=True)
class Comparison:
    """The answer: numbers, which differences are real, and a paragraph. `save` writes all of it."""

    settings: CompareSettings
    title: str
    results: Results
    judgement: Judgement
    verdict: str
    tuned: Mapping[str, Tuned]
    folder: Path
    readies: Readies
    """The data as the models read it."""
    protocols: Mapping[str, Results]
    """The same runs under named protocols."""

    def tables(self) -> list[Table]:
        order = list(self.judgement.order)
        if not order:
            return []
        title = f"{self.title}; {self.results.split}, {spread_said(self.results)}"
        named = [recalls_table(each, order, f"{protocol}, {title}") for protocol, each in self.protocols.items()]
        return [recalls_table(self.results, order, title), *named, *goal_tables(self.results)]

    def print(self, console: Console) -> None:
        for table in self.tables():
            console.print(table.terminal())
            console.print()
        console.print(self.verdict, highlight=False, markup=False)

    def document(self) -> dict[str, Any]:
        """All numbers, for JSON."""
        return {
            "title": self.title,
            "verdict": self.verdict,
            "metric": self.judgement.metric,
            "results": {name: self._runs_of(name) for name in self.results.names()},
            "failures": [asdict(failure) for failure in self.results.failures],
            "pairs": [
                {
                    "first": pair.first,
                    "second": pair.second,
                    "corrected_p": pair.corrected,
                    "real": pair.real,
                    **{key: value for key, value in asdict(pair.found).items() if key != "spread"},
                    "detectable": pair.found.detectable(self.judgement.level),
                    "seeds_needed": pair.found.seeds_needed(self.judgement.level),
                }
                for pair in self.judgement.pairs
            ],
            "protocols": {
                protocol: {name: [run.metrics for _, run in sorted(each.runs[name].items())] for name in each.names()}
                for protocol, each in self.protocols.items()
            },
            "tuned": {name: asdict(tuned) for name, tuned in self.tuned.items()},
        }

    def _runs_of(self, name: str) -> list[dict[str, Any]]:
        return [
            {
                "seed": seed,
                "run": run.folder.name,
                "learning_rate": run.learning_rate,
                "steps": run.final["step"],
                "pairs_seen": run.final["pairs_seen"],
                "clipped_share": run.clipped,
                "seconds": run.machine["seconds"],
                "memory_mb": run.machine.get("memory_mb"),
                "metrics": run.metrics,
            }
            for seed, run in sorted(self.results.runs[name].items())
        ]

    def save(self) -> Path:
        """Tables as Markdown, LaTeX, CSV and JSON, figures, and the report, whose path is returned."""
        from tercet.comparison.report.page import write_report  # it is made of this

        order = list(self.judgement.order)
        tables = self.tables()
        if order:
            tables += [
                cost_table(self.results, order),
                *([pairs_table(self.judgement)] if self.judgement.pairs else []),
            ]
        markdown = "\n".join([self.verdict, "", *(table.markdown() for table in tables)])
        runs.write_beside_runs(self.folder, "tables.md", markdown)
        runs.write_beside_runs(self.folder, "tables.tex", "\n".join(table.latex() for table in tables))
        if order:
            runs.write_beside_runs(self.folder, "runs.csv", csv_of(self.results, order))
        runs.write_beside_runs(self.folder, "comparison.json", json.dumps(self.document(), indent=2) + "\n")
        return write_report(self)
