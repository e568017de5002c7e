"""The keys that encrypt secrets of resources: in `$ODF_HOME/keys/resources.jwks`, or in a file of the operator.

The node creates the file in its home, with mode 0600. It never creates the operator's file: if that is missing, a new
key would encrypt secrets, and no other machine would have the key.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from odf_common.adapters.local import durable
from odf_common.adapters.local.faults import open_file, translating_os_errors
from odf_common.errors import InvalidInput, Unavailable
from odf_common.resources.secret_keys import SecretKeys

FILE: Final = "resources.jwks"  # never a dataset's key: those begin with fed01
MAX_BYTES: Final = 1 << 20
_LOCK: Final = ".lock"
_PARSED: Final[dict[Path, tuple[tuple[int, ...], SecretKeys]]] = {}


class NoSecretKeys(Unavailable):
    """The file that ODF_RESOURCE_KEYS_FILE names does not exist; no other keys can decrypt the stored secrets."""

    MESSAGE = "the keys for secrets of resources are missing: {what} does not exist"
    ADVICE = "mount or restore the file that ODF_RESOURCE_KEYS_FILE names"


@translating_os_errors
def load_secret_keys(home: Path, configured: Path | None = None) -> SecretKeys:
    """Return the keys; without a configured file, the first call creates them in the home.

    Raises `NoSecretKeys` if a configured file does not exist, `InvalidInput` if the file does not contain keys.
    """
    file = configured or home / "keys" / FILE
    if configured is None and not durable.exists(file):
        durable.make_folder(file.parent, mode=durable.PRIVATE_FOLDER)
        durable.create(file, SecretKeys.new().text().encode(), mode=durable.PRIVATE)
    return _read(file)


@translating_os_errors
def rotate_secret_keys(home: Path, configured: Path | None = None) -> SecretKeys:
    """Add new keys, which encrypt from now on, and return all keys; raises the same errors as `load_secret_keys`.

    Stored secrets remain encrypted by older keys until they are rewrapped. If several machines have a copy of the file,
    rotate it on one machine, and copy it to the others before that machine uses the new keys.
    """
    return _replace(home, configured, SecretKeys.with_new_keys)


@translating_os_errors
def drop_former_keys(home: Path, configured: Path | None = None) -> SecretKeys:
    """Keep the current key of each type only, and return them; raises as `load_secret_keys`.

    What is encrypted by the others does not open any more.
    """
    return _replace(home, configured, SecretKeys.current)


@translating_os_errors
def add_secret_keys(home: Path, keys: SecretKeys, configured: Path | None = None) -> SecretKeys:
    """Add keys of a backup, which are current from then on, and return all; those that exist stay behind them."""
    file = configured or home / "keys" / FILE
    if configured is None and not durable.exists(file):
        durable.make_folder(file.parent, mode=durable.PRIVATE_FOLDER)
        durable.create(file, keys.text().encode(), mode=durable.PRIVATE)
    if _read(file).keys[: len(keys.keys)] == keys.keys:
        return _read(file)
    return _replace(home, configured, keys.before)


@contextmanager
def lock_secret_keys(home: Path, configured: Path | None = None) -> Iterator[SecretKeys]:
    """Yield the keys; no process replaces them meanwhile."""
    load_secret_keys(home, configured)
    file = configured or home / "keys" / FILE
    with durable.lock_file(file.with_name(file.name + _LOCK)):
        yield _read(file)


def _replace(home: Path, configured: Path | None, change: Callable[[SecretKeys], SecretKeys]) -> SecretKeys:
    file = configured or home / "keys" / FILE
    with lock_secret_keys(home, configured) as former:
        keys = change(former)
        durable.write(file, keys.text().encode(), mode=durable.PRIVATE)
    return keys


def _read(file: Path) -> SecretKeys:
    """Return the keys in a file; unless it was replaced since, those that were read from it before.

    To check a key of type RSA takes half a second.
    """
    version: tuple[int, ...] = ()
    try:
        with open_file(file) as opened:
            status = os.fstat(opened.fileno())
            version = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            former = _PARSED.get(file)
            if former is not None and former[0] == version:
                return former[1]
            text = opened.read(MAX_BYTES).decode()
    except FileNotFoundError as error:
        raise NoSecretKeys(what=str(file)) from error
    except UnicodeDecodeError:
        text = ""  # its error would quote a key
    try:
        keys = SecretKeys.parse(text)
    except InvalidInput as error:
        raise InvalidInput(text=error.text, where=str(file)) from error
    _PARSED[file] = (version, keys)
    return keys
