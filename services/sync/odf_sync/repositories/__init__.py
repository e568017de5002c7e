"""Remote datasets to pull from and push to, one module per kind of repository.

Remote datasets are not trusted: their modules limit the size of each read, and the caller checks hashes.
"""

from urllib.parse import urlparse

from odf_common.adapters.networks import PUBLIC
from odf_common.adapters.repository_urls import BUCKETS, SMART
from odf_common.adapters.s3.location import S3Access, S3Location
from odf_common.errors import InvalidInput
from odf_common.service.connections import s3_access, trusted_networks
from odf_common.service.settings import Settings
from odf_sync.access.remote_login import TokenFor, no_token
from odf_sync.repositories.folder import FolderTarget, RemoteFolder
from odf_sync.repositories.http_dataset import HttpDataset
from odf_sync.repositories.remote_dataset import RemoteDataset, Target
from odf_sync.repositories.smart_dataset import SmartDataset

__all__ = [
    "HttpDataset",
    "RemoteDataset",
    "RemoteFolder",
    "SmartDataset",
    "Target",
    "TokenFor",
    "no_token",
    "remote_dataset",
    "target",
]


def remote_dataset(
    url: str, token_for: TokenFor = no_token, *, settings: Settings | None = None
) -> RemoteDataset:
    """Return the remote dataset at a URL; raises `InvalidInput` for an unsupported scheme.

    Without settings, buckets are read without credentials, and nodes may only refer to public addresses.
    """
    scheme = urlparse(url).scheme
    networks = PUBLIC if settings is None else trusted_networks(settings)
    if scheme in ("http", "https"):
        return HttpDataset(url, token_for(url), networks)
    if scheme == "file":
        return RemoteFolder(url)
    if scheme in SMART:
        return SmartDataset(url, token_for(url), networks)
    if scheme in BUCKETS:
        from odf_sync.repositories.s3 import S3Dataset  # noqa: PLC0415 the SDK takes long to import

        location = S3Location.parse(url)
        return S3Dataset(location, S3Access() if settings is None else s3_access(settings, location))
    raise InvalidInput(text=f"expected http(s)://, odf+http(s)://, file:// or s3://, got {url!r}")


def target(url: str, settings: Settings) -> Target | None:
    """Return the folder or bucket at a URL to push to; None for any other URL, such as that of a node."""
    scheme = urlparse(url).scheme
    if scheme == "file":
        return FolderTarget(url)
    if scheme in BUCKETS:
        from odf_sync.repositories.s3 import S3Target  # noqa: PLC0415 the SDK takes long to import

        location = S3Location.parse(url)
        return S3Target(location, s3_access(settings, location))
    return None
