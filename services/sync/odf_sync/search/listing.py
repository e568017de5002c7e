"""The document in which a node lists its datasets: `GET /datasets?after=NAME`, a page at a time (ADR 0060)."""

import json
from dataclasses import dataclass
from typing import Final

from odf_common.errors import InvalidInput
from odf_sync.search.summary import DatasetSummary

PATH: Final = "datasets"
AFTER: Final = "after"
PAGE_DATASETS: Final = 100
PAGE_BYTES: Final = 1024 * 1024  # after which a page ends; one dataset has less than that
LIST_LIMIT: Final = 64 * 1024 * 1024  # bytes of all pages of another node


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some datasets, by lower-case name."""

    datasets: tuple[DatasetSummary, ...]
    next: str = ""
    """Name after which the next page begins; empty on the last one."""

    def encoded(self) -> bytes:
        """Return the document."""
        document = {"datasets": [dataset.json() for dataset in self.datasets], "next": self.next or None}
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def parse_page(raw: bytes, where: str) -> Page:
    """Return a page of another node; raises `InvalidInput`."""
    try:
        plain = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(text="not JSON", where=where) from error
    match plain:
        case {"datasets": list(datasets), **rest}:
            after = rest.get("next")
            listed = tuple(map(DatasetSummary.of_json, datasets))
            return Page(datasets=listed, next=after if isinstance(after, str) else "")
        case _:
            raise InvalidInput(text="not a list of datasets", where=where)
