"""Recurrent layers, unrolled into the linear rule (a step's use of a weight is one more position of it)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.gradients.capture import Capture, rule_for

State = tuple[Tensor, ...]
Cell = Callable[[Tensor, Tensor, State], State]  # (input part, hidden part, state) -> state


def _lstm_cell(from_input: Tensor, from_hidden: Tensor, state: State) -> State:
    i, f, g, o = (from_input + from_hidden).chunk(4, -1)
    cell = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


def _gru_cell(from_input: Tensor, from_hidden: Tensor, state: State) -> State:
    input_r, input_z, input_n = from_input.chunk(3, -1)
    hidden_r, hidden_z, hidden_n = from_hidden.chunk(3, -1)
    reset, update = torch.sigmoid(input_r + hidden_r), torch.sigmoid(input_z + hidden_z)
    new = torch.tanh(input_n + reset * hidden_n)
    return (new + update * (state[0] - new),)


def _tanh_cell(from_input: Tensor, from_hidden: Tensor, state: State) -> State:
    return (torch.tanh(from_input + from_hidden),)


def _relu_cell(from_input: Tensor, from_hidden: Tensor, state: State) -> State:
    return (torch.relu(from_input + from_hidden),)


def _unroll(
    capture: Capture,
    cell: Cell,
    x: Tensor,
    states: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, list[Tensor]]:
    directions = 2 if bidirectional else 1
    per_layer = len(params) // (num_layers * directions)
    weights: Iterator[Tensor] = iter(params)
    if batch_first:
        x = x.transpose(0, 1)
    finals: list[State] = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            w_ih, w_hh = next(weights), next(weights)
            b_ih, b_hh = (next(weights), next(weights)) if has_biases else (None, None)
            w_hr = next(weights) if per_layer == 2 * (1 + has_biases) + 1 else None
            steps = capture.call(F.linear, x, w_ih, b_ih).unbind(0)
            state = tuple(s[layer * directions + direction] for s in states)
            hidden = []
            for from_input in steps if direction == 0 else reversed(steps):
                state = cell(from_input, capture.call(F.linear, state[0], w_hh, b_hh), state)
                if w_hr is not None:
                    state = (capture.call(F.linear, state[0], w_hr, None), *state[1:])
                hidden.append(state[0])
            outputs.append(torch.stack(hidden if direction == 0 else hidden[::-1]))
            finals.append(state)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout and train and layer < num_layers - 1:
            x = F.dropout(x, dropout, True)
    if batch_first:
        x = x.transpose(0, 1)
    return x, [torch.stack(part) for part in zip(*finals, strict=True)]


@rule_for(torch.lstm)
def lstm(capture: Capture, input: Tensor, hx: Any, params: Any, *options: Any) -> Any:
    if isinstance(hx, Tensor):  # (data, batch_sizes, ...): a packed sequence, whose batch shrinks as it goes
        return NotImplemented
    output, (hidden, cell) = _unroll(capture, _lstm_cell, input, hx, params, *options)
    return output, hidden, cell


def _single_state(capture: Capture, cell: Cell, input: Tensor, hx: Any, params: Any, *options: Any) -> Any:
    if isinstance(params, Tensor):  # a packed sequence
        return NotImplemented
    output, (hidden,) = _unroll(capture, cell, input, [hx], params, *options)
    return output, hidden


@rule_for(torch.gru)
def gru(capture: Capture, input: Tensor, hx: Any, params: Any, *options: Any) -> Any:
    return _single_state(capture, _gru_cell, input, hx, params, *options)


@rule_for(torch.rnn_tanh)
def rnn_tanh(capture: Capture, input: Tensor, hx: Any, params: Any, *options: Any) -> Any:
    return _single_state(capture, _tanh_cell, input, hx, params, *options)


@rule_for(torch.rnn_relu)
def rnn_relu(capture: Capture, input: Tensor, hx: Any, params: Any, *options: Any) -> Any:
    return _single_state(capture, _relu_cell, input, hx, params, *options)
