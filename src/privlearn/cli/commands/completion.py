"""`privlearn completion`: scripts that complete commands, options and choices in bash, zsh and
fish.
"""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from privlearn.cli import screen
from privlearn.cli.option import Option
from privlearn.cli.options import COMMANDS, options_of
from privlearn.cli.request import Request

#: Words for the place of the cursor; none where a value follows that is no choice: then the shell
#: completes files.
_BASH = """_privlearn() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
    local command="${{COMP_WORDS[1]}}" words=
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{commands}"
    else
        case "$command" in
{options}
        esac
        case "$command $before" in
{values}
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _privlearn privlearn"""


def run(request: Request) -> int:
    """Print the script of the shell."""
    bash = _BASH.format(
        commands=" ".join(COMMANDS),
        options="\n".join(
            f'            {name}) words="{" ".join(_words(name))}" ;;' for name in COMMANDS
        ),
        values="\n".join(
            f"            {pattern}) words={words} ;;" for pattern, words in _values()
        ),
    )
    scripts = {
        "bash": lambda: bash,
        "zsh": lambda: (
            "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && "
            f"bashcompinit\n{bash}"
        ),
        "fish": lambda: "\n".join(_fish()),
    }
    screen.print_lines(scripts[request.shell]().splitlines())
    return 0


def _words(command: str) -> Iterator[str]:
    """What may follow a command: its options, and what it has to choose among without one."""
    for option in options_of(command).values():
        yield from (f"--{option.name}",) if option.flag else option.choices or ()


def _values() -> Iterator[tuple[str, str]]:
    """Patterns of a command and an option that takes a value, with the values: choices, or none."""
    for command in COMMANDS:
        for option in options_of(command).values():
            if option.flag and option.kind is not bool:
                yield f'"{command} --{option.name}"', f'"{" ".join(option.choices or ())}"'


def _fish() -> list[str]:
    lines = []
    for command, summary in COMMANDS.items():
        lines.append(
            f"complete -c privlearn -n __fish_use_subcommand -f -a {command} -d {quote(summary)}"
        )
        for option in options_of(command).values():
            lines.append(
                f"complete -c privlearn -n '__fish_seen_subcommand_from {command}' "
                f"{_in_fish(option)}"
            )
    return lines


def _in_fish(option: Option) -> str:
    choices = f" -f -a {quote(' '.join(option.choices))}" if option.choices else ""
    takes = "" if not option.flag or option.kind is bool else " -r"
    name = f"-l {option.name}{takes} " if option.flag else ""
    return f"{name}{choices} -d {quote(option.help)}".replace("  ", " ").strip()
