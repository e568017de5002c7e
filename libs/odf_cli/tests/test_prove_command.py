"""`odf prove`: proofs created and checked; no node is running."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from odf_cli import main as cli
from odf_cli.commands import prove
from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.adapters.local.key_files import NoPrivateKey
from odf_common.errors import InvalidInput, NotFound
from odf_common.hashing import multibase
from odf_common.identity.did import DatasetId
from odf_common.identity.keys import PrivateKey, generate
from odf_common.ports.store import CatalogEntry

OTHER = generate().dataset_id
Prove = Callable[..., dict[str, str]]


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PrivateKey:
    """Have a home with one own dataset, `cities`, and a copy of a foreign one, `towns`."""
    made = generate()
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / made.dataset_id.folder).write_bytes(made.raw)
    LocalCatalog(tmp_path).add(CatalogEntry(alias="cities", dataset_id=made.dataset_id))
    LocalCatalog(tmp_path).add(CatalogEntry(alias="towns", dataset_id=OTHER))
    monkeypatch.setenv("ODF_HOME", str(tmp_path))
    return made


def proven(dataset: str, challenge: str) -> dict[str, str]:
    result = CliRunner().invoke(
        prove.command, ["-o", "json", "--", dataset, challenge], standalone_mode=False
    )
    assert result.exception is None, result.exception
    shown: dict[str, str] = json.loads(result.output)
    return shown


def checked(dataset: DatasetId | str, challenge: str, signature: str) -> int:
    return cli.main(["prove", "--check", signature, "--", str(dataset), challenge])


def test_a_proof_says_dataset_challenge_and_signature(key: PrivateKey) -> None:
    shown = proven("cities", "4711")
    assert list(shown) == ["dataset", "challenge", "signature"]
    assert (shown["dataset"], shown["challenge"]) == (str(key.dataset_id), "4711")
    assert checked(shown["dataset"], "4711", shown["signature"]) == 0


def test_name_and_id_give_the_same_proof(key: PrivateKey) -> None:
    assert proven("Cities", "4711") == proven(str(key.dataset_id), "4711")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(challenge=st.text(min_size=1).filter(lambda text: "\0" not in text))
def test_every_challenge_can_be_proven_and_no_other_passes(key: PrivateKey, challenge: str) -> None:
    signature = proven("cities", challenge)["signature"]
    assert checked(key.dataset_id, challenge, signature) == 0
    assert checked(key.dataset_id, challenge + "x", signature) == 3
    assert checked(OTHER, challenge, signature) == 3


def test_the_signature_may_be_in_any_multibase(key: PrivateKey) -> None:
    raw = multibase.decode(proven("cities", "4711")["signature"])
    for encoding in multibase.FINAL:
        assert checked(key.dataset_id, "4711", multibase.encode(raw, encoding)) == 0


@pytest.mark.parametrize("signature", ["", "f", "f00", "x", "f" + "0" * 128, "f" + "0" * 5000, "\x1b[31m"])
def test_an_invalid_signature_is_no_proof(key: PrivateKey, signature: str) -> None:
    assert checked(key.dataset_id, "4711", signature) == 3


def test_a_bare_signature_of_the_challenge_is_no_proof(key: PrivateKey) -> None:
    assert checked(key.dataset_id, "4711", multibase.encode(key.sign(b"4711"))) == 3


@pytest.mark.parametrize("output", ["table", "json", "yaml"])
def test_the_verdict_is_printed_in_every_format(
    key: PrivateKey, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    signature = proven("cities", "4711")["signature"]
    for challenge, word, status in (("4711", "valid", 0), ("4712", "invalid", 3)):
        assert (
            cli.main(["prove", str(key.dataset_id), challenge, "--check", signature, "-o", output]) == status
        )
        assert word in capsys.readouterr().out.replace('"', "").split()


@pytest.mark.parametrize("ref", ["towns", str(OTHER)], ids=["alias", "id"])
def test_a_copy_has_no_key_and_no_proof(
    key: PrivateKey, ref: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["prove", ref, "4711"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"the private key of {OTHER} does not exist" in shown.err
    assert "hint: " in shown.err
    assert key.raw.hex() not in shown.err
    with pytest.raises(NoPrivateKey):
        prove.command.main([ref, "4711"], standalone_mode=False)


@pytest.mark.usefixtures("key")
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["bakery", "4711"], NotFound),
        (["cities", ""], InvalidInput),
        (["cities", "\udcff"], InvalidInput),
        (["cities", "4711", "--check", "f00"], InvalidInput),
        (["../keys", "4711"], InvalidInput),
    ],
)
def test_an_invalid_challenge_is_refused(arguments: list[str], error: type[Exception]) -> None:
    with pytest.raises(error):
        prove.command.main(arguments, standalone_mode=False)


@pytest.mark.parametrize("arguments", [[], ["cities"], ["cities", "a", "b"]])
def test_misuse_is_2(arguments: list[str]) -> None:
    assert cli.main(["prove", *arguments]) == 2
