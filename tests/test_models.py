from __future__ import annotations

import doctest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sordino import models
from sordino.models import build_model, default_features, default_model
from sordino.named import DATA_SETS


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("build", "parameters", "input_shape", "output_shape"),
    [
        (models.mnist_mlp, 334_336, (1, 28, 28), (10,)),
        (models.cifar_fc, 1_055_000, (1600,), (10,)),
        (models.dp_ftrl_cnn, 26_010, (1, 28, 28), (10,)),
        (lambda: models.dp_ftrl_cnn(classes=47), 27_231, (1, 28, 28), (47,)),
        (models.dp_ftrl_cifar_cnn, 550_570, (3, 32, 32), (10,)),
        (models.oso_cnn, 551_322, (1, 28, 28), (10,)),
        (models.oso_autoencoder, 48_705, (1, 28, 28), (1, 28, 28)),
        (models.bag_of_words_fc, 113_156, (750,), (4,)),
        (lambda: build_model("linear", (1, 28, 28), 10), 7_850, (1, 28, 28), (10,)),
        (lambda: build_model("mlp", (5,), 3), 6 * 256 + 257 * 3, (5,), (3,)),
        (lambda: build_model("mlp:256,256", (1, 28, 28), 10), 269_322, (1, 28, 28), (10,)),
        (lambda: build_model("cnn", (1, 28, 28), 10), 26_010, (1, 28, 28), (10,)),
        (lambda: build_model("cnn", (28, 28), 10), 26_010, (28, 28), (10,)),
        (lambda: build_model("cnn", (3, 32, 32), 10), 550_570, (3, 32, 32), (10,)),
        (lambda: build_model("cnn", (1, 8, 8), 10), 21_546, (1, 8, 8), (10,)),
    ],
)
def test_parameter_counts_and_shapes(
    build: Callable[[], nn.Module],
    parameters: int,
    input_shape: tuple[int, ...],
    output_shape: tuple[int, ...],
) -> None:
    model = build()
    assert count(model) == parameters
    assert model(torch.rand(2, *input_shape)).shape == (2, *output_shape)


@pytest.mark.parametrize(
    ("build", "parameters"), [(models.text_transformer, 424_324), (models.text_lstm, 419_844)]
)
def test_text_models(build: Callable[[], nn.Module], parameters: int) -> None:
    model = build()
    assert count(model) == parameters
    ids = torch.randint(0, 5000, (3, 64))
    logits = model(ids)
    assert logits.shape == (3, 4)
    # Examples do not touch one another, in training mode too: no dropout, no batch statistics.
    torch.testing.assert_close(model.train()(ids[1:2]), logits[1:2], rtol=1e-4, atol=1e-5)
    assert model(ids[:, :10]).shape == (3, 4)
    assert model(ids[:0]).shape == (0, 4)


@pytest.mark.parametrize(
    "size", [(1, 1), (2, 9), (4, 4), (7, 7), (8, 8), (15, 40), (16, 16), (64, 64), (224, 224)]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_cnn_fits_any_image(size: tuple[int, int], channels: int) -> None:
    model = build_model("cnn", (channels, *size), 5)
    assert model(torch.rand(2, channels, *size)).shape == (2, 5)
    assert count(model) < 110_000


@pytest.mark.parametrize("spec", ["linear", "mlp", "cnn"])
def test_built_models_keep_examples_apart(spec: str) -> None:
    model = build_model(spec, (1, 8, 8), 10).train()
    batch = torch.rand(6, 1, 8, 8)
    torch.testing.assert_close(model(batch)[2:3], model(batch[2:3]))
    assert not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def test_weights_follow_the_papers() -> None:
    last: Any = models.mnist_mlp()[-1].weight
    assert 0.9 / 10**0.5 < last.abs().max() <= 1 / 10**0.5
    network = models.dp_ftrl_cifar_cnn()
    convolution = network[2]
    assert isinstance(convolution, nn.Conv2d)
    assert convolution.weight.std().item() == pytest.approx((32 * 9) ** -0.5, rel=0.05)
    assert not any(values.any() for name, values in network.named_parameters() if name.endswith("bias"))


def test_weights_come_from_the_global_generator() -> None:
    torch.manual_seed(3)
    first = build_model("cnn", (1, 8, 8), 10)
    torch.manual_seed(3)
    second = build_model("cnn", (1, 8, 8), 10)
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["digits", "mnist", "fashion-mnist", "cifar10", "people"])
def test_default_models_can_be_built(name: str) -> None:
    shape = {"digits": (1, 8, 8), "cifar10": (3, 32, 32), "people": (13,)}.get(name, (1, 28, 28))
    model = build_model(default_model(name, shape), shape, 10)
    assert model(torch.rand(2, *shape)).shape == (2, 10)


