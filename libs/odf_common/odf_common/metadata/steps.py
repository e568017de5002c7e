"""Fragments of events: how data is read, merged and transformed (spec: Fragments).

Field order is slot order and union order is discriminator order (wire-facts §1.4–1.6).
"""

from dataclasses import dataclass

from odf_common.metadata.data_schema import DataSchema

Strings = tuple[str, ...]


# --- Read ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStepCsv:
    """Delimiter-separated text."""

    ddl_schema: Strings | None = None
    separator: str | None = None
    encoding: str | None = None
    quote: str | None = None
    escape: str | None = None
    header: bool | None = None
    infer_schema: bool | None = None
    null_value: str | None = None
    date_format: str | None = None
    timestamp_format: str | None = None
    schema: DataSchema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStepGeoJson:
    """A GeoJSON FeatureCollection."""

    ddl_schema: Strings | None = None
    schema: DataSchema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStepEsriShapefile:
    """An ESRI shapefile, `sub_path` inside its archive."""

    ddl_schema: Strings | None = None
    sub_path: str | None = None
    schema: DataSchema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStepParquet:
    """A Parquet file."""

    ddl_schema: Strings | None = None
    schema: DataSchema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStepJson:
    """One JSON array of objects, at `sub_path` inside the document."""

    sub_path: str | None = None
    ddl_schema: Strings | None = None
    date_format: str | None = None
    encoding: str | None = None
    timestamp_format: str | None = None
    schema: DataSchema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStepNdJson:
    """One JSON object per line."""

    ddl_schema: Strings | None = None
    date_format: str | None = None
    encoding: str | None = None
    timestamp_format: str | None = None
    schema: DataSchema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStepNdGeoJson:
    """One GeoJSON Feature per line."""

    ddl_schema: Strings | None = None
    schema: DataSchema | None = None


ReadStep = (
    ReadStepCsv
    | ReadStepGeoJson
    | ReadStepEsriShapefile
    | ReadStepParquet
    | ReadStepJson
    | ReadStepNdJson
    | ReadStepNdGeoJson
)

# --- Transform ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlQueryStep:
    """A named query, or without alias the output of the transform."""

    alias: str | None = None
    query: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporalTable:
    """An input that a query can join as of a time."""

    name: str
    primary_key: Strings


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformSql:
    """SQL for one engine; normalized, `query` is absent and the last of `queries` has no alias."""

    engine: str
    version: str | None = None
    query: str | None = None
    queries: tuple[SqlQueryStep, ...] | None = None
    temporal_tables: tuple[TemporalTable, ...] | None = None


Transform = TransformSql

# --- Merge --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeStrategyAppend:
    """Every record is new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeStrategyLedger:
    """Records whose key was seen before are dropped."""

    primary_key: Strings


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeStrategySnapshot:
    """Each batch is the whole state; the difference is recorded."""

    primary_key: Strings
    compare_columns: Strings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeStrategyChangelogStream:
    """Records carry their own operation type."""

    primary_key: Strings


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeStrategyUpsertStream:
    """The last record of a key wins."""

    primary_key: Strings


MergeStrategy = (
    MergeStrategyAppend
    | MergeStrategyLedger
    | MergeStrategySnapshot
    | MergeStrategyChangelogStream
    | MergeStrategyUpsertStream
)
