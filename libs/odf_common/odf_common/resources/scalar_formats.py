"""Scalars of resources, by the `format` of the schemas: durations, sizes, ids, names of resources and types.

Each is parsed from the string that a manifest has, and prints itself in one spelling. Times are
`metadata.scalars.Timestamp`, ids of datasets `identity.dataset_refs.DatasetId`.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NamedTuple, Self

from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import PREFIX, DatasetId, Name

MAX_INT64: Final = 2**63 - 1
MAX_UINT64: Final = 2**64 - 1
MAX_EXACT_DOUBLE: Final = 2**53
CORE_BASE: Final = "https://opendatafabric.org/schemas"
DID: Final = "did:"

# Largest first, the order in which the unit to print is chosen.
_DURATION_UNITS: Final = {
    "y": 31_556_926_000_000_000,
    "w": 604_800_000_000_000,
    "d": 86_400_000_000_000,
    "h": 3_600_000_000_000,
    "m": 60_000_000_000,
    "s": 1_000_000_000,
    "ms": 1_000_000,
    "us": 1_000,
    "ns": 1,
}
_LONG_UNITS: Final = {"day": "d", "hour": "h", "min": "m", "sec": "s"}
_DURATION: Final = re.compile(r"(?:[0-9]{1,19}[a-z]+)+")
_DURATION_PART: Final = re.compile(r"([0-9]+)([a-z]+)")
_DECIMAL: Final = {prefix: 1000 ** (power + 1) for power, prefix in enumerate("kmgtpe")}
_BINARY: Final = {prefix: 1024 ** (power + 1) for power, prefix in enumerate("kmgtpe")}
_SIZE_UNITS: Final = {
    **dict.fromkeys(("", "b"), 1),
    **{prefix + end: size for prefix, size in _DECIMAL.items() for end in ("", "b")},
    **{prefix + end: size for prefix, size in _BINARY.items() for end in ("i", "ib")},
}
# Decimal units first: they are printed if both fit.
_PRINTED_UNITS: Final = {
    "B": 1,
    **{("k" if prefix == "k" else prefix.upper()) + "B": size for prefix, size in _DECIMAL.items()},
    **{prefix.upper() + "iB": size for prefix, size in _BINARY.items()},
}
_SIZE: Final = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([a-z]*)", re.IGNORECASE | re.ASCII)
_UUID: Final = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)
_UUID_4: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
# Chain and address of an account as in CAIP-10.
_PKH: Final = re.compile(r"did:pkh:[a-z0-9-]{3,8}:[a-zA-Z0-9_-]{1,32}:[a-zA-Z0-9.%-]{1,128}")
_EMAIL: Final = re.compile(r"[^\s@]{1,64}@[^\s@.]+(?:\.[^\s@.]+)*")
_URI: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:[^\s\x00-\x1f\x7f]+")
_HTTP: Final = re.compile(r"https?:", re.IGNORECASE | re.ASCII)
_HTTP_HOST: Final = re.compile(r"https?://(?:[^/?#@]*@)?[^/?#@:]", re.IGNORECASE)
VERSION_PATTERN: Final = r"v[1-9][0-9]*(?:(?:alpha|beta)[1-9][0-9]*)?"
_TYPE_URI: Final = re.compile(
    r"(https://[a-z0-9.-]+(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~-]+)*)"
    rf"/([a-z][a-z0-9]*)/({VERSION_PATTERN})/([A-Z][A-Za-z0-9]*)"
)
_SHORT_TYPE: Final = re.compile(r"[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*")


class InvalidName(InvalidInput):
    """A resource may not have the name."""


class Duration(int):
    """Nanoseconds, written as `90s`, `1h30m` or `10min`."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Add up the groups of a number and a unit, whatever spaces are between; raises `InvalidInput`."""
        compact = "".join(text.split())
        parts = _DURATION_PART.findall(compact) if _DURATION.fullmatch(compact) else []
        sizes = [_DURATION_UNITS.get(_LONG_UNITS.get(unit, unit)) for _, unit in parts]
        total = sum(int(number) * (size or 0) for (number, _), size in zip(parts, sizes, strict=True))
        if not sizes or None in sizes or total > MAX_INT64:
            units = ", ".join((*_DURATION_UNITS, *_LONG_UNITS))
            raise InvalidInput(text=f"expected a duration such as 90s or 1h30m, got {text!r}; units: {units}")
        return cls(total)

    def __str__(self) -> str:
        """Return a number of the largest unit that fits exactly."""
        if not self:
            return "0s"
        return next(f"{self // size}{unit}" for unit, size in _DURATION_UNITS.items() if self % size == 0)


