"""The keys that encrypt secrets of resources: in `$ODF_HOME/keys/resources.jwks`, or in a file of the operator.

The node creates the file in its home, with mode 0600. It never creates the operator's file: if that is missing, a new
key would encrypt secrets, and no other machine would have the key.
"""

from pathlib import Path
from typing import Final

from odf_common.adapters.local import durable
from odf_common.adapters.local.faults import open_file, translating_os_errors
from odf_common.errors import InvalidInput, Unavailable
from odf_common.resources.secret_keys import SecretKeys

FILE: Final = "resources.jwks"  # never a dataset's key: those begin with fed01
MAX_BYTES: Final = 1 << 20
_LOCK: Final = ".lock"


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
    load_secret_keys(home, configured)
    file = configured or home / "keys" / FILE
    with durable.lock_file(file.with_name(file.name + _LOCK)):
        keys = _read(file).rotated()
        durable.write(file, keys.text().encode(), mode=durable.PRIVATE)
    return keys


def _read(file: Path) -> SecretKeys:
    try:
        with open_file(file) as opened:
            text = opened.read(MAX_BYTES).decode()
    except FileNotFoundError as error:
        raise NoSecretKeys(what=str(file)) from error
    except UnicodeDecodeError:
        text = ""  # its error would quote a key
    try:
        return SecretKeys.parse(text)
    except InvalidInput as error:
        raise InvalidInput(text=error.text, where=str(file)) from error
