"""Connects datasets with the resources that declare them (RFC-018), which live in a room above."""

from collections.abc import Callable
from dataclasses import dataclass

from odf_common.identity.dataset_refs import DatasetId


@dataclass(slots=True, kw_only=True)
class Declarations:
    """Calls into the store of resources; without one, no dataset is declared.

    A resource changes before its dataset: after a kill in between, its controller completes the change.
    """

    is_declared: Callable[[DatasetId], bool] = lambda _: False
    """Returns whether a resource declares the dataset, which therefore keeps its key."""
    declared_alias: Callable[[DatasetId], str | None] = lambda _: None
    """Returns the name that the resource of a dataset gives it; None without a resource."""
    rename: Callable[[DatasetId, str], None] = lambda _, __: None
    """Gives the resource of a dataset the name of its new alias; raises `Conflict` or `Refused`."""
    request_removal: Callable[[DatasetId], None] = lambda _: None
    """Requests the deletion of the resource of a dataset that is being removed."""
