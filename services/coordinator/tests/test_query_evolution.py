"""A new query on a derivative that has data (spec: Query Evolution)."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pytest
from odf_testing.coordinator import Coordinator, PassingEngine

from odf_common.chain.walk import iterate
from odf_common.errors import InvalidInput, InvalidQuery
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.engine_messages import TransformRequest, TransformResponseSuccess
from odf_common.metadata.events import (
    AddPushSource,
    DatasetVocabulary,
    ExecuteTransform,
    MergeStrategyAppend,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
    MetadataEvent,
    SetDataSchema,
    SetTransform,
    Transform,
    TransformInput,
    TransformSql,
)
from odf_common.ports.engine import MigrateRequest, OnProgress, Past, ValidatedQuery
from odf_common.ports.store import ObjectKind

WIDE = pa.schema(
    [("event_time", pa.timestamp("ms", "UTC")), ("city", pa.string()), ("population", pa.int64())]
)


def columns_of(transform: Transform) -> list[tuple[str, str]]:
    """Return what a query selects, and under which names."""
    query = (transform.queries or ())[-1].query
    selected = query.removeprefix("SELECT ").partition(" FROM ")[0].split(", ")
    return [(one.partition(" AS ")[0], one.rpartition(" AS ")[2]) for one in selected]


class Selecting(PassingEngine):
    """Runs queries that select columns of one input; its checkpoint says by which query it was written."""

    def validate(
        self,
        transform: Transform,
        inputs: Mapping[str, pa.Schema],
        vocabs: Mapping[str, DatasetVocabulary],
        output_vocab: DatasetVocabulary,
        past: Past | None = None,
        *,
        is_new: bool = False,
        retracting: Mapping[str, str] | None = None,
    ) -> ValidatedQuery:
        checked = super().validate(
            transform, inputs, vocabs, output_vocab, past, is_new=is_new, retracting=retracting
        )
        if checked.schema is None:
            return checked
        fields = [pa.field(name, checked.schema.field(of).type) for of, name in columns_of(transform)]
        return ValidatedQuery(tables=checked.tables, schema=pa.schema(fields), is_stateful=True)

    def execute_transform(
        self, request: TransformRequest, on_progress: OnProgress | None = None
    ) -> TransformResponseSuccess:
        self.columns = [of for of, _ in columns_of(request.transform)]
        return super().execute_transform(request, on_progress)

    def migrate(self, request: MigrateRequest) -> TransformResponseSuccess:
        answer = super().migrate(request)
        file = Path(request.new_checkpoint_path)
        names = [name for _, name in columns_of(request.new.transform)]
        file.write_text(json.dumps({**json.loads(file.read_text()), "": len(names)}))
        return answer


@dataclass
class Evolving:
    """A derivative of two columns of an input of three."""

    node: Coordinator
    engine: Selecting = field(default_factory=Selecting)

    def query(self, query: str, alias: str = "Cities") -> SetTransform:
        inputs = (TransformInput(dataset_ref="cities", alias=alias),)
        return SetTransform(inputs=inputs, transform=TransformSql(engine="spark", query=query))

    def push(self, city: str, population: int, minute: int) -> None:
        records = {"event_time": [minute * 60_000], "city": [city], "population": [population]}
        self.node.push_table("cities", pa.table(records, schema=WIDE), minute)

    def events(self) -> list[MetadataEvent]:
        known = self.node.find("cities.copy")
        links = iterate(self.node.datasets.reader(known.id), known.state.head)
        return [decoded.block.event for _, decoded, _ in links][::-1]


def block_at(node: Coordinator, ref: str, number: int) -> Multihash:
    known = node.find(ref)
    links = iterate(node.datasets.reader(known.id), known.state.head)
    return next(name for name, decoded, _ in links if decoded.block.sequence_number == number)


@pytest.fixture
def evolving(tmp_path: Path, root: str, derivative: str) -> Evolving:
    engine = Selecting()
    node = Coordinator(home=tmp_path, engine=engine)
    made = Evolving(node=node, engine=engine)
    node.add(root.replace("city STRING", "city STRING, population BIGINT"), derivative)
    made.push("Oslo", 7, 0)
    node.work()
    return made


def test_a_query_that_adds_a_column_continues_after_a_migration(evolving: Evolving) -> None:
    node = evolving.node
    before = node.find("cities.copy").state
    heads = []
    node.committer.listen(lambda state: heads.append(state.sequence_number))

    made = node.editor.commit_event(
        "cities.copy", evolving.query("SELECT event_time, city, population FROM cities")
    )

    assert heads == [before.sequence_number + 2], "both blocks in one move of the head"
    new, migration = evolving.events()[-2:]
    assert isinstance(new, SetTransform)
    assert isinstance(migration, ExecuteTransform)
    (step,) = migration.query_inputs
    assert (step.prev_block_hash, step.new_block_hash) == (node.find("cities").state.head, None)
    assert (step.prev_offset, step.new_offset) == (0, None)
    assert migration.new_data is None
    assert before.checkpoint is not None
    assert migration.prev_checkpoint == before.checkpoint.physical_hash
    assert made.state.watermark == before.watermark
    (asked,) = evolving.engine.migrations
    assert (asked.old, asked.new) == (before.transform, made.state.transform)
    assert asked.next_offset == 1


def test_records_after_the_new_query_have_its_column_and_those_before_have_none(evolving: Evolving) -> None:
    node = evolving.node
    node.editor.commit_event("cities.copy", evolving.query("SELECT event_time, city, population FROM cities"))
    evolving.push("Rome", 3, 1)
    node.work()

    table = node.record_reader.tail("cities.copy", 9)
    assert table["population"].to_pylist() == [None, 3]
    checkpoint = json.loads(Path(evolving.engine.requests[-1].prev_checkpoint_path or "").read_text())
    assert checkpoint[""] == 3, "it continues from what the migration left"


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("SELECT event_time FROM cities", "column city: cannot be removed"),
        ("SELECT event_time, city AS town FROM cities", "column city: cannot be removed"),
        (
            "SELECT event_time, population AS city FROM cities",
            "column city: was STRING and cannot become BIGINT",
        ),
    ],
)
def test_a_query_that_breaks_a_column_is_refused_by_its_name(
    evolving: Evolving, derivative: str, query: str, why: str
) -> None:
    before = evolving.node.find("cities.copy").state

    with pytest.raises(InvalidInput, match=f"transform: {why}"):
        evolving.node.editor.commit_event("cities.copy", evolving.query(query))
    with pytest.raises(InvalidInput, match=f"transform: {why}"):
        evolving.node.add(derivative.replace("SELECT event_time, city FROM cities", query), replace=True)

    assert evolving.node.find("cities.copy").state == before
    assert evolving.engine.migrations == []


def test_a_manifest_that_replaces_the_query_migrates_it_too(evolving: Evolving, derivative: str) -> None:
    wider = derivative.replace("city FROM", "city, population FROM")

    (made,) = evolving.node.add(wider, replace=True)

    assert made.outcome == "replaced"
    assert len(evolving.engine.migrations) == 1
    assert isinstance(evolving.events()[-1], ExecuteTransform)
    assert evolving.node.add(wider, replace=True)[0].outcome == "unchanged"


def test_what_cannot_be_migrated_changes_nothing(evolving: Evolving) -> None:
    node = evolving.node
    before = node.find("cities.copy").state
    objects = {kind: set(node.blobs.names(before.dataset_id, kind)) for kind in ObjectKind}
    evolving.engine.failures = [InvalidQuery(text="its windows cannot be migrated")]

    with pytest.raises(InvalidQuery, match="its windows cannot be migrated"):
        node.editor.commit_event(
            "cities.copy", evolving.query("SELECT event_time, city, population FROM cities")
        )

    assert node.find("cities.copy").state == before
    assert {kind: set(node.blobs.names(before.dataset_id, kind)) for kind in ObjectKind} == objects


def test_a_query_that_cannot_replace_another_does_after_the_reset_that_its_refusal_names(
    evolving: Evolving, derivative: str
) -> None:
    node = evolving.node
    other = derivative.replace("SELECT event_time, city FROM", "SELECT event_time, population AS city FROM")
    with pytest.raises(InvalidInput, match="cannot become BIGINT") as caught:
        node.add(other, replace=True)
    name, number = re.findall(r"`odf reset (\S+) (\d+) --yes`", str(caught.value))[0]

    node.editor.reset(name, block_at(node, name, int(number)))
    node.work()
    assert node.find(name).state.transform is None, "nothing derives it before its new query comes"
    node.add(other, replace=True)
    node.work()

    assert node.record_reader.tail("cities.copy", 9)["population"].to_pylist() == [7]


def test_a_query_for_columns_that_were_not_read_yet_gets_advice_on_what_to_do_first(
    evolving: Evolving,
) -> None:
    node = evolving.node
    wide = WIDE.append(pa.field("country", pa.string()))
    records = {"event_time": [60_000], "city": ["Rome"], "population": [3], "country": ["Italy"]}
    node.push_table("cities", pa.table(records, schema=wide), 1)
    evolving.engine.failures = [InvalidQuery(text="there is no column country")]
    new = evolving.query("SELECT event_time, city, country FROM cities")

    with pytest.raises(InvalidQuery, match="no column country; the schema of cities has changed: pull"):
        node.editor.commit_event("cities.copy", new)
    node.work()
    node.editor.commit_event("cities.copy", new)

    assert node.find("cities.copy").state.last_offset == 1


def test_a_query_that_never_ran_is_replaced_without_a_migration(
    tmp_path: Path, root: str, derivative: str
) -> None:
    engine = Selecting()
    node = Coordinator(home=tmp_path, engine=engine)
    node.add(root, derivative)

    node.editor.commit_event("cities.copy", Evolving(node).query("SELECT event_time FROM cities"))

    assert engine.migrations == []


def test_an_unchanged_state_needs_no_block(evolving: Evolving) -> None:
    class Carrying(Selecting):
        def migrate(self, request: MigrateRequest) -> TransformResponseSuccess:
            return PassingEngine.migrate(self, request)

    object.__setattr__(evolving.node.creator, "engine", Carrying())

    evolving.node.editor.commit_event("cities.copy", evolving.query("SELECT event_time, city FROM Cities"))

    assert isinstance(evolving.events()[-1], SetTransform)


def test_records_of_a_migration_come_with_it(evolving: Evolving) -> None:
    """The old query's last records, as of windows that the new one does not know."""

    class Closing(Selecting):
        def migrate(self, request: MigrateRequest) -> TransformResponseSuccess:
            super().migrate(request)
            last = self.requests[-1]
            return PassingEngine.execute_transform(
                self,
                TransformRequest(
                    dataset_id=last.dataset_id,
                    dataset_alias=last.dataset_alias,
                    system_time=request.system_time,
                    vocab=request.vocab,
                    transform=request.new.transform,
                    query_inputs=last.query_inputs,
                    next_offset=request.next_offset,
                    prev_checkpoint_path=request.prev_checkpoint_path,
                    new_checkpoint_path=request.new_checkpoint_path,
                    new_data_path=request.new_data_path,
                ),
            )

    engine = Closing()
    engine.requests, engine.columns = evolving.engine.requests, None
    object.__setattr__(evolving.node.creator, "engine", engine)

    made = evolving.node.editor.commit_event(
        "cities.copy", evolving.query("SELECT event_time, city, population FROM cities")
    )

    assert made.state.last_offset == 1
    assert evolving.node.record_reader.tail("cities.copy", 9)["population"].to_pylist() == [None, 7]
    schema, new, migration = evolving.events()[-3:]
    assert isinstance(schema, SetDataSchema)
    assert isinstance(new, SetTransform)
    assert isinstance(migration, ExecuteTransform)
    assert migration.new_data is not None


