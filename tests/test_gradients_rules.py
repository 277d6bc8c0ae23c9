"""Each layer rule against a plain loop over single examples, over shapes and options.

The oracle and the comparison that the other gradient tests use are here too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from sordino.data import tree_leaves, tree_map
from sordino.gradients import Engine, Norms, SlowGradients
from sordino.gradients.bounds import row_norms
from sordino.gradients.factors import Outer, gram_is_cheaper

TOLERANCE = 1e-5
# The same examples each time: a test of rounding errors must not fail one run in a thousand.
quick = settings(
    max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
seeds = st.integers(0, 2**16)
batches = st.integers(1, 4)


# The oracle ----------------------------------------------------------------------------------------------


def readout(output: Tensor, target: Tensor) -> Tensor:
    """One smooth loss per example, in which every output counts differently."""
    flat = output.reshape(len(output), -1)
    weights = torch.linspace(-1.0, 1.5, flat.shape[1], dtype=flat.dtype)
    return (torch.tanh(flat * weights) * target[:, None]).sum(1)


def call(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def single_gradients(model: nn.Module, loss: Any, inputs: Any, targets: Any) -> Tensor:
    """The gradient of each example alone [B, d], by autograd in double precision, on a copy of the model."""
    model = copy.deepcopy(model).double()
    parameters = [p for p in model.parameters() if p.requires_grad]
    inputs, targets = tree_map(lambda x: x.double() if x.is_floating_point() else x, (inputs, targets))
    rows = []
    for i in range(len(tree_leaves(targets)[0])):
        row, target = tree_map(lambda x, i=i: x[i : i + 1], (inputs, targets))
        gradients = torch.autograd.grad(loss(call(model, row), target)[0], parameters, allow_unused=True)
        rows.append(
            torch.cat(
                [
                    torch.zeros_like(p).flatten() if g is None else g.flatten()
                    for p, g in zip(parameters, gradients, strict=True)
                ]
            )
        )
    return torch.stack(rows)


def clip_and_probe(norms: Tensor, threshold: float) -> Tensor:
    """The weights of the clipped sum, and of OSO's q: 1/norm where norm > C, else 0."""
    clip = threshold / norms.clamp_min(threshold)
    probe = torch.where(norms > threshold, 1.0 / norms.clamp_min(1e-30), 0.0)
    return torch.stack([clip, probe])


def assert_close(
    got: Tensor, wanted: Tensor, scale: Tensor | float, what: str, tolerance: float = TOLERANCE
) -> None:
    error = (got.double() - wanted).abs()
    bound = torch.as_tensor(tolerance * scale + 1e-12)
    assert (error <= bound).all(), f"{what}: off by {error.max():.3g}, allowed {bound.max():.3g}"


def assert_sums_close(got: Tensor, terms: Tensor, what: str, tolerance: float = TOLERANCE) -> None:
    """``got`` is the sum of ``terms``: relative to its norm, unless the terms cancel almost altogether."""
    wanted = terms.sum(0)
    error, size = float((got.double() - wanted).norm()), float(wanted.norm())
    size = max(size, 0.01 * float(terms.norm(dim=1).sum()))
    assert error <= tolerance * size + 1e-12, f"{what}: off by {error:.3g} of {size:.3g}"


