"""Verification of a node's datasets from the chain to the replay, by request and with each commit."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from odf_testing.chains import flip
from odf_testing.coordinator import Coordinator
from odf_testing.passing_engine import PassingEngine
from structlog.testing import capture_logs

from odf_common.chain.walk import iterate
from odf_common.dataset.dataset_notes import note_drop
from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.errors import (
    InternalError,
    InvalidInput,
    InvalidQuery,
    OdfError,
    Unavailable,
)
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.engine_messages import TransformRequest, TransformResponseSuccess
from odf_common.metadata.events import SqlQueryStep
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import Engine, OnProgress, QueryFailed, QueryOutOfMemory
from odf_common.ports.store import ObjectKind
from odf_common.service.environment import Environment
from odf_common.service.run import Service
from odf_verifier.service import build
from odf_verifier.targets import Damage, targets
from odf_verifier.verification import Verdict, VerificationOptions, VerifiedHeads, Verifier

ROOT = """
kind: DatasetSnapshot
version: 1
content:
  name: cities
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {kind: NdJson, ddlSchema: [event_time TIMESTAMP, city STRING]}
      merge: {kind: Append}
"""
DERIVATIVE = """
kind: DatasetSnapshot
version: 1
content:
  name: copy
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{datasetRef: cities}]
      transform: {kind: Sql, engine: spark, query: "SELECT event_time, city FROM cities"}
