"""The root and the families of this project's errors; facts are fields.

A class has its text in `MESSAGE` and `ADVICE`, with fields in braces, so the code that raises it states facts only;
`__str__` and `advice()` are methods only where something must be computed. `advice()` is shown after the message.
"""

import errno
from collections.abc import Iterable
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Final

SIMILARITY: Final = 0.5  # difflib's ratio from which on a name may be what was meant
# Of an `OSError` that says nothing about the file: the disk or the process lacks something now.
TRANSIENT_ERRNOS: Final = frozenset(
    {
        errno.EDQUOT,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.EROFS,
        errno.ESTALE,
    }
)


@dataclass(eq=False, kw_only=True)
class OdfError(Exception):
    """Something in the node went wrong."""

    MESSAGE = ""
    """What is wrong; empty: the first sentence of the docstring, then the fields as `name=value`."""
    ADVICE = ""
    """What to do about it, in one sentence; empty: nothing in particular."""

    def __init_subclass__(cls) -> None:
        """Let a text replace the method of a base class, as a method would."""
        if "MESSAGE" in vars(cls):
            cls.__str__ = OdfError.__str__  # type: ignore[method-assign]
        if "ADVICE" in vars(cls):
            cls.advice = OdfError.advice  # type: ignore[method-assign]

    def __str__(self) -> str:
        """Return what is wrong."""
        if self.MESSAGE:
            return self.MESSAGE.format_map(vars(self))
        what = (self.__doc__ or type(self).__name__).strip().splitlines()[0].rstrip(".")
        facts = ", ".join(
            f"{f.name}={getattr(self, f.name)}" for f in fields(self) if getattr(self, f.name) is not None
        )
        return f"{what}: {facts}" if facts else what

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        """Pickle by fields, so that errors cross process borders whole."""
        return _rebuild, (type(self), {f.name: getattr(self, f.name) for f in fields(self)})

    @property
    def code(self) -> str:
        """Return the name used on the wire and in JSON: the class name."""
        return type(self).__name__

    def advice(self) -> str:
        """Return one sentence on what to do about it, or an empty string."""
        return self.ADVICE.format_map(vars(self))


def _rebuild(kind: type[OdfError], facts: dict[str, object]) -> OdfError:
    return kind(**facts)


@dataclass(eq=False, kw_only=True)
class InvalidInput(OdfError):
    """The input is not valid."""

    text: str | None = None
    where: str | None = None

    def __str__(self) -> str:
        """Return `where: text`, or the general form for errors with fields of their own."""
        if self.text is None:
            return super().__str__()
        return f"{self.where}: {self.text}" if self.where else self.text


@dataclass(eq=False, kw_only=True)
class NotFound(OdfError):
    """The named thing does not exist."""

    MESSAGE = "{what} does not exist"

    what: str


@dataclass(eq=False, kw_only=True)
class ChainRuleViolated(OdfError):
    """A block breaks a rule of the metadata chain."""

    rule: str
    text: str
    sequence_number: int | None = None

    def __str__(self) -> str:
        """Return the block, what is wrong, and the rule's name."""
        at = "" if self.sequence_number is None else f"block {self.sequence_number}: "
        return f"{at}{self.text} (rule {self.rule})"


@dataclass(eq=False, kw_only=True)
class Conflict(OdfError):
    """Another process changed it first."""


@dataclass(eq=False, kw_only=True)
class HeadMoved(Conflict):
    """Another block was committed first; read the head again and re-propose."""

    dataset: str
    expected: str | None
    actual: str | None
    ref: str | None = None  # None: the head

    def __str__(self) -> str:
        """Return which reference it is, and where it was expected and is."""
        what = "the head" if self.ref is None else f"reference {self.ref}"
        expected, actual = self.expected or "none", self.actual or "none"
        return f"{what} of {self.dataset} has moved in the meantime: expected {expected}, found {actual}"


@dataclass(eq=False, kw_only=True)
class AlreadyExists(Conflict):
    """The name is taken."""

    MESSAGE = "{what} already exists"

    what: str


@dataclass(eq=False, kw_only=True)
class VerificationFailed(OdfError):
    """Stored data does not match what the chain declares."""


@dataclass(eq=False, kw_only=True)
class Unavailable(OdfError):
    """A part of the node is unavailable; a retry may succeed."""

    what: str
    why: str | None = None

    def __str__(self) -> str:
        """Return what cannot be reached, and why if known."""
        return f"{self.what} cannot be reached" + (f": {self.why}" if self.why else "")


@dataclass(eq=False, kw_only=True)
class Damaged(VerificationFailed):
    """A stored file cannot be used, and waiting will not change that."""

    MESSAGE = "{file} cannot be used: {why}"
    ADVICE = (
        "restore it from a copy of the dataset, as a regular file that the node's user may read and "
        "write; or remove the dataset with `odf delete DATASET`; other datasets are not affected"
    )

    file: str  # relative to the node's home or to the dataset's folder
    why: str


@dataclass(eq=False, kw_only=True)
class StorageUnavailable(Unavailable):
    """Stored files cannot be read or written now."""

    ADVICE = "{remedy}"

    what: str = "storage"
    file: str | None = None  # relative to the node's home or to the dataset's folder
    remedy: str = "check the disk and its mount"

    def __str__(self) -> str:
        """Return why, first because tables truncate messages, and which file."""
        return (
            Unavailable.__str__(self) if self.file is None else f"{self.why}: {self.file} cannot be used now"
        )


@dataclass(eq=False, kw_only=True)
class Refused(OdfError):
    """The node refused; `reason` is the name of the error (the class's own unless given), `text` its message."""

    MESSAGE = "{text}"

    reason: str = ""
    text: str

    def __post_init__(self) -> None:
        """Name the reason after the class."""
        self.reason = self.reason or type(self).__name__


@dataclass(eq=False, kw_only=True)
class InternalError(OdfError):
    """The node has a bug; nothing that a caller does differently helps."""


@dataclass(eq=False, kw_only=True)
class DatasetInUse(Refused):
    """Other datasets read what would be removed."""


@dataclass(eq=False, kw_only=True)
class InvalidQuery(InvalidInput):
    """The engine cannot run the SQL."""


def counted(number: int, what: str) -> str:
    """Return a number of things, named by a singular that takes an s."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """Return the known name most similar to an unknown one, ignoring case; None if none is similar."""
    by_key = {name.lower(): name for name in candidates}
    matches = get_close_matches(name.lower(), by_key, n=1, cutoff=SIMILARITY)
    return by_key[matches[0]] if matches else None


def with_advice(error: OdfError) -> str:
    """Return the error and its advice as one text, for a message with one field for both."""
    return "; ".join(filter(None, (str(error), error.advice())))


def advice_while_retried(error: OdfError) -> str:
    """Return the advice on an error that stops a service's work until a retry succeeds.

    It says so, since nothing has to be repeated; a command that has failed with the same error has to be.
    """
    advice = error.advice()
    return f"{advice}; work then continues automatically" if isinstance(error, StorageUnavailable) else advice


def explained(error: OdfError) -> str:
    """Return what a terminal shows of an error: the error, and on a second line its advice if it has one."""
    advice = error.advice()
    return f"error: {error}\nhint: {advice}" if advice else f"error: {error}"
