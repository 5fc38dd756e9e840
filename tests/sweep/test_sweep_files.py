"""Files are whole whatever interrupts the writing, and of those who create one at once a single one does."""

import errno
import os
import threading
import time

import pytest

from clairjax._files import create_file, locked, replace_file


def no_links(*_):
    raise PermissionError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize("links", [True, False])
def test_of_many_who_create_a_file_one_does_and_it_stays(tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    path, ready, won = tmp_path / "new" / "file", threading.Barrier(8), []

    def create(text):
        ready.wait()
        if create_file(path, text):
            won.append(text)

    threads = [threading.Thread(target=create, args=(str(i) * 10_000,)) for i in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(won) == 1 and path.read_text() == won[0]
    assert not create_file(path, "later") and path.read_text() == won[0]
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("links", [True, False])
def test_a_disk_that_is_full_leaves_nothing_and_names_the_file(tmp_path, monkeypatch, links):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    if not links:
        monkeypatch.setattr(os, "link", no_links)
    path = tmp_path / "file"
    for write in (lambda: create_file(path, "text"), lambda: replace_file(path, lambda beside: beside.touch())):
        with monkeypatch.context() as patch, pytest.raises(OSError, match=r"No space left on device: '.*file'"):
            patch.setattr(os, "fsync", full)
            write()
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("moment", ["open", "fsync", "replace"])
@pytest.mark.parametrize("after", [False, True])
def test_an_interrupted_replacement_leaves_the_former_file_or_the_new_one(tmp_path, monkeypatch, moment, after):
    path = tmp_path / "file"
    path.write_text("former")
    real = getattr(os, moment)

    def interrupted(*arguments, **options):
        if after:
            real(*arguments, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, moment, interrupted)
        replace_file(path, lambda beside: beside.write_text("new"))
    assert path.read_text() in ("former", "new")
    assert {entry.name for entry in tmp_path.iterdir()} == {"file"}


def test_one_at_a_time_has_a_folder_locked(tmp_path):
    inside, most = [], []

    def work():
        for _ in range(5):
            with locked(tmp_path):
                inside.append(1)
                time.sleep(0.002)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert max(most) == 1
