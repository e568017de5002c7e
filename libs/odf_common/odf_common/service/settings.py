"""All settings, read once from the environment (12-factor); no other module reads `ODF_…` variables.

Each field is one variable: `session_timeout_ms` is `ODF_SESSION_TIMEOUT_MS`. All errors are reported together.
"""

import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Self

from odf_common.errors import InvalidInput, Unavailable

PREFIX: Final = "ODF_"
MIB: Final = 1024 * 1024
LEVELS: Final = ("debug", "info", "warning", "error")
_ADDRESS: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})", re.ASCII)
_TOPIC_PREFIX: Final = re.compile(r"[A-Za-z0-9._-]{0,64}", re.ASCII)
_LOCAL_SPARK: Final = re.compile(r"local\[([1-9]\d{0,3}|\*)\]", re.ASCII)
_PASSWORD: Final = re.compile(r"(?<=:)[^:@/]+(?=@)")
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off", ""})


def _address(text: str) -> str:
    found = _ADDRESS.fullmatch(text)
    if found is None or not 0 < int(found[1]) < 65536:
        raise ValueError(f"expected host:port, got {text!r}")
    return text


def _addresses(text: str) -> str:
    return ",".join(_address(part.strip()) for part in text.split(","))


def _prefix(text: str) -> str:
    if _TOPIC_PREFIX.fullmatch(text) is None:
        raise ValueError(f"expected at most 64 letters, digits, dots, dashes and underscores, got {text!r}")
    return text


def _redis(text: str) -> str:
    return text if text.startswith(("redis://", "rediss://", "unix://")) else _address(text)


def _spark_master(text: str) -> str:
    if _LOCAL_SPARK.fullmatch(text) is None:
        raise ValueError(
            f"expected local[N] or local[*], as the engine runs Spark in its own process, got {text!r}"
        )
    return text


def _networks(text: str) -> tuple[str, ...]:
    return tuple(str(ipaddress.ip_network(part.strip())) for part in text.split(","))


def _switch(text: str) -> bool:
    if text.lower() not in _TRUE | _FALSE:
        raise ValueError(f"expected 1 or 0, got {text!r}")
    return text.lower() in _TRUE


def _number(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
            raise ValueError(f"expected an integer from {low} to {high}, got {text!r}")
        return int(text)

    return parse


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}, got {text!r}")
        return text.lower()

    return parse


def _folder(text: str) -> Path:
    return Path(text).expanduser().absolute()


# Any: each field states its own type, and its parser returns that.
def _option(parse: Callable[[str], object], default: object, about: str) -> Any:  # noqa: ANN401
    return field(default=default, metadata={"parse": parse, "about": about})


