"""Inputs that were reset below what derivatives have read, and derivatives that follow them back."""

from dataclasses import dataclass

import pytest
from odf_testing.coordinator import Coordinator, PassingEngine
from structlog.testing import capture_logs

from odf_common.chain.walk import iterate
from odf_common.errors import Refused, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import HEAD, DatasetId
from odf_common.metadata.engine_messages import TransformRequest, TransformResponseSuccess
from odf_common.metadata.events import SetInfo
from odf_common.ports.engine import OnProgress
from odf_common.ports.store import ObjectKind
from odf_common.service.environment import FreeLocks
from odf_coordinator.commit.dataset_locks import DatasetBusy, DatasetLocks
from odf_coordinator.operations.pull import PullProgress

COPIES = ("cities.copy", "copy.copy")


@dataclass
class Story:
    """A root of two slices, a derivative of it, and a derivative of that; both have two steps."""

    node: Coordinator
    first: Multihash  # the root's head with one slice

    def cities(self, ref: str) -> list[str]:
        return list(self.node.record_reader.tail(ref, 99)["city"].to_pylist())

    def go_another_way(self) -> None:
        """Reset the root below what was read, and continue from there."""
        self.node.editor.reset("cities", self.first, is_forced=True)
        self.node.push("cities", "Lima", minute=2)

    def problems(self) -> list[str]:
        return [self.node.stall_text(self.node.find(ref).id) for ref in COPIES]

    def remedy(self, ref: str) -> str:
        found = self.node.scheduler.stall_of(self.node.find(ref).id)
        return "" if found is None else found.remedy

    def derive_again(self, *refs: str) -> list[PullProgress]:
        with self.node.scheduler_running():
            steps = self.node.puller.derive_again(refs, is_recursive=False, is_wanted=lambda: True)
            return [one for one in steps if one.state != "running"]


@pytest.fixture
def story(node: Coordinator, root: str, derivative: str, second: str) -> Story:
    node.add(root, derivative, second)
    first = node.push("cities", "Oslo").state.head
    node.work()
    node.push("cities", "Rome", minute=1)
    node.work()
    return Story(node=node, first=first)


def test_a_derivative_of_a_reset_input_is_stalled_and_says_what_to_do(story: Story) -> None:
    read = story.node.find("cities").state.head
    before = story.node.find("cities.copy").state

    story.go_another_way()
    story.node.work()

    problem, other = story.problems()
    assert f"cities.copy has read block {read} of cities, which is no longer in its chain" in problem
    assert "`odf pull --reset-derivatives cities.copy`" in story.remedy("cities.copy")
    assert other == "", "what reads only the derivative has all it saw"
    assert story.node.find("cities.copy").state == before


