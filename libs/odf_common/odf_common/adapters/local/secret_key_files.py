"""The keys for secrets of resources, in a file: `$ODF_HOME/keys/resources.jwks`, or one that an operator provides.

The node creates the one in its home, mode 0600. It creates no other one: where an operator's file is missing, secrets
would be encrypted by keys that are nowhere else.
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
    """The file of ODF_RESOURCE_KEYS_FILE does not exist; no secret opens with other keys."""

    MESSAGE = "the keys for secrets of resources are missing: {what} does not exist"
    ADVICE = "mount or restore the file that ODF_RESOURCE_KEYS_FILE names"


@translating_os_errors
def load_secret_keys(home: Path, configured: Path | None = None) -> SecretKeys:
    """Return the keys; those in the home are created at the first call, once.

    Raises `NoSecretKeys` for a configured file that does not exist, and `InvalidInput` for another content.
    """
    file = configured or home / "keys" / FILE
    if configured is None and not durable.exists(file):
        durable.make_folder(file.parent, mode=durable.PRIVATE_FOLDER)
        durable.create(file, SecretKeys.new().text().encode(), mode=durable.PRIVATE)
    return _read(file)


@translating_os_errors
def rotate_secret_keys(home: Path, configured: Path | None = None) -> SecretKeys:
    """Add new keys, which are current from then on, and return all; raises as `load_secret_keys`.

    Stored secrets are encrypted by the older keys until each is rewrapped. A file that several machines have a copy of
    is rotated on one of them, and copied to the others before that uses it.
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
