"""Strategies for any metadata object, derived from the model like the codecs."""

from functools import cache
from typing import Any

from hypothesis import strategies as some

from odf_common.codec.manifests import from_plain
from odf_common.codec.model_schema import (
    Boolean,
    Bytes,
    EnumShape,
    Integer,
    MapOf,
    OneOf,
    Shape,
    Spelled,
    TableShape,
    Text,
    TimestampShape,
    Vector,
    fields_of,
)
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.scalars import ExtraAttributes, Timestamp

MAX_NS = 253_402_300_799_999_999_999  # the end of year 9999
MIN_NS = -62_135_596_800_000_000_000  # the start of year 1
TEXTS = some.text(some.characters(exclude_categories=["Cs"]), max_size=12)
JSON = some.dictionaries(TEXTS, some.none() | some.booleans() | some.integers() | TEXTS, max_size=3)


@cache
def objects(cls: type) -> some.SearchStrategy[Any]:
    """Any object of a metadata class."""
    if cls is ExtraAttributes:
        return JSON.map(lambda value: from_plain(ExtraAttributes, value))
    return some.deferred(
        lambda: some.builds(
            cls,
            **{
                f.name: values(f.shape)
                | (some.none() if f.is_optional and f.default is None else some.nothing())
                for f in fields_of(cls)
            },
        )
    )


def values(shape: Shape) -> some.SearchStrategy[Any]:  # noqa: C901 - one case a shape
    """Any value of a shape."""
    match shape:
        case Integer(width):
            bits = 8 * width.size
            low = -(1 << bits - 1) if width.signed else 0
            return some.integers(low, low + (1 << bits) - 1) | some.just(0)
        case Boolean():
            return some.booleans()
        case EnumShape(of, _):
            return some.sampled_from(of)
        case Text():
            return TEXTS
        case Bytes(of) if of is bytes:
            return some.binary(max_size=40)
        case Bytes(of) if of is Multihash:
            return some.binary(min_size=32, max_size=32).map(Multihash.sha3)
        case Bytes():
            return some.binary(min_size=32, max_size=32).map(DatasetId.of_key)
        case TimestampShape():
            return some.integers(MIN_NS, MAX_NS).map(Timestamp)
        case TableShape(of):
            return objects(of)
        case OneOf(members, _):
            simple = [m for m in members if not any(isinstance(f.shape, OneOf) for f in fields_of(m))]
            others = [m for m in members if m not in simple]
            return some.one_of([objects(m) for m in (*simple, *others)])
        case Vector(of):
            return some.lists(values(of), max_size=3).map(tuple)
        case Spelled() | MapOf():
            raise AssertionError("only in specs of resources")
