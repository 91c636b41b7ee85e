"""One HTML page that shows everything about some runs, opens from disk and makes no network requests."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import time
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from detent.errors import DetentError
from detent.files import write_whole
from detent.policy import load
from detent.report.actions import Betas, Bins, Normals, action_distributions
from detent.report.comparisons import AcrossTasks, Comparison, Reference, Row, Versus, comparison
from detent.report.statistics import Interval
from detent.report.studies import study_data
from detent.report.summaries import Curve, RunSummary
from detent.report.variants import Variants, find_variants

POINTS = 200
"""Maximum number of points of a curve."""
POLICIES = 200
"""Maximum number of policies whose action distributions are on the page."""
TITLE = "Detent report"
Json = dict[str, Any]


def write_page(
    runs: Sequence[RunSummary],
    path: str | os.PathLike[str],
    reference: Reference | None = None,
    title: str = TITLE,
    studies: Sequence[Path] = (),
) -> None:
    """Write the page about `runs`, with the printed numbers of `reference` beside theirs.

    `studies` are directories of `detent tune` (`studies.found_studies`).
    """
    write_whole(Path(path), html(page_data(runs, reference, title, studies=studies)))


def html(data: Json) -> bytes:
    """The page around its data: markup, style and script in one file."""
    parts = {name: (resources.files("detent.report") / "assets" / name).read_text(encoding="utf-8") for name in ASSETS}
    # Inside a script element only "<" could end it.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    page = parts["page.html"].replace("{{style}}", parts["page.css"]).replace("{{script}}", parts["page.js"])
    before, after = page.split("{{data}}")
    return f"{before}{text}{after}".encode()


ASSETS = ("page.html", "page.css", "page.js")


def page_data(
    runs: Sequence[RunSummary],
    reference: Reference | None = None,
    title: str = TITLE,
    live: bool = False,
    studies: Sequence[Path] = (),
) -> Json:
    """Everything that the page shows, as JSON. `version` changes when anything except the time does."""
    variants = find_variants(runs)
    number = {variant: index for index, variant in enumerate(variants.all)}
    settings: dict[str, int] = {}
    machines: dict[str, int] = {}
    data: Json = {
        "title": title,
        "live": live,
        "variants": [
            {"label": variants.labels[v], "algo": v.algo, "head": v.head, "preset": v.preset, "colour": c, "dash": d}
            for v in variants.all
            for c, d in [variants.styles[v]]
        ],
        "runs": [
            {
                "name": run.name,
                "task": run.task,
                "variant": number[variant],
                "seed": run.seed,
                "status": run.status,
                "why": run.why,
                "counted": run.counted,
                "final": _rounded(run.final),
                "steps": run.steps,
                "asked": run.options.get("steps"),
                "seconds": _rounded(run.seconds),
                "updated": int(run.updated),
                "compact": run.record is not None,
                "curve": _packed(np.stack([c.steps, c.seconds, c.returns])),
                **_configuration(run, settings),
                "machine": machines.setdefault(
                    json.dumps({"versions": run.versions, "machine": run.machine}), len(machines)
                ),
            }
            for run, variant in zip(runs, variants.of, strict=True)
            for c in [downsampled(run.curve)]
        ],
        "settings": [json.loads(text) for text in settings],
        "machines": [json.loads(text) for text in machines],
        "comparison": _compared(comparison(runs, reference), variants),
        "policies": _policies(runs, variants),
        "studies": [study_data(place, runs) for place in studies],
    }
    text = json.dumps(data, sort_keys=True)
    return {**data, "version": hashlib.sha256(text.encode()).hexdigest(), "generated": int(time.time())}


def _rounded(value: float | None) -> float | None:
    """The value with seven digits; None if there is no finite number."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.7g}")


def _packed(values: ArrayLike, kind: str = "<f4") -> str:
    return base64.b64encode(np.ascontiguousarray(values, kind).tobytes()).decode()


def _configuration(run: RunSummary, settings: dict[str, int]) -> Json:
    """All options but the seed, as an index into a list of distinct settings, of which a sweep has few."""
    every = {"trunk": run.trunk, "critic": run.critic, **run.options}
    rest = {name: value for name, value in every.items() if name != "seed"}
    return {"settings": settings.setdefault(json.dumps(rest), len(settings))}


