"""Manifests of resources: read from YAML or JSON, with every error of every document (RFC-018)."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from odf_common.codec.yaml_syntax import Document, child, documents
from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import Name
from odf_common.resources.labels import TypeLookup, check_annotations, check_labels, label_key
from odf_common.resources.references import AccountRef
from odf_common.resources.registry import ResourceType, Types
from odf_common.resources.scalar_formats import ResourceId, parse_name

MAX_RESOURCES: Final = 1000  # in a batch
MAX_BATCH_BYTES: Final = 10 * 1024 * 1024
_TOP_LEVEL: Final = ("$schema", "headers", "spec")
_HEADERS: Final = ("id", "name", "account", "labels", "annotations")
_SYSTEM_HEADERS: Final = ("generation", "createdAt", "updatedAt", "deletedAt", "ownerReferences")
_INPUT_CODES: Final = {"InvalidInput": "SchemaViolation"}


class SystemField(InvalidInput):
    """Only the node writes this field."""

    ADVICE = "remove it; `--view input` prints a resource without such fields"


class TooLarge(InvalidInput):
    """The batch is larger than the node accepts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An error in a manifest."""

    document: int
    """Number of the document in its file or request, from 1."""
    file: str | None = None
    line: int | None = None
    path: str
    code: str
    message: str
    hint: str = ""

    def plain(self) -> dict[str, object]:
        """Return the object of answers, without what is not known."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in fields.items() if value not in (None, "")}


class EmptyBatch(InvalidInput):
    """There is no manifest to apply."""

    ADVICE = "write a YAML document with $schema, headers and spec; `odf explain TYPE` prints the fields"


