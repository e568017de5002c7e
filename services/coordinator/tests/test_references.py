"""References other than the head: staged, compared, followed by the head, and moved by compare-and-set only."""

import pytest
from odf_testing.coordinator import Coordinator

from odf_common.adapters.local.stores import CorruptRef
from odf_common.chain.compare_chains import Ahead, Behind, Diverged, Equal
from odf_common.errors import HeadMoved, InvalidInput, NotFound, OdfError, Refused
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import (
    AddPushSource,
    DisablePushSource,
    MergeStrategyAppend,
    ReadStepNdJson,
    SetInfo,
    SetTransform,
    TransformInput,
    TransformSql,
)
from odf_common.ports.store import ObjectKind
from odf_coordinator.api.grpc_servicer import ref_item
from odf_coordinator.commit.committer import Committed, Outcome, Overtaken
from odf_coordinator.operations.references import ChainComparison

BRANCH = "cities@next"


@pytest.fixture
def cities(node: Coordinator, root: str) -> Coordinator:
    node.add(root)
    node.push("cities", "Oslo")
    return node


def info(text: str) -> SetInfo:
    return SetInfo(description=text)


def test_a_reference_is_created_at_the_head_and_continues_automatically(cities: Coordinator) -> None:
    head = cities.find("cities").state
    made = cities.references.set(BRANCH, "", None)
    assert (made.name, made.block, made.compared) == (
        "next",
        head.head,
        ChainComparison(relation=Equal(), common=head.head),
    )

    staged = cities.editor.commit_event(BRANCH, info("towns"))

    assert staged.state.info == info("towns")
    assert cities.find("cities").state == head
    first, second = cities.references.all("cities")
    assert (first.name, first.compared) == ("head", ChainComparison(relation=Equal(), common=head.head))
    assert (second.name, second.compared) == (
        "next",
        ChainComparison(relation=Ahead(blocks=1), common=head.head),
    )


def test_the_head_follows_a_reference_that_continues_it(cities: Coordinator) -> None:
    cities.references.set(BRANCH, "", None)
    staged = cities.editor.commit_event(BRANCH, info("towns"))

    cities.references.fast_forward(BRANCH)

    assert cities.find("cities").state == staged.state
    assert cities.references.fast_forward(BRANCH).handle.state == staged.state, "again, nothing happens"
    cities.push("cities", "Rome", minute=1)
    assert cities.references.compare(BRANCH, "cities").relation == Behind(blocks=1)
    assert cities.references.fast_forward(BRANCH).handle.state == cities.find("cities").state, "it is past it"


def test_the_head_does_not_follow_a_diverged_reference(cities: Coordinator) -> None:
    common = cities.references.set(BRANCH, "", None).block
    cities.editor.commit_event(BRANCH, info("towns"))
    cities.push("cities", "Rome", minute=1)
    cities.push("cities", "Bern", minute=2)

    compared = cities.references.compare("cities", BRANCH)

    assert compared.relation == Diverged(ancestor=common, ours=2, theirs=1)
    with pytest.raises(Refused, match=rf"cities has 2 blocks and next has 1 .* {common}"):
        cities.references.fast_forward(BRANCH)


def test_a_push_source_that_was_staged_gets_its_topic_when_the_head_has_it(cities: Coordinator) -> None:
    cities.references.set(BRANCH, "", None)
    other = AddPushSource(source_name="other", read=ReadStepNdJson(), merge=MergeStrategyAppend())
    cities.editor.commit_event(BRANCH, other)
    assert set(cities.topics.names) == {"odf.push.cities.default"}

    known = cities.references.fast_forward(BRANCH).handle

    assert known.entry.push_topics["other"] in cities.topics.names
    assert cities.find("cities").entry == known.entry


def test_a_push_source_that_was_staged_gets_no_topic_in_a_copy(cities: Coordinator) -> None:
    cities.references.set(BRANCH, "", None)
    other = AddPushSource(source_name="other", read=ReadStepNdJson(), merge=MergeStrategyAppend())
    cities.editor.commit_event(BRANCH, other)
    cities.keys.remove(cities.find("cities").id)

    known = cities.references.fast_forward(BRANCH).handle

    assert set(known.state.push_sources) == {"default", "other"}
    assert set(cities.topics.names) == {"odf.push.cities.default"}
    assert known.entry == cities.find("cities").entry


