"""The engine around the rules: micro-batches, groups, bad examples, refusals, memory, and that tests have teeth."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sordino.gradients import Engine, Norms, SlowGradients, refuse, replace_batchnorm
from sordino.gradients import convolution as convolution_module
from sordino.gradients import engine as engine_module
from sordino.gradients.capture import Capture
from sordino.gradients.factors import Dense, Outer, Product, Rows
from test_gradients_rules import Function, agree, check, clip_and_probe, numbers, readout, single_gradients


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


def ones(norms: Norms) -> Tensor:
    return torch.ones_like(norms.total_U)[None]


def clip(norms: Norms) -> Tensor:
    return clip_and_probe(norms.total_U, 1.0)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Conv2d(4, 4, 2, groups=2), nn.Flatten(), nn.Linear(36, 2)
    )


class Tokens(nn.Module):
    """Embedding, sequence, recurrence, attention and a derived parameter: every kind of factor."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
        self.positions = nn.Parameter(torch.randn(1, 8, 4))
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.gru = nn.GRU(4, 4, batch_first=True)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words) + self.positions[:, : words.shape[1]]
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        return F.linear(self.gru(x)[0], self.embedding.weight)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "mlp": (mlp, lambda n: torch.randn(n, 5)),
    "cnn": (cnn, lambda n: torch.randn(n, 1, 6, 6)),
    "tokens": (Tokens, lambda n: torch.randint(9, (n, 4))),
}
each_model = pytest.mark.parametrize("name", MODELS)


def made(name: str, n: int, microbatch: int | None = None) -> tuple[Engine, Tensor, Tensor]:
    build, rows = MODELS[name]
    return Engine(build(), readout, microbatch=microbatch), rows(n), numbers(n)


# Micro-batches ---------------------------------------------------------------------------------------------


@each_model
@pytest.mark.parametrize("microbatch", [1, 2, 3, 4, 7, 8, 100])
def test_microbatches_of_any_size_give_the_same(name: str, microbatch: int) -> None:
    engine, x, y = made(name, 7, microbatch)
    agree(engine, x, y)  # norms in the order of the rows


@each_model
def test_microbatch_is_chosen_without_being_told(name: str) -> None:
    engine, x, y = made(name, 5)
    engine.prepare(x, y)
    assert engine.microbatch is not None
    assert engine.microbatch >= 1


def test_microbatch_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="microbatch must be at least 1"):
        Engine(mlp(), readout, microbatch=0)


@each_model
@pytest.mark.parametrize("n", [1, 2])
def test_batches_smaller_than_what_prepare_needs(name: str, n: int) -> None:
    engine, x, y = made(name, n)
    agree(engine, x, y)


def test_prepare_asks_for_rows() -> None:
    with pytest.raises(ValueError, match="prepare needs 5 rows"):
        Engine(mlp(), readout).prepare(torch.randn(4, 5), numbers(4))


@pytest.mark.parametrize("prepared", [False, True], ids=["fresh", "prepared"])
@pytest.mark.parametrize("groups", [None, torch.zeros(0, dtype=torch.long)], ids=["examples", "groups"])
def test_empty_batch_gives_zeros(prepared: bool, groups: Tensor | None) -> None:
    engine, x, y = made("mlp", 5)
    if prepared:
        engine.prepare(x, y)
    sums, norms = engine.sums(x[:0], y[:0], clip, count=2, groups=groups)
    assert sums.shape == (2, len(engine.vector))
    assert not sums.any()
    assert norms.shape == (0,)


@pytest.mark.parametrize("microbatch", [None, 2])
def test_last_loss_is_of_the_batch_alone(microbatch: int | None) -> None:
    engine, x, y = made("mlp", 7, microbatch)
    engine.keep_loss = True
    for _ in range(2):
        engine.sums(x, y, ones)
        assert engine.last_loss == pytest.approx(readout(engine.model(x), y).sum().item(), rel=1e-5)


