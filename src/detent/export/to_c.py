"""C99: one file that contains the weights, in float32, allocates nothing and needs only the C math library."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detent.export import interpreted, provenance
from detent.ops import (
    Choose,
    Op,
    Place,
    bins_of,
    counts_of,
    layer_norm_of,
    linear_of,
    normalizer_of,
    positions,
)
from detent.policy import Policy

FRAME = """\
/* A policy for {task}: from an observation to the {action} action.
 *
 * Exported by Detent {detent} (head {head}, algorithm {algorithm}, after {steps} steps). C99, link with -lm.
 * It allocates nothing, keeps no state between calls, and needs about {stack} bytes of stack. The action is always
 * within the bounds, but for an observation with a value that is not finite it is meaningless: check first.
 */

#include <math.h>

#define DETENT_OBSERVATIONS {observations}
#define DETENT_OUTPUTS {outputs}
#define DETENT_ACTIONS {actions}

void detent_act(const float *observation, float *action);

{arrays}

{helpers}
/* From DETENT_OBSERVATIONS numbers to DETENT_ACTIONS numbers. */
void detent_act(const float *observation, float *action)
{{
{buffers}
    for (int i = 0; i < DETENT_OBSERVATIONS; i++) x[i] = observation[i];
{body}
    for (int i = 0; i < DETENT_ACTIONS; i++) action[i] = x[i];
}}

#ifdef DETENT_TEST
#include <stdio.h>

/* Reads observations from the standard input and prints an action per line. */
int main(void)
{{
    float observation[DETENT_OBSERVATIONS], action[DETENT_ACTIONS];
    int read = 0;
    while (scanf("%f", &observation[read]) == 1) {{
        if (++read < DETENT_OBSERVATIONS) continue;
        read = 0;
        detent_act(observation, action);
        for (int i = 0; i < DETENT_ACTIONS; i++) printf(i ? " %.9g" : "%.9g", (double)action[i]);
        printf("\\n");
    }}
    return read != 0;
}}
#endif
"""


@dataclass
class Source:
    """The parts of the file; each op adds to them."""

    choose: Choose
    body: str = ""
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    helpers: set[str] = field(default_factory=set)
    buffers: dict[str, int] = field(default_factory=dict)
    """Buffers on the stack, with their sizes."""
    kept: list[str] = field(default_factory=list)
    """Buffers with values that are yet to be added."""

    def constants(self, name: str, array: NDArray[Any]) -> str:
        """Add an array to the file and return its name."""
        self.arrays[name := f"detent_{name}{len(self.arrays)}"] = array
        return name

    def each(self, width: int, statement: str) -> None:
        self.body += f"for (int i = 0; i < {width}; i++) {statement}\n"


def file_bytes(policy: Policy, choose: Choose) -> bytes:
    source = Source(choose)
    for emit, op, place in interpreted(policy, OPS):
        emit(source, op, place)
    widest = max(policy.widths)
    buffers = {"x": widest, "y": widest, **source.buffers}
    text = FRAME.format(
        **provenance(policy, choose),
        observations=policy.observation_size,
        outputs=policy.widths[policy.network_end],
        actions=policy.tensors["space/low"].size,
        stack=4 * sum(buffers.values()),
        arrays="\n".join(_written(name, array) for name, array in source.arrays.items()),
        helpers="\n".join(code for name, code in HELPERS.items() if name in source.helpers),
        buffers="    float " + ", ".join(f"{name}[{size}]" for name, size in buffers.items()) + ";",
        body=textwrap.indent(source.body.rstrip(), "    "),
    )
    return text.encode()


def _number(value: Any) -> str:
    """A float32 as an exact C literal, in hexadecimal."""
    if not np.isfinite(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    return f"{float(np.float32(value)).hex()}f"


def _written(name: str, array: NDArray[Any]) -> str:
    numbers = [_number(value) for value in array.ravel().tolist()]
    lines = ",\n".join("    " + ", ".join(numbers[i : i + 5]) for i in range(0, len(numbers), 5))
    return f"static const float {name}[{array.size}] = {{\n{lines}\n}};"


# --- The translation of each op: C that changes x in place, and the helpers it calls. ---

Emit = Callable[[Source, Op, Place], None]

HELPERS = {
    "linear": """\
/* x = x w + b; w has a row for each element of x. y is room for the result. */
static void detent_linear(int rows, int columns, const float *w, const float *b, float *x, float *y)
{
    for (int j = 0; j < columns; j++) y[j] = b[j];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) y[j] += x[i] * w[i * columns + j];
    for (int j = 0; j < columns; j++) x[j] = y[j];
}
""",
    "layer_norm": """\
/* x = (x - mean(x)) / sqrt(var(x) + epsilon) scale + shift */
static void detent_layer_norm(int n, const float *scale, const float *shift, float epsilon, float *x)
{
    float mean = 0.0f, var = 0.0f;
    for (int i = 0; i < n; i++) mean += x[i];
    mean /= (float)n;
    for (int i = 0; i < n; i++) var += (x[i] - mean) * (x[i] - mean);
    const float std = sqrtf(var / (float)n + epsilon);
    for (int i = 0; i < n; i++) x[i] = (x[i] - mean) / std * scale[i] + shift[i];
}
""",
    "softplus": """\
static float detent_softplus(float x)
{
    return (x > 0.0f ? x : 0.0f) + log1pf(expf(-fabsf(x)));
}
""",
    "argmax": """\
