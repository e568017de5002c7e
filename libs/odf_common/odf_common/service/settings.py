"""All settings, read once from the environment (12-factor); no other module reads `ODF_…` variables.

Each field is one variable: `session_timeout_ms` is `ODF_SESSION_TIMEOUT_MS`. All errors are reported together.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Self

from odf_common.adapters.s3.location import AWS, S3Location
from odf_common.errors import InvalidInput, Unavailable, nearest
from odf_common.metadata.scalars import CLOCK_TOLERANCE_MS
from odf_common.resources.secret_text import MASK, without_password
from odf_common.service.setting_values import (
    address,
    addresses,
    endpoint,
    folder,
    host,
    http_url,
    networks,
    number,
    one_of,
    postgres_url,
    prefix,
    public_url,
    redis_address,
    s3_location,
    spark_master,
    switch,
)

VARIABLE_PREFIX: Final = "ODF_"
MIB: Final = 1024 * 1024
# Variables of the compose file, and the name that a supervised part gets.
NO_SETTINGS: Final = ("ODF_COMMON_ENV_FILE", "ODF_ENV_FILE", "ODF_PUBLISH", "ODF_ENGINE_MEMORY", "ODF_PART")
LEVELS: Final = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A condition on other settings without which a setting has no effect."""

    text: str
    is_met: Callable[["Settings"], bool]


_KAFKA: Final = Condition(text="ODF_KAFKA", is_met=lambda it: it.kafka is not None)
_KAFKA_TLS: Final = Condition(
    text="ODF_KAFKA_SECURITY_PROTOCOL=ssl or sasl_ssl",
    is_met=lambda it: it.kafka_security_protocol.endswith("ssl"),
)
_KAFKA_CERTIFICATE: Final = Condition(
    text="ODF_KAFKA_CERTIFICATE_FILE", is_met=lambda it: it.kafka_certificate_file is not None
)
_SASL: Final = Condition(
    text="ODF_KAFKA_SECURITY_PROTOCOL=sasl_ssl or sasl_plaintext",
    is_met=lambda it: it.kafka_security_protocol.startswith("sasl"),
)
_OAUTHBEARER: Final = Condition(
    text="ODF_KAFKA_SASL_MECHANISM=oauthbearer", is_met=lambda it: it.kafka_sasl_mechanism == "oauthbearer"
)
GRPC_TLS: Final = Condition(
    text="ODF_GRPC_CERTIFICATE_FILE", is_met=lambda it: it.grpc_certificate_file is not None
)
HTTP_TLS: Final = Condition(
    text="ODF_HTTP_CERTIFICATE_FILE", is_met=lambda it: it.http_certificate_file is not None
)
METRICS_TLS_AND_TOKEN: Final = Condition(
    text="ODF_HTTP_CERTIFICATE_FILE and ODF_METRICS_TOKEN_FILE",
    is_met=lambda it: HTTP_TLS.is_met(it) and it.metrics_token_file is not None,
)
_REDIS: Final = Condition(text="ODF_REDIS", is_met=lambda it: it.redis is not None)
_REDIS_TLS: Final = Condition(
    text="ODF_REDIS=rediss://…", is_met=lambda it: (it.redis or "").startswith("rediss://")
)
_REDIS_CERTIFICATE: Final = Condition(
    text="ODF_REDIS_CERTIFICATE_FILE", is_met=lambda it: it.redis_certificate_file is not None
)
_S3_KEY: Final = Condition(text="ODF_S3_ACCESS_KEY", is_met=lambda it: it.s3_access_key is not None)


# Any: each field states its own type, and its parser returns that.
def _option(
    parse: Callable[[str], object],
    default: object,
    about: str,
    *,
    needs: Condition | None = None,
    is_required: bool = False,
    is_secret: bool = False,
) -> Any:  # noqa: ANN401
    """Return a field for a setting; `is_required` applies if the condition `needs` is met; secrets are masked."""
    metadata = {
        "parse": parse, "about": about, "needs": needs, "is_required": is_required, "is_secret": is_secret
    }  # fmt: skip
    return field(default=default, repr=not is_secret, metadata=metadata)


