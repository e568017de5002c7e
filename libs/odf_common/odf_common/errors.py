"""The root class and the families of this project's errors; the facts of an error are fields.

A class defines its text by `MESSAGE` and `ADVICE` with fields in braces, so the code that raises an error gives
facts only. `__str__` and `advice()` are overridden only where the text must be computed. `advice()` is shown
after the message.
"""

import errno
import re
from collections.abc import Iterable
from typing import Final, Self, dataclass_transform

_COMMAND: Final = re.compile(r"`odf\s[^`]*`")
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

# What Python and Arrow say when the system starts no other thread for the process; neither gives the error's number.
_NO_THREAD: Final = ("can't start new thread", "Failed to launch worker thread")


def lacks_threads(error: BaseException) -> bool:
    """Return whether an error says that the operating system refused to start a thread."""
    return not isinstance(error, OdfError) and any(words in str(error) for words in _NO_THREAD)


def is_transient(error: BaseException) -> bool:
    """Return whether an error of the operating system may disappear without any action."""
    if isinstance(error, OSError):
        return error.errno in TRANSIENT_ERRNOS
    return lacks_threads(error)


@dataclass_transform(kw_only_default=True, eq_default=False)
class OdfError(Exception):
    """Something in the node went wrong.

    The annotations of a class and its bases are its facts, given by name; a fact without a default must be given. As in
    a dataclass, but without its generated methods: a command imports dozens of these classes, and raises few.
    """

    MESSAGE = ""
    """The message, with fields in braces; if empty, the docstring's first line and the facts as `name=value`."""
    ADVICE = ""
    """The remedy, in one sentence with fields in braces; empty if there is none."""

    def __init_subclass__(cls) -> None:
        """Use `MESSAGE` and `ADVICE` of a subclass even if a base class overrides `__str__` or `advice`."""
        if "MESSAGE" in vars(cls):
            cls.__str__ = OdfError.__str__  # type: ignore[method-assign]
        if "ADVICE" in vars(cls):
            cls.advice = OdfError.advice  # type: ignore[method-assign]

    def __init__(self, **facts: object) -> None:
        """Set the facts by name; raises `TypeError` unless they are exactly those that the class declares."""
        kind = type(self)
        names = kind.fact_names()
        missing = [name for name in names if name not in facts and not hasattr(kind, name)]
        if missing or not facts.keys() <= set(names):
            raise TypeError(f"{kind.__name__} has the facts {', '.join(names)}; given: {', '.join(facts)}")
        for name in names:
            setattr(self, name, facts[name] if name in facts else getattr(kind, name))
        self.__post_init__()

    def __post_init__(self) -> None:
        """Compute facts that depend on other facts; for subclasses."""

    @classmethod
    def fact_names(cls) -> tuple[str, ...]:
        """Return the names of the facts; those of base classes come first."""
        annotated = (vars(base).get("__annotations__", ()) for base in reversed(cls.__mro__))
        return tuple(dict.fromkeys(name for names in annotated for name in names))

    def facts(self) -> dict[str, object]:
        """Return the facts by name."""
        return {name: getattr(self, name) for name in self.fact_names()}

    def with_facts(self, **changes: object) -> Self:
        """Return a copy of the error with other values for some facts."""
        return type(self)(**{**self.facts(), **changes})

    def __str__(self) -> str:
        """Return the message."""
        if self.MESSAGE:
            return self.MESSAGE.format_map(vars(self))
        what = (self.__doc__ or type(self).__name__).strip().splitlines()[0].rstrip(".")
        facts = ", ".join(
            f"{name}={value}" for name, value in self.facts().items() if value not in {None, ""}
        )
        return f"{what}: {facts}" if facts else what

    def __repr__(self) -> str:
        """Return the name of the class and the facts."""
        return (
            f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.facts().items())})"
        )

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        """Pickle the class and the facts, so that an error can be passed to another process."""
        return _rebuild, (type(self), self.facts())

    @property
    def code(self) -> str:
        """Return the name of the error in gRPC and in JSON: the name of the class."""
        return type(self).__name__

    def advice(self) -> str:
        """Return the remedy in one sentence; empty if there is none."""
        return self.ADVICE.format_map(vars(self))


def _rebuild(kind: type[OdfError], facts: dict[str, object]) -> OdfError:
    return kind(**facts)


class InvalidInput(OdfError):
    """The input is not valid."""

    text: str | None = None
    where: str | None = None
    hint: str = ""

    def __str__(self) -> str:
        """Return `where: text`, or the message as usual for subclasses with other fields."""
        if self.text is None:
            return super().__str__()
        return f"{self.where}: {self.text}" if self.where else self.text

    def advice(self) -> str:
        """Return the hint that was passed to the error."""
        return self.hint


