"""The interface of a prepare step, one function with a variant per kind, and the variant for Pipe (spec: PrepStep)."""

from functools import singledispatch
from pathlib import Path

from odf_common.errors import InvalidInput
from odf_common.metadata.fetching import PrepStep, PrepStepPipe
from odf_ingest.poll.fetch import Context
from odf_ingest.poll.fetch.command import PATH, Command
from odf_ingest.poll.poll_errors import PrepareUnsupported


@singledispatch
def unpack(step: PrepStep, file: Path, target: Path, context: Context) -> None:
    """Write the result of the step to `target`; raises `InvalidInput` for a file that does not fit it."""
    raise PrepareUnsupported(step=type(step).__name__.removeprefix("PrepStep"))


@unpack.register
def pipe(step: PrepStepPipe, file: Path, target: Path, context: Context) -> None:
    """Write the output of a command of this machine for the file; raises `CommandFailed`."""
    if not step.command:
        raise InvalidInput(where="prepare.command", text="is empty")
    environ = {"PATH": PATH, "HOME": str(context.folder), "LANG": "C.UTF-8"}
    with file.open("rb") as source:
        Command(line=step.command, label=step.command[0], environ=environ).run(source, target, context)
