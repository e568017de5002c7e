"""The account of the node itself, and accounts that exist without a manifest of theirs."""

import uuid
from collections.abc import Mapping
from typing import Any, Final

from odf_common.identity.dataset_refs import DatasetId, Name

NODE_ACCOUNT: Final = Name("odf")
"""The account of a node without others; names of its datasets do not have it."""


def did_of_name(name: Name) -> str:
    """Return the DID of an account that no database has, such as that of the node."""
    return str(DatasetId.of_key(uuid.uuid5(uuid.NAMESPACE_URL, name.key).bytes * 2))


NODE_DID: Final = did_of_name(NODE_ACCOUNT)
"""The DID decides who the node is: another account may have the name."""


def implied_spec(name: Name, did: str) -> dict[str, Any]:
    """Return the spec of an account that a command has added, whose name and DID are all that resources know."""
    return {"did": did, "email": f"{name.key}@account.invalid"}


def is_implied(document: Mapping[str, Any]) -> bool:
    """Return whether no manifest describes an account: its password and its removal are up to commands."""
    headers, spec = document["headers"], document["spec"]
    return bool(spec == implied_spec(Name(headers["name"]), str(spec.get("did"))))
