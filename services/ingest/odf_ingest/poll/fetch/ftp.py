"""Downloads over ftp: anonymous or with a user and password, in passive mode; untrusted servers and names.

`MDTM` and `SIZE` are the file's version, so that an unchanged file is not transferred. The address that is connected
to is the one that was checked; the data connection goes to that address too, whatever the server says.
"""

import ftplib
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self
from urllib.parse import SplitResult, unquote

from odf_common.adapters.networks import Networks
from odf_common.errors import InvalidInput
from odf_common.metadata.scalars import Timestamp
from odf_common.resources.secret_text import MASK
from odf_ingest.poll.fetch.fetch_step import (
    CHUNK_BYTES,
    SILENCE_SECONDS,
    Body,
    Context,
    Download,
    Validators,
    with_retry,
)
from odf_ingest.poll.poll_errors import NothingAtSource, SourceRefusedRequest, SourceUnreachable

PORT: Final = 21
QUIT_SECONDS: Final = 2.0
MAX_LINES: Final = 1000  # of one reply
ANONYMOUS: Final = ("anonymous", "odf@")
UNKNOWN_COMMAND: Final = frozenset({"500", "501", "502", "504"})
NO_FILE: Final = "550"
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_MDTM: Final = re.compile(r"213 (\d{4})(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)(\.\d{1,9})?\s*", re.ASCII)
_SIZE: Final = re.compile(r"213 (\d{1,19})\s*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class FtpFile:
    """A file of a server: its path is relative to the folder of the login; `label` stands for the URL in messages."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    path: str
    label: str

    @classmethod
    def parse(cls, url: SplitResult, label: str) -> Self:
        """Read a URL such as `ftp://user:password@host/folder/file`; raises `InvalidInput`."""
        try:
            port = url.port or PORT
            user = unquote(url.username or ANONYMOUS[0], errors="strict")
            password = ANONYMOUS[1] if url.password is None else unquote(url.password, errors="strict")
            path = unquote(url.path.removeprefix("/"), errors="strict")
        except ValueError as error:
            raise InvalidInput(where="fetch.url", text=f"{label} is not a URL") from error
        if url.hostname is None or not path or path.endswith("/"):
            raise InvalidInput(where="fetch.url", text=f"expected ftp://host/path of a file, got {label}")
        if any(_CONTROL.search(part) for part in (user, password, path)):
            raise InvalidInput(where="fetch.url", text=f"{label} has a control character")
        return cls(host=url.hostname, port=port, user=user, password=password, path=path, label=label)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    """Facts of a server about a file; None if it does not state them."""

    validators: Validators
    size: int | None


def download(file: FtpFile, target: Path, context: Context, etag: str | None) -> Download | None:
    """Store the content in `target`; None if its version is `etag`. Retries transient errors."""

    def attempt() -> Download | None:
        with _naming_errors(file), _Client(context.limits.networks) as client:
            client.open(file)
            before = client.version(file)
            if etag is not None and before.validators.etag == etag:
                return None
            body = Body(label=file.label, chunks=client.chunks(file), total=before.size or 0)
            digest, size = body.store(target, context)
            if client.version(file) != before or size != (size if before.size is None else before.size):
                raise SourceUnreachable(what=file.label, why="it changed while it was transferred")
            return Download(validators=before.validators, digest=digest)

    return with_retry(attempt, context)


class _Client(ftplib.FTP):
    """A client that connects only to allowed addresses, and limits how much it reads of a server's replies."""

    # A server could otherwise name any address for the data connection.
    trust_server_pasv_ipv4_address = False

    def __init__(self, networks: Networks) -> None:
        super().__init__(timeout=SILENCE_SECONDS)
        self._networks = networks

    def open(self, file: FtpFile) -> None:
        """Connect and log in; binary mode."""
        try:
            connected = self._networks.connect(file.host, file.port)
        except (socket.gaierror, UnicodeError):
            raise SourceUnreachable(what=file.label, why="its host name cannot be resolved") from None
        except OSError as error:
            raise SourceUnreachable(what=file.label, why=str(error.strerror or error)) from None
        connected.settimeout(SILENCE_SECONDS)
        self.host, self.port, self.sock, self.af = file.host, file.port, connected, connected.family
        self.file = connected.makefile("r", encoding=self.encoding, errors="replace")
        self.welcome = self.getresp()
        self.login(file.user, file.password)
        self.voidcmd("TYPE I")

    def getmultiline(self) -> str:
        """Return a reply; raises `ftplib.error_proto` unless it starts with a code and is short."""
        lines = [self.getline()]
        code = lines[0][:3]
        if not (code.isascii() and code.isdigit()):
            raise ftplib.error_proto(lines[0])  # noqa: S321 - only an error
        while lines[0][3:4] == "-" and lines[-1][:4] != f"{code} ":
            if len(lines) == MAX_LINES:
                raise ftplib.error_proto(f"more than {MAX_LINES} lines")  # noqa: S321 - only an error
            lines.append(self.getline())
        return "\n".join(lines)

    def quit(self) -> str:
        """End the session; whatever the server says to that, and an interrupted transfer's reply, changes nothing."""
        assert self.sock is not None  # else `with` ends without it
        self.sock.settimeout(QUIT_SECONDS)
        with suppress(ftplib.Error, OSError, EOFError):
            return super().quit()
        return ""

    def version(self, file: FtpFile) -> _Version:
        """Return the version: the time alone where the server has no `SIZE`, none without `MDTM`."""
        match = _MDTM.fullmatch(self._fact(f"MDTM {file.path}"))
        size = _SIZE.fullmatch(self._fact(f"SIZE {file.path}"))
        number = None if size is None else int(size[1])
        if match is None:
            return _Version(validators=Validators(), size=number)
        year, month, day, hour, minute, second, fraction = match.groups(default="")
        try:
            modified = Timestamp.parse(f"{year}-{month}-{day}T{hour}:{minute}:{second}{fraction}Z")
        except InvalidInput:
            return _Version(validators=Validators(), size=number)
        etag = f"{modified} {'' if number is None else number}".rstrip()
        return _Version(validators=Validators(etag=etag, modified=modified), size=number)

    def _fact(self, command: str) -> str:
        """Return a reply; empty if the server does not know the command."""
        try:
            return self.sendcmd(command)
        except ftplib.error_perm as error:
            if str(error)[:3] in UNKNOWN_COMMAND:
                return ""
            raise

    def chunks(self, file: FtpFile) -> Iterator[bytes]:
        """Yield the content; an end without the server's confirmation raises what `voidresp` does."""
        with self.transfercmd(f"RETR {file.path}") as data:
            while chunk := data.recv(CHUNK_BYTES):
                yield chunk
        self.voidresp()


@contextmanager
def _naming_errors(file: FtpFile) -> Iterator[None]:
    """Raise errors of the protocol as ours; replies are quoted without the password."""
    try:
        yield
    except ftplib.error_temp as error:
        raise SourceUnreachable(what=file.label, why=_reply(error, file)) from None
    except ftplib.error_perm as error:
        if str(error).startswith(NO_FILE):
            raise NothingAtSource(what=f"{file.label} ({_reply(error, file)})") from None
        raise SourceRefusedRequest(text=f"{file.label}: {_reply(error, file)}") from None
    except ftplib.Error as error:
        raise SourceRefusedRequest(text=f"{file.label} does not speak FTP: {_reply(error, file)}") from None
    except TimeoutError:
        raise SourceUnreachable(what=file.label, why="no answer in time") from None
    except (EOFError, ConnectionError):
        raise SourceUnreachable(what=file.label, why="the connection was interrupted") from None


def _reply(error: Exception, file: FtpFile) -> str:
    text = _CONTROL.sub(" ", str(error)).strip()[:200]
    return f"the server answers {text.replace(file.password, MASK) if file.password else text!r}"
