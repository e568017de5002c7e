"""A batch of records in memory, for tests that commit without any format or transport."""

from dataclasses import dataclass

import pyarrow as pa

from odf_common.chain.state import ChainState
from odf_common.errors import InvalidInput
from odf_common.metadata.scalars import Timestamp
from odf_ingest.commit.committer import position_of
from odf_ingest.commit.position import SourcePosition
from odf_ingest.commit.watermark import NewWatermark
from odf_ingest.errors import OperationsMismatched
from odf_ingest.merge.strategies import takes_whole_batches
from odf_ingest.prepare.preparer import PreparedRecords


@dataclass
class TableBatch:
    """Port `Batch` for records in memory; None is a batch without any. Records that do not fit are left out."""

    source: str
    records: pa.Table | None
    may_be_empty: bool = False
    reasons: tuple[str, ...] = ()

    def position_in(self, state: ChainState) -> SourcePosition:
        return position_of(state, self.source)

    def check(self, position: SourcePosition) -> None:
        pass

    def prepare(self, state: ChainState) -> PreparedRecords:
        self._defined = state.push_sources[self.source]
        return self._prepared()

    def _prepared(self) -> PreparedRecords:
        source = self._defined
        return PreparedRecords(
            source=source,
            records=self.records,
            default_event_time=Timestamp.from_ms(0),
            greatest={},
            is_state=takes_whole_batches(source.merge),
        )

    def reduce_after(self, error: InvalidInput) -> PreparedRecords:
        if not isinstance(error, OperationsMismatched):
            raise error
        assert self.records is not None
        good = [row for row in range(len(self.records)) if row not in error.faults]
        self.records = self.records.take(pa.array(good, pa.int64())) if good else None
        self.reasons += tuple(error.faults[row] for row in sorted(error.faults))
        return self._prepared()

    def advance(
        self, position: SourcePosition, prepared: PreparedRecords
    ) -> tuple[SourcePosition, NewWatermark]:
        return position, None

    def before_proposal(self) -> None:
        pass
