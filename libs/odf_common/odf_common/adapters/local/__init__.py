"""Datasets in a local folder: `$ODF_HOME/datasets` and `$ODF_HOME/names` (wire-facts §6.1).

Every write is durable when its call returns: the file is fsynced, renamed into place, and its folder fsynced.
"""

from odf_common.adapters.local.blobs import LocalBlobStore
from odf_common.adapters.local.catalog import CorruptName, LocalCatalog
from odf_common.adapters.local.refs import CorruptRef, LocalRefStore

__all__ = ["CorruptName", "CorruptRef", "LocalBlobStore", "LocalCatalog", "LocalRefStore"]
