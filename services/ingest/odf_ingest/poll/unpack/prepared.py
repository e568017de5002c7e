"""What was fetched, after all prepare steps of its source."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from odf_common.errors import InvalidInput
from odf_common.metadata.fetching import PrepStep
from odf_ingest.poll.fetch import Context, FetchedFile, FetchedMessages
from odf_ingest.poll.unpack.unpack_step import unpack


def prepared(
    steps: Sequence[PrepStep], fetched: FetchedFile | FetchedMessages, context: Context
) -> FetchedFile | FetchedMessages:
    """Return what was fetched with its file after the steps; messages have none.

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
        raise replace(error, where=where) from error
