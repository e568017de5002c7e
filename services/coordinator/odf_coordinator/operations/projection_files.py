"""Results of projections: one Parquet file for each, which also says what it was computed from."""

import hashlib
import json
import shutil
import tempfile
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from odf_common.adapters.local.faults import translate_os_errors, translating_os_errors
from odf_common.ports.engine import QueryTable

log = structlog.stdlib.get_logger(__name__)

FOLDER: Final = "projections"
_ORIGIN: Final = b"odf.projection"  # a key of Parquet's metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The query and the heads of inputs that a result was computed from."""

    alias: str
    """The name of the projection in SQL."""
    sql: str
    heads: Mapping[str, str]
    """The head of each input's chain, by dataset id."""

    @classmethod
    def of_file(cls, path: Path) -> Self:
        """Read the origin of a result; raises `KeyError` if the file has none."""
        plain = json.loads(pq.read_schema(path).metadata[_ORIGIN])
        return cls(alias=plain["alias"], sql=plain["sql"], heads=plain["heads"])

    def encode(self) -> bytes:
        """Return the JSON that is kept in the file."""
        plain = {"alias": self.alias, "sql": self.sql, "heads": dict(self.heads)}
        return json.dumps(plain, sort_keys=True).encode()

    @property
    def digest(self) -> str:
        """The part of the file's name that tells results of one projection apart."""
        return hashlib.sha3_256(self.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionResult:
    """The published result of a projection."""

    path: Path
    origin: Origin

    @property
    def records(self) -> int:
        """The number of records."""
        return int(pq.read_metadata(self.path).num_rows)


class ProjectionFiles:
    """The results in a folder, which the engine reads, too; thread-safe.

    The former result of each projection stays until the next but one is published, for queries that are reading it.
    """

    def __init__(self, folder: Path) -> None:
        """Index the results in a folder; a file that cannot be read is removed, since it is computed again."""
        self._folder = folder
        self._results: dict[str, ProjectionResult] = {}
        self._lock = threading.Lock()
        with translate_os_errors():
            for path in sorted(folder.glob("*/*.parquet"), key=lambda one: one.stat().st_mtime_ns):
                self._index(path)

    def _index(self, path: Path) -> None:
        try:
            self._results[path.parent.name] = ProjectionResult(path=path, origin=Origin.of_file(path))
        except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
            log.warning(
                "the result of a projection is unreadable, and removed", file=str(path), why=str(error)
            )
            path.unlink()

    def of_projection(self, id: str) -> ProjectionResult | None:
        """Return the result of a projection; None if it has none yet."""
        with self._lock:
            return self._results.get(id)

    def table(self, name: str) -> QueryTable | None:
        """Return the result of the projection with a name in SQL, in any case; None if there is none."""
        with self._lock:
            results = tuple(self._results.values())
        for result in results:
            if result.origin.alias.lower() == name.lower():
                schema = pq.read_schema(result.path).remove_metadata()
                return QueryTable(name=name, schema=schema, data_paths=(str(result.path),))
        return None

    @translating_os_errors
    def publish(self, id: str, origin: Origin, stream: Iterable[bytes]) -> None:
        """Replace the result of a projection atomically by an Arrow IPC stream."""
        folder = self._folder / id
        self._folder.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / f"{origin.digest}.parquet"
        with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
            received, written = Path(scratch, "result.arrows"), Path(scratch, path.name)
            with received.open("wb") as file:
                for chunk in stream:
                    file.write(chunk)
            _write_parquet(received, written, origin)
            written.replace(path)
        with self._lock:
            former = self._results.get(id)
            self._results[id] = ProjectionResult(path=path, origin=origin)
        kept = {path, path if former is None else former.path}
        for old in set(folder.glob("*.parquet")) - kept:
            old.unlink()

    @translating_os_errors
    def remove(self, id: str) -> None:
        """Remove the results of a projection."""
        with self._lock:
            self._results.pop(id, None)
        folder = self._folder / id
        if folder.exists():
            shutil.rmtree(folder)


def _write_parquet(received: Path, written: Path, origin: Origin) -> None:
    """Write an Arrow IPC stream as Parquet, batch by batch."""
    with pa.memory_map(str(received)) as source, pa.ipc.open_stream(source) as stream:
        schema = stream.schema.with_metadata({_ORIGIN: origin.encode()})
        with pq.ParquetWriter(written, schema, compression="zstd") as writer:
            for batch in stream:
                writer.write_batch(batch.replace_schema_metadata(schema.metadata))
