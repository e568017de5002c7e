"""A node with one account, for tests of who may read what."""

from pathlib import Path
from typing import Final

import yaml
from odf_testing.story import derivative, root
from odf_testing.sync_node import SyncNode

from odf_common.identity.dataset_refs import Name
from odf_common.ports.store import require_entry
from odf_sync.access.access_store import AccessStore
from odf_sync.access.directory import Directory
from odf_sync.access.rules import Visibility
from odf_sync.http.authorization import Authorizer
from odf_sync.transfer.local_copy import Privacy

ANN: Final = Name("ann")


class Node(SyncNode):
    """A node with an account; programs on its machine have no rights."""

    def __init__(self, home: Path, *, is_multi_tenant: bool) -> None:
        super().__init__(home)
        self.directory = Directory(AccessStore(home), is_multi_tenant=is_multi_tenant, datasets=self.datasets)
        self.directory.add_account(ANN, None)
        self.authorizer = Authorizer(catalog=self.catalog, local_writers="off", directory=self.directory)
        self.token = self.directory.create_token(ANN, label="")[0].text()
        self.privacy = Privacy(self.directory)

    def visibility(self, alias: str) -> Visibility:
        return self.directory.visibility(require_entry(self.catalog, alias).incarnation)

    def set_visibility(self, alias: str, visibility: Visibility) -> None:
        self.directory.set_visibility(require_entry(self.catalog, alias).incarnation, visibility)


def a_node_with_derivatives(home: Path) -> Node:
    """Return a node with `cities`, `first`, which reads it, `second`, which reads that, and `towns`, read by none."""
    node = Node(home, is_multi_tenant=False)
    for name, *inputs in (("cities",), ("towns",), ("first", "cities"), ("second", "first")):
        define(node, name, *inputs)
    return node


def define(node: Node, name: str, *inputs: str) -> None:
    """Add a dataset that reads others, or replace its query."""
    columns = ["event_time TIMESTAMP", "city STRING"]
    manifest = root(name, columns)
    if inputs:
        read = {input_.rpartition("/")[2]: input_ for input_ in inputs}
        query = " UNION ALL ".join(f"SELECT event_time, city FROM {alias}" for alias in read)
        manifest = derivative(name, read, query)
    node.coordinator.add(yaml.safe_dump(manifest), replace=True)


def folder_of(node: Node, name: str) -> Path:
    return node.blobs.index_folder(require_entry(node.catalog, name).dataset_id).parent


def visibilities(node: Node) -> dict[str, str]:
    return {
        entry.alias: node.directory.visibility(entry.incarnation).value for entry in node.catalog.entries()
    }