ENGINE: Final = "127.0.0.1:5544"  # the specification's port; the embedded node chooses a free one


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Process configuration; an address that is None is not configured."""

    home: Path = field(metadata={"parse": _folder, "about": "the node's data (default ./.odf)"})
    kafka: str | None = _option(_addresses, None, "Kafka bootstrap servers, host:port[,…]")
    kafka_prefix: str = _option(
        _prefix,
        "",
        "prefix of all topic and group names; nodes that share a Kafka need different ones",
    )
    redis: str | None = _option(_redis, None, "Redis, host:port or redis://…")
    engine: str | None = _option(
        _address, None, "gRPC address of the engine; services default to 127.0.0.1:5544"
    )
    coordinator_grpc: str | None = _option(_address, None, "gRPC address of the coordinator")
    ingest_grpc: str | None = _option(_address, None, "gRPC address of ingest")
    verifier_grpc: str | None = _option(_address, None, "gRPC address of the verifier")
    sync_grpc: str | None = _option(_address, None, "gRPC address of sync")
    sync_http: str | None = _option(_address, None, "HTTP address that serves datasets")
    http_ingest: str = _option(
        _one_of("loopback", "anywhere", "off"),
        "loopback",
        "who may push over HTTP: programs on this machine (loopback), anywhere, or off; there is no access control yet",
    )
    http_ingest_max_bytes: int = _option(
        _number(1024, 65536 * MIB), 256 * MIB, "maximum bytes of one push over HTTP, decompressed"
    )
    views_http: str | None = _option(_address, None, "HTTP address of the views: heads, lag, throughput")
    metrics_port: int | None = _option(_number(1, 65535), None, "Prometheus port of this process")
    instance: str | None = _option(
        str, None, "stable name of this instance, so that a restart triggers no rebalance"
    )
    block_version: int = _option(_number(2, 3), 3, "manifest version of new blocks: 2 or 3")
    sign_blocks: bool = _option(_switch, default=False, about="sign each block with the node's key")
    signed_columns: bool = _option(_switch, default=False, about="write offset and op as int64 and int32")
    slice_max_bytes: int = _option(
        _number(1024, 2048 * MIB), 16 * MIB, "maximum bytes of raw messages per slice"
    )
    slice_max_delay_ms: int = _option(
        _number(0, 3_600_000), 100, "delay of records while a slice fills; five times as long with a backlog"
    )
    lock_ttl_ms: int = _option(
        _number(100, 3_600_000), 10_000, "time until the lock of a dead process expires"
    )
    session_timeout_ms: int = _option(
        _number(1000, 300_000), 6000, "time without heartbeat until a consumer is dead"
    )
    log_level: str = _option(_one_of(*LEVELS), "info", "debug, info, warning or error")
    # One thread per concurrent request of the engine: each is one task, and none waits behind a long one.
    spark_master: str = _option(
        _spark_master, "local[12]", "Spark master: local[N] for N threads, local[*] for one per core"
    )
    engine_spare: bool = _option(
        _switch, default=False, about="keep a warm standby engine that takes over at once"
    )
    engine_spare_after_ms: int = _option(
        _number(0, 3_600_000), 30_000, "idle time of the engine before its standby is started"
    )
    fetch_imported: bool = _option(
        _switch,
        default=False,
        about="let polling sources of datasets that were created on other nodes run commands and read files",
    )
    fetch_max_bytes: int = _option(
        _number(1, 1 << 50), 4096 * MIB, "maximum bytes of a file that a polling source fetches or unpacks"
    )
    fetch_networks: tuple[str, ...] = _option(
        _networks,
        (),
        "networks that polling sources may fetch from in addition to public addresses, such as 127.0.0.0/8[,…]",
    )
    verify_on_commit: bool = _option(_switch, default=True, about="verify every commit as it happens")

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Parse the variables; raises one `InvalidInput` with all errors."""
        values: dict[str, object] = {"home": Path.cwd() / ".odf"}
        faults: list[str] = []
        for option in fields(cls):
            name = variable(option)
            text = environ.get(name, "")
            if not text:
                continue
            try:
                values[option.name] = option.metadata["parse"](text)
            except ValueError as error:
                faults.append(f"{name}: {error}")
        if faults:
            raise InvalidInput(text="; ".join(faults), where="settings")
        return cls(**values)  # type: ignore[arg-type]

    def shown(self) -> dict[str, object]:
        """Return variable names and values, with secrets masked."""
        return {variable(option): _masked(getattr(self, option.name)) for option in fields(self)}

    def required(self, name: str) -> str:
        """Return a required address; raises `Unavailable` if it is not configured."""
        value: str | None = getattr(self, name)
        if value is None:
            raise Unavailable(what=name, why=f"{PREFIX}{name.upper()} is not set")
        return value


def variable(option: Field[Any]) -> str:
    """Return the name of the environment variable of a field."""
    return PREFIX + option.name.upper()


def described() -> tuple[tuple[str, str, str], ...]:
    """Return the name, default and meaning of each variable."""
    return tuple(
        (
            variable(option),
            "" if option.default in (MISSING, None) else str(option.default),
            option.metadata["about"],
        )
        for option in fields(Settings)
    )


def _masked(value: object) -> object:
    match value:
        case None | bool() | int():
            return value
        case tuple():
            return ",".join(value)
        case _:
            return _PASSWORD.sub("***", str(value))


def load() -> Settings:
    """Return the settings of this process."""
    return Settings.from_env(os.environ)


def child_environment() -> Mapping[str, str]:
    """Return the environment for child processes: this process's own."""
    return dict(os.environ)