@pytest.mark.filterwarnings("ignore::sordino.gradients.SlowGradients")
def test_last_loss_without_fast_rules() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.PReLU(8), nn.Dropout(0.0), nn.Linear(8, 3))
    engine, x, y = Engine(model, readout), torch.randn(6, 5), numbers(6)
    engine.prepare(x, y)
    engine.everything_unruled = engine.keep_loss = True
    engine.sums(x, y, ones)
    assert engine.last_loss == pytest.approx(readout(model(x), y).sum().item(), rel=1e-5)


# Groups ----------------------------------------------------------------------------------------------------

GROUPS = {
    "one": [3, 3, 3, 3, 3, 3, 3],
    "all apart": [6, 5, 4, 3, 2, 1, 0],
    "unequal": [0, 1, 1, 1, 1, 2, 2],
    "scattered": [9, 4, 9, 100, 4, 9, -2],
    "wide ids": [10**12, 5, 10**12, 5, 5, -(10**12), 7],
}


@each_model
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("microbatch", [1, 3, 50])
def test_groups_are_the_unit(name: str, groups: str, microbatch: int) -> None:
    engine, x, y = made(name, 7, microbatch)
    agree(engine, x, y, torch.tensor(GROUPS[groups]))


@pytest.mark.filterwarnings("ignore::sordino.gradients.SlowGradients")
def test_groups_without_fast_rules() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.PReLU(4), nn.Linear(4, 2))
    check(model, torch.randn(7, 5), microbatch=2, groups=torch.tensor(GROUPS["scattered"]))


def test_a_group_is_bounded_as_one() -> None:
    engine, x, y = made("mlp", 8)
    bound = 1e-3
    sums, norms = engine.sums(
        x, y, lambda n: (bound / n.total_U.clamp_min(bound))[None], groups=torch.zeros(8, dtype=torch.long)
    )
    assert norms.shape == (1,)
    assert sums.norm().item() == pytest.approx(bound, rel=1e-5)


# Non-finite examples ---------------------------------------------------------------------------------------


def spoil(x: Tensor, rows: list[int], value: float) -> Tensor:
    x = x.clone()
    for row in rows:
        x[row].view(-1)[-1] = value
    return x


