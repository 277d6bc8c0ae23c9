from __future__ import annotations

import doctest
import gzip
import hashlib
import importlib
import io
import json
import os
import struct
import tarfile
import threading
import warnings
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sordino.data
from sordino.data import NAMED_SETS, as_examples, load
from sordino.data.cifar import ARCHIVE, load_cifar10
from sordino.data.download import Folders, download
from sordino.data.idx import FASHION_MNIST, MNIST, read_idx
from sordino.data.inputs import Target, inputs_from_json
from sordino.data.named import Named

RANDOM = np.random.default_rng(0)


def real_data() -> Path | None:
    """The folder of real public files, if this machine has one."""
    if found := os.environ.get("SORDINO_DATA"):
        return Path(found)
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    return beside if beside.is_dir() else None


REAL = real_data()


@pytest.fixture(autouse=True)
def no_data_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads the user's folders or the network unless it says so."""
    monkeypatch.delenv("SORDINO_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def offline(*_: Any, **__: Any) -> Any:
        raise OSError("the tests are offline")

    monkeypatch.setattr("urllib.request.urlopen", offline)


def idx_bytes(values: np.ndarray[Any, Any]) -> bytes:
    header = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    return header + values.astype(np.uint8).tobytes()


def write_mnist(
    folder: Path, train: int = 20, test: int = 10, packed: bool = True
) -> dict[str, np.ndarray[Any, Any]]:
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for prefix, rows in (("train", train), ("t10k", test)):
        arrays[f"{prefix}-images-idx3-ubyte"] = RANDOM.integers(0, 256, (rows, 28, 28))
        arrays[f"{prefix}-labels-idx1-ubyte"] = RANDOM.integers(0, 10, rows)
    for name, values in arrays.items():
        content = idx_bytes(values)
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)
    return arrays


def cifar_files(rows: int = 4) -> dict[str, bytes]:
    files = {}
    for name in [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]:
        records = RANDOM.integers(0, 256, (rows, 3073)).astype(np.uint8)
        records[:, 0] %= 10
        files[name] = records.tobytes()
    return files


