"""The field's words: names that hid what they meant, and phrases nobody would search for, do not come back.

What to write instead: resume, cache, atomic, re-rank, token ids, CPU, log, filter, batch sampler, checkpoint, image.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]

IDENTIFIERS = [
    "Meeting",
    "meetings",
    "paired_meetings",
    "k_caption_meetings",
    "Contestant",
    "contestants",
    "Judgement",
    "Illness",
    "ILLNESSES",
    "Evidence",
    "Shelf",
    "Shelves",
    "Refused",
    "Impatient",
    "Opened",
    "LookedAt",
    "Guards",
    "LeftOut",
    "Readies",
    "make_ready",
    "whole_or_nothing",
    "write_safely",
    "write_beside_runs",
    "as_kept",
    "named_values",
    "wait_for_all",
    "everyones",
    "rows_of_all",
    "looks_again",
    "second_look",
    "kept_of",
    "asked_of",
    "nearly_unit",
    "across_regions",
    "seen_from_the_other_side",
    "SPECK",
    "NOBODY",
    "joint_dim",
    "captions_each",
    "picture_side",
    "start_from",
    "first_objective",
    "first_epochs",
    "warm_up_epochs",
    "second_beta",
    "decay_vectors",
    "part_rates",
    "thaw_epoch",
    "match_weight",
    "pooling_sharpness",
]
PHRASES = [
    r"pictures?",
    r"go(es|ing)? on (where|with|to|from|after|exactly)",
    r"goes on",
    r"anew",
    r"so many",
    r"so manieth",
    r"(is|are|be|was|were) told",
    r"lies",
    r"stands",
    r"processors?(?! of)",
    r"signs",
    r"numbers? of words",
    r"look(s|ed)? again",
    r"(first|second) look",
    r"whole or not at all",
    r"pull(ed|ing) the plug|plug pulled",
    r"ill(ness|nesses)?",
    r"ails",
    r"nobody|somebody|anybody",
    r"call again",
    r"no good",
    r"and its like|and the like",
]
BANNED = re.compile(rf"\b({'|'.join(IDENTIFIERS)})\b")
UNCLEAR = re.compile(rf"(?<![\w./-])({'|'.join(PHRASES)})(?![\w-])", flags=re.IGNORECASE)

SOURCES = [
    *(file for file in (ROOT / "src").rglob("*") if file.suffix in (".py", ".js", ".html", ".css", ".j2")),
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "docs").rglob("*.py"),
    *(ROOT / "examples").rglob("*.py"),
]
CODE = [*SOURCES, *(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
CODE.remove(Path(__file__))


def matches(pattern: re.Pattern[str], file: Path) -> list[str]:
    lines = file.read_text(encoding="utf-8").splitlines()
    return [
        f"{file.relative_to(ROOT)}:{number}: {match[0]}: {line.strip()[:90]}"
        for number, line in enumerate(lines, start=1)
        for match in pattern.finditer(line)
    ]


def test_no_banned_identifier():
    assert not [match for file in CODE for match in matches(BANNED, file)]


def test_plain_technical_english():
    assert not [match for file in SOURCES for match in matches(UNCLEAR, file)]


def test_the_lists_can_fail(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.test_words.ROOT", tmp_path)
    (tmp_path / "page.md").write_text("A run goes on where it was.\nThe pictures of a Shelf.\nResume. An image.\n")
    assert len(matches(UNCLEAR, tmp_path / "page.md")) == 2
    assert len(matches(BANNED, tmp_path / "page.md")) == 1