SINGLE_TENANT, MULTI_TENANT = "single", "multi"
TENANCY_FILE: Final = "tenancy"  # of a home that a multi-tenant node has used
ENGINE: Final = "127.0.0.1:5544"  # the specification's port; the embedded node chooses a free one


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The configuration of a process; an address that is None is not configured."""

    home: Path = field(metadata={"parse": folder, "about": "the node's data (default ./.odf)"})
    store: S3Location | None = _option(
        s3_location,
        None,
        "where objects and references are: s3://bucket[/prefix] or s3+http[s]://host[:port]/bucket[/prefix]; "
        "by default in the home",
    )
    store_cache_max_bytes: int = _option(
        number(MIB, 1 << 50), 10240 * MIB, "size from which copies of objects are removed from the home"
    )
    s3_endpoint: str = _option(endpoint, AWS, "http[s]://host[:port] of buckets whose URL names none")
    s3_region: str | None = _option(str, None, "region of buckets; asked of the server if it is not set")
    s3_addressing: str = _option(
        one_of("auto", "path", "virtual"),
        "auto",
        "how a bucket is named: in the path, in the host's name (virtual), or by what the endpoint expects (auto)",
    )
    s3_access_key: str | None = _option(str, None, "access key; without one and without a file, anonymous")
    s3_secret_key: str | None = _option(
        str, None, "secret key of the access key", needs=_S3_KEY, is_required=True, is_secret=True
    )
    s3_session_token: str | None = _option(
        str, None, "session token of temporary credentials", needs=_S3_KEY, is_secret=True
    )
    s3_credentials_file: Path | None = _option(
        folder, None, "file with credentials in AWS's format, profile `default`; read again for each request"
    )
    s3_direct_downloads: bool = _option(
        switch,
        default=False,
        about="give nodes that pull by the Smart Transfer Protocol presigned URLs of the bucket, which they must reach",
    )
    kafka: str | None = _option(addresses, None, "Kafka bootstrap servers, host:port[,…]")
    kafka_prefix: str = _option(
        prefix,
        "",
        "prefix of all names of topics and groups, and of keys in Redis; nodes that share either need different ones",
    )
    kafka_security_protocol: str = _option(
        one_of("plaintext", "ssl", "sasl_plaintext", "sasl_ssl"),
        "plaintext",
        "how to connect to ODF_KAFKA: plaintext, ssl, sasl_plaintext or sasl_ssl",
        needs=_KAFKA,
    )
    kafka_ca_file: Path | None = _option(
        folder, None, "CA certificates of the brokers in PEM (default: the system's)", needs=_KAFKA_TLS
    )
    kafka_certificate_file: Path | None = _option(
        folder, None, "certificate to present to the brokers, in PEM", needs=_KAFKA_TLS
    )
    kafka_key_file: Path | None = _option(
        folder, None, "private key of that certificate, in PEM", needs=_KAFKA_CERTIFICATE, is_required=True
    )
    kafka_key_password_file: Path | None = _option(
        folder, None, "file with the password of that private key", needs=_KAFKA_CERTIFICATE
    )
    kafka_check_hostname: bool = _option(
        switch, default=True, about="require that a broker's certificate names its host", needs=_KAFKA_TLS
    )
    kafka_sasl_mechanism: str | None = _option(
        one_of("plain", "scram-sha-256", "scram-sha-512", "oauthbearer"),
        None,
        "plain, scram-sha-256, scram-sha-512 or oauthbearer",
        needs=_SASL,
        is_required=True,
    )
    kafka_username: str | None = _option(
        str, None, "SASL user name; the client id with oauthbearer", needs=_SASL, is_required=True
    )
    kafka_password_file: Path | None = _option(
        folder,
        None,
        "file with the SASL password; the client secret with oauthbearer",
        needs=_SASL,
        is_required=True,
    )
    kafka_token_url: str | None = _option(
        http_url,
        None,
        "token endpoint of oauthbearer, asked with the client credentials grant",
        needs=_OAUTHBEARER,
        is_required=True,
    )
    kafka_token_scope: str | None = _option(
        str, None, "scope to ask the token endpoint for", needs=_OAUTHBEARER
    )
    kafka_manage_topics: bool = _option(
        switch,
        default=True,
        about="create and delete the node's topics; if 0, an administrator does, as `odf topics` lists them",
        needs=_KAFKA,
    )
    kafka_replication_factor: int | None = _option(
        number(1, 32767),
        None,
        "replicas of topics that the node creates (default: the broker's)",
        needs=_KAFKA,
    )
    kafka_min_insync_replicas: int | None = _option(
        number(1, 32767),
        None,
        "min.insync.replicas of topics that the node creates (default: the broker's)",
        needs=_KAFKA,
    )
    redis: str | None = _option(redis_address, None, "Redis, host:port, redis://… or rediss://… (TLS)")
    redis_password_file: Path | None = _option(folder, None, "file with the password of Redis", needs=_REDIS)
    redis_ca_file: Path | None = _option(
        folder, None, "CA certificates of Redis in PEM (default: the system's)", needs=_REDIS_TLS
    )
    redis_certificate_file: Path | None = _option(
        folder, None, "certificate to present to Redis, in PEM", needs=_REDIS_TLS
    )
    redis_key_file: Path | None = _option(
        folder, None, "private key of that certificate, in PEM", needs=_REDIS_CERTIFICATE, is_required=True
    )
    resources: str | None = _option(
        postgres_url,
        None,
        "PostgreSQL database of resources, postgresql://user:password@host[:port]/database[?options of libpq]; by "
        "default resources.db in the home",
    )
    engine: str | None = _option(
        address, None, "gRPC address of the engine; services default to 127.0.0.1:5544"
    )
    coordinator_grpc: str | None = _option(address, None, "gRPC address of the coordinator")
    ingest_grpc: str | None = _option(address, None, "gRPC address of ingest")
    verifier_grpc: str | None = _option(address, None, "gRPC address of the verifier")
    sync_grpc: str | None = _option(address, None, "gRPC address of sync")
    sync_http: str | None = _option(address, None, "HTTP address that serves datasets")
    public_url: str | None = _option(
        public_url, None, "http[s]://host[:port] by which others reach ODF_SYNC_HTTP, such as that of a proxy"
    )
    http_trusted_proxies: tuple[str, ...] = _option(
        networks,
        (),
        "networks of proxies, such as 10.0.0.2[,…]: their X-Forwarded-For names the client, for limits and the audit, "
        "and their requests never count as those of local programs",
    )
    http_header_timeout_ms: int = _option(
        number(100, 600_000), 10_000, "time in which a request's headers must arrive"
    )
    http_requests_per_second: int = _option(
        number(0, 1_000_000),
        1000,
        "requests of one account or address, after a burst of five seconds'; 0: no limit",
    )
    http_ingest: str = _option(
        one_of("loopback", "anywhere", "off"),
        "loopback",
        "who may push over HTTP without a token: programs of the node's user on this machine (loopback), anywhere, or "
        "off, so that these programs also need one to read private datasets; always off on a multi-tenant node",
    )
    tenancy: str = _option(
        one_of(SINGLE_TENANT, MULTI_TENANT),
        SINGLE_TENANT,
        "single: names without accounts, public unless made private; multi: account/name, private unless made public",
    )
    http_ingest_max_bytes: int = _option(
        number(1024, 65536 * MIB), 256 * MIB, "maximum bytes of one push over HTTP, decompressed"
    )
    grpc_certificate_file: Path | None = _option(
        folder,
        None,
        "certificate for mutual TLS between services and with `odf`, in PEM; it names the hosts of their addresses",
    )
    grpc_key_file: Path | None = _option(
        folder, None, "private key of that certificate, in PEM", needs=GRPC_TLS, is_required=True
    )
    grpc_ca_file: Path | None = _option(
        folder,
        None,
        "CA certificates, in PEM, that sign the certificates of all services and of `odf`",
        needs=GRPC_TLS,
        is_required=True,
    )
    grpc_secret_file: Path | None = _option(
        folder,
        None,
        "file with the secret of gRPC calls on the loopback address without TLS (default: secrets/grpc in the home)",
    )
    engine_secret_file: Path | None = _option(
        folder, None, "the same for calls to the engine (default: secrets/engine in the home)"
    )
    resource_keys_file: Path | None = _option(
        folder,
        None,
        "JWK set with the keys for secrets of resources (default: keys/resources.jwks in the home, created if needed)",
    )
    http_certificate_file: Path | None = _option(
        folder,
        None,
        "certificate and chain, in PEM, for https at ODF_SYNC_HTTP, and at ODF_METRICS_HOST unless that is loopback",
    )
    http_key_file: Path | None = _option(
        folder, None, "private key of that certificate, in PEM", needs=HTTP_TLS, is_required=True
    )
    grpc_listen_host: str | None = _option(
        host, None, "host that gRPC servers listen on instead of their addresses' own: 0.0.0.0 in containers"
    )
    listen_unprotected: bool = _option(
        switch,
        default=False,
        about="listen beyond the loopback address also without TLS: anyone who reaches the addresses controls the node",
    )
    views_http: str | None = _option(address, None, "HTTP address of the views: heads, lag, throughput")
    metrics_port: int | None = _option(number(1, 65535), None, "Prometheus port of this process")
    metrics_host: str = _option(
        host, "127.0.0.1", "address of the Prometheus port; https and a token unless it is loopback"
    )
    metrics_token_file: Path | None = _option(
        folder, None, "file with the token that a Prometheus sends, as `Authorization: Bearer`"
    )
    instance: str | None = _option(
        str, None, "stable name of this instance, so that a restart triggers no rebalance"
    )
    block_version: int = _option(number(2, 3), 3, "manifest version of new blocks: 2 or 3")
    sign_blocks: bool = _option(switch, default=False, about="sign each block with the node's key")
    signed_columns: bool = _option(switch, default=False, about="write offset and op as int64 and int32")
    slice_max_bytes: int = _option(
        number(1024, 2048 * MIB), 16 * MIB, "maximum bytes of raw messages per slice"
    )
    slice_max_delay_ms: int = _option(
        number(0, 3_600_000), 100, "delay of records while a slice fills; five times as long with a backlog"
    )
    clock_tolerance_ms: int = _option(
        number(1000, 3_600_000),
        CLOCK_TOLERANCE_MS,
        "how far a block may be in the future: by that much the clocks of machines that exchange blocks may differ",
    )
    lock_ttl_ms: int = _option(
        number(100, 3_600_000), 10_000, "time until the lock of a dead process expires"
    )
    session_timeout_ms: int = _option(
        number(1000, 300_000), 6000, "time without heartbeat until a consumer is dead"
    )
    log_level: str = _option(one_of(*LEVELS), "info", "debug, info, warning or error")
    log_max_bytes: int = _option(
        number(64 * 1024, 1 << 40),
        16 * MIB,
        "size from which a log of `odf up` is rotated while its part runs; three older ones are kept of each",
    )
    # One thread per concurrent request of the engine: each is one task, and none waits behind a long one.
    spark_master: str = _option(
        spark_master, "local[12]", "Spark master: local[N] for N threads, local[*] for one per core"
    )
    query_timeout_ms: int = _option(
        number(1, 86_400_000), 600_000, "time limit of `odf sql`, and of each transform that is replayed"
    )
    query_max_bytes: int = _option(
        number(MIB, 1 << 40), 1024 * MIB, "maximum bytes of an ad-hoc result, in Arrow's format"
    )
    engine_spare: bool = _option(
        switch, default=False, about="keep a warm standby engine that takes over at once"
    )
    engine_spare_after_ms: int = _option(
        number(0, 3_600_000), 30_000, "idle time of the engine before its standby is started"
    )
    fetch_imported: bool = _option(
        switch,
        default=False,
        about="let polling sources of datasets that were created on other nodes run commands and read files",
    )
    fetch_max_bytes: int = _option(
        number(1, 1 << 50), 4096 * MIB, "maximum bytes of a file that a polling source fetches or unpacks"
    )
    fetch_networks: tuple[str, ...] = _option(
        networks,
        (),
        "networks that polling sources, webhooks and addresses given by other nodes may reach in addition to public "
        "addresses, such as 127.0.0.0/8[,…]",
    )
    verify_on_commit: bool = _option(switch, default=True, about="verify every commit as it happens")

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Return the settings that the environment variables define; raises one `InvalidInput` with all errors."""
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
        settings = cls(**values)  # type: ignore[arg-type]
        faults += [] if faults else _contradictions(settings)
        if faults:
            raise InvalidInput(text="; ".join(faults), where="settings")
        return settings

    def shown(self) -> dict[str, object]:
        """Return variable names and values, with secrets masked."""
        return {variable(option): _mask(option, getattr(self, option.name)) for option in fields(self)}

    @property
    def http_url(self) -> str | None:
        """Return the URL at which this node serves its datasets over HTTP; None if it is not configured."""
        scheme = "https" if self.http_certificate_file else "http"
        return None if self.sync_http is None else f"{scheme}://{self.sync_http}"

    def required(self, name: str) -> str:
        """Return a required address; raises `Unavailable` if it is not configured."""
        value: str | None = getattr(self, name)
        if value is None:
            raise Unavailable(what=name, why=f"{VARIABLE_PREFIX}{name.upper()} is not set")
        return value


