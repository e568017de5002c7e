"""A Kafka broker as in a company: TLS with client certificates, and SASL with every mechanism that a node supports."""

import base64
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from odf_cli.embedded.parts.kafka_redis import kafka_part
from odf_cli.embedded.parts.tcp_ports import allocate
from odf_common.adapters.kafka.admin import KafkaTopics
from odf_common.adapters.kafka.cluster import KafkaCluster, Sasl
from odf_common.adapters.tls import ClientTls
from odf_common.errors import Unavailable
from odf_common.service.settings import child_environment
from odf_testing.black_hole import BlackHole
from odf_testing.certificates import self_signed

USER: Final = "odf"
PASSWORD: Final = "correct horse battery"
START_SECONDS: Final = 60.0
_JAAS: Final = (
    "listener.name.sasl_ssl.{0}.sasl.jaas.config=org.apache.kafka.common.security.{1} required{2};\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureKafka:
    """A running broker, and the certificate that broker, authority and client share."""

    bootstrap: str
    certificate: Path
    key: Path

    @property
    def tls(self) -> ClientTls:
        """Return the client's side of TLS."""
        return ClientTls(ca_file=self.certificate, certificate_file=self.certificate, key_file=self.key)

    def cluster(self, mechanism: str = "PLAIN", *, token_url: str | None = None) -> KafkaCluster:
        """Return the cluster with a user's credentials."""
        sasl = Sasl(mechanism=mechanism, username=USER, password=PASSWORD, token_url=token_url)
        return KafkaCluster(self.bootstrap, tls=self.tls, sasl=sasl)


@contextmanager
def secure_kafka(folder: Path) -> Iterator[SecureKafka]:
    """Run a broker while the block runs; its port has no other listener than SASL_SSL."""
    certificate, key = self_signed(folder)
    ports = allocate(folder, ("kafka-sasl", "kafka-controller"))
    (folder / "logs").mkdir()
    part = kafka_part(folder, ports, child_environment())
    properties = Path(part.command[-1])
    properties.write_text(_secured(properties.read_text(), certificate, key))
    _format(part.command, properties, users=("SCRAM-SHA-256", "SCRAM-SHA-512"))
    kafka = SecureKafka(bootstrap=f"127.0.0.1:{ports['kafka-sasl']}", certificate=certificate, key=key)
    log = folder / "logs" / "kafka.log"
    with log.open("ab") as sink, subprocess.Popen(part.command, stdout=sink, stderr=sink) as process:
        try:
            _await_answer(kafka.cluster(), log)
            yield kafka
        finally:
            process.kill()


@contextmanager
def kafka_behind(folder: Path, proxy: BlackHole) -> Iterator[KafkaCluster]:
    """Run a broker without users while the block runs, whose clients connect to a proxy of it."""
    ports = allocate(folder, ("kafka-sasl", "kafka-controller"))
    (folder / "logs").mkdir()
    part = kafka_part(folder, ports, child_environment())
    properties = Path(part.command[-1])
    own = f"PLAINTEXT://127.0.0.1:{ports['kafka-sasl']}"
    text = without_users(properties.read_text(), "PLAINTEXT")
    properties.write_text(
        text.replace(f"advertised.listeners={own}", f"advertised.listeners=PLAINTEXT://{proxy.address}")
    )
    _format(part.command, properties, users=())
    proxy.restore(ports["kafka-sasl"])
    cluster = KafkaCluster(proxy.address)
    log = folder / "logs" / "kafka.log"
    with log.open("ab") as sink, subprocess.Popen(part.command, stdout=sink, stderr=sink) as process:
        try:
            _await_answer(cluster, log)
            yield cluster
        finally:
            process.kill()


def without_users(properties: str, protocol: str) -> str:
    """Return the embedded broker's properties without its users, with this protocol in place of SASL_PLAINTEXT."""
    removed = ("authorizer.", "super.users", "sasl.", "listener.name.")
    text = "\n".join(line for line in properties.splitlines() if not line.startswith(removed))
    text = text.replace("PLAINTEXT:PLAINTEXT,", "", 1).replace(
        "CONTROLLER:SASL_PLAINTEXT", "CONTROLLER:plain"
    )
    return text.replace("SASL_PLAINTEXT", protocol).replace("CONTROLLER:plain", "CONTROLLER:PLAINTEXT")


def _secured(properties: str, certificate: Path, key: Path) -> str:
    """Return the embedded broker's properties with SASL_SSL as the only listener, and this test's users."""
    both = certificate.with_name("both.pem")
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    user = f' username="{USER}" password="{PASSWORD}"'
    return (
        without_users(properties, "SASL_SSL")
        + "\nssl.keystore.type=PEM\nssl.truststore.type=PEM\nlistener.name.sasl_ssl.ssl.client.auth=required\n"
        + f"ssl.keystore.location={both}\nssl.truststore.location={certificate}\n"
        + "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER\n"
        + "sasl.mechanism.inter.broker.protocol=PLAIN\n"
        + _JAAS.format("plain", "plain.PlainLoginModule", f'{user} user_{USER}="{PASSWORD}"')
        + _JAAS.format("scram-sha-256", "scram.ScramLoginModule", user)
        + _JAAS.format("scram-sha-512", "scram.ScramLoginModule", user)
        + _JAAS.format("oauthbearer", "oauthbearer.OAuthBearerLoginModule", "")
    )


def _format(command: tuple[str, ...], properties: Path, *, users: tuple[str, ...]) -> None:
    """Format the storage with a SCRAM user of each of these kinds."""
    scram = [f"{kind}=[name={USER},password={PASSWORD}]" for kind in users]
    tool = ("kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", str(properties))
    options = [word for user in scram for word in ("--add-scram", user)]
    done = subprocess.run([*command[:-2], *tool, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _await_answer(cluster: KafkaCluster, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            return KafkaTopics(cluster).require_answer(1.0)
        except Unavailable:
            assert time.monotonic() < deadline, log.read_text()[-4000:]


@contextmanager
def token_endpoint() -> Iterator[str]:
    """Serve tokens by the client credentials grant inside the block; the broker accepts them without a signature."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            login = base64.b64decode(self.headers.get("Authorization", "").removeprefix("Basic ")).decode()
            is_known = login == f"{USER}:{PASSWORD}"
            body = json.dumps({"access_token": _token(), "token_type": "Bearer", "expires_in": 3600}).encode()
            self.send_response(200 if is_known else 401)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body if is_known else b"{}")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/token"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _token() -> str:
    now = int(time.time())
    parts = ({"alg": "none"}, {"sub": USER, "iat": now, "exp": now + 3600, "scope": "kafka"})
    return (
        ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts)
        + "."
    )
