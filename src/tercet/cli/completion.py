"""`tercet completion bash|zsh|fish`: prints a script that completes commands, settings and names in a shell."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro

from tercet.cli.list import LISTS, What
from tercet.data.encoders.registry import all_encoders
from tercet.evaluation.metrics import metric_names

Shell = Literal["bash", "zsh", "fish"]
Flags = dict[str, tuple[str, ...]]
"""Flag -> the values that it can be completed with; none for paths and free text."""

# Settings whose values are names of one kind of `tercet list`.
NAMES: dict[str, tuple[What, ...]] = {
    "objective": ("objectives",),
    "objectives": ("objectives",),
    "warmup_objective": ("objectives",),
    "models": ("models", "recipes"),
    "format": ("formats",),
    "executor": ("executors",),
    "store": ("stores",),
    "protocol": ("protocols",),
    "protocols": ("protocols",),
}


@dataclass(frozen=True)
class CompletionSettings:
    """Print a completion script. bash: eval "$(tercet completion bash)" in ~/.bashrc; zsh: the same in ~/.zshrc, after
    compinit; fish: tercet completion fish > ~/.config/fish/completions/tercet.fish."""

    shell: tyro.conf.Positional[Shell]
    """Shell to print the script for."""


def completion_script(shell: Shell, commands: Mapping[str, tuple[str, list[type]]]) -> str:
    """`commands`: name -> its help, and the classes of its settings (several if it has subcommands)."""
    flags = {
        name: {flag: values for settings in classes for flag, values in _flags(name, settings).items()}
        for name, (_, classes) in commands.items()
    }
    words = {name: _subcommands(classes) for name, (_, classes) in commands.items()}
    if shell == "fish":
        return _fish({name: text for name, (text, _) in commands.items()}, flags, words)
    return _bash(flags, words) if shell == "bash" else _zsh(flags, words)


def _flags(command: str, settings: type) -> Flags:
    annotations = get_type_hints(settings, include_extras=True)
    flags: Flags = {"--help": ()}
    for field in fields(settings):
        annotation = annotations[field.name]
        if _is_positional(annotation):
            continue
        flag = f"--{_given_name(annotation) or field.name.replace('_', '-')}"
        flags[flag] = _values(command, field.name, annotation)
        if annotation is bool:
            flags[f"--no-{flag[2:]}"] = ()
    return flags


def _given_name(annotation: Any) -> str | None:
    """The name on the command line of a setting that has another name in Python, such as --from."""
    return next((each.name for each in getattr(annotation, "__metadata__", ()) if getattr(each, "name", None)), None)


def _is_positional(annotation: Any) -> bool:
    return tyro.conf.Positional in getattr(annotation, "__metadata__", ())


def _values(command: str, name: str, annotation: Any) -> tuple[str, ...]:
    if name == "metric":
        return tuple(metric_names(larger_is_better=True))
    if name in ("image_encoder", "text_encoder"):
        side = "image" if name == "image_encoder" else "text"
        return tuple(sorted(each for each, encoder in all_encoders().items() if getattr(encoder, side) is not None))
    kinds = NAMES["models"] if (command, name) == ("train", "model") else NAMES.get(name, ())
    if kinds:
        return tuple(dict.fromkeys(value for kind in kinds for value in LISTS[kind]()))
    return tuple(_choices(annotation))


def _choices(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    if get_origin(annotation) in (Union, UnionType, tuple):
        return [choice for part in get_args(annotation) for choice in _choices(part)]
    return []


def _subcommands(classes: list[type]) -> tuple[str, ...]:
    """The first words after the command that are known: names of subcommands, or choices of a positional setting."""
    if len(classes) > 1:
        return tuple(settings.__name__.lower() for settings in classes)
    annotations = get_type_hints(classes[0], include_extras=True)
    first = next((annotations[field.name] for field in fields(classes[0])), None)
    return tuple(_choices(get_args(first)[0])) if first is not None and _is_positional(first) else ()


def _cases(flags: Mapping[str, Flags]) -> str:
    lines = [
        f'    "{command} {flag}") values="{" ".join(values)}" ;;'
        for command, of_command in flags.items()
        for flag, values in of_command.items()
        if values
    ]
    return "\n".join(lines)


def _all_flags(flags: Mapping[str, Flags]) -> str:
    return "\n".join(f'    {command}) values="{" ".join(of_command)}" ;;' for command, of_command in flags.items())


def _all_words(words: Mapping[str, tuple[str, ...]]) -> str:
    return "\n".join(f'    {command}) values="{" ".join(values)}" ;;' for command, values in words.items() if values)


def _bash(flags: Mapping[str, Flags], words: Mapping[str, tuple[str, ...]]) -> str:
    return f"""_tercet() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" command="${{COMP_WORDS[1]}}" flag="" values="" position
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{" ".join(flags)} --help --version" -- "$current"))
    return
  fi
  for ((position = COMP_CWORD - 1; position > 1; position--)); do
    case "${{COMP_WORDS[position]}}" in --*) flag="${{COMP_WORDS[position]}}"; break ;; esac
  done
  if [ "${{current#-}}" != "$current" ]; then
    case "$command" in
{_all_flags(flags)}
    esac
  elif [ -n "$flag" ]; then
    case "$command $flag" in
{_cases(flags)}
    esac
  elif [ "$COMP_CWORD" -eq 2 ]; then
    case "$command" in
{_all_words(words)}
    esac
  fi
  if [ -n "$values" ]; then COMPREPLY=($(compgen -W "$values" -- "$current"))
  else COMPREPLY=($(compgen -f -- "$current")); fi
}}
complete -o filenames -F _tercet tercet
"""


def _zsh(flags: Mapping[str, Flags], words: Mapping[str, tuple[str, ...]]) -> str:
    return f"""_tercet() {{
  local command="${{words[2]}}" flag="" values="" position
  if (( CURRENT == 2 )); then compadd -- {" ".join(flags)} --help --version; return; fi
  for ((position = CURRENT - 1; position > 2; position--)); do
    [[ "${{words[position]}}" == --* ]] && {{ flag="${{words[position]}}"; break }}
  done
  if [[ "$PREFIX" == -* ]]; then
    case "$command" in
{_all_flags(flags)}
    esac
  elif [[ -n "$flag" ]]; then
    case "$command $flag" in
{_cases(flags)}
    esac
  elif (( CURRENT == 3 )); then
    case "$command" in
{_all_words(words)}
    esac
  fi
  if [[ -n "$values" ]]; then compadd -- ${{=values}}; else _files; fi
}}
compdef _tercet tercet
"""


def _fish(helps: Mapping[str, str], flags: Mapping[str, Flags], words: Mapping[str, tuple[str, ...]]) -> str:
    # The last flag before the cursor: after its first value, fish itself completes no further one.
    lines = ["function __tercet_flag", "  string match -- '--*' (commandline -opc) | tail -n 1", "end"]
    for command, text in helps.items():
        described = text.replace("'", "\\'")
        lines.append(f"complete -c tercet -f -n __fish_use_subcommand -a {command} -d '{described}'")
    for command, of_command in flags.items():
        seen = f"-n '__fish_seen_subcommand_from {command}'"
        if words[command]:
            lines.append(f"complete -c tercet {seen} -a '{' '.join(words[command])}'")
        for flag, values in of_command.items():
            choices = f" -x -a '{' '.join(values)}'" if values else ""
            lines.append(f"complete -c tercet {seen} -l {flag[2:]}{choices}")
            if values:
                after = f"__fish_seen_subcommand_from {command}; and string match -q -- {flag} (__tercet_flag)"
                lines.append(f"complete -c tercet -f -n '{after}' -a '{' '.join(values)}'")
    return "\n".join(lines) + "\n"
