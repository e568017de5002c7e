"""Pipe: the file through a command of this machine (spec: PrepStep::Pipe)."""

from pathlib import Path

from odf_common.errors import InvalidInput
from odf_common.metadata.fetching import PrepStepPipe
from odf_ingest.poll.fetch import Context
from odf_ingest.poll.fetch.command import PATH, Command
from odf_ingest.poll.unpack.unpack_step import unpack


@unpack.register
def pipe(step: PrepStepPipe, file: Path, target: Path, context: Context) -> None:
    """Write what the command makes of the file; raises `CommandFailed`."""
    if not step.command:
        raise InvalidInput(where="prepare.command", text="is empty")
    environ = {"PATH": PATH, "HOME": str(context.folder), "LANG": "C.UTF-8"}
    with file.open("rb") as source:
        Command(line=step.command, label=step.command[0], environ=environ).run(source, target, context)
