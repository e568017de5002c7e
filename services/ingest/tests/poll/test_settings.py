from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from odf_common.errors import InvalidInput, NotFound, StorageUnavailable
from odf_common.metadata.fetching import FetchStepFilesGlob
from odf_common.metadata.scalars import Timestamp
from odf_common.metadata.steps import MergeStrategySnapshot, ReadStepNdJson
from odf_common.ports.store import CatalogEntry
from odf_ingest.control.source_control import SourceControl, SourceView
from odf_ingest.poll.schedule import PollSchedule, PollState, PollView

READ = ReadStepNdJson(ddl_schema=("id BIGINT", "event_time TIMESTAMP"))
LINE = '{"id":%d,"v":"a","event_time":"2020-01-01T%02d:00:00Z"}\n'


def test_a_polling_source_is_configured_and_shown_like_others(
    make_polled: Any, make_poller: Any, tmp_path: Path
) -> None:
    bench = make_polled(FetchStepFilesGlob(path=f"{tmp_path}/*.json"), read=READ)
    unused = cast("Any", SimpleNamespace())
    poller = make_poller(bench)
    schedule = PollSchedule(
        poller=poller, catalog=unused, blobs=bench.blobs, current=unused, is_ours=unused, pool=unused
    )
    control = SourceControl(
        queues=bench.queues,
        topics=unused,
        owned=unused,
        blobs=bench.blobs,
        request=unused,
        schedule=schedule,
    )
    entry = cast("CatalogEntry", SimpleNamespace(dataset_id=bench.dataset, push_topics={}, alias="a"))
    assert control.change(entry, "", {"watermarkDelay": "2h"}) == "default"
    for number, hour in enumerate((9, 3, 8)):
        (tmp_path / f"{number}.json").write_text(LINE % (number, hour))
    poller.poll(bench.dataset, lambda _: None, lambda: True)
    assert bench.state.watermark == Timestamp.parse("2020-01-01T07:00:00Z")
    (shown,) = control.show(entry)
    assert (shown.name, shown.state, shown.settings.watermark_delay) == ("default", "idle", 7_200_000)
    assert (shown.late.count, shown.late.most) == (1, 4 * 3_600_000)
    assert control.change(entry, "", {"badRecords": "dead-letter"}) == "default"
    bench.propose(replace(bench.state.polling_source, merge=MergeStrategySnapshot(primary_key=("id",))))
    with pytest.raises(InvalidInput, match="badRecords: a snapshot without its bad rows would retract them"):
        control.change(entry, "", {"watermarkDelay": "0"})
    control.change(entry, "", {"badRecords": "auto"})
    with pytest.raises(NotFound):
        control.change(entry, "other", {"watermarkDelay": "0"})
    for setting, value in (("schemaRegistry", "http://registry"), ("topics", "shop"), ("keyColumns", "key")):
        with pytest.raises(InvalidInput, match=f"{setting}: a has no push source"):
            control.change(entry, "", {setting: value})
    for setting in ("partitions", "retention"):
        with pytest.raises(InvalidInput, match=f"{setting}: source default of a has no topic of its own"):
            control.change(entry, "", {setting: "7" if setting == "partitions" else "7d"})
    assert control.change(entry, "", {"schemaRegistry": ""}) == "default"


def test_a_polling_source_is_shown_with_its_last_error_and_next_poll(
    make_polled: Any, tmp_path: Path
) -> None:
    bench = make_polled(FetchStepFilesGlob(path=f"{tmp_path}/*.json"))
    last, following = (Timestamp.parse(f"2020-01-01T0{hour}:00:00Z") for hour in (1, 2))
    gone = StorageUnavailable(what="the folder", why="is not mounted")
    unused = cast("Any", SimpleNamespace())

    def shown(**known: Any) -> SourceView:
        view = PollView(dataset=bench.dataset, interval=60, **known)
        schedule = cast("Any", SimpleNamespace(view=lambda *_: view))
        control = SourceControl(
            queues=bench.queues,
            topics=unused,
            owned=unused,
            blobs=bench.blobs,
            request=unused,
            schedule=schedule,
        )
        (found,) = control.show(cast("CatalogEntry", SimpleNamespace(dataset_id=bench.dataset)))
        return found

    found = shown(state=PollState.FAILED, last=last, next=following, error=gone)
    assert (found.state, found.since, found.next_poll) == ("failed", str(last), str(following))
    assert (found.why, found.advice) == (str(gone), f"{gone.advice()}; work then continues automatically")
    found = shown(state=PollState.IDLE)
    assert (found.since, found.next_poll, found.why, found.advice) == ("", "", "", "")
