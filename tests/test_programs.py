"""Compiled programs are kept by the command line, and a folder that cannot be used fails nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clairjax.cli import _programs


OWN = """
from typing import NamedTuple
import jax
from clairjax.experiments import Column, Experiment, Preset, Tabulated

class Cell(NamedTuple):
    size: int

def replicate(key, cell):
    return {"mean": jax.random.normal(key, (cell.size,)).mean()}

EXPERIMENT = Experiment("own", "Own", {"tiny": Preset((Cell(7),), 2)}, replicate, [Tabulated("Own", [Column("mean")])])
"""
COMMAND = """
import sys
from clairjax.cli import keep_programs, main
keep_programs()
from jax import monitoring
events = []
monitoring.register_event_listener(lambda event, **_: events.append(event.split("/")[-1]))
try:
    main()
finally:
    print("hits", events.count("cache_hits"), "misses", events.count("cache_misses"))
"""
NAMES = ("JAX_COMPILATION_CACHE_DIR", *_programs._EVERYTHING)


@pytest.fixture
def command(tmp_path):
    """A command in a process of its own: hits and misses of the cache, and what is said beside its progress."""
    (tmp_path / "own.py").write_text(OWN)
    kept = {name: value for name, value in os.environ.items() if name not in NAMES}

    def run(out, *options, **environment):
        words = [*options, "reproduce", "own.py", "--out", out]
        done = subprocess.run(
            [sys.executable, "-W", "error::UserWarning", "-c", COMMAND, *words],
            cwd=tmp_path,
            env=kept | {"XDG_CACHE_HOME": str(tmp_path / "cache")} | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        said = [line for line in done.stderr.splitlines() if " of 2, " not in line]
        assert not said, said
        _, hits, _, misses = done.stdout.splitlines()[-1].split()
        return int(hits), int(misses)

    return run


def test_the_same_command_again_compiles_nothing_and_damage_is_mended(command, tmp_path):
    folder = tmp_path / "cache" / "clairjax" / "programs"
    hits, misses = command("first")
    entries = sorted(path.name for path in folder.iterdir())
    assert misses == len(entries) > 0
    assert command("second") == (hits + misses, 0)
    assert sorted(path.name for path in folder.iterdir()) == entries
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes()[:100])  # as a kill leaves it
    command("third")
    assert min(path.stat().st_size for path in folder.iterdir()) > 100
    assert command("fourth", "--no-cache") == (0, 0)


def test_a_folder_that_cannot_be_made_fails_nothing(command, tmp_path):
    (tmp_path / "file").write_text("mine")
    hits, _ = command("out", JAX_COMPILATION_CACHE_DIR=str(tmp_path / "file"))
    assert hits == 0
    assert (tmp_path / "file").read_text() == "mine"


@pytest.fixture
def environment(monkeypatch):
    for name in NAMES:
        monkeypatch.setenv(name, "")
        del os.environ[name]
    monkeypatch.setattr(_programs, "_hear_of_faults", lambda: None)
    return monkeypatch


def test_what_the_user_has_set_stands(environment, tmp_path):
    environment.setenv(NAMES[0], "")  # no cache
    environment.setenv(NAMES[1], "2")
    _programs.keep_programs()
    assert [os.environ[name] for name in NAMES] == ["", "2", "-1"]


def test_the_folder_is_the_platform_s(environment, tmp_path):
    environment.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert _programs.folder() == tmp_path / "clairjax" / "programs"
    environment.delenv("XDG_CACHE_HOME")
    environment.setattr(Path, "home", lambda: tmp_path)
    for platform, place in (("linux", ".cache"), ("darwin", "Library/Caches")):
        environment.setattr(sys, "platform", platform)
        assert _programs.folder() == tmp_path / place / "clairjax" / "programs"


def test_without_a_place_for_it_nothing_is_kept(environment, tmp_path):
    (tmp_path / "file").write_text("")
    environment.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    _programs.keep_programs()
    assert NAMES[0] not in os.environ
