"""`odf log --signatures`: signer and standing of each block, over a coordinator that answers from three blocks."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import yaml
from click.testing import CliRunner
from odf_testing.builders import a_chain

from odf_cli import clients
from odf_cli.commands import log
from odf_common.codec.signature import encode_signature
from odf_common.identity.keys import generate
from odf_common.identity.signatures import SignerId, sign_block
from odf_common.proto.odf.node.v1.coordinator_pb2 import BlockItem, LogRequest

KEY = generate()
SIGNER = str(SignerId.of_key(KEY))


@pytest.fixture(autouse=True)
def requests(monkeypatch: pytest.MonkeyPatch) -> list[LogRequest]:
    """Have a valid, a wrong and no signature; the newest block is the valid one."""
    blocks = a_chain().blocks
    wrong = encode_signature(sign_block(KEY, blocks[0].hash))
    signatures = [None, wrong, encode_signature(sign_block(KEY, blocks[2].hash))]
    items = [
        BlockItem(hash=str(block.hash), content=block.raw, signature=signature)
        for block, signature in zip(blocks, signatures, strict=True)
    ]
    seen: list[LogRequest] = []

    def answer(request: LogRequest, timeout: float) -> Iterator[BlockItem]:
        assert timeout
        seen.append(request)
        return iter(items[::-1])

    @contextmanager
    def coordinator() -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(Log=answer)

    monkeypatch.setattr(clients, "coordinator", coordinator)
    return seen


def shown(*options: str) -> str:
    result = CliRunner().invoke(log.command, ["cities", *options])
    assert result.exit_code == 0, result.output
    return result.output


def test_json_has_signer_and_standing(requests: list[LogRequest]) -> None:
    rows = json.loads(shown("--signatures", "-o", "json"))
    assert [(row["signature"], row["signer"]) for row in rows] == [
        ("valid", SIGNER), ("invalid", SIGNER), ("none", None),
    ]  # fmt: skip
    assert requests[0].with_signatures


def test_table_has_them_as_columns() -> None:
    header, _, *lines = shown("--signatures").splitlines()
    assert header.split()[-2:] == ["signature", "signer"]
    assert [line.split()[-2:] for line in lines[:2]] == [["valid", SIGNER], ["invalid", SIGNER]]
    assert lines[2].split()[-1] == "none"


def test_yaml_has_them_next_to_the_hash_and_its_documents_stay_manifests() -> None:
    text = shown("--signatures", "-o", "yaml")
    documents = text.split("---\n")[1:]
    assert [document.splitlines()[1:3] for document in documents[:2]] == [
        ["# Signature: valid", f"# Signer: {SIGNER}"], ["# Signature: invalid", f"# Signer: {SIGNER}"],
    ]  # fmt: skip
    assert documents[2].splitlines()[1] == "# Signature: none"
    assert [one["kind"] for one in yaml.safe_load_all(text)] == ["MetadataBlock"] * 3


def test_without_the_option_none_is_requested_or_shown(requests: list[LogRequest]) -> None:
    assert "valid" not in shown()
    assert "signature" not in json.loads(shown("-o", "json"))[0]
    assert "Signature" not in shown("-o", "yaml")
    assert not any(request.with_signatures for request in requests)
