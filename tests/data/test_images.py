"""Readers of images: files made here in their authors' formats come back; what is no such file is named."""

import gzip
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from clairjax.data import digits, read_images


def idx(array, magic):
    return struct.pack(f">{array.ndim + 1}I", magic, *array.shape) + array.tobytes()


def write_idx(folder, rng, *, prefix="", end="", sizes=(5, 3)):
    sets = []
    for name, size in zip(("train", "t10k"), sizes, strict=True):
        images = rng.integers(0, 256, (size, 4, 6), np.uint8)
        labels = rng.integers(0, 10, size).astype(np.uint8)
        pack = gzip.compress if end else bytes
        (folder / f"{prefix}{name}-images-idx3-ubyte{end}").write_bytes(pack(idx(images, 0x803)))
        (folder / f"{prefix}{name}-labels-idx1-ubyte{end}").write_bytes(pack(idx(labels, 0x801)))
        sets += [images, labels]
    return sets


def write_cifar(folder, rng, classes):
    """Planes of red, green, blue behind one label or two, as the authors describe it."""
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    names = names if classes == 10 else ["train.bin", "test.bin"]
    sets = []
    for name in names:
        images = rng.integers(0, 256, (2, 32, 32, 3), np.uint8)
        labels = rng.integers(0, classes, 2).astype(np.uint8)
        with open(folder / name, "wb") as file:
            for image, label in zip(images, labels, strict=True):
                file.write(bytes([label] if classes == 10 else [19, label]))
                file.write(b"".join(image[:, :, plane].tobytes() for plane in range(3)))
        sets.append((images, labels))
    return sets


@pytest.mark.parametrize("end", ["", ".gz"])
def test_idx_files_come_back(tmp_path, rng, end):
    written = write_idx(tmp_path, rng, end=end)
    for found, array in zip(read_images(tmp_path), written, strict=False):
        np.testing.assert_array_equal(found[..., 0] if found.ndim == 4 else found, array)


def test_a_part_of_emnist_is_chosen_and_set_upright(tmp_path, rng):
    write_idx(tmp_path, rng, prefix="emnist-letters-")
    images, *_ = write_idx(tmp_path, rng, prefix="emnist-digits-")
    with pytest.raises(ValueError, match=r"prefix must be one of 'emnist-digits-', 'emnist-letters-' in .*, got None"):
        read_images(tmp_path)
    found = read_images(tmp_path, prefix="emnist-digits-")
    np.testing.assert_array_equal(found.images[..., 0], images.transpose(0, 2, 1))


def test_files_of_other_programs_are_left_out(tmp_path, rng):
    """Such as macOS leaves beside each file."""
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "idx").mkdir()
    images, *_ = write_idx(tmp_path / "idx", rng)
    (tmp_path / "idx" / "._train-images-idx3-ubyte").write_bytes(b"notes")
    np.testing.assert_array_equal(read_images(tmp_path / "idx").images[..., 0], images)
    for name in ("cat", "dog", "__MACOSX"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        (tmp_path / "pictures" / name / "._a.png").write_bytes(b"notes")
        if name != "__MACOSX":
            image.new("L", (4, 4)).save(tmp_path / "pictures" / name / "a.png")
    assert read_images(tmp_path / "pictures").names == ("cat", "dog")


def test_pictures_of_every_depth_keep_their_grey(tmp_path, rng):
    """Sixteen bits are scaled and not cut; grey beside alpha is grey; of 32 bits nobody knows the white."""
    image = pytest.importorskip("PIL.Image")
    grey = rng.integers(0, 256, (3, 5), np.uint8)
    deep = image.fromarray(grey.astype(np.uint16) * 257)
    (tmp_path / "cat").mkdir()
    for name, picture in {"a.png": image.fromarray(grey), "b.png": deep, "c.tif": deep, "d.pgm": deep}.items():
        picture.save(tmp_path / "cat" / name)
    image.fromarray(grey).convert("LA").save(tmp_path / "cat" / "e.png")
    found = read_images(tmp_path).images
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found[..., 0], np.stack([grey] * 5))
    image.fromarray(grey.astype(np.float32)).save(tmp_path / "cat" / "f.tif")
    with pytest.raises(ValueError, match=r"f\.tif must be a picture of 8 or 16 bits, got 32 bits \(Pillow's mode F\)"):
        read_images(tmp_path)


@pytest.mark.parametrize("data", [b"P5 16J255\n", b"BM" + bytes(16) + b"\xff\xff\x00\x00" * 9, b"GIF89a", b""])
def test_a_damaged_picture_is_named_whatever_pillow_says(tmp_path, data):
    pytest.importorskip("PIL")
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.ppm").write_bytes(data)
    with pytest.raises(ValueError, match=r"a\.ppm must be a picture that Pillow reads, got "):
        read_images(tmp_path)


@pytest.mark.parametrize("classes", [10, 100])
@pytest.mark.parametrize("archive", [False, True])
def test_cifar_comes_back(tmp_path, rng, classes, archive):
    folder = tmp_path / {10: "cifar-10-batches-bin", 100: "cifar-100-binary"}[classes] if archive else tmp_path
    folder.mkdir(exist_ok=True)
    *train, test = write_cifar(folder, rng, classes)
    found = read_images(tmp_path)
    np.testing.assert_array_equal(found.images, np.concatenate([images for images, _ in train]))
    np.testing.assert_array_equal(found.labels, np.concatenate([labels for _, labels in train]))
    np.testing.assert_array_equal(found.test_images, test[0])


