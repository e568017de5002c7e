"""Connections to the node's Kafka, Redis and bucket, built from the settings and the files that the settings name."""

from pathlib import Path

from odf_common.adapters.kafka.cluster import BROKER_DEFAULT, KafkaCluster, Sasl, TopicPolicy
from odf_common.adapters.local.secrets import REDIS_SECRET, read_secret, secret_file
from odf_common.adapters.local.stores import LocalBlobStore, LocalRefStore
from odf_common.adapters.networks import Networks
from odf_common.adapters.redis import RedisConnection
from odf_common.adapters.s3.location import AWS, S3Access, S3Location
from odf_common.adapters.socket_users import users_of
from odf_common.adapters.tls import ClientTls
from odf_common.ports.store import BlobStore, RefStore
from odf_common.service.settings import Settings


def kafka_cluster(settings: Settings) -> KafkaCluster:
    """Return the Kafka cluster at the configured address.

    Raises `Unavailable` if no address is configured, `InvalidInput` if a configured file cannot be used.
    """
    return KafkaCluster(
        settings.required("kafka"),
        tls=_kafka_tls(settings),
        sasl=_sasl(settings),
        topics=topic_policy(settings),
    )


def topic_policy(settings: Settings) -> TopicPolicy:
    """Return the policy for the node's topics: whether the node creates them, and with how many replicas."""
    return TopicPolicy(
        is_ours=settings.kafka_manage_topics,
        replication_factor=settings.kafka_replication_factor or BROKER_DEFAULT,
        min_insync_replicas=settings.kafka_min_insync_replicas,
    )


def redis_connection(settings: Settings) -> RedisConnection:
    """Return a connection to Redis, which is opened on first use; raises the same errors as `kafka_cluster`.

    The password of the embedded Redis is sent only to a server that runs as the user of the node.
    """
    address, file = settings.required("redis"), settings.redis_password_file
    has_tls = address.startswith("rediss://")
    tls = ClientTls(
        ca_file=settings.redis_ca_file,
        certificate_file=settings.redis_certificate_file,
        key_file=settings.redis_key_file,
    )
    return RedisConnection(
        address,
        password=_secret(file),
        tls=tls if has_tls else None,
        users=users_of(file) if file and file == secret_file(settings.home, REDIS_SECRET) else None,
        prefix=settings.kafka_prefix,
    )


def s3_access(settings: Settings, location: S3Location) -> S3Access:
    """Return the access to a bucket at `location`; it has credentials only if the settings trust its server.

    Trusted are the server in the URL of the node's store and `ODF_S3_ENDPOINT`; if neither is set, AWS. Other servers
    are accessed anonymously.
    """
    store = settings.store.endpoint if settings.store else None
    trusted = {store} if store and settings.s3_endpoint == AWS else {store, settings.s3_endpoint}
    if (location.endpoint or settings.s3_endpoint) not in trusted:
        return S3Access(addressing=settings.s3_addressing)
    return S3Access(
        endpoint=settings.s3_endpoint,
        region=settings.s3_region,
        addressing=settings.s3_addressing,
        access_key=settings.s3_access_key,
        secret_key=settings.s3_secret_key,
        session_token=settings.s3_session_token,
        credentials_file=settings.s3_credentials_file,
    )


def trusted_networks(settings: Settings) -> Networks:
    """Return the networks that hosts in URLs from other parties may be in, in addition to public addresses."""
    return Networks.parse(settings.fetch_networks)


def stores(settings: Settings) -> tuple[BlobStore, RefStore]:
    """Return the stores of objects and references: in the home, or in the bucket with a cache in the home."""
    local = LocalBlobStore(settings.home)
    if settings.store is None:
        return local, LocalRefStore(settings.home)
    # The SDK takes long to import, and most nodes have no bucket.
    from odf_common.adapters.s3.bucket import Bucket  # noqa: PLC0415
    from odf_common.adapters.s3.bucket_stores import S3BlobStore, S3RefStore  # noqa: PLC0415
    from odf_common.adapters.s3.cache import ObjectCache  # noqa: PLC0415

    bucket = Bucket(settings.store, s3_access(settings, settings.store))
    cache = ObjectCache(settings.home / "cache", settings.store_cache_max_bytes)
    blobs = S3BlobStore(bucket, local=local, cache=cache, gives_urls=settings.s3_direct_downloads)
    return blobs, S3RefStore(bucket)


def _kafka_tls(settings: Settings) -> ClientTls | None:
    if not settings.kafka_security_protocol.endswith("ssl"):
        return None
    tls = ClientTls(
        ca_file=settings.kafka_ca_file,
        certificate_file=settings.kafka_certificate_file,
        key_file=settings.kafka_key_file,
        key_password=_secret(settings.kafka_key_password_file),
        checks_hostname=settings.kafka_check_hostname,
    )
    tls.context()  # names a file that cannot be used; librdkafka's errors do not
    return tls


def _sasl(settings: Settings) -> Sasl | None:
    if not settings.kafka_security_protocol.startswith("sasl"):
        return None
    return Sasl(
        mechanism=(settings.kafka_sasl_mechanism or "").upper(),
        username=settings.kafka_username or "",
        password=_secret(settings.kafka_password_file) or "",
        token_url=settings.kafka_token_url,
        token_scope=settings.kafka_token_scope,
    )


def _secret(file: Path | None) -> str | None:
    return None if file is None else read_secret(file)
