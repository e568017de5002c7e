import threading

import pytest

from odf_common.resources import passwords


def test_an_unchanged_password_keeps_its_hash() -> None:
    hashed = passwords.hash_password("long enough")
    assert passwords.hash_password("long enough", hashed) == hashed
    assert passwords.hash_password("long enough") != hashed
    assert passwords.hash_password("another one", hashed) != hashed
    assert passwords.hash_password("long enough", "damaged") != "damaged"


def test_few_passwords_are_hashed_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    place, is_alone = threading.Lock(), []
    monkeypatch.setattr(passwords, "HASH_SLOTS", place)

    class Hasher:
        def hash(self, password: str) -> str:
            is_alone.append(place.locked())
            return password

        def verify(self, hashed: str, password: str) -> None:
            is_alone.append(place.locked())
            assert hashed == password

    monkeypatch.setattr(passwords, "_HASHER", Hasher())
    assert passwords.is_password("long enough", passwords.hash_password("long enough"))
    assert is_alone == [True, True]
