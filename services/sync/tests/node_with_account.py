"""A node with one account, for tests of who may read what."""

from pathlib import Path
from typing import Final

from odf_testing.sync_node import SyncNode

from odf_common.identity.dataset_refs import Name
from odf_common.ports.store import require_entry
from odf_sync.access.access_store import AccessStore
from odf_sync.access.directory import Directory
from odf_sync.access.rules import Visibility
from odf_sync.http.authorization import Authorizer
from odf_sync.transfer.privacy import Privacy

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
