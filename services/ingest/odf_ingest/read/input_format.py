"""The format of pushed data where it is not the source's own: by name (`odf ingest`) or media type (HTTP)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from email.message import Message
from typing import Final, Self

from odf_common.errors import InvalidInput
from odf_common.metadata.steps import (
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

BY_NAME: Final[Mapping[str, type[ReadStep]]] = {
    "arrow": ReadArrowIpc,
    "csv": ReadStepCsv,
    "esrishapefile": ReadStepEsriShapefile,
    "geojson": ReadStepGeoJson,
    "json": ReadStepJson,
    "ndgeojson": ReadStepNdGeoJson,
    "ndjson": ReadStepNdJson,
    "parquet": ReadStepParquet,
}
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


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFormat:
    """The format of pushed data: its name, None for the source's own, and parameters of its media type."""

    name: str | None = None
    has_header: bool | None = None
    encoding: str | None = None
    text: str = field(default="", compare=False)
    """What it was parsed from."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the format of a name or a media type; raises `InvalidInput` unless this node reads it."""
        if not text:
            return cls()
        if "/" in text:
            return cls._of_media_type(text)
        name = text.lower()
        if name not in readable():
            raise InvalidInput(text=f"unknown input format {text!r}; choose from {', '.join(readable())}")
        return cls(name=name, text=text)

    @classmethod
    def _of_media_type(cls, text: str) -> Self:
        header = Message()
        header["content-type"] = text
        type_, parameters = header.get_content_type(), dict(header.get_params(failobj=[])[1:])
        charset = parameters.get("charset", "").lower()
        encoding = None if charset in {"", "utf-8", "utf8", "us-ascii"} else charset
        if type_ == OWN:
            return cls(encoding=encoding, text=text)
        name = MEDIA_TYPES.get(type_)
        if name not in readable():
            raise UnsupportedMediaType(
                media_type=text,
                known=tuple(type_ for type_, format_ in MEDIA_TYPES.items() if format_ in readable()),
            )
        has_header = {"present": True, "absent": False}.get(parameters.get("header", "").lower())
        return cls(name=name, has_header=has_header, encoding=encoding, text=text)

    def step(self, own: ReadStep) -> ReadStep:
        """Return the step that reads this format for a source that has the step `own`.

        Another format than the source's has the source's columns, and none of its other options. Csv then has a header
        line unless the media type denies it, and for a source without a schema its types are inferred.
        """
        kind = type(own) if self.name is None else BY_NAME[self.name]
        step = own if isinstance(own, kind) else self._foreign(kind, own)
        if isinstance(step, ReadStepCsv) and self.has_header is not None:
            step = replace(step, header=self.has_header)
        if self.encoding is None:
            return step
        if "encoding" not in {field_.name for field_ in fields(step)}:
            raise InvalidInput(where=f"charset {self.encoding}", text="this format is always UTF-8 or binary")
        return replace(step, encoding=self.encoding)  # type: ignore[arg-type]  # it has the field

    def _foreign(self, kind: type[ReadStep], own: ReadStep) -> ReadStep:
        columns = {"ddl_schema": own.ddl_schema, "schema": own.schema}
        if kind is ReadStepCsv:
            is_declared = own.ddl_schema is not None or own.schema is not None
            return ReadStepCsv(header=True, infer_schema=not is_declared, **columns)  # type: ignore[arg-type]
        return kind(**columns)  # type: ignore[arg-type]  # every step has these two


SOURCES_OWN: Final = InputFormat()


def readable() -> tuple[str, ...]:
    """Return the names of the formats that this node reads."""
    unread = read_file.dispatch(object)
    return tuple(name for name, kind in BY_NAME.items() if read_file.dispatch(kind) is not unread)
