"""What `tercet doctor` says: on the terminal, as JSON and as a page."""

import json
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from tercet import runs
from tercet.analysis.doctor import ILLNESSES, Finding, Illness, caution, diagnose, follows_from
from tercet.analysis.evidence import Evidence
from tercet.dissection.doctor import examine
from tercet.dissection.doctor_settings import DoctorSettings
from tercet.dissection.opened import Opened, open_run_folder
from tercet.pages.page import Section, page, scrolling
from tercet.pages.table import Cell, Table

JSON, HTML = "doctor.json", "doctor.html"
NAMED = 100  # leaked images that are named


@dataclass(frozen=True)
class Report:
    run: str
    evidence: Evidence
    findings: list[Finding]
    leaks: list[dict[str, str]]
    """Held-out images and the training images they equal, by name; the first of them where there are many."""
    leaked_images: int

    @property
    def caution(self) -> str | None:
        return caution(self.evidence)

    @property
    def lead(self) -> str:
        if not self.findings:
            return f"Nothing was found: {len(ILLNESSES)} things were looked at."
        names = ", ".join(finding.name for finding in self.findings)
        return f"{len(ILLNESSES)} things were looked at, and this stands out: {names}."

    def table(self) -> Table:
        """All that was looked at, beside the threshold; bold is beyond it, with the finding that explains it."""
        rows = [
            (illness.name, [Cell(self._shown(illness), illness.is_beyond(self.evidence)), Cell(illness.limit)])
            for illness in ILLNESSES
        ]
        return Table("What was looked at", ("", "value", "ill"), rows)

    def _shown(self, illness: Illness) -> str:
        findings = follows_from(self.evidence).get(illness.name)
        shown = illness.shown(self.evidence)
        return shown if findings is None else f"{shown} (follows from {', '.join(findings)})"

    def as_json(self) -> dict[str, Any]:
        looked_at = [
            {
                "name": illness.name,
                "value": illness.value(self.evidence),
                "shown": illness.shown(self.evidence),
                "ill": illness.limit,
                "beyond": illness.is_beyond(self.evidence),
                "follows_from": follows_from(self.evidence).get(illness.name, []),
            }
            for illness in ILLNESSES
        ]
        return {
            "run": self.run,
            "caution": self.caution,
            "findings": [asdict(finding) for finding in self.findings],
            "looked_at": looked_at,
            "evidence": asdict(self.evidence),
            "leaked_images": self.leaked_images,
            "leaks": self.leaks,
        }


def run_doctor(settings: DoctorSettings) -> tuple[Report, Path]:
    """The report, and the page that was written."""
    report = report_on(open_run_folder(settings.run, data=settings.data, images=settings.images))
    out = Path("analysis") / report.run if settings.out is None else settings.out
    runs.write_beside_runs(out, JSON, json.dumps(runs.without_nan(report.as_json()), indent=2, allow_nan=False) + "\n")
    runs.write_beside_runs(out, HTML, page_of(report))
    return report, out / HTML


def report_on(opened: Opened) -> Report:
    evidence, leaks = examine(opened)
    named = []
    if leaks:
        held_out, train = (opened.split(data).image_names for data in (opened.held_out, opened.ready.train))
        named = [{"held_out": held_out[leak.held_out], "train": train[leak.train]} for leak in leaks[:NAMED]]
    return Report(opened.name, evidence, diagnose(evidence), named, len(leaks))


def print_report(report: Report, console: Console) -> None:
    console.print(f"{report.run}\n{_said_first(report)}\n", highlight=False, markup=False)
    for finding in report.findings:
        console.print(finding.name, style="bold", highlight=False, markup=False)
        for line in (_sentence(finding.seen), finding.advice):
            console.print(Padding(Text(line), (0, 0, 0, 2)), highlight=False)
        console.print()
    console.print(report.table().terminal())


def page_of(report: Report) -> str:
    sections = [Section("findings", "Findings", _findings(report))] if report.findings else []
    sections.append(
        Section("looked-at", "What was looked at", scrolling("Bold: beyond its threshold", report.table().html()))
    )
    sections.append(Section("how", "How it is measured", _how()))
    return page(f"Tercet: {report.run}", f"Is {report.run} well?", _said_first(report), sections)


def _said_first(report: Report) -> str:
    return report.lead if report.caution is None else f"{report.lead} {report.caution}"


def _findings(report: Report) -> str:
    shown = "".join(
        f"<h3>{escape(finding.name)}</h3><p>{escape(_sentence(finding.seen))}</p>"
        f'<p class="note">{escape(finding.threshold)}</p><p>{escape(finding.advice)}</p>'
        for finding in report.findings
    )
    if not report.leaks:
        return shown
    rows = [(leak["held_out"], [Cell(leak["train"])]) for leak in report.leaks]
    equal = Table("Equal images", ("held out", "in train"), rows)
    named = f"{report.leaked_images} equal images" + (f", the first {NAMED}" if report.leaked_images > NAMED else "")
    return f"{shown}<details><summary>{named}</summary>{equal.html()}</details>"


def _sentence(seen: str) -> str:
    return seen[0].upper() + seen[1:]


def _how() -> str:
    rows = "".join(
        f"<li><b>{escape(illness.name)}</b>: {escape(illness.measured)}; ill {escape(illness.limit)} "
        f"({escape(illness.source)})</li>"
        for illness in ILLNESSES
    )
    return f"<ul>{rows}</ul>"