def test_a_query_that_is_rolled_back_with_its_input_is_migrated_again(evolving: Evolving) -> None:
    node = evolving.node
    first = node.find("cities").state.head
    evolving.push("Rome", 3, 1)
    node.work()
    new = evolving.query("SELECT event_time, city, population FROM cities")
    node.editor.commit_event("cities.copy", new)
    before = node.find("cities.copy").state
    node.editor.reset("cities", first, is_forced=True)

    (rolled_back,) = node.puller.rollback.roll_back((node.find("cities.copy"),))

    assert rolled_back.state.transform == before.transform
    assert [type(event) for event in evolving.events()[-2:]] == [SetTransform, ExecuteTransform]
    assert [one.next_offset for one in evolving.engine.migrations] == [2, 1]
    evolving.push("Lima", 10, 2)
    node.work()
    assert node.record_reader.tail("cities.copy", 9)["population"].to_pylist() == [None, 10]


def test_a_dataset_is_not_reset_to_between_a_query_and_its_migration(evolving: Evolving) -> None:
    node = evolving.node
    before = node.find("cities.copy").state.head
    node.editor.commit_event("cities.copy", evolving.query("SELECT event_time, city, population FROM cities"))
    known = node.find("cities.copy")
    links = list(iterate(node.datasets.reader(known.id), known.state.head))

    with pytest.raises(InvalidInput, match="the next block is its migration"):
        node.editor.reset("cities.copy", links[1][0])

    assert node.find("cities.copy").state == known.state
    assert node.editor.reset("cities.copy", before).state.head == before


