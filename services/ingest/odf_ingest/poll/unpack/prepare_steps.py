"""Prepare steps of a source: their interface, the variant for Pipe, and all of them in order (spec: PrepStep)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import singledispatch
from pathlib import Path

from odf_common.errors import InvalidInput
from odf_common.metadata.fetching import PrepStep, PrepStepPipe
from odf_ingest.poll.fetch import Context, FetchedFile, FetchedMessages
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


def prepare_fetched(
    steps: Sequence[PrepStep], fetched: FetchedFile | FetchedMessages, context: Context
) -> FetchedFile | FetchedMessages:
    """Return what was fetched, with its file after the steps; messages have none.

    Raises `InvalidInput` with its place.
    """
    if isinstance(fetched, FetchedMessages):
        return fetched
    file = fetched.file
    for number, step in enumerate(steps):
        context.report(f"{fetched.label}: {type(step).__name__.removeprefix('PrepStep')}")
        target = context.folder / f"prepared-{number % 2}"
        with naming(fetched):
            unpack(step, file, target, context)
        file.unlink()
        file = target
    return replace(fetched, file=file)


@contextmanager
def naming(fetched: FetchedFile | FetchedMessages) -> Iterator[None]:
    """Prefix errors of a file's content with its place."""
    try:
        yield
    except InvalidInput as error:
        if error.text is None:
            raise
        where = f"{fetched.label}, {error.where}" if error.where else fetched.label
        raise error.with_facts(where=where) from error
