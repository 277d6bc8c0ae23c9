"""Whole models against a plain loop over single examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino.gradients import Engine, Norms
from sordino.gradients import capture as capture_module
from test_gradients_rules import Function, agree, check, numbers, randomise, readout, single_gradients


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


def ones(norms: Norms) -> Tensor:
    return torch.ones_like(norms.total_U)[None]


def classes(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, reduction="none")


def pixels(output: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(output, target, reduction="none").flatten(1).sum(1)


def next_tokens(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output.transpose(1, 2), target, reduction="none").sum(1)


# The models ------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, stride, 1, bias=False),
            nn.GroupNorm(2, channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.GroupNorm(2, channels),
        )
        self.short = nn.Conv2d(channels, channels, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out = self.body(x)
        out += self.short(x)
        return F.relu(out, inplace=True)


class TiedLanguageModel(nn.Module):
    def __init__(self, words: int = 9, width: int = 6) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.positions = nn.Embedding(8, width)
        self.block = nn.TransformerEncoderLayer(width, 2, 8, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        steps = tokens.shape[1]
        x = self.embedding(tokens) + self.positions(torch.arange(steps))
        mask = nn.Transformer.generate_square_subsequent_mask(steps, dtype=x.dtype)
        output: Tensor = self.head(self.block(x, src_mask=mask, is_causal=True))
        return output


class Twice(nn.Module):
    """One layer used twice, on inputs of different kinds: vectors and sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)).mean(1))))
        return output


class LSTMClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 4, padding_idx=0)
        self.lstm = nn.LSTM(4, 5, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(10, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        output: Tensor = self.head(self.lstm(self.embedding(tokens))[0].mean(1))
        return output


class Transformer(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.embedding = nn.Embedding(7, 4)
        layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(4), enable_nested_tensor=False)
        self.head = nn.Linear(4, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        padding = tokens == 0
        x = self.embedding(tokens if self.batch_first else tokens.t())
        x = self.encoder(x, src_key_padding_mask=padding)
        output: Tensor = self.head(x[:, 0] if self.batch_first else x[0])
        return output


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 4, 2, 2)
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.positions = nn.Parameter(torch.randn(1, 5, 4))
        self.block = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        output: Tensor = self.head(self.block(x)[:, 0])
        return output


class LoRA(nn.Module):
    def __init__(self, frozen: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, frozen.in_features))
        self.up = nn.Parameter(0.1 * torch.randn(frozen.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.frozen(x) + F.linear(F.linear(x, self.down), self.up)
        return output


class Pair(nn.Module):
    """Two inputs, by position or by name."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.image = nn.Embedding(5, 3), nn.Linear(4, 3)

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        output: Tensor = self.image(image) * self.text(text).sum(1)
        return output


def tokens(batch: int, words: int, steps: int = 5) -> Tensor:
    return torch.randint(1, words, (batch, steps))


def labels(batch: int) -> Tensor:
    return torch.randint(3, (batch,))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 2, groups=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24, 3),
    )


def residual_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        Residual(4),
        Residual(4, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


def autoencoder() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, 2, 1),
        nn.Tanh(),
        nn.Conv2d(3, 4, 3, 2, 1),
        nn.Tanh(),
        nn.ConvTranspose2d(4, 3, 3, 2, 1, output_padding=1),
        nn.Tanh(),
        nn.ConvTranspose2d(3, 1, 4, 2, 1),
        nn.Sigmoid(),
    )


def in_place() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 6),
        nn.ReLU(inplace=True),
        nn.LayerNorm(6),
        nn.LeakyReLU(0.1, inplace=True),
        nn.Linear(6, 6),
        nn.ELU(inplace=True),
        nn.Linear(6, 3),
    )


def image(batch: int) -> Tensor:
    return torch.randn(batch, 1, 8, 8)


ZOO: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Any], Any, Callable[[int], Any]]] = {
    "mlp": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.ReLU(), nn.Linear(7, 3)),
        image,
        classes,
        labels,
    ),
    "cnn": (cnn, lambda n: torch.randn(n, 1, 14, 14), classes, labels),
    "residual cnn": (residual_cnn, image, classes, labels),
    "autoencoder": (autoencoder, image, pixels, image),
    "tied language model": (TiedLanguageModel, lambda n: tokens(n, 9), next_tokens, lambda n: tokens(n, 9)),
    "layer used twice": (Twice, lambda n: torch.randn(n, 3, 4), classes, labels),
    "lstm classifier": (LSTMClassifier, lambda n: tokens(n, 11), classes, labels),
    "transformer, batch first": (lambda: Transformer(True), lambda n: tokens(n, 7), classes, labels),
    "transformer, sequence first": (lambda: Transformer(False), lambda n: tokens(n, 7), classes, labels),
    "vit": (ViT, lambda n: torch.randn(n, 1, 4, 4), classes, labels),
    "lora": (
        lambda: nn.Sequential(LoRA(nn.Linear(4, 5)), nn.Tanh(), LoRA(nn.Linear(5, 3))),
        lambda n: torch.randn(n, 2, 4),
        readout,
        numbers,
    ),
    "in-place activations": (in_place, lambda n: torch.randn(n, 4), classes, labels),
    "tuple of inputs": (Pair, lambda n: (torch.randn(n, 4), tokens(n, 5)), readout, numbers),
    "dict of inputs": (Pair, lambda n: {"text": tokens(n, 5), "image": torch.randn(n, 4)}, readout, numbers),
}


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("batch", [1, 6])
def test_model_agrees_with_single_examples(name: str, batch: int) -> None:
    build, inputs, loss, targets = ZOO[name]
    model = randomise(build())
    check(model, inputs(batch), targets(batch), loss)


@pytest.mark.parametrize("name", ZOO)
def test_model_agrees_by_groups_in_microbatches(name: str) -> None:
    build, inputs, loss, targets = ZOO[name]
    model = randomise(build())
    groups = torch.tensor([7, 2, 2, 40, 7, 2, 5])
    check(model, inputs(7), targets(7), loss, microbatch=3, groups=groups)


@pytest.mark.parametrize("name", ZOO)
def test_an_engine_serves_batches_of_any_size(name: str) -> None:
    build, inputs, loss, targets = ZOO[name]
    engine = Engine(randomise(build()), loss)
    engine.prepare(inputs(5), targets(5))
    for batch in (1, 2, 4, 5):
        agree(engine, inputs(batch), targets(batch))


def test_batch_as_long_as_the_sequence() -> None:
    for steps in (3, 5, 4):
        check(randomise(Transformer(False)), tokens(steps, 7, steps), labels(steps), classes)
        check(randomise(Transformer(True)), tokens(steps, 7, steps), labels(steps), classes)
        check(nn.Linear(steps, steps), torch.randn(steps, steps, steps))


def test_targets_of_several_parts() -> None:
    def loss(output: Tensor, target: dict[str, Tensor]) -> Tensor:
        return classes(output, target["label"]) * target["weight"]

    check(nn.Linear(4, 3), torch.randn(6, 4), {"label": labels(6), "weight": numbers(6)}, loss)


# Folded batches --------------------------------------------------------------------------------------------


def batch_major(m: Function, x: Tensor) -> Tensor:
    h = torch.tanh(m.norm(m.first(x.flatten(0, 1)))) * m.scale
    output: Tensor = m.second(h).unflatten(0, x.shape[:2])
    return output


def time_major(m: Function, x: Tensor) -> Tensor:
    x = x.transpose(0, 1)
    h = torch.tanh(m.norm(m.first(x.flatten(0, 1)))) * m.scale
    output: Tensor = m.second(h).unflatten(0, x.shape[:2]).transpose(0, 1)
    return output


@pytest.mark.parametrize("fold", [batch_major, time_major])
@pytest.mark.parametrize("batch", [1, 4, 6])
def test_folded_batch(fold: Callable[..., Tensor], batch: int) -> None:
    model = Function(
        fold, first=nn.Linear(3, 4), norm=nn.LayerNorm(4), scale=torch.randn(4), second=nn.Linear(4, 2)
    )
    check(randomise(model), torch.randn(batch, 3, 3))


@pytest.mark.parametrize("major", ["batch", "time"])
def test_folded_tokens_and_images(major: str) -> None:
    def forward(m: Function, words: Tensor, frames: Tensor) -> Tensor:
        if major == "time":
            words, frames = words.transpose(0, 1), frames.transpose(0, 1)
        out = m.embedding(words.flatten()) + m.conv(frames.flatten(0, 1)).flatten(1)
        out = out.unflatten(0, words.shape)
        output: Tensor = out if major == "batch" else out.transpose(0, 1)
        return output

    model = Function(forward, embedding=nn.Embedding(6, 8), conv=nn.Conv2d(1, 2, 2))
    check(model, (tokens(4, 6, 3), torch.randn(4, 3, 1, 3, 3)))


# Adapters and parts without gradient -----------------------------------------------------------------------


def test_adapters_on_a_frozen_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), LoRA(nn.Linear(6, 6)), nn.Tanh(), nn.Linear(6, 3))
    for p in [*model[0].parameters(), *model[4].parameters()]:
        p.requires_grad_(False)
    before = {name: p.clone() for name, p in model.named_parameters()}
    engine = Engine(model, classes)
    assert [slot.name for slot in engine.vector.slots] == ["2.down", "2.up"]
    assert len(engine.vector) == 24

    x, y = torch.randn(6, 4), labels(6)
    engine.prepare(x, y)
    recorded: list[int] = []
    record = capture_module.Capture.record

    def noted(self: Any, tracked: int, factor: Any) -> None:
        recorded.append(tracked)
        record(self, tracked, factor)

    monkeypatch.setattr(capture_module.Capture, "record", noted)
    sums, _ = engine.sums(x, y, ones)
    assert sorted(recorded) == [0, 1], "only the adapters are captured"

    engine.vector.theta.sub_(sums[0])
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name]) == (name not in ("2.down", "2.up")), name


def test_layers_below_the_first_trainable_one_are_not_differentiated() -> None:
    class Untouchable(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            raise AssertionError("the backward pass went below the first trainable layer")

    class Frozen(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = Untouchable.apply(  # type: ignore[no-untyped-call]
                super().forward(x.clone().requires_grad_())
            )
            return output

    model = nn.Sequential(Frozen(4, 4).requires_grad_(False), nn.Linear(4, 2))
    engine = Engine(model, readout)
    _, norms = engine.sums(torch.randn(5, 4), numbers(5), ones)
    assert (norms > 0).all()


def test_unused_parameters_have_zero_gradients() -> None:
    model = Function(lambda m, x: m.used(x), used=nn.Linear(4, 3), spare=nn.Linear(4, 3), idle=torch.randn(2))
    engine = check(model, torch.randn(5, 4))
    sums, _ = engine.sums(torch.randn(5, 4), numbers(5), ones)
    for slot, part in engine.vector.split(sums[0]):
        assert (part.norm() > 0) == slot.name.startswith("used"), slot.name


def test_a_model_whose_output_ignores_its_parameters() -> None:
    engine = Engine(Function(lambda m, x: x * 2, idle=torch.randn(3)), readout)
    sums, norms = engine.sums(torch.randn(5, 4), numbers(5), ones)
    assert not sums.any()
    assert not norms.any()


def test_parameters_touched_only_by_some_examples() -> None:
    """Experts chosen by a mask, and tokens that few examples contain."""

    def forward(m: Function, x: Tensor, words: Tensor) -> Tensor:
        gate = (x[:, :1] > 0).to(x.dtype)
        output: Tensor = gate * m.a(x) + (1 - gate) * m.b(x) + m.embedding(words).sum(1)
        return output

    model = Function(forward, a=nn.Linear(4, 3), b=nn.Linear(4, 3), embedding=nn.Embedding(50, 3))
    x, words = torch.randn(6, 4), torch.randint(50, (6, 2))
    engine = check(model, (x, words))
    gradients = single_gradients(model, readout, (x, words), numbers(6))
    start = next(slot.start for slot in engine.vector.slots if slot.name == "a.weight")
    touched = gradients[:, start : start + 12].norm(dim=1) > 0
    assert torch.equal(touched, x[:, 0] > 0)


# Randomness ------------------------------------------------------------------------------------------------


def dropout_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))


def test_dropout_gives_the_gradient_of_the_same_pass() -> None:
    model, x, y = dropout_model(), torch.randn(6, 4), labels(6)
    engine = Engine(model, classes, microbatch=6)
    engine.prepare(x, y)
    assert engine.draws_randomness
    torch.manual_seed(3)
    sums, norms = engine.sums(x, y, ones)
    torch.manual_seed(3)
    wanted = torch.autograd.grad(classes(model(x), y).sum(), list(model.parameters()))
    assert torch.allclose(sums[0], torch.cat([g.flatten() for g in wanted]), rtol=1e-5, atol=1e-6)
    torch.manual_seed(4)
    _, others = engine.sums(x, y, ones)
    assert not torch.allclose(norms, others)


def test_dropout_never_breaks_the_clipping_bound() -> None:
    model = dropout_model()
    engine = Engine(model, classes)
    engine.prepare(torch.randn(5, 4), labels(5))
    bound = 0.01
    for _ in range(10):
        x, y = torch.randn(1, 4), labels(1)
        sums, norms = engine.sums(x, y, lambda n: (bound / n.total_U.clamp_min(bound))[None])
        assert float(norms) > bound
        assert float(sums.norm()) == pytest.approx(bound, rel=1e-5)


@pytest.mark.filterwarnings("ignore::sordino.gradients.SlowGradients")
def test_dropout_beside_a_parameter_without_a_rule() -> None:
    """There may be only one pass: norm and sum of one example must come from the same dropout mask."""
    model = nn.Sequential(nn.Linear(4, 16), nn.PReLU(16), nn.Dropout(0.5), nn.Linear(16, 3))
    engine = Engine(model, classes)
    engine.prepare(torch.randn(5, 4), labels(5))
    for _ in range(5):
        sums, norms = engine.sums(torch.randn(1, 4), labels(1), ones)
        assert float(sums.norm()) == pytest.approx(float(norms), rel=1e-5)


def test_preparing_leaves_modes_and_generator_alone() -> None:
    model = dropout_model()
    model[2].eval()
    engine = Engine(model, classes)
    state = torch.get_rng_state()
    engine.prepare(torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(5).long())
    assert torch.equal(state, torch.get_rng_state())
    assert [m.training for m in model] == [True, True, False, True]
    assert not engine.draws_randomness


def test_longer_sequences_than_those_it_was_prepared_on() -> None:
    model = randomise(LSTMClassifier())
    engine = Engine(model, classes)
    engine.prepare(tokens(5, 11, 4), labels(5))
    agree(engine, tokens(4, 11, 2), labels(4))
    agree(
        engine, tokens(4, 11, 6), labels(4)
    )  # slowly, and silently: what it does with private rows is not told
