"""Containers run by podman itself: images of nothing but busybox and a script, imported from a folder."""

import os
import shutil
import subprocess
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

from odf_common.metadata.fetching import CompressionFormat, EnvVar, FetchStepContainer, PrepStepDecompress
from odf_ingest.poll.poll_errors import CommandFailed, PollCancelled
from odf_ingest.poll.poller import PollSummary

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
COUNTER = """\
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


def test_an_image_is_run_with_the_last_state_while_it_has_more(
    make_polled: Any, poll: Any, podman: Podman
) -> None:
    bench = make_polled(podman.image(COUNTER, "counter"))
    assert poll(bench, environ=podman.environ) == PollSummary(blocks=3, records=3)
    assert poll(bench, environ=podman.environ) == PollSummary()
    assert bench.values("id", "v") == [(1, "0 10000"), (2, "0 10000"), (3, "0 10000")]
    assert podman.containers() == []


def test_an_image_with_its_own_user_can_write_its_state(make_polled: Any, poll: Any, podman: Podman) -> None:
    bench = make_polled(podman.image(COUNTER, "unprivileged", "USER 1234"))
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


def test_output_can_be_unpacked(make_polled: Any, poll: Any, podman: Podman) -> None:
    image = podman.image("""echo '{"id":1}' | gzip -c""", "packed")
    steps = (PrepStepDecompress(format=CompressionFormat.Gzip),)
    bench = make_polled(image, prepare=steps)
    assert poll(bench, environ=podman.environ).records == 1


def test_an_image_that_fails_says_why_and_leaves_nothing(make_polled: Any, poll: Any, podman: Podman) -> None:
    bench = make_polled(podman.image("echo no data today >&2; exit 7", "failing"))
    with pytest.raises(CommandFailed, match="podman run localhost/failing: exit code 7: no data today"):
        poll(bench, environ=podman.environ)
    assert (bench.rows(), podman.containers()) == ([], [])


def test_an_image_that_does_not_exist_is_named(make_polled: Any, poll: Any, podman: Podman) -> None:
    bench = make_polled(FetchStepContainer(image="odf-none"))
    with pytest.raises(
        CommandFailed, match=r'podman run odf-none: exit code 125: .*"odf-none" did not resolve'
    ):
        poll(bench, environ=podman.environ)


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
