"""Dataset ids, names of datasets, and references to datasets, as users write them.

An id is `did:odf:` followed by an ed25519 public key (spec: Unique Identifiers, Aliases and References; wire-facts
§3.4–3.5). A chain has a reference `head`, which all readers follow, and may have others, written `DATASET@NAME`.

Names are compared without regard to ASCII case and keep their spelling. Whether the first part of `a/b` is an account
or a repository cannot be decided from the text alone. It is parsed as `AmbiguousAlias`, and decided by code that knows
the repositories. Ids are accepted in every final multibase encoding, although the grammar's alphabet lacks `-` and `_`,
which base64url needs (spec: Hash Representation).
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import total_ordering
from typing import Final, Self

from odf_common.errors import InvalidInput, NotFound
from odf_common.hashing import multibase

PREFIX: Final = "did:odf:"
ED25519_PUB: Final = b"\xed\x01"
KEY_BYTES: Final = 32


@dataclass(frozen=True, slots=True, order=True)
class DatasetId:
    """The id of a dataset in binary form: `ed 01` and the 32 bytes of its public key."""

    raw: bytes

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Parse the binary form; raises `InvalidInput` unless it is an ed25519 key."""
        if len(raw) != len(ED25519_PUB) + KEY_BYTES or not raw.startswith(ED25519_PUB):
            raise InvalidInput(text=f"not an ed25519 dataset id: {raw.hex()!r}")
        return cls(bytes(raw))

    @classmethod
    def of_key(cls, public_key: bytes) -> Self:
        """Return the id for a public key of 32 bytes."""
        return cls.from_bytes(ED25519_PUB + public_key)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `did:odf:` followed by the key in any final multibase encoding; raises `InvalidInput`."""
        if not text.startswith(PREFIX):
            raise InvalidInput(text=f"expected {PREFIX}…, got {text!r}")
        return cls.from_bytes(multibase.decode(text[len(PREFIX) :]))

    @property
    def folder(self) -> str:
        """Return the name of the dataset's folder: the id in base16, without `did:odf:`."""
        return "f" + self.raw.hex()

    @property
    def public_key(self) -> bytes:
        """Return the public key, 32 bytes."""
        return self.raw[len(ED25519_PUB) :]

    def __str__(self) -> str:
        """Return `did:odf:fed01…`."""
        return PREFIX + self.folder

    def __repr__(self) -> str:
        """Return the text form."""
        return f"DatasetId({self})"


HEAD: Final = "head"
MARK: Final = "@"
_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]{0,62}")


def is_ref_name(name: str) -> bool:
    """Return whether the text is a valid name of a reference; `head` is only valid in lower case."""
    return _NAME.fullmatch(name) is not None and (name == HEAD or name.lower() != HEAD)


def check_ref_name(name: str) -> str:
    """Return the name of a reference; raises `InvalidInput` if it is not valid."""
    if not is_ref_name(name):
        expected = f"1 to 63 letters, digits, '-' and '_', a letter or digit first, and {HEAD} in lower case"
        raise InvalidInput(text=f"{name!r} is not the name of a reference; expected {expected}")
    return name


def split_ref(text: str) -> tuple[str, str]:
    """Split `DATASET@NAME`; the name of the reference is `head` if it is missing."""
    dataset, mark, name = text.partition(MARK)
    return dataset, check_ref_name(name) if mark else HEAD


