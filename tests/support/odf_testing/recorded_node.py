"""A node in the state of the recorded server: its accounts, tokens and datasets."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import Name
from odf_sync.access.access_store import AccessStore
from odf_sync.access.directory import Directory
from odf_sync.access.rules import Visibility
from odf_sync.http.authorization import Authorizer
from odf_testing.recorded_transfers import FOLDERS, Line, Pool, with_texts
from odf_testing.sync_node import SyncNode

CITIES, THERMO, SECRET = "alice/cities.population", "alice/lab.thermo", "bob/secret.notes"
HELD = {  # unless the recording shows another head
    CITIES: "f1620b95d40b1f2297553525ab60376952ffa3828f8c12fdd4d1d6478f73779ebb4b3",
    THERMO: "f162068f22f6353c35e384477b25a4daea52446cb7f1bff8c0e59132c5332ebc1e12c",
    SECRET: "f1620e843b81808ba186660e544a31e1a2e61c4e824c2d1d0c3e9faf4e2472adbee45",
}
TOKENS = {True: {"TOKEN-OF-BOB": "bob", "TOKEN": "alice"}, False: {"TOKEN": "kamu"}}
_PATH = re.compile(rf"/(?P<alias>(?:[^/]+/)?[^/]+)/(?P<route>(?:refs|{'|'.join(FOLDERS)})/[^/]+|pull|push)")
_EXPECTED = re.compile(r'"expected_head":"(\w+)"')
IDS = {
    "alice": "did:odf:fed01616ce9931bb5b132616ce9931bb5b13210c6963656060000df86d89f9bd9ff38",
    "kamu": "did:odf:fed016b61ed2ab1b63a006b61ed2ab1b63a00b016d65607000000e0821aafbf163e6f",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedNode:
    """A node in the state of a recording, and the recording with this node's tokens and ids of accounts."""

    node: SyncNode
    authorizer: Authorizer
    lines: list[Line]

    @contextmanager
    def served(self) -> Iterator[str]:
        """Serve the node; programs on this machine are as anonymous as others."""
        with self.node.served(self.authorizer) as base:
            yield base


def recorded_node(
    home: Path, lines: list[Line], pool: Pool, *, is_multi_tenant: bool | None = None
) -> RecordedNode:
    """Return a node in the state of the recorded server before the first request; the recorded names show its kind."""
    found = heads_in(lines)
    if is_multi_tenant is None:
        is_multi_tenant = all("/" in alias for alias in found)
    node = SyncNode(home)
    directory = Directory(AccessStore(home), is_multi_tenant=is_multi_tenant)
    texts = _accounts(directory)
    for alias, head in {**(HELD if is_multi_tenant else {}), **found}.items():
        if head is None:
            continue
        held = Multihash.parse(head)
        if held not in pool.blocks:  # its chain was not recorded: another one stands for it
            texts[head], held = HELD[alias], Multihash.parse(HELD[alias])
        node.hold(alias, held, pool)
        entry = node.catalog.by_alias(alias)
        assert entry is not None
        visibility = Visibility.PRIVATE if alias == SECRET else Visibility.PUBLIC
        directory.store.set_visibility(entry.incarnation, visibility)
    authorizer = Authorizer(catalog=node.catalog, local_writers="off", directory=directory)
    return RecordedNode(node=node, authorizer=authorizer, lines=with_texts(lines, texts))


def _accounts(directory: Directory) -> dict[str, str]:
    """Add the recorded accounts; return what is to be read instead of their recorded tokens and ids."""
    texts = {}
    for text, name in TOKENS[directory.is_multi_tenant].items():
        account = directory.add_account(Name(name), None)
        texts[f"Bearer {text}"] = f"Bearer {directory.create_token(account.name, label='test')[0].text()}"
        if name in IDS:
            texts[IDS[name]] = str(account.id)
    return texts


def heads_in(lines: list[Line]) -> dict[str, str | None]:
    """Return the former heads of the requested datasets; None: no such dataset."""
    heads: dict[str, str | None] = {}
    answers = {line["conn"]: line for line in lines if line["from"] == "server"}
    for line in lines:
        found = _PATH.fullmatch(line.get("path", "").lower())
        if found is None or found["alias"] in heads:
            continue
        alias, head = found["alias"], HELD.get(found["alias"])
        answer = answers[line["conn"]]
        if found["route"] == "refs/head" and answer["status"] == 200 and answer.get("body"):
            head = answer["body"]
        elif found["route"] == "refs/head" and alias != SECRET:
            head = None
        heads[alias] = _named(lines, head) if alias == THERMO else head
    return heads


def _named(lines: list[Line], head: str | None) -> str | None:
    """Return the head that the recorded server names in a refusal, if it does."""
    found = [_EXPECTED.search(line.get("body", "")) for line in lines if line["from"] == "server"]
    return next((one[1] for one in found if one is not None), head)