@pytest.mark.parametrize("name", ["mlp", "cnn"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("microbatch", [2, 100])
def test_non_finite_examples_count_as_zero(name: str, value: float, microbatch: int) -> None:
    engine, x, y = made(name, 7, microbatch)
    engine.prepare(x, y)
    bad = [0, 4]
    good = [i for i in range(7) if i not in bad]
    wanted, wanted_norms = engine.sums(x[good], y[good], clip, count=2)
    sums, norms = engine.sums(spoil(x, bad, value), y, clip, count=2)
    assert norms[bad].tolist() == [0.0, 0.0]
    assert torch.allclose(norms[good], wanted_norms, rtol=1e-5)
    assert torch.allclose(sums, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("value", [1e15, 1e25, 1e38])
def test_gradients_that_overflow_count_as_zero(value: float) -> None:
    """Finite inputs, and at 1e15 even finite gradients: only their squared norm is more than a float holds."""
    engine = Engine(nn.Linear(3, 2), lambda out, target: out.square().sum(1) * target)
    x, y = torch.randn(6, 3), numbers(6)
    engine.prepare(x, y)
    wanted, _ = engine.sums(x[1:], y[1:], clip, count=2)
    sums, norms = engine.sums(spoil(x, [0], value), y, clip, count=2)
    assert norms[0] == 0
    assert torch.allclose(sums, wanted, rtol=1e-4, atol=1e-6)


def test_a_loss_that_is_not_finite_counts_as_zero() -> None:
    engine, x, y = made("tokens", 7, 3)
    engine.prepare(x, y)
    wanted, _ = engine.sums(x[1:], y[1:], clip, count=2)
    y[0] = float("nan")
    sums, norms = engine.sums(x, y, clip, count=2)
    assert norms[0] == 0
    assert sums.isfinite().all()
    assert torch.allclose(sums, wanted, rtol=1e-4, atol=1e-6)


def test_nothing_but_non_finite_examples() -> None:
    for name in ("mlp", "cnn"):
        engine, x, y = made(name, 5)
        engine.prepare(x, y)
        sums, norms = engine.sums(torch.full_like(x, float("nan")), y, clip, count=2)
        assert not norms.any()
        assert not sums.any()


def test_a_non_finite_member_spoils_its_group_only() -> None:
    engine, x, y = made("mlp", 7, 3)
    engine.prepare(x, y)
    groups = torch.tensor([1, 2, 1, 3, 2, 3, 4])
    rest = groups != 2
    wanted, wanted_norms = engine.sums(x[rest], y[rest], clip, count=2, groups=groups[rest])
    sums, norms = engine.sums(spoil(x, [4], float("nan")), y, clip, count=2, groups=groups)
    assert norms[1] == 0  # groups in the order of their ids
    assert torch.allclose(norms[[0, 2, 3]], wanted_norms, rtol=1e-5)
    assert torch.allclose(sums, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore::sordino.gradients.SlowGradients")
def test_non_finite_examples_without_fast_rules() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.PReLU(4), nn.Linear(4, 2))
    engine, x, y = Engine(model, readout), torch.randn(6, 5), numbers(6)
    engine.prepare(x, y)
    wanted, _ = engine.sums(x[1:], y[1:], clip, count=2)
    sums, norms = engine.sums(spoil(x, [0], float("nan")), y, clip, count=2)
    assert norms[0] == 0
    assert torch.allclose(sums, wanted, rtol=1e-4, atol=1e-6)


# Refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.BatchNorm1d(5), r"1\.inner \(BatchNorm1d\).*replace_batchnorm"),
        (nn.BatchNorm2d(5, affine=False), r"1\.inner \(BatchNorm2d\).*replace_batchnorm"),
        (nn.BatchNorm1d(5, track_running_stats=False).eval(), r"1\.inner \(BatchNorm1d\)"),
        (nn.SyncBatchNorm(5), r"1\.inner \(SyncBatchNorm\)"),
        (
            nn.InstanceNorm1d(5, track_running_stats=True),
            r"1\.inner \(InstanceNorm1d\).*track_running_stats=False",
        ),
        (nn.Embedding(5, 5, max_norm=1.0), r"1\.inner \(Embedding\).*max_norm=None"),
        (nn.EmbeddingBag(5, 5, max_norm=1.0), r"1\.inner \(EmbeddingBag\).*max_norm=None"),
        (nn.Embedding(5, 5, scale_grad_by_freq=True), r"1\.inner \(Embedding\).*scale_grad_by_freq=False"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_layers_refused_by_name_before_any_data(layer: nn.Module, words: str) -> None:
    model = nn.Sequential(nn.Linear(5, 5), nn.Module())
    model[1].inner = layer
    with pytest.raises(ValueError, match=words):
        Engine(model, readout)


def test_the_model_itself_can_be_what_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the model \(BatchNorm1d\)"):
        refuse(nn.BatchNorm1d(3))


@pytest.mark.filterwarnings("ignore::sordino.gradients.SlowGradients")
def test_batchnorm_in_evaluation_is_accepted_until_it_trains() -> None:
    model: Any = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[1].running_mean.normal_()
    model.eval()
    engine = check(model, torch.randn(6, 5))
    statistics = model[1].running_mean.clone()
    model.train()
    with pytest.raises(ValueError, match="BatchNorm1d"):
        engine.sums(torch.randn(6, 5), numbers(6), ones)
    assert torch.equal(model[1].running_mean, statistics)


def test_replace_batchnorm_keeps_other_layers() -> None:
    norms = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
    model: Any = nn.Sequential(nn.Conv2d(1, 8, 3), norms[0], nn.Sequential(nn.ReLU(), norms[1]))
    with torch.no_grad():
        model[1].weight.normal_()
    model[2][1].bias.requires_grad_(False)
    convolution, relu, scale = model[0], model[2][0], model[1].weight
    replaced: Any = replace_batchnorm(model)
    assert replaced is model
    assert model[0] is convolution
    assert model[2][0] is relu
    assert {type(model[1]), type(model[2][1])} == {nn.GroupNorm}
    assert model[1].weight is scale
    assert not model[2][1].bias.requires_grad
    check(model, torch.randn(4, 1, 5, 5))
    assert isinstance(replace_batchnorm(nn.BatchNorm1d(6)), nn.GroupNorm)


def test_replace_batchnorm_finds_every_name_of_a_layer() -> None:
    shared = nn.BatchNorm2d(8)
    model: Any = replace_batchnorm(nn.Sequential(nn.Conv2d(1, 8, 3), shared, nn.Conv2d(8, 8, 1), shared))
    refuse(model)
    assert model[1].weight is model[3].weight
    check(model, torch.randn(4, 1, 5, 5))


@pytest.mark.parametrize("strength", [1.0, 0.1])
def test_a_model_that_mixes_examples_is_refused(strength: float) -> None:
    model = Function(lambda m, x: m.a(x) - strength * m.a(x).mean(0), a=nn.Linear(5, 3))
    with pytest.raises(ValueError, match="depends on the other examples"):
        Engine(model, readout).prepare(torch.randn(5, 5), numbers(5))


def test_a_model_that_mixes_examples_a_little_is_refused() -> None:
    model = Function(lambda m, x: m.a(x) - 0.003 * m.a(x).mean(0), a=nn.Linear(5, 3))
    with pytest.raises(ValueError, match="depends on the other examples"):
        Engine(model, readout).prepare(torch.randn(5, 5), numbers(5))


def test_a_model_that_mixes_examples_in_training_is_refused() -> None:
    def forward(m: Function, x: Tensor) -> Tensor:
        output: Tensor = m.a(x) - m.a(x).mean(0) if m.training else m.a(x)
        return output

    engine = Engine(Function(forward, a=nn.Linear(5, 3)).train(), readout)
    with pytest.raises(ValueError, match="depends on the other examples"):
        engine.prepare(torch.randn(5, 5), numbers(5))


def test_attention_across_the_batch_is_refused() -> None:
    """The commonest mistake: batch-first data in a sequence-first layer."""
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=False)
    with pytest.raises(ValueError, match="depends on the other examples"):
        Engine(layer, readout).prepare(torch.randn(5, 6, 4), numbers(5))


@pytest.mark.parametrize(
    "loss",
    [
        lambda out, y: F.mse_loss(out[:, 0], y),
        lambda out, y: F.mse_loss(out[:, 0], y, reduction="sum"),
        lambda out, y: F.mse_loss(out[:, :1], y[:, None], reduction="none"),
        lambda out, y: 1.0,
    ],
    ids=["mean", "sum", "column", "not a tensor"],
)
def test_a_loss_that_is_not_one_value_per_example_is_refused(loss: Any) -> None:
    with pytest.raises(ValueError, match="one value per example"):
        Engine(mlp(), loss).prepare(torch.randn(5, 5), numbers(5))


def test_a_model_that_left_its_vector_is_an_error() -> None:
    engine, x, y = made("mlp", 5)
    engine.sums(x, y, ones)
    assert isinstance(engine.model, nn.Sequential)
    engine.model[0] = nn.Linear(5, 8)
    with pytest.raises(ValueError, match=r"0\.weight.*no longer part"):
        engine.sums(x, y, ones)


def test_a_trained_bias_before_an_in_place_residual() -> None:
    def forward(m: Function, x: Tensor) -> Tensor:
        x = x * 1.0
        h = m.a(x)
        x += h  # plain autograd allows it: the frozen weight's gradient, which needs x, is not asked for
        return x

    model = Function(forward, a=nn.Linear(5, 5))
    model.a.weight.requires_grad_(False)
    readout(model(torch.randn(5, 5)), numbers(5)).sum().backward()
    check(model, torch.randn(5, 5))


# The tests have teeth --------------------------------------------------------------------------------------


def wrong_unfold(x: Tensor, *geometry: Any) -> Tensor:
    return right_unfold(x, *geometry).flip(1)


right_unfold = convolution_module.unfold

MISTAKES: dict[str, tuple[str, Any, str, Any]] = {
    "norms of products": ("mlp", Product, "squared_norms", lambda right: lambda self: 1.001 * right(self)),
    "norms of sequences": ("tokens", Outer, "squared_norms", lambda right: lambda self: 0.999 * right(self)),
    "norms of dense gradients": (
        "cnn",
        Dense,
        "squared_norms",
        lambda right: lambda self: 1.001 * right(self),
    ),
    "repeated tokens": (
        "tokens",
        Rows,
        "squared_norms",
        lambda right: lambda self: self.grads_BTd.square().sum((1, 2)),
    ),
    "sums of products": (
        "mlp",
        Product,
        "add_weighted_sum",
        lambda right: lambda self, w, out, fresh=False: right(self, w * 1.001, out, fresh),
    ),
    "weights left out": (
        "tokens",
        Outer,
        "add_weighted_sum",
        lambda right: lambda self, w, out, fresh=False: right(self, torch.ones_like(w), out, fresh),
    ),
    "fresh sums added": (
        "mlp",
        Product,
        "add_weighted_sum",
        lambda right: lambda self, w, out, fresh=False: (out.fill_(0.01), right(self, w, out, False)),
    ),
    "unfolding": ("cnn", convolution_module, "unfold", lambda right: wrong_unfold),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_rule_is_caught_by_the_comparison(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, owner, attribute, wrong = MISTAKES[mistake]
    engine, x, y = made(name, 6)
    agree(engine, x, y)
    monkeypatch.setattr(owner, attribute, wrong(getattr(owner, attribute)))
    with pytest.raises(AssertionError, match="off by"):
        agree(engine, x, y)
    monkeypatch.undo()
    agree(engine, x, y)


def test_a_wrong_group_is_caught_by_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, x, y = made("mlp", 6)
    groups = torch.tensor([0, 0, 1, 1, 1, 2])
    monkeypatch.setattr(Dense, "regroup", lambda self, groups: Dense(self.values_BN[: groups.count]))
    with pytest.raises(AssertionError, match="off by"):
        agree(engine, x, y, groups)


@pytest.mark.parametrize(
    ("name", "owner", "attribute", "wrong"),
    [
        ("mlp", Product, "squared_norms", lambda right: lambda self: 2 * right(self)),
        ("cnn", convolution_module, "unfold", lambda right: wrong_unfold),
        ("tokens", Rows, "add_weighted_sum", lambda right: lambda self, w, out, fresh=False: None),
    ],
    ids=["norms", "unfolding", "sums"],
)
@pytest.mark.filterwarnings("ignore::sordino.gradients.SlowGradients")
def test_prepare_notices_a_wrong_rule_itself(
    name: str, owner: Any, attribute: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, x, y = made(name, 6)
    monkeypatch.setattr(owner, attribute, wrong(getattr(owner, attribute)))
    with pytest.warns(SlowGradients, match="no fast rule fits"):
        engine.prepare(x, y)
    agree(engine, x, y)  # slow, but right


# Memory ----------------------------------------------------------------------------------------------------


class Largest(TorchDispatchMode):
    """The largest storage, in numbers, that any operation returned."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, Tensor):
                self.numbers = max(self.numbers, tensor.untyped_storage().nbytes() // 4)
        return out


def test_the_probe_of_memory_sees_per_example_gradients() -> None:
    with Largest() as largest:
        torch.bmm(torch.randn(4, 30, 1), torch.randn(4, 1, 20))
    assert largest.numbers == 4 * 30 * 20


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_memory_does_not_grow_with_batch_times_parameters(kind: str) -> None:
    shape: tuple[int, ...] = (200,)
    if kind == "mlp":
        model = nn.Sequential(nn.Linear(200, 100), nn.ReLU(), nn.Linear(100, 10))
    else:
        layers = [nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 48, 3, 2), nn.ReLU(), nn.Conv2d(48, 48, 3)]
        model = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(48, 10))
        shape = (1, 9, 9)
    engine = Engine(model, readout)
    engine.prepare(torch.randn(5, *shape), numbers(5))
    sizes = []
    for batch in (64, 512):
        x, y = torch.randn(batch, *shape), numbers(batch)
        with Largest() as largest:
            engine.sums(x, y, clip, count=2)
        sizes.append(largest.numbers)
    everything = 512 * len(engine.vector)
    assert sizes[1] < everything / 8, f"{kind}: {sizes[1]} numbers at once, of {everything}"


# Reference cycles ------------------------------------------------------------------------------------------


@pytest.fixture
def _no_collector() -> Any:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@each_model
@pytest.mark.parametrize("grouped", [False, True], ids=["examples", "groups"])
@pytest.mark.usefixtures("_no_collector")
def test_a_pass_leaves_nothing_behind(name: str, grouped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured activations die with the call, not when the garbage collector comes round."""
    captures: list[weakref.ref[Any]] = []
    tensors: list[weakref.ref[Tensor]] = []

    class Watched(Capture):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            captures.append(weakref.ref(self))

        def record(self, tracked: int, factor: Any) -> None:
            tensors.extend(weakref.ref(v) for v in vars(factor).values() if isinstance(v, Tensor))
            super().record(tracked, factor)

    engine, x, y = made(name, 6, 3)
    engine.prepare(x, y)
    monkeypatch.setattr(engine_module, "Capture", Watched)
    engine.sums(x, y, clip, count=2, groups=torch.tensor([0, 0, 1, 2, 2, 2]) if grouped else None)
    assert len(captures) == 2
    assert tensors
    assert not [ref for ref in captures if ref() is not None]
    assert not [ref for ref in tensors if ref() is not None]


@each_model
@pytest.mark.usefixtures("_no_collector")
def test_tensors_do_not_pile_up(name: str) -> None:
    engine, x, y = made(name, 6, 4)
    engine.sums(x, y, clip, count=2)

    def living() -> int:
        return sum(isinstance(thing, Tensor) for thing in gc.get_objects())

    before = living()
    for _ in range(20):
        engine.sums(x, y, clip, count=2)
    assert living() <= before


@pytest.mark.parametrize("failing", ["loss", "weigh"])
def test_a_failed_call_leaves_the_engine_usable(failing: str) -> None:
    engine, x, y = made("mlp", 6)
    agree(engine, x, y)

    def fail(*_: Any) -> Tensor:
        raise RuntimeError("on purpose")

    loss = engine.loss
    engine.loss = fail if failing == "loss" else loss
    with pytest.raises(RuntimeError, match="on purpose"):
        engine.sums(x, y, fail if failing == "weigh" else ones)
    engine.loss = loss
    agree(engine, x, y)


def test_the_engine_follows_the_vector() -> None:
    """After a step on theta the gradients are those at the new point; nothing stale is kept."""
    engine, x, y = made("tokens", 6)
    for _ in range(3):
        agree(engine, x, y)
        sums, _ = engine.sums(x, y, ones)
        engine.vector.theta.sub_(sums[0], alpha=0.1)
    before = single_gradients(engine.model, readout, x, y)
    assert all(p.grad is None for p in engine.model.parameters()), "no .grad is left on the parameters"
    assert torch.equal(before, single_gradients(engine.model, readout, x, y))


def looped(m: Function, x: Tensor) -> Tensor:
    output: Tensor = m.a(x) * (1.0 if x.sum().item() > 1e9 else 2.0)  # vmap has no .item()
    return output


@pytest.mark.filterwarnings("ignore::sordino.gradients.SlowGradients")
@pytest.mark.parametrize("kind", ["rules", "torch.func", "loop"])
def test_gradients_are_computed_where_grad_is_off(kind: str) -> None:
    engine, x, y = made("mlp", 6)
    if kind == "loop":
        engine = Engine(Function(looped, a=nn.Linear(5, 3)), readout)
    engine.everything_unruled = kind != "rules"
    with torch.no_grad():
        engine.prepare(x, y)
        sums, norms = engine.sums(x, y, ones)
    assert not sums.requires_grad
    assert not norms.requires_grad
    wanted = single_gradients(engine.model, readout, x, y)
    assert torch.allclose(sums[0].double(), wanted.sum(0), rtol=1e-4, atol=1e-6)


def test_too_few_rows_to_learn_from_are_looped_over() -> None:
    """No model is accepted for a whole run on the evidence of one row."""
    engine = Engine(Function(lambda m, x: m.a(x) - m.a(x).mean(0), a=nn.Linear(5, 3)), readout)
    engine.sums(torch.randn(1, 5), numbers(1), ones)
    assert engine._plan is None
    with pytest.raises(ValueError, match="depends on the other examples"):
        engine.sums(torch.randn(6, 5), numbers(6), ones)