def variable(option: Field[Any]) -> str:
    """Return the name of the environment variable of a field."""
    return VARIABLE_PREFIX + option.name.upper()


def describe_variables() -> tuple[tuple[str, str, str], ...]:
    """Return the name, default and meaning of each variable."""
    return tuple(
        (
            variable(option),
            "" if option.default in (MISSING, None) else str(_writable(option.default)),
            option.metadata["about"],
        )
        for option in fields(Settings)
    )


def _contradictions(settings: Settings) -> Iterator[str]:
    """Yield an error for each setting that needs another one, or that another one needs."""
    for option in fields(Settings):
        condition: Condition | None = option.metadata.get("needs")
        if condition is None:
            continue
        is_set = getattr(settings, option.name) != option.default
        if is_set and not condition.is_met(settings):
            yield f"{variable(option)} needs {condition.text}"
        if option.metadata["is_required"] and condition.is_met(settings) and not is_set:
            yield f"{condition.text} needs {variable(option)}"
    replicas, least = settings.kafka_replication_factor, settings.kafka_min_insync_replicas
    if replicas is not None and least is not None and least > replicas:
        yield (
            f"ODF_KAFKA_MIN_INSYNC_REPLICAS={least} is more than ODF_KAFKA_REPLICATION_FACTOR={replicas}: no topic "
            "could be written"
        )


