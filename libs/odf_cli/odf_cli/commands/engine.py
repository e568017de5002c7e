"""Results of the engine: `odf sql` queries, `odf verify` replays, `odf engine` continues with another version."""

import sys
from collections.abc import Sequence

import click

from odf_cli import clients
from odf_cli.exit_codes import ExitCode
from odf_cli.name_lookup import complete_dataset
from odf_cli.output import confirm, echo, output_option, prefix_dataset, print_rows, progress, remark
from odf_cli.rows import arrow_table, print_records
from odf_cli.suggestions import CommandGroup
from odf_cli.user_input import absolute_url, remark_on_typing
from odf_common.proto.odf.node.v1.coordinator_pb2 import SqlRequest, UpgradeEngineItem, UpgradeEngineRequest
from odf_common.proto.odf.node.v1.verifier_pb2 import Verdict, VerifyRequest


@click.command("sql")
@click.argument("query", required=False)
@click.option("-c", "--command", "option", metavar="QUERY", help="The query, as an option.")
@output_option
def sql_command(*, query: str | None, option: str | None, output: str) -> None:
    """Query datasets with Spark SQL; without QUERY, read it from standard input. Put names with dots in backticks.

    \b
    Example:
      odf sql 'SELECT origin, count(*) AS n FROM `flights.late` GROUP BY origin'
    """
    if query is not None and option is not None:
        raise click.UsageError("give one query, as an argument or with -c")
    sql = option if query is None else query
    if sql is None:
        remark_on_typing("a query")
    text = sys.stdin.read() if sql is None else sql
    with clients.coordinator() as coordinator:
        table = arrow_table(
            part.ipc
            for part in coordinator.Query(SqlRequest(sql=text), timeout=clients.STREAM_TIMEOUT_SECONDS)
        )
    print_records(table, output)


VALID = "valid"
COLUMNS = ("dataset", "verdict", "blocks", "MB", "transforms")


@click.command("verify")
@click.argument("datasets", nargs=-1, shell_complete=complete_dataset)
@click.option("--all", "every", is_flag=True, help="Verify all datasets of the node.")
@click.option(
    "--integrity", is_flag=True, help="Check only hashes and chain rules; do not replay transforms."
)
@click.option("-r", "--recursive", is_flag=True, help="Verify inputs too.")
@click.option("--incremental", is_flag=True, help="Check only blocks added since the last valid verdict.")
@output_option
def verify_command(
    *,
    datasets: tuple[str, ...],
    every: bool,
    integrity: bool,
    recursive: bool,
    incremental: bool,
    output: str,
) -> int:
    """Read everything again and compare hashes; replay every transform and compare its results.

    DATASET is a name, an id, a pattern of names in which % matches anything, or file://… for a copy in a folder.
    Exit status 3: something is not as declared, or a derivative has read blocks that its input no longer has. 1: no
    error was found, but not everything could be checked: `dropped` if the dataset's data was dropped,
    `not-replayable` if its transforms need an engine version that is not installed, or dropped data of an input,
    `not-checked` if the engine refuses one of its queries, computes other results today than the version that it
    names, or fails to run it on some blocks, or if an input is not on this node.

    \b
    Example:
      odf verify --all
      odf verify flights --integrity
      odf verify 'flights.%'
    """
    if not datasets and not every:
        raise click.UsageError("give DATASETs, or --all")
    request = VerifyRequest(
        refs=[absolute_url(ref) for ref in datasets],
        all=every,
        recursive=recursive,
        integrity_only=integrity,
        incremental=incremental,
    )
    verdicts = _verdicts(request)
    if output == "table":
        print_rows([_row(verdict) for verdict in verdicts], output, columns=COLUMNS)
        for verdict in verdicts:
            _print_problems(verdict)
    else:
        print_rows([_plain(verdict) for verdict in verdicts], output)
    if any(verdict.verdict == "invalid" for verdict in verdicts):
        return ExitCode.VERIFICATION_FAILED
    return ExitCode.OK if all(verdict.verdict == VALID for verdict in verdicts) else ExitCode.FAILED


def _verdicts(request: VerifyRequest) -> list[Verdict]:
    verdicts = []
    with clients.verifier() as verifier, progress() as bars:
        tasks: dict[str, int] = {}
        for item in verifier.Verify(request, timeout=clients.STREAM_TIMEOUT_SECONDS):
            if item.HasField("verdict"):
                verdicts.append(item.verdict)
                continue
            step = item.progress
            name = f"{step.dataset}: {step.phase}"
            if name not in tasks:
                tasks[name] = bars.add_task(name)
            bars.update(tasks[name], completed=step.done, total=step.total)  # type: ignore[arg-type]
    return verdicts


def _row(verdict: Verdict) -> dict[str, object]:
    return {
        "dataset": verdict.dataset,
        "verdict": verdict.verdict,
        "blocks": verdict.blocks,
        "MB": round(verdict.bytes / 1e6, 2),
        "transforms": verdict.transforms_replayed,
    }


