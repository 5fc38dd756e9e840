"""Files that are there whole or not at all: filled beside their place, flushed to the disk, then given the name."""

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file in the same folder, and rename it to `path`."""
    with _beside(path, write) as finished:
        os.replace(finished, path)
    _sync(path.parent)


def create_file(path: Path, content: str | bytes) -> bool:
    """Give `path` this content, text as UTF-8, if nothing has the name; False if something has.

    Of several processes that try, one succeeds: a hard link is made at once or not at all, on network file systems
    too. Where there are no hard links (FAT), the file is opened for creation alone. A kill while it is written may
    then leave a part of it, which reads as damaged and never as another's.
    """
    data = content.encode() if isinstance(content, str) else content
    with _beside(path, lambda beside: beside.write_bytes(data)) as finished:
        try:
            os.link(finished, path)
        except FileExistsError:
            return False
        except OSError:  # whatever a file system says that has no hard links
            return _create_in_place(path, data)
    _sync(path.parent)
    return True


def _create_in_place(path: Path, data: bytes) -> bool:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return False
    try:
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(handle)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return True


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time inside. A kill leaves no lock; a platform or file system that has none does without."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with _opened(folder) as handle:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _sync(folder: Path) -> None:
    if os.name == "posix":
        with _opened(folder) as handle:
            os.fsync(handle)


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)


@contextmanager
def _beside(path: Path, write: Callable[[Path], object]) -> Iterator[Path]:
    """A temporary file in `path`'s folder with what `write` gives it, on the disk; gone at the end, if it is still."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        write(beside)
        with open(beside, "rb+") as file:
            os.fsync(file.fileno())
        yield beside
    except OSError as error:
        if error.errno is not None and error.filename is None:  # a full device names no file
            error.filename = os.fspath(path)
        raise
    finally:
        beside.unlink(missing_ok=True)
