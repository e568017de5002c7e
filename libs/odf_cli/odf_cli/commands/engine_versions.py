"""`odf engine`: which version of the engine computes derivatives."""

from collections.abc import Sequence

import click

from odf_cli import clients
from odf_cli.exit_codes import ExitCode
from odf_cli.output import confirm, of_dataset, output_option, print_rows, remark
from odf_cli.suggestions import CommandGroup
from odf_common.proto.odf.node.v1.coordinator_pb2 import UpgradeEngineItem, UpgradeEngineRequest

COLUMNS = ("dataset", "from", "to", "differs", "state")
POSSIBLE, CURRENT, REFUSED = "possible", "up-to-date", "refused"


@click.group("engine", cls=CommandGroup)
def command() -> None:
    """Continue derivatives with the installed version of the engine.

    \b
    Example:
      odf engine upgrade --all
    """


@command.command("upgrade")
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
                of_dataset(item.alias, f"{_version(item.before)} to {_version(item.after)}: {_differs(item)}")
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
    """Print what was done, and why the rest is refused; return the exit code."""
    if output == "table":
        rows = [item for item in items if item.outcome != CURRENT]
        if not rows:
            remark("nothing to upgrade")
        else:
            print_rows([_row(item) for item in rows], output, columns=COLUMNS)
    else:
        print_rows(
            [{**_row(item), "differs": [*item.changes], "error": item.error or None} for item in items],
            output,
        )
    refused = [item for item in items if item.outcome == REFUSED]
    for item in refused:
        remark(of_dataset(item.alias, item.error))
    return ExitCode.FAILED if refused else ExitCode.OK


def _row(item: UpgradeEngineItem) -> dict[str, object]:
    return {
        "dataset": item.alias,
        "from": item.before or None,
        "to": item.after or None,
        "differs": _differs(item),
        "state": item.outcome,
    }


def _differs(item: UpgradeEngineItem) -> str:
    return "; ".join(item.changes) or ("" if item.outcome == REFUSED else "nothing")


def _version(text: str) -> str:
    return text or "no version"
