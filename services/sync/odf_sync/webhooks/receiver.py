"""Addresses of receivers, as users write them and as they are requested."""

from typing import Final

from yarl import URL

from odf_common.errors import InvalidInput

SCHEMES: Final = ("http", "https")
MAX_URL_CHARACTERS: Final = 2000


def parse_receiver(text: str) -> URL:
    """Parse where to post to; raises `InvalidInput`."""
    if len(text) > MAX_URL_CHARACTERS:
        raise InvalidInput(where="url", text=f"longer than {MAX_URL_CHARACTERS} characters")
    try:
        url = URL(text)
    except ValueError as error:
        raise InvalidInput(where="url", text=str(error)) from error
    if url.scheme not in SCHEMES or not url.raw_host:
        raise InvalidInput(where="url", text="expected http://HOST/… or https://HOST/…")
    if url.raw_user is not None or url.raw_password is not None:
        raise InvalidInput(
            where="url", text="without user and password: the receiver recognizes the node by the signature"
        )
    return url.with_fragment(None)


def request_target(url: URL) -> str:
    """Return a URL as it is requested, with a path."""
    text = str(url)
    return text + "/" if text == str(url.origin()) else text
