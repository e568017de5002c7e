"""Checks of Dataset resources before they are stored: those that need neither a chain nor an engine (RFC-018)."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from odf_common.dataset.plain_credentials import require_no_plain_credentials
from odf_common.errors import InvalidInput
from odf_common.metadata.events import AddPushSource, DatasetSnapshot, KnownEvent
from odf_common.metadata.normalize import normalize
from odf_common.resources.registry import DATASET
from odf_coordinator.definitions.declared_columns import require_fetchable
from odf_coordinator.definitions.diff import require_whole
from odf_coordinator.resources.draft import ImmutableField

# Events that a manifest cannot set: they are results of other operations.
_NOT_DECLARED: Final = ("Seed", "AddData", "ExecuteTransform", "DisablePollingSource", "DisablePushSource")
_ANY_ALIAS: Final = "dataset"


def check_dataset(spec: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """Raise `InvalidInput`, with the path, for a spec that cannot become a dataset; `before` may be empty."""
    if before and before["kind"] != spec["kind"]:
        text = f"the dataset is {before['kind']}; its kind cannot change"
        raise ImmutableField(text=text, where="spec.kind")
    if "volume" in spec:
        hint = "remove it: the dataset is stored where `ODF_STORE` says"
        raise InvalidInput(
            text="this node does not store datasets on volumes yet", where="spec.volume", hint=hint
        )
    for n, event in enumerate(spec["metadata"]):
        if event["kind"] in _NOT_DECLARED:
            text = f"a manifest cannot set {event['kind']}"
            raise InvalidInput(text=text, where=f"spec.metadata[{n}].kind")
    with locate_in_spec():
        snapshot = snapshot_of(spec, _ANY_ALIAS)
        require_whole(snapshot)
    for n, declared in enumerate(snapshot.metadata):
        _check_event(declared, snapshot.metadata[:n], f"spec.metadata[{n}]")


def _check_event(event: KnownEvent, earlier: tuple[KnownEvent, ...], where: str) -> None:
    if not isinstance(event, AddPushSource) and any(type(event) is type(other) for other in earlier):
        text = f"a manifest has at most one {type(event).__name__}"
        raise InvalidInput(text=text, where=f"{where}.kind", hint="keep one of them")
    try:
        require_no_plain_credentials(event)
        require_fetchable(event)
    except InvalidInput as error:
        path = ".".join(part for part in (where, error.where) if part)
        raise error.with_facts(where=path) from error


def snapshot_of(spec: Mapping[str, Any], alias: str) -> DatasetSnapshot:
    """Return the normalized snapshot that a spec describes; raises `InvalidInput` with paths below `content`."""
    typed = DATASET.read_spec({"kind": spec["kind"], "metadata": spec["metadata"]}, [])
    return normalize(DatasetSnapshot(name=alias, kind=typed.kind, metadata=typed.metadata))


@contextmanager
def locate_in_spec() -> Iterator[None]:
    """Make the paths of errors about a snapshot those of the spec that it is from."""
    try:
        yield
    except InvalidInput as error:
        where = error.where
        if where is not None and where.startswith("content."):
            raise error.with_facts(where=f"spec.{where.removeprefix('content.')}") from error
        raise