def write_cifar(root: Path, files: dict[str, bytes]) -> Path:
    folder = root / "cifar10" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def cifar_archive(files: dict[str, bytes], prefix: str = "cifar-10-batches-bin") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in {**files, "readme.html": b"hello"}.items():
            member = tarfile.TarInfo(f"{prefix}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def one_line(caught: pytest.ExceptionInfo[ValueError]) -> str:
    text = str(caught.value)
    assert "\n" not in text
    return text


# The registry and the embedded set


def test_exports_are_sorted_and_exist() -> None:
    assert sorted(sordino.data.__all__) == sorted(set(sordino.data.__all__))
    assert all(hasattr(sordino.data, name) for name in sordino.data.__all__)
    assert list(NAMED_SETS) == sorted(NAMED_SETS)


@pytest.mark.parametrize("module", ["groups", "named", "sources", "tree", "wrong"])
def test_doctests(module: str) -> None:
    assert (
        doctest.testmod(importlib.import_module(f"sordino.data.{module}"), extraglobs={"torch": torch}).failed
        == 0
    )


def test_digits_are_embedded_and_split_by_position() -> None:
    from sklearn.datasets import load_digits

    digits = load("digits")
    (inputs, targets), test = digits.train, digits.test
    assert test is not None
    assert inputs.shape == (1437, 1, 8, 8)
    assert test[0].shape == (360, 1, 8, 8)
    assert inputs.dtype == torch.float32
    assert targets.dtype == torch.int64
    assert inputs.min() == 0
    assert inputs.max() == 1
    bundled = load_digits()
    np.testing.assert_array_equal(test[1].numpy(), bundled.target[::5])
    np.testing.assert_allclose(test[0][:, 0].numpy() * 16, bundled.images[::5])
    assert (digits.classes, digits.input_shape, digits.task) == (10, (1, 8, 8), "classification")
    with pytest.raises(FrozenInstanceError):
        digits.name = "other"  # type: ignore[misc]


def test_digits_need_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SORDINO_DATA", "no/such/folder")
    assert load("digits").name == "digits"
    with pytest.raises(ValueError, match="SORDINO_DATA is no/such/folder, which is not a folder") as caught:
        load("mnist")
    one_line(caught)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fashion_mnist", "did you mean fashion-mnist"),
        ("MNIST", "did you mean mnist"),
        ("cifar-10", "did you mean cifar10"),
        (
            "imagenet",
            "unknown data set 'imagenet': there are adult, ag-news, cifar10, digits, emnist-bymerge",
        ),
        ("", "unknown data set"),
        ("table.csv", "does not exist"),
        ("table.parquet", "does not exist"),
        ("image.png", "image.png is not read"),
        ("missing.npz", "does not exist"),
        ("some/where", "is not read"),
    ],
)
def test_unknown_names_and_paths_get_one_line(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        load(name)
    one_line(caught)


def test_a_folder_is_one_of_images(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has 0 class folders: put images into a folder for each class"):
        load(tmp_path)


def test_a_name_wins_over_a_file_and_a_path_object_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("digits").touch()
    assert load("digits").name == "digits"
    for path in (Path("digits"), "./digits"):
        with pytest.raises(ValueError, match="is not read"):
            load(path)


def test_settings_that_do_not_apply_are_refused() -> None:
    with pytest.raises(ValueError, match="leave out the target"):
        load("digits", target="label")
    with pytest.raises(ValueError, match="10 classes"):
        load("digits", classes=3)
    with pytest.raises(ValueError, match="at least two"):
        load("digits", classes=1)
    assert load("digits", classes=10).classes == 10


# MNIST and relatives


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("spec", [MNIST, FASHION_MNIST], ids=lambda spec: str(spec.name))
def test_idx_files_are_read_and_scaled_by_public_constants(tmp_path: Path, spec: Any, packed: bool) -> None:
    arrays = write_mnist(tmp_path / spec.name, packed=packed)
    loaded = load(spec.name, root=tmp_path)
    (inputs, targets), test = loaded.train, loaded.test
    assert test is not None
    assert inputs.shape == (20, 1, 28, 28)
    assert test[0].shape == (10, 1, 28, 28)
    expected = (arrays["train-images-idx3-ubyte"] / 255 - spec.mean) / spec.std
    np.testing.assert_allclose(inputs[:, 0].numpy(), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(targets.numpy(), arrays["train-labels-idx1-ubyte"])
    assert (loaded.mean, loaded.std) == ((spec.mean,), (spec.std,))
    assert len(as_examples(loaded.train)) == 20


def test_scaling_does_not_depend_on_other_rows(tmp_path: Path) -> None:
    arrays = write_mnist(tmp_path / "a" / "mnist")
    images = arrays["train-images-idx3-ubyte"].copy()
    images[1:] = 255
    write_mnist(tmp_path / "b" / "mnist")
    (tmp_path / "b" / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(images)))
    first, second = (load("mnist", root=tmp_path / part).train[0][0] for part in "ab")
    assert torch.equal(first, second)


def test_the_environment_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path / "mnist")
    monkeypatch.setenv("SORDINO_DATA", str(tmp_path))
    assert len(load("mnist").train[1]) == 20


def test_the_cache_is_read_too(tmp_path: Path) -> None:
    write_mnist(tmp_path / "cache" / "sordino" / "mnist")
    (tmp_path / "mine").mkdir()
    assert len(load("mnist", root=tmp_path / "mine").train[1]) == 20


GOOD_IMAGES = idx_bytes(np.ones((20, 28, 28)))
GOOD_GZIP = gzip.compress(GOOD_IMAGES)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an idx file"),
        (b"<html>not found</html>", "not an idx file"),
        (b"\0\0\x0d\x03" + GOOD_IMAGES[4:], "not an idx file of unsigned bytes"),
        (GOOD_IMAGES[:9], "ends inside its header"),
        (GOOD_IMAGES[:-1], "should hold 15,680 values"),
        (GOOD_IMAGES + b"\0", "and holds more"),
        (GOOD_GZIP[: len(GOOD_GZIP) // 2], "cut short or damaged"),
        (GOOD_GZIP[:-4], "cut short or damaged"),
        (GOOD_GZIP[:-6] + b"\xff\xff" + GOOD_GZIP[-4:], "cut short or damaged"),
        (GOOD_GZIP[:20] + b"\xff" * 10 + GOOD_GZIP[30:], "cut short or damaged"),
        (gzip.compress(b"\0\0\x08\x03" + b"\xff" * 12 + b"few"), "and holds 3"),
        (b"\0\0\x08\x03" + b"\xff" * 12 + b"few", "and holds 3"),
        (gzip.compress(idx_bytes(np.ones((20, 27, 28)))), r"not \(rows, 28, 28\)"),
        (gzip.compress(idx_bytes(np.ones((0, 28, 28)))), r"not \(rows, 28, 28\)"),
        (gzip.compress(idx_bytes(np.ones(20))), r"not \(rows, 28, 28\)"),
        (gzip.compress(idx_bytes(np.ones((19, 28, 28)))), "for 19 images"),
    ],
)
def test_damaged_images_get_one_line_with_the_file(tmp_path: Path, content: bytes, message: str) -> None:
    write_mnist(tmp_path / "mnist")
    path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        load("mnist", root=tmp_path)
    assert "mnist/train-" in one_line(caught)


def test_labels_are_checked(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    path = tmp_path / "mnist" / "train-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(idx_bytes(np.full(20, 10))))
    with pytest.raises(ValueError, match="labels above 9"):
        load("mnist", root=tmp_path)


def test_a_folder_in_place_of_a_file_gets_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot read") as caught:
        read_idx(tmp_path)
    one_line(caught)


# CIFAR-10


@pytest.mark.parametrize("form", ["folder", "archive", "archive with ./"])
def test_cifar_is_read_from_its_public_forms(tmp_path: Path, form: str) -> None:
    files = cifar_files()
    if form == "folder":
        write_cifar(tmp_path, files)
    else:
        prefix = "./cifar-10-batches-bin" if "./" in form else "cifar-10-batches-bin"
        (tmp_path / "cifar10").mkdir()
        (tmp_path / ARCHIVE.path).write_bytes(cifar_archive(files, prefix))
    loaded = load("cifar10", root=tmp_path)
    (inputs, targets), test = loaded.train, loaded.test
    assert test is not None
    assert inputs.shape == (20, 3, 32, 32)
    assert test[0].shape == (4, 3, 32, 32)
    record = np.frombuffer(files["data_batch_2.bin"], dtype=np.uint8).reshape(4, 3073)[1]
    assert targets[5] == record[0]
    for channel, (mean, std) in enumerate(zip(loaded.mean, loaded.std, strict=True)):
        plane = record[1 + 1024 * channel : 1 + 1024 * (channel + 1)].reshape(32, 32)
        np.testing.assert_allclose(
            inputs[5, channel].numpy(), (plane / 255 - mean) / std, rtol=1e-4, atol=1e-6
        )
    assert loaded.mean == (0.4914, 0.4822, 0.4465)
    assert loaded.std == (0.2023, 0.1994, 0.2010)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read .*data_batch_3.bin"),
        (b"", "0 bytes, not whole records"),
        (b"\0" * 3072, "not whole records of 3,073"),
        (b"\x0a" * 3073, "labels above 9"),
    ],
)
def test_damaged_cifar_files_get_one_line(tmp_path: Path, content: bytes | None, message: str) -> None:
    folder = write_cifar(tmp_path, cifar_files())
    if content is None:
        (folder / "data_batch_3.bin").unlink()
    else:
        (folder / "data_batch_3.bin").write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        load("cifar10", root=tmp_path)
    assert "data_batch_3.bin" in one_line(caught)


