"""The content of a manifest that names a place where datasets are shared (spec: Repository)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """Where a repository is; its datasets are below that URL."""

    url: str
