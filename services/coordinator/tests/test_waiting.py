"""A derivative without new records says what it waits for, and which command helps."""

import yaml
from odf_testing.coordinator import Coordinator
from odf_testing.manifests import Manifest, derivative, root

from odf_common.chain.build_blocks import add_data_event
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import EngineProgress
from odf_coordinator.operations.waiting import Wait

COLUMNS = ("event_time TIMESTAMP", "city STRING")
BOTH = derivative("both", {"left": "cities", "right": "towns"}, "SELECT * FROM left")
OVER = derivative("over", {"both": "both"}, "SELECT * FROM both")
HOUR = 3_600_000


def node_with(
    node: Coordinator, *manifests: Manifest, held: int = 0, until: int | None = None
) -> Coordinator:
    node.engine.progress = [EngineProgress(held=held, held_until=until, held_by="a join")]
    node.add(*(yaml.safe_dump(one) for one in manifests))
    node.push("cities", "Oslo", minute=5)
    node.work()
    return node


def wait_of(node: Coordinator, ref: str) -> Wait | None:
    return node.puller.waiting.wait_of(node.find(ref))


def test_records_that_are_held_wait_for_the_input_that_is_behind(node: Coordinator) -> None:
    node_with(node, root("cities", COLUMNS), root("towns", COLUMNS), BOTH, OVER, held=3, until=HOUR)

    wait = wait_of(node, "both")

    assert wait is not None
    assert (wait.input, wait.until) == ("towns", Timestamp.from_ms(HOUR))
    assert "3 records held by a join until the watermark reaches 1970-01-01T01:00:00Z" in wait.text
    assert "towns has no watermark; that of cities is 1970-01-01T00:05:00Z" in wait.text
    assert "`odf pull towns --set-watermark 1970-01-01T01:00:00Z`" in wait.remedy
    assert "idleTimeout=1h`, or less than `odf source show towns` says" in wait.remedy
    over = wait_of(node, "over")
    assert over is not None
    assert (over.input, "(it derives from towns)" in over.text) == ("towns", True)


def test_nothing_waits_once_the_engine_holds_nothing(node: Coordinator) -> None:
    node_with(node, root("cities", COLUMNS), root("towns", COLUMNS), BOTH, held=1, until=HOUR)
    node.engine.progress = ()
    node.push("towns", "Ely", minute=70)
    node.work()
    assert wait_of(node, "both") is None
    assert wait_of(node, "towns") is None, "a root waits for no other dataset"


def test_a_count_of_another_checkpoint_is_not_used(node: Coordinator) -> None:
    node_with(node, root("cities", COLUMNS), root("towns", COLUMNS), BOTH, held=1, until=HOUR)
    before = node.find("both").state.head
    node.engine.progress = [EngineProgress(held=9)]
    node.push("towns", "Ely", minute=7)
    node.work()
    node.editor.reset("both", before, is_forced=True)
    assert wait_of(node, "both") is None


def test_an_input_whose_columns_are_unknown_is_named(node: Coordinator) -> None:
    node_with(node, root("cities", COLUMNS), root("towns", ()), BOTH, OVER)
    for name in ("both", "over"):
        wait = wait_of(node, name)
        assert wait is not None
        assert wait.text.startswith(
            "it waits for the first record of towns, whose columns are not known before"
        )
        assert wait.remedy == "publish a record to towns"


def test_records_that_wait_for_a_time_in_the_future_name_the_way_back(node: Coordinator) -> None:
    node_with(node, root("cities", COLUMNS), root("towns", COLUMNS), BOTH)
    node.push("towns", "Ely", minute=5)
    node.work()
    good = node.find("cities").state
    far = Timestamp.parse("2099-01-01T00:00:00Z")
    node.engine.progress = [EngineProgress(held=1, held_until=far.ms, held_by="a join")]
    event = add_data_event(good, new_data=None, watermark=far, source_state=good.last_source_state)
    node.creator.amend(node.find("cities"), (event,))
    node.work()

    wait = wait_of(node, "both")

    assert wait is not None
    assert "--set-watermark" not in wait.remedy
    assert wait.remedy.startswith(
        "2099-01-01T00:00:00Z is in the future: if cities has such times by intention"
    )
    assert f"`odf reset cities {good.head} --force`" in wait.remedy
    node.editor.reset("cities", good.head, is_forced=True)
    assert node.find("cities").state.watermark == good.watermark


def test_a_held_record_of_the_future_does_not_ask_for_a_lower_watermark(node: Coordinator) -> None:
    node_with(node, root("cities", COLUMNS), root("towns", COLUMNS), BOTH)
    far = Timestamp.parse("2099-01-01T00:00:00Z")
    node.engine.progress = [EngineProgress(held=1, held_until=far.ms, held_by="a join")]
    node.push("towns", "Ely", minute=5)
    node.work()

    wait = wait_of(node, "both")

    assert wait is not None
    assert wait.remedy.startswith("2099-01-01T00:00:00Z is in the future: a record has such a time")
    assert "odf reset" not in wait.remedy
    assert "maxFuture" not in wait.remedy
