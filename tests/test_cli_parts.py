"""`clairjax reproduce --part`: parts and their collection, what is prepared, what is refused, what is warned of."""

import dataclasses
import os
import re
import shlex
from pathlib import Path

import pytest
import yaml
from test_cli import SINES, invoke  # noqa: F401

from clairjax.cli import _parts
from clairjax.experiments import EXPERIMENTS, Experiment


SMOKE = ("reproduce", "sines", "--preset", "smoke")
TABLES = ("results.csv", "results.nc", "report.md", "figure.png")


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in {*_parts._TASKS, *_parts._TASKS.values()}:
        monkeypatch.delenv(name, raising=False)


def test_parts_store_blocks_alone_and_without_part_they_become_tables(invoke, tmp_path):  # noqa: F811
    assert invoke(*SMOKE, "--out", "one").exit_code == 0
    for part, blocks in (("1/2", 2), ("prepare", None), ("0/2", 1), ("0/2", 0)):
        done = invoke(*SMOKE, "--out", "out", "--part", part)
        said = "Prepared" if blocks is None else f"Part {part}: {blocks} blocks computed"
        assert done.exit_code == 0 and done.stdout == f"{said}. In out.\n", done.output
    assert {path.name for path in Path("out").iterdir() if path.is_file()} == {"manifest.json"}
    done = invoke(*SMOKE, "--out", "out")
    assert done.exit_code == 0 and "prepare: 3 of 3, " in done.stderr
    for name in TABLES:
        same = Path("out", name).read_bytes() == Path("one", name).read_bytes()
        assert same or name in ("results.nc", "figure.png")  # these hold seconds and dates


@pytest.mark.parametrize("part", ["3/3", "-1/2", "0/0", "1", "1/2/3", "a/b", "0.0/2", " 0/2", "٠/٢", ""])
def test_what_is_no_part_is_refused_in_a_sentence(invoke, part):  # noqa: F811
    done = invoke(*SMOKE, "--out", "out", "--part", part)
    assert done.exit_code == 2 and not Path("out").exists()
    assert done.stderr == f"Error: --part must be I/N with 0 <= I < N, as 0/8, or prepare, got {part}.\n"


@pytest.mark.parametrize("part", ["0/2", "prepare"])
def test_a_part_without_a_folder_is_refused_in_a_sentence(invoke, part):  # noqa: F811
    done = invoke(*SMOKE, "--part", part)
    assert done.exit_code == 2 and not list(Path().iterdir())
    assert done.stderr == "Error: --out must be given with --part, a folder that all parts see, got none.\n"


def test_a_part_of_another_seed_is_refused(invoke):  # noqa: F811
    assert invoke(*SMOKE, "--out", "out", "--part", "0/2").exit_code == 0
    done = invoke(*SMOKE, "--out", "out", "--part", "1/2", "--seed", 1)
    assert done.exit_code == 2 and "out: out holds another sweep: arguments must be" in done.stderr


def test_what_parts_share_is_kept_by_whoever_prepares_it(invoke, monkeypatch):  # noqa: F811
    made = []

    def prepare(cells, out, progress):
        path = Path(out) / "shared"
        if not path.exists():
            made.append(len(cells))
            path.write_text("once", encoding="utf-8")
        return path.read_text(encoding="utf-8")

    def replicate(key, cell, shared):
        assert shared == "once"
        return SINES.replicate(key, cell)

    monkeypatch.setitem(EXPERIMENTS, "sines", dataclasses.replace(SINES, prepare=prepare, replicate=replicate))
    assert invoke(*SMOKE, "--out", "out", "--part", "prepare").exit_code == 0
    assert {path.name for path in Path("out").iterdir()} == {"shared"}
    for arguments in (["--part", "1/2"], ["--part", "0/2"], []):
        assert invoke(*SMOKE, "--out", "out", *arguments).exit_code == 0
    assert made == [1]


