"""The interface of a prepare step: one function, a variant per module (spec: PrepStep)."""

from functools import singledispatch
from pathlib import Path

from odf_common.metadata.fetching import PrepStep
from odf_ingest.poll.fetch import Context
from odf_ingest.poll.poll_errors import PrepareUnsupported


@singledispatch
def unpack(step: PrepStep, file: Path, target: Path, context: Context) -> None:
    """Write the result of the step to `target`; raises `InvalidInput` for a file that does not fit it."""
    raise PrepareUnsupported(step=type(step).__name__.removeprefix("PrepStep"))
