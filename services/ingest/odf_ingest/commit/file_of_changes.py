"""A file of changes in an envelope: each of its JSON objects is a message, as of a topic.

A file in another format has records of its own, also if the messages of its source have an envelope.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Self

from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStep, ReadStepJson, ReadStepNdJson
from odf_ingest.commit.mismatched_records import without_messages
from odf_ingest.message_columns import Envelope, MessageColumns
from odf_ingest.prepare.batch import BadRecord, FileBatch, MessageBatch, as_batch
from odf_ingest.prepare.debezium import unwrapped
from odf_ingest.prepare.plan import Plan
from odf_ingest.prepare.preparer import PreparedRecords, Preparer
from odf_ingest.read import split_file


class FileOfChanges:
    """The messages of a file; bad ones are left out, or refuse it."""

    def __init__(
        self, preparer: Preparer, plan: Plan, batch: MessageBatch, places: Sequence[str], *, rejects: bool
    ) -> None:
        """`places` says where each message is; `rejects`: whether bad ones may be left out."""
        self._preparer = preparer
        self._plan = plan
        self._batch = batch
        self._places = places
        self._rejects = rejects

    @classmethod
    def of(
        cls, preparer: Preparer, plan: Plan, file: FileBatch, messages: MessageColumns, *, rejects: bool
    ) -> Self | None:
        """Return the messages of a file; None if it has records without an envelope. Raises `InvalidInput`."""
        step = plan.source.read
        has_changes = isinstance(step, ReadStepNdJson | ReadStepJson)
        if messages.envelope is Envelope.NONE or not has_changes:
            return None
        found = split_file(step, file.file.read_bytes())
        assert found is not None
        plan = replace(plan.obeying(messages), source=replace(plan.source, read=as_lines(found.step)))
        columns = MessageColumns(envelope=messages.envelope)
        batch = replace(as_batch(file.label, found.values, file.event_time), columns=columns)
        return cls(preparer, plan, batch, found.places, rejects=rejects)

    @property
    def count(self) -> int:
        """Return how many messages the file has."""
        return len(self._places)

    def read(self) -> PreparedRecords:
        """Return the records; raises `InvalidInput` with the place of a bad message that refuses the file."""
        return self._allowed(self._read(self._batch))

    def without(self, prepared: PreparedRecords, faults: Mapping[int, str]) -> PreparedRecords:
        """Return the records without the messages of `faults`; raises `InvalidInput` as `read` does."""
        column = self._plan.vocab.event_time_column
        return self._allowed(without_messages(prepared, self._batch, faults, column, self._read))

    def _read(self, batch: MessageBatch) -> PreparedRecords:
        if not len(batch.parts[0].values):
            return unwrapped(self._preparer.messages, self._plan, replace(batch, parts=()))
        return unwrapped(self._preparer.messages, self._plan, batch)

    def _allowed(self, prepared: PreparedRecords) -> PreparedRecords:
        if prepared.bad and (not self._rejects or len(prepared.bad) == self.count):
            first = prepared.bad[0]
            raise InvalidInput(where=self._places[first.offset], text=first.reason)
        # The event times of all are known, and a file is one batch.
        return replace(prepared, bad=tuple(map(self._placed, prepared.bad)), greatest={})

    def _placed(self, bad: BadRecord) -> BadRecord:
        place = self._places[bad.offset]
        return replace(bad, reason=f"{place}: {bad.reason.removeprefix(f'{place}: ')}")


def as_lines(step: ReadStep) -> ReadStep:
    """Return the step that reads each object of a Json file as a message."""
    if not isinstance(step, ReadStepJson) or step.sub_path is not None:
        return step
    return ReadStepNdJson(
        ddl_schema=step.ddl_schema,
        schema=step.schema,
        date_format=step.date_format,
        timestamp_format=step.timestamp_format,
    )
