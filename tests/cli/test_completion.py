"""Completion scripts, sourced by the shells that are installed."""

import shutil
import subprocess

import pytest

from tercet.cli.main import COMMANDS, main


def script(shell, capsys) -> str:
    main(["completion", shell])
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["tercet", "com"], "compare completion"),
        (["tercet", "train", "--objective", "triplet"], "triplet triplet-sh"),
        (["tercet", "train", "--objective", "nt"], "nt-xent"),
        (["tercet", "compare", "--objectives", "triplet", "cir/s"], "cir/sig cir/sig-ms"),
        (["tercet", "train", "--model", "vse-"], None),
        (["tercet", "train", "--sched"], "--schedule"),
        (["tercet", "train", "--schedule", "cos"], "cosine"),
        (["tercet", "data", "con"], "convert"),
        (["tercet", "compare", "--metric", "r"], "rsum"),
        (["tercet", "features", "--text-encoder", ""], "bag-of-words minilm"),
        (["tercet", "list", "enc"], "encoders"),
    ],
)
def test_bash_completes_commands_settings_and_names(words, expected, capsys, tmp_path):
    file = tmp_path / "tercet.bash"
    file.write_text(script("bash", capsys))
    quoted = " ".join(f"'{word}'" for word in words)
    line = f'source {file}; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _tercet; echo "${{COMPREPLY[@]}}"'
    found = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout.split()
    if expected is None:
        assert found
        assert all(name.startswith(words[-1]) for name in found)
    else:
        assert found == expected.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script_for_every_command(shell, capsys, tmp_path):
    text = script(shell, capsys)
    assert all(name in text for name in COMMANDS)
    if shutil.which(shell) is not None:
        file = tmp_path / "script"
        file.write_text(text)
        checked = subprocess.run([shell, "-n", str(file)], capture_output=True, text=True)
        assert (checked.returncode, checked.stderr) == (0, "")


def test_fish_completes_further_values_of_a_setting(capsys):
    text = script("fish", capsys)
    (line,) = (
        line
        for line in text.splitlines()
        if "string match -q -- --objectives (__tercet_flag)" in line and "compare" in line
    )
    assert " nt-xent " in line


def test_an_unknown_shell_is_refused(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["completion", "csh"])
    assert stopped.value.code == 2