class NotFound(OdfError):
    """Something that was named does not exist."""

    MESSAGE = "{what} does not exist"

    what: str


class ChainRuleViolated(OdfError):
    """A block breaks a rule of the metadata chain."""

    rule: str
    text: str
    sequence_number: int | None = None

    def __str__(self) -> str:
        """Return a message with the block, the violation, and the name of the rule."""
        at = "" if self.sequence_number is None else f"block {self.sequence_number}: "
        return f"{at}{self.text} (rule {self.rule})"


class Conflict(OdfError):
    """Another process has changed the data in the meantime."""


class HeadMoved(Conflict):
    """Another block was committed first; read the head again, and propose a new block."""

    dataset: str
    expected: str | None
    actual: str | None
    ref: str | None = None  # None: the head

    def __str__(self) -> str:
        """Return a message with the reference, its expected and its actual block."""
        what = "the head" if self.ref is None else f"reference {self.ref}"
        expected, actual = self.expected or "none", self.actual or "none"
        return f"{what} of {self.dataset} has moved in the meantime: expected {expected}, found {actual}"


class AlreadyExists(Conflict):
    """The name is already taken."""

    MESSAGE = "{what} already exists"

    what: str


class VerificationFailed(OdfError):
    """Stored data does not match what the chain declares."""


class Unavailable(OdfError):
    """A part of the node is unavailable; a retry may succeed."""

    what: str
    why: str | None = None

    def __str__(self) -> str:
        """Return a message with the name of the unavailable part, and the reason if it is known."""
        return f"{self.what} cannot be reached" + (f": {self.why}" if self.why else "")


class Damaged(VerificationFailed):
    """A stored file cannot be used, and waiting does not help."""

    MESSAGE = "{file} cannot be used: {why}"
    ADVICE = (
        "restore it from a copy of the dataset, as a regular file that the node's user may read and "
        "write; or remove the dataset with `odf delete DATASET`; other datasets are not affected"
    )

    file: str  # relative to the node's home or to the dataset's folder
    why: str


class StorageUnavailable(Unavailable):
    """Stored files cannot be read or written at the moment."""

    ADVICE = "{remedy}"

    what: str = "storage"
    file: str | None = None  # relative to the node's home or to the dataset's folder
    remedy: str = "check the disk and its mount"

    def __str__(self) -> str:
        """Return the reason and the file; the reason is first, because tables truncate messages."""
        return (
            Unavailable.__str__(self) if self.file is None else f"{self.why}: {self.file} cannot be used now"
        )


class ThreadRefused(Unavailable):
    """The operating system refuses to start another thread for this process at the moment."""

    MESSAGE = "the process can start no other thread now"
    ADVICE = "raise the limit of threads (`ulimit -u`, or that of the container), or free memory"

    what: str = "another thread"


class Refused(OdfError):
    """The node refused the request; `reason` is the name of the error (by default its class), `text` the message."""

    MESSAGE = "{text}"

    reason: str = ""
    text: str

    def __post_init__(self) -> None:
        """Set `reason` to the name of the class unless it is given."""
        self.reason = self.reason or type(self).__name__


class InternalError(OdfError):
    """The node has a bug, which the caller cannot avoid."""


class DatasetInUse(Refused):
    """Other datasets depend on the data that would be removed."""


class InvalidQuery(InvalidInput):
    """The engine cannot run this SQL."""


def count_of(number: int, what: str) -> str:
    """Return a number with a noun, such as `2 blocks`; `what` is the singular of a regular noun."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that is most similar to `name`, ignoring case; None if none is similar."""
    from difflib import get_close_matches  # noqa: PLC0415 - only a mistyped name needs it

    by_key = {name.lower(): name for name in candidates}
    matches = get_close_matches(name.lower(), by_key, n=1, cutoff=SIMILARITY)
    return by_key[matches[0]] if matches else None


def name_dataset(text: str, name: str) -> str:
    """Return a text whose commands contain `name` in place of `DATASET`.

    The code that raises an error often does not know the name of the dataset.
    """
    return _COMMAND.sub(lambda command: command[0].replace("DATASET", name), text) if name else text


def with_advice(error: OdfError) -> str:
    """Return the message and the advice as one string, for fields that contain both."""
    return "; ".join(filter(None, (str(error), error.advice())))


def advice_while_retried(error: OdfError) -> str:
    """Return the advice for an error that stops a service's background work until a retry succeeds.

    If the work then continues automatically, the advice says so; a user has to repeat a command after the same error.
    """
    advice = error.advice()
    return f"{advice}; work then continues automatically" if isinstance(error, StorageUnavailable) else advice


def explain(error: OdfError) -> str:
    """Return the text of an error for a terminal: the message and, on a second line, the advice if there is any."""
    advice = error.advice()
    return f"error: {error}\nhint: {advice}" if advice else f"error: {error}"