def test_a_reference_moves_only_from_where_it_is_expected(cities: Coordinator) -> None:
    first = cities.references.set(BRANCH, "", "").block
    head = cities.push("cities", "Rome", minute=1).state.head
    with pytest.raises(HeadMoved):
        cities.references.set(BRANCH, "", "")
    with pytest.raises(HeadMoved):
        cities.references.set(BRANCH, "", str(head))
    with pytest.raises(HeadMoved):
        cities.references.delete(BRANCH, str(head))
    with pytest.raises(HeadMoved):
        cities.references.delete(BRANCH, "")

    assert cities.references.set(BRANCH, str(head), str(first)).block == head
    compared = cities.references.set("cities@old", str(first), None).compared
    assert compared == ChainComparison(relation=Behind(blocks=1), common=first)
    assert cities.references.set("cities@older", "old", None).block == first
    cities.references.delete(BRANCH, str(head))
    with pytest.raises(NotFound, match="reference next of cities"):
        cities.datasets.open_at(BRANCH)


def test_a_late_commit_to_a_reference_is_compared_with_the_chain_of_that_reference(
    cities: Coordinator,
) -> None:
    start = cities.references.set(BRANCH, "", None).block
    assert start is not None
    dataset, now = cities.find("cities").id, cities.clock.now()

    def commit(text: str) -> Outcome:
        return cities.committer.commit(
            dataset, expected_head=start, events=[info(text)], system_time=now, ref="next"
        )

    first = commit("towns")
    assert isinstance(first, Committed)
    assert commit("towns") == Committed(state=first.state, already=True)
    assert commit("villages") == Overtaken(expected=start, head=first.state.head)
    assert cities.find("cities").state.head == start


def test_a_reference_that_cannot_be_read_hides_no_other(cities: Coordinator) -> None:
    head = cities.references.set("cities@well", "", None).block
    cities.references.set("cities@broken", "", None)
    lost = cities.editor.commit_event("cities@broken", info("towns")).state.head
    cities.blobs.remove(cities.find("cities").id, ObjectKind.BLOCK, [lost])
    cities.references.set("cities@damaged", "", None)
    read = cities.refs.head

    def damaged(dataset: DatasetId, ref: str = "head") -> Multihash | None:
        if ref == "damaged":
            raise CorruptRef(file=ref, why="it is empty")
        return read(dataset, ref)

    cities.refs.head = damaged  # type: ignore[method-assign]

    found = {one.name: one for one in cities.references.all("cities")}

    assert [*found] == ["head", "broken", "damaged", "well"]
    assert (found["well"].block, found["well"].problem) == (head, "")
    assert (found["broken"].block, found["broken"].compared) == (lost, None)
    assert str(lost) in found["broken"].problem
    assert (found["damaged"].block, found["damaged"].sequence_number) == (None, None)
    assert "it is empty" in found["damaged"].problem
    item = ref_item(found["broken"])
    assert (item.block, item.problem) == (str(lost), found["broken"].problem)
    assert not item.HasField("sequence_number")
    for name in ("broken", "damaged"):
        cities.references.delete(f"cities@{name}", None)
    assert [one.name for one in cities.references.all("cities")] == ["head", "well"]
    with pytest.raises(NotFound, match="reference broken of cities"):
        cities.references.delete("cities@broken", None)


def test_references_are_listed_where_the_head_cannot_be_read(cities: Coordinator) -> None:
    cities.references.set("cities@old", "", None)
    lost = cities.editor.commit_event("cities", info("towns")).state.head
    cities.blobs.remove(cities.find("cities").id, ObjectKind.BLOCK, [lost])
    cities.states.forget(cities.find("cities").id)

    head, old = cities.references.all("cities")

    assert (head.block, head.sequence_number) == (lost, None)
    assert str(lost) in head.problem
    assert (old.sequence_number, old.compared, old.problem) == (3, None, "")


