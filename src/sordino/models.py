"""Models by name: small defaults for a command line, the papers' networks for recipes, a user's own by path.

None has batch normalisation: it mixes the examples of a batch, so that no example has a gradient of its own.
Weights come from torch's global generator, as in every torch module: seed or fork it around the call.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn

from sordino.data.shakespeare import PAD, SPECIAL
from sordino.imported import imported, one_line
from sordino.named import DATA_SETS, MODELS
from sordino.noise import Streams


def default_model(data_name: str, input_shape: Sequence[int], features: str | None = None) -> str:
    """The spec to use for a data set when the user names no model; it depends on public facts alone."""
    if features not in (None, "none"):
        return "linear"  # what stands in front has done the rest, and noise grows with the parameters
    known = DATA_SETS.entries.get(data_name)
    # Files of one's own may hold tables or images in any layout, and an mlp takes them all.
    return "mlp" if known is None else str(known.facts.get("model", "mlp"))


def default_features(data_name: str) -> str | None:
    """What stands in front of the model when the user names neither; None is nothing. Public facts alone decide."""
    known = DATA_SETS.entries.get(data_name)
    return None if known is None else known.facts.get("features")


def drawn_model(spec: str, input_shape: Sequence[int], classes: int, seed: int | None) -> nn.Module:
    """The model with weights drawn from a run's seed, or from the system if it has none."""
    initial = Streams.from_entropy() if seed is None else Streams.from_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(initial.seed_for("initialisation", 0))
        return build_model(spec, input_shape, classes)


def build_model(spec: str, input_shape: Sequence[int], classes: int) -> nn.Module:
    """Build the model that `spec` names: inputs of `input_shape` (without the batch), `classes` logits.

    `linear`; `mlp` or `mlp:256,256` (hidden sizes, ReLU); `cnn` (chosen by image size, tanh); `lstm` or `lstm:96,670`
    (embedding and state, for next words); or an import path `MODULE:CALLABLE` or `path/to/file.py:CALLABLE`, called
    with `input_shape` and `classes` if it takes them.

    >>> build_model("mlp:32", (1, 8, 8), 10)[1]
    Linear(in_features=64, out_features=32, bias=True)
    """
    shape = tuple(int(size) for size in input_shape)
    family, colon, settings = spec.partition(":")
    if family in MODELS and not colon:
        return cast(nn.Module, MODELS[family](shape, classes))
    if family in MODELS and MODELS.entries[family].facts.get("sizes"):
        return cast(nn.Module, MODELS[family](shape, classes, _sizes(spec, settings)))
    if family and settings:
        return _imported(spec, shape, classes)
    raise ValueError(MODELS.unknown(spec))


def check_model_name(spec: str) -> None:
    """Refuse a spec that names nothing; whether it fits the data, only the data's shape can tell."""
    family, colon, settings = spec.partition(":")
    if family in MODELS and (not colon or MODELS.entries[family].facts.get("sizes")):
        if colon:
            _sizes(spec, settings)
    elif family and settings:
        with imported(spec, "model"):
            pass
    else:
        raise ValueError(MODELS.unknown(spec))


def runs_code(spec: str) -> bool:
    """Whether `build_model` would import what the name says, and not one of the models that are known by name.

    >>> runs_code("mlp:64"), runs_code("linear"), runs_code("mine.py:net")
    (False, False, True)
    """
    family, _, settings = spec.partition(":")
    known = family in MODELS and bool(MODELS.entries[family].facts.get("sizes"))
    return bool(family and settings) and not known


def linear(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return _mlp(input_shape, (), classes)


def mlp(input_shape: tuple[int, ...], classes: int, sizes: tuple[int, ...] = (256,)) -> nn.Module:
    return _mlp(input_shape, sizes, classes)


def lstm(input_shape: tuple[int, ...], classes: int, sizes: tuple[int, ...] = (32, 64)) -> nn.Module:
    if len(sizes) != 2 or len(input_shape) != 1:
        raise ValueError(
            "model 'lstm' is for rows of tokens: give the sizes of embedding and state, as in lstm:96,670"
        )
    return next_word_lstm(classes, *sizes)


def _sizes(spec: str, settings: str) -> tuple[int, ...]:
    parts = settings.split(",")
    if not all(part.strip().isascii() and part.strip().isdigit() and int(part) > 0 for part in parts):
        raise ValueError(f"model {spec!r}: give hidden sizes as positive whole numbers, such as mlp:256,256")
    return tuple(int(part) for part in parts)


def _mlp(input_shape: tuple[int, ...], hidden: tuple[int, ...], classes: int) -> nn.Sequential:
    sizes = (math.prod(input_shape), *hidden)
    layers: list[nn.Module] = [nn.Flatten()]
    for inner, outer in pairwise(sizes):
        layers += [nn.Linear(inner, outer), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], classes))


