"""Every reader, on files that were damaged or forged: one sentence or a result, and nothing else.

`make test` tries a few hundred mutations, `make test-all` 10,000: 800 of each of 12 kinds of file with the functions
that read it, and 400 with whole verbs. A test that fails names the seed of the mutation, which makes it again.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import detent
from detent import report
from detent.cli import main
from detent.errors import DetentError
from detent.export import TARGETS, file_bytes
from detent.files import read_tensors
from detent.options import options_of
from detent.paper.measuring import measured
from detent.policy import load
from detent.report.actions import action_distributions
from detent.report.comparisons import read_reference
from detent.report.page import html, page_data
from detent.report.summaries import summary
from detent.runs.books import Episodes, History
from detent.runs.directory import RunDirectory, sha256
from detent.runs.identity import as_json, hashed
from detent.runs.run import Names, Run
from detent.runs.training import make_environment
from detent.sweeps.plan import check_version, plan_from_file, read_plan, write_plan
from mutations import changed, changed_tensors, damaged, packed
from test_reliability import TINY, carry_out, copied, relinked

SECONDS, MEGABYTES = 5.0, 300
"""What one mutation may take, and by how much the memory may grow."""
QUICK, MANY = 12, 800
"""Mutations of each kind of file in `make test` and in `make test-all`."""
VERBS_QUICK, VERBS_MANY = 6, 400


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run with everything in it, the file and the plan of a sweep, a compact file, numbers to compare with."""
    top = tmp_path_factory.mktemp("whole")
    run = Run("probe/action", steps=16, eval_every=8, eval_episodes=2, **TINY)
    carry_out(top / "run", run, checkpoint_seconds=0)
    carry_out(top / "from", Run("probe/action", steps=8, **TINY), init_from=str(top / "run"))
    (top / "run" / "init.safetensors").write_bytes((top / "from" / "init.safetensors").read_bytes())
    report.write_compact(report.load_runs([top / "run"]), top / "compact.jsonl")
    write_plan(top, {"one": run})
    (top / "sweep.toml").write_text(toml(SWEEP))
    (top / "reference.toml").write_text('[[result]]\ntask = "x"\nalgo = "ppo"\nhead = "beta"\nmean = 1.0\nsd = 2.0\n')
    (top / "variance.json").write_bytes((Path(__file__).parents[1] / "results" / "variance.json").read_bytes())
    return top


# --- what must not happen ---


class Watch:
    """What this process does to files outside a directory, and which programs it starts, while it is on."""

    WRITING = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.symlink", "os.link", "os.truncate", "os.chmod")
    STARTING = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.Popen", "pty.spawn")

    def __init__(self):
        self.inside, self.seen = None, []
        sys.addaudithook(self)

    def __call__(self, event, arguments):
        if self.inside is None:
            return
        if event in self.STARTING:
            self.seen.append((event, str(arguments)[:200]))
        elif event == "open":
            path, _, flags = arguments
            if isinstance(path, str | bytes) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
                self.note(event, path)
        elif event in self.WRITING and isinstance(arguments[0], str | bytes):
            inside = event == "os.remove" and arguments[1] != -1  # a name in a directory that is open
            self.note(event, os.path.join(os.readlink(f"/proc/self/fd/{arguments[1]}") if inside else "", arguments[0]))

    def note(self, event, path):
        place = os.path.abspath(os.fsdecode(path))
        if not any(place.startswith(allowed) for allowed in self.inside):
            self.seen.append((event, place))

    @contextlib.contextmanager
    def on(self, directory):
        # Compiled programs are kept elsewhere, and matplotlib makes itself at home.
        own = (os.path.expanduser(f"~/{place}/matplotlib") for place in (".config", ".cache"))
        self.inside = (str(directory), os.environ["JAX_COMPILATION_CACHE_DIR"], "/dev/null", *own)
        try:
            yield
        finally:
            self.inside = None
        seen, self.seen = self.seen, []
        assert not seen


@pytest.fixture(scope="module")
def watch():
    return Watch()