_SUBDOMAIN: Final = r"[a-zA-Z0-9]+(?:-[a-zA-Z0-9]+)*"
_HOSTNAME: Final = re.compile(rf"{_SUBDOMAIN}(?:\.{_SUBDOMAIN})*")
_URL: Final = re.compile(r"[a-zA-Z0-9]+(?:\+[a-zA-Z0-9]+)*://[^\n]+")
_WILD: Final = "%"
_WILD_NAME: Final = re.compile(rf"[a-zA-Z0-9{_WILD}](?:[.-]?[a-zA-Z0-9{_WILD}])*")


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Name:
    """The name of a dataset, an account or a repository."""

    text: str

    def __post_init__(self) -> None:
        """Raise `InvalidInput` unless the text consists of letters and digits, separated by single `-` or `.`."""
        if not _HOSTNAME.fullmatch(self.text):
            expected = "letters and digits, joined by single '-' or '.'"
            raise InvalidInput(text=f"{self.text!r} is not a name; expected {expected}")

    @property
    def key(self) -> str:
        """Return the form by which names are compared."""
        return self.text.lower()

    def __eq__(self, other: object) -> bool:
        """Compare without regard to case."""
        return isinstance(other, Name) and self.key == other.key

    def __hash__(self) -> int:
        """Return equal hashes for equal names."""
        return hash(self.key)

    def __lt__(self, other: "Name") -> bool:
        """Order without regard to case."""
        return self.key < other.key

    def __str__(self) -> str:
        """Return the name in its original spelling."""
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """`[account/]dataset`: a dataset of this node."""

    account: Name | None = None
    dataset: Name

    @property
    def key(self) -> str:
        """Return the lower-case form by which an alias is looked up."""
        return str(self).lower()

    def __str__(self) -> str:
        """Return the alias in its original spelling."""
        return _join(self.account, self.dataset)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteAlias:
    """`repository/[account/]dataset`: a dataset on another node."""

    repo: Name
    account: Name | None = None
    dataset: Name

    def __str__(self) -> str:
        """Return the alias in its original spelling."""
        return _join(self.repo, self.account, self.dataset)


@dataclass(frozen=True, slots=True, kw_only=True)
class AmbiguousAlias:
    """`a/b`: either dataset `b` of the local account `a`, or dataset `b` in repository `a`."""

    first: Name
    dataset: Name

    def settle(self, repositories: Collection[Name]) -> Alias | RemoteAlias:
        """Return a remote alias if the first part is one of `repositories`, otherwise a local alias."""
        if self.first in repositories:
            return RemoteAlias(repo=self.first, dataset=self.dataset)
        return Alias(account=self.first, dataset=self.dataset)

    def __str__(self) -> str:
        """Return the alias in its original spelling."""
        return _join(self.first, self.dataset)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteId:
    """`[repository/]did:odf:…`: a dataset on another node, given by its id."""

    repo: Name | None = None
    id: DatasetId

    def __str__(self) -> str:
        """Return the repository, if any, and the id in canonical form."""
        return _join(self.repo, self.id)


@dataclass(frozen=True, slots=True)
class Url:
    """The URL of a dataset on any host."""

    text: str

    def __str__(self) -> str:
        """Return the URL in its original spelling."""
        return self.text


DatasetRef = DatasetId | Alias
DatasetRefRemote = RemoteId | RemoteAlias | Url
DatasetRefAny = DatasetId | RemoteId | Alias | AmbiguousAlias | RemoteAlias | Url


@dataclass(frozen=True, slots=True)
class NamePattern:
    """An alias whose dataset part may contain `%`, which matches any characters."""

    account: Name | None
    dataset: str

    def matches(self, alias: Alias) -> bool:
        """Return whether `alias` matches the pattern, without regard to case."""
        if self.account is not None and self.account != alias.account:
            return False
        return is_like(self.dataset.lower(), alias.dataset.key)


def is_pattern(text: str) -> bool:
    """Return whether a text is a name pattern: it contains `%` and is not a URL, where `%` escapes bytes."""
    return _WILD in text and not _URL.fullmatch(text)


