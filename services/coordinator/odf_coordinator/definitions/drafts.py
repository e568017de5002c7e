"""Drafts of datasets from manifests: snapshots are parsed and ordered, and inputs resolved to ids. Writes nothing."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter

from odf_common.codec.manifests import SourcedSnapshot, sourced_snapshots
from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import DatasetId, parse_alias, parse_ref
from odf_common.identity.keys import PrivateKey, generate
from odf_common.metadata.events import DatasetSnapshot, KnownEvent, Seed, SetTransform, TransformInput
from odf_common.metadata.normalize import normalize
from odf_common.ports.store import Catalog, DatasetUnknown
from odf_coordinator.definitions.diff import require_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A file of one or more snapshots; `name` is for error messages."""

    name: str
    text: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A dataset as its manifest defines it. `key` is a new key, which is not used if the dataset exists."""

    written: SourcedSnapshot | None
    """None: it is not from a manifest of a snapshot."""
    snapshot: DatasetSnapshot
    dataset_id: DatasetId
    key: PrivateKey

    @property
    def name(self) -> str:
        """Return the alias as it is written in the manifest."""
        return self.snapshot.name

    @property
    def events(self) -> tuple[KnownEvent, ...]:
        """Return the metadata events, without the seed."""
        return self.snapshot.metadata

    def with_events(self, events: tuple[KnownEvent, ...]) -> "Draft":
        """Return the draft with other events, which correspond one by one to the current ones."""
        return replace(self, snapshot=replace(self.snapshot, metadata=events))

    @property
    def seed(self) -> Seed:
        """Return the first event of the chain."""
        return Seed(dataset_id=self.dataset_id, dataset_kind=self.snapshot.kind)

    @contextmanager
    def locate_errors(self) -> Iterator[None]:
        """Prefix errors, whose `where` is a path, with the position in the file and the dataset's name."""
        with nullcontext() if self.written is None else _locate_errors(self.written):
            yield


def drafts_of(manifests: Sequence[Manifest], catalog: Catalog) -> tuple[Draft, ...]:
    """Return the drafts of all datasets in the manifests, each after its inputs.

    Raises `InvalidInput`, naming the manifest, for an invalid snapshot, a duplicate name or a cycle, and
    `DatasetUnknown` for an input that is neither in the catalog nor in the manifests.
    """
    drafts: dict[str, Draft] = {}
    for manifest in manifests:
        for written in sourced_snapshots(manifest.text, manifest.name):
            draft = _draft(written, catalog)
            if draft.name.lower() in drafts:
                with draft.locate_errors():
                    raise InvalidInput(text="is defined twice", where="content.name")
            drafts[draft.name.lower()] = draft
    return tuple(_resolve(drafts[name], drafts, catalog) for name in _in_order(drafts))


def resolve(event: SetTransform, ids: Mapping[str, DatasetId], catalog: Catalog) -> SetTransform:
    """Return the transform with the ids of its inputs; `ids` has new datasets by their names in lower case."""
    inputs = tuple(
        TransformInput(
            dataset_ref=str(_id_of(input_.dataset_ref, ids, catalog)),
            alias=input_.alias or input_.dataset_ref,
        )
        for input_ in event.inputs
    )
    return replace(event, inputs=inputs)


def _draft(written: SourcedSnapshot, catalog: Catalog) -> Draft:
    with _locate_errors(written):
        normal = normalize(written.snapshot)
        require_whole(normal)
    key = generate()
    entry = catalog.by_alias(str(parse_alias(normal.name)))
    dataset_id = key.dataset_id if entry is None else entry.dataset_id
    return Draft(written=written, snapshot=normal, dataset_id=dataset_id, key=key)


@contextmanager
def _locate_errors(written: SourcedSnapshot) -> Iterator[None]:
    try:
        yield
    except InvalidInput as error:
        path = error.where or ""
        where = ": ".join(part for part in (written.location(path), written.snapshot.name, path) if part)
        raise error.with_facts(where=where) from error


def _in_order(drafts: Mapping[str, Draft]) -> tuple[str, ...]:
    graph = {name: _input_names(draft) & drafts.keys() for name, draft in drafts.items()}
    try:
        return tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        names = " → ".join(reversed(error.args[1]))
        raise InvalidInput(text=f"datasets read each other: {names}") from error


def _input_names(draft: Draft) -> set[str]:
    return {
        input_.dataset_ref.lower()
        for event in draft.events
        if isinstance(event, SetTransform)
        for input_ in event.inputs
    }


def _resolve(draft: Draft, drafts: Mapping[str, Draft], catalog: Catalog) -> Draft:
    ids = {name: other.dataset_id for name, other in drafts.items()}
    try:
        events = tuple(
            resolve(event, ids, catalog) if isinstance(event, SetTransform) else event
            for event in draft.events
        )
    except DatasetUnknown as error:
        assert draft.written is not None
        location = draft.written.location(_path_of_input(draft, error.what))
        raise InputUnknown(
            what=error.what, nearest=error.nearest, reader=draft.name, where=location
        ) from error
    return replace(draft, snapshot=replace(draft.snapshot, metadata=events))


def _path_of_input(draft: Draft, ref: str) -> str:
    paths = (
        f"content.metadata[{number}].inputs[{index}].datasetRef"
        for number, event in enumerate(draft.events)
        if isinstance(event, SetTransform)
        for index, input_ in enumerate(event.inputs)
        if input_.dataset_ref == ref
    )
    return next(paths)


def _id_of(ref: str, ids: Mapping[str, DatasetId], catalog: Catalog) -> DatasetId:
    parsed = parse_ref(ref)
    if isinstance(parsed, DatasetId):
        if parsed in ids.values() or catalog.by_id(parsed) is not None:
            return parsed
    elif str(parsed).lower() in ids:
        return ids[str(parsed).lower()]
    else:
        entry = catalog.by_alias(str(parsed))
        if entry is not None:
            return entry.dataset_id
    raise DatasetUnknown(what=ref)


class InputUnknown(DatasetUnknown):
    """An input of a transform does not exist."""

    MESSAGE = "{where}: input {what} of {reader} does not exist"
    ADVICE = "add {what} first, or add its manifest in the same command"

    reader: str
    where: str