def test_features_stand_in_front_by_default_where_images_are_known() -> None:
    scattered = {"cifar10", "emnist-bymerge", "emnist-letters", "fashion-mnist", "mnist"}
    assert {name for name in DATA_SETS if default_features(name) is not None} == scattered
    assert (
        default_features("cifar10") == "scattering,mirrored=true"
    )  # left and right say nothing in photographs
    assert {default_features(name) for name in scattered - {"cifar10"}} == {"scattering"}
    assert default_features("pictures/of mine") is None
    for name in scattered:
        assert default_model(name, (1, 28, 28), default_features(name)) == "linear"
        assert default_model(name, (1, 28, 28), "none") == default_model(name, (1, 28, 28)) == "cnn"


USER_CODE = """
from __future__ import annotations
import dataclasses
import torch
from torch import nn
import beside

@dataclasses.dataclass
class Settings:
    size: int = 3

class Net(nn.Module):
    def __init__(self, hidden=4):
        super().__init__()
        self.layer = nn.Linear(hidden, 2)

class Space:
    @staticmethod
    def build():
        return Net(5)

def no_arguments(): return Net()
def both(input_shape, classes): return nn.Linear(input_shape[0], classes)
def keywords(*, classes, input_shape, extra=1): return nn.Linear(input_shape[0], classes)
def only_classes(classes=10): return nn.Linear(1, classes)
def by_position(shape, k): return nn.Linear(shape[0], k)
def anything(*args, **settings): return Net()
def needs_more(input_shape, classes, depth): return Net()
def needs_one(depth): return Net()
def not_a_module(): return 3
def fails(): raise RuntimeError("two\\nlines")
instance = Net()
number = 3
"""


@pytest.fixture
def user_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_sordino_models.py").write_text(USER_CODE)
    (tmp_path / "beside.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "my_sordino_models.py"


@pytest.mark.parametrize("by_path", [True, False])
@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("no_arguments", (2, 4)),
        ("Net", (2, 4)),
        ("Space.build", (2, 5)),
        ("both", (6, 13)),
        ("keywords", (6, 13)),
        ("only_classes", (6, 1)),
        ("by_position", (6, 13)),
        ("anything", (2, 4)),
        ("instance", (2, 4)),
    ],
)
def test_a_users_own_model(user_file: Path, by_path: bool, name: str, weights: tuple[int, int]) -> None:
    place = str(user_file) if by_path else user_file.stem
    model = build_model(f"{place}:{name}", (13,), 6)
    assert next(model.parameters()).shape == weights


def test_an_instance_is_copied(user_file: Path) -> None:
    first, second = (build_model(f"{user_file.stem}:instance", (13,), 6) for _ in range(2))
    assert first is not second


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "unknown model ''"),
        ("resnet", "unknown model 'resnet': use linear"),
        ("cnn:3", "cannot import cnn"),
        ("mlp:", "positive whole numbers"),
        ("mlp:12,x", "positive whole numbers"),
        ("mlp:0", "positive whole numbers"),
        ("mlp:-3", "positive whole numbers"),
        ("mlp:³", "positive whole numbers"),
        (":build", "unknown model"),
        ("no_such_module:build", "cannot import no_such_module: ModuleNotFoundError"),
        (".relative:build", "cannot import"),
        ("no/such/file.py:build", "there is no file no/such/file.py"),
        ("broken.py:build", "cannot import broken.py: SyntaxError"),
        ("my_sordino_models:missing", "has no missing"),
        ("my_sordino_models:number", "number is a int"),
        ("my_sordino_models:not_a_module", "returned a int: return an nn.Module"),
        ("my_sordino_models:fails", "failed: RuntimeError: two lines"),
        ("my_sordino_models:needs_more", "also needs depth"),
        ("my_sordino_models:needs_one", "also needs depth"),
    ],
)
def test_bad_specs_get_one_line(user_file: Path, spec: str, message: str) -> None:
    user_file.with_name("broken.py").write_text("def build(:\n")
    with pytest.raises(ValueError, match=message) as caught:
        build_model(spec, (13,), 6)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", [(13,), (1, 2, 3, 4), (32, 32, 3)])
def test_cnn_needs_images_with_channels_first(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="model 'cnn' needs"):
        build_model("cnn", shape, 10)


def test_doctests() -> None:
    assert doctest.testmod(models).failed == 0
