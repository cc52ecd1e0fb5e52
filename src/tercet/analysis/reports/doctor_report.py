"""Report of `tercet doctor`: on the terminal, as JSON and as an HTML page."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from tercet import runs
from tercet.analysis.diagnostics.measurements import Measurements
from tercet.analysis.diagnostics.rules import (
    RULES,
    DiagnosticRule,
    Finding,
    diagnose,
    findings_that_explain,
    small_sample_warning,
)
from tercet.analysis.reports.loaded_run import LoadedRun, open_run_folder
from tercet.analysis.reports.run_measurements import measure_run
from tercet.analysis.reports.settings import DoctorSettings
from tercet.reporting.output_formats import Cell, Table, render_page

JSON, HTML = "doctor.json", "doctor.html"
MAX_LISTED_LEAKS = 100


@dataclass(frozen=True)
class DoctorReport:
    run: str
    measurements: Measurements
    findings: list[Finding]
    leaks: list[dict[str, str]]
    """Names of leaked held-out images and of the equal training images; at most `MAX_LISTED_LEAKS`."""
    leaked_images: int

    @property
    def small_sample_warning(self) -> str | None:
        return small_sample_warning(self.measurements)

    @property
    def lead(self) -> str:
        if not self.findings:
            return f"No findings: {len(RULES)} rules were checked."
        names = ", ".join(finding.name for finding in self.findings)
        count = "1 finding" if len(self.findings) == 1 else f"{len(self.findings)} findings"
        return f"{count} ({len(RULES)} rules were checked): {names}."

    @property
    def summary(self) -> str:
        """The lead, with the warning if the sample is small."""
        return self.lead if self.small_sample_warning is None else f"{self.lead} {self.small_sample_warning}"

    def leaks_table(self) -> Table:
        rows = [(leak["held_out"], [Cell(leak["train"])]) for leak in self.leaks]
        return Table(f"Leaked {self.measurements.sides.images}", ("held out", "in train"), rows)

    def table(self) -> Table:
        """All measured values and thresholds; bold: beyond the threshold, with the finding that explains it."""
        rows = [
            (rule.name, [Cell(self._value_text(rule), rule.is_triggered(self.measurements)), Cell(rule.limit)])
            for rule in RULES
        ]
        return Table("All measurements", ("", "value", "faulty if"), rows)

    def _value_text(self, rule: DiagnosticRule) -> str:
        findings = findings_that_explain(self.measurements).get(rule.name)
        text = rule.value_text(self.measurements)
        return text if findings is None else f"{text} (explained by {', '.join(findings)})"

    def as_json(self) -> dict[str, Any]:
        rules = [
            {
                "name": rule.name,
                "value": rule.value(self.measurements),
                "value_text": rule.value_text(self.measurements),
                "threshold": rule.limit,
                "triggered": rule.is_triggered(self.measurements),
                "findings_that_explain": findings_that_explain(self.measurements).get(rule.name, []),
            }
            for rule in RULES
        ]
        return {
            "run": self.run,
            "small_sample_warning": self.small_sample_warning,
            "findings": [asdict(finding) for finding in self.findings],
            "rules": rules,
            "measurements": self.measurements.numbers(),
            "leaked_images": self.leaked_images,
            "leaks": self.leaks,
        }


def run_doctor(settings: DoctorSettings) -> tuple[DoctorReport, Path]:
    """Write the report of a run; return it and the path of its page."""
    report = report_on(open_run_folder(settings.run, data=settings.data, images=settings.images))
    out = Path("analysis") / report.run if settings.out is None else settings.out
    runs.write_artifact(out, JSON, json.dumps(runs.without_nan(report.as_json()), indent=2, allow_nan=False) + "\n")
    runs.write_artifact(out, HTML, page_of(report))
    return report, out / HTML


def report_on(loaded: LoadedRun) -> DoctorReport:
    measurements, leaks = measure_run(loaded)
    listed = []
    if leaks:
        held_out, train = (loaded.split(data).image_names for data in (loaded.held_out, loaded.prepared.train))
        listed = [
            {"held_out": held_out[leak.held_out], "train": train[leak.train]} for leak in leaks[:MAX_LISTED_LEAKS]
        ]
    return DoctorReport(loaded.name, measurements, diagnose(measurements), listed, len(leaks))


def print_report(report: DoctorReport, console: Console) -> None:
    console.print(f"{report.run}\n{report.summary}\n", highlight=False, markup=False)
    for finding in report.findings:
        console.print(finding.name, style="bold", highlight=False, markup=False)
        for line in (_sentence(finding.description), finding.advice):
            console.print(Padding(Text(line), (0, 0, 0, 2)), highlight=False)
        console.print()
    console.print(report.table().terminal())


def page_of(report: DoctorReport) -> str:
    """The HTML page."""
    return render_page(HTML, report=report, rules=RULES)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]
