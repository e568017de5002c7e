"""Containers, with a stand-in for the command of the engine that runs a script as the image, and by podman itself."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from odf_common.errors import InvalidInput, OdfError
from odf_common.metadata.events import AddData, MergeStrategySnapshot, ReadStepCsv, SetPollingSource
from odf_common.metadata.fetching import EnvVar, FetchStepContainer
from odf_common.metadata.scalars import Timestamp
from odf_ingest.poll.poll_errors import (
    CommandFailed,
    ForeignSource,
    NoContainerEngine,
    PollCancelled,
    SourceRefusedRequest,
    TooLarge,
)
from odf_ingest.poll.poller import PollSummary

STAND_IN = """\
#!{python}
import json, os, pathlib, subprocess, sys
here = pathlib.Path(__file__).parent
with (here / "calls").open("a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
if sys.argv[1] != "run":
    sys.exit(0)
given = sys.argv[5:]
count = next(number for number, one in enumerate(given) if not one.startswith("--"))
options = dict(one.split("=", 1) for one in given[:count])
image, *arguments = given[count:]
out, _ = options["--volume"].split(":", 1)
variables = pathlib.Path(options["--env-file"])
if variables.stat().st_mode & 0o77:
    sys.exit("others may read the variables")
lines = variables.read_text().splitlines()
environ = dict(line.split("=", 1) for line in lines)
environ = {{name: value.replace("/odf/out", out) for name, value in environ.items()}}
script = here / image.replace("/", "-")
if not script.exists():
    print(f"unable to find image {{image}}", file=sys.stderr)
    sys.exit(125)
arguments = [options.get("--entrypoint", ""), *arguments]
sys.exit(subprocess.run(["/bin/sh", script, *arguments], env={{"PATH": "/usr/bin:/bin", **environ}}).returncode)
"""
COUNTER = """\
n=$(( ${ODF_ETAG:-0} + 1 ))
if [ $n -gt 3 ]; then exit 0; fi
printf '{"id":%d,"v":"a"}\\n' $n
printf $n > $ODF_NEW_ETAG_PATH
if [ $n -lt 3 ]; then touch $ODF_NEW_HAS_MORE_DATA_PATH; fi
"""


@dataclass(frozen=True, slots=True)
class Engine:
    """The folder of the stand-in and of its images."""

    folder: Path

    @property
    def environ(self) -> dict[str, str]:
        return {"PATH": str(self.folder), "TOKEN": "hushhush"}

    def image(self, script: str, name: str = "example/counter:1") -> FetchStepContainer:
        (self.folder / name.replace("/", "-")).write_text(script)
        return FetchStepContainer(image=name)

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]


@pytest.fixture(params=["podman", "docker"])
def engine(tmp_path: Path, request: pytest.FixtureRequest) -> Engine:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / request.param).write_text(STAND_IN.format(python=sys.executable))
    (folder / request.param).chmod(0o755)
    return Engine(folder)


def states(bench: Any) -> list[tuple[str, str]]:
    found = [one.new_source_state for one in bench.events() if isinstance(one, AddData)]
    return [(one.kind, one.value) for one in found if one is not None]


def test_an_image_is_run_with_the_last_state_while_it_has_more(
    make_polled: Any, poll: Any, engine: Engine
) -> None:
    bench = make_polled(engine.image(COUNTER))
    assert poll(bench, environ=engine.environ) == PollSummary(blocks=3, records=3)
    assert poll(bench, environ=engine.environ) == PollSummary()
    assert states(bench) == [("odf/etag", "1"), ("odf/etag", "2"), ("odf/etag", "3")]
    assert bench.values("id") == [(1,), (2,), (3,)]
    assert {(one[0], one[1], one[-1]) for one in engine.calls()} == {("run", "--rm", "example/counter:1")}


def test_another_version_of_the_image_continues_and_another_image_begins(
    make_polled: Any, poll: Any, engine: Engine
) -> None:
    bench = make_polled(engine.image(COUNTER))
    poll(bench, environ=engine.environ)
    old = bench.state.polling_source
    for name, records in (("example/counter:2", 0), ("example/other", 3)):
        step = engine.image(COUNTER, name)
        bench.propose(SetPollingSource(fetch=step, read=old.read, merge=old.merge))
        assert poll(bench, environ=engine.environ).records == records


def test_command_arguments_and_variables_are_passed_and_no_value_is_in_the_command_line(
    make_polled: Any, poll: Any, engine: Engine
) -> None:
    engine.image('printf \'{"id":1,"v":"%s %s"}\' "$*" "$TOKEN $OTHER"; echo $TOKEN >&2; exit $FAILS')
    step = FetchStepContainer(
        image="example/counter:1",
        command=("fetch", "--all"),
        args=("x y",),
        env=(
            EnvVar(name="TOKEN"),
            EnvVar(name="OTHER", value="${{ env.MORE || 'usual' }}"),
            EnvVar(name="FAILS", value="${{ env.FAILS || '0' }}"),
        ),
    )
    bench = make_polled(step)
    poll(bench, environ=engine.environ)
    ((value,),) = bench.values("v")
    assert value == "fetch --all x y hushhush usual"
    assert states(bench)[0][0] == "odf/sha3-256"
    assert poll(bench, environ=engine.environ) == PollSummary()
    assert "hushhush" not in str(engine.calls())
    with pytest.raises(CommandFailed, match=r"run example/counter:1: exit code 3: \*\*\*"):
        poll(bench, environ=engine.environ | {"FAILS": "3"})


def test_the_time_of_last_modification_is_state_and_event_time(
    make_polled: Any, poll: Any, engine: Engine
) -> None:
    script = """echo '{"id":1}'; echo 'Fri, 05 Jan 2024 10:00:00 GMT' > $ODF_NEW_LAST_MODIFIED_PATH"""
    bench = make_polled(engine.image(script))
    poll(bench, environ=engine.environ)
    assert states(bench) == [("odf/last-modified", "2024-01-05T10:00:00Z")]
    assert bench.state.watermark == Timestamp.parse("2024-01-05T10:00:00Z")
    assert poll(bench, environ=engine.environ) == PollSummary()


def test_a_state_without_data_is_committed_and_empties_no_snapshot(
    make_polled: Any, poll: Any, engine: Engine
) -> None:
    merge, read = (
        MergeStrategySnapshot(primary_key=("id",)),
        ReadStepCsv(header=True, ddl_schema=("id BIGINT",)),
    )
    bench = make_polled(engine.image("printf 'id\\n1\\n'; printf 1 > $ODF_NEW_ETAG_PATH"), merge, read=read)
    assert poll(bench, environ=engine.environ).records == 1
    engine.image("printf 2 > $ODF_NEW_ETAG_PATH")
    assert poll(bench, environ=engine.environ) == PollSummary(blocks=1, records=0)
    assert states(bench)[-1] == ("odf/etag", "2")


@pytest.mark.parametrize(
    ("script", "error", "text"),
    [
        ("echo no >&2; exit 7", CommandFailed, "exit code 7: no"),
        ("yes", TooLarge, "has more than 1000 bytes"),
        ("echo x; touch $ODF_NEW_HAS_MORE_DATA_PATH", InvalidInput, "container example/counter:1"),
        ("touch $ODF_NEW_HAS_MORE_DATA_PATH", SourceRefusedRequest, "gives no new state"),
        ("printf '\\377' > $ODF_NEW_ETAG_PATH", InvalidInput, "new-etag: is not UTF-8"),
        ("head -c 70000 /dev/zero > $ODF_NEW_ETAG_PATH", InvalidInput, "more than 65536 bytes"),
        ("echo yesterday > $ODF_NEW_LAST_MODIFIED_PATH", InvalidInput, "got 'yesterday'"),
        (
            "ln -s /etc/passwd $ODF_NEW_ETAG_PATH; touch $ODF_NEW_HAS_MORE_DATA_PATH",
            SourceRefusedRequest,
            "no new",
        ),
    ],
)
def test_images_that_break_the_contract_are_errors(  # noqa: PLR0917
    make_polled: Any, poll: Any, engine: Engine, script: str, error: type[OdfError], text: str
) -> None:
    bench = make_polled(engine.image(script))
    with pytest.raises(error, match=text):
        poll(bench, environ=engine.environ, size=1000)
    assert bench.rows() == []


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (FetchStepContainer(image="--privileged"), "not the name of an image"),
        (FetchStepContainer(image=""), "not the name of an image"),
        (FetchStepContainer(image="a", env=(EnvVar(name="A=B", value=""),)), "is not a name"),
        (FetchStepContainer(image="a", env=(EnvVar(name="A", value="x\nB=1"),)), "one printable line"),
        (FetchStepContainer(image="a", env=(EnvVar(name="ABSENT"),)), "no value of env.ABSENT"),
    ],
)
def test_a_wrong_step_is_refused_before_anything_runs(
    make_polled: Any, poll: Any, engine: Engine, step: FetchStepContainer, text: str
) -> None:
    with pytest.raises(InvalidInput, match=text):
        poll(make_polled(step), environ=engine.environ)
    assert not (engine.folder / "calls").exists()


def test_a_container_is_removed_when_no_caller_wants_the_poll(
    make_polled: Any, make_poller: Any, engine: Engine
) -> None:
    bench = make_polled(engine.image(f"touch {engine.folder}/begun; exec sleep 60"))
    is_begun = threading.Event()

    def is_wanted() -> bool:
        if (engine.folder / "begun").exists():
            is_begun.set()
        return not is_begun.is_set()

    with pytest.raises(PollCancelled):
        make_poller(bench, engine.environ).poll(bench.dataset, lambda _: None, is_wanted)
    run, remove = engine.calls()
    assert remove == ["rm", "--force", run[3]]


def test_without_an_engine_the_error_names_both(make_polled: Any, poll: Any, tmp_path: Path) -> None:
    bench = make_polled(FetchStepContainer(image="a"))
    with pytest.raises(NoContainerEngine, match="neither podman nor docker"):
        poll(bench, environ={"PATH": str(tmp_path)})


def test_images_of_other_nodes_are_not_run(make_polled: Any, poll: Any, engine: Engine) -> None:
    bench = make_polled(engine.image(COUNTER))
    with pytest.raises(ForeignSource, match="uses Container"):
        poll(bench, environ=engine.environ, is_trusted=lambda _: False)
    assert not (engine.folder / "calls").exists()


BUSYBOX = Path("/bin/busybox")  # of Debian's busybox-static
PROGRAMS = ("cat", "echo", "env", "gzip", "id", "printf", "sh", "sleep", "touch", "true")
TOOLS = ("podman", "runc")
CONTAINERS_CONF = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
netns = "none"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "none"
"""
STORAGE_CONF = """
[storage]
driver = "vfs"
graphroot = "{folder}/graph"
runroot = "{folder}/run"
"""
REAL_COUNTER = """\
n=$(( ${ODF_ETAG:-0} + 1 ))
if [ $n -gt 3 ]; then exit 0; fi
printf '{"id":%d,"v":"%s"}\\n' $n "$(id -u) $ODF_BATCH_SIZE"
printf $n > $ODF_NEW_ETAG_PATH
if [ $n -lt 3 ]; then touch $ODF_NEW_HAS_MORE_DATA_PATH; fi
"""


@dataclass(frozen=True, slots=True)
class Podman:
    """Podman with a separate store."""

    environ: Mapping[str, str]

    def __call__(self, *arguments: str, **more: Any) -> str:
        done = subprocess.run(
            ["podman", *arguments], env=self.environ, check=True, capture_output=True, timeout=60, **more
        )
        return bytes(done.stdout).decode()

    def image(self, script: str, name: str, *changes: str) -> FetchStepContainer:
        """Import an image that runs the script with `/bin/sh`."""
        options = [f"--change={one}" for one in ("ENTRYPOINT /bin/sh /script", *changes)]
        self("import", *options, "-", f"localhost/{name}", input=_files(script))
        return FetchStepContainer(image=f"localhost/{name}")

    def containers(self) -> list[str]:
        return self("ps", "--all", "--format", "{{.Names}}").split()


def _files(script: str) -> bytes:
    """Return the tar of an image's files."""
    held = BytesIO()
    with tarfile.open(fileobj=held, mode="w") as tar:
        tar.add(BUSYBOX, "bin/busybox")
        for name in PROGRAMS:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        for name, content in (("script", script.encode()), ("etc/passwd", b"root:x:0:0::/:/bin/sh\n")):
            file = tarfile.TarInfo(name)
            file.size = len(content)
            tar.addfile(file, BytesIO(content))
    return held.getvalue()


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder with a short path: with a long one podman misses that a container has ended, and waits for 20 s."""
    with TemporaryDirectory(prefix="podman", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def podman(folder: Path) -> Iterator[Podman]:
    """Podman; skips the test where it is not installed, or may not run containers."""
    missing = [name for name in TOOLS if shutil.which(name) is None]
    if missing or not BUSYBOX.exists():
        pytest.skip("no podman; install it (Debian: apt-get install podman runc busybox-static)")
    (folder / "containers.conf").write_text(CONTAINERS_CONF)
    (folder / "storage.conf").write_text(STORAGE_CONF.format(folder=folder))
    made = Podman(
        {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        }
    )
    try:
        image = made.image("true", "probe").image
        made("run", "--rm", image)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"podman cannot run containers here: {error.stderr.decode().strip()}")
    yield made
    made("rmi", "--all", "--force")


def test_a_real_image_is_run_with_the_last_state_while_it_has_more(
    make_polled: Any, poll: Any, podman: Podman
) -> None:
    bench = make_polled(podman.image(REAL_COUNTER, "counter"))
    assert poll(bench, environ=podman.environ) == PollSummary(blocks=3, records=3)
    assert poll(bench, environ=podman.environ) == PollSummary()
    assert bench.values("id", "v") == [(1, "0 10000"), (2, "0 10000"), (3, "0 10000")]
    assert podman.containers() == []


def test_an_image_with_its_own_user_can_write_its_state(make_polled: Any, poll: Any, podman: Podman) -> None:
    bench = make_polled(podman.image(REAL_COUNTER, "unprivileged", "USER 1234"))
    assert poll(bench, environ=podman.environ).records == 3
    assert bench.values("v")[0] == ("1234 10000",)


def test_command_arguments_and_variables_reach_the_image(make_polled: Any, poll: Any, podman: Podman) -> None:
    script = 'printf \'{"id":1,"v":"%s %s"}\' "$*" "$TOKEN"'
    image = podman.image("exit 9", "arguments").image
    step = FetchStepContainer(
        image=image,
        command=("/bin/sh", "-c"),
        args=(script, "sh", "x y", "z"),
        env=(EnvVar(name="TOKEN"),),
    )
    bench = make_polled(step)
    poll(bench, environ={**podman.environ, "TOKEN": 'hush "hush" $x'.replace('"', "'")})
    assert bench.values("v") == [("x y z hush 'hush' $x",)]


def test_a_container_ends_when_no_caller_wants_the_poll(
    make_polled: Any, make_poller: Callable[..., Any], podman: Podman
) -> None:
    bench = make_polled(podman.image("sleep 60", "sleeping"))
    is_begun = threading.Event()

    def is_wanted() -> bool:
        if podman.containers():
            is_begun.set()
        return not is_begun.is_set()

    begun = time.monotonic()
    with pytest.raises(PollCancelled):
        make_poller(bench, podman.environ).poll(bench.dataset, lambda _: None, is_wanted)
    assert podman.containers() == []
    assert time.monotonic() - begun < 60
