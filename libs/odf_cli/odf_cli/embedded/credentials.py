"""Credentials of the embedded Kafka and Redis: settings of the node's own clients, and property files for others.

All users of the machine can connect to the two servers, but only the node's user can read the secrets, which are in
`$ODF_HOME/secrets`.
"""

from dataclasses import replace
from pathlib import Path
from typing import Final

from odf_common.adapters.local.secrets import REDIS_SECRET, secret_file
from odf_common.service.settings import Settings

ADMIN: Final = "odf"  # Kafka's super user, as which the node's own clients connect
PRODUCER: Final = "producer"  # may write push topics
KAFKA_SECRETS: Final = {ADMIN: "kafka-admin", PRODUCER: "kafka-producer"}  # by user
MECHANISM: Final = "SCRAM-SHA-256"
LOGIN: Final = "org.apache.kafka.common.security.scram.ScramLoginModule required"
_CLIENT_PROPERTIES: Final = """\
# Written at each start of the node. librdkafka (confluent-kafka, kcat) takes all lines but sasl.jaas.config.
bootstrap.servers={address}
security.protocol=SASL_PLAINTEXT
sasl.mechanism={mechanism}
sasl.username={user}
sasl.password={password}
sasl.jaas.config={login} username="{user}" password="{password}";
"""


def with_kafka(settings: Settings, address: str) -> Settings:
    """Return the settings for the node's own clients of the embedded Kafka."""
    return replace(
        settings,
        kafka=address,
        kafka_security_protocol="sasl_plaintext",
        kafka_sasl_mechanism=MECHANISM.lower(),
        kafka_username=ADMIN,
        kafka_password_file=secret_file(settings.home, KAFKA_SECRETS[ADMIN]),
    )


def with_redis(settings: Settings, address: str) -> Settings:
    """Return the settings for the node's own clients of the embedded Redis."""
    return replace(settings, redis=address, redis_password_file=secret_file(settings.home, REDIS_SECRET))


def client_properties(home: Path, user: str) -> Path:
    """Return the path of the property file for clients with this user; it may not exist."""
    return secret_file(home, f"{KAFKA_SECRETS[user]}.properties")


def client_settings(address: str, user: str, password: str) -> str:
    """Return the content of a property file for clients with this user, as Kafka's tools read it."""
    return _CLIENT_PROPERTIES.format(
        address=address, mechanism=MECHANISM, user=user, password=password, login=LOGIN
    )
