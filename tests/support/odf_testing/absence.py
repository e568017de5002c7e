"""Looks for a secret in all that a node has written: files of its home, with those of Kafka and its logs, and messages."""

import base64
import json
import mmap
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import quote


def forms_of(secret: str) -> frozenset[bytes]:
    """Return the bytes by which a secret may be written in clear text, or merely encoded."""
    raw = secret.encode()
    texts = {secret, quote(secret, safe=""), json.dumps(secret)[1:-1], raw.hex(), raw.hex().upper()}
    return frozenset(
        {text.encode() for text in texts} | {secret.encode("utf-16-le"), raw[::-1]} | {*_in_base64(raw)}
    )


def _in_base64(raw: bytes) -> Iterator[bytes]:
    """Yield the characters that depend on the secret alone, wherever it begins within what is encoded."""
    for skipped in range(3):
        before = -(-skipped * 8 // 6)  # characters that depend on what precedes it
        after = (skipped + len(raw)) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield encode(bytes(skipped) + raw)[before:after]


def places_of(secret: str, *folders: Path, messages: Iterable[bytes] = (), since: float = 0) -> Iterator[str]:
    """Yield the files below the folders that were written since a time, and the messages, that have a secret."""
    assert len(secret) >= 8, "a shorter secret is found by chance"
    forms = forms_of(secret)
    for folder in folders:
        assert folder.is_dir(), folder
        for file in sorted(folder.rglob("*")):
            if not file.is_symlink() and _is_written(file, since):
                yield from (f"{file}: {form!r}" for form in _found_in(file, forms))
    for message in messages:
        yield from (f"a message: {form!r}" for form in forms if form in message)


def _is_written(file: Path, since: float) -> bool:
    """Return whether a file has content that may be newer; those that Kafka reserves for indexes have none."""
    try:
        facts = file.stat()
    except FileNotFoundError:  # removed meanwhile
        return False
    is_reserved = facts.st_blocks == 0 and facts.st_size > 4096
    return stat.S_ISREG(facts.st_mode) and not is_reserved and facts.st_mtime >= since


def _found_in(file: Path, forms: frozenset[bytes]) -> list[bytes]:
    try:
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return [form for form in forms if content.find(form) >= 0]
    except (FileNotFoundError, ValueError):  # removed meanwhile; empty
        return []


def assert_absent(secret: str, *folders: Path, messages: Iterable[bytes] = (), since: float = 0) -> None:
    """Assert that no file below the folders that was written since a time, and no message, has a secret.

    Kafka's files have the messages of our producers as they are: they do not compress.
    """
    found = list(places_of(secret, *folders, messages=messages, since=since))
    assert found == [], f"{len(found)} places have the secret: {found[:10]}"
