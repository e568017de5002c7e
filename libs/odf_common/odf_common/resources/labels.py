"""Labels and annotations: the keys by which they are compared, and limits.

A key is the URI of a type or a short name. Short names that a node knows stand for the URI, so `datasetKind` and
`https://opendatafabric.org/schemas/dataset/v1alpha1/DatasetKind` are one label. Checking a value against the schema of
its key is left to the code that has the schemas.
"""

import json
from collections.abc import Callable, Mapping
from typing import Final

from odf_common.errors import InvalidInput, count_of
from odf_common.resources.scalar_formats import ShortTypeName, TypeRef, TypeUri, parse_type_ref

MAX_LABELS: Final = 64
MAX_LABEL_BYTES: Final = 4096
MAX_ANNOTATIONS_BYTES: Final = 256 * 1024

TypeLookup = Callable[[TypeRef], TypeUri | None]
"""Returns the URI of a type that the node knows by its short name or its URI; None for others."""


def label_key(text: str, lookup: TypeLookup) -> str:
    """Return the key by which a label is compared and indexed: the identity of its type, or an unknown short name.

    Short names are looked up as they are given, then with a capital: `datasetKind`, `DatasetKind`. Raises
    `InvalidInput`.
    """
    key = parse_type_ref(text)
    if isinstance(key, TypeUri):
        return str(key.identity)
    uri = lookup(key) or lookup(ShortTypeName(key[:1].upper() + key[1:]))
    return key if uri is None else str(uri.identity)


def labels_by_key(labels: Mapping[str, object], lookup: TypeLookup) -> dict[str, object]:
    """Return labels or annotations by the key by which they are compared; raises `InvalidInput` for one given twice."""
    by_key: dict[str, object] = {}
    spelling: dict[str, str] = {}
    for text, value in labels.items():
        key = label_key(text, lookup)
        if key in by_key:
            raise InvalidInput(where=text, text=f"is the same key as {spelling[key]}; leave out one of them")
        by_key[key], spelling[key] = value, text
    return by_key


def check_labels(labels: Mapping[str, object], lookup: TypeLookup) -> tuple[str, ...]:
    """Raise `InvalidInput` unless a user may give these labels; return a warning for each unknown URI."""
    _check_entries(labels, lookup)
    if len(labels) > MAX_LABELS:
        raise InvalidInput(text=f"{count_of(len(labels), 'label')}; up to {MAX_LABELS} are possible")
    for key, value in labels.items():
        if _json_bytes(value) > MAX_LABEL_BYTES:
            raise InvalidInput(where=key, text=f"the value is longer than {MAX_LABEL_BYTES} bytes of JSON")
    return tuple(
        f"{key} is the URI of no type that this node knows, so its value is not checked"
        for key in labels
        if isinstance(uri := parse_type_ref(key), TypeUri) and lookup(uri) is None
    )


def check_annotations(annotations: Mapping[str, object], lookup: TypeLookup) -> None:
    """Raise `InvalidInput` unless a user may give these annotations."""
    _check_entries(annotations, lookup)
    if _json_bytes(annotations) > MAX_ANNOTATIONS_BYTES:
        raise InvalidInput(text=f"annotations are longer than {MAX_ANNOTATIONS_BYTES} bytes of JSON")


def merge_labels(
    user: Mapping[str, object], system: Mapping[str, object], lookup: TypeLookup
) -> dict[str, object]:
    """Return the labels of a user and of controllers by key; raises `InvalidInput` where their values differ."""
    merged = labels_by_key(user, lookup)
    for key, value in labels_by_key(system, lookup).items():
        if key in merged and not json_equal(merged[key], value):
            text = f"is set by the node to {json.dumps(value)}; leave the label out"
            raise InvalidInput(where=key, text=text)
        merged[key] = value
    return merged


def json_equal(left: object, right: object) -> bool:
    """Return whether two values are equal as JSON: 1 equals 1.0, and neither "1" nor true."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(json_equal(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(json_equal, left, right))
    return left == right


def _check_entries(entries: Mapping[str, object], lookup: TypeLookup) -> None:
    labels_by_key(entries, lookup)
    for key, value in entries.items():
        if value is None:
            raise InvalidInput(where=key, text="null is no value; leave the key out to remove it")


def _json_bytes(value: object) -> int:
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
