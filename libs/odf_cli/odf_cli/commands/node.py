"""The node itself: `odf down`, `logs`, `config`, `doctor`, `topics` and `completion`."""

import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click
from click.shell_completion import get_completion_class

from odf_cli.embedded.node_file import NoNode, forget_node, is_running, read_node
from odf_cli.embedded.orphans import end_leftovers
from odf_cli.embedded.parts.log_excerpt import readable
from odf_cli.exit_codes import ExitCode
from odf_cli.output import echo, output_option, print_rows, remark
from odf_cli.user_input import Count
from odf_common.errors import NotFound, Unavailable, nearest
from odf_common.service.settings import describe_variables, load

STOP_TIMEOUT_SECONDS: Final = 40.0  # longer than the supervisor's own limits


@click.command("down", short_help="Stop the node.")
def down_command() -> None:
    """Stop the node gracefully; no process of it is left when this returns.

    \b
    Example:
      odf down
    """
    home = load().home
    try:
        node = read_node(home)
    except NoNode as error:
        end_leftovers(home)
        forget_node(home)
        remark(str(error))
        return
    _end(node.pid)
    end_leftovers(home)
    forget_node(home)
    remark("the node is down")


def _end(pid: int) -> None:
    deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
    os.kill(pid, signal.SIGTERM)
    while is_running(pid):
        if time.monotonic() > deadline:
            # Its children are killed with it.
            os.kill(pid, signal.SIGKILL)
            raise Unavailable(
                what="the supervisor", why=f"it did not stop within {STOP_TIMEOUT_SECONDS:g} s and was killed"
            )
        time.sleep(0.05)


FOLLOW_SECONDS: Final = 0.5
READ_BYTES_PER_LINE: Final = (
    256  # so much of a log's end is read for each wanted line, and then more if that is not enough
)
LOG_SUFFIX: Final = ".log"


class NoLog(NotFound):
    """The home has no log of a part."""

    ADVICE = "`odf up` writes logs to $ODF_HOME/logs; with containers, see `docker compose logs`"


