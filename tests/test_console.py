"""Control characters in names and texts of data do not reach the terminal, whichever command shows them."""

import ast
import io
import json
import unicodedata
from pathlib import Path

import pytest
from rich.console import Console
from rich.live import Live
from rich.table import Table

import tercet as package
import tercet.console as console_module
from tercet.console import print_lines, printable, terminal_console
from tests.commands import tercet
from tests.data.small_datasets import image_bytes
from tests.search.small_indexes import model

SOURCES = Path(package.__file__).parent
TITLE, CLEAR = "\x1b]0;PWNED\x1b\\", "\x1b[2J\x9b2J\x07"
REVERSED = "\u202egpj.exe"  # shown from right to left: exe.jpg


def controls(text):
    """The characters that a terminal does not show as they are, but for line ends."""
    return {character for character in text if unicodedata.category(character) in ("Cc", "Cf", "Cs")} - {"\n"}


@pytest.fixture
def folder(tmp_path):
    """Images and a table with escape sequences in every name and text, and images that are none."""
    images = tmp_path / "images"
    images.mkdir()
    names = [f"{CLEAR}{n}{REVERSED}.png" for n in range(4)]
    for n, name in enumerate(names):
        (images / name).write_bytes(image_bytes(n))
    (images / f"{TITLE}no image.png").write_bytes(b"no image")
    lines = [json.dumps({"image": name, "caption": f"a dog{TITLE}{CLEAR}\r\nError: all is lost"}) for name in names]
    (tmp_path / "train.json").write_text(f"[{','.join(lines)}]")
    return tmp_path


def test_every_kind_of_control_character_is_an_escape():
    assert printable("plain Ünïcode 犬 \u00a0\u3000") == "plain Ünïcode 犬 \u00a0\u3000"
    assert printable("👩\u200d🚀") == "👩\u200d🚀"
    for character in map(chr, (*range(32), *range(127, 160), 0x200E, 0x202E, 0x2028, 0xDC80, 0xFEFF, 0xE0041)):
        shown = printable(f"a{character}b")
        assert shown.isprintable(), repr(character)
        assert shown.encode().decode("unicode_escape") == f"a{character}b"


@pytest.mark.parametrize("command", ["inspect", "convert"])
def test_an_error_that_names_an_image(folder, command):
    table = folder / "b.csv"
    table.write_text(f"image,caption\n{TITLE}missing.jpg,a dog{CLEAR}\n")
    target = (folder / "out",) if command == "convert" else ()
    done = tercet("data", command, table, *target, "--images", folder / "images")
    assert done.returncode == 2
    assert not controls(done.stdout + done.stderr)
    assert "no image file \\x1b]0;PWNED\\x1b\\missing.jpg" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_what_is_inspected_converted_and_skipped(folder):
    done = tercet("data", "inspect", folder / "train.json")
    assert done.returncode == 0
    assert not controls(done.stdout + done.stderr)
    assert "\\x1b[2J" in done.stdout
    assert "\nError: all is lost" not in done.stdout
    (folder / "images" / f"{CLEAR}0{REVERSED}.png").unlink()
    out = folder / "out"
    done = tercet("data", "convert", folder / "train.json", out, "--skip-bad", "--to", "parquet")
    assert done.returncode == 0
    assert "Skipped 1 invalid items" in done.stderr
    assert not controls(done.stdout + done.stderr)


def test_an_index_and_what_is_found_in_it(folder):
    model("vsepp").save(folder / "model")
    done = tercet("index", folder / "model", "--images", folder / "images", "--out", folder / "of images", "--skip-bad")
    assert "skipped: " in done.stdout
    assert not controls(done.stdout + done.stderr)
    (unreadable,) = (folder / "of images").rglob("unreadable.txt")
    assert not controls(unreadable.read_text())
    done = tercet("index", folder / "model", "--images", folder / "train.json", "--out", folder / "index")
    assert done.returncode == 0
    done = tercet("search", folder / "index", "a dog")
    assert "\\x1b]0;PWNED" in done.stdout
    assert not controls(done.stdout + done.stderr)
    done = tercet("search", folder / "index", "a dog", "--json")
    assert not controls(done.stdout)
    assert json.loads(done.stdout)[0]["captions"][0].startswith(f"a dog{TITLE}")  # exactly, for programs


def test_progress_and_the_log_of_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(console_module, "SECONDS_BETWEEN_LINES", 0.0)
    stream = io.StringIO()
    for shown in (terminal_console(file=stream), terminal_console(file=stream, force_terminal=True, width=300)):
        run = console_module.RunProgress(console_module.ConsoleProgress(shown, transient=False))
        (tmp_path / f"run{TITLE}").mkdir(exist_ok=True)
        with run:
            run.begin(tmp_path / f"run{TITLE}" / "log.txt")
            run.log(f"image {CLEAR}\nskipped")
            run.step(1, 2, {"loss": TITLE})
        assert "image \\x1b[2J" in stream.getvalue()
    assert TITLE not in stream.getvalue()
    assert CLEAR not in stream.getvalue()
    assert not controls((tmp_path / f"run{TITLE}" / "log.txt").read_text())


def test_a_console_sends_its_own_control_characters_only():
    """Colours and a table that is drawn again remain."""
    shown, expected = io.StringIO(), io.StringIO()
    for console, name in (
        (terminal_console(file=shown, force_terminal=True, width=80), f"a{TITLE}"),
        (Console(file=expected, force_terminal=True, width=80), printable(f"a{TITLE}")),
    ):
        with Live(console=console, auto_refresh=False, refresh_per_second=1) as live:
            for _ in range(2):
                console.print(name, style="bold red", markup=False, highlight=False)
                table = Table("name")
                table.add_row("plain")
                live.update(table, refresh=True)
    assert shown.getvalue() == expected.getvalue()
    assert "\x1b[" in shown.getvalue()


def test_lines_are_lines(capsys):
    print_lines("a\nb", "c\x1b")
    assert capsys.readouterr().out == "a\\nb\nc\\x1b\n"


def printing_calls(source):
    """Calls of print and of rich's Console, which show text as it is."""
    return {
        node.func.id
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("print", "Console")
    }


def test_there_is_one_place_that_prints():
    # Help, version and completion script in main; JSON, which has escapes of its own, in search.
    allowed = {"console.py": {"print"}, "cli/main.py": {"print"}, "cli/search.py": {"print"}}
    for file in SOURCES.rglob("*.py"):
        name = file.relative_to(SOURCES).as_posix()
        assert printing_calls(file.read_text()) <= allowed.get(name, set()), name
    assert printing_calls("console = Console()\nprint(1)") == {"Console", "print"}
