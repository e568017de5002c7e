"""Commits the schema of a root before its first records, because a derivative waits for it.

A transform needs the columns of all its inputs. Usually a chain gets its schema with the first slice (spec:
SetDataSchema). So a join with an empty dataset could not compute anything, although watermarks show which of its rows
are complete. The schema is the one that the first slice would have. If the source does not declare it, the derivative
waits for the first record (adr/0083).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from odf_common.chain.state import ChainState
from odf_common.data.schema_evolution import schema_to_event
from odf_common.errors import InvalidInput, InvalidQuery
from odf_common.metadata.engine_messages import RawQueryRequest
from odf_common.metadata.events import SetDataSchema, Transform
from odf_common.ports.engine import Engine
from odf_common.ports.store import scratch_folder
from odf_coordinator.catalog.datasets import DatasetHandle, Datasets
from odf_coordinator.commit.committer import Committer, require_committed
from odf_coordinator.definitions.declared_columns import (
    Source,
    declared_schema,
    require_possible,
    sources_of,
    with_system,
    without_operations,
)

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstSchemas:
    """Commits first schemas; `is_signed`: offset and operation have signed integer types."""

    datasets: Datasets
    committer: Committer
    engine: Engine
    is_signed: bool = False

    def commit(self, inputs: Iterable[DatasetHandle]) -> None:
        """Commit schemas for the roots without one from which the inputs derive, if all their schemas are declared.

        Raises `HeadMoved` if another block is committed to a root in the meantime, `Unavailable` without an engine.
        """
        roots = [*self._roots_without_schema(inputs)]
        events = [self._event(root) for root in roots]
        for root, event in zip(roots, events, strict=True):
            if event is None or None in events:
                continue
            outcome = self.committer.commit(
                root.id,
                expected_head=root.state.head,
                events=(event,),
                system_time=self.committer.next_system_time(root.state),
            )
            require_committed(root.id, outcome)
            log.info("first schema committed", **root.log_facts)

    def why_unknown(self, root: DatasetHandle) -> str:
        """Return the reason why the columns of a root are unknown before its first record; empty if they are known."""
        if not self.datasets.has_key(root.id):
            return "its owner has not published any"
        sources = sources_of(root.state)
        if not sources:
            return "it has no source"
        if any(declared_schema(source.read) is None for source in sources):
            return "its source declares no schema"
        if len(sources) > 1 or any(source.preprocess is not None for source in sources):
            return "its sources or their preprocess queries do not have the same known columns"
        return ""

    def _roots_without_schema(self, inputs: Iterable[DatasetHandle]) -> Iterator[DatasetHandle]:
        pending, seen = [*inputs], set()
        while pending:
            handle = pending.pop()
            if handle.state.schema is not None or handle.id in seen:
                continue
            seen.add(handle.id)
            if not handle.is_derivative:
                yield handle
            above = (self.datasets.by_id(dataset) for dataset in handle.inputs())
            pending += (input_ for input_ in above if input_ is not None)

    def _event(self, root: DatasetHandle) -> SetDataSchema | None:
        """Return the event with the schema of the root's first slice; None for a copy, or if the schema is unknown."""
        if not self.datasets.has_key(root.id):
            return None
        try:
            schemas = [self._records_of(source, root.state) for source in sources_of(root.state)]
            schema = schemas[0] if schemas else None
            if schema is None or any(other is None or not other.equals(schema) for other in schemas):
                return None
            event = schema_to_event(schema)
            require_possible(event, root.state.vocabulary)
        except (InvalidInput, InvalidQuery) as error:
            # Its records would fail in the same way, and ingest says so.
            log.warning("first schema unknown", **root.log_facts, why=str(error))
            return None
        return event

    def _records_of(self, source: Source, state: ChainState) -> pa.Schema | None:
        """Return the schema of a source's records in slices; None if it is not declared."""
        schema = declared_schema(source.read)
        if schema is None:
            return None
        if source.preprocess is not None:
            schema = self._preprocess_schema(source.preprocess, schema)
        vocabulary = state.vocabulary
        return with_system(without_operations(schema, source, vocabulary), vocabulary, signed=self.is_signed)

    def _preprocess_schema(self, query: Transform, schema: pa.Schema) -> pa.Schema:
        """Return the output schema of a query, which is run over no records; raises `InvalidQuery`."""
        with scratch_folder(self.datasets.blobs) as folder:
            before, after = folder / "input.parquet", folder / "output.parquet"
            pq.write_table(schema.empty_table(), before, store_schema=False)
            self.engine.execute_raw_query(
                RawQueryRequest(input_data_paths=(str(before),), transform=query, output_data_path=str(after))
            )
            return pq.read_schema(after).remove_metadata()
