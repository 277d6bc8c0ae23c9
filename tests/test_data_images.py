"""A folder of class folders: what is a row, what becomes of it, and what is never said."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import sordino.data.images as images
from sordino.data import as_examples, load
from sordino.data.images import Images, load_images
from sordino.data.inputs import Target, inputs_from_json


def picture(path: Path, level: int = 100, mode: str = "RGB", size: tuple[int, int] = (40, 30)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    colour = level if mode == "L" else (level,) * len(mode)
    Image.new(mode, size, colour).save(path)
    return path


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    folder = tmp_path / "pets"
    for number in range(3):
        picture(folder / "dog" / f"{number}.png", 50 * number)
    picture(folder / "cat" / "b.jpg", 200)
    picture(folder / "cat" / "a.bmp", 255)
    return folder


def everything(loaded_or_examples: object) -> tuple[torch.Tensor, torch.Tensor]:
    examples = as_examples(loaded_or_examples)
    inputs, targets = examples.take(torch.arange(len(examples)))
    assert isinstance(inputs, torch.Tensor)
    return inputs, targets


def test_rows_are_in_the_order_of_classes_and_names_and_scaled_by_constants(pets: Path) -> None:
    loaded = load(pets, image_size=8)
    inputs, targets = everything(loaded.train)
    assert loaded.input_shape == (3, 8, 8) == tuple(inputs.shape[1:])
    assert targets.tolist() == [0, 0, 1, 1, 1]  # cat before dog
    levels = (inputs.mean((1, 2, 3)) + 0.5) * 255
    torch.testing.assert_close(levels, torch.tensor([255.0, 200, 0, 50, 100]), rtol=0, atol=1.5)
    assert (loaded.name, loaded.classes, loaded.test) == ("pets", 2, None)
    assert loaded.inputs is not None
    assert loaded.inputs.target.labels == ("cat", "dog")


def test_names_of_files_are_in_the_order_of_the_rows(pets: Path) -> None:
    picture(pets / "dog" / "older" / "x.png", 25)
    inputs = Images(Target("class", ("cat", "dog")), size=4)
    files = ["cat/a.bmp", "cat/b.jpg", "dog/0.png", "dog/1.png", "dog/2.png", "dog/older/x.png"]
    assert inputs.names(pets) == inputs.names(f"{pets}/") == files
    for rows, levels in ((pets, (255, 200, 0, 50, 100, 25)), (pets / "dog" / "1.png", (50,))):
        shown, _ = everything(inputs.examples(rows, targets=False))
        found = (shown.mean((1, 2, 3)) + 0.5) * 255
        torch.testing.assert_close(found, torch.tensor(levels).float(), rtol=0, atol=1.5)
    assert inputs.names(str(pets / "dog" / "1.png")) == ["1.png"]
    assert inputs.names([pets / "dog" / "1.png"]) == [str(pets / "dog" / "1.png")]


def test_a_name_of_a_file_that_is_no_text_is_shown_as_text(tmp_path: Path) -> None:
    picture(tmp_path / "a.png").rename(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png"))
    (name,) = Images(Target("class", ("cat", "dog"))).names(tmp_path)
    assert name.encode() == "caf\ufffd.png".encode()


def test_the_size_is_chosen_and_not_read(pets: Path) -> None:
    assert load(pets).input_shape == (3, 32, 32)
    assert load(pets, image_size=5, grey=True).input_shape == (1, 5, 5)
    with pytest.raises(ValueError, match="give a size from 1 to 1024"):
        load(pets, image_size=0)
    assert any("chosen and not read" in each for each in load(pets).public)


def test_a_file_that_is_no_image_keeps_its_place_and_contributes_nothing(pets: Path) -> None:
    (pets / "cat" / "aa.png").write_bytes(b"Anna Meier")
    cut = picture(pets / "dog" / "1.png", 7)
    cut.write_bytes(cut.read_bytes()[:60])
    examples = as_examples(load(pets, image_size=4).train)
    assert len(examples) == 6
    kept, inputs, targets = examples.take_readable(torch.arange(6))
    assert kept.tolist() == [0, 2, 3, 5]
    assert targets.tolist() == [0, 0, 1, 1]
    assert torch.equal(inputs, everything(examples)[0][kept])


def test_nothing_is_said_of_what_cannot_be_read(
    pets: Path, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    load(pets)
    quiet = capfd.readouterr()
    (pets / "dog" / "2.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"secret" * 20)
    load(pets)
    assert capfd.readouterr() == quiet
    assert len(recwarn) == 0


def bomb(path: Path, side: int) -> None:
    """A small file that says it is a large image."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + body)