def downsampled(curve: Curve, points: int = POINTS) -> Curve:
    """At most `points` of the points with a return: the ends, and the extremes of each stretch between them."""
    kept = np.flatnonzero(np.isfinite(curve.returns))
    if kept.size > points:
        inner, stretches = kept[1:-1], (points - 2) // 2
        pieces = np.array_split(inner, stretches)
        extremes = {int(p[pick(curve.returns[p])]) for p in pieces for pick in (np.argmin, np.argmax)}
        kept = np.array(sorted({int(kept[0]), int(kept[-1])} | extremes))
    return Curve(curve.steps[kept], curve.seconds[kept], curve.returns[kept])


def _compared(found: Comparison, variants: Variants) -> Json:
    number = {variant: index for index, variant in enumerate(variants.all)}

    def own(row: Row | AcrossTasks) -> list[str]:
        """The baselines to which it belongs itself."""
        return [b.label for b in found.baselines if row.variant.aspects.get(b.aspect) == b.value]

    return {
        "baselines": [baseline.label for baseline in found.baselines],
        "rows": [
            {
                "task": row.task,
                "variant": number[row.variant],
                "own": own(row),
                "runs": row.runs,
                "statuses": dict(row.statuses),
                "mean": _rounded(row.mean),
                "sd": _rounded(row.sd),
                "iqm": _interval(row.iqm),
                "versus": {baseline: _versus(versus) for baseline, versus in row.versus.items()},
                "reference": row.reference,
            }
            for row in found.rows
        ],
        "across": [
            {
                "variant": number[row.variant],
                "own": own(row),
                "tasks": row.tasks,
                "runs": row.runs,
                "iqm": _interval(row.iqm),
                "versus": {baseline: _versus(versus) for baseline, versus in row.versus.items()},
                "profile": [
                    [_rounded(float(x)) for x in series]
                    for series in (row.profile.thresholds, row.profile.share, row.profile.low, row.profile.high)
                ],
            }
            for row in found.across
        ],
    }


def _interval(interval: Interval) -> list[float | str | None]:
    """The estimate, the ends, and the reason if there are no ends."""
    return [_rounded(interval.value), _rounded(interval.low), _rounded(interval.high), interval.why or None]


def _versus(versus: Versus) -> Json:
    return {
        "difference": _interval(versus.difference),
        "improvement": _interval(versus.improvement),
        "verdict": versus.difference.verdict,
    }


def _policies(runs: Sequence[RunSummary], variants: Variants) -> list[Json]:
    """The action distributions of trained policies; if there are too many, of every variant and task first."""
    rank: dict[Any, int] = {}
    order = []
    for index, (run, variant) in enumerate(zip(runs, variants.of, strict=True)):
        if (run.path / "policy.safetensors").exists():
            rank[run.task, variant] = rank.get((run.task, variant), -1) + 1
            order.append((rank[run.task, variant], index))
    shown = [_policy(index, runs[index].path) for _, index in sorted(order)[:POLICIES]]
    return sorted((policy for policy in shown if policy), key=lambda policy: int(policy["run"]))


def _policy(index: int, path: Path) -> Json | None:
    try:
        policy = load(path)
        found = action_distributions(policy)
    except (DetentError, LookupError, ValueError):
        return None  # damaged, or of a user's own kind; the run's row is still shown
    if found is None:
        return None
    bounds = [[_rounded(float(x)) for x in np.atleast_1d(policy.tensors[f"space/{end}"])] for end in ("low", "high")]
    common: Json = {"run": index, "scaled": policy.scaled, "low": bounds[0], "high": bounds[1]}
    match found:
        case Bins(positions, probabilities):
            if not all(np.isfinite(p).all() for p in probabilities):
                return None  # its numbers overflow
            quanta = [np.rint(p * 65535) for p in probabilities]
            return common | {
                "kind": "bins",
                "observations": len(probabilities[0]),
                "positions": [[_rounded(float(x)) for x in places] for places in positions],
                "values": _packed(_joined(quanta), "<u2"),
            }
        case Normals(mean, std):
            return common | {"kind": "normal", "observations": len(mean), "values": _packed(np.stack([mean, std]))}
        case Betas(a, b, log_c):
            return common | {"kind": "beta", "observations": len(a), "values": _packed(np.stack([a, b, log_c]))}


def _joined(arrays: Iterable[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate([array.ravel() for array in arrays])
