"""What a study leaves in its directory besides its runs: `study.json`, for people and the report, and `best.toml`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from detent import package
from detent.errors import BadInput
from detent.files import write_json, write_whole
from detent.options import FREE_OPTIONS, flag, options_of
from detent.report.studies import FILE, SCHEMA, read_study
from detent.runs.identity import as_json
from detent.runs.presets import FILE_SCHEMA
from detent.runs.run import Run, following_options
from detent.sweeps.plan import by_name
from detent.tuning.search import RUNS, Found, Study
from detent.tuning.space import NOT_SEARCHED, as_text

PRESET = "best.toml"
Fresh = dict[str, Any]
"""Seeds, and the returns of the default settings and the winner by task."""


def settings(study: Study) -> dict[str, Any]:
    """What makes a study this one, as JSON: with other settings, its trials would be others."""
    default = study.runs({}, seeds=[0])[0]
    free = ("seed", "steps", *FREE_OPTIONS)
    options = {name: as_json(value) for name, value in default.options.items() if name not in free}
    return {
        "tasks": [task.name for task in study.tasks],
        **{kind: name for kind, name in default.names._asdict().items() if kind not in ("task", "preset")},
        **{key: getattr(study, key) for key in ("steps", "seeds", "batch", "sampler", "search_seed", "prune")},
        "space": as_text(study.space),
        "options": options,
    }


def check_same(study: Study, out: Path) -> dict[str, Any] | None:
    """The study that the directory holds, None if it is new; one of other settings, or anything else, is refused."""
    if not (out / FILE).exists():
        if out.is_dir() and any(path.name != ".lock" for path in out.iterdir()):
            raise BadInput(f"{out} holds something else than a study; choose another --out.")
        return None
    before, now = read_study(out), json.loads(json.dumps(settings(study)))
    for key, value in now.items():
        was = before["settings"].get(key)
        if isinstance(value, dict) and isinstance(was, dict):
            differ = next((name for name in sorted({*value, *was}) if value.get(name) != was.get(name)), None)
            if differ is not None:
                how = "the range of " if key == "space" else ""
                _refuse(out, how + flag(differ), was.get(differ), value.get(differ))
        elif was != value:
            _refuse(out, "the list of tasks" if key == "tasks" else flag(key), was, value)
    return before


def _refuse(out: Path, what: str, was: Any, now: Any) -> None:
    was, now = ("not given" if value is None else json.dumps(value) for value in (was, now))
    raise BadInput(f"{out} holds another study: {what} is {was} there and {now} here; choose another --out.")


def write_study(
    study: Study, asked: int, found: Found | None, out: Path, fresh: Fresh | None = None, flags: str | None = None
) -> None:
    """Write `study.json`."""
    trials = [
        {**asdict(trial), "runs": _names(study, trial.values, out) if trial.state != "failed" else []}
        for trial in (found.trials if found else [])
    ]
    content = {
        "schema": SCHEMA,
        "detent": package.version(),
        "settings": settings(study),
        "asked": asked,
        "yardsticks": {task: asdict(one) for task, one in found.yardsticks.items()} if found else {},
        "trials": json.loads(json.dumps(trials, default=list)),
        "importances": found.importances if found else None,
        "fresh": fresh,
        **({"flags": flags} if flags else {}),
    }
    write_json(out / FILE, content)


def _names(study: Study, values: Mapping[str, Any], out: Path) -> list[str]:
    return list(by_name(study.runs(values), out / RUNS))


# --- the preset ---


def write_preset(run: Run, command: str, out: Path) -> Path:
    """Write the settings of a run as a preset: every option that is not the task's, so that later versions agree."""
    of_task = following_options(run.task, run.names.head, {})
    head = {f.name for f in options_of(run.head)}
    kept = {k: v for k, v in run.options.items() if k not in (*NOT_SEARCHED, *of_task) and v is not None}
    algo = run.names.algo
    tables = {
        algo: {name: value for name, value in kept.items() if name not in head},
        f"{algo} {run.names.head}": {name: value for name, value in kept.items() if name in head},
    }
    lines = [f"# The best settings of a search. Use them with: {command}", f"schema = {FILE_SCHEMA}"]
    for name, options in tables.items():
        if options:
            lines += ["", f"[{name if name.isidentifier() else json.dumps(name, ensure_ascii=False)}]"]
            lines += [f"{key} = {_toml(value)}" for key, value in options.items()]
    write_whole(out / PRESET, ("\n".join(lines) + "\n").encode())
    return out / PRESET


def _toml(value: Any) -> str:
    """A value of an option; JSON is TOML here, as there is neither null nor an object."""
    return json.dumps(as_json(value), ensure_ascii=False)