"""
FULL, NEW = VerificationOptions(), VerificationOptions(incremental=True)
Change = Callable[[TransformRequest, TransformResponseSuccess], TransformResponseSuccess]


class OtherEngine(PassingEngine):
    """Returns the configured result after the requested work."""

    change: Change = staticmethod(lambda _, response: response)

    def execute_transform(
        self, request: TransformRequest, on_progress: OnProgress | None = None
    ) -> TransformResponseSuccess:
        return self.change(request, super().execute_transform(request, on_progress))


class Node:
    """A root and a derivative of two transforms, in files, and a verifier of both."""

    def __init__(self, home: Path) -> None:
        self.engine = OtherEngine()
        self.coordinator = Coordinator(home=home, engine=self.engine, is_durable=True)
        self.coordinator.add(ROOT, DERIVATIVE)
        self.push("Oslo", "Rome")
        self.push("Lima", minute=1)
        self.home = home
        self.verified = VerifiedHeads(home / "verified")

    def push(self, *cities: str, minute: int = 0) -> None:
        self.coordinator.push("cities", *cities, minute=minute)
        self.coordinator.work()

    @property
    def datasets(self) -> NodeDatasets:
        return self.coordinator.node_datasets

    @property
    def verifier(self) -> Verifier:
        return Verifier(self.datasets, cast("Engine", self.engine), self.home)

    def build(self, *, looks: bool = True) -> Service:
        """Wire the service."""
        node = self.coordinator
        settings = SimpleNamespace(
            home=self.home, verify_on_commit=looks, verifier_grpc=None, query_timeout_ms=600_000
        )
        env = SimpleNamespace(
            settings=settings, catalog=node.catalog, blobs=node.blobs, refs=node.refs, states=node.states,
            engine=self.engine,
        )  # fmt: skip
        return build(cast("Environment", env))

    def verify(self, ref: str, options: VerificationOptions = FULL) -> Verdict:
        (target,) = targets(self.datasets, (ref,), every=False, recursive=False)
        *_, verdict = self.verifier.verify(target, options)
        assert isinstance(verdict, Verdict)
        return verdict

    def damage(self, ref: str, options: VerificationOptions = FULL) -> list[Damage]:
        return [problem.kind for problem in self.verify(ref, options).problems]

    def head(self, ref: str) -> Multihash:
        return self.coordinator.find(ref).state.head

    def file(self, ref: str, kind: ObjectKind) -> Path:
        """Return the file of an object."""
        dataset = self.coordinator.find(ref).id
        name = min(self.coordinator.blobs.names(dataset, kind), key=str)
        return self.coordinator.blobs.local_path(dataset, kind, name)

    def is_remembered(self, ref: str, phase: str) -> bool:
        known = self.coordinator.find(ref)
        return self.verified.head(known.id, phase) == known.state.head


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with capture_logs():
        yield Node(tmp_path / "home")


def test_every_transform_is_run_again(node: Node) -> None:
    ran = len(node.engine.requests)

    verdict = node.verify("copy")

    assert (verdict.word, verdict.head) == ("valid", node.head("copy"))
    assert verdict.tally.transforms == 2
    again = [replace_paths(request) for request in node.engine.requests[ran:]]
    assert again == [replace_paths(request) for request in node.engine.requests[:ran]]


def replace_paths(request: TransformRequest) -> TransformRequest:
    """Return a request without the names of scratch files."""
    inputs = tuple(replace(one, schema_file="") for one in request.query_inputs)
    return replace(request, query_inputs=inputs, new_checkpoint_path="", new_data_path="")


def later_watermark(_: TransformRequest, response: TransformResponseSuccess) -> TransformResponseSuccess:
    return replace(response, new_watermark=Timestamp.parse("2030-01-01T00:00:00Z"))


def other_checkpoint(
    request: TransformRequest, response: TransformResponseSuccess
) -> TransformResponseSuccess:
    Path(request.new_checkpoint_path).write_bytes(b"other")
    return response


def no_checkpoint(request: TransformRequest, response: TransformResponseSuccess) -> TransformResponseSuccess:
    Path(request.new_checkpoint_path).unlink()
    return response


def no_records(_: TransformRequest, response: TransformResponseSuccess) -> TransformResponseSuccess:
    return replace(response, new_offset_interval=None)


def one_record_more(_: TransformRequest, response: TransformResponseSuccess) -> TransformResponseSuccess:
    interval = response.new_offset_interval
    assert interval is not None
    return replace(response, new_offset_interval=replace(interval, end=interval.end + 1))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (one_record_more, "offsets: declared"),
        (later_watermark, "watermark: declared"),
        (other_checkpoint, "checkpoint: declared"),
        (no_checkpoint, "checkpoint: declared"),
        (no_records, "offsets: declared"),
    ],
)
def test_a_replay_that_differs_in_one_thing_names_it(node: Node, change: Change, what: str) -> None:
    node.engine.change = change

    problems = node.verify("copy").problems

    assert [problem.kind for problem in problems] == [Damage.REPLAY_MISMATCH] * 2
    assert all(problem.text.startswith(what) for problem in problems)


def no_watermark_of_the_fourth_record(
    request: TransformRequest, response: TransformResponseSuccess
) -> TransformResponseSuccess:
    return replace(response, new_watermark=None) if request.next_offset == 3 else response


def test_a_watermark_that_an_engine_left_unchanged_is_no_difference(node: Node) -> None:
    node.engine.change = no_watermark_of_the_fourth_record
    before = node.coordinator.find("copy").state.watermark
    node.push("Kyiv", minute=2)
    assert node.coordinator.find("copy").state.watermark == before

    assert node.verify("copy").is_valid


def test_nothing_is_replayed_onto_damaged_records(node: Node) -> None:
    flip(node.file("copy", ObjectKind.DATA))
    ran = len(node.engine.requests)

    verdict = node.verify("copy")

    assert [problem.kind for problem in verdict.problems] == [Damage.PHYSICAL_HASH_MISMATCH]
    assert (verdict.tally.transforms, len(node.engine.requests)) == (0, ran)


def test_a_transform_whose_input_was_dropped_is_not_replayed_and_not_valid(node: Node) -> None:
    entry = node.datasets.catalog.by_alias("cities")
    assert entry is not None
    head = node.datasets.refs.head(entry.dataset_id)
    assert head is not None
    slices = list(node.datasets.blobs.names(entry.dataset_id, ObjectKind.DATA))
    note_drop(node.datasets.blobs, entry.dataset_id, head)
    node.datasets.blobs.remove(entry.dataset_id, ObjectKind.DATA, slices)

    verdict = node.verify("copy")

    assert verdict.word == "not-replayable"
    assert {problem.kind for problem in verdict.problems} == {Damage.INPUT_DROPPED}
    assert "`odf pull cities` recomputes it" in verdict.problems[0].text


def test_a_replay_with_other_records_is_a_mismatch(node: Node) -> None:
    node.engine.columns = ("event_time",)

    problems = node.verify("copy").problems

    assert [problem.kind for problem in problems] == [Damage.REPLAY_MISMATCH] * 2
    assert all(problem.text.startswith("records: ") for problem in problems)


def test_what_a_query_gave_that_is_refused_now_is_neither_confirmed_nor_contradicted(node: Node) -> None:
    node.engine.failures = [InvalidQuery(text="function reflect calls code")]

    verdict = node.verify("copy")

    (problem,) = verdict.problems
    assert (verdict.word, verdict.tally.transforms) == ("not-checked", 0)
    assert (problem.kind, problem.sequence_number) == (Damage.REPLAY_REFUSED, 3)
    assert problem.text.startswith(
        "not checked, like later blocks of the same query: the engine refuses the query"
    )
    assert "function reflect calls code" in problem.text
    assert "`odf reset copy 0`, and set another one with `odf commit copy FILE`" in problem.text
    assert node.engine.failures == []
    assert not node.is_remembered("copy", "replay")
    assert not node.is_remembered("copy", "integrity")


def test_what_follows_another_query_is_replayed_after_a_refused_one(node: Node) -> None:
    """Otherwise a refused query would hide false records behind it."""
    query = SqlQueryStep(query="SELECT event_time, city FROM cities WHERE true")
    before = node.coordinator.find("copy").state.transform
    assert before is not None
    node.coordinator.editor.commit_event(
        "copy", replace(before, transform=replace(before.transform, queries=(query,)))
    )
    node.push("Kyiv", minute=2)
    node.engine.failures = [InvalidQuery(text="no")]
    node.engine.change = lambda request, response: replace(response, new_offset_interval=None)

    problems = node.verify("copy").problems

    assert [problem.kind for problem in problems] == [Damage.REPLAY_REFUSED, Damage.REPLAY_MISMATCH]


@pytest.mark.parametrize(
    ("failure", "says"),
    [
        (QueryFailed(text="division by zero"), "another version of the engine may have computed it"),
        (QueryOutOfMemory(text="too much memory"), "`odf verify` when the engine is idle"),
        (InvalidInput(text="not a checkpoint"), "the engine cannot run the query"),
        (InternalError(), "the engine cannot run the query"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_replay_that_fails_leaves_its_own_block_unchecked_and_no_other(
    node: Node, failure: OdfError, says: str
) -> None:
    node.engine.failures = [failure]

    verdict = node.verify("copy")

    (problem,) = verdict.problems
    assert (verdict.word, verdict.tally.transforms) == ("not-checked", 1)
    assert (problem.kind, problem.sequence_number) == (Damage.REPLAY_FAILED, 3)
    assert problem.text.startswith("not checked: ")
    assert str(failure) in problem.text
    assert says in problem.text
    assert not node.is_remembered("copy", "replay")

    node.engine.failures, node.engine.change = [failure], no_records
    verdict = node.verify("copy")
    assert (verdict.word, [problem.kind for problem in verdict.problems]) == (
        "invalid",
        [Damage.REPLAY_MISMATCH, Damage.REPLAY_FAILED],
    )


@pytest.mark.parametrize("failed", range(1, 5))
def test_blocks_of_a_query_whose_replay_fails_are_named_up_to_a_bound_and_then_counted(
    node: Node, failed: int
) -> None:
    for minute in (2, 3):
        node.push("Kyiv", minute=minute)
    node.engine.failures = [QueryFailed(text=f"value {number}") for number in range(failed)]

    problems = node.verify("copy").problems

    assert [problem.kind for problem in problems] == [Damage.REPLAY_FAILED] * min(failed, 2)
    assert [problem.sequence_number for problem in problems] == [3, 4][:failed]
    assert ["value 0" in problems[0].text, "value 1" in problems[-1].text] == [True, failed == 2]
    if failed > 2:
        assert problems[1].text == (
            f"not checked either: the replay of {failed - 1} later blocks of the same query fails, too, up to block "
            f"{failed + 2}"
        )


def test_an_input_that_was_lost_is_named(node: Node) -> None:
    node.file("cities", ObjectKind.DATA).unlink()

    problems = node.verify("copy").problems

    assert [problem.kind for problem in problems] == [Damage.INPUT_MISSING]


@pytest.mark.parametrize("lost", ["dataset", "blocks"])
def test_a_copy_without_what_its_input_had_is_not_checked(node: Node, lost: str) -> None:
    cities = node.coordinator.find("cities")
    alias = cities.alias
    if lost == "dataset":
        node.coordinator.catalog.remove(alias)
    else:
        (node.home / "keys" / cities.id.folder).unlink(missing_ok=True)
    for block in [*node.coordinator.blobs.names(cities.id, ObjectKind.BLOCK)]:
        node.coordinator.blobs.local_path(cities.id, ObjectKind.BLOCK, block).unlink()

    verdict = node.verify("copy")

    assert (verdict.word, [problem.kind for problem in verdict.problems]) == (
        "not-checked",
        [Damage.INPUT_NOT_ON_NODE],
    )
    remedy = "odf pull URL" if lost == "dataset" else f"odf pull {alias}"
    assert verdict.tally.transforms == 0
    assert f"`{remedy}`" in verdict.problems[0].text
    assert "odf verify copy --integrity" in verdict.problems[0].text
    assert node.verify("copy", VerificationOptions(replay=False)).is_valid


def test_an_engine_that_is_away_is_no_verdict(node: Node) -> None:
    node.engine.failures = [Unavailable(what="the engine")]
    with pytest.raises(Unavailable):
        node.verify("copy")
    assert not node.is_remembered("copy", "integrity")


def delete(file: Path) -> None:
    file.unlink()


def grow(file: Path) -> None:
    file.chmod(0o644)
    file.write_bytes(file.read_bytes() + b"\0")


@pytest.mark.parametrize(
    ("kind", "spoil", "damage"),
    [
        (ObjectKind.DATA, flip, Damage.PHYSICAL_HASH_MISMATCH),
        (ObjectKind.DATA, grow, Damage.PHYSICAL_HASH_MISMATCH),
        (ObjectKind.DATA, delete, Damage.OBJECT_MISSING),
        (ObjectKind.CHECKPOINT, flip, Damage.CHECKPOINT_HASH_MISMATCH),
        (ObjectKind.CHECKPOINT, delete, Damage.OBJECT_MISSING),
        (ObjectKind.BLOCK, flip, Damage.BLOCK_HASH_MISMATCH),
        (ObjectKind.BLOCK, delete, Damage.BLOCK_MISSING),
    ],
)
def test_a_bad_verdict_is_repeated_until_the_damage_is_repaired(
    node: Node, kind: ObjectKind, spoil: Callable[[Path], None], damage: Damage
) -> None:
    file = node.file("copy", kind)
    kept = file.with_name(".kept")
    shutil.copy(file, kept)
    spoil(file)

    assert [node.damage("copy", NEW) for _ in range(2)] == [[damage]] * 2
    assert not node.is_remembered("copy", "integrity")

    kept.replace(file)
    assert node.verify("copy", NEW).is_valid
    assert node.is_remembered("copy", "integrity")
    assert node.is_remembered("copy", "replay")


def test_a_signature_that_is_wrong_is_damage(node: Node) -> None:
    known = node.coordinator.find("copy")
    node.coordinator.blobs.put(known.id, ObjectKind.SIGNATURE, known.state.head, b"{}")
    assert node.damage("copy") == [Damage.SIGNATURE_INVALID]


def test_a_check_of_the_bytes_alone_leaves_the_replay_pending(node: Node) -> None:
    verdict = node.verify("copy", VerificationOptions(replay=False, incremental=True))
    assert (verdict.word, verdict.tally.transforms) == ("valid", 0)
    assert node.is_remembered("copy", "integrity")
    assert not node.is_remembered("copy", "replay")

    assert node.verify("copy", NEW).tally.transforms == 2
    node.push("Kyiv", minute=2)
    verdict = node.verify("copy", NEW)
    assert (verdict.tally.blocks, verdict.tally.transforms) == (1, 1)
    assert node.verify("copy").tally.transforms == 3


def test_a_block_that_was_lost_since_its_bytes_were_checked_is_found_by_the_replay(node: Node) -> None:
    node.verify("copy", VerificationOptions(replay=False, incremental=True))
    known = node.coordinator.find("copy")
    links = list(iterate(node.coordinator.datasets.reader(known.id), known.state.head))
    node.coordinator.blobs.remove(known.id, ObjectKind.BLOCK, [links[-2][0]])

    assert node.damage("copy", NEW) == [Damage.BLOCK_MISSING]
    assert not node.is_remembered("copy", "replay")


def test_a_verdict_on_a_reference_is_not_the_datasets(node: Node) -> None:
    node.coordinator.references.set("copy@next", "", None)
    assert node.verify("copy@next").is_valid
    assert not node.is_remembered("copy", "integrity")
