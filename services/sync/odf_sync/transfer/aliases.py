"""Remote aliases of datasets: the locations that a dataset is pulled from and pushed to."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from odf_common.adapters.local.repositories import LocalRepositories
from odf_common.adapters.repository_urls import hidden_credentials, require_no_credentials
from odf_common.dataset.dataset_notes import RemoteAliases, change_aliases, remote_aliases
from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.errors import InvalidInput, NotFound, OdfError
from odf_common.identity.dataset_refs import (
    DatasetId,
    Url,
    is_pattern,
    parse_alias,
    parse_pattern,
    parse_ref,
    parse_ref_remote,
)
from odf_common.ports.store import CatalogEntry, require_entry
from odf_sync.repositories.smart_dataset import require_pushable


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasChange:
    """Locations to add to and to delete from the remote aliases of a dataset."""

    add_pull: tuple[str, ...] = ()
    add_push: tuple[str, ...] = ()
    delete_pull: tuple[str, ...] = ()
    delete_push: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise `InvalidInput` unless each added location is a valid remote dataset, and a push URL can be pushed to.

        A URL with a password is refused, because aliases are stored and listed in plain text.
        """
        for location in (*self.add_pull, *self.add_push):
            require_no_credentials(location)
        for location in self.add_pull:
            parse_ref_remote(location)
        for location in self.add_push:
            if isinstance(parse_ref_remote(location), Url):
                require_pushable(location)

    def apply(self, aliases: RemoteAliases) -> RemoteAliases:
        """Return the aliases after the change; raises `NotFound` if an alias to delete does not exist."""
        for location in self.add_pull:
            aliases = aliases.with_pull(location)
        for location in self.add_push:
            aliases = aliases.with_push(location)
        for location in map(hidden_credentials, self.delete_pull):
            _require(location, aliases.pull, "pull")
            aliases = aliases.without_pull(location)
        for location in map(hidden_credentials, self.delete_push):
            _require(location, aliases.push, "push")
            aliases = aliases.without_push(location)
        return aliases


def list_aliases(
    datasets: NodeDatasets, refs: Iterable[str], *, recursive: bool, is_strict: bool = False
) -> tuple[tuple[CatalogEntry, RemoteAliases], ...]:
    """Return the datasets that have remote aliases, with the aliases; `refs` restricts them to datasets or patterns.

    If `recursive`, the inputs of those datasets are included, each before the datasets that use it. An unknown name in
    `refs` is ignored, or raises `NotFound` if `is_strict`; a pattern may match no dataset.
    """
    entries = tuple(datasets.catalog.entries())
    names = tuple(refs)
    for ref in names if is_strict else ():
        if not is_pattern(ref):
            require_entry(datasets.catalog, ref)
    if names:
        chosen = [entry for entry in entries if any(_is_named(entry, ref) for ref in names)]
        entries = tuple(_with_inputs(datasets, chosen) if recursive else chosen)
    with_aliases = (
        (entry, _without_secrets(remote_aliases(datasets.blobs, entry.dataset_id))) for entry in entries
    )
    return tuple((entry, aliases) for entry, aliases in with_aliases if aliases != RemoteAliases())


def change(
    datasets: NodeDatasets, repositories: LocalRepositories, ref: str, requested: AliasChange
) -> tuple[CatalogEntry, RemoteAliases]:
    """Change the remote aliases of a dataset, and return them.

    Raises `NotFound` for an unknown dataset or deleted alias, and `UnknownRepository` if an added alias names one.
    """
    for location in (*requested.add_pull, *requested.add_push):
        named = parse_ref_remote(location)
        if not isinstance(named, Url) and named.repo is not None:
            repositories.find(named.repo)
    entry = require_entry(datasets.catalog, ref)

    def apply_change(aliases: RemoteAliases) -> RemoteAliases:
        return requested.apply(_without_secrets(aliases))

    return entry, change_aliases(datasets.blobs, entry.dataset_id, apply_change)


def _without_secrets(aliases: RemoteAliases) -> RemoteAliases:
    """Return aliases with passwords in their URLs masked.

    Earlier versions stored such URLs; transfers refuse them.
    """
    return replace(
        aliases,
        pull=tuple(map(hidden_credentials, aliases.pull)),
        push=tuple(map(hidden_credentials, aliases.push)),
    )


def _is_named(entry: CatalogEntry, ref: str) -> bool:
    try:
        if is_pattern(ref):
            return parse_pattern(ref).matches(parse_alias(entry.alias))
        named = parse_ref(ref)
    except InvalidInput:
        return False
    return entry.dataset_id == named if isinstance(named, DatasetId) else parse_alias(entry.alias) == named


def _with_inputs(datasets: NodeDatasets, chosen: Iterable[CatalogEntry]) -> Iterator[CatalogEntry]:
    """Yield datasets with their direct and indirect inputs, each once and inputs first.

    A dataset whose chain cannot be read counts as one without inputs.
    """
    seen: set[DatasetId] = set()
    waiting = [(entry, False) for entry in reversed(tuple(chosen))]
    while waiting:
        entry, has_inputs_before = waiting.pop()
        if has_inputs_before:
            yield entry
        elif entry.dataset_id not in seen:
            seen.add(entry.dataset_id)
            inputs = map(datasets.catalog.by_id, _inputs(datasets, entry.dataset_id))
            waiting += [(entry, True), *((dataset, False) for dataset in inputs if dataset is not None)]


def _inputs(datasets: NodeDatasets, dataset: DatasetId) -> tuple[DatasetId, ...]:
    try:
        state = datasets.states.current(dataset)
    except OdfError:
        return ()
    return () if state is None else state.inputs


def _require(location: str, aliases: tuple[str, ...], kind: str) -> None:
    if location not in aliases:
        raise NotFound(what=f"{kind} alias {location}")