/* The index of the largest number; the first one, if several are equal. */
static int detent_argmax(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}
""",
}


def _each(expression: str, *helpers: str) -> Emit:
    """An op that applies the same expression to every number of x."""

    def emit(source: Source, _: Op, place: Place) -> None:
        source.helpers |= {*helpers}
        source.each(place.width, f"x[i] = {expression};")

    return emit


def _normalize(source: Source, op: Op, place: Place) -> None:
    normalizer = normalizer_of(op, place)
    mean, scale = source.constants("mean", normalizer.mean), source.constants("scale", normalizer.scale)
    clip = _number(normalizer.clip)
    source.each(
        place.width,
        f"""{{
    const float z = (x[i] - {mean}[i]) * {scale}[i];
    x[i] = z < -{clip} ? -{clip} : z > {clip} ? {clip} : z;
}}""",
    )


def _linear(source: Source, op: Op, place: Place) -> None:
    w, b = linear_of(op, place)
    source.helpers.add("linear")
    names = f"{source.constants('w', w)}, {source.constants('b', b)}"
    source.body += f"detent_linear({place.width}, {b.size}, {names}, x, y);\n"


def _layer_norm(source: Source, op: Op, place: Place) -> None:
    scale, shift, epsilon = layer_norm_of(op, place)
    source.helpers.add("layer_norm")
    names = f"{source.constants('norm_scale', scale)}, {source.constants('norm_shift', shift)}"
    source.body += f"detent_layer_norm({place.width}, {names}, {_number(epsilon)}, x);\n"


def _keep(source: Source, _: Op, place: Place) -> None:
    name = f"kept{len(source.kept)}"
    source.kept.append(name)
    source.buffers[name] = max(place.width, source.buffers.get(name, 0))
    source.each(place.width, f"{name}[i] = x[i];")


def _add(source: Source, _: Op, place: Place) -> None:
    source.each(place.width, f"x[i] += {source.kept.pop()}[i];")


def _running_sum(source: Source, op: Op, place: Place) -> None:
    source.each(place.width, f"if (i % {bins_of(op, place)}) x[i] += x[i - 1];")


def _released_ladder(source: Source, op: Op, place: Place) -> None:
    bins = bins_of(op, place)
    source.helpers.add("softplus")
    source.each(
        place.width,
        f"""{{
    const float rung = (float)(i % {bins});
    x[i] = (rung - {bins}.0f) * detent_softplus(-x[i]) - rung * detent_softplus(x[i]);
}}""",
    )


# The result of an action dimension is stored no later than the numbers it is computed from, so x can change in place.


def _categorical(source: Source, op: Op, place: Place) -> None:
    bins = bins_of(op, place)
    source.helpers.add("argmax")
    grid = source.constants("positions", positions(bins))
    if source.choose == "mode":
        source.each(place.width // bins, f"x[i] = {grid}[detent_argmax(x + i * {bins}, {bins})];")
        return
    source.each(
        place.width // bins,
        f"""{{
    const float *logits = x + i * {bins};
    const float largest = logits[detent_argmax(logits, {bins})];
    float total = 0.0f, sum = 0.0f;
    for (int j = 0; j < {bins}; j++) {{
        const float weight = expf(logits[j] - largest);
        total += weight;
        sum += weight * {grid}[j];
    }}
    x[i] = sum / total;
}}""",
    )


def _choices(source: Source, op: Op, _: Place) -> None:
    source.helpers.add("argmax")
    begin = 0
    for i, count in enumerate(counts_of(op)):
        step = _number(2 / max(1, count - 1))
        source.body += f"x[{i}] = {step} * (float)detent_argmax(x + {begin}, {count}) - 1.0f;\n"
        begin += count


def _beta(source: Source, _: Op, place: Place) -> None:
    position = "(1.0f + a) / (2.0f + a + b)" if source.choose == "mean" else "a + b > 0.0f ? a / (a + b) : 0.5f"
    source.each(
        place.width // 2,
        f"""{{
    const float a = x[i], b = x[{place.width // 2} + i];
    x[i] = 2.0f * ({position}) - 1.0f;
}}""",
    )


def _bounds(source: Source, op: Op, place: Place) -> None:
    """Comparisons with NaN are false, so NaN becomes a bound too."""
    low, high = (source.constants(end, place.tensors[f"space/{end}"]) for end in ("low", "high"))
    lines = ["{", f"const float low = {low}[i], high = {high}[i];", "float a = x[i];"]
    if op["scale"]:
        lines += [
            "const float half = 0.5f * (high - low);",
            "a = a < 0.0f ? low + (a + 1.0f) * half : high - (1.0f - a) * half;",
        ]
    if place.tensors["space/low"].dtype.kind == "i":
        lines.append("a = rintf(a);")
    lines.append("x[i] = !(a >= low) ? low : a > high ? high : a;")
    source.each(place.width, "\n    ".join(lines) + "\n}")


OPS: dict[str, Emit] = {
    "normalize": _normalize,
    "linear": _linear,
    "layer_norm": _layer_norm,
    "tanh": _each("tanhf(x[i])"),
    "relu": _each("x[i] > 0.0f ? x[i] : 0.0f"),
    "elu": _each("x[i] > 0.0f ? x[i] : expm1f(x[i])"),
    "silu": _each("x[i] / (1.0f + expf(-x[i]))"),
    "softplus": _each("detent_softplus(x[i])", "softplus"),
    "keep": _keep,
    "add": _add,
    "running_sum": _running_sum,
    "released_ladder": _released_ladder,
    "categorical": _categorical,
    "choices": _choices,
    "normal": lambda *_: None,
    "beta": _beta,
    "bounds": _bounds,
}
