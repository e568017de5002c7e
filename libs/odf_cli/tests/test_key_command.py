"""`odf key`: the key exported from one home turns the copy in another into an own dataset; no node is running."""

import json
import os
import stat
from pathlib import Path

import pytest

from odf_cli import main as cli
from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.adapters.local.key_files import dataset_key, is_imported, keep_dataset_key
from odf_common.hashing import multibase
from odf_common.identity.keys import PrivateKey, generate
from odf_common.ports.store import CatalogEntry

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
