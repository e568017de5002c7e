"""Shared by benchmarks of transfers: processes that serve, a network with a delay, and git and rclone as peers.

The network is a TCP proxy that holds all bytes back for half the delay in each direction. Connecting to it takes no
time, while a real handshake takes a round trip: so it connects to the server one delay later, and a new connection's
first bytes wait for that. Of a server that speaks first (SSH), they come half a delay early. Neither peer decodes
blocks, reads slices, or syncs a file to the disk.
"""

import multiprocessing
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Final

DELAY: Final = 0.02  # seconds of a round trip
LOOK_SECONDS: Final = 0.05
RCLONE: Final = ("rclone", "--config", "/dev/null", "--transfers", "16", "--checkers", "16")
HERE: Final = "127.0.0.1"
USER, PASSWORD = "bench", "bench"  # rclone's SFTP client has to log in


def timed(work: Callable[[], object]) -> float:
    """Return how many seconds work takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


@contextmanager
def process_of(work: Callable[..., None], *arguments: object) -> Iterator[int]:
    """Run work in a process that sends a port when it is ready, until the block ends."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=work, args=(theirs, *arguments), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()


@contextmanager
def delayed_by(port: int, delay: float) -> Iterator[int]:
    """Yield a port with a round trip that takes `delay` seconds longer."""
    if not delay:
        yield port
        return
    with process_of(_proxy, port, delay) as delayed:
        yield delayed


def _proxy(ready: Connection, port: int, delay: float) -> None:
    with socket.create_server((HERE, 0)) as server:
        ready.send(server.getsockname()[1])
        while True:
            client, _ = server.accept()
            threading.Thread(target=_connect, args=(client, port, delay), daemon=True).start()


def _connect(client: socket.socket, port: int, delay: float) -> None:
    """Connect to the server after the round trip of a handshake; what the client sends before waits in its socket."""
    time.sleep(delay)
    there = socket.create_connection((HERE, port))
    for end in (client, there):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _pump(client, there, delay / 2)
    _pump(there, client, delay / 2)


def _pump(source: socket.socket, target: socket.socket, delay: float) -> None:
    waiting: SimpleQueue[tuple[float, bytes]] = SimpleQueue()

    def receive() -> None:
        data = b"-"
        while data:
            try:
                data = source.recv(1 << 20)
            except OSError:
                data = b""
            waiting.put((time.monotonic() + delay, data))

    def send() -> None:
        while True:
            due, data = waiting.get()
            time.sleep(max(0.0, due - time.monotonic()))
            with suppress(OSError):
                if data:
                    target.sendall(data)
                    continue
                target.shutdown(socket.SHUT_WR)
            return

    for work in (receive, send):
        threading.Thread(target=work, daemon=True).start()


@contextmanager
def served_by_git(folder: Path) -> Iterator[int]:
    """Yield the port at which git serves a repository; it accepts pushes."""
    command = (
        f"git daemon --reuseaddr --export-all --enable=receive-pack --listen={HERE} --base-path={folder}"
    )
    with _command([*command.split(), "--port={port}"]) as port:
        yield port


def commit_all(folder: Path) -> None:
    """Commit all files of a folder, and make it a git repository first if it is none."""
    for line in (
        "init",
        "config gc.auto 0",
        "add .",
        "-c user.name=a -c user.email=a@example.org commit -m all",
    ):
        _run("git", *line.split(), folder=folder)


def empty_repository(folder: Path) -> None:
    """Create a bare repository that accepts pushes."""
    _run("git", "init", "--bare", str(folder))


def clone(port: int, folder: Path) -> None:
    """Copy a repository."""
    _run("git", "clone", "-q", f"git://{HERE}:{port}/", str(folder))


def bare_clone(repository: Path, folder: Path) -> None:
    """Copy a repository on this machine."""
    _run("git", "clone", "-q", "--bare", str(repository), str(folder))
    _run("git", "config", "gc.auto", "0", folder=folder)


def git_fetch(port: int, folder: Path) -> None:
    """Fetch the commits that a repository does not have."""
    _run("git", "fetch", "-q", f"git://{HERE}:{port}/", "HEAD", folder=folder)


def git_push(port: int, folder: Path) -> None:
    """Send the commits of a repository that another one does not have."""
    _run("git", "push", "-q", f"git://{HERE}:{port}/", "HEAD:refs/heads/main", folder=folder)


def has_rclone() -> bool:
    """Return whether the peer is installed: `apt-get install rclone`."""
    return shutil.which("rclone") is not None


@contextmanager
def served_by_rclone(folder: Path, protocol: str) -> Iterator[int]:
    """Yield the port at which rclone serves a folder by `http`, to read, or `sftp`."""
    login = ("--user", USER, "--pass", PASSWORD) if protocol == "sftp" else ()
    with _command([*RCLONE, "serve", protocol, str(folder), "--addr", HERE + ":{port}", *login]) as port:
        yield port


def rclone_pull(port: int, folder: Path, *options: str) -> None:
    """Copy a folder that rclone serves by http."""
    place = ("--http-no-head", "--http-url", f"http://{HERE}:{port}")
    _run(*RCLONE, "copy", *options, *place, ":http:", str(folder))


def rclone_push(port: int, folder: Path, *options: str) -> None:
    """Copy a folder to one that rclone serves by SFTP: its WebDAV client pauses 10 ms before each request."""
    place = ("--sftp-host", HERE, "--sftp-port", str(port), "--sftp-user", USER)
    _run(*RCLONE, "copy", *options, *place, "--sftp-pass", _obscured_password(), str(folder), ":sftp:")


@cache
def _obscured_password() -> str:
    obscured = subprocess.run(["rclone", "obscure", PASSWORD], check=True, capture_output=True, text=True)
    return obscured.stdout.strip()


def _run(*command: str, folder: Path | None = None) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


@contextmanager
def _command(command: list[str]) -> Iterator[int]:
    """Run a server until the block ends; yield the port that replaces `{port}`, once it is open."""
    with socket.create_server((HERE, 0)) as free:
        port = int(free.getsockname()[1])
    arguments = [argument.replace("{port}", str(port)) for argument in command]
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while process.poll() is None:
            with suppress(ConnectionRefusedError), socket.create_connection((HERE, port)):
                break
            time.sleep(LOOK_SECONDS)
        else:
            raise RuntimeError(f"{arguments[0]} ended at once: {' '.join(arguments)}")
        yield port
    finally:
        process.terminate()
        process.wait()
