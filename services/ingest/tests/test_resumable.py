"""Which sources can be resumed, by their phase, what stops them, and whether a start is given."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from odf_testing.builders import a_dataset

from odf_common.errors import Refused
from odf_ingest.control.source_control import SourceControl
from odf_ingest.errors import SourceNotRead, SourceNotStopped, SourceStopped
from odf_ingest.push.lifecycle.source_record import Phase
from odf_ingest.push.source_topics import Key

KEY = Key(a_dataset(), "default", "")
STOPPED = SourceStopped(dataset="cities", source="default", reason="TopicGone", text="it is gone", topic="")


def outcome(phase: Phase | None, start: str, stop: SourceStopped | None) -> type[Refused] | None:
    """Return the error of resuming a source in a phase (None: not read) whose topic has, or lacks, a reason to stop it."""
    record = None if phase is None else SimpleNamespace(phase=phase)
    owned = cast("Any", SimpleNamespace(record=lambda _: record))
    unused = cast("Any", None)
    control = SourceControl(
        queues=unused, topics=unused, owned=owned, blobs=unused, request=unused, schedule=unused
    )
    try:
        control._require_resumable(KEY, start, lambda: stop)
    except Refused as error:
        return type(error)
    return None


@pytest.mark.parametrize("start", ["", "latest"])
@pytest.mark.parametrize("stop", [None, STOPPED])
def test_a_stopped_or_retried_source_is_resumed(start: str, stop: SourceStopped | None) -> None:
    for phase in (Phase.STOPPED, Phase.RETRYING):
        assert outcome(phase, start, stop) is None


def test_a_source_that_is_not_read_needs_a_start() -> None:
    assert outcome(None, "", None) is SourceNotRead
    assert outcome(None, "latest", None) is None


@pytest.mark.parametrize("phase", [one for one in Phase if one not in {Phase.STOPPED, Phase.RETRYING}])
def test_a_running_source_is_resumed_only_from_a_start_and_with_a_topic_that_stops_it(phase: Phase) -> None:
    assert outcome(phase, "", None) is SourceNotStopped
    assert outcome(phase, "latest", None) is SourceNotStopped
    assert outcome(phase, "", STOPPED) is SourceStopped
    assert outcome(phase, "latest", STOPPED) is None
