"""Random batches on the store of resources, compared with a dict: states, names, events, labels, tombstones."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from odf_testing.postgres import PostgresServer
from odf_testing.profiles import examples
from odf_testing.resources import ALICE, SECRETS, VARIABLES, a_change, a_resource, an_id

from odf_common.resources.scalar_formats import ResourceId
from odf_coordinator.resources.sql_store import SqlResourceStore, SqlTransaction
from odf_coordinator.resources.store import (
    START,
    Change,
    EventKind,
    NameConflict,
    Query,
    RevisionMoved,
    StoredResource,
)

NAMES: Final = ("a", "A", "b", "c.d", "C.D")
LABELS: Final = (1, 1.0, "1", True, None)


@dataclass
class Model:
    """What the store has to have."""

    states: dict[ResourceId, StoredResource] = field(default_factory=dict)
    events: list[tuple[ResourceId, EventKind]] = field(default_factory=list)
    removed: dict[ResourceId, str] = field(default_factory=dict)

    def copy(self) -> "Model":
        return Model(dict(self.states), list(self.events), dict(self.removed))

    def save(self, change: Change) -> None:
        key, expected = change.resource.id, change.resource.revision
        actual = self.states[key].revision if key in self.states else None
        if expected != (actual or 0) or key in self.removed:
            raise RevisionMoved(resource=key, expected=expected, actual=actual)
        self.states[key] = replace(change.resource, revision=expected + len(change.events))
        self.events += [(key, event.kind) for event in change.events]

    def remove(self, resource: StoredResource) -> None:
        self.removed[resource.id] = self.states.pop(resource.id).name

    def check_names(self) -> None:
        taken = [(it.type, it.account, it.name.lower()) for it in self.states.values()]
        for type_id, account, name in taken:
            if taken.count((type_id, account, name)) > 1:
                raise NameConflict(type=type_id, account=account, name=name)


# A step takes the model, whose state is that of the store, and returns changes, or the resource to remove.
Step = Callable[[Model], list[Change] | StoredResource]


def create(number: int, name: str, label: object, is_secret: bool) -> Step:
    type_id = SECRETS if is_secret else VARIABLES
    new = a_resource(name, id=an_id(str(number)), type=type_id, labels={} if label is None else {"k": label})
    return lambda model: [a_change(new)]


def chosen(model: Model, number: int) -> StoredResource | None:
    states = sorted(model.states.values(), key=lambda it: it.id)
    return states[number % len(states)] if states else None


def change(number: int, name: str, label: object, age: int) -> Step:
    def step(model: Model) -> list[Change]:
        state = chosen(model, number)
        if state is None:
            return []
        old = replace(state, revision=max(state.revision - age, 0))
        kinds = (EventKind.RENAMED, EventKind.HEADERS_CHANGED)
        return [a_change(old, *kinds, name=name, labels={"k": label}, generation=state.generation + 1)]

    return step


def swap(one: int, other: int) -> Step:
    def step(model: Model) -> list[Change]:
        first, second = chosen(model, one), chosen(model, other)
        if first is None or second is None or first.id == second.id:
            return []
        return [
            a_change(first, EventKind.RENAMED, name=second.name),
            a_change(second, EventKind.RENAMED, name=first.name),
        ]

    return step


def remove(number: int) -> Step:
    return lambda model: chosen(model, number) or []


numbers, names, labels = st.integers(0, 7), st.sampled_from(NAMES), st.sampled_from(LABELS)
steps = st.one_of(
    st.builds(create, numbers, names, labels, st.booleans()),
    st.builds(create, numbers, names, labels, st.booleans()),
    st.builds(change, numbers, names, labels, st.sampled_from((0, 0, 0, 1))),
    st.builds(swap, numbers, numbers),
    st.builds(remove, numbers),
)
batches = st.lists(st.lists(steps, max_size=5), max_size=12)


def apply(step: Step, model: Model, transaction: SqlTransaction) -> None:
    """Do a step on both; they raise the same error."""
    planned = step(model)
    if isinstance(planned, StoredResource):
        model.remove(planned)
        transaction.remove(planned, 5_000)
        return
    try:
        for planned_change in planned:
            model.save(planned_change)
    except RevisionMoved as error:
        facts = error.facts()
        with pytest.raises(RevisionMoved) as caught:
            transaction.save(planned)
        assert caught.value.facts() == facts
        raise
    assert transaction.save(planned) == tuple(model.states[it.resource.id] for it in planned)


def run(batch: list[Step], model: Model, store: SqlResourceStore) -> Model:
    """Run a batch as a transaction; return the model after it, which is the one before if it was refused."""
    after = model.copy()
    try:
        with store.transaction() as transaction:
            for step in batch:
                apply(step, after, transaction)
    except NameConflict:
        with pytest.raises(NameConflict):
            after.check_names()
        return model
    except RevisionMoved:
        return model
    after.check_names()
    return after


def compare(model: Model, store: SqlResourceStore) -> None:
    """Compare everything that is read."""
    states = model.states.values()
    in_order = sorted(states, key=lambda it: (it.name.lower(), it.id))
    with store.read() as snapshot:
        assert list(snapshot.find(Query()).resources) == in_order
        assert [(it.resource, it.kind) for it in snapshot.events_after(START)] == model.events
        assert [it.position for it in snapshot.events_after(START)] == [*range(1, len(model.events) + 1)]
        assert snapshot.position() == len(model.events)
        for state in states:
            assert snapshot.by_id(state.id) == state
            assert snapshot.by_name(state.type, ALICE, state.name.swapcase()) == state
            assert len(snapshot.events_of(state.id)) == state.revision
        for label in LABELS[:4]:
            found = [it for it in in_order if "k" in it.labels and is_equal(it.labels["k"], label)]
            assert list(snapshot.find(Query(labels={"k": label})).resources) == found
        for key, name in model.removed.items():
            tombstone = snapshot.tombstone(key)
            assert snapshot.by_id(key) is None
            assert tombstone is not None
            assert tombstone.name == name


def is_equal(one: object, other: object) -> bool:
    return one == other and isinstance(one, bool) is isinstance(other, bool)


@settings(max_examples=examples(200))
@given(batches)
def test_a_store_in_memory_is_a_dict(plan: list[list[Step]]) -> None:
    check(plan, SqlResourceStore.open(None))


@settings(max_examples=examples(30))
@given(batches)
def test_a_store_in_postgresql_is_a_dict(postgres: PostgresServer, plan: list[list[Step]]) -> None:
    with postgres.database() as url:
        check(plan, SqlResourceStore.open(None, url))


def check(plan: list[list[Step]], store: SqlResourceStore) -> None:
    try:
        model = Model()
        for batch in plan:
            model = run(batch, model, store)
            compare(model, store)
    finally:
        store.close()