def memory():
    """The most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


# --- mutations ---


def json_lines(path, change):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in change(lines)))


def in_lines(lines, rng):
    """Some lines of several changed, lost, doubled or exchanged."""
    if rng.random() < 0.3:
        found = changed(lines, rng)
        return found if isinstance(found, list) else [found]
    number = int(rng.integers(len(lines)))
    return [*lines[:number], changed(lines[number], rng), *lines[number + 1 :]]


def forge_run(out, rng):
    """run.json with a checksum and, most often, baselines that fit, and a chain that hangs on it."""
    described = json.loads((out / "run.json").read_text())
    described.pop("checksum")
    parts = Names(*(described[name] for name in Names._fields)).option_parts
    if rng.random() < 0.6:
        described["options"] = changed(described["options"], rng)
    else:
        described = changed(described, rng)
    if isinstance(described, dict):
        if rng.random() < 0.8 and isinstance(described.get("options"), dict):
            baselines = {f.name: as_json(f.metadata["baseline"]) for part in parts for f in options_of(part)}
            differ = [name for name, value in described["options"].items() if value != baselines.get(name)]
            described["baselines"] = {name: baselines.get(name) for name in differ}
        described["checksum"] = hashed(described)
    (out / "run.json").write_text(json.dumps(described))
    with contextlib.suppress(DetentError):
        relinked(out, lambda links: links)


def forge_chain(out, rng):
    """With hashes that fit where that is possible."""
    with contextlib.suppress(AttributeError, TypeError, ValueError):
        relinked(out, lambda links: in_lines(links, rng))
        return
    json_lines(out / "checkpoints.jsonl", lambda links: in_lines(links, rng))


def forge_checkpoint(out, rng):
    path = sorted((out / "checkpoints").iterdir())[-1]
    path.write_bytes(packed(*changed_tensors(*read_tensors(path), rng)))
    hashes = {"sha256": sha256(path.read_bytes())}
    relinked(out, lambda links: [{**link, **hashes} if link is links[-1] else link for link in links])


def forge_tensors(name):
    def forge(out, rng):
        path = out / name
        path.write_bytes(packed(*changed_tensors(*read_tensors(path), rng)))
        if "policy" in name:
            hashes = {name.removesuffix(".safetensors"): sha256(path.read_bytes())}
            relinked(out, lambda links: [{**link, **hashes} if link is links[-1] else link for link in links])

    return forge


def forge_json(name):
    def forge(out, rng):
        (out / name).write_text(json.dumps(changed(json.loads((out / name).read_text()), rng)))

    return forge


def forge_lines(name):
    return lambda out, rng: json_lines(out / name, lambda lines: in_lines(lines, rng))


SWEEP = {
    "task": ["probe/action", "probe/follow"], "head": ["ordinal", "gaussian"], "bins": [3, 5], "seed": "0-1",
    "draws": 2, "learning_rate": {"log_uniform": [1e-5, 1e-2]}, "epochs": 1, "hidden_sizes": [[2], [3, 3]],
    "preset": "paper", "env_kwargs": {}, "grid": [{"head": "beta"}, {"algo": "trpo", "seeds": 2}],
}  # fmt: skip


def toml(table):
    grids = table.get("grid") if isinstance(table.get("grid"), list) else []
    grids = [grid for grid in grids if isinstance(grid, dict)]
    rest = {key: value for key, value in table.items() if key != "grid" or not grids}
    return "\n[[grid]]\n".join("".join(f"{quoted(k)} = {value_in_toml(v)}\n" for k, v in part.items())
                               for part in (rest, *grids))  # fmt: skip


def quoted(text):
    return json.dumps(str(text).encode("utf-8", "replace").decode())


def value_in_toml(value):
    match value:
        case dict():
            return "{" + ", ".join(f"{quoted(k)} = {value_in_toml(v)}" for k, v in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(value_in_toml, value)) + "]"
        case str():
            return quoted(value)
        case None:
            return "1979-05-27T07:32:00Z"
        case _:
            return json.dumps(value).lower().replace("infinity", "inf")


def forge_sweep(out, rng):
    table = changed(SWEEP, rng)
    (out / "sweep.toml").write_text(toml(table if isinstance(table, dict) else {"task": table}))


# --- readers ---


def read_run(top):
    directory = RunDirectory(top / "run")
    report_on(top)
    directory.run()
    directory.links()


def report_on(top):
    run = summary(top / "run")
    html(page_data([run, summary(top / "from")]))
    report.write_compact([run], top / "again.jsonl")


def read_records(top):
    report_on(top)
    directory = RunDirectory(top / "run")
    directory.odd_record(2)
    directory.forget_after(1)
    directory.records()


def read_status(top):
    report_on(top)
    RunDirectory(top / "run").outcome()


def read_chain(top):
    directory = RunDirectory(top / "run")
    report_on(top)
    directory.links()
    directory.refuse_lost_links()
    directory.latest()


def read_checkpoint(top):
    """What `detent resume` does before it computes anything."""
    directory = RunDirectory(top / "run")
    start = directory.read_checkpoint(directory.links()[-1])
    env = make_environment(directory.run(), 0, 1)
    Episodes.restored(start.tensors)
    env.replay(History.restored(start.tensors, env.space, 1, 8 * start.meta["iteration"]).replay())


def read_init(top):
    RunDirectory(top / "run").initial()


def read_policy(name):
    def read(top):
        policy = load(top / "run" / name)
        action_distributions(policy)
        html(page_data([summary(top / "run")]))
        for target in TARGETS:
            file_bytes(policy, target, "mean")
        with np.errstate(all="ignore"):  # which are warnings in Python, and not one in a verb
            policy.sample(np.zeros((2, policy.observation_size)))

    return read


def read_compact(top):
    runs = report.load_runs([top / "compact.jsonl", top / "from"])
    html(page_data(runs))
    report.write_compact(runs, top / "again.jsonl")


def read_sweep(top):
    plan = plan_from_file(top / "sweep.toml")
    if plan.count() < 100:
        plan.runs()


def read_sweep_json(top):
    check_version(top)
    read_plan(top)


def read_numbers(top):
    """What `detent report --reference` and `detent paper show` read besides runs."""
    try:
        read_reference(top / "reference.toml")
    finally:
        measured([top])


def forge_numbers(out, rng):
    forge_json("variance.json")(out, rng)
    (out / "reference.toml").write_bytes(damaged((out / "reference.toml").read_bytes(), rng))


KINDS = {
    "run.json": (lambda top, rng: forge_run(top / "run", rng), read_run),
    "run/records.jsonl": (forge_lines("run/records.jsonl"), read_records),
    "run/status.json": (forge_json("run/status.json"), read_status),
    "run/checkpoints.jsonl": (lambda top, rng: forge_chain(top / "run", rng), read_chain),
    "run/checkpoints": (lambda top, rng: forge_checkpoint(top / "run", rng), read_checkpoint),
    "run/init.safetensors": (lambda top, rng: forge_tensors("init.safetensors")(top / "run", rng), read_init),
    "run/policy.safetensors": (
        lambda top, rng: forge_tensors("policy.safetensors")(top / "run", rng), read_policy("policy.safetensors")
    ),
    "run/best_policy.safetensors": (
        lambda top, rng: forge_tensors("best_policy.safetensors")(top / "run", rng),
        read_policy("best_policy.safetensors"),
    ),
    "compact.jsonl": (forge_lines("compact.jsonl"), read_compact),
    "sweep.toml": (forge_sweep, read_sweep),
    "sweep.json": (forge_json("sweep.json"), read_sweep_json),
    "variance.json": (forge_numbers, read_numbers),
}  # fmt: skip
"""The file that is mutated -> how it is forged, and what reads it."""


def mutate(top, kind, rng):
    """Damage the file, with its checksums as they were, or forge it."""
    path = top / ("run/run.json" if kind == "run.json" else kind)
    if path.is_dir():
        path = sorted(path.iterdir())[-1]
    if rng.random() < 0.4:
        path.write_bytes(damaged(path.read_bytes(), rng))
    else:
        KINDS[kind][0](top, rng)


@pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["few", "many"])
@pytest.mark.parametrize("kind", KINDS)
def test_readers(whole, watch, tmp_path, kind, many):
    read = KINDS[kind][1]
    read(copied(whole, tmp_path / "whole"))
    before, refused = memory(), 0
    for number in range(MANY if many else QUICK):
        seed = [number, int(many), *kind.encode()]
        top = copied(whole, tmp_path / "mutated")
        mutate(top, kind, np.random.default_rng(seed))
        began = time.process_time()
        try:
            with watch.on(tmp_path), np.errstate(all="ignore"):  # weights may be so large that actions overflow
                read(top)
        except DetentError as error:
            refused += 1
            assert str(error), seed
        except Exception as error:
            raise AssertionError(f"{kind}, seed {seed}") from error
        assert time.process_time() - began < SECONDS, seed
    assert memory() - before < MEGABYTES
    assert refused, "some of it must be noticed"


# --- whole verbs ---

VERBS = {
    "eval": lambda top: ["eval", f"{top}/run", "--episodes", "1"],
    "eval --best": lambda top: ["eval", f"{top}/run", "--episodes", "1", "--best", "--json"],
    "verify": lambda top: ["verify", f"{top}/run", "--link", "1"],
    "resume": lambda top: ["resume", f"{top}/run", "--quiet", "--max-minutes", "1e-9"],
    "card": lambda top: ["card", f"{top}/run", "--episodes", "1"],
    "export": lambda top: ["export", f"{top}/run", "--to", "c"],
    "play": lambda top: ["play", f"{top}/run", "--out", f"{top}/play.gif"],
    "report": lambda top: ["report", str(top), f"{top}/compact.jsonl", "--out", f"{top}/page.html"],
    "sweep": lambda top: ["sweep", f"{top}/sweep.toml", "--dry-run", "--out", str(top)],
}
READ_BY = {
    "run.json": ("eval", "verify", "resume", "card", "report", "sweep"),
    "run/records.jsonl": ("verify", "resume", "card", "report"),
    "run/status.json": ("resume", "report", "sweep"),
    "run/checkpoints.jsonl": ("verify", "resume", "report"),
    "run/checkpoints": ("verify", "resume"),
    "run/init.safetensors": ("verify", "resume"),
    "run/policy.safetensors": ("eval", "card", "export", "play", "report", "verify"),
    "run/best_policy.safetensors": ("eval --best", "verify"),
    "compact.jsonl": ("report",),
    "sweep.toml": ("sweep",),
    "sweep.json": ("sweep",),
}


def tried(top, kind, verb, watch, capfd, seed):
    """A verb on what was made of a file: 0, 1 (`verify`: something differs), 2, or 3 (`resume`: stopped)."""
    (top / "run" / "status.json").unlink() if verb == "resume" and kind != "run/status.json" else None
    began = time.process_time()
    with watch.on(top.parent):
        code = main(VERBS[verb](top))
    error = capfd.readouterr().err
    assert code in {"verify": (0, 1, 2), "resume": (0, 2, 3)}.get(verb, (0, 2)), (seed, verb, error)
    assert "Traceback" not in error, (seed, verb, error)
    if code == 2:
        assert error.startswith("detent: ") and error.count("\n") == 1, (seed, verb, error)
    assert time.process_time() - began < SECONDS * (4 if verb in ("verify", "resume") else 1), (seed, verb)


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 9))], ids=lambda part: f"part {part}"
)
def test_verbs(whole, watch, tmp_path, capfd, part):
    """Eight parts of 50 mutations, and a few that `make test` tries."""
    for verb in ("resume", "verify", "eval"):  # what is compiled once is not counted
        main(VERBS[verb](copied(whole, tmp_path / "first")))
    capfd.readouterr()
    before = memory()
    kinds = list(READ_BY)
    for number in range(VERBS_MANY // 8 if part else VERBS_QUICK):
        seed = [part, number, 7]
        rng = np.random.default_rng(seed)
        kind = kinds[number % len(kinds)]
        top = copied(whole, tmp_path / "top" / "mutated")
        mutate(top, kind, rng)
        tried(top, kind, str(rng.choice(READ_BY[kind])), watch, capfd, seed)
    assert memory() - before < MEGABYTES


def test_the_watch_sees(watch, tmp_path):
    """What the tests above rely on."""
    (tmp_path / "inside").mkdir()
    for act in (
        lambda: os.system("true"),
        lambda: (tmp_path / "outside").write_text("x"),
        lambda: (tmp_path / "outside").unlink(missing_ok=True) or (tmp_path / "x").mkdir(),
    ):
        with pytest.raises(AssertionError), watch.on(tmp_path / "inside"):
            act()
    with watch.on(tmp_path / "inside"):
        (tmp_path / "inside" / "x").write_text("x")
    assert detent.__file__
