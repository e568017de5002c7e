"""Runs a source's preprocess query over its records in the engine (spec: preprocess; wire-facts §7.3)."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from odf_common.errors import InvalidInput, VerificationFailed, is_transient
from odf_common.metadata.engine_messages import RawQueryRequest
from odf_common.metadata.events import Transform
from odf_common.ports.engine import Engine, IsWanted


class EngineOutputUnreadable(VerificationFailed):
    """The engine's output cannot be read."""

    why: str


class Preprocessor:
    """Runs a source's preprocess query."""

    def __init__(self, engine: Engine, scratch: Callable[[], Path]) -> None:
        """Exchange files with the engine in folders that `scratch` creates."""
        self._engine = engine
        self._scratch = scratch

    def run(self, transform: Transform, records: pa.Table, is_wanted: IsWanted) -> pa.Table | None:
        """Return the query's output; None if it has no records. Raises the errors of the engine."""
        folder = self._scratch()
        try:
            return self._run(transform, records, folder, is_wanted)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _run(
        self, transform: Transform, records: pa.Table, folder: Path, is_wanted: IsWanted
    ) -> pa.Table | None:
        before, after = folder / "input.parquet", folder / "output.parquet"
        try:
            pq.write_table(records, before, compression="snappy", store_schema=False)
        except (pa.ArrowException, NotImplementedError) as error:
            raise InvalidInput(text=f"the records cannot be passed to the engine: {error}") from error
        request = RawQueryRequest(
            input_data_paths=(str(before),), transform=transform, output_data_path=str(after)
        )
        if self._engine.execute_raw_query(request, is_wanted).num_records == 0:
            return None
        try:
            # Read into memory, because the file is removed with its folder.
            return pq.read_table(after, memory_map=False, pre_buffer=False).replace_schema_metadata(None)
        except (pa.ArrowException, OSError) as error:
            if is_transient(error):
                raise
            raise EngineOutputUnreadable(why=str(error)) from error
