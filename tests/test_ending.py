"""How commands end: on streams that cannot hold what is said, on full devices, and when they are told to end."""

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from itertools import cycle
from pathlib import Path

import jax
import pytest
from test_cli import SINES, Cell

import clairjax.cli
from clairjax.cli import _app, _ending, _programs
from clairjax.experiments import EXPERIMENTS, Preset, Table
from clairjax.experiments._figure import new_figure
from clairjax.sweep import Results
from clairjax.sweep._store import Store


GREEK = dataclasses.replace(
    SINES,
    name="greek",
    summary="Σ of sines ±",
    presets={name: Preset((Cell(2, "größer"),), size.replicates) for name, size in SINES.presets.items()},
    tables=[lambda results: Table("Σ ± ≤", ("größe",), (("–",),))],
)
REPRODUCE = ["reproduce", "greek", "--preset", "smoke", "--out", "out"]
COMMANDS = {
    "list": ["list"],
    "version": ["--version"],
    "help": ["reproduce", "--help"],
    "reproduce": REPRODUCE,
    "profile": ["profile", "greek", "--preset", "smoke", "--lanes", "1"],
}
LINES = {signal.SIGINT: "Interrupted", signal.SIGTERM: "Terminated"}


class Left(BaseException):
    """What `os._exit` raises in these tests."""


def leave(status):
    raise Left(status)


