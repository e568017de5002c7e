"""The engine as its callers see it (spec: Engine Contract)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from odf_common.errors import Refused, Unavailable
from odf_common.metadata.engine import (
    RawQueryRequest,
    RawQueryResponseSuccess,
    TransformRequest,
    TransformResponseSuccess,
)
from odf_common.metadata.events import SetTransform
from odf_common.metadata.scalars import Timestamp, UInt64
from odf_common.metadata.steps import Strings, Transform
from odf_common.metadata.vocabulary import DatasetVocabulary


@dataclass(eq=False, kw_only=True)
class EngineNotAvailable(Refused):
    """A transform needs an engine, or an engine version, that is not installed."""

    reason: str = "EngineNotAvailable"


@dataclass(eq=False, kw_only=True)
class EngineSilent(Unavailable):
    """The engine sends nothing although calls are in flight: its JVM hangs, or its process is stopped."""

    what: str = "the engine"
    why: str = "no heartbeat"

    def advice(self) -> str:
        """Return what to do."""
        return (
            "an engine whose JVM hangs is restarted within a minute; if that does not help, kill its process, which "
            "`odf status` shows: the node restarts it, and its requests are repeated"
        )


@dataclass(eq=False, kw_only=True)
class QueryTooSlow(Refused):
    """A source's query over one batch exceeded the time limit."""

    reason: str = "QueryTooSlow"


@dataclass(eq=False, kw_only=True)
class QueryNotWanted(Refused):
    """No caller waits for the query's result any more; it was canceled."""

    reason: str = "QueryNotWanted"
    text: str = "no caller waits for the query's result any more"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTable:
    """A dataset as a table of an ad-hoc query: its name in SQL, schema, and slices oldest first."""

    name: str
    schema: pa.Schema
    data_paths: Strings


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedQuery:
    """What the engine says of a transform: tables it names, and its output schema where inputs were given.

    `version` is the engine's own, of which a transform asks for exactly the same again; None where it has none.
    """

    tables: Strings
    schema: pa.Schema | None
    is_stateful: bool
    version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProgress:
    """How far a request is: `rows` of `total` in this stage; 0 where the engine does not count.

    `late` rows of the whole request came too late for their windows, and were dropped.
    """

    stage: str = ""
    rows: int = 0
    total: int = 0
    late: int = 0


OnProgress = Callable[[EngineProgress], None]
IsWanted = Callable[[], bool]


def always() -> bool:
    """Return that a result is wanted."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrateInput:
    """An input as a query sees it: `name` in SQL, all columns, and what the system's are called."""

    name: str
    schema: pa.Schema
    vocab: DatasetVocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrateRequest:
    """Go from one version of a query to the next; `inputs` has every table that either of them names."""

    old: SetTransform
    new: SetTransform
    inputs: tuple[MigrateInput, ...]
    vocab: DatasetVocabulary
    system_time: Timestamp
    next_offset: UInt64
    prev_checkpoint_path: str | None = None
    new_checkpoint_path: str
    new_data_path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What a new query has to go on from: the columns of the dataset, and the query in force with the same inputs."""

    schema: pa.Schema | None = None
    transform: Transform | None = None


class Engine(Protocol):
    """Runs SQL. Every call raises `InvalidQuery` (the user's fault, with position) or `Unavailable`.

    Those that are given a transform raise `EngineNotAvailable` where it asks for another engine or version.
    """

    def execute_transform(
        self, request: TransformRequest, on_progress: OnProgress | None = None
    ) -> TransformResponseSuccess:
        """Perform one step of a transformation; its files are written when this returns.

        `on_progress` hears from time to time how far it is, and at the end once more.
        """

    def execute_raw_query(
        self, request: RawQueryRequest, is_wanted: IsWanted = always
    ) -> RawQueryResponseSuccess:
        """Preprocess one batch; its file is written when this returns.

        Raises `QueryTooSlow`, and `QueryNotWanted` soon after `is_wanted` has ceased to hold.
        """

    def validate(
        self,
        transform: Transform,
        inputs: Mapping[str, pa.Schema],
        vocabs: Mapping[str, DatasetVocabulary],
        output_vocab: DatasetVocabulary,
        past: Past | None = None,
    ) -> ValidatedQuery:
        """Check a transform; with no inputs only its syntax, with a past also whether it can follow that."""

    def migrate(self, request: MigrateRequest) -> TransformResponseSuccess:
        """Write the checkpoint from which the new version goes on, and the records that bring the output to it.

        Mostly there are none. `InvalidQuery` when the old version's state cannot be migrated.
        """

    def tables_of(self, sql: str) -> Strings:
        """Return the names of tables that an ad-hoc query reads."""

    def query(self, sql: str, tables: tuple[QueryTable, ...]) -> pa.Table:
        """Answer an ad-hoc query over whole datasets."""