def _plain(verdict: Verdict) -> dict[str, object]:
    problems = [
        {
            "kind": problem.kind,
            "block": problem.block or None,
            "sequence_number": problem.sequence_number if problem.HasField("sequence_number") else None,
            "object": problem.object or None,
            "text": problem.text,
        }
        for problem in verdict.problems
    ]
    return {
        "dataset": verdict.dataset,
        "verdict": verdict.verdict,
        "problems": problems,
        "blocks": verdict.blocks,
        "bytes": verdict.bytes,
        "transforms": verdict.transforms_replayed,
    }


def _print_problems(verdict: Verdict) -> None:
    for problem in verdict.problems:
        number = f" {problem.sequence_number}" if problem.HasField("sequence_number") else ""
        block = f", block{number} {problem.block}" if problem.block else ""
        damaged = f", object {problem.object}" if problem.object else ""
        echo(f"{verdict.dataset}{block}{damaged}: {problem.kind}: {problem.text}")


UPGRADE_COLUMNS = ("dataset", "from", "to", "differs", "state")
POSSIBLE, CURRENT, REFUSED = "possible", "up-to-date", "refused"


@click.group("engine", cls=CommandGroup)
def engine_command() -> None:
    """Continue derivatives with the installed version of the engine.

    \b
    Example:
      odf engine upgrade --all
    """


@engine_command.command("upgrade")
@click.argument("datasets", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All derivatives of the node.")
@click.option(
    "--from-start",
    is_flag=True,
    help="Derive all records again, in new blocks; with --all, of the datasets whose results can differ.",
)
@click.option("--dry-run", is_flag=True, help="Show what differs; change nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@output_option
def upgrade(
    *, datasets: tuple[str, ...], every: bool, from_start: bool, dry_run: bool, yes: bool, output: str
) -> int:
    """Show how results of derivatives differ from those of the version that computed them, and record today's.

    The next records are computed from the state that the earlier version left, and what it has emitted stays; `odf
    verify` does not check its blocks if their results differ today. With --from-start all is derived again, and what
    reads the dataset is rolled back and recomputed. In a name, % matches anything.

    Exit status 1: a dataset is refused, with the reason and what to do; the others are upgraded.

    \b
    Example:
      odf engine upgrade --all --dry-run
      odf engine upgrade flights.delays.hourly
      odf engine upgrade --all --from-start --yes
    """
    if bool(datasets) == every:
        raise click.UsageError("give DATASETs, or --all")
    request = UpgradeEngineRequest(refs=datasets, all=every, from_start=from_start)
    if dry_run or not yes:
        items = _upgrade(request, is_dry=True)
        possible = [item for item in items if item.outcome == POSSIBLE]
        if dry_run or not possible:
            return _print_upgrades(items, output)
        for item in possible:
            remark(
                prefix_dataset(
                    item.alias, f"{_version(item.before)} to {_version(item.after)}: {_shown_changes(item)}"
                )
            )
        consequence = ", and derive them again, with all that reads them" if from_start else ""
        count = "1 dataset" if len(possible) == 1 else f"{len(possible)} datasets"
        confirm(f"Upgrade {count}{consequence}?")
    return _print_upgrades(_upgrade(request, is_dry=False), output)


def _upgrade(request: UpgradeEngineRequest, *, is_dry: bool) -> list[UpgradeEngineItem]:
    asked = UpgradeEngineRequest(dry_run=is_dry)
    asked.MergeFrom(request)
    with clients.coordinator() as coordinator:
        return list(coordinator.UpgradeEngine(asked, timeout=clients.STREAM_TIMEOUT_SECONDS))


def _print_upgrades(items: Sequence[UpgradeEngineItem], output: str) -> int:
    """Print the upgrades and the reasons for refusals, and return the exit code."""
    if output == "table":
        rows = [item for item in items if item.outcome != CURRENT]
        if not rows:
            remark("nothing to upgrade")
        else:
            print_rows([_upgrade_row(item) for item in rows], output, columns=UPGRADE_COLUMNS)
    else:
        print_rows(
            [
                {**_upgrade_row(item), "differs": [*item.changes], "error": item.error or None}
                for item in items
            ],
            output,
        )
    refused = [item for item in items if item.outcome == REFUSED]
    for item in refused:
        remark(prefix_dataset(item.alias, item.error))
    return ExitCode.FAILED if refused else ExitCode.OK


def _upgrade_row(item: UpgradeEngineItem) -> dict[str, object]:
    return {
        "dataset": item.alias,
        "from": item.before or None,
        "to": item.after or None,
        "differs": _shown_changes(item),
        "state": item.outcome,
    }


def _shown_changes(item: UpgradeEngineItem) -> str:
    return "; ".join(item.changes) or ("" if item.outcome == REFUSED else "nothing")


def _version(text: str) -> str:
    return text or "no version"