@pytest.mark.parametrize("damage", ["cut", "not a tar", "empty", "file missing"])
def test_damaged_cifar_archives_get_one_line(tmp_path: Path, damage: str) -> None:
    files = cifar_files()
    whole = cifar_archive(files)
    content = {
        "cut": whole[: len(whole) // 2],
        "not a tar": b"<html>",
        "empty": b"",
        "file missing": cifar_archive({"test_batch.bin": files["test_batch.bin"]}),
    }[damage]
    (tmp_path / "cifar10").mkdir()
    (tmp_path / ARCHIVE.path).write_bytes(content)
    with pytest.raises(ValueError, match=r"cifar-10-binary\.tar\.gz") as caught:
        load("cifar10", root=tmp_path)
    one_line(caught)


# Downloads


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    """A public home on the loopback, and the folder that it serves."""
    monkeypatch.undo()
    monkeypatch.delenv("SORDINO_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}/", folder
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def test_a_missing_set_is_downloaded_once(server: tuple[str, Path], tmp_path: Path) -> None:
    home, folder = server
    arrays = write_mnist(folder)
    sums = {name: md5((folder / f"{name}.gz").read_bytes()) for name in arrays}
    mnist = replace(MNIST, home=home, md5=sums)
    mine = tmp_path / "mine"
    mine.mkdir()
    first = mnist.load(Folders.of(mine))
    assert sorted(path.name for path in (mine / "mnist").iterdir()) == sorted(f"{name}.gz" for name in arrays)
    for path in folder.iterdir():
        path.unlink()
    second = mnist.load(Folders.of(mine))
    assert torch.equal(first.train[0], second.train[0])
    np.testing.assert_array_equal(second.train[1].numpy(), arrays["train-labels-idx1-ubyte"])


def test_without_a_folder_downloads_go_to_the_cache(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, folder = server
    content = cifar_archive(cifar_files())
    (folder / "cifar-10-binary.tar.gz").write_bytes(content)
    archive = replace(ARCHIVE, url=f"{home}cifar-10-binary.tar.gz", md5=md5(content))
    monkeypatch.setattr("sordino.data.cifar.ARCHIVE", archive)
    assert len(load_cifar10(Folders.of()).train[1]) == 20
    assert (tmp_path / "cache" / "sordino" / archive.path).exists()


def test_a_folder_that_cannot_be_written_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    content = cifar_archive(cifar_files())
    (tmp_path / "home.tar.gz").write_bytes(content)
    archive = replace(ARCHIVE, url=(tmp_path / "home.tar.gz").as_uri(), md5=md5(content))
    (tmp_path / "mine").mkdir()
    monkeypatch.setattr("os.access", lambda *_: False)
    fetched = Folders(tmp_path / "mine", tmp_path / "cache").fetch(archive)
    assert fetched == tmp_path / "cache" / archive.path
    assert list((tmp_path / "mine").iterdir()) == []


def test_a_wrong_checksum_leaves_nothing_behind(server: tuple[str, Path], tmp_path: Path) -> None:
    home, folder = server
    (folder / "file").write_bytes(b"swapped")
    with pytest.raises(ValueError, match="wrong checksum") as caught:
        download(f"{home}file", tmp_path / "out" / "file", md5(b"published"))
    one_line(caught)
    assert list((tmp_path / "out").iterdir()) == []


def test_an_earlier_file_survives_a_failed_download(server: tuple[str, Path], tmp_path: Path) -> None:
    home, folder = server
    (folder / "file").write_bytes(b"swapped")
    destination = tmp_path / "file"
    destination.write_bytes(b"earlier")
    with pytest.raises(ValueError, match="wrong checksum"):
        download(f"{home}file", destination, md5(b"published"))
    assert destination.read_bytes() == b"earlier"


def test_a_missing_page_says_what_to_do(server: tuple[str, Path], tmp_path: Path) -> None:
    home, _ = server
    with pytest.raises(ValueError, match=r"could not download http.*HTTP Error 404") as caught:
        replace(MNIST, home=home).load(Folders.of(tmp_path))
    assert "set SORDINO_DATA to a folder with mnist/train-images-idx3-ubyte.gz" in one_line(caught)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_offline_says_which_file_and_where(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        ValueError, match=f"could not download http.*set SORDINO_DATA to a folder with {name}/"
    ) as caught:
        load(name, root=tmp_path)
    one_line(caught)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_of_a_folder_gets_one_line(server: tuple[str, Path], tmp_path: Path) -> None:
    home, folder = server
    write_mnist(folder)
    (tmp_path / "mnist").touch()
    with pytest.raises(ValueError, match="could not download") as caught:
        replace(MNIST, home=home).load(Folders.of(tmp_path))
    one_line(caught)


# The real files


@pytest.mark.parametrize("spec", [MNIST, FASHION_MNIST], ids=lambda spec: str(spec.name))
def test_the_real_files_match_the_published_checksums(spec: Any) -> None:
    if REAL is None or not (REAL / spec.name / "train-images-idx3-ubyte.gz").exists():
        pytest.skip("no real data on this machine")
    for name, published in spec.md5.items():
        assert md5((REAL / spec.name / f"{name}.gz").read_bytes()) == published
    loaded = load(spec.name, root=REAL)
    assert loaded.test is not None
    assert loaded.train[0].shape == (60000, 1, 28, 28)
    assert loaded.test[0].shape == (10000, 1, 28, 28)
    # The published constants are those of the real training images.
    assert abs(loaded.train[0].mean()) < 2e-3
    assert abs(loaded.train[0].std() - 1) < 2e-3
    assert loaded.train[1].bincount().min() > 5000


def test_the_real_cifar10() -> None:
    if REAL is None or not (REAL / "cifar10" / "cifar-10-batches-bin").exists():
        pytest.skip("no real data on this machine")
    loaded = load("cifar10", root=REAL)
    assert loaded.train[0].shape == (50000, 3, 32, 32)
    assert loaded.train[1].bincount().tolist() == [5000] * 10


def test_loading_warns_about_nothing(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    write_cifar(tmp_path, cifar_files())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load("mnist", root=tmp_path)
        load("cifar10", root=tmp_path)


# EMNIST


def write_emnist(folder: Path, split: str, labels: list[int]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    images = np.zeros((len(labels), 28, 28))
    images[:, 3, 20] = 255  # stored with rows and columns exchanged: it is row 20, column 3
    for part in ("train", "test"):
        stem = folder / f"emnist-{split}-{part}"
        Path(f"{stem}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(images)))
        Path(f"{stem}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(np.array(labels))))


@pytest.mark.parametrize(
    ("split", "labels", "classes", "targets"),
    [("bymerge", [0, 46, 3], 47, [0, 46, 3]), ("letters", [1, 26, 10], 26, [0, 25, 9])],
)
def test_emnist_is_turned_and_counted_from_zero(
    tmp_path: Path, split: str, labels: list[int], classes: int, targets: list[int]
) -> None:
    write_emnist(tmp_path / "emnist", split, labels)
    loaded = load(f"emnist-{split}", root=tmp_path)
    assert (loaded.classes, loaded.input_shape) == (classes, (1, 28, 28))
    assert loaded.train[1].tolist() == targets
    assert loaded.test is not None
    assert loaded.test[1].tolist() == targets
    assert loaded.train[0][0, 0].argmax() == 20 * 28 + 3


def test_emnist_labels_are_checked_and_a_missing_file_says_where_to_get_it(tmp_path: Path) -> None:
    write_emnist(tmp_path / "emnist", "letters", [0, 26])
    with pytest.raises(ValueError, match="labels below 1"):
        load("emnist-letters", root=tmp_path)
    with pytest.raises(ValueError, match="emnist-bymerge-train-images") as caught:
        load("emnist-bymerge", root=tmp_path)
    assert "SORDINO_DATA" in one_line(caught)


def test_a_named_set_says_what_its_rows_are() -> None:
    digits = load("digits")
    inputs = digits.inputs
    assert inputs is not None
    assert inputs_from_json(json.loads(json.dumps(inputs.to_json()))) == inputs
    torch.testing.assert_close(inputs.examples("digits").take(torch.arange(360))[0], digits.test[0])
    torch.testing.assert_close(inputs.examples(digits.test).take(torch.arange(360))[1], digits.test[1])
    with pytest.raises(ValueError, match="are floats, scaled as its reader does"):
        inputs.examples(np.zeros((1, 1, 8, 8), np.uint8), targets=False).take(torch.arange(1))
    assert inputs.public == digits.public


def test_bytes_of_images_are_scaled_as_their_set_is() -> None:
    grey = Named(Target("label", ("0", "1")), "mnist", (1, 2, 2), (0.1307,), (0.3081,), ())
    rows = grey.examples(np.full((1, 1, 2, 2), 255, np.uint8), targets=False).take(torch.arange(1))[0]
    torch.testing.assert_close(rows, torch.full((1, 1, 2, 2), (1 - 0.1307) / 0.3081))