def test_a_stalled_derivative_is_not_checked_repeatedly(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    story.go_another_way()
    story.node.work()
    plans = []
    monkeypatch.setattr(type(story.node.scheduler._transformer), "plan", lambda _, known: plans.append(known))

    story.node.push("cities", "Bonn", minute=3)
    story.node.now += 100
    story.node.work()

    assert plans == []
    assert story.problems()[0]


def test_derived_records_are_rolled_back_and_derived_again(story: Story) -> None:
    story.go_another_way()
    story.node.work()

    steps = story.derive_again("cities")

    assert [(one.alias, one.state) for one in steps[:2]] == [("copy.copy", "reset"), ("cities.copy", "reset")]
    assert [one.alias for one in steps[2:]] == ["cities", *COPIES], "pulled inputs first"
    assert [story.cities(ref) for ref in COPIES] == [["Oslo", "Lima"]] * 2
    assert story.problems() == ["", ""]


def test_a_copy_may_be_named_for_the_derivatives_that_read_it(story: Story) -> None:
    story.go_another_way()
    story.node.keys.remove(story.node.find("cities").id)

    steps = story.derive_again("cities")

    assert {one.alias: one.error for one in steps if one.state != "reset"} == dict.fromkeys(
        ["cities", *COPIES], ""
    )
    assert [story.cities(ref) for ref in COPIES] == [["Oslo", "Lima"]] * 2


def test_definitions_set_since_are_committed_again(story: Story) -> None:
    story.node.editor.commit_event("cities.copy", SetInfo(description="early"))
    story.node.push("cities", "Bern", minute=2)
    story.node.work()
    kept = story.node.find("cities").state.head
    story.node.push("cities", "Kyiv", minute=3)
    story.node.work()
    for text in ("late", "last"):
        story.node.editor.commit_event("cities.copy", SetInfo(description=text))
    story.node.push("cities", "Baku", minute=4)
    story.node.work()
    story.node.editor.reset("cities", kept, is_forced=True)

    story.derive_again("cities")

    state = story.node.find("cities.copy").state
    assert state.info == SetInfo(description="last")
    assert story.cities("cities.copy") == ["Oslo", "Rome", "Bern"]


def test_without_names_all_diverged_derivatives_are_rolled_back(story: Story) -> None:
    story.go_another_way()

    steps = story.derive_again()

    assert [one.alias for one in steps if one.state == "reset"] == ["copy.copy", "cities.copy"]
    assert story.cities("copy.copy") == ["Oslo", "Lima"]


def test_without_divergence_nothing_is_rolled_back(story: Story) -> None:
    before = [story.node.find(ref).state for ref in COPIES]

    steps = story.derive_again("cities.copy")

    assert [(one.alias, one.state) for one in steps] == [("cities.copy", "up-to-date")]
    assert [story.node.find(ref).state for ref in COPIES] == before


def test_an_input_reset_to_before_its_first_records_leaves_none_derived(story: Story) -> None:
    state = story.node.find("cities").state
    links = iterate(story.node.datasets.reader(state.dataset_id), state.head)
    empty = next(name for name, decoded, _ in links if decoded.block.sequence_number == 1)

    story.node.editor.reset("cities", empty, is_forced=True)
    story.node.work()
    assert "no longer in its chain" in story.problems()[0]
    story.derive_again("cities")

    assert [story.node.find(ref).state.last_offset for ref in COPIES] == [None, None]
    assert [story.node.find(ref).state.schema for ref in COPIES] == [None, None]
    story.node.push("cities", "Lima", minute=2)
    story.node.work()
    assert story.cities("copy.copy") == ["Lima"]


def test_a_copy_of_a_derivative_is_left_as_it_is(story: Story) -> None:
    story.go_another_way()
    before = story.node.find("cities.copy").state
    story.node.keys.remove(before.dataset_id)

    story.derive_again("cities")

    assert story.node.find("cities.copy").state == before


def test_a_reset_that_loses_records_already_read_is_refused_unless_forced(story: Story) -> None:
    with pytest.raises(Refused, match=r"--force, then roll back .*`odf pull --reset-derivatives cities`"):
        story.node.editor.reset("cities", story.first)


def test_a_reset_while_a_transform_runs_loses_only_the_transform(
    node: Coordinator, root: str, derivative: str
) -> None:
    node.add(root, derivative)
    first = node.push("cities", "Oslo").state.head
    node.work()
    node.push("cities", "Rome", minute=1)

    class Resetting(PassingEngine):
        """The input is reset while it works on it for the first time."""

        def execute_transform(
            self, request: TransformRequest, on_progress: OnProgress | None = None
        ) -> TransformResponseSuccess:
            if not self.requests:
                node.editor.reset("cities", first)
                node.push("cities", "Lima", minute=2)
            return super().execute_transform(request, on_progress)

    object.__setattr__(node.scheduler._transformer, "engine", Resetting())

    node.work()

    assert node.record_reader.tail("cities.copy", 9)["city"].to_pylist() == ["Oslo", "Lima"]
    assert node.stall_text(node.find("cities.copy").id) == ""


def test_a_derivative_with_an_unreadable_input_does_not_prevent_the_rollback_of_others(
    story: Story, root: str, derivative: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = story.node
    towns = derivative.replace("name: cities.copy", "name: towns.copy").replace("Cities", "towns")
    node.add(root.replace("name: cities", "name: towns"), towns.replace("FROM cities", "FROM towns"))
    node.push("towns", "Ulm")
    node.work()
    lost, head = node.find("towns").id, node.refs.head

    def failing(dataset: DatasetId, ref: str = HEAD) -> Multihash | None:
        if dataset == lost:
            raise Unavailable(what="the disk", why="EIO")
        return head(dataset, ref)

    monkeypatch.setattr(node.refs, "head", failing)
    story.go_another_way()

    diverged = node.puller.rollback
    with capture_logs() as logs:
        rolled_back = list(diverged.roll_back(diverged.downstream(node.datasets.all())))

    assert [one.alias for one in rolled_back] == ["copy.copy", "cities.copy"]
    assert "towns.copy" in {one.get("dataset") for one in logs if "cannot compare" in one["event"]}


def test_an_unreadable_derivative_does_not_prevent_the_rollback_of_others(
    story: Story, derivative: str
) -> None:
    node = story.node
    node.add(derivative.replace("name: cities.copy", "name: lost"))
    lost, copy = node.find("lost"), node.find("cities.copy")
    node.blobs.remove(lost.id, ObjectKind.BLOCK, [lost.state.head])
    story.go_another_way()

    with capture_logs():
        rolled_back = list(node.puller.rollback.roll_back([lost, copy]))

    assert [one.alias for one in rolled_back] == ["cities.copy"]


def test_a_derivative_with_another_operation_in_progress_is_not_rolled_back(story: Story) -> None:
    node, before = story.node, story.node.find("cities.copy")
    node.committer.locks = DatasetLocks(FreeLocks(), 10_000, local_seconds=0.01)
    story.go_another_way()

    with node.committer.lock(before.id), pytest.raises(DatasetBusy):
        list(node.puller.rollback.roll_back([before]))

    assert node.find("cities.copy").state == before.state


def test_definitions_that_were_set_and_set_back_are_not_committed_again(story: Story) -> None:
    node, read = story.node, story.node.find("cities").state.head
    before = node.editor.commit_event("cities.copy", SetInfo(description="before")).state.head
    node.push("cities", "Bonn", minute=3)
    node.work()
    for text in ("other", "before"):
        node.editor.commit_event("cities.copy", SetInfo(description=text))
    node.editor.reset("cities", read, is_forced=True)

    (one,) = node.puller.rollback.roll_back([node.find("cities.copy")])

    assert one.state.head == node.find("cities.copy").state.head == before


def test_a_derivative_of_a_missing_input_is_not_rolled_back(story: Story) -> None:
    node = story.node
    before = node.find("cities.copy").state.head
    node.catalog.remove("cities")

    assert [*node.puller.rollback.roll_back([node.find("cities.copy")])] == []

    assert node.find("cities.copy").state.head == before
