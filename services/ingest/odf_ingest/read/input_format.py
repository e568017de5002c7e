"""The format of pushed data that differs from the source's format: a name (`odf ingest`) or a media type (HTTP)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Final, Self

from odf_common.codec.plain_values import camel
from odf_common.data.read_options import require_options
from odf_common.errors import InvalidInput, nearest
from odf_common.metadata.events import (
    ReadStep,
    ReadStepCsv,
    ReadStepEsriShapefile,
    ReadStepGeoJson,
    ReadStepJson,
    ReadStepNdGeoJson,
    ReadStepNdJson,
    ReadStepParquet,
)
from odf_ingest.errors import UnsupportedMediaType
from odf_ingest.read.arrow_ipc import ReadArrowIpc
from odf_ingest.read.format import read_file

ARROW: Final = "arrow"
BY_NAME: Final[Mapping[str, type[ReadStep]]] = {
    ARROW: ReadArrowIpc,
    "csv": ReadStepCsv,
    "esrishapefile": ReadStepEsriShapefile,
    "geojson": ReadStepGeoJson,
    "json": ReadStepJson,
    "ndgeojson": ReadStepNdGeoJson,
    "ndjson": ReadStepNdJson,
    "parquet": ReadStepParquet,
}
SOURCE: Final = "source"  # the source's own format
OWN: Final = "application/octet-stream"  # says nothing about the format: the source's own
MEDIA_TYPES: Final[Mapping[str, str]] = {
    "application/geo+json": "geojson",
    "application/geo+json-seq": "ndgeojson",
    "application/json": "json",
    "application/jsonl": "ndjson",
    "application/ndjson": "ndjson",
    "application/parquet": "parquet",
    "application/vnd.apache.arrow.file": "arrow",
    "application/vnd.apache.arrow.stream": "arrow",
    "application/vnd.apache.parquet": "parquet",
    "application/vnd.shp": "esrishapefile",
    "application/x-ndgeojson": "ndgeojson",
    "application/x-ndjson": "ndjson",
    "application/x-parquet": "parquet",
    "text/csv": "csv",
}


_PARAMETER: Final = re.compile(r';\s*(?:([\w-]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^\s;"]*))?\s*')
_BOOLEANS: Final = {"true": True, "present": True, "false": False, "absent": False}
TAB: Final = "tab"  # as a separator: an argument or header can hardly hold one
_UTF8: Final = frozenset({"", "utf-8", "utf8", "us-ascii"})


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFormat:
    """The format of pushed data: its name, None for the source's format, and options of its read step."""

    name: str | None = None
    options: tuple[tuple[str, str], ...] = ()
    """Values of options by their names in a manifest, such as `nullValue`; case is ignored."""
    is_media_type: bool = field(default=False, compare=False)
    text: str = field(default="", compare=False)
    """The text from which it was parsed."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the format of a name or a media type, such as `csv; separator=";"` or `text/csv; header=absent`.

        Raises `InvalidInput` unless this node can read the format.
        """
        type_, semicolon, rest = text.partition(";")
        type_, options = type_.strip().lower(), _options(semicolon + rest, text)
        if not text or type_ in {SOURCE, OWN}:
            return cls(options=options, is_media_type=type_ == OWN, text=text)
        is_media_type = "/" in type_
        name = MEDIA_TYPES.get(type_) if is_media_type else type_
        if name in readable():
            return cls(name=name, options=options, is_media_type=is_media_type, text=text)
        if is_media_type:
            known = tuple(type_ for type_, format_ in MEDIA_TYPES.items() if format_ in readable())
            raise UnsupportedMediaType(media_type=text, known=known)
        raise InvalidInput(text=f"unknown input format {text!r}; choose from {', '.join(readable())}")

    def step(self, own: ReadStep) -> ReadStep:
        """Return the step that reads this format for a source with the step `own`.

        If the format differs from the source's, the step has the source's schema, but none of its other options. Csv
        then has a header line unless an option says otherwise; its types are inferred if the source has no schema.
        Raises `InvalidInput` for an option that the format does not have or that cannot be applied.
        """
        kind = type(own) if self.name is None else BY_NAME[self.name]
        step = own if isinstance(own, kind) else self._foreign(kind, own)
        if not self.options:
            return step
        known = {camel(one.name): one for one in fields(step) if one.name not in {"ddl_schema", "schema"}}
        by_key = {name.lower(): one for name, one in known.items()}
        changes: dict[str, str | bool] = {}
        for key, value in self.options:
            option = by_key.get(key.lower())
            if option is None:
                self._require_ignorable(key, tuple(known))
            else:
                is_tab = option.name == "separator" and value.lower() == TAB
                is_boolean = option.type == bool | None
                changes[option.name] = _boolean(key, value) if is_boolean else "\t" if is_tab else value
        step = replace(step, **changes)  # type: ignore[arg-type]  # it has the fields
        require_options(step)
        return step

    def _require_ignorable(self, key: str, names: Sequence[str]) -> None:
        """Raise `InvalidInput` for an unknown option.

        A parameter of a media type is ignored if its name does not resemble an option.
        """
        meant = nearest(key, names)
        if self.is_media_type and meant is None and key != "encoding":
            return
        hint = f"did you mean {meant}?" if meant else f"it has {', '.join(names) or 'none'}"
        raise InvalidInput(where=f"option {key}", text=f"the format does not have it; {hint}")

    def _foreign(self, kind: type[ReadStep], own: ReadStep) -> ReadStep:
        columns = {"ddl_schema": own.ddl_schema, "schema": own.schema}
        if kind is ReadStepCsv:
            is_declared = own.ddl_schema is not None or own.schema is not None
            return ReadStepCsv(header=True, infer_schema=not is_declared, **columns)  # type: ignore[arg-type]
        return kind(**columns)  # type: ignore[arg-type]  # every step has these two


def _options(parameters: str, text: str) -> tuple[tuple[str, str], ...]:
    """Return the parameters of a format (RFC 9110). A charset becomes the option `encoding`, unless it is UTF-8."""
    options, end = [], 0
    for match in _PARAMETER.finditer(parameters):
        if match.start() != end:
            break
        end = match.end()
        name, value = match.groups()
        if name is None:
            continue
        if value.startswith('"'):
            value = re.sub(r"\\(.)", r"\1", value[1:-1])
        if name.lower() == "charset":
            name, value = "encoding", "" if value.lower() in _UTF8 else value.lower()
        if (name, value) != ("encoding", ""):
            options.append((name, value))
    if end != len(parameters):
        raise InvalidInput(where=f"format {text!r}", text=f"cannot be read at {parameters[end:]!r}")
    return tuple(options)


def _boolean(key: str, value: str) -> bool:
    if value.lower() not in _BOOLEANS:
        raise InvalidInput(where=f"option {key}", text=f"expected true or false, got {value!r}")
    return _BOOLEANS[value.lower()]


SOURCES_OWN: Final = InputFormat()


def readable() -> tuple[str, ...]:
    """Return the names of the formats that this node can read."""
    unread = read_file.dispatch(object)
    return tuple(name for name, kind in BY_NAME.items() if read_file.dispatch(kind) is not unread)