def test_an_image_of_too_many_pixels_is_not_unpacked_though_it_could_be(
    pets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "_MOST_PIXELS", 40 * 30)
    picture(pets / "dog" / "0.png", size=(41, 30))
    kept, _, _ = as_examples(load(pets).train).take_readable(torch.arange(5))
    assert kept.tolist() == [0, 1, 3, 4]


@pytest.mark.parametrize("side", [8_000, 10_000, 60_000])
def test_an_image_that_would_fill_the_memory_is_not_unpacked(
    pets: Path, side: int, recwarn: pytest.WarningsRecorder
) -> None:
    bomb(pets / "dog" / "0.png", side)
    kept, _, _ = as_examples(load(pets).train).take_readable(torch.arange(5))
    assert kept.tolist() == [0, 1, 3, 4]
    assert len(recwarn) == 0


def test_hidden_files_and_other_files_are_no_rows_and_folders_in_folders_are_read(pets: Path) -> None:
    for name in (".DS_Store", "Thumbs.db", "notes.txt", ".a.png"):
        (pets / "cat" / name).write_bytes(b"x")
    (pets / ".hidden").mkdir()
    picture(pets / "cat" / ".thumbnails" / "a.png")
    (pets / "readme.txt").write_text("x")
    assert len(as_examples(load(pets).train)) == 5
    picture(pets / "cat" / "more" / "a.png")
    assert len(as_examples(load(pets).train)) == 6


def test_an_empty_class_is_a_class(pets: Path) -> None:
    (pets / "bird").mkdir()
    loaded = load(pets)
    assert loaded.classes == 3
    assert everything(loaded.train)[1].tolist() == [1, 1, 2, 2, 2]


def test_declared_classes_win(pets: Path) -> None:
    loaded = load(pets, labels=("dog", "wolf", "cat"))
    assert everything(loaded.train)[1].tolist() == [0, 0, 0, 2, 2]
    with pytest.raises(ValueError, match="a folder 'cat' that is not among the classes"):
        load(pets, labels=("dog", "wolf"))
    with pytest.raises(ValueError, match="has 2 class folders: leave out classes=3"):
        load(pets, classes=3)


def test_train_and_test_are_understood_and_a_class_may_be_called_so(tmp_path: Path) -> None:
    for part, count in (("train", 3), ("test", 2)):
        for name in ("cat", "dog"):
            for number in range(count):
                picture(tmp_path / "pets" / part / name / f"{number}.png")
    loaded = load(tmp_path / "pets")
    assert (len(loaded.train), len(loaded.test), loaded.classes) == (6, 4, 2)
    for name in ("train", "bus"):
        picture(tmp_path / "vehicles" / name / "1.png")
    vehicles = load(tmp_path / "vehicles")
    assert vehicles.inputs is not None
    assert vehicles.inputs.target.labels == ("bus", "train")


