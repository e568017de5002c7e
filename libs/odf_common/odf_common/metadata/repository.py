"""The content of a manifest that names a repository (spec: Repository)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """The URL of a repository; its datasets are below it."""

    url: str