APPEND = "{kind: Append}"
UPSERT = "{kind: UpsertStream, primaryKey: [city]}"
RETRACTING = [UPSERT, "{kind: Snapshot, primaryKey: [city]}", "{kind: ChangelogStream, primaryKey: [city]}"]
FINAL = "windows are final, but "


@pytest.fixture
def windows(derivative: str) -> str:
    """Return a derivative whose rows wait for the watermark."""
    counted = "SELECT window(event_time, '1 day').start AS event_time, city FROM cities"
    return derivative.replace("SELECT event_time, city FROM cities", counted).replace("cities.copy", "counts")


@pytest.fixture
def windows_of_copy(windows: str) -> str:
    return windows.replace("datasetRef: Cities", "datasetRef: cities.copy, alias: cities")


def merging(root: str, merge: str) -> str:
    """Return the root with another merge strategy; a changelog has `op`."""
    columns = "city STRING, op INT]" if "ChangelogStream" in merge else "city STRING]"
    return root.replace(APPEND, merge).replace("city STRING]", columns)


def source(node: Coordinator) -> AddPushSource:
    return node.find("cities").state.push_sources["default"]


@pytest.mark.parametrize("merge", RETRACTING)
def test_windows_over_a_root_that_retracts_are_refused(
    node: Coordinator, root: str, derivative: str, windows: str, merge: str
) -> None:
    retracting = merging(root, merge)
    kind = merge[len("{kind: ") :].partition(",")[0]
    with pytest.raises(InvalidQuery, match=f"{FINAL}Cities merges by {kind}") as caught:
        node.add(retracting, windows)
    assert str(caught.value.where).endswith("content.metadata[0].transform")
    node.add(retracting, derivative)
    with pytest.raises(InvalidQuery, match=f"{FINAL}Cities merges by {kind}"):
        node.add(windows)


