"""Reading and writing of manifests in YAML or JSON (spec: Manifests; wire-facts §3.1).

A manifest consists of `kind`, `version` and `content`. Its text is for users; block hashes are never computed from it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from odf_common.codec.flatbuffers import VERSIONS, decode_block
from odf_common.codec.model_schema import EVENTS
from odf_common.codec.plain_values import from_plain, to_plain, union_from_plain
from odf_common.codec.yaml_syntax import Document, documents, write
from odf_common.errors import InvalidInput
from odf_common.metadata.events import DatasetSnapshot, KnownEvent, MetadataBlock, Repository

__all__ = [
    "SourcedSnapshot",
    "block_from_text",
    "block_to_yaml",
    "event_from_text",
    "from_plain",
    "repository_from_text",
    "repository_to_yaml",
    "snapshots_from_text",
    "sourced_snapshots",
    "to_plain",
    "to_yaml",
]

T = TypeVar("T")
_ENVELOPE: Final = ("kind", "version", "content")
_FORMERLY_SCHEMA: Final = ("ddlSchema", "rawArrowSchema")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcedSnapshot:
    """A snapshot and the document that it was read from; `name` is the name of the file or stream."""

    name: str
    snapshot: DatasetSnapshot
    document: Document

    def location(self, path: str) -> str:
        """Return `name:line:column` of a path such as `content.metadata[0].read`, or of the nearest enclosing value."""
        return _location(self.document, self.name, path)


def sourced_snapshots(text: bytes, name: str) -> tuple[SourcedSnapshot, ...]:
    """Return all snapshots in `text`; raises `InvalidInput` with the file, line, column and path of the error."""
    return tuple(
        SourcedSnapshot(name=name, snapshot=_read_located(_snapshot, document, name), document=document)
        for document in _some(text, name)
    )


def snapshots_from_text(text: bytes, name: str) -> tuple[DatasetSnapshot, ...]:
    """Return all snapshots in `text`, without their documents; raises the same errors as `sourced_snapshots`."""
    return tuple(written.snapshot for written in sourced_snapshots(text, name))


def event_from_text(text: bytes, name: str) -> KnownEvent:
    """Return the event in a MetadataEvent manifest, or in the content of one without the manifest around it."""

    def read(value: Any) -> KnownEvent:
        if _is_manifest(value):
            return _event(_content(value, "MetadataEvent", (1,))[0], "content")
        return _event(value, "")

    return _read_located(read, _only(text, name), name)


def block_from_text(text: bytes, name: str) -> tuple[MetadataBlock, int | None]:
    """Return a block and the version of its manifest; the version is None if `text` is only a manifest's content."""

    def read(value: Any) -> tuple[MetadataBlock, int | None]:
        if _is_manifest(value):
            content, version = _content(value, "MetadataBlock", VERSIONS)
            return from_plain(MetadataBlock, content, "content"), version
        return from_plain(MetadataBlock, value), None

    return _read_located(read, _only(text, name), name)


def block_to_yaml(raw: bytes) -> str:
    """Return the block in `raw` as a MetadataBlock manifest in YAML."""
    decoded = decode_block(raw)
    return write({"kind": "MetadataBlock", "version": decoded.version, "content": to_plain(decoded.block)})


def repository_from_text(text: bytes, name: str) -> Repository:
    """Return the repository in a Repository manifest."""

    def read(value: Any) -> Repository:
        return from_plain(Repository, _content(value, "Repository", (1,))[0], "content")

    return _read_located(read, _only(text, name), name)


def repository_to_yaml(repository: Repository) -> str:
    """Return a repository as a Repository manifest in YAML."""
    return write({"kind": "Repository", "version": 1, "content": to_plain(repository)})


def to_yaml(value: object) -> str:
    """Return a metadata object as YAML, without a manifest around it."""
    return write(to_plain(value))


def _snapshot(value: Any) -> DatasetSnapshot:
    content, _ = _content(value, "DatasetSnapshot", (1,))
    return from_plain(DatasetSnapshot, content, "content")


def _event(value: Any, where: str) -> KnownEvent:
    event: KnownEvent = union_from_plain(EVENTS, value, where)
    return event


def _is_manifest(value: Any) -> bool:
    return isinstance(value, Mapping) and "content" in value


def _content(value: Any, kind: str, versions: tuple[int, ...]) -> tuple[Any, int]:
    if not isinstance(value, Mapping):
        raise InvalidInput(text=f"expected a {kind} manifest: a mapping of kind, version, content", where="")
    for key in value:
        if key not in _ENVELOPE:
            raise InvalidInput(
                text=f"unknown key {key!r}; a manifest has kind, version and content", where=key
            )
    for key in _ENVELOPE:
        if key not in value:
            raise InvalidInput(text=f"{key!r} is missing", where="")
    if value["kind"] != kind:
        raise InvalidInput(text=f"expected kind {kind}, got {value['kind']!r}", where="kind")
    version = value["version"]
    if isinstance(version, bool) or version not in versions:
        expected = " or ".join(map(str, versions))
        raise InvalidInput(text=f"version {version!r} is not supported; expected {expected}", where="version")
    return value["content"], int(version)


def _some(text: bytes, name: str) -> tuple[Document, ...]:
    parsed = documents(text, name)
    if not parsed:
        raise InvalidInput(text="it has no document", where=name)
    return parsed


def _only(text: bytes, name: str) -> Document:
    first, *others = _some(text, name)
    if others:
        raise InvalidInput(text=f"expected one document, got {len(others) + 1}", where=name)
    return first


def _location(document: Document, name: str, path: str) -> str:
    """Return the position of a path; in the text, renamed fields may still have their former names."""
    former = re.sub(rf"\.({'|'.join(_FORMERLY_SCHEMA)})\b", ".schema", path)
    locations = [location for location in map(document.location_of, (path, former)) if location is not None]
    if not locations:
        return name
    line, column = max(locations)  # an inner value comes after the one that contains it
    return f"{name}:{line}:{column}"


def _read_located(read: Callable[[Any], T], document: Document, name: str) -> T:
    """Return the result of `read` for a document; adds file, line and column to the path in its errors."""
    try:
        return read(document.value)
    except InvalidInput as error:
        location = _location(document, name, error.where or "")
        raise InvalidInput(
            text=error.text, where=f"{location}: {error.where}" if error.where else location
        ) from error
