"""The doctor's page: its measurements on healthy runs and on deliberately faulty runs."""

from pathlib import Path

FIRST_SEEDS = (0, 1, 2)
SETTINGS = ("data", "model", "objective", "seed", "epochs", "learning_rate", "model_settings", "objective_settings")


def line_of(line: dict, run: Path) -> dict:
    """The common line of a run, plus its fault (the name of the parent folder) and the doctor's report."""
    from tercet.analysis.reports.doctor_report import report_on
    from tercet.analysis.reports.loaded_run import open_run_folder

    report = report_on(open_run_folder(run)).as_json()
    return line | {
        "settings": {name: line["settings"][name] for name in SETTINGS},
        "fault": run.parent.name,
        "metrics": {"rsum": round(line["metrics"]["rsum"], 1)},
        "values": {rule["name"]: _rounded(rule["value"]) for rule in report["rules"]},
        "findings": [finding["name"] for finding in report["findings"]],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def page(lines: list[dict]) -> str:
    from tercet.analysis.diagnostics.rules import RULES

    ordered = sorted(lines, key=lambda line: (line["settings"]["model"], line["settings"]["objective"], line["seed"]))
    names = [rule.name for rule in RULES]
    by_fault = {name: [line for line in ordered if line["fault"] == name] for name in ("healthy", *names)}
    first, later = ([line for line in lines if (line["seed"] in FIRST_SEEDS) is is_first] for is_first in (True, False))
    systems = sorted({line["settings"]["model"] for line in by_fault["healthy"]})
    rows = [
        f"| {rule.name} | {rule.limit} | {_range(by_fault['healthy'], rule.name)} | "
        f"{_range(by_fault[rule.name], rule.name)} | "
        f"{' | '.join(_found([line for line in by_fault[rule.name] if line in seeds]) for seeds in (first, later))} |"
        for rule in RULES
    ]
    return "\n".join(
        [
            "# The doctor on healthy and on faulty runs",
            "",
            f"Small runs on generated scenes. Each of {len(names)} faults was caused on purpose, by an incorrect",
            f"objective, by settings or by the data; healthy runs, of {', '.join(systems)}, have sensible settings.",
            "",
            f"- Seeds 0 to 2, which were used to choose the thresholds: {_summary(first)}.",
            f"- Seeds 3 to 5, made after the thresholds were fixed: {_summary(later)}.",
            "",
            "Other causes of these faults, and milder faults, are not on this page.",
            "tests/analysis/reports/faulty_runs.py creates the runs; docs/doctor.md defines the measurements.",
            "",
            "```",
            "python -m tests.analysis.reports.faulty_runs FOLDER",
            "python docs/results/make.py collect doctor FOLDER/*/*_s[0-9]*_*",
            "```",
            "",
            "| fault | faulty if | healthy runs | faulty runs | found, seeds 0 to 2 | found, seeds 3 to 5 |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
            "All values of all runs. Bold: a finding. A value beyond its threshold that is not bold is explained by a "
            "finding.",
            "",
            f"| fault | system, objective, seed | rsum | {' | '.join(names)} |",
            f"|---|---|{'---:|' * (len(names) + 1)}",
            *(_row(line, names) for group in by_fault.values() for line in group),
            "",
            "",
        ]
    )


def _summary(lines: list[dict]) -> str:
    faulty, healthy = (
        [line for line in lines if (line["fault"] != "healthy") is is_faulty] for is_faulty in (True, False)
    )
    return (
        f"the fault was found in {_found(faulty)} faulty runs, and "
        f"{sum(not line['findings'] for line in healthy)} of {len(healthy)} healthy runs have no findings"
    )


def _found(lines: list[dict]) -> str:
    return f"{sum(line['fault'] in line['findings'] for line in lines)} of {len(lines)}"


def _range(lines: list[dict], name: str) -> str:
    values = [line["values"][name] for line in lines if line["values"][name] is not None]
    return f"{min(values):.3g} to {max(values):.3g}"


def _format(line: dict, name: str) -> str:
    value = line["values"][name]
    return "-" if value is None else f"{value:.3g}"


def _row(line: dict, names: list[str]) -> str:
    settings = line["settings"]
    run = f"{settings['model']}, {settings['objective'].split(':')[-1]}, {settings['seed']}"
    values = [f"**{_format(line, name)}**" if name in line["findings"] else _format(line, name) for name in names]
    return f"| {line['fault']} | {run} | {line['metrics']['rsum']:.0f} | {' | '.join(values)} |"
