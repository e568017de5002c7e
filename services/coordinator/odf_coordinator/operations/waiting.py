"""Explains for which input a derivative waits: for its first record, or for a later watermark."""

from collections.abc import Callable
from dataclasses import dataclass

from odf_common.errors import count_of
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.scalars import Timestamp
from odf_coordinator.catalog.chain_problems import is_in_future, lower_watermark
from odf_coordinator.catalog.datasets import DatasetHandle, Datasets
from odf_coordinator.definitions.first_schemas import FirstSchemas
from odf_coordinator.transforms.held_records import HeldRecords, held_records


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The reason why a derivative waits, and the remedy; `until` is the watermark that it needs, if known."""

    text: str
    remedy: str
    input: str
    until: Timestamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Explains why derivatives without a problem produce no records."""

    datasets: Datasets
    schemas: FirstSchemas
    latest_time: Callable[[], Timestamp]
    """Returns the latest system time that a block may have now."""

    def wait_of(self, handle: DatasetHandle) -> Wait | None:
        """Return the wait of an owned derivative; None if it does not wait for an input."""
        if not handle.is_derivative or not self.datasets.has_key(handle.id):
            return None
        inputs = [self.datasets.by_id(dataset) for dataset in handle.inputs()]
        known = [input_ for input_ in inputs if input_ is not None]
        if not known or len(known) < len(inputs):
            return None
        for input_ in known:
            if input_.state.schema is None:
                return self._first_record(input_)
        held = held_records(self.datasets.blobs, handle.state)
        return self._watermark(known, held) if held.records else None

    def _first_record(self, input_: DatasetHandle) -> Wait:
        root = self._input_behind(input_)
        why = "" if root.is_derivative else self.schemas.why_unknown(root)
        text = f"it waits for the first record of {root.alias}"
        return Wait(
            text=f"{text}, whose columns are not known before: {why}" if why else text,
            remedy=f"`odf pull {root.alias}`"
            if root.state.polling_source
            else f"publish a record to {root.alias}",
            input=root.alias,
        )

    def _watermark(self, inputs: list[DatasetHandle], held: HeldRecords) -> Wait:
        behind = min(inputs, key=_watermark_ns)
        ahead = max(inputs, key=_watermark_ns)
        root, watermark = self._input_behind(behind), behind.state.watermark
        until = "" if held.until is None else f" {held.until}"
        by = f" by {held.by}" if held.by else ""
        text = f"{count_of(held.records, 'record')} held{by} until the watermark reaches"
        where = f"{behind.alias} has no watermark"
        if watermark is not None:
            where = f"that of {behind.alias} is {watermark}, since {behind.state.system_time}"
        if ahead.state.watermark is not None and ahead.state.watermark != watermark:
            where += f"; that of {ahead.alias} is {ahead.state.watermark}"
        via = "" if root.id == behind.id else f" (it derives from {root.alias})"
        return Wait(
            text=f"{text}{until or ' it'}: {where}{via}",
            remedy=self._remedy_in_future(self._input_behind(ahead), held.until)
            or self._remedy(root, held.until),
            input=root.alias,
            until=held.until,
        )

    def _remedy_in_future(self, ahead: DatasetHandle, until: Timestamp | None) -> str:
        """Return the remedy if records are held until a time in the future; empty otherwise."""
        if until is None or not is_in_future(until, self.latest_time()):
            return ""
        watermark = ahead.state.watermark
        if watermark is None or not is_in_future(watermark, self.latest_time()):
            return f"{until} is in the future: a record has such a time; others come out without it"
        text = f"{until} is in the future: if {ahead.alias} has such times by intention, rows follow then"
        if ahead.is_derivative or not self.datasets.has_key(ahead.id):
            return f"{text}; if that time is wrong, it is corrected where {ahead.alias} is written"
        return f"{text}; {lower_watermark(self.datasets, ahead)}"

    def _remedy(self, root: DatasetHandle, until: Timestamp | None) -> str:
        if not self.datasets.has_key(root.id):
            return f"`odf pull {root.alias}` gets what its owner has published since"
        if root.is_derivative:
            return (
                f"{root.alias} has rows that may change at any time, so it has no watermark; see `odf status`"
            )
        time = "T" if until is None else str(until)
        return (
            f"records of {root.alias} with later times raise it; if none before {time} will come, "
            f"`odf pull {root.alias} --set-watermark {time}`; for partitions without messages: "
            f"`odf source set {root.alias} idleTimeout=1h`, or less than `odf source show {root.alias}` says"
        )

    def _input_behind(self, handle: DatasetHandle) -> DatasetHandle:
        """Return the dataset that holds back a derivative: the end of the path of its slowest inputs upstream."""
        seen = set[DatasetId]()  # a chain of earlier times may be part of a cycle
        while handle.is_derivative and handle.id not in seen and self.datasets.has_key(handle.id):
            seen.add(handle.id)
            found = [self.datasets.by_id(dataset) for dataset in handle.inputs()]
            inputs = [input_ for input_ in found if input_ is not None]
            unknown = [input_ for input_ in inputs if input_.state.schema is None]
            if not inputs:
                break
            slowest = min(unknown or inputs, key=_watermark_ns)
            # An input with a later watermark than its derivative is not what holds it back.
            if not unknown and handle.state.watermark is None and slowest.state.watermark is not None:
                break
            handle = slowest
        return handle


def _watermark_ns(handle: DatasetHandle) -> float:
    watermark = handle.state.watermark
    return float("-inf") if watermark is None else watermark.ns