@pytest.mark.parametrize("merge", [APPEND, "{kind: Ledger, primaryKey: [city]}"])
def test_windows_over_a_root_that_only_appends_are_added(
    node: Coordinator, root: str, windows: str, merge: str
) -> None:
    assert [result.outcome for result in node.add(root.replace(APPEND, merge), windows)] == ["added", "added"]


@pytest.mark.parametrize("is_together", [True, False])
def test_a_derivative_of_single_records_passes_retractions_on(
    node: Coordinator,
    root: str,
    derivative: str,
    windows_of_copy: str,
    is_together: bool,
) -> None:
    datasets = [merging(root, UPSERT), derivative]
    if not is_together:
        node.add(*datasets)
        datasets = []
    with pytest.raises(InvalidQuery, match=f"{FINAL}cities has rows that are corrected or retracted later"):
        node.add(*datasets, windows_of_copy)


def test_a_source_that_was_replaced_has_retracted(node: Coordinator, root: str, windows: str) -> None:
    node.add(merging(root, UPSERT))
    node.editor.commit_event("cities", replace(source(node), merge=MergeStrategyAppend()))
    with pytest.raises(InvalidQuery, match="Cities merges by UpsertStream"):
        node.add(windows)


def test_a_derivative_that_is_in_a_chain_is_not_refused(node: Coordinator, root: str, windows: str) -> None:
    node.add(root, windows)
    retracting = replace(source(node), merge=MergeStrategyUpsertStream(primary_key=("city",)))
    node.creator.amend(node.find("cities"), (retracting,))
    assert [result.outcome for result in node.add(windows)] == ["unchanged"]


