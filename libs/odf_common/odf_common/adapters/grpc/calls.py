"""A gRPC call that has ended: who made it, what it concerns, and its outcome."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import grpc

from odf_common.adapters.grpc.bulkheads import ref_of

COMMON_NAME: Final = "x509_common_name"
USER_AGENT: Final = "user-agent"
DATASETS: Final = ("dataset", "alias")  # fields that name a dataset, where `ref` and `refs` do not
SUBJECTS: Final = ("account", "name", "id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call that has ended."""

    method: str
    """`/package.Service/Method`."""
    dataset: str = ""
    """The datasets that it names, or has added, joined by commas."""
    subject: str = ""
    """The account, token or webhook that it names."""
    status: grpc.StatusCode = grpc.StatusCode.OK
    error: str = ""
    """Name of the error that it ended with."""
    address: str = ""
    """The other end of the connection."""
    certificate_name: str = ""
    """Common name of the client's certificate, which the node's authority has signed; empty without TLS."""
    user_agent: str = ""
    """The client's own name, unverified."""


def dataset_in(request: object, reply: object = None) -> str:
    """Return the datasets that a request or the reply to it names, joined by commas."""
    named = ref_of(request) or _first(request, DATASETS)
    if named or reply is None:
        return named
    return ",".join(result.alias for result in getattr(reply, "results", ()) if hasattr(result, "alias"))


def subject_in(request: object) -> str:
    """Return the account, token or webhook that a request names."""
    return _first(request, SUBJECTS)


def address_of(context: grpc.ServicerContext) -> str:
    """Return the client's host; of a local socket, its path."""
    kind, _, rest = unquote(context.peer()).partition(":")
    return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else rest


def certificate_name(context: grpc.ServicerContext) -> str:
    """Return the common name of the client's certificate; empty without one."""
    auth: Any = context.auth_context()
    return next(iter(auth.get(COMMON_NAME, ())), b"").decode(errors="replace")


def user_agent(context: grpc.ServicerContext) -> str:
    """Return the client's own name."""
    metadata: Any = context.invocation_metadata() or ()
    return next((str(value) for key, value in metadata if key == USER_AGENT), "")


def _first(request: object, names: Iterable[str]) -> str:
    values = (getattr(request, name, "") for name in names)
    return next((text for text in values if text and isinstance(text, str)), "")