def matching_names(patterns: Iterable[str], names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that match any pattern, in their order; raises `NothingCovered` if one matches nothing."""
    matches: set[str] = set()
    aliases = {name: parse_alias(name) for name in names}
    for text in patterns:
        pattern = parse_pattern(text)
        matching = {name for name, alias in aliases.items() if pattern.matches(alias)}
        if not matching:
            raise NothingCovered(what=text)
        matches |= matching
    return tuple(name for name in aliases if name in matches)


class NothingCovered(NotFound):
    """No dataset has a name that matches this pattern."""

    MESSAGE = "no dataset has a name that matches {what}"
    ADVICE = "`odf list` shows the datasets of this node; % matches anything"


def parse_alias(text: str) -> Alias:
    """Parse `[account/]dataset`."""
    match _names(text, most=2):
        case [dataset]:
            return Alias(dataset=dataset)
        case [account, dataset]:
            return Alias(account=account, dataset=dataset)
        case _:
            raise _invalid(text, "a dataset's name such as my.dataset or account/my.dataset")


def parse_remote_alias(text: str) -> RemoteAlias:
    """Parse `repository/[account/]dataset`."""
    match _names(text, most=3):
        case [repo, dataset]:
            return RemoteAlias(repo=repo, dataset=dataset)
        case [repo, account, dataset]:
            return RemoteAlias(repo=repo, account=account, dataset=dataset)
        case _:
            raise _invalid(text, "repository/my.dataset or repository/account/my.dataset")


def parse_ref(text: str) -> DatasetRef:
    """Parse a reference to a dataset of this node: an id or an alias."""
    return DatasetId.parse(text) if text.startswith(PREFIX) else parse_alias(text)


def parse_ref_remote(text: str) -> DatasetRefRemote:
    """Parse a reference to a dataset on another node: `[repository/]id`, a remote alias, or a URL."""
    remote_id = _remote_id(text)
    if remote_id is not None:
        return remote_id
    if _URL.fullmatch(text):
        return Url(text)
    return parse_remote_alias(text)


def parse_ref_any(text: str) -> DatasetRefAny:
    """Parse a reference to any dataset; `a/b` becomes an `AmbiguousAlias`."""
    remote_id = _remote_id(text)
    if remote_id is not None:
        return remote_id if remote_id.repo is not None else remote_id.id
    if _URL.fullmatch(text):
        return Url(text)
    match _names(text, most=3):
        case [dataset]:
            return Alias(dataset=dataset)
        case [first, dataset]:
            return AmbiguousAlias(first=first, dataset=dataset)
        case [repo, account, dataset]:
            return RemoteAlias(repo=repo, account=account, dataset=dataset)
        case _:
            raise _invalid(text, "a dataset's name, its id (did:odf:…) or a URL")


def parse_pattern(text: str) -> NamePattern:
    """Parse `[account/]dataset`, where the dataset part may contain `%`; raises `InvalidInput` if no name can match."""
    account, slash, dataset = text.rpartition("/")
    if not _WILD_NAME.fullmatch(dataset):
        raise _invalid(text, "a name in which % matches anything, such as flights.%")
    return NamePattern(Name(account) if slash else None, dataset)


def is_like(pattern: str, name: str) -> bool:
    """Return whether `name` matches a pattern with `%`, in linear time; a regular expression would backtrack."""
    parts = pattern.split(_WILD)
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return name == first
    position, end = len(first), len(name) - len(last)
    if position > end or not name.startswith(first) or not name.endswith(last):
        return False
    for part in parts[1:-1]:
        start = name.find(part, position, end)
        if start < 0:
            return False
        position = start + len(part)
    return True


def _remote_id(text: str) -> RemoteId | None:
    if text.startswith(PREFIX):
        return RemoteId(id=DatasetId.parse(text))
    repo, slash, rest = text.partition("/")
    if slash and rest.startswith(PREFIX):
        return RemoteId(repo=Name(repo), id=DatasetId.parse(rest))
    return None


def _names(text: str, *, most: int) -> list[Name]:
    """Return the names between slashes; an empty list if there are more than `most`, or if one is invalid."""
    parts = text.split("/")
    if len(parts) > most or not all(_HOSTNAME.fullmatch(part) for part in parts):
        return []
    return [Name(part) for part in parts]


def _invalid(text: str, expected: str) -> InvalidInput:
    return InvalidInput(text=f"{text!r} is not a reference; expected {expected}")


def _join(*parts: object) -> str:
    return "/".join(str(part) for part in parts if part is not None)
