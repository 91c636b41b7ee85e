"""ONNX: a graph from `observation` [n, d] to `action` for any batch size n; `outputs` is the last layer's result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from detent.export import interpreted, provenance
from detent.ops import Choose, Op, Place, counts_of, layer_norm_of, linear_of, normalizer_of, positions
from detent.package import import_optional
from detent.policy import Policy

OPSET = 17
IR_VERSION = 8
"""From 2022, so that older runtimes can read the file too."""

Value = str
"""The name of a tensor in the graph."""


class Graph:
    """Nodes and constants with unique names, in the order in which they were added."""

    def __init__(self) -> None:
        self._onnx = import_optional("onnx", "onnx")
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.kept: list[Value] = []

    def add(self, op_type: str, *inputs: Value | ArrayLike, output: Value | None = None, **attributes: Any) -> Value:
        """A node with one output; arrays and numbers among its inputs become constants."""
        names = [x if isinstance(x, str) else self.constant(x) for x in inputs]
        output = output or f"{op_type.lower()}_{len(self.nodes)}"
        self.nodes.append(self._onnx.helper.make_node(op_type, names, [output], name=output, **attributes))
        return output

    def split(self, x: Value, sizes: Sequence[int]) -> list[Value]:
        """The parts of the last axis [n, sum(sizes)]."""
        names = [f"split_{len(self.nodes)}_{i}" for i in range(len(sizes))]
        inputs = [x, self.constant(np.array(sizes, np.int64))]
        self.nodes.append(self._onnx.helper.make_node("Split", inputs, names, name=names[0], axis=1))
        return names

    def constant(self, value: ArrayLike) -> Value:
        """float32 unless the value is an array of integers."""
        array: NDArray[Any] = np.asarray(value)
        if not (isinstance(value, np.ndarray) and array.dtype == np.int64):
            array = array.astype(np.float32)
        name = f"constant_{len(self.constants)}"
        self.constants.append(
            self._onnx.numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        )
        return name

    def reshape(self, x: Value, *sizes: int, output: Value | None = None) -> Value:
        """[n, ...] -> [n, *sizes]; in ONNX a size of 0 keeps the one that was there."""
        return self.add("Reshape", x, np.array([0, *sizes], np.int64), output=output)

    def by_bins(self, x: Value, bins: int, width: int) -> Value:
        """[n, m K] -> [n, m, K]."""
        return self.reshape(x, width // bins, bins)


def file_bytes(policy: Policy, choose: Choose) -> bytes:
    onnx = import_optional("onnx", "onnx")
    graph = Graph()
    x, width = "observation", policy.observation_size
    for number, (emit, op, place) in enumerate(interpreted(policy, OPS), 1):
        x = emit(graph, x, op, place, choose)
        if number == policy.network_end:
            x = graph.add("Identity", x, output="outputs")
            width = policy.widths[number]
    graph.add("Identity", x, output="action")
    whole = policy.tensors["space/low"].dtype.kind == "i"
    helper, kinds = onnx.helper, onnx.TensorProto
    made = helper.make_graph(
        graph.nodes,
        "policy",
        [helper.make_tensor_value_info("observation", kinds.FLOAT, ["n", policy.observation_size])],
        [
            helper.make_tensor_value_info("action", kinds.INT64 if whole else kinds.FLOAT, ["n", *policy.shape]),
            helper.make_tensor_value_info("outputs", kinds.FLOAT, ["n", width]),
        ],
        graph.constants,
    )
    origin = provenance(policy, choose)
    model = helper.make_model(
        made,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="detent",
        producer_version=origin["detent"],
    )
    helper.set_model_props(model, origin)
    onnx.checker.check_model(model)
    serialized: bytes = model.SerializeToString(deterministic=True)
    return serialized


# --- The translation of each op, applied to the running value x [n, width]. ---

Emit = Callable[[Graph, Value, Op, Place, Choose], Value]


def _normalize(graph: Graph, x: Value, op: Op, place: Place, _: Choose) -> Value:
    mean, scale, clip = normalizer_of(op, place)
    return graph.add("Clip", graph.add("Mul", graph.add("Sub", x, mean), scale), -clip, clip)


def _layer_norm(graph: Graph, x: Value, op: Op, place: Place, _: Choose) -> Value:
    scale, shift, epsilon = layer_norm_of(op, place)
    return graph.add("LayerNormalization", x, scale, shift, axis=-1, epsilon=float(epsilon))


def _keep(graph: Graph, x: Value, *_: Any) -> Value:
    graph.kept.append(x)
    return x


def _running_sum(graph: Graph, x: Value, op: Op, place: Place, _: Choose) -> Value:
    summed = graph.add("CumSum", graph.by_bins(x, op["bins"], place.width), np.array(2, np.int64))
    return graph.reshape(summed, place.width)


def _released_ladder(graph: Graph, x: Value, op: Op, place: Place, _: Choose) -> Value:
    bins, logits = op["bins"], graph.by_bins(x, op["bins"], place.width)
    i = np.arange(bins, dtype=np.float32)
    up = graph.add("Mul", graph.add("Softplus", graph.add("Neg", logits)), i - bins)
    down = graph.add("Mul", graph.add("Softplus", logits), i)
    return graph.reshape(graph.add("Sub", up, down), place.width)


def _categorical(graph: Graph, x: Value, op: Op, place: Place, choose: Choose) -> Value:
    logits, grid = graph.by_bins(x, op["bins"], place.width), positions(op["bins"])
    if choose == "mean":
        weighted = graph.add("Mul", graph.add("Softmax", logits, axis=2), grid)
        return graph.add("ReduceSum", weighted, np.array([2], np.int64), keepdims=0)
    return graph.add("Gather", grid, graph.add("ArgMax", logits, axis=2, keepdims=0))


def _choices(graph: Graph, x: Value, op: Op, place: Place, _: Choose) -> Value:
    counts = counts_of(op)
    chosen = [graph.add("ArgMax", part, axis=1, keepdims=1) for part in graph.split(x, counts)]
    number = graph.add(
        "Cast", graph.add("Concat", *chosen, axis=1), to=import_optional("onnx", "onnx").TensorProto.FLOAT
    )
    return graph.add("Sub", graph.add("Mul", number, 2 / np.maximum(1, np.array(counts) - 1)), 1.0)


def _beta(graph: Graph, x: Value, op: Op, place: Place, choose: Choose) -> Value:
    a, b = graph.split(x, [place.width // 2] * 2)
    total = graph.add("Add", a, b)
    if choose == "mean":
        position = graph.add("Div", graph.add("Add", a, 1.0), graph.add("Add", total, 2.0))
    else:
        exists = graph.add("Greater", total, 0.0)
        position = graph.add("Where", exists, graph.add("Div", a, graph.add("Where", exists, total, 1.0)), 0.5)
    return graph.add("Sub", graph.add("Mul", position, 2.0), 1.0)


def _bounds(graph: Graph, x: Value, op: Op, place: Place, _: Choose) -> Value:
    low, high = place.tensors["space/low"], place.tensors["space/high"]
    if op["scale"]:
        half = np.float32(0.5) * (high - low)
        from_low = graph.add("Add", graph.add("Mul", graph.add("Add", x, 1.0), half), low.astype(np.float32))
        from_high = graph.add("Sub", high.astype(np.float32), graph.add("Mul", graph.add("Sub", 1.0, x), half))
        x = graph.add("Where", graph.add("Less", x, 0.0), from_low, from_high)
    whole = low.dtype.kind == "i"
    if whole:
        x = graph.add("Round", x)
    x = graph.add("Min", graph.add("Max", x, low.astype(np.float32)), high.astype(np.float32))
    if whole:
        x = graph.add("Cast", x, to=import_optional("onnx", "onnx").TensorProto.INT64)
    return graph.reshape(x, *op["shape"])


OPS: dict[str, Emit] = {
    "normalize": _normalize,
    "linear": lambda graph, x, op, place, _: graph.add("Gemm", x, *linear_of(op, place)),
    "layer_norm": _layer_norm,
    "tanh": lambda graph, x, *_: graph.add("Tanh", x),
    "relu": lambda graph, x, *_: graph.add("Relu", x),
    "elu": lambda graph, x, *_: graph.add("Elu", x),
    "silu": lambda graph, x, *_: graph.add("Mul", x, graph.add("Sigmoid", x)),
    "softplus": lambda graph, x, *_: graph.add("Softplus", x),
    "keep": _keep,
    "add": lambda graph, x, *_: graph.add("Add", x, graph.kept.pop()),
    "running_sum": _running_sum,
    "released_ladder": _released_ladder,
    "categorical": _categorical,
    "choices": _choices,
    "normal": lambda graph, x, *_: x,
    "beta": _beta,
    "bounds": _bounds,
}
