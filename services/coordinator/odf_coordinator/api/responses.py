"""Datasets and references as gRPC replies."""

from collections.abc import Callable, Sequence
from typing import Final

from odf_common.adapters.grpc.comparison import encode_comparison
from odf_common.codec.times import time_message, time_message_or_none
from odf_common.dataset.open_rejects import Rejects
from odf_common.dataset.plain_credentials import Credential, credentials_in, places_of
from odf_common.errors import name_dataset
from odf_common.identity.did import DatasetId
from odf_common.proto.odf.node.v1 import coordinator_pb2 as wire
from odf_coordinator.catalog.datasets import DatasetHandle, Unreadable
from odf_coordinator.catalog.stalls import Stall
from odf_coordinator.operations.references import Reference

NO_REJECTS: Final = Rejects()


def summary(
    handle: DatasetHandle,
    *,
    stall: Stall | None = None,
    data_size: int = 0,
    is_dropped: bool = False,
    late: int = 0,
    rejects: Rejects = NO_REJECTS,
) -> wire.DatasetSummary:
    """Return a dataset as a gRPC message."""
    state = handle.state
    return wire.DatasetSummary(
        alias=handle.alias,
        dataset_id=str(handle.id),
        kind=state.kind.name,
        head=str(state.head),
        blocks=state.sequence_number + 1,
        records=state.next_offset,
        watermark=time_message_or_none(state.watermark),
        system_time=time_message(state.system_time),
        push_topics=dict(handle.entry.push_topics),
        problem="" if stall is None else stall.reason,
        remedy="" if stall is None else name_dataset(stall.remedy, handle.alias),
        since=None if stall is None else stall.since.ns,
        data_size=data_size,
        inputs=[str(input_) for input_ in handle.inputs()],
        dropped=is_dropped,
        late=late,
        rejected=rejects.count,
        rejected_reason=rejects.reason,
        rejected_since=None if rejects.since is None else rejects.since.ns,
    )


def with_credentials(
    reply: wire.DatasetSummary,
    handle: DatasetHandle,
    has_key: Callable[[DatasetId], bool],
    earlier: str = "",
) -> wire.DatasetSummary:
    """Return the summary with the credentials that the chain shows, and what to do about them.

    `earlier` lists those of definitions that are not in force any more, but still in the chain.
    """
    exposed = credentials_in(handle.state.polling_source)
    if exposed:
        reply.exposed_remedy = _remedy_of(handle, exposed, is_ours=has_key(handle.id))
    elif earlier:
        reply.exposed_remedy = (
            "the chain keeps them: have them replaced at the source; "
            f"`odf access set {handle.alias} --visibility private` keeps the chain from others"
        )
    reply.exposed = "; ".join(filter(None, (places_of(exposed) if exposed else "", earlier)))
    return reply


def _remedy_of(handle: DatasetHandle, exposed: Sequence[Credential], *, is_ours: bool) -> str:
    """Return the remedy for credentials that a chain has published."""
    if not is_ours:
        private = f"`odf access set {handle.alias} --visibility private` keeps this copy from others"
        return f"its owner should have them replaced at the source; {private}"
    return (
        "the chain keeps them: have them replaced at the source, and commit the polling source without them, `odf "
        f"commit {handle.alias} FILE`; {exposed[0].path}: {exposed[0].instead}"
    )


def unheard(handle: DatasetHandle, has_key: Callable[[DatasetId], bool]) -> Stall | None:
    """Return the problem of an owned dataset whose push sources have no topic, as after `odf key import`."""
    missing = handle.state.push_sources.keys() - handle.entry.push_topics.keys()
    if not missing or not has_key(handle.id):
        return None
    return Stall(
        reason=f"push source {', '.join(sorted(missing))} has no topic here: nothing can be published to it",
        remedy=f"`odf pull {handle.alias}` creates it",
        since=handle.state.system_time,
    )


def unreadable_summary(dataset: Unreadable) -> wire.DatasetSummary:
    """Return the summary of a dataset whose chain cannot be read."""
    entry = dataset.entry
    return wire.DatasetSummary(
        alias=entry.alias,
        dataset_id=str(entry.dataset_id),
        push_topics=dict(entry.push_topics),
        problem=f"cannot be read: {dataset.why}",
        remedy=name_dataset(dataset.remedy, entry.alias),
        since=None if dataset.since is None else dataset.since.ns,
    )


def ref_item(reference: Reference) -> wire.RefItem:
    """Return a reference as a gRPC message."""
    compared = reference.compared
    return wire.RefItem(
        name=reference.name,
        block="" if reference.block is None else str(reference.block),
        sequence_number=reference.sequence_number,
        compared=None if compared is None else encode_comparison(compared.relation, compared.common),
        problem=reference.problem,
    )
