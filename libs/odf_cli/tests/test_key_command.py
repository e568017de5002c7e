import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from odf_testing.builders import a_chain

from odf_cli import clients
from odf_cli import main as cli
from odf_cli.commands.chains import log_command
from odf_cli.commands.keys import prove_command
from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.adapters.local.key_files import NoPrivateKey, dataset_key, is_imported, keep_dataset_key
from odf_common.codec.signature import encode_signature
from odf_common.errors import InvalidInput, NotFound
from odf_common.hashing import multibase
from odf_common.identity.dataset_refs import DatasetId
from odf_common.identity.keys import PrivateKey, SignerId, generate, sign_block
from odf_common.ports.store import CatalogEntry
from odf_common.proto.odf.node.v1.coordinator_pb2 import BlockItem, LogRequest

KEY = generate()


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """Return a home where `cities` was created."""
    home = tmp_path / "ours"
    LocalCatalog(home).add(CatalogEntry(alias="cities", dataset_id=KEY.dataset_id))
    keep_dataset_key(home / "keys", KEY)
    return home


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a home that has a copy of it, called `towns`, and its own dataset."""
    home = tmp_path / "copy"
    LocalCatalog(home).add(CatalogEntry(alias="towns", dataset_id=KEY.dataset_id))
    other = generate()
    LocalCatalog(home).add(CatalogEntry(alias="bakery", dataset_id=other.dataset_id))
    keep_dataset_key(home / "keys", other)
    return home


@pytest.fixture
def exported(tmp_path: Path, ours: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "cities.key"
    monkeypatch.setenv("ODF_HOME", str(ours))
    assert cli.main(["key", "export", "cities", str(file)]) == 0
    return file


def test_a_key_is_exported_to_its_owner_only_and_not_shown(
    exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stat.S_IMODE(exported.stat().st_mode) == 0o600
    assert PrivateKey.parse(exported.read_text().strip()) == KEY
    shown = capsys.readouterr()
    assert shown.out == ""
    assert KEY.raw.hex() not in shown.err
    assert cli.main(["key", "export", "cities", str(exported)]) == 1, "no file is overwritten"


def test_without_a_file_it_goes_to_standard_output(
    exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert cli.main(["key", "export", str(KEY.dataset_id)]) == 0
    assert capsys.readouterr().out == exported.read_text()


def test_a_copy_becomes_ours_by_its_key(
    exported: Path, copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ODF_HOME", str(copy))
    capsys.readouterr()
    for _ in range(2):
        assert cli.main(["key", "import", "towns", str(exported), "-o", "json"]) == 0
        shown = capsys.readouterr()
        assert json.loads(shown.out) == {"dataset": "towns", "id": str(KEY.dataset_id), "ours": True}
        assert KEY.raw.hex() not in shown.out + shown.err
    assert dataset_key(copy / "keys", KEY.dataset_id) == KEY
    assert stat.S_IMODE((copy / "keys" / KEY.dataset_id.folder).stat().st_mode) == 0o600


def test_the_key_of_another_dataset_is_refused(
    exported: Path, copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ODF_HOME", str(copy))
    assert cli.main(["key", "import", "bakery", str(exported)]) == 1
    assert f"the key belongs to {KEY.dataset_id}, not to bakery" in capsys.readouterr().err
    assert not (copy / "keys" / KEY.dataset_id.folder).exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\x00", KEY.raw, KEY.text().encode()[:-2], multibase.encode(KEY.raw).encode(), b"f" * 5000],
    ids=["empty", "bytes", "raw", "cut", "without a prefix", "long"],
)
def test_an_invalid_key_is_refused_without_being_shown(
    content: bytes,
    copy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ODF_HOME", str(copy))
    file = tmp_path / "wrong.key"
    file.write_bytes(content)
    assert cli.main(["key", "import", "towns", str(file)]) == 1
    shown = capsys.readouterr()
    assert "expected an ed25519 private key as `odf key export` writes it" in shown.err
    assert KEY.raw.hex()[:20] not in shown.out + shown.err


def test_a_missing_dataset_or_key_is_reported(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ODF_HOME", str(copy))
    for arguments in (
        ["export", "towns"],
        ["export", "nowhere"],
        ["import", "towns", str(tmp_path / "none")],
    ):
        assert cli.main(["key", *arguments]) == 1
        assert "does not exist" in capsys.readouterr().err
    assert cli.main(["key", "import", "towns"]) == 2


def test_a_key_is_read_in_every_multibase() -> None:
    raw = multibase.decode(KEY.text())
    for encoding in multibase.FINAL:
        assert PrivateKey.parse(multibase.encode(raw, encoding)) == KEY


def test_only_a_dataset_whose_key_was_imported_counts_as_created_elsewhere(
    exported: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Path(os.environ["ODF_HOME"]) / "keys"
    assert cli.main(["key", "import", "cities", str(exported)]) == 0
    assert not is_imported(own, KEY.dataset_id)
    monkeypatch.setenv("ODF_HOME", str(copy))
    for _ in range(2):
        assert cli.main(["key", "import", "towns", str(exported)]) == 0
        assert is_imported(copy / "keys", KEY.dataset_id)


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
        prove_command, ["-o", "json", "--", dataset, challenge], standalone_mode=False
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
        prove_command.main([ref, "4711"], standalone_mode=False)


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
        prove_command.main(arguments, standalone_mode=False)


@pytest.mark.parametrize("arguments", [[], ["cities"], ["cities", "a", "b"]])
def test_misuse_is_2(arguments: list[str]) -> None:
    assert cli.main(["prove", *arguments]) == 2


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
    result = CliRunner().invoke(log_command, ["cities", *options])
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
