"""Sends objects where the other node wants them: an HTTP PUT of each (wire-facts §8.5)."""

from typing import Final

import urllib3

from odf_common.adapters.networks import PUBLIC, Networks
from odf_common.errors import InvalidInput, NotFound, Unavailable
from odf_common.identity.did import DatasetId
from odf_common.ports.store import BlobReader
from odf_sync.repositories.node_client import NodeClient
from odf_sync.smart.messages import Upload

TIMEOUT: Final = urllib3.Timeout(
    connect=10, read=300
)  # seconds; the other node stores the object before it answers
RETRY: Final = urllib3.Retry(
    total=4,
    allowed_methods=None,  # an object that was sent twice is stored once
    backoff_factor=0.3,
    status_forcelist=(502, 503, 504),
    raise_on_status=False,
)
SUCCESS: Final = range(200, 300)
REASON_BYTES: Final = 300  # of an answer


class Uploader:
    """Sends objects of one dataset."""

    def __init__(self, blobs: BlobReader, dataset: DatasetId, url: str, networks: Networks = PUBLIC) -> None:
        """Send to the node at a URL, and to public addresses that it gives, or addresses in `networks`."""
        self._blobs = blobs
        self._dataset = dataset
        self._client = NodeClient(url, networks, timeout=TIMEOUT, retries=RETRY)

    def send(self, upload: Upload) -> None:
        """Send an object; raises `NotFound` if it is not available here, and `Unavailable` if it is not taken."""
        file, place = upload.object_file, upload.upload_to
        name = f"{file.object_type.kind}/{file.physical_hash}"
        if place is None:
            raise InvalidInput(text="the other node gives no URL to send it to", where=name)
        headers = {header.name: header.value for header in place.headers}
        headers |= {"Content-Type": "application/octet-stream", "Content-Length": str(file.size)}
        try:
            content = self._blobs.open(self._dataset, file.object_type.kind, file.physical_hash)
        except NotFound as error:
            raise NotFound(what=f"{name}, which the chain declares,") from error
        with content:
            try:
                answer = self._client.put(place.url, headers, content)
                body = answer.read(REASON_BYTES)
                answer.drain_conn()
            except urllib3.exceptions.HTTPError as error:
                raise Unavailable(what=place.url, why=str(error)[:REASON_BYTES]) from error
        if answer.status not in SUCCESS:
            why = f"status {answer.status}: {body.decode(errors='replace')}"
            raise Unavailable(what=place.url, why=why)
