import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "libs/odf_common/pyproject.toml").read_text())["project"]
MODULES = {
    "argon2-cffi": "argon2",
    "protobuf": "google",
    "PyYAML": "yaml",
}  # where it is not the package's name
# Extension modules made by Cython share its runtime; pyarrow imports cloudpickle where another package brings it.
OWN = {
    "odf_common",
    "cython_runtime",
    "cloudpickle",
    *(MODULES.get(name, name) for name in PROJECT["dependencies"]),
}
LOADED = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*sys.modules)
"""


def pure_packages() -> list[str]:
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (pure,) = (rule for rule in rules if rule["name"].startswith("The pure part"))
    return [str(name) for name in pure["source_modules"]]


def modules_of(name: str) -> list[str]:
    found = import_module(name)
    inner = walk_packages(found.__path__, f"{name}.") if hasattr(found, "__path__") else ()
    return [name, *(module.name for module in inner)]


def loaded_by(modules: list[str]) -> set[str]:
    """Return the modules outside the standard library that a fresh interpreter has loaded after importing `modules`."""
    bare, loaded = (
        subprocess.run([sys.executable, "-c", LOADED, *names], capture_output=True, text=True, check=True)
        for names in ([], modules)
    )
    # Modules that the environment loads at every start do not count.
    new = set(loaded.stdout.split()) - set(bare.stdout.split())
    return {name for name in new if top(name) not in sys.stdlib_module_names and not name.startswith("_")}


def top(name: str) -> str:
    return name.partition(".")[0]


@pytest.mark.parametrize("package", pure_packages())
def test_each_package_of_the_pure_part_loads_only_its_own_requirements(package: str) -> None:
    assert {top(name) for name in loaded_by(modules_of(package))} <= OWN


def test_chain_codecs_and_references_need_no_arrow() -> None:
    loaded = loaded_by(
        ["odf_common.chain.walk", "odf_common.codec.manifests", "odf_common.identity.dataset_refs"]
    )
    assert {top(name) for name in loaded} == {"odf_common", "yaml", "cython_runtime"}


def test_a_client_loads_nothing_of_a_server() -> None:
    loaded = loaded_by(["odf_cli.clients"])
    assert "odf_common.adapters.grpc.client" in loaded
    assert (
        not {"odf_common.adapters.grpc.server", "grpc_health.v1.health", "grpc_reflection.v1alpha"} & loaded
    )
    assert not {"confluent_kafka", "pyarrow", "redis", "structlog", "yaml"} & loaded
