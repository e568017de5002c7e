"""A migration in a chain is repeated as one, and its checkpoint and records are compared with the block."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from odf_testing.builders import (
    AChain,
    a_chain,
    a_dataset,
    a_derivative,
    a_push_source,
    a_query,
    a_schema,
    a_seed,
    a_transform,
)
from odf_testing.verifier import NOWHERE, Story

from odf_common.chain.walk import fold, iterate
from odf_common.errors import InvalidQuery
from odf_common.hashing.multihash import physical_hash_of
from odf_common.metadata.engine_messages import TransformRequest, TransformResponseSuccess
from odf_common.metadata.events import (
    Checkpoint,
    ExecuteTransform,
    ExecuteTransformInput,
    OffsetInterval,
    SqlQueryStep,
)
from odf_common.ports.engine import Engine, MigrateRequest, OnProgress
from odf_common.ports.store import ObjectKind
from odf_verifier.integrity import Link
from odf_verifier.replay import Replay
from odf_verifier.targets import Damage, Problem, Target

A = a_dataset("a")
TARGET = Target(name="derivative", dataset=a_dataset(), reader=cast("Any", None), is_local=True)


class Migrating:
    """Makes the checkpoint `executed` of a transform and `migrated` of a migration, no records of either."""

    def __init__(self, *, migrated: bytes | InvalidQuery, interval: OffsetInterval | None) -> None:
        self.migrated = migrated
        self.interval = interval

    def execute_transform(
        self, request: TransformRequest, _: OnProgress | None = None
    ) -> TransformResponseSuccess:
        Path(request.new_checkpoint_path).write_bytes(b"executed")
        return TransformResponseSuccess()

    def migrate(self, request: MigrateRequest) -> TransformResponseSuccess:
        assert request.prev_checkpoint_path is not None
        assert Path(request.prev_checkpoint_path).read_bytes() == b"executed"
        if isinstance(self.migrated, InvalidQuery):
            raise self.migrated
        Path(request.new_checkpoint_path).write_bytes(self.migrated)
        return TransformResponseSuccess(new_offset_interval=self.interval)


def checkpoint_of(content: bytes) -> Checkpoint:
    return Checkpoint(physical_hash=physical_hash_of(content), size=len(content))


def step_of(output: AChain, source: AChain) -> ExecuteTransformInput:
    done = output.state.progress_of(A)
    is_new = done.last_block != source.state.head
    return ExecuteTransformInput(
        dataset_id=A, prev_block_hash=done.last_block, new_block_hash=source.state.head if is_new else None
    )


def migrated_chain(source: AChain, after: int = 0) -> AChain:
    """A derivative of one transform, another query, its migration, and `after` transforms of that query."""
    output = a_derivative(A)
    first = checkpoint_of(b"executed")
    output.add(ExecuteTransform(query_inputs=(step_of(output, source),), new_checkpoint=first))
    new = replace(a_transform(A), transform=a_query(SqlQueryStep(query="SELECT city FROM input_0")))
    output.add(new)
    last = first
    for content in (b"migrated", *(b"executed" for _ in range(after))):
        output.add(
            ExecuteTransform(
                query_inputs=(step_of(output, source),),
                prev_checkpoint=last.physical_hash,
                new_checkpoint=checkpoint_of(content),
            )
        )
        last = checkpoint_of(content)
    return output


def replayed(
    *,
    migrated: bytes | InvalidQuery,
    interval: OffsetInterval | None = None,
    since: int = 0,
    after: int = 0,
) -> list[Problem | None]:
    """Return the problems found in the blocks after the first `since`."""
    source = a_chain(a_seed(dataset=A), a_push_source(), a_schema())
    output = migrated_chain(source, after)
    story = Story(engine=cast("Engine", Migrating(migrated=migrated, interval=interval)))
    story.put(source)
    story.put(output)
    for content in (b"executed", b"migrated"):
        name = checkpoint_of(content).physical_hash
        story.blobs.put(output.state.dataset_id, ObjectKind.CHECKPOINT, name, content)
    links = [
        Link(hash=name, version=decoded.version, block=decoded.block)
        for name, decoded, _ in iterate(output.read, output.state.head)
    ]
    links.reverse()
    past = fold(output.read, links[since - 1].hash) if since else None
    return [
        problem
        for _, _, problem in Replay(story.datasets, story.engine, TARGET, NOWHERE).run(links[since:], past)
    ]


def test_a_migration_with_the_same_result_is_valid() -> None:
    assert replayed(migrated=b"migrated") == [None, None]


def test_a_migration_is_repeated_as_one_also_if_its_query_was_verified_before() -> None:
    blocks = len(migrated_chain(a_chain(a_seed(dataset=A), a_push_source(), a_schema())).blocks)
    assert replayed(migrated=b"migrated", since=blocks - 1) == [None]


@pytest.mark.parametrize(
    ("migrated", "interval", "what"),
    [
        (b"another", None, "checkpoint: declared"),
        (b"migrated", OffsetInterval(start=0, end=3), "offsets: declared None"),
    ],
)
def test_a_migration_with_a_different_result_is_found(
    migrated: bytes, interval: OffsetInterval | None, what: str
) -> None:
    first, problem = replayed(migrated=migrated, interval=interval)

    assert first is None
    assert problem is not None
    assert problem.kind is Damage.REPLAY_MISMATCH
    assert problem.text.startswith(what)


def test_a_migration_that_is_refused_hides_no_block_of_the_new_query() -> None:
    """The replaced query may be refused, and the new one not."""
    first, problem, second = replayed(
        migrated=InvalidQuery(text="reflect calls code: `odf engine upgrade DATASET --from-start`"), after=1
    )

    assert (first, second) == (None, None)
    assert problem is not None
    assert problem.kind is Damage.REPLAY_REFUSED
    assert problem.text == (
        "not checked: the engine refuses to migrate the query before: reflect calls code: "
        "`odf engine upgrade derivative --from-start`"
    )
