"""Each interface of formats and steps refuses one that no module implements, by its name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast, get_args

import pyarrow as pa
import pytest

from odf_common.errors import InvalidInput
from odf_common.metadata.fetching import PrepStepPipe
from odf_common.metadata.scalars import Timestamp
from odf_common.metadata.steps import ReadStep
from odf_ingest.errors import UnsupportedStep
from odf_ingest.poll.event_time_source import event_time
from odf_ingest.poll.poll_errors import PrepareUnsupported
from odf_ingest.poll.unpack import pipe, unpack
from odf_ingest.read import format as formats
from odf_ingest.read import whole_table


class PrepStepOfAnotherVersion:
    """A step that this version does not know."""


STEP: Any = PrepStepOfAnotherVersion()
NONE: Any = cast("Any", None)
FILE = Path("file")


@pytest.mark.parametrize(
    "call",
    [
        lambda: formats.read_file(STEP, FILE, None),
        lambda: formats.read_records(STEP, [b""], None),
        lambda: formats.read_inferred(STEP, [b""], pa.schema([])),
        lambda: formats.read_batch(STEP, b"", None),
        lambda: formats.infer_records(STEP, [b""], None),
        lambda: whole_table.decode_table(STEP, NONE),
        lambda: whole_table.decode_schema(STEP, NONE),
    ],
)
def test_a_step_that_no_module_reads_is_unsupported(call: Callable[[], object]) -> None:
    with pytest.raises(UnsupportedStep, match="PrepStepOfAnotherVersion"):
        call()


def test_what_a_format_may_lack_defaults_to_nothing() -> None:
    known = pa.schema([("id", pa.int64())])
    assert formats.split_file(STEP, b"") is None
    assert formats.suspects(STEP, [b""], None) == {}
    assert formats.infer_batch(STEP, b"", known) is known


def test_a_command_without_a_name_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"prepare\.command: is empty"):
        pipe(PrepStepPipe(command=()), FILE, FILE, NONE)


def test_an_unknown_way_to_prepare_a_file_or_to_find_its_time_is_refused() -> None:
    with pytest.raises(PrepareUnsupported, match="OfAnotherVersion"):
        unpack(STEP, FILE, FILE, NONE)
    with pytest.raises(TypeError):
        event_time(STEP, "path", None, Timestamp.from_ms(0))


@pytest.mark.parametrize("step", get_args(ReadStep))
def test_every_read_format_has_a_reader(step: Any) -> None:
    assert formats.read_file.dispatch(step) is not formats.read_file.dispatch(object)
    assert formats.read_batch.dispatch(step) is not formats.read_batch.dispatch(object)
