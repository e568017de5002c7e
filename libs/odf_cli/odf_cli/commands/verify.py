"""`odf verify`: check data against the chain's hashes, and transforms by replaying them."""

import click

from odf_cli import clients
from odf_cli.exit_codes import ExitCode
from odf_cli.name_lookup import complete_dataset
from odf_cli.output import echo, output_option, print_rows, progress
from odf_cli.user_input import absolute_url
from odf_common.proto.odf.node.v1.verifier_pb2 import Verdict, VerifyRequest

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
def command(
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
