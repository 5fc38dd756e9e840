"""A real SuperLink and five SuperNodes on this machine's loopback: bounded, and each process ended by its number."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


pytest.importorskip("flwr")

import nodes

from clairjax.flower import ClairStrategy


HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
RANKS, HOW = (2, 4, 8, 4, 2), ("", "contaminated", "nan", "to be killed", "")
ROUNDS, ANSWER, LIMIT = 4, 30, 420  # seconds to wait for a reply, and for everything
PROJECT = f"""
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "clairapp"
version = "0.1.0"
description = "A test"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "clairjax"

[tool.flwr.app.components]
serverapp = "clairapp.server_app:app"
clientapp = "clairapp.client_app:app"

[tool.flwr.app.config]
rounds = {ROUNDS}
"""
SERVER = f"""
import time

from clairjax.flower import ClairStrategy, arrays
from flwr.serverapp import ServerApp

from . import nodes

app = ServerApp()


@app.main()
def main(grid, context):
    while len(list(grid.get_node_ids())) < {len(RANKS)}:
        time.sleep(0.5)
    strategy = ClairStrategy(nodes.config(4), blend=0.5, fraction_evaluate=0.0)
    strategy.start(grid, arrays(nodes.start(4)), num_rounds=int(context.run_config["rounds"]), timeout={ANSWER})
    strategy.save("OUT")
"""
CLIENT = "from .nodes import make_app\n\napp = make_app()\n"


def free_ports(count):
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in taken]
    for each in taken:
        each.close()
    return ports


@contextmanager
def ended():
    """Starts programs, each the head of a group of its own; ends these groups, whatever happens."""
    started = []

    def start(name, *words, log, environment):
        with log.open("wb") as file:
            words = [str(BIN / name), *map(str, words)]
            begun = subprocess.Popen(words, stdout=file, stderr=file, env=environment, start_new_session=True)
        started.append(begun)
        return begun

    try:
        yield start
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for each in started:
                with suppress(ProcessLookupError):
                    os.killpg(each.pid, number)
            time.sleep(2 if number == signal.SIGTERM else 0)
        for each in started:
            each.wait(10)


def wait_for(what, deadline, *processes):
    while not what():
        assert time.monotonic() < deadline, "nothing happened in time"
        assert all(each.poll() is None for each in processes), "a process ended"
        time.sleep(0.2)


@pytest.mark.slow
def test_all_are_named_in_each_round_and_the_run_completes(tmp_path):
    out, seen, home = tmp_path / "clair.safetensors", tmp_path / "seen", tmp_path / "home"
    package = tmp_path / "app" / "clairapp"
    for folder in (seen, home, package):
        folder.mkdir(parents=True)
    shutil.copy(HERE / "nodes.py", package)
    for name, text in (("__init__", ""), ("server_app", SERVER.replace("OUT", str(out))), ("client_app", CLIENT)):
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    (package.parent / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    port, *others = free_ports(1 + len(RANKS))
    link = f"127.0.0.1:{port}"
    about = f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{link}"\ninsecure = true\n'
    (home / "config.toml").write_text(about, encoding="utf-8")
    environment = os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "JAX_PLATFORMS": "cpu",
        "PATH": f"{BIN}:{os.environ['PATH']}",
    }
    deadline = time.monotonic() + LIMIT
    with ended() as start:
        log = lambda name: {"log": tmp_path / f"{name}.log", "environment": environment}
        where = ("--insecure", "--host", "127.0.0.1")
        whole = "--disable-runtime-dependency-installation"
        server = start("flower-superlink", *where, "--port", port, whole, **log("superlink"))
        wait_for(lambda: answers(port), deadline, server)
        clients = []
        for k, (rank, how, own) in enumerate(zip(RANKS, HOW, others, strict=True)):
            config = f'partition-id={k} rank={rank} how="{how}" seen="{seen}"'
            words = (*where, "--superlink", link, "--port", own, "--node-config", config)
            clients.append(start("flower-supernode", *words, **log(f"node{k}")))
        run = start("flwr", "run", tmp_path / "app", "here", "--stream", **log("run"))
        victim = HOW.index("to be killed")
        wait_for(lambda: (seen / f"{victim}").exists() or run.poll(), deadline, server)
        os.killpg(clients[victim].pid, signal.SIGKILL)
        try:
            wait_for(out.exists, deadline, server)
        except AssertionError:
            pytest.fail("\n".join(path.read_text(errors="replace")[-3000:] for path in sorted(tmp_path.glob("*.log"))))
        by_place = {int(path.name): int(path.read_text()) for path in seen.iterdir()}
    strategy = ClairStrategy(nodes.config(4))
    strategy.load(out)
    assert len(strategy.rounds) == ROUNDS
    for one in strategy.rounds:
        assert set(one.members) == {by_place[0], by_place[4]}
        assert set(one.excluded) == {by_place[1], by_place[2]}
        assert one.excluded[by_place[1]].startswith("unrelated") and "NaN" in one.excluded[by_place[2]]
        assert set(one.failed) == {by_place[3]}
    ranks = {node: len(mine.held[nodes.key("q_proj", "A")]) for node, mine in strategy._mine.items()}
    assert ranks == {by_place[0]: 2, by_place[1]: 4, by_place[4]: 2}


def answers(port):
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
