"""The interface of the query engine (spec: Engine Contract)."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from odf_common.errors import InvalidQuery, Refused, Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.engine_messages import (
    RawQueryRequest,
    RawQueryResponseSuccess,
    TransformRequest,
    TransformResponseSuccess,
)
from odf_common.metadata.events import DatasetVocabulary, SetTransform, Transform
from odf_common.metadata.scalars import Strings, Timestamp, UInt64

PREPROCESS_INPUT: Final = "input"  # the table that a source's query reads


class EngineNotAvailable(Refused):
    """A transform requires an engine, or a version of an engine, that is not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingRecord:
    """An input and a range of offsets, `first` to `last`, that contains a record on which a query fails."""

    dataset: DatasetId
    first: int
    last: int


class ResultsChanged(EngineNotAvailable):
    """The engine might compute other results than the earlier version that the transform names."""

    ADVICE = "`odf engine upgrade DATASET` continues with today's engine, or derives all records again"

    text: str = ""
    engine: str = ""
    """Name and version of the engine that the transform names."""
    kinds: str = ""

    def __str__(self) -> str:
        return self.text or f"{self.engine} computed it, and results differ today: {self.kinds}"


class QueryFailed(InvalidQuery):
    """The query is valid but fails on the data of the request, and would fail again: a division by zero."""

    records: tuple[FailingRecord, ...] = ()
    """New records on which the query fails, at most one per input; empty if the engine does not report any."""
    instead: str = ""
    """An expression that avoids the failure by returning NULL; empty if the engine does not suggest one."""

    @property
    def code(self) -> str:
        """Return the code of the error family, because the user has to correct the query in either case."""
        return InvalidQuery.__name__


class QueryOutOfMemory(QueryFailed):
    """The engine ran out of memory because of this query or one that ran at the same time; a retry may succeed."""


class EngineSilent(Unavailable):
    """The engine sends no messages although calls are in flight: its JVM hangs or its process is stopped."""

    ADVICE = (
        "an engine whose JVM hangs is restarted within a minute; if that does not help, end its process "
        "or container: it is started again, and its transforms are repeated"
    )

    what: str = "the engine"
    why: str = "no heartbeat"


class QueryTooSlow(Refused):
    """A source's query over one batch, or the replay of a transform, exceeded the time limit."""


class QueryNotWanted(Refused):
    """The query was canceled because no caller waits for its result any more."""

    text: str = "no caller waits for the query's result any more"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTable:
    """A dataset as a table of an ad-hoc query: its name in SQL, its schema, and its slices, oldest first."""

    name: str
    schema: pa.Schema
    data_paths: Strings


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedQuery:
    """The engine's description of a transform: the tables that it reads and, if inputs were given, its output schema.

    `version` identifies the engine for transforms that require exactly the same version again; None if it
    has no version.
    """

    tables: Strings
    schema: pa.Schema | None
    is_stateful: bool
    version: str | None = None
    can_retract: bool = False
    """Whether the transform may later retract records that it has emitted."""
    retraction_refusal: str = ""
    """The reason why the transform cannot read inputs that may retract records, and the remedy; empty if it can."""
    changes: Strings = ()
    """Ways in which results may differ from those of the engine version that computed the `Past`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProgress:
    """Progress of a request: `rows` of `total` in the current `stage`; 0 if the engine does not count them.

    `late` is the number of rows so far that arrived too late for their windows and were dropped. `held` is the number
    of rows that the new checkpoint keeps until the watermark is high enough for their results. `held_until` is the
    lowest watermark that releases all rows of one result (ms of event time, None if unknown). Partners of an outer
    join, which have no row of their own, count only if nothing else is held. `held_by` names the steps of the query
    that keep the rows, such as a window; empty if the engine does not report them.
    """

    stage: str = ""
    rows: int = 0
    total: int = 0
    late: int = 0
    held: int = 0
    held_until: int | None = None
    held_by: str = ""


OnProgress = Callable[[EngineProgress], None]
IsWanted = Callable[[], bool]


def always() -> bool:
    """Return True: the result is always wanted."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedInput:
    """An input of a query: its `name` in SQL, all its columns, and the names of its system columns."""

    name: str
    schema: pa.Schema
    vocab: DatasetVocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrateRequest:
    """A request to migrate from one query to the next; `inputs` contains all tables of both queries."""

    old: SetTransform
    new: SetTransform
    inputs: tuple[PlannedInput, ...]
    vocab: DatasetVocabulary
    system_time: Timestamp
    next_offset: UInt64
    prev_checkpoint_path: str | None = None
    new_checkpoint_path: str
    new_data_path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """The state that a new query continues: the columns of the dataset, and the current query over the same inputs."""

    schema: pa.Schema | None = None
    transform: Transform | None = None
    is_restarted: bool = False
    """Whether the new query starts without the state of the current one."""


class Engine(Protocol):
    """Executes SQL. Every method raises `InvalidQuery`, with the position of the error in the query, or `Unavailable`.

    Methods with a transform raise `EngineNotAvailable` if it requires another engine or version.
    """

    def execute_transform(
        self, request: TransformRequest, on_progress: OnProgress | None = None
    ) -> TransformResponseSuccess:
        """Execute one step of a transform; its output files are written on return.

        Raises `QueryFailed` or `QueryOutOfMemory` if the query is valid but fails on the data. `on_progress` is called
        from time to time and once at the end; if it raises an error, the query is canceled.
        """

    def execute_raw_query(
        self, request: RawQueryRequest, is_wanted: IsWanted = always
    ) -> RawQueryResponseSuccess:
        """Run a preprocessing query on one batch; its output file is written on return.

        Raises `QueryTooSlow`, and `QueryNotWanted` soon after `is_wanted` returns False.
        """

    def validate(  # noqa: PLR0913 - the fields of the request
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
        """Check a transform: without inputs only its syntax; with `past`, also whether it can continue from there.

        If `is_new`, a transform is refused that would reduce the scale of decimals. `retracting` contains the inputs
        whose records may be retracted later, with the reasons.
        """

    def validate_preprocess(self, transform: Transform, schema: pa.Schema | None) -> None:
        """Raise `InvalidQuery` unless a source's new query computes each record alone and keeps the scale of decimals.

        `schema` contains the declared columns of the source; without it, only the text of the query is checked.
        """

    def migrate(self, request: MigrateRequest) -> TransformResponseSuccess:
        """Write the checkpoint from which the new query continues, and records that correct the output.

        Usually there are no such records. Raises `InvalidQuery` if the state of the old query cannot be migrated.
        """

    def tables_of(self, sql: str) -> Strings:
        """Return the names of the tables that an ad-hoc query reads."""

    def query(self, sql: str, tables: tuple[QueryTable, ...]) -> pa.Table:
        """Run an ad-hoc query over complete datasets."""

    def query_stream(
        self, sql: str, tables: tuple[QueryTable, ...], is_wanted: IsWanted = always
    ) -> Iterator[bytes]:
        """Run an ad-hoc query; yield its result as chunks of an Arrow IPC stream as soon as they are available.

        Raises `QueryNotWanted` soon after `is_wanted` returns False; the query is then canceled.
        """
