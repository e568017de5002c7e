"""Locations in S3 buckets, and the credentials and endpoint for access."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self
from urllib.parse import SplitResult, urlsplit

from odf_common.adapters.repository_urls import BUCKETS, require_no_credentials
from odf_common.errors import InvalidInput

AWS: Final = "https://s3.amazonaws.com"
FORMS: Final = "s3://bucket[/prefix] or s3+http[s]://host[:port]/bucket[/prefix]"
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
_SEGMENT: Final = re.compile(
    r"(?!\.\.?$)[A-Za-z0-9!_.*'()=-]+", re.ASCII
)  # safe in keys, by S3's documentation
_HOST: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Location:
    """A bucket, and a prefix in it."""

    bucket: str
    prefix: str = ""
    """The path of the prefix, without slashes at its start and end."""
    endpoint: str | None = None
    """`http[s]://host[:port]`; None if the URL does not contain an endpoint."""

    @classmethod
    def parse(cls, url: str) -> Self:
        """Parse `s3://bucket/prefix` or `s3+http(s)://endpoint/bucket/prefix`; raises `InvalidInput`."""
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise InvalidInput(text=f"expected {FORMS}") from error
        if parts.scheme not in BUCKETS:
            raise InvalidInput(text=f"expected {FORMS}, got the scheme {parts.scheme!r}")
        require_no_credentials(url)
        if parts.query or parts.fragment:
            raise InvalidInput(text=f"expected {FORMS}, got a query or a fragment")
        endpoint, path = _endpoint(parts)
        bucket, _, prefix = path.partition("/")
        if _BUCKET.fullmatch(bucket) is None:
            raise InvalidInput(text=f"{bucket!r} is not the name of a bucket; expected {FORMS}")
        segments = prefix.rstrip("/").split("/") if prefix else []
        for segment in segments:
            if _SEGMENT.fullmatch(segment) is None:
                raise InvalidInput(text=f"{segment!r} cannot be a part of a prefix")
        return cls(bucket=bucket, prefix="/".join(segments), endpoint=endpoint)

    def key(self, name: str) -> str:
        """Return the complete key for a name below this prefix."""
        return f"{self.prefix}/{name}" if self.prefix else name

    def __str__(self) -> str:
        """Return the location as a URL."""
        scheme, _, host = (self.endpoint or "").partition("://")
        start = f"s3+{scheme}://{host}/" if host else "s3://"
        return start + self.bucket + (f"/{self.prefix}" if self.prefix else "")


def _endpoint(parts: SplitResult) -> tuple[str | None, str]:
    """Return the endpoint of a URL, if any, and its path of bucket and prefix."""
    scheme = BUCKETS[parts.scheme]
    if scheme is None:
        return None, parts.netloc + parts.path
    return checked_endpoint(f"{scheme}://{parts.netloc}"), parts.path.removeprefix("/")


def checked_endpoint(text: str) -> str:
    """Return an endpoint without a trailing slash; raises `InvalidInput` unless it is `http[s]://host[:port]`."""
    scheme, _, host = text.rstrip("/").partition("://")
    if scheme not in {"http", "https"} or _HOST.fullmatch(host) is None:
        raise InvalidInput(text=f"expected http[s]://host[:port], got {text!r}")
    return f"{scheme}://{host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Access:
    """Endpoint and credentials for access to buckets; the defaults are for public buckets of AWS."""

    endpoint: str = AWS
    """Endpoint for locations that do not contain one."""
    region: str | None = None
    """Region of the bucket; if None, the server is asked for it once."""
    addressing: str = "auto"
    """`path`, `virtual` (the bucket is a part of the host name), or `auto`: virtual for AWS, otherwise path."""
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    credentials_file: Path | None = None
    """File in AWS's format; its profile `default` is used unless a key is configured. Changes are detected."""
