"""The engine as its callers see it (spec: Engine Contract)."""

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
    """A transform needs an engine, or an engine version, that is not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingRecord:
    """A record of an input on which a query fails, which is one of those at the offsets `first` to `last`."""

    dataset: DatasetId
    first: int
    last: int


class ResultsChanged(EngineNotAvailable):
    """The engine may compute other results than the earlier version that the transform names."""

    ADVICE = "`odf engine upgrade DATASET` continues with today's engine, or derives all records again"

    text: str = ""
    engine: str = ""
    """The engine and version that the transform names."""
    kinds: str = ""

    def __str__(self) -> str:
        return self.text or f"{self.engine} computed it, and results differ today: {self.kinds}"


class QueryFailed(InvalidQuery):
    """The engine accepts the query, but it fails on what the request reads, and would again: a division by zero."""

    records: tuple[FailingRecord, ...] = ()
    """New records on which it fails, at most one of each input; empty if the engine does not name any."""
    instead: str = ""
    """The remedy in the query; empty if an expression failed on a value, and one that gives NULL would not."""

    @property
    def code(self) -> str:
        """Return the name of the family: users correct the query either way."""
        return InvalidQuery.__name__


class QueryOutOfMemory(QueryFailed):
    """The query, or another that ran at the same time, filled the engine's memory; at another time it may suffice."""


class EngineSilent(Unavailable):
    """The engine sends nothing although calls are in flight: its JVM hangs, or its process is stopped."""

    ADVICE = (
        "an engine whose JVM hangs is restarted within a minute; if that does not help, end its process "
        "or container: it is started again, and its transforms are repeated"
    )

    what: str = "the engine"
    why: str = "no heartbeat"


class QueryTooSlow(Refused):
    """A source's query over one batch, or the replay of a transform, exceeded the time limit."""


class QueryNotWanted(Refused):
    """No caller waits for the query's result any more; it was canceled."""

    text: str = "no caller waits for the query's result any more"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTable:
    """A dataset as a table of an ad-hoc query: its name in SQL, schema, and slices oldest first."""

    name: str
    schema: pa.Schema
    data_paths: Strings


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedQuery:
    """The engine's description of a transform: the tables it reads, and its output schema if inputs were given.

    `version` is the engine's own, for transforms that ask for exactly the same one again; None if it has none.
    """

    tables: Strings
    schema: pa.Schema | None
    is_stateful: bool
    version: str | None = None
    can_retract: bool = False
    """Its records may be retracted later."""
    retraction_refusal: str = ""
    """The reason why it cannot read inputs whose records may be retracted, with the remedy; empty if it can."""
    changes: Strings = ()
    """Kinds in which results can differ from those of the version that computed the `Past`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProgress:
    """Progress of a request: `rows` of `total` in this stage; 0 if the engine does not count.

    `late` is the number of rows so far that were too late for their windows, and were dropped. `held` is the number of
    rows that the new checkpoint keeps for results that depend on the watermark, and `held_until` the earliest watermark
    with which all rows of one of them are out (ms of event time; None if unknown); partners of an outer join, which
    have no row of their own, count only if nothing else is held. `held_by` names the steps of the query that keep them,
    such as a window; empty if the engine does not say.
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
    """Return that a result is always wanted."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedInput:
    """An input as a query sees it: its `name` in SQL, all columns, and the names of the system columns."""

    name: str
    schema: pa.Schema
    vocab: DatasetVocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrateRequest:
    """Migrate from one version of a query to the next; `inputs` has every table of either version."""

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
    """The state that a new query continues: the dataset's columns, and the current query over the same inputs."""

    schema: pa.Schema | None = None
    transform: Transform | None = None
    is_restarted: bool = False
    """Whether the new query begins without the state of the current one."""


class Engine(Protocol):
    """Runs SQL. Every call raises `InvalidQuery` (the query's error, with position) or `Unavailable`.

    Calls with a transform raise `EngineNotAvailable` if it names another engine or version.
    """

    def execute_transform(
        self, request: TransformRequest, on_progress: OnProgress | None = None
    ) -> TransformResponseSuccess:
        """Execute one step of a transform; its files are written on return.

        Raises `QueryFailed`, or `QueryOutOfMemory`, if the query is not refused, but fails on the request's records.
        `on_progress` is called from time to time, and once at the end; the query is cancelled if it raises an error.
        """

    def execute_raw_query(
        self, request: RawQueryRequest, is_wanted: IsWanted = always
    ) -> RawQueryResponseSuccess:
        """Preprocess one batch; its file is written on return.

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
        """Check a transform: without inputs its syntax only, with a `past` also whether it can continue from that.

        One that `is_new` is refused if decimals would lose places. `retracting` has the inputs whose records may be
        retracted later, and why.
        """

    def validate_preprocess(self, transform: Transform, schema: pa.Schema | None) -> None:
        """Raise `InvalidQuery` unless a source's new query computes each record alone, and keeps decimal places.

        `schema` has the source's declared columns; without it, only the query's text is checked.
        """

    def migrate(self, request: MigrateRequest) -> TransformResponseSuccess:
        """Write the checkpoint from which the new version continues, and the records that correct the output.

        Usually there are no records. Raises `InvalidQuery` if the old version's state cannot be migrated.
        """

    def tables_of(self, sql: str) -> Strings:
        """Return the names of the tables that an ad-hoc query reads."""

    def query(self, sql: str, tables: tuple[QueryTable, ...]) -> pa.Table:
        """Run an ad-hoc query over whole datasets."""

    def query_stream(
        self, sql: str, tables: tuple[QueryTable, ...], is_wanted: IsWanted = always
    ) -> Iterator[bytes]:
        """Run an ad-hoc query, and yield its result as chunks of an Arrow IPC stream, as they come.

        Raises `QueryNotWanted` soon after `is_wanted` returns False; the query is cancelled then.
        """
