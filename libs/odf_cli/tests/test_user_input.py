from pathlib import Path

import pytest

from odf_cli.user_input import absolute_url, read_limited
from odf_common.errors import InvalidInput, NotFound, Unavailable


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("file:///tmp/a%20b", "file:///tmp/a%20b"),
        ("file:///tmp/a b", "file:///tmp/a%20b"),
        ("file:///tmp/a%2520b", "file:///tmp/a%2520b"),
        ("file:///tmp/a#b?c", "file:///tmp/a%23b%3Fc"),
        ("file://localhost/tmp/x", "file:///tmp/x"),
        ("FILE://LocalHost/tmp/x", "file:///tmp/x"),
        ("https://example.org/a%20b", "https://example.org/a%20b"),
        ("flights@next", "flights@next"),
    ],
)
def test_a_url_means_the_same_everywhere(typed: str, meant: str) -> None:
    assert absolute_url(typed) == meant
    assert absolute_url(meant) == meant


def test_a_url_with_a_password_is_refused_without_showing_it() -> None:
    with pytest.raises(InvalidInput, match="odf login http://h`") as caught:
        absolute_url("odf+http://joe:secret@h/flights")
    assert "secret" not in str(caught.value)


def test_a_folder_may_be_named_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for typed in ("file://a%20b/c", "file://./a b/c"):
        assert absolute_url(typed) == (tmp_path / "a b" / "c").as_uri()


def test_a_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    file = tmp_path / "event.yaml"
    file.write_bytes(b"12345")
    assert read_limited(str(file), 5) == b"12345"
    with pytest.raises(InvalidInput, match=r"event\.yaml: longer than 4 bytes"):
        read_limited(str(file), 4)
    with pytest.raises(NotFound, match=r"file .*nothing does not exist"):
        read_limited(str(tmp_path / "nothing"), 4)
    with pytest.raises(Unavailable, match="Is a directory"):
        read_limited(str(tmp_path), 4)
