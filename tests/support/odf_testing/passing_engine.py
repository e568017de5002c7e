"""The engine's port in memory, for tests: records pass through unchanged."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from odf_common.data.columns import with_system_columns
from odf_common.data.slices import read_slice, write_slice
from odf_common.errors import InvalidQuery
from odf_common.metadata.engine_messages import (
    RawQueryRequest,
    RawQueryResponseSuccess,
    TransformRequest,
    TransformResponseSuccess,
)
from odf_common.metadata.events import DatasetVocabulary, OffsetInterval, Transform
from odf_common.metadata.scalars import Strings, Timestamp
from odf_common.ports.engine import (
    EngineNotAvailable,
    EngineProgress,
    IsWanted,
    MigrateRequest,
    OnProgress,
    Past,
    QueryTable,
    ResultsChanged,
    ValidatedQuery,
    always,
)


class PassingEngine:
    """Implements the engine's port: a transform is the union of its inputs' new records; `columns`, None for all."""

    columns: Sequence[str] | None = None
    version: str | None = None
    earlier: str | None = None  # a version that is accepted
    changes: Strings = ()  # of results of other versions

    def __init__(self) -> None:
        self.requests: list[TransformRequest] = []
        self.migrations: list[MigrateRequest] = []
        self.failures: list[Exception] = []
        self.progress: Iterable[EngineProgress] = ()
        self.preprocess_schemas: list[pa.Schema | None] = []
        self.refusal = ""  # of a preprocess query that is new

    def execute_transform(
        self, request: TransformRequest, on_progress: OnProgress | None = None
    ) -> TransformResponseSuccess:
        self._require(request.transform)
        self._require_same_results(request.transform)
        self.requests.append(request)
        if on_progress is not None:
            for progress in self.progress:
                on_progress(progress)
        if self.failures:
            raise self.failures.pop(0)
        paths = [path for one in request.query_inputs for path in one.data_paths]
        tables = [read_slice(Path(path)) for path in paths or (request.query_inputs[0].schema_file,)]
        watermark = self._checkpoint(request)
        records = pa.concat_tables(tables).drop_columns(["offset", "op", "system_time"])
        records = records if self.columns is None else records.select(self.columns)
        output = with_system_columns(
            records,
            ops=None,
            first_offset=request.next_offset,
            system_time=request.system_time,
            vocab=request.vocab,
            signed=False,
        )
        if not len(output):
            pq.write_table(output, request.new_data_path)
            return TransformResponseSuccess(new_watermark=watermark)
        write_slice(output, Path(request.new_data_path))
        end = request.next_offset + len(output) - 1
        interval = OffsetInterval(start=request.next_offset, end=end)
        return TransformResponseSuccess(new_offset_interval=interval, new_watermark=watermark)

    def execute_raw_query(
        self, request: RawQueryRequest, is_wanted: IsWanted = always
    ) -> RawQueryResponseSuccess:
        raise NotImplementedError

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
        _require_select(transform)
        self._require(transform)
        if inputs:
            self._require_same_results(transform)
        schema = next(iter(inputs.values()), None)
        is_final = any("window(" in step.query for step in transform.queries or ())
        # As the engine itself, it analyses a query only where the columns of its inputs are known.
        reasons = [f"{name} {why}" for name, why in (retracting or {}).items()] if inputs else []
        has_other = past is not None and past.transform is not None and past.transform.version != self.version
        return ValidatedQuery(
            tables=tuple(inputs),
            schema=schema,
            is_stateful=False,
            version=self.version,
            can_retract=bool(reasons) and not is_final,
            retraction_refusal=f"windows are final, but {reasons[0]}" if reasons and is_final else "",
            changes=self.changes if has_other else (),
        )

    def validate_preprocess(self, transform: Transform, schema: pa.Schema | None) -> None:
        self.preprocess_schemas.append(schema)
        if self.refusal:
            raise InvalidQuery(text=self.refusal)
        _require_select(transform)

    def _require(self, transform: Transform) -> None:
        if transform.version not in (None, self.version, self.earlier):
            raise EngineNotAvailable(text=f"asked for {transform.version}, here is {self.version}")

    def _require_same_results(self, transform: Transform) -> None:
        if transform.version not in (None, self.version) and self.changes:
            raise ResultsChanged(engine=f"spark {transform.version}", kinds="; ".join(self.changes))

    def migrate(self, request: MigrateRequest) -> TransformResponseSuccess:
        self._require(request.new.transform)
        self.migrations.append(request)
        if self.failures:
            raise self.failures.pop(0)
        marks = {}
        if request.prev_checkpoint_path is not None:
            marks = json.loads(Path(request.prev_checkpoint_path).read_text())
        Path(request.new_checkpoint_path).write_text(json.dumps(marks))
        return TransformResponseSuccess(new_watermark=Timestamp(min(marks.values())) if marks else None)

    def tables_of(self, sql: str) -> Strings:
        return tuple(dict.fromkeys(re.findall(r"FROM `?([\w.-]+)`?", sql)))

    def query(self, sql: str, tables: tuple[QueryTable, ...]) -> pa.Table:
        slices = [read_slice(Path(path)) for table in tables for path in table.data_paths]
        return pa.concat_tables(slices) if slices else tables[0].schema.empty_table()

    def query_stream(
        self, sql: str, tables: tuple[QueryTable, ...], is_wanted: IsWanted = always
    ) -> Iterator[bytes]:
        table = self.query(sql, tables)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        yield sink.getvalue().to_pybytes()

    def _checkpoint(self, request: TransformRequest) -> Timestamp | None:
        before = request.prev_checkpoint_path
        marks = json.loads(Path(before).read_text()) if before else {}
        for one in request.query_inputs:
            for mark in one.explicit_watermarks:
                marks[str(one.dataset_id)] = mark.event_time.ns
        Path(request.new_checkpoint_path).write_text(json.dumps(marks))
        complete = len(marks) == len(request.query_inputs)
        return Timestamp(min(marks.values())) if complete else None


def _require_select(transform: Transform) -> None:
    queries = [step.query for step in transform.queries or ()]
    if not all(query.upper().startswith("SELECT") for query in queries):
        raise InvalidQuery(text="syntax error at line 1, column 1")
