"""Why a request of a polled source failed, in words that name no URL."""

import pytest
import urllib3

from odf_ingest.poll.fetch.url import _reason


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (urllib3.exceptions.SSLError("certificate verify failed"), "TLS: certificate verify failed"),
        (urllib3.exceptions.SSLError(), "TLS: failed"),
        (urllib3.exceptions.ProtocolError("Connection broken"), "the connection was interrupted"),
        (urllib3.exceptions.DecodeError("https://user:secret@host"), "DecodeError"),
    ],
)
def test_a_reason_says_what_failed(error: Exception, text: str) -> None:
    assert _reason(error) == text
