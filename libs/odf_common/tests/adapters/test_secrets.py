"""A secret is the only line of its file, for connections and for commands; no error repeats it."""

from pathlib import Path

import pytest

from odf_common.adapters.local.secrets import MAX_SECRET_BYTES, read_secret
from odf_common.errors import InvalidInput


@pytest.mark.parametrize("content", ["s3cret", "s3cret\n", "s3cret\r\n"])
def test_a_secret_is_the_one_line_of_its_file(tmp_path: Path, content: str) -> None:
    file = tmp_path / "password"
    file.write_bytes(content.encode())
    assert read_secret(file) == "s3cret"


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"s3cret\nother\n", b"s3cret\0", b"s3cret" * MAX_SECRET_BYTES, b"s3cret\xff"],
    ids=lambda it: str(len(it)),
)
def test_another_content_is_refused_without_repeating_it(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "password"
    file.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"expected one line|not UTF-8") as caught:
        read_secret(file)
    assert str(file) in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_white_space_belongs_to_the_secret(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(" s3 cret \n")
    assert read_secret(file) == " s3 cret "


def test_a_missing_file_of_a_secret_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="missing: No such file"):
        read_secret(tmp_path / "missing")