def test_a_source_that_retracts_is_refused_for_a_root_that_windows_read(
    node: Coordinator, root: str, derivative: str, windows: str, windows_of_copy: str
) -> None:
    node.add(root, derivative)
    node.add(windows_of_copy)
    retracting = replace(source(node), merge=MergeStrategySnapshot(primary_key=("city",)))
    says = "counts reads cities, and its first retraction would stop it: windows are final.*a root of its own"
    with pytest.raises(InvalidQuery, match=says) as caught:
        node.editor.commit_event("cities", retracting)
    assert caught.value.where == "merge"
    with pytest.raises(InvalidQuery, match=says):
        node.add(merging(root, UPSERT), replace=True)
    second = replace(source(node), source_name="second")
    node.editor.commit_event("cities", second)  # it only appends
    node.names.delete("counts")
    node.editor.commit_event("cities", retracting)


def test_a_source_that_retracts_is_checked_against_the_queries_that_are_added_with_it(
    node: Coordinator, root: str, derivative: str, windows: str
) -> None:
    node.add(root, derivative, windows)
    reader = windows.replace("datasetRef: Cities", "datasetRef: cities.copy, alias: cities")
    node.add(reader.replace("counts", "of.copy"))
    passing = derivative.replace("cities.copy", "counts")
    final = windows.replace("counts", "cities.copy")
    with pytest.raises(InvalidQuery, match=r"of\.copy reads cities"):
        node.add(merging(root, UPSERT), passing, replace=True)
    node.names.delete("of.copy")
    with pytest.raises(InvalidQuery, match=FINAL):
        node.add(merging(root, UPSERT), passing, final, replace=True)
    added = node.add(merging(root, UPSERT), passing, replace=True)
    assert [result.outcome for result in added] == ["replaced", "replaced"]


def test_a_query_of_an_earlier_engine_is_not_derived_again_over_what_retracts(
    node: Coordinator, root: str, windows: str
) -> None:
    node.engine.version = "one"
    node.add(root, windows)
    retracting = replace(source(node), merge=MergeStrategyUpsertStream(primary_key=("city",)))
    node.creator.amend(node.find("cities"), (retracting,))
    node.engine.version = "two"

    (refused,) = node.upgrader.upgrade(["counts"], is_all=False, is_restarted=True, is_dry=False)
    assert FINAL in refused.error
    (upgraded,) = node.upgrader.upgrade(["counts"], is_all=False, is_restarted=False, is_dry=False)
    assert upgraded.outcome == "upgraded"


def test_a_derivative_without_a_query_is_not_known_to_retract(
    node: Coordinator, root: str, derivative: str, windows_of_copy: str
) -> None:
    node.add(merging(root, UPSERT), derivative)
    copy = node.find("cities.copy")
    *_, (seed, _, _) = iterate(node.datasets.reader(copy.id), copy.state.head)
    node.editor.reset("cities.copy", seed)
    assert node.find("cities.copy").state.transform is None
    assert [result.outcome for result in node.add(windows_of_copy)] == ["added"]