def _writable(value: object) -> object:
    """Return a value as it is written in an environment variable: 1 or 0 for a switch."""
    return int(value) if isinstance(value, bool) else value


def _mask(option: Field[Any], value: object) -> object:
    match value:
        case None | int():
            return _writable(value)
        case _ if option.metadata.get("is_secret"):
            return MASK
        case tuple():
            return ",".join(value)
        case _:
            return without_password(str(value))


def unknown_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a warning for each environment variable that starts with `ODF_` but is not a known setting."""
    # Compared without the prefix, in which all are alike.
    names = [option.name.upper() for option in fields(Settings)]
    variables = (
        name.removeprefix(VARIABLE_PREFIX)
        for name in environ
        if name.startswith(VARIABLE_PREFIX) and name not in NO_SETTINGS
    )
    return tuple(
        f"{VARIABLE_PREFIX}{name} is not a setting of the node"
        + (f"; did you mean {VARIABLE_PREFIX}{meant}?" if meant else "")
        for name, meant in ((name, nearest(name, names)) for name in sorted(variables) if name not in names)
    )


def load() -> Settings:
    """Return the settings from the environment of this process."""
    return Settings.from_env(os.environ)


def child_environment() -> Mapping[str, str]:
    """Return a copy of this process's environment, for its child processes."""
    return dict(os.environ)