class ByteSize(int):
    """Bytes, written as `10Gi`, `100MiB` or `10k`."""

    __slots__ = ()

    @classmethod
    def parse(cls, value: object) -> Self:
        """Read an integer, or a number and a decimal or binary unit in any case; raises `InvalidInput`."""
        size = _parse_size(value)
        if size is None or not 0 <= size <= MAX_UINT64:
            expected = "a size in bytes such as 1000000, 10k, 64MiB or 10Gi"
            raise InvalidInput(text=f"expected {expected}, got {value!r}")
        if size.denominator != 1:
            raise InvalidInput(text=f"{value!r} is not a whole number of bytes")
        return cls(size)

    def __str__(self) -> str:
        """Return the smallest number that a unit fits exactly, decimal if two do."""
        exact = [(self // size, unit) for unit, size in _PRINTED_UNITS.items() if self % size == 0]
        return "{}{}".format(*min(exact, key=lambda pair: pair[0])) if self else "0B"


def _parse_size(value: object) -> Fraction | None:
    if not isinstance(value, str):
        return Fraction(value) if isinstance(value, int) and not isinstance(value, bool) else None
    match = _SIZE.fullmatch(value.strip())
    unit = match and _SIZE_UNITS.get(match[2].lower())
    return Fraction(match[1]) * unit if match and unit else None


def parse_uint64(value: object) -> int:
    """Return an unsigned integer; a string is read only above 2⁵³, where JSON's numbers lose digits."""
    number = value
    if isinstance(value, str) and re.fullmatch(r"[1-9][0-9]{15,19}", value) and int(value) > MAX_EXACT_DOUBLE:
        number = int(value)
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= MAX_UINT64:
        raise InvalidInput(text=f"expected an integer from 0 to {MAX_UINT64}, got {value!r}")
    return number


class ResourceId(str):
    """The id of a resource within a node: a random UUID (RFC 4122, version 4) in lower case."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the textual form in any case; raises `InvalidInput`."""
        if not _UUID_4.fullmatch(text.lower()):
            expected = "a UUID of version 4 such as 0b9c1a52-5f0e-4d53-9a3e-6f1b2b7a9d10"
            raise InvalidInput(text=f"{text!r} is not the id of a resource; expected {expected}")
        return cls(text.lower())


def is_version(text: str) -> bool:
    """Return whether a string has the form of a version of a context."""
    return re.fullmatch(VERSION_PATTERN, text) is not None


def is_uuid(text: str) -> bool:
    """Return whether a string has the form of a UUID, of any version."""
    return _UUID.fullmatch(text) is not None


class Did(str):
    """The id of an account or a dataset in all nodes: `did:odf:…` in base16, or `did:pkh:…`."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an id; raises `InvalidInput`."""
        if text.startswith(PREFIX):
            return cls(DatasetId.parse(text))
        if not _PKH.fullmatch(text):
            raise InvalidInput(text=f"expected did:odf:… or did:pkh:CHAIN:NETWORK:ADDRESS, got {text!r}")
        return cls(text)

    @property
    def is_odf(self) -> bool:
        """Return whether it is made from a key, as ids of datasets are."""
        return self.startswith(PREFIX)


def parse_name(text: str) -> Name:
    """Return the name of a resource; raises `InvalidName`, for a UUID too, since an id could be meant."""
    if is_uuid(text):
        raise InvalidName(text=f"{text!r} has the form of an id; choose a name that is no UUID")
    try:
        return Name(text)
    except InvalidInput as error:
        raise InvalidName(text=error.text) from error


def parse_email(text: str) -> str:
    """Return an address of the form `local@domain`; raises `InvalidInput`."""
    if not _EMAIL.fullmatch(text):
        raise InvalidInput(text=f"expected an email address such as name@example.com, got {text!r}")
    return text


def parse_uri(text: str) -> str:
    """Return a URI that has a scheme, and a host if that is HTTP; raises `InvalidInput`."""
    if not _URI.fullmatch(text) or (_HTTP.match(text) and not _HTTP_HOST.match(text)):
        raise InvalidInput(
            text=f"expected an address with its scheme such as https://example.com, got {text!r}"
        )
    return text


class TypeIdentity(NamedTuple):
    """The common part of all versions of one type."""

    base: str
    context: str
    name: str

    def __str__(self) -> str:
        """Return the URI without the version."""
        return "/".join(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeUri:
    """`https://HOST/…/CONTEXT/VERSION/NAME`: the schema of a type of resource, label or condition."""

    base: str = CORE_BASE
    context: str
    version: str = "v1alpha1"
    name: str

    def __post_init__(self) -> None:
        match = _TYPE_URI.fullmatch(str(self))
        if match is None or match.groups() != (self.base, self.context, self.version, self.name):
            raise InvalidInput(text=_type_problem(str(self)))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a URI; raises `InvalidInput`."""
        match = _TYPE_URI.fullmatch(text)
        if match is None:
            raise InvalidInput(text=_type_problem(text))
        return cls(base=match[1], context=match[2], version=match[3], name=match[4])

    @property
    def identity(self) -> TypeIdentity:
        """Return the type without its version: resources of all its versions share their names."""
        return TypeIdentity(self.base, self.context, self.name)

    def __str__(self) -> str:
        """Return the URI."""
        return f"{self.base}/{self.context}/{self.version}/{self.name}"


class ShortTypeName(str):
    """A node's own name of a type such as `Dataset`."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a name; raises `InvalidInput`."""
        if not _SHORT_TYPE.fullmatch(text):
            expected = f"letters and digits joined by single '-', or {CORE_BASE}/CONTEXT/VERSION/NAME"
            raise InvalidInput(text=f"{text!r} does not name a type; expected {expected}")
        return cls(text)


TypeRef = TypeUri | ShortTypeName


def parse_type_ref(text: str) -> TypeRef:
    """Return the URI of a type if the string begins with `https:`, else its short name."""
    return TypeUri.parse(text) if text.startswith("https:") else ShortTypeName.parse(text)


def _type_problem(text: str) -> str:
    hint = "; leave out .json" if text.endswith(".json") else ""
    example = f"{CORE_BASE}/dataset/v1alpha1/Dataset"
    return f"{text!r} is not the URI of a type; expected the form {example}{hint}"
