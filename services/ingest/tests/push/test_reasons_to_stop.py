"""Which changes of a chain resolve the reason for which a source was stopped."""

from dataclasses import replace

import pytest
from odf_testing.builders import a_chain, a_dataset, a_push_source, a_seed

from odf_common.chain.state import ChainState
from odf_common.dataset.open_rejects import KIND
from odf_common.metadata.events import SourceState
from odf_ingest.commit.position import SourcePosition, TopicPosition
from odf_ingest.push.source_topics import Key, as_of

READ = TopicPosition(topic_id="id", next={0: 5})
MORE = TopicPosition(topic_id="id", next={0: 6})


def chain(
    *receipts: str, source: str = "default", defined: str = "default", **topics: TopicPosition
) -> ChainState:
    """Return the state of a chain that defines a push source, and has the positions of one."""
    position = SourcePosition(topics=topics, receipts=receipts)
    known = SourceState(source_name=source, kind=KIND, value=position.text())
    state = a_chain(a_seed(), a_push_source(defined)).state
    return replace(state, source_states={source: known})


@pytest.mark.parametrize(
    ("after", "is_ended"),
    [
        (chain(own=READ, theirs=READ), False),
        (chain(own=MORE, theirs=READ), False),
        (chain(own=READ, theirs=MORE), True),
        (chain("file-0", own=READ, theirs=READ), True),
        (chain(defined="other", own=READ, theirs=READ), True),
    ],
    ids=["nothing", "own topic", "this topic", "pushed file", "definition"],
)
def test_the_stop_of_an_external_topic_ends_with_its_own_position_and_definition(
    after: ChainState, is_ended: bool
) -> None:
    key = Key(a_dataset(), "default", "theirs")
    assert (as_of(after, key) != as_of(chain(own=READ, theirs=READ), key)) == is_ended


@pytest.mark.parametrize(
    ("after", "is_ended"),
    [
        (chain(own=READ), False),
        (chain(own=READ, source="other"), True),
        (chain(own=MORE), True),
        (chain(defined="other", own=READ), True),
    ],
    ids=["nothing", "position gone", "position", "definition"],
)
def test_the_stop_of_a_source_ends_with_its_position_and_definition(
    after: ChainState, is_ended: bool
) -> None:
    key = Key(a_dataset(), "default")
    assert (as_of(after, key) != as_of(chain(own=READ), key)) == is_ended