LAUNCHED = {
    "SLURM_NTASKS=8": ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, "--part $SLURM_PROCID/8 "),
    "SLURM_STEP_NUM_TASKS=2": (
        {"SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "8", "SLURM_PROCID": "1"},
        "--part $SLURM_PROCID/2 ",
    ),
    "SLURM_ARRAY_TASK_COUNT=5": (
        {"SLURM_ARRAY_TASK_COUNT": "5", "SLURM_ARRAY_TASK_ID": "3"},
        "--part $SLURM_ARRAY_TASK_ID/5 ",
    ),
    "OMPI_COMM_WORLD_SIZE=4": ({"OMPI_COMM_WORLD_SIZE": "4"}, "--part $OMPI_COMM_WORLD_RANK/4 "),
    "PMI_SIZE=3": ({"PMI_SIZE": "3", "PMI_RANK": "2"}, "--part $PMI_RANK/3 "),
    "WORLD_SIZE=2": ({"WORLD_SIZE": "2", "RANK": "0"}, "--part $RANK/2 "),
}
ALONE = [
    {},
    {"SLURM_NTASKS": "8"},  # an allocation
    {"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},  # srun -n 1 in one
    {"SLURM_NTASKS": "1", "SLURM_PROCID": "0", "PMI_SIZE": "1"},
    {"OMPI_COMM_WORLD_SIZE": "many"},
    {"WORLD_SIZE": "2"},
]


@pytest.mark.parametrize("name", LAUNCHED)
def test_a_launcher_s_tasks_without_parts_are_warned_of(name):
    environment, part = LAUNCHED[name]
    said = _parts.several_tasks(environment)
    assert said.startswith(f"{name}: where each of these tasks runs this same command") and part in said


@pytest.mark.parametrize("environment", ALONE)
def test_a_task_alone_is_not_warned(environment):
    assert _parts.several_tasks(environment) is None


def test_the_warning_is_a_line_and_a_part_has_none(invoke, monkeypatch):  # noqa: F811
    for name, value in LAUNCHED["SLURM_NTASKS=8"][0].items():
        monkeypatch.setenv(name, value)
    assert "Warning" not in invoke(*SMOKE, "--out", "out", "--part", "0/8").stderr
    done = invoke(*SMOKE, "--out", "out")
    assert done.exit_code == 0 and done.stderr.startswith("Warning: SLURM_NTASKS=8: where each of these tasks")


@pytest.mark.parametrize(("limit", "given", "expected"), [(None, None, None), (3, None, "3"), (3, "5", "5")])
def test_xla_keeps_to_a_container_s_quota(monkeypatch, limit, given, expected):
    """It sees none by itself. What the user has set stands."""
    import clairjax.cli as cli

    monkeypatch.setenv("NPROC", given or "")
    if given is None:
        del os.environ["NPROC"]
    monkeypatch.setattr(cli, "quota", lambda: limit)
    monkeypatch.setattr(cli, "cores", lambda: limit)
    cli._limit_threads()
    assert os.environ.get("NPROC") == expected


def example(name):
    return (Path(__file__).parents[1] / "docs" / "examples" / name).read_text(encoding="utf-8")


def slurm():
    """The array's indices, the variable that says which, and the command."""
    text = example("array.sh")
    last = re.search(r"^#SBATCH --array=0-(\d+)%\d+$", text, re.MULTILINE)[1]
    return range(int(last) + 1), "SLURM_ARRAY_TASK_ID", text.strip().splitlines()[-1]


def kubernetes():
    spec = yaml.safe_load(example("job.yaml"))["spec"]
    assert spec["completionMode"] == "Indexed" and spec["parallelism"] < spec["completions"]
    (container,) = spec["template"]["spec"]["containers"]
    assert container["command"] == ["sh", "-c"]
    (command,) = container["args"]
    return range(spec["completions"]), "JOB_COMPLETION_INDEX", command.removeprefix("exec ")


@pytest.mark.parametrize("engine", [slurm, kubernetes])
def test_the_jobs_of_the_documentation_give_each_index_its_part(invoke, monkeypatch, engine):  # noqa: F811
    indices, variable, command = engine()
    given = []
    monkeypatch.setattr(Experiment, "run_part", lambda self, part, **asked: given.append((part, asked["preset"])) or 0)
    for i in indices:
        monkeypatch.setenv(variable, str(i))
        program, *arguments = shlex.split(os.path.expandvars(command))
        done = invoke(*arguments)
        assert program == "clairjax" and done.exit_code == 0, done.output
    assert given == [((i, len(indices)), "paper") for i in indices] and len(indices) > 8
