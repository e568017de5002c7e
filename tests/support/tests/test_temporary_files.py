from pathlib import Path

import pytest
from odf_testing import temporary_files
from odf_testing.temporary_files import has_room


def test_a_file_system_has_room_if_it_has_bytes_for_a_whole_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporary_files, "_ROOM", 0)
    assert has_room(tmp_path)
    assert not has_room(tmp_path / "missing")
    monkeypatch.setattr(temporary_files, "_ROOM", 2**63)
    assert not has_room(tmp_path)
