"""Environment variables of processes that run users' SQL, and of programs that are not our code.

Only the variables listed here are passed on. Such a process therefore starts without any secrets that the environment
of `odf up` or of a container contains, whatever their names.
"""

from collections.abc import Mapping
from typing import Final

# Where programs, libraries and temporary files are; the language and the time zone.
# A name that ends in _ stands for all that begin so.
_SYSTEM: Final = ("PATH", "LD_LIBRARY_PATH", "JAVA_HOME", "TMPDIR", "TZ", "TERM", "LANG", "LANGUAGE", "LC_")
# By these the processes that a killed node has left behind are found.
_MARKS: Final = ("ODF_HOME", "ODF_PART")
# Its settings name files of certificates and keys, and have no secret themselves.
_ENGINE: Final = (
    "PYTHONBREAKPOINT",
    "PYTHONPATH",
    "PYTHONUNBUFFERED",
    "ODF_ENGINE",
    "ODF_ENGINE_SECRET_FILE",
    "ODF_ENGINE_SPARE",
    "ODF_ENGINE_SPARE_AFTER_MS",
    "ODF_GRPC_CA_FILE",
    "ODF_GRPC_CERTIFICATE_FILE",
    "ODF_GRPC_KEY_FILE",
    "ODF_GRPC_LISTEN_HOST",
    "ODF_HTTP_CERTIFICATE_FILE",
    "ODF_HTTP_KEY_FILE",
    "ODF_INSTANCE",
    "ODF_LISTEN_UNPROTECTED",
    "ODF_LOG_LEVEL",
    "ODF_METRICS_HOST",
    "ODF_METRICS_PORT",
    "ODF_METRICS_TOKEN_FILE",
    "ODF_QUERY_MAX_BYTES",
    "ODF_QUERY_TIMEOUT_MS",
    "ODF_SIGNED_COLUMNS",
    "ODF_SPARK_MASTER",
)


def program_environment(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment variables for a program that reads no settings of the node, such as a JVM or Redis."""
    return _select(environment, (*_SYSTEM, *_MARKS))


def engine_environment(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment variables for the engine's Python process."""
    return _select(environment, (*_SYSTEM, *_MARKS, *_ENGINE))


def _select(environment: Mapping[str, str], names: tuple[str, ...]) -> Mapping[str, str]:
    prefixes = tuple(name for name in names if name.endswith("_"))
    return {name: value for name, value in environment.items() if name in names or name.startswith(prefixes)}