def agree(
    engine: Engine, inputs: Any, targets: Any, groups: Tensor | None = None, tolerance: float = TOLERANCE
) -> None:
    """Norms, clipped sum, probe and per-layer sums of the engine are those of single examples (or groups)."""
    if engine._plan is None:  # batches too small to learn from would be looped over
        repeats = -(-5 // len(tree_leaves(targets)[0]))
        engine.prepare(*tree_map(lambda x: torch.cat([x] * repeats), (inputs, targets)))
    gradients = single_gradients(engine.model, engine.loss, inputs, targets)
    if groups is not None:
        ids = groups.unique()
        gradients = torch.stack([gradients[groups == i].sum(0) for i in ids])
    norms = gradients.norm(dim=1)
    middle = float(norms.sort().values[len(norms) // 2])
    threshold = 0.9 * middle if middle > 0 else 1.0
    floor = 0.01 * norms.max() * torch.ones_like(norms)  # rounding is relative to what was added up
    seen: list[Norms] = []

    def weigh(norms: Norms) -> Tensor:
        seen.append(norms)
        return clip_and_probe(norms.total_U, threshold)

    sums, got_norms = engine.sums(inputs, targets, weigh, count=2, groups=groups)
    assert_close(got_norms, norms, torch.maximum(norms, floor), "norms", tolerance)
    clip, probe = clip_and_probe(norms, threshold)
    assert_sums_close(sums[0], clip[:, None] * gradients, "clipped sum", tolerance)
    assert_sums_close(sums[1], probe[:, None] * gradients, "probe", tolerance)

    # Squares by parameter, and sums with weights by parameter.
    slots = engine.vector.slots
    parts = [gradients[:, slot.start : slot.stop] for slot in slots]
    part_norms = torch.stack([part.norm(dim=1) for part in parts])
    got_squares = torch.cat([n.squares_PU for n in seen], 1)
    assert seen[0].names == tuple(slot.name for slot in slots)
    assert_close(got_squares.sqrt(), part_norms, torch.maximum(norms, floor), "norms by parameter", tolerance)
    thresholds = 0.5 * part_norms.mean(1, keepdim=True) + 1e-3

    def weigh_parts(norms: Norms) -> Tensor:
        by_part = thresholds / norms.squares_PU.sqrt().maximum(thresholds)
        return torch.stack([by_part, torch.ones_like(by_part)]).float()

    by_part, _ = engine.sums(inputs, targets, weigh_parts, count=2, groups=groups)
    weights = thresholds / part_norms.maximum(thresholds)
    wanted = torch.cat([w[:, None] * part for w, part in zip(weights, parts, strict=True)], 1)
    assert_sums_close(by_part[0], wanted, "sum with weights by parameter", tolerance)
    assert_sums_close(by_part[1], gradients, "plain sum", tolerance)


def check(model: nn.Module, inputs: Any, targets: Any = None, loss: Any = readout, **options: Any) -> Engine:
    """Wrap the model and compare; targets default to one number per example."""
    if targets is None:
        targets = numbers(len(tree_leaves(inputs)[0]))
    engine = Engine(model, loss, microbatch=options.pop("microbatch", None))
    agree(engine, inputs, targets, **options)
    return engine


def numbers(n: int) -> Tensor:
    return 0.5 + torch.rand(n)


class Gained(nn.Module):
    """``layer(sin(gain * x))``: the gradient of ``gain`` is right only if the layer passes gradients on rightly."""

    def __init__(self, layer: nn.Module, after: Callable[[Any], Tensor] = lambda out: out) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(1.1))
        self.layer = layer
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.layer(torch.sin(x * self.gain)))


class Function(nn.Module):
    """A module of named parameters and a function of (itself, inputs)."""

    def __init__(self, function: Callable[..., Tensor], **members: Tensor | nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, member in members.items():
            setattr(self, name, member if isinstance(member, nn.Module) else nn.Parameter(member))

    def __getattr__(self, name: str) -> Any:  # the members, of any kind
        return super().__getattr__(name)

    def forward(self, *inputs: Any) -> Tensor:
        return self.function(self, *inputs)


def freeze(layer: nn.Module, which: str) -> None:
    """Freeze weight or bias, but leave something to train."""
    if which != "nothing" and layer.bias is not None:
        getattr(layer, which).requires_grad_(False)


def randomise(model: nn.Module) -> nn.Module:
    """Biases and norms start at zeros and ones, where mistakes hide."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


# Linear --------------------------------------------------------------------------------------------------


@quick
@example(seed=1, batch=3, lead=[4], d=3, p=2, bias=True, frozen="nothing")
@given(
    seeds,
    batches,
    st.lists(st.integers(1, 4), max_size=3),
    st.integers(1, 5),
    st.integers(1, 5),
    st.booleans(),
    st.sampled_from(["nothing", "weight", "bias"]),
)
def test_linear(seed: int, batch: int, lead: list[int], d: int, p: int, bias: bool, frozen: str) -> None:
    torch.manual_seed(seed)
    layer = nn.Linear(d, p, bias)
    freeze(layer, frozen)
    check(Gained(layer), torch.randn(batch, *lead, d))


@quick
@given(seeds, batches, st.integers(1, 6), st.integers(4, 10), st.integers(4, 10))
def test_linear_by_gram_and_by_dense_gradients(seed: int, batch: int, positions: int, d: int, p: int) -> None:
    torch.manual_seed(seed)
    a, g = torch.randn(batch, positions, d), torch.randn(batch, positions, p)
    wanted = torch.einsum("btp,btd->bpd", g.double(), a.double()).flatten(1).norm(dim=1)
    by_gram = Outer(a, g)._gram_squared_norms(row_norms(a), row_norms(g)).sqrt()
    by_dense = Outer(a, g).dense().norm(dim=1)
    floor = (a.norm(dim=2) * g.norm(dim=2)).sum(1).double()
    assert_close(by_gram, wanted, floor, "Gram")
    assert_close(by_dense, wanted, floor, "dense")


@pytest.mark.parametrize(("positions", "gram"), [(2, True), (30, False)])
def test_both_ways_are_taken_by_sequences(
    positions: int, gram: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = count_grams(monkeypatch)
    assert gram_is_cheaper(positions, 12, 12) == gram
    check(Gained(nn.Linear(12, 12)), torch.randn(4, positions, 12))
    assert bool(taken) == gram


@pytest.mark.parametrize(("size", "channels", "gram"), [(3, 24, True), (8, 3, False)])
def test_both_ways_are_taken_by_convolutions(
    size: int, channels: int, gram: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = count_grams(monkeypatch)
    assert gram_is_cheaper((size - 1) ** 2, channels * 4, channels) == gram
    check(Gained(nn.Conv2d(channels, channels, 2)), torch.randn(3, channels, size, size))
    assert bool(taken) == gram


def count_grams(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    taken: list[int] = []
    gram = Outer._gram_squared_norms

    def counted(self: Outer, *lengths: Tensor) -> Tensor:
        taken.append(self.inputs_BTd.shape[1])
        return gram(self, *lengths)

    monkeypatch.setattr(Outer, "_gram_squared_norms", counted)
    return taken


@quick
@given(seeds, st.integers(2, 6), st.floats(-7.0, 0.0))
def test_gram_survives_cancellation(seed: int, pairs: int, exponent: float) -> None:
    """Positions that cancel but for a small rest: the norm must be that of the rest, above all not less."""
    torch.manual_seed(seed)
    d = p = 60
    a, g = torch.randn(3, pairs, d), torch.randn(3, pairs, p)
    rest = 10.0**exponent * torch.randn(3, pairs, p)
    outer = Outer(torch.cat([a, a], 1), torch.cat([g, rest - g], 1))
    assert gram_is_cheaper(2 * pairs, d, p)
    norms = outer.squared_norms().sqrt()
    wanted = (
        torch.einsum("btp,btd->bpd", outer.grads_BTp.double(), outer.inputs_BTd.double())
        .flatten(1)
        .norm(dim=1)
    )
    size = (a.norm(dim=2) * g.norm(dim=2)).sum(1).double() * 2
    # Dense single-precision gradients are no better than this; clipping by them is what torch itself would do.
    assert_close(norms, wanted, 100 * wanted + 0.1 * size, "norms under cancellation")
    clipped = torch.zeros(p, d)
    for i in range(3):
        only = torch.zeros(3)
        only[i] = 1.0 / float(norms[i])
        outer.add_weighted_sum(only, clipped, fresh=True)
        rounding = 1e-6 * float(
            size[i] / norms[i]
        )  # of single-precision terms this much longer than their sum
        assert float(clipped.norm()) <= 1.001 + rounding, "the clipped gradient is longer than the threshold"


def test_gram_of_exact_cancellation_is_rounding() -> None:
    a, g = torch.randn(3, 1, 40).expand(3, 2, 40), torch.randn(3, 1, 40)
    assert gram_is_cheaper(2, 40, 40)
    size = 2 * a[:, 0].norm(dim=1) * g[:, 0].norm(dim=1)
    assert torch.all(Outer(a, torch.cat([g, -g], 1)).squared_norms().sqrt() <= 1e-6 * size)


# Convolutions --------------------------------------------------------------------------------------------


@st.composite
def convolutions(draw: Any, transposed: bool) -> tuple[nn.Module, tuple[int, ...]]:
    dims = draw(st.integers(1, 3))

    def sizes(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(low, high), min_size=dims, max_size=dims)))

    groups = draw(st.integers(1, 2))
    options: dict[str, Any] = {
        "kernel_size": sizes(1, 3),
        "stride": sizes(1, 3),
        "dilation": sizes(1, 2),
        "padding": sizes(0, 2),
        "groups": groups,
        "bias": draw(st.booleans()),
    }
    inputs, outputs = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    spatial = sizes(5, 6)
    if transposed:
        spatial = sizes(2, 4)
        options["output_padding"] = tuple(
            draw(st.integers(0, max(s, d) - 1))
            for s, d in zip(options["stride"], options["dilation"], strict=True)
        )
        options["padding"] = tuple(
            min(p, ((n - 1) * s + d * (k - 1)) // 2)  # some output must be left
            for p, n, s, d, k in zip(
                options["padding"],
                spatial,
                options["stride"],
                options["dilation"],
                options["kernel_size"],
                strict=True,
            )
        )
        kind: Any = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dims - 1]
    else:
        kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
        match draw(st.sampled_from(["ints", "ints", "same", "valid"])):
            case "same":
                options |= {"padding": "same", "stride": 1}
            case "valid":
                options["padding"] = "valid"
        options["padding_mode"] = draw(
            st.sampled_from(["zeros", "circular", "reflect"][: 2 if dims == 3 else 3])
        )
    return kind(inputs, outputs, **options), (inputs, *spatial)


@settings(quick, max_examples=60)
@given(seeds, batches, convolutions(transposed=False), st.sampled_from(["nothing", "weight", "bias"]))
def test_convolution(seed: int, batch: int, drawn: tuple[nn.Module, tuple[int, ...]], frozen: str) -> None:
    check_convolution(seed, batch, *drawn, frozen)


@settings(quick, max_examples=60)
@given(seeds, batches, convolutions(transposed=True), st.sampled_from(["nothing", "weight", "bias"]))
def test_transposed_convolution(
    seed: int, batch: int, drawn: tuple[nn.Module, tuple[int, ...]], frozen: str
) -> None:
    check_convolution(seed, batch, *drawn, frozen)


def check_convolution(seed: int, batch: int, layer: Any, shape: tuple[int, ...], frozen: str) -> None:
    torch.manual_seed(seed)
    layer.reset_parameters()
    freeze(layer, frozen)
    check(Gained(layer), torch.randn(batch, *shape))


def test_convolution_with_more_padding_at_the_end() -> None:
    """What "same" does where the total is odd."""
    check(Gained(nn.Conv2d(2, 3, 2, padding="same")), torch.randn(4, 2, 5, 5))


def test_convolution_of_channels_last_inputs() -> None:
    x = torch.randn(3, 4, 6, 5).to(memory_format=torch.channels_last)
    check(Gained(nn.Conv2d(4, 6, 3, padding=1, groups=2)), x)
    check(Gained(nn.Conv2d(4, 6, 1)), x)


def test_transposed_convolution_by_points_with_padded_output() -> None:
    check(Gained(nn.ConvTranspose1d(2, 3, 1, dilation=2, output_padding=1)), torch.randn(3, 2, 4))


def test_convolution_by_points_with_strides() -> None:
    check(Gained(nn.Conv2d(2, 3, 1, stride=(2, 1))), torch.randn(3, 2, 5, 4))


def test_convolution_over_a_folded_batch() -> None:
    """Frames of a video share a convolution: [B, T, C, H, W] -> [B T, C, H, W] -> [B, T, ...]."""
    convolution = nn.Conv2d(2, 3, 3)
    check(
        Function(lambda m, x: m.conv(x.flatten(0, 1)).unflatten(0, x.shape[:2]), conv=convolution),
        torch.randn(4, 3, 2, 5, 5),
    )


# Embeddings ----------------------------------------------------------------------------------------------


@quick
@given(
    seeds,
    batches,
    st.lists(st.integers(1, 5), max_size=2),
    st.integers(1, 6),
    st.sampled_from([None, 0, 1, -1]),
)
def test_embedding(seed: int, batch: int, lead: list[int], rows: int, padding: int | None) -> None:
    torch.manual_seed(seed)
    assume(padding is None or padding < rows)
    layer = nn.Embedding(rows, 3, padding_idx=padding)
    randomise(layer)
    check(layer, torch.randint(rows, (batch, *lead)))


def test_embedding_of_padding_only_has_no_gradient() -> None:
    layer = randomise(nn.Embedding(4, 3, padding_idx=2))
    tokens = torch.tensor([[2, 2, 2], [0, 2, 0], [1, 3, 1]])
    engine = check(layer, tokens)
    _, norms = engine.sums(tokens, torch.ones(3), lambda n: torch.ones_like(n.total_U)[None])
    assert norms[0] == 0
    assert norms[1] > 0


# Normalisation -------------------------------------------------------------------------------------------


@quick
@given(seeds, batches, st.lists(st.integers(2, 4), min_size=1, max_size=3), st.integers(0, 2), st.booleans())
def test_layer_norm(seed: int, batch: int, shape: list[int], outside: int, bias: bool) -> None:
    torch.manual_seed(seed)
    shape[-1] += 2  # two normalised numbers are always -1 and 1, and their gradients rounding errors
    layer = randomise(nn.LayerNorm(shape, bias=bias))
    check(Gained(layer), torch.randn(batch, *[2] * outside, *shape))


@quick
@given(seeds, batches, st.lists(st.integers(2, 4), min_size=1, max_size=2), st.integers(0, 2))
def test_rms_norm(seed: int, batch: int, shape: list[int], outside: int) -> None:
    torch.manual_seed(seed)
    shape[-1] += 2
    check(Gained(randomise(nn.RMSNorm(shape))), torch.randn(batch, *[2] * outside, *shape))


@quick
@given(
    seeds,
    batches,
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(0, 3),
    st.sampled_from(["nothing", "weight", "bias"]),
)
def test_group_norm(seed: int, batch: int, groups: int, width: int, dims: int, frozen: str) -> None:
    torch.manual_seed(seed)
    layer = randomise(nn.GroupNorm(groups, 4 * groups * width))
    freeze(layer, frozen)
    check(Gained(layer), torch.randn(batch, 4 * groups * width, *[3] * dims))


@pytest.mark.parametrize(
    ("layer", "dims"),
    [(nn.InstanceNorm1d, 1), (nn.InstanceNorm2d, 2), (nn.InstanceNorm3d, 3)],
    ids=["1d", "2d", "3d"],
)
def test_instance_norm(layer: type[nn.Module], dims: int) -> None:
    check(Gained(randomise(layer(3, affine=True))), torch.randn(4, 3, *[3] * dims))


# Recurrent layers ----------------------------------------------------------------------------------------


@settings(quick, max_examples=30)
@example(
    seed=1,
    batch=3,
    kind="GRU",
    layers=1,
    steps=3,
    both_ways=False,
    batch_first=True,
    bias=True,
    with_state=True,
)
@given(
    seeds,
    batches,
    st.sampled_from(["LSTM", "GRU", "RNN", "RNN relu", "LSTM projected"]),
    st.integers(1, 2),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_recurrent(
    seed: int,
    batch: int,
    kind: str,
    layers: int,
    steps: int,
    both_ways: bool,
    batch_first: bool,
    bias: bool,
    with_state: bool,
) -> None:
    torch.manual_seed(seed)
    options: dict[str, Any] = {
        "num_layers": layers,
        "bidirectional": both_ways,
        "batch_first": batch_first,
        "bias": bias,
    }
    if kind == "LSTM projected":
        options["proj_size"] = 2
    if kind == "RNN relu":
        options["nonlinearity"] = "relu"
    layer = getattr(nn, kind.split()[0])(3, 4, **options)
    model = Recurrent(layer, batch_first, with_state, layers * (1 + both_ways))
    check(model, torch.randn(batch, steps, 3))


class Recurrent(nn.Module):
    """A recurrent layer on [B, T, 3] inputs, reading its outputs and its final states."""

    layer: nn.RNNBase

    def __init__(self, layer: nn.RNNBase, batch_first: bool, with_state: bool, states: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(0.9))
        self.layer, self.batch_first, self.with_state, self.states = layer, batch_first, with_state, states

    def forward(self, x: Tensor) -> Tensor:
        hx: Any = None
        if self.with_state:
            width = self.layer.proj_size or self.layer.hidden_size
            hx = torch.tanh(x.mean((1, 2))).expand(self.states, -1)[..., None].repeat(1, 1, width) * self.gain
            if isinstance(self.layer, nn.LSTM):
                hx = (hx, 0.5 * hx[..., :1].repeat(1, 1, self.layer.hidden_size))
        x = x * self.gain
        out, final = self.layer(x if self.batch_first else x.transpose(0, 1), hx)
        out = out if self.batch_first else out.transpose(0, 1)
        finals = final if isinstance(final, tuple) else (final,)
        return torch.cat([out.flatten(1), *(f.transpose(0, 1).flatten(1) for f in finals)], 1)


# Attention and transformers ------------------------------------------------------------------------------


@settings(quick, max_examples=30)
@given(
    seeds,
    batches,
    st.sampled_from(["self", "memory", "cross", "cross widths"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["none", "causal", "float", "padding", "per head", "both"]),
)
def test_attention(
    seed: int, batch: int, kind: str, bias: bool, bias_kv: bool, zero: bool, batch_first: bool, masks: str
) -> None:
    torch.manual_seed(seed)
    widths = {"kdim": 3, "vdim": 5} if kind == "cross widths" else {}
    layer = nn.MultiheadAttention(
        4, 2, bias=bias, add_bias_kv=bias_kv, add_zero_attn=zero, batch_first=batch_first, **widths
    )
    model = randomise(Attention(layer, kind, masks))
    keys = 3 if kind == "self" else 2
    inputs = (
        torch.randn(batch, 3, 4),
        torch.randn(batch, keys, widths.get("kdim", 4)),
        torch.randn(batch, keys, widths.get("vdim", 4)),
    )
    check(model, inputs)


def test_attention_of_an_example_that_is_padding_only() -> None:
    def forward(m: Function, x: Tensor) -> Tensor:
        output: Tensor = m.layer(x, x, x, key_padding_mask=x[:, :, 0] > 50, need_weights=False)[0]
        return output

    engine = Engine(Function(forward, layer=nn.MultiheadAttention(4, 2, batch_first=True)), readout)
    x = torch.randn(5, 3, 4)
    engine.prepare(x, numbers(5))
    agree(engine, x, numbers(5))
    x[2, :, 0] = 100
    agree(engine, x, numbers(5))


class Attention(nn.Module):
    """Attention over batch-first inputs; also reads the attention weights."""

    def __init__(self, layer: nn.MultiheadAttention, kind: str, masks: str) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(0.9))
        self.layer, self.kind, self.masks = layer, kind, masks

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query = query * self.gain
        if self.kind == "self":
            key = value = query
        elif self.kind == "memory":
            key = value = key * self.gain
        options = self._masks(query, key)
        if not self.layer.batch_first:
            swapped = {id(x): x.transpose(0, 1) for x in (query, key, value)}
            query, key, value = (swapped[id(x)] for x in (query, key, value))
        out, weights = self.layer(query, key, value, **options)
        out = out if self.layer.batch_first else out.transpose(0, 1)
        return torch.cat([out.flatten(1), weights.flatten(1)], 1)

    def _masks(self, query: Tensor, key: Tensor) -> dict[str, Tensor]:
        batch, steps, keys = len(query), query.shape[1], key.shape[1]
        options: dict[str, Tensor] = {}
        if self.masks in ("causal", "both"):
            options["attn_mask"] = torch.ones(steps, keys, dtype=torch.bool).triu(1)
        if self.masks == "float":
            options["attn_mask"] = torch.linspace(-1, 1, steps * keys, dtype=query.dtype).view(steps, keys)
        if self.masks == "per head":
            options["attn_mask"] = torch.ones(batch * 2, steps, keys, dtype=torch.bool).triu(1)
        if self.masks in ("padding", "both"):
            padding = torch.zeros(batch, keys, dtype=torch.bool)
            padding[:, -1] = key[:, 0, 0] > 0
            options["key_padding_mask"] = padding
        return options


@pytest.mark.parametrize("norm_first", [False, True], ids=["norm last", "norm first"])
@pytest.mark.parametrize("batch_first", [False, True], ids=["sequence first", "batch first"])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_transformer_layers(norm_first: bool, batch_first: bool, training: bool) -> None:
    options: dict[str, Any] = {
        "dim_feedforward": 5,
        "dropout": 0.0,
        "batch_first": batch_first,
        "norm_first": norm_first,
    }
    encoder = nn.TransformerEncoderLayer(4, 2, **options)
    decoder = nn.TransformerDecoderLayer(4, 2, **options)

    def forward(m: Function, source: Tensor, target: Tensor) -> Tensor:
        if not batch_first:
            source, target = source.transpose(0, 1), target.transpose(0, 1)
        causal = nn.Transformer.generate_square_subsequent_mask(3, dtype=source.dtype)
        out = m.decoder(target, m.encoder(source), tgt_mask=causal, tgt_is_causal=True)
        output: Tensor = out if batch_first else out.transpose(0, 1)
        return output

    model = randomise(Function(forward, encoder=encoder, decoder=decoder)).train(training)
    check(model, (torch.randn(4, 5, 4), torch.randn(4, 3, 4)))


# Broadcast, products, derived parameters ------------------------------------------------------------------

FAST: dict[str, tuple[Callable[..., Tensor], dict[str, tuple[int, ...]], tuple[int, ...]]] = {
    "scalar scale": (lambda m, x: x * m.w, {"w": ()}, (3, 4)),
    "scale": (lambda m, x: m.w * x, {"w": (4,)}, (3, 4)),
    "scale of channels": (lambda m, x: x * m.w, {"w": (3, 1, 1)}, (3, 2, 4)),
    "scale with leading ones": (lambda m, x: x * m.w, {"w": (1, 3, 1)}, (3, 4)),
    "scale of scalars": (lambda m, x: x.sum(1) * m.w, {"w": ()}, (3,)),
    "torch.mul": (lambda m, x: torch.mul(x, m.w), {"w": (4,)}, (3, 4)),
    "shift": (lambda m, x: m.b + x, {"b": (4,)}, (3, 4)),
    "torch.add": (lambda m, x: torch.add(x, m.b), {"b": (4,)}, (3, 4)),
    "positions": (lambda m, x: x + m.pos, {"pos": (1, 3, 4)}, (3, 4)),
    "first positions": (lambda m, x: x + m.pos[:, : x.shape[1]], {"pos": (1, 7, 4)}, (3, 4)),
    "positions without a batch": (lambda m, x: x + m.pos[: x.shape[1]], {"pos": (7, 4)}, (3, 4)),
    "embedded positions": (
        lambda m, x: x + F.embedding(torch.arange(x.shape[1]), m.pos),
        {"pos": (7, 4)},
        (3, 4),
    ),
    "class token": (lambda m, x: torch.cat([m.cls.expand(len(x), -1, -1), x], 1), {"cls": (1, 1, 4)}, (3, 4)),
    "queries": (lambda m, x: m.q.expand(len(x), 2, 4) @ x.mT, {"q": (1, 2, 4)}, (3, 4)),
    "queries by size": (lambda m, x: m.q.expand(torch.Size((len(x), 2, 4))) @ x.mT, {"q": (2, 4)}, (3, 4)),
    "matrix product": (lambda m, x: x @ m.w, {"w": (4, 5)}, (3, 4)),
    "torch.matmul": (lambda m, x: torch.matmul(x, m.w), {"w": (4, 5)}, (4,)),
    "torch.mm": (lambda m, x: torch.mm(x, m.w), {"w": (4, 5)}, (4,)),
    "transposed weight": (lambda m, x: F.linear(x, m.w.t()), {"w": (4, 5)}, (3, 4)),
    "transposed product": (lambda m, x: x @ m.w.T, {"w": (5, 4)}, (3, 4)),
    "slice of a weight": (lambda m, x: F.linear(x, m.w[:3], m.b[1:4]), {"w": (5, 4), "b": (5,)}, (3, 4)),
    "chunks of a weight": (
        lambda m, x: torch.cat([F.linear(x, w) for w in m.w.chunk(2)], -1),
        {"w": (6, 4)},
        (3, 4),
    ),
    "product of weights": (lambda m, x: x @ (m.a @ m.b), {"a": (4, 2), "b": (2, 4)}, (3, 4)),
    "temperature": (lambda m, x: x * m.t.exp(), {"t": ()}, (3, 4)),
    "positive scale": (lambda m, x: x * F.softplus(m.w), {"w": (4,)}, (3, 4)),
    "weight both ways": (lambda m, x: torch.tanh(x @ m.w) @ m.w.t(), {"w": (4, 5)}, (3, 4)),
    "weight twice": (lambda m, x: torch.tanh(x @ m.w) @ m.w, {"w": (4, 4)}, (3, 4)),
    "standardised convolution": (
        lambda m, x: F.conv2d(
            x, (m.w - m.w.mean((1, 2, 3), keepdim=True)) / m.w.std((1, 2, 3), keepdim=True)
        ),
        {"w": (3, 2, 2, 2)},
        (2, 4, 4),
    ),
    "shift by a detached norm": (lambda m, x: x + m.b / m.b.detach().norm(), {"b": (4,)}, (3, 4)),
    "stacked weights": (lambda m, x: x @ torch.stack([m.a, m.b], 1), {"a": (4,), "b": (4,)}, (3, 4)),
    "view of another's shape": (
        lambda m, x: F.linear(x, m.a.view_as(m.b)) @ m.b,
        {"a": (12,), "b": (3, 4)},
        (4,),
    ),
    "normalised positions": (lambda m, x: x + F.layer_norm(m.pos, (4,)), {"pos": (3, 4)}, (3, 4)),
}


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("batch", [1, 3])
def test_uses_of_parameters(name: str, batch: int) -> None:
    function, shapes, shape = FAST[name]
    model = Function(function, **{key: torch.randn(size) for key, size in shapes.items()})
    check(model, torch.randn(batch, *shape))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: parametrizations.weight_norm(nn.Linear(4, 3)), (2, 4)),
        (lambda: parametrizations.weight_norm(nn.Conv1d(2, 3, 2)), (2, 5)),
        (lambda: parametrizations.orthogonal(nn.Linear(3, 3), use_trivialization=False), (3,)),
    ],
    ids=["weight norm, linear", "weight norm, convolution", "orthogonal"],
)
def test_parametrised_weights(layer: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    check(Gained(layer()), torch.randn(3, *shape))


# No fast rule: torch.func, and at last a loop --------------------------------------------------------------

SLOW: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "einsum": (
        lambda: Function(lambda m, x: torch.einsum("bij,jk->bik", x, m.w), w=torch.randn(4, 5)),
        (3, 4),
    ),
    "prelu": (lambda: nn.Sequential(nn.Linear(4, 5), nn.PReLU(5), nn.Linear(5, 2)), (4,)),
    "bilinear": (lambda: Function(lambda m, x: m.layer(x, x.flip(-1)), layer=nn.Bilinear(4, 4, 3)), (4,)),
    "division": (lambda: Function(lambda m, x: x / (1 + m.w.square()), w=torch.randn(4)), (3, 4)),
    "where": (lambda: Function(lambda m, x: torch.where(x > 0, x, m.w), w=torch.randn(4)), (3, 4)),
    "in-place addition": (
        lambda: Function(lambda m, x: (x * m.a).add_(m.b), a=torch.randn(4), b=torch.randn(4)),
        (4,),
    ),
    "sequence-first positions": (
        lambda: Function(lambda m, x: (x.transpose(0, 1) + m.pos).transpose(0, 1), pos=torch.randn(3, 1, 4)),
        (3, 4),
    ),
}


@pytest.mark.parametrize("name", SLOW)
def test_uses_without_a_rule_are_right_and_warn(name: str) -> None:
    build, shape = SLOW[name]
    with pytest.warns(SlowGradients, match=r"torch\.func"):
        check(build(), torch.randn(4, *shape))


def data_dependent(m: Function, x: Tensor) -> Tensor:
    return torch.stack([m.a(row) if row.sum().item() > 0 else m.b(row) for row in x])


def written_into_place(m: Function, x: Tensor) -> Tensor:
    rows = x.new_zeros(len(x), 4, 4)
    rows[:, 1:] = x
    rows[:, 0] = m.token
    output: Tensor = m.layer(rows)
    return output


def packed(m: Function, x: Tensor, lengths: Tensor) -> Tensor:
    sequence = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    output: Tensor = m.layer(sequence)[1].squeeze(0)
    return output


LOOPED: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "data-dependent control flow": lambda: (
        Function(data_dependent, a=nn.Linear(4, 3), b=nn.Linear(4, 3)),
        torch.randn(6, 4),
    ),
    "packed sequences": lambda: (
        Function(packed, layer=nn.GRU(4, 3, batch_first=True)),
        (torch.randn(5, 4, 4), torch.tensor([4, 2, 3, 1, 2])),
    ),
    "bags of tokens": lambda: (
        Function(lambda m, x: m.layer(x), layer=nn.EmbeddingBag(7, 3)),
        torch.randint(7, (5, 4)),
    ),
}


@pytest.mark.parametrize("name", LOOPED)
def test_what_vmap_cannot_do_is_looped_over_and_warns(name: str) -> None:
    model, inputs = LOOPED[name]()
    with pytest.warns(SlowGradients):
        check(model, inputs)


def test_a_use_that_is_not_seen_falls_back() -> None:
    """Assignment to a slice returns nothing to follow: prepare() finds the gradient missing."""
    model = Function(written_into_place, token=torch.randn(4), layer=nn.Linear(4, 2))
    with pytest.warns(SlowGradients, match="no fast rule fits"):
        check(model, torch.randn(4, 3, 4))
