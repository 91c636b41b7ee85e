"""C99: one file with the weights inside, float32, no allocation, nothing but the C library's mathematics."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detent.export import interpreted, provenance
from detent.policy import Choose, Op, Policy, counts_of, positions

FRAME = """\
/* A policy for {task}: from an observation to the {action} action.
 *
 * Exported by Detent {detent} (head {head}, algorithm {algorithm}, after {steps} steps). C99, link with -lm.
 * It allocates nothing, keeps nothing between calls, and needs about {stack} bytes of stack. The action is always
 * within the bounds, but what it is for an observation with a value that is not finite has no meaning: check first.
 */

#include <math.h>

#define DETENT_OBSERVATIONS {observations}
#define DETENT_OUTPUTS {outputs}
#define DETENT_ACTIONS {actions}

void detent_act(const float *observation, float *action);

{arrays}

/* y = x w + b; w has a row for each element of x. */
static void detent_linear(int rows, int columns, const float *w, const float *b, const float *x, float *y)
{{
    for (int j = 0; j < columns; j++) y[j] = b[j];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) y[j] += x[i] * w[i * columns + j];
}}
{helpers}
/* From DETENT_OBSERVATIONS numbers to DETENT_ACTIONS numbers. */
void detent_act(const float *observation, float *action)
{{
    float x[{widest}], y[{widest}], unit[DETENT_ACTIONS];
{body}
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

HIDDEN_LAYER = """\
detent_linear({rows}, {columns}, detent_w{i}, detent_b{i}, x, y);
for (int i = 0; i < {columns}; i++) x[i] = tanhf(y[i]);
"""
LAST_LAYER = """\
detent_linear({rows}, {columns}, detent_w{i}, detent_b{i}, x, y);
for (int i = 0; i < {columns}; i++) x[i] = y[i];
"""
NORMALIZER = """\
for (int i = 0; i < DETENT_OBSERVATIONS; i++) {{
    const float z = (observation[i] - detent_mean[i]) * detent_scale[i];
    x[i] = z < -{clip} ? -{clip} : z > {clip} ? {clip} : z;
}}
"""
RAW_OBSERVATIONS = """\
for (int i = 0; i < DETENT_OBSERVATIONS; i++) x[i] = observation[i];
"""
# Comparisons with what is not a number are false, so that it becomes a bound too.
BOUNDS = """\
for (int i = 0; i < DETENT_ACTIONS; i++) {{
    const float low = detent_low[i], high = detent_high[i];
    float a = unit[i];
{scale}    action[i] = !(a >= low) ? low : a > high ? high : a;
}}
"""
SCALE = """\
    const float half = 0.5f * (high - low);
    a = a < 0.0f ? low + (a + 1.0f) * half : high - (1.0f - a) * half;
"""


def file_bytes(policy: Policy, choose: Choose) -> bytes:
    arrays: dict[str, NDArray[Any]] = {}
    body = _network(policy, arrays)
    used: set[str] = set()
    for emit, op in interpreted(policy, OPS, "c"):
        lines, needs = emit(op, choose, arrays)
        body += lines
        used |= needs
    body += _bounds(policy, arrays)
    widest = max(policy.observation_size, *(w.shape[1] for w, _ in policy.layers))
    actions = policy.tensors["space/low"].size
    text = FRAME.format(
        **provenance(policy, choose),
        observations=policy.observation_size,
        outputs=policy.layers[-1][0].shape[1],
        actions=actions,
        widest=widest,
        stack=4 * (2 * widest + actions),
        arrays="\n".join(_written(name, array) for name, array in arrays.items()),
        helpers="".join("\n" + code for name, code in HELPERS.items() if name in used),
        body=textwrap.indent(body.rstrip(), "    "),
    )
    return text.encode()


def _network(policy: Policy, arrays: dict[str, NDArray[Any]]) -> str:
    body = RAW_OBSERVATIONS
    if policy.normalizer:
        arrays |= {"mean": policy.normalizer.mean, "scale": policy.normalizer.scale}
        body = NORMALIZER.format(clip=_number(policy.normalizer.clip))
    for i, (w, b) in enumerate(policy.layers):
        arrays |= {f"w{i}": w, f"b{i}": b}
        layer = LAST_LAYER if i == len(policy.layers) - 1 else HIDDEN_LAYER
        body += layer.format(i=i, rows=w.shape[0], columns=w.shape[1])
    return body


def _bounds(policy: Policy, arrays: dict[str, NDArray[Any]]) -> str:
    low, high = policy.tensors["space/low"], policy.tensors["space/high"]
    arrays |= {"low": low, "high": high}
    scale = SCALE if policy.meta["actions"] == "scale" else ""
    if np.issubdtype(low.dtype, np.integer):
        scale += "    a = rintf(a);\n"
    return BOUNDS.format(scale=scale)


def _number(value: Any) -> str:
    """A float32 as C writes it exactly: hexadecimal."""
    if not np.isfinite(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    return f"{float(np.float32(value)).hex()}f"


def _written(name: str, array: NDArray[Any]) -> str:
    numbers = [_number(value) for value in array.ravel().tolist()]
    lines = ",\n".join("    " + ", ".join(numbers[i : i + 5]) for i in range(0, len(numbers), 5))
    return f"static const float detent_{name}[{array.size}] = {{\n{lines}\n}};"


# --- What each op of `Head.deploy` becomes: C that changes x in place, or takes unit actions from it, and the helpers
# it calls. ---

Emit = Callable[[Op, Choose, dict[str, NDArray[Any]]], tuple[str, set[str]]]

HELPERS = {
    "softplus": """\
static float detent_softplus(float x)
{
    return (x > 0.0f ? x : 0.0f) + log1pf(expf(-fabsf(x)));
}
""",
    "argmax": """\
/* The first of the largest. */
static int detent_argmax(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}
""",
}


def _running_sum(op: Op, *_: Any) -> tuple[str, set[str]]:
    return f"for (int i = 0; i < DETENT_OUTPUTS; i++)\n    if (i % {int(op['bins'])}) x[i] += x[i - 1];\n", set()


def _released_ladder(op: Op, *_: Any) -> tuple[str, set[str]]:
    bins = int(op["bins"])
    lines = f"""\
for (int i = 0; i < DETENT_OUTPUTS; i++) {{
    const float rung = (float)(i % {bins});
    x[i] = (rung - {bins}.0f) * detent_softplus(-x[i]) - rung * detent_softplus(x[i]);
}}
"""
    return lines, {"softplus"}


def _categorical(op: Op, choose: Choose, arrays: dict[str, NDArray[Any]]) -> tuple[str, set[str]]:
    bins = int(op["bins"])
    arrays["positions"] = positions(bins)
    each = "for (int i = 0; i < DETENT_ACTIONS; i++)"
    if choose == "mode":
        return f"{each} unit[i] = detent_positions[detent_argmax(x + i * {bins}, {bins})];\n", {"argmax"}
    lines = f"""\
{each} {{
    const float *logits = x + i * {bins};
    const float largest = logits[detent_argmax(logits, {bins})];
    float total = 0.0f, sum = 0.0f;
    for (int j = 0; j < {bins}; j++) {{
        const float weight = expf(logits[j] - largest);
        total += weight;
        sum += weight * detent_positions[j];
    }}
    unit[i] = sum / total;
}}
"""
    return lines, {"argmax"}


def _choices(op: Op, _: Choose, arrays: dict[str, NDArray[Any]]) -> tuple[str, set[str]]:
    counts = counts_of(op)
    begins = [0, *np.cumsum(counts)[:-1].tolist()]
    lines = [
        f"unit[{i}] = {_number(2 / max(1, count - 1))} * (float)detent_argmax(x + {begin}, {count}) - 1.0f;\n"
        for i, (begin, count) in enumerate(zip(begins, counts, strict=True))
    ]
    return "".join(lines), {"argmax"}


def _beta(op: Op, choose: Choose, _: Any) -> tuple[str, set[str]]:
    position = "(1.0f + a) / (2.0f + a + b)" if choose == "mean" else "a + b > 0.0f ? a / (a + b) : 0.5f"
    lines = f"""\
for (int i = 0; i < DETENT_ACTIONS; i++) {{
    const float a = x[i], b = x[DETENT_ACTIONS + i];
    unit[i] = 2.0f * ({position}) - 1.0f;
}}
"""
    return lines, set()


def _each(expression: str) -> str:
    return f"for (int i = 0; i < DETENT_OUTPUTS; i++) x[i] = {expression};\n"


OPS: dict[str, Emit] = {
    "tanh": lambda *_: (_each("tanhf(x[i])"), set()),
    "softplus": lambda *_: (_each("detent_softplus(x[i])"), {"softplus"}),
    "running_sum": _running_sum,
    "released_ladder": _released_ladder,
    "categorical": _categorical,
    "choices": _choices,
    "normal": lambda *_: ("for (int i = 0; i < DETENT_ACTIONS; i++) unit[i] = x[i];\n", set()),
    "beta": _beta,
}
