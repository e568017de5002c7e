"""Errors of polls; each has what is wrong, where, and what to do. None repeats a secret."""

from odf_common.errors import Conflict, InvalidInput, NotFound, Refused, Unavailable


class FetchUnsupported(InvalidInput):
    """This node does not fetch from sources of this kind."""

    ADVICE = "fetch the data yourself, and append it to a push source with `odf ingest`"

    step: str


class NotPolled(Refused):
    """The dataset has no polling source."""


class PollCancelled(Refused):
    """A poll was cancelled because its caller is gone; the blocks that it committed are complete."""

    reason: str = "Cancelled"
    text: str = "cancelled; blocks already committed are kept"


class SourceUnreachable(Unavailable):
    """A polled source cannot be reached now; nothing of it was committed."""

    ADVICE = "pull again; if that does not help, check the address in the SetPollingSource (`odf inspect`)"


class FileUnreadable(SourceUnreachable):
    """A local file that a source names cannot be read; nothing of it was committed."""

    MESSAGE = "{what} cannot be read: {why}"
    ADVICE = "let the user of the node read it, or repair or remove it; then pull again"


class NothingAtSource(NotFound):
    """A polling source names a URL, file or image that does not exist."""

    ADVICE = "check the address or path in the SetPollingSource; change it with `odf commit DATASET FILE`"


class SourceRefusedRequest(Refused):
    """The server refused the request of a poll."""

    ADVICE = (
        "check the address, the user and password, or the headers, in the SetPollingSource (`odf inspect`)"
    )


class TooLarge(Refused):
    """Fetched or unpacked data is larger than the node's settings allow; none of it was committed."""

    MESSAGE = "{what} has more than {limit} bytes"
    ADVICE = "if that is right, raise ODF_FETCH_MAX_BYTES and restart the node"

    text: str = ""
    what: str
    limit: int


class FileRefused(InvalidInput):
    """The content of a fetched file does not fit the source; nothing of it was committed."""

    ADVICE = "correct the file, or leave it out: `odf source skip {dataset}`"

    dataset: str


class FileReplaced(Refused):
    """A local file has changed since it was read, and not by new lines at its end; other files were read."""

    MESSAGE = (
        "{what} has changed since it was read, and not only by new lines at its end; it is not read "
        "again, since Append would append all of its records again"
    )
    ADVICE = (
        "restore the file and put other records into a new one; or move it out of the folder of the "
        "source; or accept it as read: `odf source skip {dataset}`"
    )

    text: str = ""
    what: str
    dataset: str


class LastLineContinued(Refused):
    """The last line of a file was read as complete, and has become longer: a Ledger keeps its first record."""

    MESSAGE = (
        "{what}: the line that was its last one, without a newline, has become longer since it was read; "
        "its record was committed with the part that was there, and a Ledger does not replace it"
    )
    ADVICE = (
        "go back to the block before it, which `odf log {dataset}` shows, with `odf reset {dataset} BLOCK`, and "
        "pull again; or keep the record by `odf source skip {dataset}`: the next change of the file brings new lines"
    )

    text: str = ""
    what: str
    dataset: str


class SourceRedefined(Conflict):
    """The polling source was defined again while it was polled; pull again."""


class PolledElsewhere(Conflict):
    """Another poll of the dataset committed in the meantime; pull again."""


class FileForbidden(Refused):
    """A source names a file that no source may read."""


class PrepareUnsupported(InvalidInput):
    """This node does not know a prepare step."""

    step: str


class CommandFailed(Refused):
    """A command of a polling source failed; nothing of its output was committed."""

    MESSAGE = "command {command}: {why}"

    text: str = ""
    command: str
    why: str


class NoContainerEngine(Refused):
    """There is no program on this node that runs containers."""

    ADVICE = "install podman or docker, and restart the node"

    text: str = "neither podman nor docker is in the PATH of the node"


class ForeignSource(Refused):
    """A source that was defined on another node wants to run commands, read files or use variables of this one."""

    ADVICE = (
        "read its SetPollingSource (`odf inspect`); if you trust it, start the node with "
        "ODF_FETCH_IMPORTED=1, or commit a polling source of your own"
    )