def cnn(input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    if len(input_shape) == 2:  # grey images without a channel
        height, _ = input_shape
        return nn.Sequential(nn.Unflatten(1, (1, height)), *cnn((1, *input_shape), classes))
    if len(input_shape) != 3 or min(input_shape) < 1:
        raise ValueError(f"model 'cnn' needs images (channels, height, width), not {input_shape}: use mlp")
    channels, height, width = input_shape
    if width in (1, 3, 4) and channels > 4:
        raise ValueError(
            f"model 'cnn' needs channels first: turn {input_shape} into {(width, channels, height)}"
        )
    if (height, width) == (28, 28):
        return dp_ftrl_cnn(classes, channels)
    if (height, width) == (32, 32):
        return dp_ftrl_cifar_cnn(classes, channels)
    return _cnn_of_any_size(channels, height, width, classes)


def _cnn_of_any_size(channels: int, height: int, width: int, classes: int) -> nn.Sequential:
    """3x3 convolutions with pooling between them, down to about 4x4 (8x8 digits: 21,546 parameters)."""
    stages = min(4, max(1, int(math.log2(max(4, min(height, width)) / 4)) + 1))
    layers: list[nn.Module] = []
    inner, outer = channels, 16
    for stage in range(stages):
        if stage:
            layers.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
        layers += [nn.Conv2d(inner, outer, 3, padding=1), nn.Tanh()]
        inner, outer = outer, min(64, 2 * outer)
    rows, columns = min(height, 4), min(width, 4)
    if (rows, columns) != (height, width):
        layers.append(nn.AdaptiveAvgPool2d((rows, columns)))
    head = [nn.Flatten(), nn.Linear(inner * rows * columns, 32), nn.Tanh(), nn.Linear(32, classes)]
    return _with_dp_ftrl_weights(nn.Sequential(*layers, *head))


# A user's own model


def _imported(spec: str, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    name = spec.rpartition(":")[2]
    with imported(spec, "model") as found:
        if isinstance(found, nn.Module):  # a finished model: a copy, so that two runs never share weights
            return copy.deepcopy(found)
        if not callable(found):
            raise ValueError(
                f"model {spec!r}: {name} is a {type(found).__name__}: name a function or an nn.Module class"
            )
        arguments, named = _arguments_for(spec, found, input_shape, classes)
        try:
            model = found(*arguments, **named)
        except Exception as error:  # user code again
            raise ValueError(f"model {spec!r}: {name} failed: {one_line(error)}") from error
    if not isinstance(model, nn.Module):
        raise ValueError(f"model {spec!r}: {name} returned a {type(model).__name__}: return an nn.Module")
    return model


def _arguments_for(
    spec: str, function: Callable[..., Any], input_shape: tuple[int, ...], classes: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What to call it with: input_shape and classes if it names them or needs two values, else nothing."""
    offered = {"input_shape": input_shape, "classes": classes}
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some builtins have no signature
        return (), {}
    by_name = {
        parameter.name: offered[parameter.name]
        for parameter in parameters
        if parameter.name in offered and parameter.kind is not parameter.POSITIONAL_ONLY
    }
    required = [
        parameter
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and parameter.name not in by_name
    ]
    if not required:
        return (), by_name
    if not by_name and len(required) == 2 and all(p.kind is not p.KEYWORD_ONLY for p in required):
        return (input_shape, classes), {}
    missing = ", ".join(parameter.name for parameter in required)
    raise ValueError(
        f"model {spec!r} also needs {missing}: it may take input_shape and classes; give others a default"
    )


# The papers' networks


def mnist_mlp() -> nn.Sequential:
    """784-256-256-256-10, ReLU, no biases: 334,336 parameters (Koskela and Honkela, ADADP)."""
    return _with_adadp_weights(nn.Sequential(nn.Flatten(), *_without_biases(784, 256, 256, 256, 10)))


def cifar_fc() -> nn.Sequential:
    """1600-500-500-10, ReLU, no biases: 1,055,000 parameters (ADADP: the part trained on CIFAR-10)."""
    return _with_adadp_weights(nn.Sequential(nn.Flatten(), *_without_biases(1600, 500, 500, 10)))


def adadp_cnn() -> nn.Sequential:
    """Two convolutions of 64 channels, 3 x 3, pooled 3 x 3 with stride 2, then 1600-500-500-10: 1,093,720 parameters.

    Only this pooling makes the 1600 that the paper states.
    """
    first = [nn.Conv2d(3, 64, 3), nn.ReLU(), nn.MaxPool2d(3, 2)]
    return nn.Sequential(*first, nn.Conv2d(64, 64, 3), nn.ReLU(), nn.MaxPool2d(3, 2), *cifar_fc())


def fed_cnn(classes: int = 10, augmented: bool = False) -> nn.Sequential:
    """For 3x32x32: 797,962 parameters with 10 classes (Acar et al., FedDyn; Varno et al., AdaBest)."""
    layers: list[nn.Module] = [_FlipAndCrop()] if augmented else []
    layers += [nn.Conv2d(3, 64, 5), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(64, 64, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    layers += [nn.Linear(1600, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, classes)]
    return nn.Sequential(*layers)


class _FlipAndCrop(nn.Module):
    """In training each image is flipped with probability 1/2, and with 1/2 shifted by up to 4 pixels, zeros around."""

    p = 0.5  # `federate` takes a module with such an attribute for one that draws randomness, as dropout has it
    pad = 4

    def forward(self, images: Tensor) -> Tensor:
        if not self.training:
            return images
        count, _, height, width = images.shape
        padded = nn.functional.pad(images, [self.pad] * 4)
        shifts = torch.randint(0, 2 * self.pad + 1, (2, count))
        shifts[:, torch.rand(count) >= self.p] = self.pad  # in the middle: as it was
        rows = shifts[0, :, None] + torch.arange(height)
        columns = shifts[1, :, None] + torch.arange(width)
        flipped = torch.rand(count) < self.p
        columns[flipped] = columns[flipped].flip(1)
        each = torch.arange(count)[:, None, None]
        return padded.permute(0, 2, 3, 1)[each, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def dp_ftrl_cnn(classes: int = 10, channels: int = 1) -> nn.Sequential:
    """For 28x28, tanh: 26,010 parameters with 10 classes, 27,231 with 47 (Kairouz et al., DP-FTRL)."""
    return _with_dp_ftrl_weights(
        nn.Sequential(
            nn.Conv2d(channels, 16, 8, stride=2, padding=3),
            nn.Tanh(),
            nn.MaxPool2d(2, stride=1),
            nn.Conv2d(16, 32, 4, stride=2),
            nn.Tanh(),
            nn.MaxPool2d(2, stride=1),
            nn.Flatten(),
            nn.Linear(512, 32),
            nn.Tanh(),
            nn.Linear(32, classes),
        )
    )


def dp_ftrl_cifar_cnn(classes: int = 10, channels: int = 3) -> nn.Sequential:
    """For 32x32, tanh: 550,570 parameters with 10 classes (Kairouz et al., DP-FTRL)."""
    layers: list[nn.Module] = []
    for inner, outer in ((channels, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(inner, outer, 3, padding=1), nn.Tanh()]
        layers += [nn.Conv2d(outer, outer, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
    layers += [nn.Flatten(), nn.Linear(2048, 128), nn.Tanh(), nn.Linear(128, classes)]
    return _with_dp_ftrl_weights(nn.Sequential(*layers))


def oso_cnn() -> nn.Sequential:
    """For 28x28 and 10 classes, ReLU: 551,322 parameters (Galli et al., OSO-DPSGD).

    The paper's table puts a ReLU on the logits too; these are raw, as a cross-entropy wants them.
    """
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 23 * 23, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def oso_autoencoder() -> nn.Sequential:
    """For 28x28 in [0, 1], LeakyReLU, sigmoid output: 48,705 parameters (Galli et al., OSO-DPSGD)."""
    widths = (1, 8, 16, 32, 64)
    layers: list[nn.Module] = []
    for inner, outer in pairwise(widths):
        layers += [nn.Conv2d(inner, outer, 3), nn.LeakyReLU()]
    for inner, outer in pairwise(reversed(widths)):
        layers += [nn.ConvTranspose2d(inner, outer, 3), nn.LeakyReLU()]
    layers[-1] = nn.Sigmoid()
    return nn.Sequential(*layers)


def bag_of_words_fc() -> nn.Sequential:
    """750-128-128-4, LeakyReLU, raw logits: 113,156 parameters (Galli et al., OSO-DPSGD).

    750 inputs follow from the paper's parameter count; its text (25 words of 50 dimensions) would give 1,250.
    """
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(750, 128),
        nn.LeakyReLU(),
        nn.Linear(128, 128),
        nn.LeakyReLU(),
        nn.Linear(128, 4),
    )


def text_transformer(
    vocab: int = 5000, classes: int = 4, dim: int = 64, heads: int = 4, layers: int = 2, length: int = 64
) -> nn.Module:
    """A small transformer over token ids (batch, at most `length`): 424,324 parameters with the defaults."""
    return _TextTransformer(vocab, classes, dim, heads, layers, length)


def text_lstm(vocab: int = 5000, classes: int = 4, dim: int = 64, hidden: int = 128) -> nn.Module:
    """An LSTM over token ids (batch, length), read at its last step: 419,844 parameters with the defaults."""
    return _TextLSTM(vocab, classes, dim, hidden)


class _TextTransformer(nn.Module):
    def __init__(self, vocab: int, classes: int, dim: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        self.positions = nn.Embedding(length, dim)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, heads, dim_feedforward=4 * dim, dropout=0.0, batch_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(dim, classes)

    def forward(self, ids: Tensor) -> Tensor:
        # One row of positions for every example, not one for the batch: each needs a gradient of its own.
        positions = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
        hidden = self.tokens(ids) + self.positions(positions)
        for layer in self.layers:
            hidden = layer(hidden)
        logits: Tensor = self.head(hidden.mean(dim=1))
        return logits


class _TextLSTM(nn.Module):
    def __init__(self, vocab: int, classes: int, dim: int, hidden: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        self.lstm = nn.LSTM(dim, hidden, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, ids: Tensor) -> Tensor:
        states, _ = self.lstm(self.tokens(ids))
        logits: Tensor = self.head(states[:, -1])
        return logits


def _without_biases(*sizes: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for inner, outer in pairwise(sizes):
        layers += [nn.Linear(inner, outer, bias=False), nn.ReLU()]
    return layers[:-1]


def _with_adadp_weights(model: nn.Sequential) -> nn.Sequential:
    """U(-1/sqrt(out), 1/sqrt(out)), as the authors' code has it (it takes out, not in, for the bound)."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            bound = 1 / math.sqrt(module.out_features)
            nn.init.uniform_(module.weight, -bound, bound)
    return model


def _with_dp_ftrl_weights(model: nn.Sequential) -> nn.Sequential:
    """Convolutions N(0, 1/fan_in), linear layers Xavier normal, biases zero (the authors' code)."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=1 / math.sqrt(module.weight[0].numel()))
        elif isinstance(module, nn.Linear):
            nn.init.xavier_normal_(module.weight)
        else:
            continue
        assert module.bias is not None
        nn.init.zeros_(module.bias)
    return model


# Next words


def next_word_lstm(vocab: int = 10_004, dim: int = 96, hidden: int = 670) -> nn.Module:
    """An LSTM over token ids (batch, length) that scores every next token: (batch, length, vocab).

    Embedding, LSTM, dense back to `dim`, dense to the tokens: 4,053,428 parameters with the defaults, which are those
    of Kairouz et al. (DP-FTRL, StackOverflow). They count 4,050,748: torch's LSTM has two biases where Keras has one.
    """
    return _NextWordLSTM(vocab, dim, hidden)


class _NextWordLSTM(nn.Module):
    def __init__(self, vocab: int, dim: int, hidden: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        self.lstm = nn.LSTM(dim, hidden, batch_first=True)
        self.narrow = nn.Linear(hidden, dim)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids: Tensor) -> Tensor:
        states, _ = self.lstm(self.tokens(ids))
        logits: Tensor = self.head(self.narrow(states))
        return logits


def next_word_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """One value for each example: the mean cross-entropy over its tokens, padding left out."""
    losses = nn.functional.cross_entropy(
        logits.flatten(0, -2), targets.flatten(), ignore_index=PAD, reduction="none"
    ).view(targets.shape)
    counts: Tensor = (targets != PAD).sum(-1).clamp(min=1)
    return losses.sum(-1) / counts


def next_word_accuracy(model: nn.Module, test: tuple[Tensor, Tensor], batch: int = 500) -> float:
    """The share of words that are predicted; ends of sentences and words not in the vocabulary do not count.

    Neither as targets nor as guesses: a guess is the best of the words, as a keyboard would show it. (TensorFlow
    Federated leaves them out as targets alone, so where most guesses are "unknown" its accuracy is near zero.)
    """
    right = words = 0
    was_training = model.training
    model.eval()
    with torch.no_grad():
        for start in range(0, len(test[0]), batch):
            inputs, targets = (part[start : start + batch] for part in test)
            counted = targets >= SPECIAL
            guesses = model(inputs)[counted][:, SPECIAL:].argmax(-1) + SPECIAL
            right += int((guesses == targets[counted]).sum())
            words += int(counted.sum())
    model.train(was_training)
    return right / words if words else math.nan