def test_links_and_one_file_under_two_names_are_refused_without_their_names(
    pets: Path, tmp_path: Path
) -> None:
    elsewhere = picture(tmp_path / "elsewhere" / "anna.png")
    link = pets / "cat" / "anna-link.png"
    link.symlink_to(elsewhere)
    with pytest.raises(
        ValueError, match=r"^class folder 'cat' holds links: put the images themselves there$"
    ):
        load(pets)
    link.unlink()
    os.link(pets / "dog" / "0.png", pets / "cat" / "c.png")
    with pytest.raises(ValueError, match=r"^a file is there under two names and would count as two rows"):
        load(pets)
    os.unlink(pets / "cat" / "c.png")
    (pets / "bird").symlink_to(elsewhere.parent)
    with pytest.raises(ValueError, match="a class folder that is a link"):
        load(pets)


def test_folders_without_images_get_one_line(tmp_path: Path, pets: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(ValueError, match="has 0 class folders: put images into a folder for each class"):
        load_images(tmp_path / "elsewhere")
    for name in ("a", "b"):
        (tmp_path / "elsewhere" / name).mkdir()
    with pytest.raises(ValueError, match="there are no images in it"):
        load(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="is no folder"):
        load_images(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="leave out the target 'y'"):
        load(pets, target="y")
    with pytest.raises(ValueError, match="digits is no folder of images"):
        load("digits", grey=True)


def test_colours_transparency_and_depth_are_defined(tmp_path: Path) -> None:
    folder = tmp_path / "kinds"
    clear = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
    clear.save(folder / "a" / "1-clear.png")
    Image.fromarray(np.full((8, 8), 65535, dtype=np.uint16)).save(folder / "a" / "2-deep.png")
    Image.new("P", (8, 8), 0).save(folder / "a" / "3-palette.gif")
    picture(folder / "a" / "4-grey.png", 128, "L")
    wide = np.zeros((10, 20, 3), dtype=np.uint8)
    wide[:, :10] = 255
    Image.fromarray(wide).save(folder / "b" / "wide.png")
    inputs, _ = everything(load(folder, image_size=4, grey=True).train)
    levels = ((inputs.mean((1, 2, 3)) + 0.5) * 255).round().tolist()
    assert levels[:4] == [255, 255, 0, 128]
    assert (inputs[4, 0, :, 0] > 0.4).all()  # stretched, neither cut nor turned
    assert (inputs[4, 0, :, 3] < -0.4).all()


def test_a_photograph_stands_upright(tmp_path: Path) -> None:
    left = np.zeros((16, 16, 3), dtype=np.uint8)
    left[:, :8] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter: its left side is up
    (tmp_path / "a").mkdir()
    Image.fromarray(left).save(tmp_path / "a" / "1.png", exif=exif)
    small = Images(Target("class", ("a", "b")), 4, True)
    inputs, _ = everything(small.examples(tmp_path, targets=False))
    assert (inputs[0, 0, 0] > 0.4).all()
    assert (inputs[0, 0, 3] < -0.4).all()


def test_the_same_images_again_from_what_a_run_keeps(pets: Path) -> None:
    loaded = load(pets, image_size=6, grey=True)
    assert loaded.inputs is not None
    again = inputs_from_json(loaded.inputs.to_json())
    assert again == loaded.inputs
    assert torch.equal(everything(again.examples(pets))[0], everything(loaded.train)[0])
    flat = again.examples(pets / "dog", targets=False)
    assert torch.equal(everything(flat)[0], everything(loaded.train)[0][2:])
    one = again.examples([pets / "dog" / "2.png"], targets=False)
    assert torch.equal(everything(one)[0], everything(loaded.train)[0][4:])
    for damaged in ({"size": "6"}, {"grey": 1}, {"size": None}):
        with pytest.raises(ValueError, match="inputs is incomplete"):
            inputs_from_json({**loaded.inputs.to_json(), **damaged})


def test_one_row_moves_no_other(pets: Path) -> None:
    before = everything(load(pets).train)
    (pets / "dog" / "0.png").write_bytes(b"nothing")
    after = everything(load(pets).train)
    assert torch.equal(before[0][[0, 1, 3, 4]], after[0][[0, 1, 3, 4]])
    assert torch.equal(before[1], after[1])