@pytest.mark.parametrize("split", [False, True])
def test_folders_of_pictures_come_back(tmp_path, rng, split):
    image = pytest.importorskip("PIL.Image")
    folders = [tmp_path / "train", tmp_path / "test"] if split else [tmp_path]
    written = []
    for folder in folders:
        for name in ("cat", "dog"):
            (folder / name).mkdir(parents=True)
            written.append(rng.integers(0, 256, (3, 5, 3), np.uint8))
            image.fromarray(written[-1]).save(folder / name / "a.png")
        (folder / ".checkpoints").mkdir()
        image.fromarray(written[-1]).save(folder / ".checkpoints" / "a.png")
    found = read_images(tmp_path)
    np.testing.assert_array_equal(found.images, written[:2])
    np.testing.assert_array_equal(found.test_images, np.array(written[2:]).reshape(-1, 3, 5, 3))
    assert found.labels.tolist() == [0, 1] and found.names == ("cat", "dog")
    image.new("L", (4, 4)).save(tmp_path / folders[0] / "dog" / "b.png")
    with pytest.raises(ValueError, match=r"b\.png must be a picture of \(3, 5, 3\), .*, got \(4, 4, 1\)"):
        read_images(tmp_path)


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


FAULTS = {
    "missing": (
        "t10k-labels-idx1-ubyte",
        Path.unlink,
        r"must be there, or with \.gz, got no such file",
    ),
    "truncated": ("train-images-idx3-ubyte", cut, r"must be 5 × 4 × 6 = 120 bytes behind its header, got 119\."),
    "foreign": (
        "train-labels-idx1-ubyte",
        lambda path: path.write_bytes(b"<html>not found"),
        r"must be an idx file that starts with 0x00000801, got 0x3c68746d\.",
    ),
    "of another set": (
        "t10k-labels-idx1-ubyte",
        lambda path: path.write_bytes(idx(np.zeros(2, np.uint8), 0x801)),
        r"must be as many labels as t10k-images has images, 3, got 2\.",
    ),
    "of no images": (
        "train-images-idx3-ubyte",
        lambda path: [
            path.write_bytes(idx(np.zeros((0, 4, 6), np.uint8), 0x803)),
            path.with_name("train-labels-idx1-ubyte").write_bytes(idx(np.zeros(0, np.uint8), 0x801)),
        ],
        r"must be of images, got 0 × 4 × 6 pixels\.",
    ),
    "of no pixels": (
        "train-images-idx3-ubyte",
        lambda path: path.write_bytes(idx(np.zeros((5, 0, 6), np.uint8), 0x803)),
        r"must be of images, got 5 × 0 × 6 pixels\.",
    ),
    "of more pixels than a number holds": (
        "train-images-idx3-ubyte",
        lambda path: path.write_bytes(struct.pack(">4I", 0x803, 2**31, 2**31, 4)),
        r"must be 2147483648 × 2147483648 × 4 = 18446744073709551616 bytes behind its header, got 0\.",
    ),
    "of another size": (
        "t10k-images-idx3-ubyte",
        lambda path: path.write_bytes(idx(np.zeros((3, 4, 5), np.uint8), 0x803)),
        r"must be of images of 4 × 6 pixels, as train-images is, got 4 × 5\.",
    ),
    "alone missing": (
        "train-images-idx3-ubyte",
        Path.unlink,
        r"must be there, or with \.gz, got no such file",
    ),
    "half a gzip": (
        "train-images-idx3-ubyte",
        lambda path: path.write_bytes(gzip.compress(path.read_bytes())[:-9]),
        r"must be a whole gzip file, got a damaged one",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_idx_files_that_are_not_are_named(tmp_path, rng, fault):
    write_idx(tmp_path, rng)
    name, damage, message = FAULTS[fault]
    damage(tmp_path / name)
    with pytest.raises(ValueError, match=rf"{name} {message}"):
        read_images(tmp_path)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("data_batch_3.bin", Path.unlink, r"must be there, got no such file\."),
        (
            "test_batch.bin",
            cut,
            r"must be records of 3073 bytes, .* of CIFAR-10, got 6145 bytes\.",
        ),
        ("data_batch_2.bin", lambda path: path.write_bytes(b"\xff" * 3073), r"in 0 … 9, got 255 in record 0\."),
    ],
)
def test_cifar_files_that_are_not_are_named(tmp_path, rng, name, damage, message):
    write_cifar(tmp_path, rng, 10)
    damage(tmp_path / name)
    with pytest.raises(ValueError, match=rf"{name} .*{message}"):
        read_images(tmp_path)


class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('a pickle ran')",))


def test_a_pickle_is_never_opened(tmp_path):
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match=r"data_batch_1 must be of the binary version .*, got the Python version"):
        read_images(tmp_path)


def test_other_folders_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere must be a folder with CIFAR's .*, got no such folder\."):
        read_images(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"must be a folder with .*, got a folder with none of these\."):
        read_images(tmp_path)
    (tmp_path / "cat").mkdir()
    with pytest.raises(ValueError, match=r"cat must be a folder of pictures, one class, got no picture in it\."):
        read_images(tmp_path)
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "ant").mkdir()
    image.new("L", (4, 4)).save(tmp_path / "ant" / "a.png")
    with pytest.raises(ValueError, match=r"cat must be a folder of pictures, one class, got no picture in it\."):
        read_images(tmp_path)


def test_digits_are_those_of_the_package():
    package = pytest.importorskip("sklearn.datasets")
    found = digits(test=0.25)
    images = np.concatenate([found.images, found.test_images])[..., 0]
    np.testing.assert_array_equal(np.rint(images.astype(float) * 16 / 255), package.load_digits().images)
    assert len(found.test_labels) == 449
