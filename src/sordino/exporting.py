"""A trained model as one file for other tools: the network, and in the same file what goes in and what comes out.

What is inside the graph is the network alone: encoded numbers in, scores out. How raw rows become numbers stays
outside, as plain data in the file's metadata, since much of it (words, categories, dates) is no arithmetic on tensors;
and scores are not turned into probabilities, since whoever wants them takes one softmax, and whoever wants the best
class takes none. The metadata says both.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from sordino.privacy.certificate import sordino_version
from sordino.runs import replace_file
from sordino.trained import Trained

FORMAT = "sordino-model/1"
SUFFIXES = {"safetensors": ".safetensors", "onnx": ".onnx", "torch-export": ".pt2"}
ABOUT = "sordino.json"  # among the extra files of torch.export


def export(trained: Trained, format: str = "safetensors", out: str | Path | None = None) -> Path:
    """Write a trained model as one file for other tools, with schema, labels, task and certificate's digest inside.

    Guarantee: only what is released goes into it (weights and public facts), never anything of a checkpoint.

    Args:
        trained: As `load` gives it.
        format: ``safetensors`` (weights alone; the facts are the header's metadata), ``onnx`` (the network, encoded
            numbers in and scores out, for a batch of any size; the facts are its ``metadata_props``), or
            ``torch-export`` (likewise, for ``torch.export.load``; the facts are its extra file ``sordino.json``).
        out: The file; by default ``model`` beside the run, with the suffix of the format.

    >>> export(None, "pickle")
    Traceback (most recent call last):
    ValueError: there is no format 'pickle': there are safetensors, onnx, torch-export
    """
    if format not in SUFFIXES:
        raise ValueError(f"there is no format {format!r}: there are {', '.join(SUFFIXES)}")
    path = trained.path / f"exported{SUFFIXES[format]}" if out is None else Path(out)
    if path.resolve().parent == trained.path.resolve() and path.name == "model.safetensors":
        raise ValueError(f"{path} is what the certificate is about: choose another name")
    write: Callable[[Trained], bytes] = {
        "safetensors": _safetensors,
        "onnx": _onnx,
        "torch-export": _torch_export,
    }[format]
    replace_file(path, write(trained))
    return path


def about(trained: Trained) -> dict[str, str]:
    """What a reader needs besides the weights; each fact is text, and what is more than a word is JSON."""
    inputs, summary, certificate = trained.inputs, trained.summary, trained.certificate
    facts: dict[str, Any] = {
        "format": FORMAT,
        "model": summary.get("model", "a model object"),
        "certificate_digest": certificate["digest"],
        "epsilon": certificate["guarantee"]["epsilon"],
        "delta": certificate["guarantee"]["delta"],
        "claim_stands": certificate["claim"]["stands"],
        "sordino_version": sordino_version(),
    }
    if inputs is not None:
        target = inputs.target
        facts |= {
            "task": target.task,
            "input": "encoded rows, as `inputs` says: float32 of shape (rows, "
            f"{', '.join(map(str, inputs.shape))})",
            "output": _output(trained),
            "shape": list(inputs.shape),
            "labels": list(target.labels),
            "low": target.low,
            "high": target.high,
            "inputs": inputs.to_json(),
        }
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in facts.items()}


def _output(trained: Trained) -> str:
    if trained.target.labels:
        return (
            "scores, one for each of `labels`: the largest is the answer, and their softmax the probabilities"
        )
    return "one number x: the answer is low + (x + 1) * (high - low) / 2, with x put between -1 and 1"


def _safetensors(trained: Trained) -> bytes:
    tensors = {name: t.detach().cpu().clone().contiguous() for name, t in trained.model.state_dict().items()}
    return save(tensors, metadata=about(trained))


def _onnx(trained: Trained) -> bytes:
    try:
        import onnx
        import onnxscript  # noqa: F401  # which torch's exporter needs
    except ImportError:
        raise ValueError("onnx files need the extra 'export': pip install 'sordino[export]'") from None
    network, rows = _frozen(trained)
    with _quiet(), _said_in_one_line("onnx"):
        program = torch.onnx.export(
            network,
            (rows,),
            dynamo=True,
            input_names=["rows"],
            output_names=["scores"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    del proto.metadata_props[:]
    onnx.helper.set_model_props(proto, about(trained))
    _forget_source(proto)
    return bytes(proto.SerializeToString())


def _forget_source(proto: Any) -> None:
    """The exporter notes lines of code and paths of the machine beside every node: nobody's business."""
    proto.doc_string = ""
    for node in proto.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    for value in (*proto.graph.value_info, *proto.graph.input, *proto.graph.output, *proto.graph.initializer):
        del value.metadata_props[:]
    for function in proto.functions:
        del function.metadata_props[:]
        for node in function.node:
            del node.metadata_props[:]
    del proto.graph.metadata_props[:]


def _torch_export(trained: Trained) -> bytes:
    network, rows = _frozen(trained)
    with _quiet(), _said_in_one_line("torch-export"):
        program = torch.export.export(
            network, (rows,), dynamic_shapes=({0: torch.export.Dim("batch")},), strict=False
        )
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths and lines of the machine
    program.example_inputs = None
    buffer = io.BytesIO()
    with _quiet():
        torch.export.save(program, buffer, extra_files={ABOUT: json.dumps(about(trained))})
    return buffer.getvalue()


def _frozen(trained: Trained) -> tuple[nn.Module, Tensor]:
    """The network as it predicts, and made-up rows of the shape it takes: two, since one is taken for a constant."""
    network = copy.deepcopy(trained.model).cpu().eval()
    for parameter in network.parameters():
        # Of its own memory: training leaves views into one vector, which exporters would write as a whole.
        parameter.data = parameter.data.clone()
        parameter.requires_grad_(False)
    if trained.inputs is not None:
        return network, torch.zeros(2, *trained.inputs.shape)
    shape = trained.summary.get("input_shape")
    if not isinstance(shape, list):
        raise ValueError(
            "the run does not say which rows its model takes: train it with inputs=, or export to safetensors"
        )
    return network, torch.zeros(2, *shape, dtype=torch.int64)  # words, of which there is no other kind of row


@contextlib.contextmanager
def _said_in_one_line(format: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())[:160]
        raise ValueError(
            f"this model cannot be exported as {format} ({type(error).__name__}: {reason}): use safetensors, which "
            "any model can be"
        ) from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Exporters talk a lot, to loggers, stdout and warnings, of nothing that a user could mend."""
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