def complete_part(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of the parts with a log that begin with `incomplete`."""
    return [name for name in _logs() if name.startswith(incomplete)]


@click.command("logs")
@click.argument("parts", nargs=-1, metavar="[PART]...", shell_complete=complete_part)
@click.option(
    "-n",
    "--lines",
    type=Count(0),
    default=20,
    show_default=True,
    help="Maximum number of lines of each part.",
)
@click.option("-f", "--follow", is_flag=True, help="Print new lines until interrupted.")
@click.option("--raw", is_flag=True, help="Print lines as they are stored: JSON, with stack traces.")
def logs_command(*, parts: tuple[str, ...], lines: int, follow: bool, raw: bool) -> None:
    """Print the end of the logs of the node's parts, each line with its part; by default of all parts.

    Older lines are in the files, $ODF_HOME/logs.

    \b
    Example:
      odf logs
      odf logs ingest -n 100
      odf logs coordinator engine-spark --follow
    """
    logs = _select_logs(parts)
    ends = {}
    for part, file in logs.items():
        last, ends[part] = _last_lines(file, lines, is_raw=raw)
        _print_logs(part, last)
    while follow:
        time.sleep(FOLLOW_SECONDS)
        for part, file in logs.items():
            is_emptied = file.stat().st_size < ends[part]  # since it was too long
            text, ends[part] = _whole_lines(file, 0 if is_emptied else ends[part])
            _print_logs(part, _lines(text, is_raw=raw))


def _logs() -> Mapping[str, Path]:
    files = sorted((load().home / "logs").glob(f"*{LOG_SUFFIX}"))
    return {file.name.removesuffix(LOG_SUFFIX): file for file in files}


def _select_logs(parts: Sequence[str]) -> Mapping[str, Path]:
    """Return the log files of these parts, by default of all parts; raises `NoLog`."""
    logs = _logs()
    for part in parts:
        if part not in logs:
            near = nearest(part, logs)
            raise NoLog(what=f"a log of {part!r}{f' (did you mean {near}?)' if near else ''}")
    if not logs:
        raise NoLog(what=f"a log in {load().home / 'logs'}")
    return {part: logs[part] for part in parts or logs}


def _last_lines(file: Path, count: int, *, is_raw: bool) -> tuple[Sequence[str], int]:
    """Return the last `count` lines of a log at most, and the position of the end of the last one."""
    size = file.stat().st_size
    length = max(count, 1) * READ_BYTES_PER_LINE
    while True:
        text, end = _whole_lines(file, max(0, size - length))
        lines = _lines(text, is_raw=is_raw)
        if len(lines) >= count or length >= size:
            return lines[len(lines) - count :] if len(lines) > count else lines, end
        length *= 4


def _whole_lines(file: Path, start: int) -> tuple[str, int]:
    """Return the complete lines of a log from the position `start` on, and the position of their end."""
    with file.open("rb") as opened:
        opened.seek(max(0, start - 1))
        if start > 0:
            start += len(opened.readline()) - 1  # the rest of a line, or the end of the one before
        content = opened.read()
    whole = content[: content.rfind(b"\n") + 1]
    return whole.decode(errors="replace"), start + len(whole)


def _lines(text: str, *, is_raw: bool) -> Sequence[str]:
    return text.splitlines() if is_raw else readable(text)


def _print_logs(part: str, lines: Iterable[str]) -> None:
    for line in lines:
        echo(f"{part}: {line}")


@click.command("config", short_help="Show all settings.")
@output_option
def config_command(output: str) -> None:
    """Show all settings: environment variables with their values, secrets masked.

    \b
    Example:
      ODF_LOG_LEVEL=debug odf config --output json
    """
    values = load().shown()
    rows = [
        {"variable": name, "value": values[name], "meaning": meaning}
        for name, _, meaning in describe_variables()
    ]
    print_rows(rows, output)


@click.command("doctor", short_help="Check this machine and the node.")
@output_option
def doctor_command(output: str) -> int:
    """Check what a node needs, and the node if one is running: programs, versions, disk, memory, clock, ports, servers.

    The exit code is 1 if a check failed; warnings do not count.

    \b
    Example:
      odf doctor
      odf doctor --output json
    """
    from odf_cli.embedded.doctor_checks import FAILED, examine
    from odf_common.service.logging import configure_command

    configure_command()  # the checks import what logs
    rows = [asdict(finding) for finding in examine(load())]
    columns = (
        ("check", "state", "text", "remedy")
        if any(row["remedy"] for row in rows)
        else ("check", "state", "text")
    )
    print_rows(rows, output, columns=columns)
    return ExitCode.FAILED if any(row["state"] == FAILED for row in rows) else ExitCode.OK


@click.command("topics", short_help="Show the topics that the node needs.")
@output_option
def topics_command(output: str) -> None:
    """Show the topics that the node needs before it has a dataset: partitions, replication factor, configuration.

    With ODF_KAFKA_MANAGE_TOPICS=0 an administrator creates them before `odf up`, and one more for each push source:
    [prefix]odf.push.DATASET.SOURCE with retention.ms=-1. `odf add` names it if it is missing.

    \b
    Example:
      odf topics
      ODF_KAFKA=kafka:9092 ODF_KAFKA_PREFIX=staging. ODF_KAFKA_MIN_INSYNC_REPLICAS=2 odf topics --output json
    """
    from odf_common.adapters.kafka.cluster import node_topics
    from odf_common.service.connections import topic_policy

    settings = load()
    rows = [
        {
            "topic": spec.name,
            "partitions": spec.partitions,
            "replication": str(spec.replication_factor) if spec.replication_factor > 0 else "broker default",
            "config": spec.properties(),
        }
        for spec in node_topics(topic_policy(settings), settings.kafka_prefix)
    ]
    print_rows(rows, output)


# Bash takes a colon for the end of a word, and would not complete the name in TYPE:NAME.
BASH_WORDS: Final = "COMP_WORDBREAKS=${COMP_WORDBREAKS//:/}\n"


@click.command("completion", short_help="Print a completion script for your shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print a completion script for SHELL.

    \b
    Example:
      odf completion bash > ~/.local/share/bash-completion/completions/odf
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click knows these shells"
    script = kind(ctx.find_root().command, {}, "odf", "_ODF_COMPLETE").source()
    echo(f"{BASH_WORDS}{script}" if shell == "bash" else script)
