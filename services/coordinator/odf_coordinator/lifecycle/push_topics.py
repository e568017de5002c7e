"""Creates push topics: their names, fixed when a push source is created, and the reservation that a kill leaves.

One that is deleted later is created again by ingest (`odf_ingest/control/source_control.py`).
"""

import hashlib
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from odf_common.ports.bus import Topics
from odf_common.ports.store import Catalog, CatalogEntry, Claim

PREFIX: Final = "odf.push"
MAX_NAME_CHARACTERS: Final = 249  # Kafka's limit
DIGEST_DIGITS: Final = 8  # hex digits that distinguish topics whose names would collide
_OTHER: Final = re.compile(r"[^a-z0-9._-]")


def topic_name(alias: str, source: str, taken: Collection[str], *, prefix: str = "") -> str:
    """Return `[prefix]odf.push.[account.]dataset.source`, with a digest if that is taken or too long."""
    plain = prefix + ".".join(
        (PREFIX, *(_OTHER.sub("-", part.lower()) for part in (*alias.split("/"), source)))
    )
    if len(plain) <= MAX_NAME_CHARACTERS and plain not in taken:
        return plain
    names = (_with_digest(plain, f"{alias.lower()}\n{source}" + attempt) for attempt in _attempts())
    return next(name for name in names if name not in taken)


def _with_digest(plain: str, text: str) -> str:
    digest = hashlib.sha256(text.encode()).hexdigest()[:DIGEST_DIGITS]
    return f"{plain[: MAX_NAME_CHARACTERS - DIGEST_DIGITS - 1]}-{digest}"


def _attempts() -> Iterator[str]:
    yield ""
    yield from (f"\n{number}" for number in itertools.count(2))


def topics_for(
    alias: str, sources: Iterable[str], taken: Collection[str], *, prefix: str = ""
) -> dict[str, str]:
    """Return a topic for each source."""
    topics: dict[str, str] = {}
    for source in sources:
        topics[source] = topic_name(alias, source, {*taken, *topics.values()}, prefix=prefix)
    return topics


def reserve_topics(
    catalog: Catalog, claim: Claim, alias: str, sources: Iterable[str], *, prefix: str
) -> Mapping[str, str]:
    """Record a topic for each source, unused by datasets and other claims; the caller holds the catalog's lock."""
    taken = {topic for entry in catalog.entries() for topic in entry.push_topics.values()}
    taken |= {topic for other in catalog.claims() for topic in other.push_topics}
    reserved = topics_for(alias, sources, taken, prefix=prefix)
    claim.write(CatalogEntry(alias=alias, dataset_id=claim.entry.dataset_id, push_topics=reserved))
    return reserved


def create_topics(topics: Topics, reserved: Mapping[str, str]) -> None:
    """Create the topics that are reserved for sources; the caller holds no lock, since the broker may be slow."""
    for topic in reserved.values():
        topics.create_push_topic(topic)
