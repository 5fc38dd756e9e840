"""Cores that a process may keep busy, from made files of control groups: both versions, nested, and in containers."""

import os

import pytest

from clairjax import _cores
from clairjax._cores import cores, quota


V1 = "31 23 0:28 {top} /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct"
V2 = "30 23 0:27 {top} /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
OTHERS = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n33 31 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


@pytest.fixture
def made(tmp_path):
    """A root with this process's groups, the mounts, and files by their path below `/sys/fs/cgroup`."""

    def make(own, mounts, files):
        proc = tmp_path / "proc/self"
        proc.mkdir(parents=True)
        (proc / "cgroup").write_text(own)
        (proc / "mountinfo").write_text(OTHERS + mounts + "\n")
        for name, text in files.items():
            path = tmp_path / "sys/fs/cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        return tmp_path

    return make


def v1(micros, period=100_000, group="cpu,cpuacct"):
    return {f"{group}/cpu.cfs_quota_us": str(micros), f"{group}/cpu.cfs_period_us": str(period)}


CASES = {
    "v2 container": ("0::/", V2.format(top="/"), {"cpu.max": "200000 100000"}, 2),
    "v2 part of a core": ("0::/", V2.format(top="/"), {"cpu.max": "150000 100000"}, 2),
    "v2 less than a core": ("0::/", V2.format(top="/"), {"cpu.max": "5000 100000"}, 1),
    "v2 another period": ("0::/", V2.format(top="/"), {"cpu.max": "30000 10000"}, 3),
    "v2 none": ("0::/", V2.format(top="/"), {"cpu.max": "max 100000"}, None),
    "v2 on a host": ("0::/user.slice/a b.scope", V2.format(top="/"), {"user.slice/a b.scope/cpu.max": "4000 1000"}, 4),
    "v2 above": (
        "0::/a.slice/b.scope",
        V2.format(top="/"),
        {"a.slice/b.scope/cpu.max": "max 100000", "a.slice/cpu.max": "300000 100000"},
        3,
    ),
    "v2 the least": (
        "0::/a/b",
        V2.format(top="/"),
        {"a/b/cpu.max": "800000 100000", "a/cpu.max": "300000 100000", "cpu.max": "max 1"},
        3,
    ),
    "v2 another's": ("0::/a", V2.format(top="/"), {"b/cpu.max": "100000 100000"}, None),
    "v2 outside of its namespace": ("0::/../..", V2.format(top="/../.."), {"cpu.max": "100000 100000"}, 1),
    "v1 container, own namespace": ("4:cpu,cpuacct:/", V1.format(top="/"), v1(250_000), 3),
    "v1 container, host's names": ("4:cpu,cpuacct:/docker/ab", V1.format(top="/docker/ab"), v1(400_000), 4),
    "v1 below such": (
        "4:cpu,cpuacct:/docker/ab/own",
        V1.format(top="/docker/ab"),
        v1(-1) | v1(100_000, group="cpu,cpuacct/own"),
        1,
    ),
    "v1 none": ("4:cpu,cpuacct:/", V1.format(top="/"), v1(-1), None),
    "v1 other mount than its group": ("4:cpu,cpuacct:/docker/ab", V1.format(top="/kube/cd"), v1(400_000), 4),
    "v1 beside v2": (
        "4:cpu,cpuacct:/\n0::/",
        f"{V1.format(top='/')}\n31 2 0:9 / /sys/fs/cgroup/unified rw - cgroup2 c rw",
        v1(200_000),
        2,
    ),
    "v1 of memory alone": ("5:memory:/", "", {"memory/cpu.cfs_quota_us": "1", "memory/cpu.cfs_period_us": "1"}, None),
    "nonsense": (
        "0::/\n::\nx",
        V2.format(top="/") + "\n- -\na - cgroup2\n1 2 - cgroup c rw,cpu",
        {"cpu.max": "x"},
        None,
    ),
    "empty": ("", "", {}, None),
}


@pytest.mark.parametrize("name", CASES)
def test_the_least_quota_of_the_groups_a_process_is_in(made, name):
    own, mounts, files, expected = CASES[name]
    assert quota(made(own, mounts, files)) == expected


def test_where_there_are_no_such_files_there_is_no_quota(tmp_path):
    assert quota(tmp_path) is None


@pytest.mark.parametrize(("given", "expected"), [(None, 6), (2, 2), (9, 6), (1, 1)])
def test_cores_are_those_of_the_affinity_within_the_quota(monkeypatch, given, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    monkeypatch.setattr(_cores, "quota", lambda: given)
    assert cores() == expected
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert cores() == expected
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores() == 1