def test_a_reference_that_is_deleted_meanwhile_is_not_listed(cities: Coordinator) -> None:
    for name in ("next", "other"):
        cities.references.set(f"cities@{name}", "", None)
    dataset, names = cities.find("cities").id, cities.refs.names(cities.find("cities").id)
    cities.refs.remove(dataset, "next", expected=None)
    cities.refs.names = lambda dataset: names  # type: ignore[method-assign]
    assert [one.name for one in cities.references.all("cities")] == ["head", "other"]


def test_a_reference_is_reset_to_a_block_of_its_own_chain(cities: Coordinator) -> None:
    head = cities.find("cities").state.head
    cities.references.set(BRANCH, "", None)
    staged = cities.editor.commit_event(BRANCH, info("towns")).state
    cities.references.set("cities@back", "", None)

    with pytest.raises(InvalidInput, match="not a block of the chain"):
        cities.editor.reset("cities@back", staged.head)
    cities.editor.reset(BRANCH, head)

    assert cities.datasets.open_at(BRANCH).state.head == head


def test_the_state_of_another_reference_does_not_evict_that_of_the_head(cities: Coordinator) -> None:
    first = cities.references.set("cities@old", "", None).block
    cities.push("cities", "Rome", minute=1)
    assert cities.datasets.open_at("cities@old").state.head == first
    read = cities.blobs.read
    try:
        cities.blobs.read = lambda *_: pytest.fail("the head's state was forgotten")  # type: ignore[method-assign]
        assert cities.find("cities").state.last_offset == 1
    finally:
        cities.blobs.read = read  # type: ignore[method-assign]


def test_what_is_no_reference_or_no_block_is_refused(cities: Coordinator) -> None:
    head = str(cities.find("cities").state.head)
    for wrong in ("cities", "cities@head", "cities@", "cities@a/b", "cities@../head", "cities@HEAD"):
        with pytest.raises(InvalidInput, match="reference"):
            cities.references.set(wrong, "", None)
    with pytest.raises(NotFound, match="block"):
        cities.references.set(BRANCH, str(Multihash.sha3(bytes(32))), None)
    with pytest.raises(NotFound, match="reference nowhere of cities"):
        cities.references.set(BRANCH, "nowhere", None)
    with pytest.raises(NotFound, match="towns"):
        cities.references.set("towns@next", head, None)
    with pytest.raises(NotFound, match="reference next"):
        cities.references.fast_forward(BRANCH)
    with pytest.raises(InvalidInput, match="cities@next"):
        cities.names.rename(BRANCH, "towns")


def test_rules_hold_on_a_reference_too(cities: Coordinator) -> None:
    cities.references.set(BRANCH, "", None)
    staged = cities.datasets.open_at(BRANCH).state

    with pytest.raises(OdfError, match="push source 'nowhere' does not exist"):
        cities.editor.commit_event(BRANCH, DisablePushSource(source_name="nowhere"))

    assert cities.datasets.open_at(BRANCH).state == staged


def test_other_datasets_share_no_block(cities: Coordinator, derivative: str) -> None:
    cities.add(derivative)

    compared = cities.references.compare("cities", "cities.copy")

    assert isinstance(compared.relation, Diverged)
    assert compared.common is None


def test_a_cycle_that_was_staged_in_two_datasets_is_never_closed(
    cities: Coordinator, derivative: str
) -> None:
    first = derivative.replace("cities.copy", "first")
    second = derivative.replace("cities.copy", "second")
    cities.add(first, second)
    for name, other in (("first", "second"), ("second", "first")):
        cities.references.set(f"{name}@next", "", None)
        source = str(cities.find(other).id)
        cities.editor.commit_event(
            f"{name}@next",
            SetTransform(
                inputs=(TransformInput(dataset_ref=source, alias="other"),),
                transform=TransformSql(engine="spark", query="SELECT event_time, city FROM other"),
            ),
        )
    cities.references.fast_forward("first@next")

    with pytest.raises(Refused, match="second cannot read other, which is second itself or derived from it"):
        cities.references.fast_forward("second@next")
