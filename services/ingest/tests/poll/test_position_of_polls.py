"""The position of a polling source in the chain, and what a poll does with a state that it cannot read."""

from dataclasses import replace
from typing import Any

import pytest

from odf_common.dataset.open_rejects import POLLED, Numbers
from odf_common.errors import InvalidInput
from odf_common.metadata.events import AddData, DisablePollingSource, SetInfo, SourceState
from odf_common.metadata.fetching import FetchStep, FetchStepContainer, FetchStepUrl
from odf_common.ports.store import block_reader
from odf_ingest.poll.polled_position import (
    ETAG,
    FILE,
    PollPosition,
    ReadFile,
    last_content,
    state_of,
    without_count,
)

LAST = state_of(ETAG, "one")


def test_a_state_has_a_count_only_once_something_was_rejected() -> None:
    assert PollPosition(last=LAST).source_state("default") == LAST
    counted = PollPosition(last=LAST, rejected=2, retried=Numbers.from_numbers([1])).source_state("default")
    assert counted.kind == POLLED
    assert counted.value == '{"kind":"odf/etag","rejected":2,"retried":[[1,2]],"v":1,"value":"one"}'
    assert without_count(counted) == LAST
    assert without_count(None) is None


@pytest.mark.parametrize(
    "value",
    [
        "{",
        '{"kind":"odf/etag","rejected":2,"v":2,"value":"one"}',
        '{"kind":"odf/etag","rejected":"x","v":1,"value":"one"}',
        '{"kind":"odf/etag","rejected":2,"retried":[[2,1]],"v":1,"value":"one"}',
        '{"kind":"odf/etag","v":1,"value":"one"}',
    ],
)
def test_an_unreadable_count_does_not_restart_at_zero(value: str) -> None:
    with pytest.raises(InvalidInput, match="source state"):
        without_count(state_of(POLLED, value))


def test_the_state_of_a_file_has_its_name_as_it_is() -> None:
    read = ReadFile(name="März/a.csv", size=3, modified=4, digest="d")
    assert read.state().value == '{"digest":"d","file":"März/a.csv","modified":4,"size":3,"v":1}'
    assert ReadFile.parse(read.state().value) == read


def last_of(bench: Any, step: FetchStep) -> SourceState | None:
    return last_content(bench.state, block_reader(bench.blobs, bench.dataset), step)


def test_the_validator_of_an_url_counts_for_that_url_however_often_the_source_was_defined(
    make_polled: Any,
) -> None:
    one, other = (FetchStepUrl(url=f"http://example.org/{name}") for name in ("one", "other"))
    bench = make_polled(one)
    source = bench.state.polling_source
    assert last_of(bench, one) is None
    bench.propose(SetInfo(description="x"))
    bench.propose(AddData(new_source_state=LAST))
    bench.propose(SetInfo(description="y"))
    assert last_of(bench, one) == LAST
    for again in (replace(source, fetch=other), DisablePollingSource(), source):
        bench.propose(again)
        assert (last_of(bench, one), last_of(bench, other)) == (LAST, None)
    bench.propose(AddData(new_source_state=state_of(FILE, ReadFile(name="a").state().value)))
    assert last_of(bench, one) is None


@pytest.mark.parametrize(
    ("image", "other", "is_same"),
    [
        ("a/b:1", "a/b:2", True),
        ("a/b", "a/b:1", True),
        ("host:5000/a", "host:5000/a:1", True),
        ("a:1", "a@sha256:0f", True),
        ("host:5000/a:1@sha256:0f", "host:5000/a", True),
        ("a", "b", False),
        ("host:5000/a", "host:6000/a", False),
        ("host:5000/a", "host:5000/b", False),
    ],
)
def test_the_validator_of_an_image_counts_for_its_other_versions(
    make_polled: Any, image: str, other: str, *, is_same: bool
) -> None:
    bench = make_polled(FetchStepContainer(image=image))
    bench.propose(AddData(new_source_state=LAST))
    bench.propose(replace(bench.state.polling_source, fetch=FetchStepContainer(image=other)))
    assert last_of(bench, FetchStepContainer(image=other)) == (LAST if is_same else None)
