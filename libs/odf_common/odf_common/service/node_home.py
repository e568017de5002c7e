"""The node that owns a home: its id, its claim to Kafka topics, and whether its datasets are public by default."""

import socket
import uuid
from pathlib import Path
from typing import Final

from odf_common.adapters.kafka.topic_claims import TopicClaim, claim_prefix
from odf_common.adapters.local import durable
from odf_common.adapters.local.faults import size_of, translate_os_errors
from odf_common.adapters.system_clock import SYSTEM_CLOCK
from odf_common.errors import Conflict, InvalidInput
from odf_common.service.connections import kafka_cluster
from odf_common.service.settings import MULTI_TENANT, TENANCY_FILE, Settings

FILE: Final = "node-id"


def node_id(home: Path) -> str:
    """Return the node id that is stored in the home; the first call creates it."""
    file = home / FILE
    if not file.exists():
        durable.create(file, f"{uuid.uuid4().hex}\n".encode())
    return file.read_text().strip()


class HomeCopied(Conflict):
    """This home was copied from another node's home on this machine; both have the same id."""

    MESSAGE = "the home {home} is a copy of {original}, whose node has the same Kafka topics"

    home: Path
    original: Path

    def advice(self) -> str:
        """Return the ways to run both, or only the copy."""
        return (
            f"to run both, delete {self.home / FILE} and set ODF_KAFKA_PREFIX for the copy; to run the copy only, "
            f"delete {self.original}, or start with `odf up --take-over`"
        )


def require_original(home: Path, owner: TopicClaim) -> None:
    """Raise `HomeCopied` if this home is a copy of the home of the claim's owner.

    It is a copy if the owner's home is another folder on this machine with the same node id.
    """
    claimed = Path(owner.home) / FILE
    if owner.host != socket.gethostname() or not claimed.is_file():
        return
    if not claimed.samefile(home / FILE) and claimed.read_text() == (home / FILE).read_text():
        raise HomeCopied(home=home, original=Path(owner.home))


def claim_topics(settings: Settings, *, is_taking_over: bool = False) -> TopicClaim:
    """Claim the topics with the configured prefix for this node, and return the claim.

    Raises `TopicsTaken` if another node has claimed them, unless `is_taking_over`.
    """
    mine = TopicClaim(
        node_id=node_id(settings.home),
        home=str(settings.home),
        host=socket.gethostname(),
        at=str(SYSTEM_CLOCK.now()),
    )
    return claim_prefix(kafka_cluster(settings), settings.kafka_prefix, mine, is_taking_over=is_taking_over)


class TenancyChanged(InvalidInput):
    """A home of a multi-tenant node would be served by a single-tenant node, which would make datasets public."""

    MESSAGE = (
        "this home was used with ODF_TENANCY=multi, where datasets are private unless made public; "
        "without it everyone could read them"
    )

    def advice(self) -> str:
        """Return the two remedies: keep the tenancy, or accept that datasets become public."""
        return (
            f"set ODF_TENANCY=multi; or, to make public every dataset that `odf access set` did not make private, "
            f"remove $ODF_HOME/{TENANCY_FILE}"
        )


def require_tenancy(settings: Settings) -> None:
    """Raise `TenancyChanged` if a single-tenant node would serve a home that belonged to a multi-tenant one.

    A multi-tenant node marks its home for later calls. It may serve any home: all datasets become private then.
    """
    file = settings.home / TENANCY_FILE
    is_multi_tenant = settings.tenancy == MULTI_TENANT
    with translate_os_errors(file):
        was_multi_tenant = size_of(file) is not None
        if was_multi_tenant and not is_multi_tenant:
            raise TenancyChanged
        if is_multi_tenant and not was_multi_tenant:
            durable.write(file, f"{MULTI_TENANT}\n".encode())
