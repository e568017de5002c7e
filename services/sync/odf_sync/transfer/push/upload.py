"""Sends objects where the other node wants them: an HTTP PUT of each (wire-facts §8.5).

A node that continues uploads is sent only what it lacks: it says how much has arrived, with the URL or when asked.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO, Final

import structlog
import urllib3

from odf_common.adapters.live_sockets import CONNECT_SECONDS, WHILE_IDLE
from odf_common.adapters.networks import PUBLIC, Networks
from odf_common.errors import InvalidInput, NotFound, Unavailable
from odf_common.identity.did import DatasetId
from odf_common.ports.store import BlobReader
from odf_sync.repositories.http_dataset import UnexpectedStatus, by_url_or_place
from odf_sync.repositories.node_client import MAX_RETRY_AFTER_SECONDS, NodeClient, discard
from odf_sync.smart.messages import Upload

log = structlog.stdlib.get_logger(__name__)

UPLOAD_TIMEOUT: Final = urllib3.Timeout(
    connect=CONNECT_SECONDS, read=300
)  # seconds; the other node stores the object before it answers
UPLOAD_RETRY: Final = urllib3.Retry(
    total=4,
    allowed_methods=None,  # an object that was sent twice is stored once
    backoff_factor=0.3,
    status_forcelist=(502, 503, 504),
    raise_on_status=False,
    retry_after_max=MAX_RETRY_AFTER_SECONDS,
)
ONCE: Final = urllib3.Retry(0, redirect=0)
FRUITLESS: Final = 2  # attempts in a row without a byte, each after the retries of the question
SUCCESS: Final = range(200, 300)
INCOMPLETE, WRONG_BYTES, WRONG_OFFSET, BUSY = 204, 400, 409, 503
MAX_SHOWN_REASON_BYTES: Final = 300  # of an answer
RANGE: Final = "Content-Range"
OFFSET: Final = "Upload-Offset"  # how many bytes of an upload have arrived
HELD_BYTES: Final = 256 * 1024  # of an upload may be on the way, and are lost if it is interrupted
LOST: Final = 0.02  # of all bytes, at most, or those of one upload


def at_a_time(sizes: Sequence[int], most: int, held: int = HELD_BYTES) -> int:
    """Return the number of objects of these sizes to send at a time, so that an interruption loses few of them."""
    loss = min(held, max(sizes, default=0))
    return max(1, min(most, int(LOST * sum(sizes)) // max(loss, 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """Bytes that are sent, and where to."""

    url: str
    headers: Mapping[str, str]
    content: BinaryIO
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    status: int
    arrived: int
    """Bytes of the upload, by what the node says."""
    text: str


class Uploader:
    """Sends objects of one dataset."""

    def __init__(
        self,
        blobs: BlobReader,
        dataset: DatasetId,
        url: str,
        networks: Networks = PUBLIC,
        *,
        headers: Mapping[str, str] | None = None,
        may_continue: bool = False,
    ) -> None:
        """Send to a dataset's URL at a node, and to public addresses that it gives, or addresses in `networks`.

        `headers` are for that node alone; `may_continue`: it continues uploads that were interrupted.
        """
        self._base = url.rstrip("/") + "/"
        self._headers = headers or {}
        self._blobs = blobs
        self._dataset = dataset
        self._may_continue = may_continue
        self._patient = NodeClient(
            url, networks, timeout=UPLOAD_TIMEOUT, retries=UPLOAD_RETRY, sockets=WHILE_IDLE
        )
        self._once = NodeClient(url, networks, timeout=UPLOAD_TIMEOUT, retries=ONCE, sockets=WHILE_IDLE)

    def send(self, upload: Upload) -> None:
        """Send an object; raises `NotFound` if it is not available here, and `Unavailable` if it is not taken."""
        file, destination = upload.object_file, upload.upload_to
        name = f"{file.object_type.kind}/{file.physical_hash}"
        if destination is None:
            raise InvalidInput(text="the other node returned no URL to upload it to", where=name)
        headers = {header.name: header.value for header in destination.headers}
        offset = headers.pop(OFFSET, "0")
        arrived = int(offset) if offset.isdecimal() else 0
        try:
            content = self._blobs.open(self._dataset, file.object_type.kind, file.physical_hash)
        except NotFound as error:
            raise NotFound(what=f"{name}, which the chain declares,") from error
        with content:
            size = content.seek(
                0, os.SEEK_END
            )  # which may differ from what the chain, or the other node, says
            target = File(url=destination.url, headers=headers, content=content, size=size)
            # The headers that came with the URL are for another server.
            own = replace(target, url=f"{self._base}{name}", headers=self._headers)
            if target.url == own.url:
                self._deliver(target, arrived)
            else:
                by_url_or_place(
                    destination,
                    lambda: self._deliver(target, arrived),
                    lambda: self._deliver(own, arrived),
                )
        log.debug("object uploaded", object=name, bytes=size, continued_at=arrived)

    def _deliver(self, file: File, arrived: int) -> None:
        if self._may_continue and self._patient.is_own(file.url):
            self.complete(file, arrived)
        else:
            _require_taken(file, self._send(self._patient, file, 0))

    def complete(self, file: File, arrived: int | None = None) -> None:
        """Send what a node lacks of a file, of which it has `arrived` bytes; None: it is asked.

        A lost connection is followed by another one, as long as bytes arrive. Raises `Unavailable`.
        """
        reached, fruitless, why = -1, 0, "no byte arrives"
        while fruitless < FRUITLESS:
            if arrived is None or arrived >= file.size > 0:
                answer = self._request(self._patient, file, {RANGE: f"bytes */{file.size}"}, b"")
                if answer.status not in (INCOMPLETE, WRONG_BYTES):  # it has all
                    _require_taken(file, answer)
                    return
                arrived = answer.arrived
            fruitless = 0 if arrived > reached else fruitless + 1
            reached = arrived
            try:
                answer = self._send(self._once, file, arrived)
            except Unavailable as error:
                arrived, why = None, error.why or why
                continue
            if answer.status == WRONG_BYTES and arrived:
                arrived = 0  # it had other bytes, and has dropped them
            elif answer.status in (WRONG_OFFSET, BUSY):
                arrived, why = None, answer.text
            else:
                _require_taken(file, answer)
                return
        raise Unavailable(what=file.url, why=why)

    def _send(self, client: NodeClient, file: File, start: int) -> _Answer:
        """Send the bytes from `start` on."""
        file.content.seek(start)
        part = {RANGE: f"bytes {start}-{file.size - 1}/{file.size}"} if start else {}
        headers = {"Content-Length": str(file.size - start), **part}
        return self._request(client, file, headers, file.content)

    @staticmethod
    def _request(client: NodeClient, file: File, more: Mapping[str, str], body: BinaryIO | bytes) -> _Answer:
        headers = urllib3.HTTPHeaderDict(file.headers)  # which compares names without regard to case
        headers.update({"Content-Type": "application/octet-stream", **more})
        try:
            answer = client.put(file.url, headers, body)
            text = answer.read(MAX_SHOWN_REASON_BYTES).decode(errors="replace")
            discard(answer)
        except urllib3.exceptions.HTTPError as error:
            raise Unavailable(what=file.url, why=str(error)[:MAX_SHOWN_REASON_BYTES]) from error
        arrived = answer.headers.get(OFFSET, "")
        is_number = arrived.isdecimal() and int(arrived) < file.size
        return _Answer(status=answer.status, arrived=int(arrived) if is_number else 0, text=text)


def _require_taken(file: File, answer: _Answer) -> None:
    """Raise `UnexpectedStatus` unless the other node has stored it."""
    if answer.status not in SUCCESS:
        why = f"status {answer.status}: {answer.text}"
        raise UnexpectedStatus(what=file.url, why=why, status=answer.status)
