"""Programs of other users of the machine are as remote as programs of other machines."""

import os
from pathlib import Path

import pytest
from odf_testing.other_user import NOBODY, ask

from odf_common.identity.dataset_refs import Name
from odf_sync.access.rules import Action

from .access_matrix import PRIVATE, PUBLIC, Node
from .ingest_node import Here
from .ingest_node import here as here  # noqa: PLC0414 - a fixture
from .ingest_node import make_here as make_here  # noqa: PLC0414 - a fixture

NEW = "new"
FORWARDED = {"X-Forwarded-For": "192.0.2.1"}


@pytest.mark.parametrize("local_writers", ["loopback", "off", "anywhere"])
def test_another_user_may_do_what_another_machine_may(tmp_path: Path, local_writers: str) -> None:
    node = Node(tmp_path, is_multi_tenant=False, local_writers=local_writers).with_probes()
    paths = [f"/{dataset}/probe-{action}" for dataset in (PUBLIC, PRIVATE, NEW) for action in Action]
    with node.running():
        own = [ask(node.base, "GET", path, user=os.geteuid())[0] for path in paths]
        remote = [ask(node.base, "GET", path, headers=FORWARDED, user=os.geteuid())[0] for path in paths]
        others = [ask(node.base, "GET", path)[0] for path in paths]
    assert others == remote
    assert (own == others) == (local_writers == "off"), own


def test_a_token_is_worth_the_same_from_each_user(tmp_path: Path) -> None:
    node = Node(tmp_path, is_multi_tenant=True).with_probes()
    node.directory.add_account(Name("alice"), None)
    headers = node.token("alice")
    paths = [f"/alice/{dataset}/probe-{action}" for dataset in (PUBLIC, PRIVATE) for action in Action]
    with node.running():
        answers = [ask(node.base, "GET", path, headers=headers)[0] for path in paths]
        assert answers == [node.ask("GET", path, headers) for path in paths]
        assert set(answers) == {200}


def test_another_user_pushes_nothing(here: Here) -> None:
    address = here.base.removeprefix("http://")
    status, text = ask(address, "POST", "/orders/ingest", body=b"x")
    assert (status, here.ingest.requests) == (403, [])
    assert f"another user of this machine (uid {NOBODY})" in text
    assert ask(address, "POST", "/orders/ingest", body=b"x", user=os.geteuid())[0] == 200
