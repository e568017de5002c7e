from pathlib import Path

import pytest

from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_verifier.verification import VerifiedHeads

DATASET = DatasetId.of_key(bytes(32))
A, B = Multihash.sha3(b"a" * 32), Multihash.sha3(b"b" * 32)


def test_phases_are_remembered_separately(tmp_path: Path) -> None:
    verified = VerifiedHeads(tmp_path / "verified")
    verified.remember(DATASET, {"integrity": A, "replay": A})
    verified.remember(DATASET, {"integrity": B})
    again = VerifiedHeads(tmp_path / "verified")
    assert (again.head(DATASET, "integrity"), again.head(DATASET, "replay")) == (B, A)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"integrity": 1}', b'{"integrity": "f00"}'])
def test_a_spoilt_file_means_nothing_is_known_and_is_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / f"{DATASET.folder}.json").write_bytes(content)
    verified = VerifiedHeads(tmp_path)
    assert verified.head(DATASET, "integrity") is None
    verified.remember(DATASET, {"integrity": A})
    assert verified.head(DATASET, "integrity") == A
