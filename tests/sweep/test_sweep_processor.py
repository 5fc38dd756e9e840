"""Which processor computed a block: recorded, told where there are several kinds, with what makes them agree."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from test_sweep_parts import run_part
from test_sweep_run import files, run

from clairjax.sweep import _execute
from clairjax.sweep._processor import as_stored, instructions, processor, settings, several, tally


def kind(lapack="OpenBLAS SkylakeX", threads="1", instructions="x86_64 AVX512"):
    return {"lapack": lapack, "threads": threads, "instructions": instructions}


ZEN = kind("OpenBLAS Zen", instructions="x86_64 AVX2")
ARM = kind("OpenBLAS NEOVERSEN1", instructions="aarch64")
CODE = """
import json
from clairjax.sweep._processor import processor
print(json.dumps(processor()))
"""


def test_blocks_say_which_processor_computed_them(tmp_path):
    run_part(tmp_path, (0, 2))
    for path in files(tmp_path):
        with np.load(path) as file:
            assert json.loads(str(file["__block__"]))["processor"] == processor()
    assert run(tmp_path).manifest["processors"] == [processor() | {"blocks": 6}]


@pytest.mark.skipif(not processor()["lapack"].startswith("OpenBLAS"), reason="another LAPACK")
def test_what_the_environment_asks_of_openblas_and_xla_is_what_is_recorded():
    """The kernel is that of the library that jaxlib calls, not NumPy's own beside it."""
    wanted = {"OPENBLAS_CORETYPE": "Nehalem", "OPENBLAS_NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_max_isa=SSE4_2"}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=os.environ | wanted, capture_output=True, text=True, check=True
    )
    name, here = "OpenBLAS Nehalem", processor()
    assert json.loads(done.stdout) == kind(name, "1", here["instructions"].split()[0] + " SSE4_2")


def test_blocks_of_one_kind_are_collected_without_a_word_and_of_several_with_a_warning(tmp_path, monkeypatch):
    """Warnings are errors here. Blocks of sweeps that did not record it are no kind."""
    for i, one in enumerate((None, ZEN, ZEN)):
        monkeypatch.setattr(_execute, "processor", lambda one=one: one)
        run_part(tmp_path, (i, 4))
    monkeypatch.setattr(_execute, "processor", kind)
    with pytest.warns(UserWarning) as said:
        results = run(tmp_path)
    (warning,) = said
    assert str(warning.message) == (
        "The blocks were computed by 2 kinds of processor, whose last digits may differ: "
        "3 by OpenBLAS Zen of 1 thread(s), x86_64 AVX2; 2 by OpenBLAS SkylakeX of 1 thread(s), x86_64 AVX512. "
        "To have the same digits from all, set OPENBLAS_CORETYPE=Haswell XLA_FLAGS=--xla_cpu_max_isa=AVX2 for every "
        "process, and begin in a new folder."
    )
    assert results.manifest["processors"] == [ZEN | {"blocks": 3}, kind() | {"blocks": 2}]


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ([kind(), kind("OpenBLAS Cooperlake")], ["OPENBLAS_CORETYPE=Haswell"]),
        ([kind(), kind(threads="8")], ["OPENBLAS_NUM_THREADS=1"]),
        ([kind(), kind(instructions="x86_64 AVX2")], ["XLA_FLAGS=--xla_cpu_max_isa=AVX2"]),
        (
            [kind(), kind("OpenBLAS Nehalem", "2", "x86_64 SSE4_2"), ZEN],
            ["OPENBLAS_CORETYPE=Nehalem", "OPENBLAS_NUM_THREADS=1", "XLA_FLAGS=--xla_cpu_max_isa=SSE4_2"],
        ),
        ([ARM, kind("OpenBLAS NEOVERSEV1", instructions="aarch64")], ["OPENBLAS_CORETYPE=ARMV8"]),
        ([ARM, kind()], []),
    ],
)
def test_what_to_set_is_what_all_of_them_can_do(kinds, expected):
    assert settings(kinds) == expected
    said = several(tally(kinds))
    assert " ".join(expected) in said and ("use processors of one kind" in said) == (expected == [])


def test_one_kind_is_not_several():
    assert several(tally([kind(), None, kind()])) is None and several(tally([None])) is None


@pytest.mark.parametrize(
    ("flags", "xla_flags", "expected"),
    [
        ("fpu sse4_2 avx avx2 avx512f", "", "AVX512"),
        ("fpu sse4_2 avx avx2", "--a=b --xla_cpu_max_isa=AVX512", "AVX2"),
        ("fpu sse4_2 avx avx2 avx512f", "--xla_cpu_max_isa=AVX2", "AVX2"),
        ("fpu sse4_2 avx avx2", "--xla_cpu_max_isa=AVX --xla_cpu_max_isa=sse4_2", "SSE4_2"),
        ("fpu sse4_2 avx avx2 avx512f", "--xla_cpu_max_isa=AMX", "AVX512"),
        ("fp asimd sve", "", ""),
        ("", "", ""),
    ],
)
def test_instructions_are_what_the_processor_has_and_xla_may_use(monkeypatch, flags, xla_flags, expected):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert instructions(flags, xla_flags) == f"x86_64 {expected}".rstrip()


@pytest.mark.parametrize("stored", [{}, {"lapack": "OpenBLAS Zen"}, kind("another") | {"new": 1}, None, 3, ["Zen"]])
def test_what_another_version_recorded_of_a_processor_does_not_stop_collecting(tmp_path, stored):
    run(tmp_path)
    changed = next(iter(files(tmp_path)))
    with np.load(changed) as file:
        arrays = {name: file[name] for name in file.files}
    header = json.loads(str(arrays["__block__"])) | {"processor": stored}
    np.savez(changed, **(arrays | {"__block__": np.array(json.dumps(header))}))
    if as_stored(stored) is None:
        assert len(run(tmp_path).manifest["processors"]) == 1
    else:
        with pytest.warns(UserWarning, match="2 kinds of processor"):
            run(tmp_path)