class InvalidManifests(InvalidInput):
    """Manifests that cannot be applied, with all their errors."""

    problems: tuple[Problem, ...]

    def __str__(self) -> str:
        """Return the first error and the number of others."""
        first, *others = self.problems
        place = ":".join(str(part) for part in (first.file, first.line) if part is not None)
        more = f" (and {len(others)} more)" if others else ""
        return (
            f"{place + ': ' if place else ''}{first.path + ': ' if first.path else ''}{first.message}{more}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenResource:
    """A document of a batch, as it was written."""

    plain: Any
    number: int
    """Of the document in its file or request, from 1."""
    file: str | None = None
    document: Document | None = None
    """The text, by which errors have lines."""

    def problem(self, error: InvalidInput) -> Problem:
        """Return an error of the document with its place."""
        path = error.where or ""
        location = self.document.location_of(path) if self.document is not None else None
        return Problem(
            document=self.number,
            file=self.file,
            line=location[0] if location else None,
            path=path,
            code=_INPUT_CODES.get(error.code, error.code),
            message=error.text or str(error),
            hint=error.advice(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceManifest:
    """The desired state of a resource: a valid document."""

    written: WrittenResource
    type: ResourceType
    id: ResourceId | None
    name: Name
    account: AccountRef | None
    labels: Mapping[str, Any] | None
    annotations: Mapping[str, Any] | None
    spec: Mapping[str, Any]
    """As it was written; `type.read_spec` has accepted it."""


def written_batch(files: Iterable[tuple[str, bytes]]) -> tuple[WrittenResource, ...]:
    """Return the documents of files by their names, which may be empty; raises `EmptyBatch`, `InvalidManifests`."""
    read = [*files]
    written = tuple(one for name, text in read for one in written_resources(text, name or None))
    if not written:
        raise EmptyBatch(text="there is no manifest", where=", ".join(name for name, _ in read))
    return written


def written_resources(text: bytes, file: str | None = None) -> tuple[WrittenResource, ...]:
    """Return the documents of a YAML stream, a JSON object, array, or `{"items": […]}`; raises `InvalidManifests`."""
    if len(text) > MAX_BATCH_BYTES:
        raise TooLarge(text=f"a batch has at most {MAX_BATCH_BYTES} bytes, got {len(text)}", where=file)
    try:
        parsed = documents(text, file or "", is_of_resources=True)
    except InvalidInput as error:
        line = (error.where or "").rsplit(":", 2)[1:2]
        place = int(line[0]) if line and line[0].isdigit() else None
        problem = Problem(
            document=1, file=file, line=place, path="", code="InvalidYaml", message=error.text or str(error)
        )
        raise InvalidManifests(problems=(problem,)) from error
    return tuple(
        WrittenResource(plain=plain, number=n, file=file, document=document)
        for n, (plain, document) in enumerate(_items(parsed), 1)
    )


def _items(parsed: Iterable[Document]) -> Iterable[tuple[Any, Document | None]]:
    for document in parsed:
        value = document.value
        listed = value.get("items") if isinstance(value, Mapping) and set(value) == {"items"} else value
        if isinstance(listed, list):
            yield from ((item, None) for item in listed)
        else:
            yield value, document


def manifests_of(written: Sequence[WrittenResource], types: Types) -> tuple[ResourceManifest, ...]:
    """Return the manifests of documents; raises `InvalidManifests` with every error of every document."""
    if len(written) > MAX_RESOURCES:
        raise TooLarge(text=f"a batch has at most {MAX_RESOURCES} resources, got {len(written)}")
    manifests: list[ResourceManifest] = []
    problems: list[Problem] = []
    for document in written:
        errors: list[InvalidInput] = []
        manifest = _manifest(document, types, errors)
        problems.extend(document.problem(error) for error in errors)
        if manifest is not None:
            manifests.append(manifest)
    if problems:
        raise InvalidManifests(problems=tuple(problems))
    return tuple(manifests)


def _manifest(written: WrittenResource, types: Types, errors: list[InvalidInput]) -> ResourceManifest | None:
    plain = written.plain
    if not isinstance(plain, Mapping):
        errors.append(InvalidInput(text="expected a mapping of $schema, headers and spec"))
        return None
    try:
        kind = _type(plain, types)
    except InvalidInput as error:
        errors.append(error)
        return None
    errors.extend(_key_errors(plain))
    headers = _read_headers(plain.get("headers", {}), types, errors)
    if "spec" in plain:
        kind.read_spec(plain["spec"], errors)
    if errors:
        return None
    return ResourceManifest(written=written, type=kind, spec=plain["spec"], **headers)


def _type(plain: Mapping[str, Any], types: Types) -> ResourceType:
    kind = types.of_schema(plain.get("$schema"))
    if kind.is_system_made:
        text = f"resources of type {kind.short_name} are made by the node only"
        raise SystemField(text=text, where="$schema", hint="start a flow instead")
    return kind


def _key_errors(plain: Mapping[str, Any]) -> Iterator[InvalidInput]:
    """Return errors for keys that are unknown or missing."""
    for key in plain:
        if key == "status":
            yield SystemField(text="'status' is written by the node", where=key)
        elif key not in _TOP_LEVEL:
            yield InvalidInput(text=f"unknown key {key!r}", where=key)
    for key in ("headers", "spec"):
        if key not in plain:
            yield InvalidInput(text=f"{key!r} is missing")


def _read_headers(plain: object, types: Types, errors: list[InvalidInput]) -> dict[str, Any]:
    if not isinstance(plain, Mapping):
        errors.append(InvalidInput(text="expected a mapping", where="headers"))
        return {}
    for key in plain:
        if key in _SYSTEM_HEADERS:
            errors.append(SystemField(text=f"{key!r} is written by the node", where=child("headers", key)))
        elif key not in _HEADERS:
            errors.append(InvalidInput(text=f"unknown key {key!r}", where=child("headers", key)))
    if "name" not in plain:
        errors.append(InvalidInput(text="'name' is missing", where="headers"))
    readers: dict[str, Callable[[Any], Any]] = {
        "id": lambda value: ResourceId.parse(_text(value)),
        "name": lambda value: parse_name(_text(value)),
        "account": AccountRef.parse,
        "labels": lambda value: _check_entries(value, check_labels, types),
        "annotations": lambda value: _check_entries(value, check_annotations, types),
    }
    headers = {}
    for key, read in readers.items():
        try:
            headers[key] = read(plain[key]) if key in plain else None
        except InvalidInput as error:
            where = child("headers", key) + (f".{error.where}" if error.where else "")
            errors.append(error.with_facts(where=where))
    return headers


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidInput(text="expected a string; put it in quotes")
    return value


def _mapping(plain: object) -> dict[str, Any]:
    if not isinstance(plain, dict):
        raise InvalidInput(text="expected a mapping")
    return plain


def _check_entries(
    plain: object, check: Callable[[Mapping[str, object], TypeLookup], object], types: Types
) -> dict[str, Any]:
    entries = _mapping(plain)
    check(entries, types.uri_of)
    for key, value in entries.items():
        error = types.check_label(label_key(key, types.uri_of), value)
        if error is not None:
            raise InvalidInput(text=error.text, where=key + (f".{error.where}" if error.where else ""))
    return entries