@pytest.fixture(scope="module", autouse=True)
def _interruptions_arrive():
    """Also where the tests run in the background of a shell, which has them ignored."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.fixture
def command(monkeypatch, tmp_path):
    """Runs `main` in this process and gives its exit status; what it says goes to the files `out` and `err`."""
    monkeypatch.setitem(EXPERIMENTS, "greek", GREEK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "_exit", leave)
    for name, value in {_programs._FOLDER: "", **_programs._EVERYTHING}.items():
        monkeypatch.setenv(name, os.environ.get(name, value))  # else a command sets it for good
    handlers = {number: signal.getsignal(number) for number in LINES}
    wide = jax.config.jax_enable_x64

    def run(arguments, *, stdout="said.out", stderr="said.err", encoding="utf-8"):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["clairjax", *arguments])
            streams = [target and open(target, "w", encoding=encoding) for target in (stdout, stderr)]  # noqa: SIM115
            patch.setattr(sys, "stdout", streams[0])
            patch.setattr(sys, "stderr", streams[1])
            try:
                clairjax.cli.main()
                return 0
            except Left as left:
                return left.args[0]
            finally:
                for stream in (*streams, sys.stdout, sys.stderr):
                    with suppress(OSError, AttributeError):  # still full
                        stream.close()
                for number, handler in handlers.items():
                    signal.signal(number, handler)

    yield run
    jax.config.update("jax_enable_x64", wide)


def said(name, encoding="utf-8"):
    return Path(f"said.{name}").read_bytes().decode(encoding)


@pytest.mark.parametrize(
    ("name", "encoding"), [*((name, "ascii") for name in [*COMMANDS, "error"]), ("list", "cp1252")]
)
def test_what_an_encoding_lacks_is_replaced(command, name, encoding):
    arguments = COMMANDS.get(name, ["reproduce", "Σ"])
    assert command(arguments, encoding=encoding) == (2 if name == "error" else 0)
    found = said("err" if name == "error" else "out", encoding)
    shown = {"list": "? of sines", "reproduce": "? ", "profile": "gr?ßer", "error": "as mine.py, got ?."}.get(name, "")
    assert shown.replace("ß", "?" if encoding == "ascii" else "ß") in found.replace("ö", "?")


def test_without_streams_a_command_does_its_work(command, tmp_path):
    """As a process whose standard output and error were closed."""
    assert command(REPRODUCE, stdout=None, stderr=None) == 0
    assert (tmp_path / "out" / "report.md").read_text(encoding="utf-8").startswith("**Σ ± ≤**")


@pytest.mark.parametrize(("given", "kept"), [(None, "1"), ("3", "3")])
def test_a_command_keeps_linear_algebra_to_one_thread(command, monkeypatch, given, kept):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", given or "")
    if given is None:
        del os.environ["OPENBLAS_NUM_THREADS"]
    assert command(["--version"]) == 0 and os.environ["OPENBLAS_NUM_THREADS"] == kept


def test_in_a_locale_without_utf_8_all_files_are_utf_8(tmp_path):
    code = "import sys; from test_ending import GREEK, EXPERIMENTS; EXPERIMENTS['greek'] = GREEK\n"
    code += "import locale; assert locale.getencoding() != 'utf-8', locale.getencoding()\n"
    code += "from clairjax.cli import main; main()"
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code, *REPRODUCE], cwd=tmp_path, env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "report.md").read_text(encoding="utf-8").startswith("**Σ ± ≤**")
    assert "größer" in (tmp_path / "out" / "results.csv").read_text(encoding="utf-8")
    (cell,) = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))["cells"].values()
    assert cell["fields"]["law"] == "größer"


@pytest.fixture(params=["full", "closed"])
def broken(request):
    """Where nothing can be written to, and why."""
    if request.param == "full":
        if not Path("/dev/full").exists():
            pytest.skip("needs /dev/full")
        return (lambda: "/dev/full"), os.strerror(errno.ENOSPC)

    def pipe():
        reading, writing = os.pipe()
        os.close(reading)
        return writing

    return pipe, os.strerror(errno.EPIPE)


@pytest.mark.parametrize("name", COMMANDS)
def test_an_output_that_takes_nothing_is_one_line(command, broken, name):
    target, reason = broken
    assert command(COMMANDS[name], stdout=target()) == 1
    said_at_last = [line for line in said("err").splitlines() if " of 3, " not in line]  # progress
    assert len(said_at_last) == 1 and said_at_last[0].startswith("Error: ") and said_at_last[0].endswith(reason)


@pytest.mark.parametrize("arguments", [["list"], REPRODUCE, ["reproduce", "Σ"]], ids=["list", "reproduce", "error"])
def test_where_nothing_can_be_said_the_status_tells(command, broken, arguments):
    target, _ = broken
    assert command(arguments, stdout=target(), stderr=target()) > 0


def test_a_disk_that_is_full_at_any_moment_is_one_line_and_leaves_whole_files(command, tmp_path, monkeypatch):
    fsync, room, left = os.fsync, 0, 0

    def full(handle):
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full)
    statuses = []
    while not statuses or statuses[-1]:
        left, room = room, room + 7
        statuses.append(command(REPRODUCE))
        failed = [line for line in said("err").splitlines() if " of 3, " not in line]
        assert len(failed) == bool(statuses[-1])
        assert all(line.startswith("Error: [Errno 28] ") and "out/" in line for line in failed)
        assert not list(tmp_path.rglob("*.tmp"))
    assert len(statuses) > 2 and set(statuses) == {0, 1}


def draw(results):
    figure, (axis,) = new_figure(1, 1.0, 1.0)
    axis.plot([0, results.replicates])
    return figure


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two results of an experiment, and the files of each."""
    drawn = dataclasses.replace(GREEK, plot=draw)
    out, found = tmp_path_factory.mktemp("two"), []
    for number in (1, 2):
        results = drawn.run(preset="smoke", replicates=number)
        drawn.write(results, out / str(number))
        found.append((results, contents(out / str(number))))
    return drawn, *found


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("count", range(4))
def test_an_interruption_leaves_each_result_as_it_was_or_as_it_becomes(tmp_path, monkeypatch, two, count, after):
    drawn, (_, former), (results, new) = two
    for name, content in former.items():
        (tmp_path / name).write_bytes(content)
    replace, left = os.replace, count

    def interrupted(*paths):
        nonlocal left
        left -= 1
        if left >= 0 or after:
            replace(*paths)
        if left < 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        drawn.write(results, tmp_path)
    found = contents(tmp_path)
    assert set(found) == {"figure.png", "report.md", "results.csv", "results.nc"}
    assert all(found[name] in (former[name], new[name]) for name in found)
    assert (found["figure.png"] == new["figure.png"] != former["figure.png"]) == (count == 3 and after)


def once(number):
    """Tells this process to end, the first time it is called."""
    waiting = [number]
    return lambda: waiting and signal.raise_signal(waiting.pop())


MOMENTS = {
    "list": (_app, "console", "list"),
    "trace": (jax, "make_jaxpr", "reproduce"),
    "block": (Store, "write", "reproduce"),
    "manifest": (Store, "write_manifest", "reproduce"),
    "results": (Results, "to_netcdf", "reproduce"),
    "print": (_app, "console", "reproduce"),
    "profile": (jax, "block_until_ready", "profile"),
    "trace file": (jax.profiler, "StepTraceAnnotation", "profile"),
}


@pytest.mark.parametrize(("moment", "number"), list(zip(MOMENTS, cycle(LINES), strict=False)))
def test_told_to_end_a_command_does_in_one_line(command, tmp_path, monkeypatch, moment, number):
    owner, name, which = MOMENTS[moment]
    arguments = [*COMMANDS[which], *(["--trace", "traces"] if moment == "trace file" else [])]
    real, tell = getattr(owner, name), once(number)

    def told(*positional, **named):
        tell()
        return real(*positional, **named)

    monkeypatch.setattr(owner, name, told)
    assert command(arguments) == 128 + number
    advice = "; the same command goes on from here" if which == "reproduce" else ""
    said_at_last = [line for line in said("err").splitlines() if " of 3, " not in line]
    assert said_at_last == [f"{LINES[number]}{advice}."]
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()]
    assert not [*tmp_path.glob("traces/.*"), *tmp_path.glob("traces/plugins/profile/*")]
    if moment == "block":
        assert json.loads((tmp_path / "out" / "manifest.json").read_text())["status"] == "interrupted"
    assert command(arguments) == 0


def test_signals_that_are_ignored_stay_so(command):
    """As those of a command in a shell's background."""
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _ending.handle(_ending.at_once)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        with _ending.in_order():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, former)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def run(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, timeout=120
    )
    return done.returncode, done.stderr.splitlines()[-3:]


IMPORTS = """
import signal, sys
class Finder:
    def find_spec(self, name, *rest):
        if name == WHERE and signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # main has begun
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Finder())
from clairjax.cli import main
main()
"""


@pytest.mark.parametrize("where", ["clairjax.cli._app", "jax", "typer"])
def test_told_to_end_while_modules_are_imported(where):
    assert run(f"WHERE = {where!r}\n{IMPORTS}", "list") == (130, ["Interrupted."])


COMPILING = """
import os, signal, sys, threading
import jax, jax.numpy as jnp
from clairjax.cli import _app, main

def measured(function, keys, **_):
    def slow(x):
        for _ in range(60):
            x = jnp.linalg.eigh(x @ x.T)[1] @ jnp.sort(jnp.linalg.qr(x)[0]) @ jnp.cumsum(x, 0)
        return x
    lowered = jax.jit(slow).lower(jnp.eye(20))
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    lowered.compile()
    print("compiled before the signal")

_app.measure = measured
main()
"""


def test_told_to_end_while_a_program_is_compiled():
    """XLA goes on in a thread of its own, and crashes if the interpreter ends meanwhile."""
    assert run(COMPILING, "profile", "clair-table1", "--preset", "smoke") == (130, ["Interrupted."])


LOST = """
import signal, sys, time
from clairjax.cli._ending import in_order
class Late:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)
with in_order():
    try:
        Late()
        time.sleep(60)
    finally:
        print("cleaned", file=sys.stderr)
"""
AGAIN = """
import signal, sys
from clairjax.cli import _ending
_ending.PATIENCE = 0.0
with _ending.in_order():
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.raise_signal(signal.SIGINT)
        print("waited", file=sys.stderr)
"""


def test_an_interruption_that_python_drops_ends_the_command_all_the_same():
    assert run(LOST) == (143, ["cleaned", "Terminated."])


def test_a_second_interruption_waits_for_nothing():
    assert run(AGAIN) == (130, ["Interrupted."])
