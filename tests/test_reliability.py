"""The promises of docs/reliability.md: nothing is lost, nothing is believed, and anything can be checked."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import detent
import host_tasks
from detent import files
from detent.cli import main
from detent.environments import Wanted
from detent.environments.host import Host
from detent.errors import DetentError
from detent.options import options_of
from detent.rollout import Edge, begin, make_collect
from detent.runs.directory import RunDirectory, _chained
from detent.runs.execution import Execution, execute
from detent.runs.identity import as_json, hashed
from detent.runs.run import Names, Run
from detent.runs.training import make_agent, train
from killing import QUICK, Victim, differences, quick, told
from marks import slow_unless

TINY = {"batch_size": 8, "minibatch_size": 8, "epochs": 1, "envs": 1, "hidden_sizes": (2,), "bins": 2}


def assert_same_run(out, reference):
    assert differences(out, reference) == []
    assert not list(out.rglob("*.tmp"))


def carry_out(out, run, **how):
    return list(execute(run, out, Execution(**how)))


# --- killed anywhere ---


def check_killing(tmp_path, task, head, times, *, steps, seed, algo="ppo", **options):
    run = Run(task, head, steps=steps, **quick(algo), **options)
    carry_out(tmp_path / "whole", run)
    victim = Victim(task, {"head": head, "steps": steps, **quick(algo), **options})
    out, rng = tmp_path / "killed", np.random.default_rng(seed)
    for _ in range(times):
        assert victim.kill(out, rng), "it must not have finished before"
    carry_out(out, run, resume=True)
    assert_same_run(out, tmp_path / "whole")


def test_killed_at_random_moments(tmp_path):
    check_killing(tmp_path, "Hopper-v5", "ordinal", 2, steps=15_000, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "head", "algo", "options"),
    [("Hopper-v5", "gaussian", "trpo", {}), ("HalfCheetah-v5", "discrete", "acktr", {}),
     ("BipedalWalker-v3", "ordinal", "ppo", {}), ("gymnasium/Pendulum-v1", "beta", "ppo", {}),
     ("gymnasium/Pendulum-v1", "ordinal", "ppo", {"workers": 2})],
)  # fmt: skip
def test_killed_at_more_random_moments(tmp_path, task, head, algo, options):
    """Short episodes, long ones, Box2D, Gymnasium in process and in workers; every algorithm."""
    check_killing(tmp_path, task, head, 3, steps=30_000, seed=len(task), algo=algo, **options)


class Killed(BaseException):
    """As if the process had ended here: nobody catches it."""


@pytest.mark.parametrize("nth", slow_unless(lambda n: n in (1, 4, 7, 10), range(12)))
def test_killed_at_every_write(tmp_path, monkeypatch, nth):
    """Between the nth file's being complete under a temporary name and its being renamed."""
    run = Run("probe/action", steps=32, **TINY)
    carry_out(tmp_path / "whole", run, checkpoint_seconds=0)
    replace, calls = os.replace, itertools.count()

    def dying(source, target):
        if next(calls) == nth:
            raise Killed
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dying)
        with pytest.raises(Killed):
            carry_out(tmp_path / "killed", run, checkpoint_seconds=0)
    carry_out(tmp_path / "killed", run, checkpoint_seconds=0, resume=True)
    assert_same_run(tmp_path / "killed", tmp_path / "whole")


# --- runs that grow ---

CONSTANT = {"anneal_learning_rate": False}


@pytest.mark.parametrize("options", [CONSTANT, {"anneal_steps": 640}])
def test_a_run_can_be_made_longer(tmp_path, options):
    carry_out(tmp_path / "whole", Run("probe/follow", steps=640, **QUICK, **options))
    out = tmp_path / "grown"
    carry_out(out, Run("probe/follow", steps=256, **QUICK, **options))
    assert main(["resume", str(out), "--steps", "640", "--quiet"]) == 0
    assert_same_run(out, tmp_path / "whole")
    assert RunDirectory(out).configuration()["options"]["steps"] == 640
    assert main(["verify", str(out), "--all"]) == 0


@pytest.mark.parametrize(
    ("steps", "options", "complaint"),
    [(999, {}, "--anneal-steps"), (8, CONSTANT, "longer, not shorter"), (8, {}, "longer, not shorter")],
)
def test_a_run_that_cannot_be_made_longer_or_shorter(tmp_path, capsys, steps, options, complaint):
    out = tmp_path / "run"
    carry_out(out, Run("probe/action", steps=16, **TINY, **options))
    before = (out / "run.json").read_bytes()
    assert main(["resume", str(out), "--steps", str(steps)]) == 2
    assert complaint in capsys.readouterr().err
    assert (out / "run.json").read_bytes() == before


# --- verify ---


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A run whose checkpoints were all kept; read only."""
    out = tmp_path_factory.mktemp("runs") / "kept"
    carry_out(out, Run("Hopper-v5", steps=640, **QUICK), checkpoint_seconds=0, keep_all=True)
    return out


def copied(source, target):
    for path in source.rglob("*"):
        if path.is_file():
            (target / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            (target / path.relative_to(source)).write_bytes(path.read_bytes())
    return target


def rewritten(out, change, forge=True):
    """Change run.json, with its checksum (and its baselines and the chain that hangs on it) made to fit."""
    described = json.loads((out / "run.json").read_text())
    described.pop("checksum")
    parts = Names(*(described[name] for name in Names._fields)).option_parts
    change(described)
    if forge:
        baselines = {f.name: as_json(f.metadata["baseline"]) for part in parts for f in options_of(part)}
        differ = [name for name, value in described["options"].items() if value != baselines.get(name)]
        described["baselines"] = {name: baselines.get(name) for name in differ}
    (out / "run.json").write_text(json.dumps({**described, "checksum": hashed(described)}))
    if forge:
        relinked(out, lambda links: links)


def relinked(out, change):
    """Change checkpoints.jsonl, with a chain that fits."""
    links = change([json.loads(line) for line in (out / "checkpoints.jsonl").read_text().splitlines()])
    try:
        chain = RunDirectory(out)._root()
    except DetentError:  # run.json is refused, and the chain is not even looked at
        return
    for link in links:
        chain = link["chain"] = _chained(chain, link)
    (out / "checkpoints.jsonl").write_text("".join(json.dumps(link) + "\n" for link in links))


@pytest.mark.parametrize(
    ("flags", "lines"),
    [([], 2), (["--link", "3"], 1), (["--sample", "2", "--seed", "4"], 2), (["--all"], 6)],
)
def test_a_true_run_is_verified(kept, capsys, flags, lines):
    before = {p: p.read_bytes() for p in kept.rglob("*") if p.is_file()}
    assert main(["verify", str(kept), *flags]) == 0
    out = capsys.readouterr().out.splitlines()
    assert "has 6 checkpoints" in out[0]
    assert [line.endswith(": identical") for line in out[1:]] == [True] * lines
    assert {p: p.read_bytes() for p in kept.rglob("*") if p.is_file()} == before


def test_the_first_stretch_needs_only_run_json_and_the_chain(kept, tmp_path, capsys):
    out = tmp_path / "bare"
    (out).mkdir()
    for name in ("run.json", "checkpoints.jsonl"):
        (out / name).write_bytes((kept / name).read_bytes())
    assert main(["verify", str(out), "--link", "1"]) == 0
    assert "iterations 1 to 1: identical" in capsys.readouterr().out
    assert main(["verify", str(out), "--all"]) == 0
    assert "links 1 to 6, iterations 1 to 6: identical" in capsys.readouterr().out


@pytest.mark.slow
def test_what_was_interrupted_is_verified_too(tmp_path, capsys):
    """Also where a resumed run has new episodes: the chain says from where each process began."""
    for task, stretches in (("LunarLanderContinuous-v3", 2), ("HalfCheetah-v5", 3)):
        out = tmp_path / task
        run = Run(task, steps=640, **QUICK)
        records = execute(run, out, Execution())
        next(records), next(records)
        records.close()
        carry_out(out, run, resume=True)
        assert main(["verify", str(out), "--all"]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 1 + stretches


def test_a_record_that_was_embellished_is_found(kept, tmp_path, capsys):
    out = copied(kept, tmp_path / "run")
    records = RunDirectory(out).records()
    records[3]["train/value_loss"] = 0.5
    (out / "records.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    assert main(["verify", str(out), "--link", "3"]) == 0
    assert main(["verify", str(out), "--link", "4"]) == 1
    assert "DIFFERENT: at iteration 4, train/value_loss is 0." in capsys.readouterr().out


def test_a_checkpoint_that_was_exchanged_is_found(kept, tmp_path, capsys):
    """By one of other parameters, with every checksum and the chain made to fit."""
    out = copied(kept, tmp_path / "run")
    link = RunDirectory(out).links()[2]
    path = RunDirectory(out).checkpoint_path(link)
    tensors, meta = files.read_tensors(path)
    tensors["algorithm/parameters/value/1/b"] = tensors["algorithm/parameters/value/1/b"] + 1e-3
    files.write_tensors(path, tensors, meta)
    relinked(out, lambda links: [{**x, "sha256": files.file_hash(path)} if x["iteration"] == 3 else x for x in links])
    assert main(["verify", str(out), "--link", "3"]) == 1
    assert "algorithm/parameters/value/1/b of the checkpoint differs" in capsys.readouterr().out
    path.unlink()
    assert main(["verify", str(out), "--link", "3"]) == 1
    assert "at iteration 3, the checkpoint has another hash" in capsys.readouterr().out


def test_another_seed_is_another_run(kept, tmp_path, capsys):
    out = copied(kept, tmp_path / "run")
    rewritten(out, lambda described: described["options"].update(seed=1), forge=False)
    assert main(["verify", str(out)]) == 2
    assert "does not belong to this run: --seed or its baseline was changed" in capsys.readouterr().err
    rewritten(out, lambda described: described["baselines"].update(seed=0), forge=False)
    assert main(["verify", str(out)]) == 2
    assert "checkpoints.jsonl does not belong to this run" in capsys.readouterr().err
    relinked(copied(out, tmp_path / "run"), lambda links: links)
    assert main(["verify", str(out), "--link", "1"]) == 1


def test_on_another_machine_with_the_same_bits(kept, tmp_path, capsys):
    out = copied(kept, tmp_path / "run")
    rewritten(out, lambda described: described["machine"].update(processor="Another CPU"))
    assert main(["verify", str(out), "--link", "1"]) == 0
    told_of = capsys.readouterr().out
    assert "Bits may differ" in told_of
    assert "processor Another CPU there" in told_of
    assert told_of.endswith(": identical nevertheless\n")


def test_on_another_machine_with_other_bits(kept, tmp_path):
    """XLA compiles for an older processor: other instructions, other roundings."""
    out = copied(kept, tmp_path / "run")
    rewritten(out, lambda described: described["machine"].update(processor="Another CPU"))
    flags = {"XLA_FLAGS": "--xla_cpu_max_isa=SSE4_2"}
    result = subprocess.run(
        [sys.executable, "-m", "detent.cli", "verify", str(out), "--link", "2"],
        env={**os.environ, **flags}, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert "not identical, but the first steps and the first update agree" in result.stdout
    assert "mean return at iteration 2:" in result.stdout


@pytest.mark.parametrize("name", ["observation_moments/mean", "parameters/policy/0/w"])
def test_on_another_machine_with_another_result(kept, tmp_path, capsys, name):
    """Whichever link was asked for, it is the first rollout and the first update that are compared."""
    out = copied(kept, tmp_path / "run")
    path = out / "checkpoints" / "000000001.safetensors"
    tensors, meta = files.read_tensors(path)
    [full] = [n for n in tensors if n.endswith(name)]
    tensors[full] = tensors[full] + np.float32(0.1)
    files.write_tensors(path, tensors, meta)
    rewritten(out, lambda described: described["versions"].update(jax="0.1"))
    relinked(out, lambda links: [{**links[0], "sha256": files.file_hash(path)}, *links[1:]])
    assert main(["verify", str(out), "--link", "1"]) == 1
    told_of = capsys.readouterr().out
    assert f"DIFFERENT: the first {'steps' if 'moments' in name else 'update'} differ" in told_of


@pytest.mark.parametrize("flags", [["--link", "99"], ["--link", "0"], ["--sample", "x"], ["--link", "1", "--all"]])
def test_what_verify_refuses(kept, capsys, flags):
    assert main(["verify", str(kept), *flags]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# --- files that were damaged ---


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The smallest run; read only."""
    out = tmp_path_factory.mktemp("runs") / "small"
    carry_out(out, Run("probe/action", steps=8, **TINY), checkpoint_seconds=0)
    assert RunDirectory(out).latest().meta["iteration"] == 2
    return out


def same_content(one, other):
    (tensors, meta), (others, other_meta) = one, other
    return meta == other_meta and tensors.keys() == others.keys() and all(
        np.array_equal(tensors[k], others[k]) and tensors[k].dtype == others[k].dtype for k in tensors
    )  # fmt: skip


@pytest.mark.parametrize("name", ["checkpoints/000000002.safetensors", "policy.safetensors"])
def test_every_byte_flipped(small, tmp_path, name):
    """Never a wrong load, never anything but one sentence; and the checkpoint before takes its place."""
    out = copied(small, tmp_path / "run")
    path = out / name
    data, true = path.read_bytes(), files.read_tensors(path)
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        try:
            loaded = files.read_tensors(path)
        except files.Corrupt as error:
            assert "\n" not in str(error)
            assert str(path) in str(error)
        else:
            assert same_content(loaded, true), position
        if name.startswith("checkpoints"):
            assert RunDirectory(out).latest().meta["iteration"] == 1
        elif position % 50 == 0:
            with pytest.raises(DetentError):
                detent.load(out)


@pytest.mark.parametrize("name", ["checkpoints/000000002.safetensors", "policy.safetensors"])
def test_cut_at_every_length(small, tmp_path, name):
    out = copied(small, tmp_path / "run")
    path = out / name
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(files.Corrupt) as error:
            files.read_tensors(path)
        assert "\n" not in str(error.value)
        if name.startswith("checkpoints"):
            assert RunDirectory(out).latest().meta["iteration"] == 1


@pytest.mark.parametrize("name", ["run.json", "checkpoints.jsonl"])
def test_every_byte_of_the_text_files_flipped(small, tmp_path, name):
    """What decides what a run computes is either unchanged or refused."""
    out = copied(small, tmp_path / "run")
    path = out / name
    data = path.read_bytes()
    true = RunDirectory(out).run(), RunDirectory(out).links()
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        try:
            found = RunDirectory(out).run(), RunDirectory(out).links()
        except DetentError as error:
            assert "\n" not in str(error)
        else:
            assert found == true, position


def test_a_damaged_record_is_not_forgotten_with_all_that_follow(small, tmp_path, capsys):
    out = copied(small, tmp_path / "run")
    (out / "status.json").unlink()
    damaged = b"{" + (out / "records.jsonl").read_bytes()
    (out / "records.jsonl").write_bytes(damaged)
    assert main(["resume", str(out)]) == 2
    assert "records.jsonl is damaged: line 1" in capsys.readouterr().err
    assert (out / "records.jsonl").read_bytes() == damaged


def test_a_run_without_a_whole_checkpoint_says_so(small, tmp_path, capsys):
    out = copied(small, tmp_path / "run")
    (out / "status.json").unlink()
    for path in (out / "checkpoints").iterdir():
        path.write_bytes(b"")
    assert main(["resume", str(out)]) == 2
    assert "No checkpoint in" in capsys.readouterr().err
    assert (out / "records.jsonl").read_bytes() == (small / "records.jsonl").read_bytes()


# --- directories that mean harm ---


class Payload:
    """Unpickled, it would leave a trace."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


def header_claiming(shape):
    size = 4 * int(np.prod(shape, dtype=object))
    header = json.dumps({"x": {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}}).encode()
    return len(header).to_bytes(8, "little") + header


def sparse(path):
    with open(path, "wb") as file:
        file.truncate(10 * 2**30)


def trusted(out, data):
    """Put a file in the place of the last checkpoint, with a chain that vouches for it."""
    path = out / "checkpoints" / "000000002.safetensors"
    path.write_bytes(data)
    relinked(out, lambda links: [links[0], {**links[1], "sha256": hashlib.sha256(data).hexdigest()}])


def in_last_link(**values):
    return lambda out: relinked(out, lambda links: [links[0], {**links[1], **values}])


def in_options(**values):
    return lambda out: rewritten(out, lambda described: described["options"].update(values))


HARM = {
    "a pickle for a checkpoint": lambda out: trusted(out, pickle.dumps(Payload(out / "harm"))),
    "a pickle for a policy": lambda out: (out / "policy.safetensors").write_bytes(pickle.dumps(Payload(out / "harm"))),
    "a pickle for run.json": lambda out: (out / "run.json").write_bytes(pickle.dumps(Payload(out / "harm"))),
    "10 GB claimed": lambda out: trusted(out, header_claiming([2_500_000_000])),
    "a shape beyond all bounds": lambda out: trusted(out, header_claiming([2**62, 2**62])),
    "a header of 2**63 bytes": lambda out: trusted(out, (2**63).to_bytes(8, "little") + b"{}"),
    "a sparse file of 10 GB": lambda out: (sparse(out / "policy.safetensors"), sparse(out / "run.json")),
    "a path for an iteration": in_last_link(iteration="../../../../etc/passwd"),
    "a negative iteration": in_last_link(iteration=-1),
    "a list for a hash": in_last_link(sha256=["x"]),
    "nested JSON": lambda out: (out / "run.json").write_text("[" * 100_000),
    "links that are no objects": lambda out: (out / "checkpoints.jsonl").write_text("1\n2\n"),
    "records that are no objects": lambda out: (out / "records.jsonl").write_text("1\n2\n"),
    "a huge network": in_options(hidden_sizes=[10**9]),
    "a huge batch": in_options(batch_size=10**12),
    "huge bins": in_options(bins=10**9),
    "infinite steps": lambda out: (out / "run.json").write_text('{"schema": 1, "options": {"steps": 1e999}}'),
    "a name for code": lambda out: rewritten(out, lambda d: d.update(task="os:system")),
    "a module for a task": lambda out: rewritten(out, lambda d: d.update(task="antigravity:fly")),
    "a missing part": lambda out: rewritten(out, lambda d: d.pop("head")),
    "options that are none": lambda out: rewritten(out, lambda d: d.update(options=[1, 2]), forge=False),
    "an unknown option": in_options(rm="-rf"),
    "a later version": lambda out: (out / "run.json").write_text('{"schema": 2}'),
}
VERBS = (["verify", "--all"], ["eval", "--episodes", "1"], ["resume"])


@pytest.mark.parametrize("harm", HARM)
def test_a_hostile_directory_is_refused(small, tmp_path, harm, capfd):
    """No verb executes what it holds, shows a traceback, or takes it for good."""
    out = copied(small, tmp_path / "run")
    (out / "status.json").unlink()
    HARM[harm](out)
    codes = [main([verb, str(out), *flags]) for verb, *flags in VERBS]
    printed = capfd.readouterr()
    assert any(codes), printed
    assert set(codes) <= {0, 1, 2}
    assert "Traceback" not in printed.err
    assert not (out / "harm").exists()
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("verb", ["eval", "resume", "verify"])
def test_a_module_named_in_a_file_is_not_imported(small, tmp_path, capsys, verb):
    """The message says which command would, if that is what the user wants."""
    out = copied(small, tmp_path / "run")
    rewritten(out, lambda described: described.update(task="evil_module:make"))
    assert main([verb, str(out)]) == 2
    assert f"detent {verb} {out} --import evil_module" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["head", "algo", "task"])
def test_a_name_that_nobody_registered(small, tmp_path, capsys, kind):
    out = copied(small, tmp_path / "run")
    rewritten(out, lambda described: described.update({kind: "mine"}))
    assert main(["resume", str(out)]) == 2
    error = capsys.readouterr().err
    assert "'mine'" in error
    assert f"detent resume {out} --import MODULE" in error


def test_hostile_files_cost_little_memory(small, tmp_path):
    hostile = []
    for number, harm in enumerate(["10 GB claimed", "a sparse file of 10 GB", "a huge network", "nested JSON"]):
        out = copied(small, tmp_path / str(number))
        (out / "status.json").unlink()
        HARM[harm](out)
        hostile.append(out)
    code = (
        "import sys, resource, detent, detent.runs.directory as d\n"
        "from detent.errors import DetentError\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for out in sys.argv[1:]:\n"
        "    for load in (detent.load, lambda p: d.RunDirectory(p).latest(), lambda p: d.RunDirectory(p).run()):\n"
        "        try: load(out)\n"
        "        except DetentError: pass\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)"
    )
    result = subprocess.run([sys.executable, "-c", code, *map(str, hostile)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 100  # MB


# --- environments that fail ---


def test_training_goes_on_with_restarted_environments(tmp_path, caplog):
    """And a resumed run counts on and ends in the same bits."""
    run = Run(host_tasks.Fragile, steps=1280, on_env_error="restart", max_env_restarts=10_000, **QUICK)
    carry_out(tmp_path / "whole", run)
    counts = [record.get("rollout/env_restarts", 0) for record in told(tmp_path / "whole")]
    assert counts[-1] == len(caplog.messages) > 50
    assert counts == sorted(counts)
    out = tmp_path / "stopped"
    records = execute(run, out, Execution())
    for _ in range(3):
        next(records)
    records.close()
    carry_out(out, run, resume=True)
    assert_same_run(out, tmp_path / "whole")


def test_a_step_that_failed_carries_no_weight():
    """The step before it is truncated, and bootstraps from the observation on which the failing action was based."""
    run = Run(host_tasks.Fragile, **QUICK)
    env = Host(host_tasks.Fragile, "Fragile", Wanted(0, 8, restarts=1000))
    agent = make_agent(run, env)
    collect = make_collect(agent, Edge("scale", False, True, 10.0, 0.99), env, 32)
    key = jax.random.key(0)
    state, observation = env.reset()
    memory, _, rollout, trace = collect(agent.init(key), begin(observation), state, key)
    env.close()
    valid, ended = np.asarray(rollout.valid), np.asarray(trace.ended)
    failed = ~valid[1:] & ~ended[:-1]
    assert failed.sum() > 5
    assert np.asarray(rollout.truncated)[:-1][failed].all()
    assert not np.asarray(rollout.terminated)[:-1][failed].any()
    # Lengths count from the restart.
    lengths = np.asarray(trace.episode_length)
    for t, i in zip(*np.nonzero(~valid), strict=True):
        if t + 1 < len(valid):
            assert lengths[t + 1, i] == valid[t + 1, i]
    assert np.isfinite(memory.observation_moments.mean).all()


def test_faults_reach_the_command_line_as_one_sentence(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(Path(__file__).parent)
    flags = ["--steps", "4096", "--batch-size", "128", "--envs", "8", "--quiet", "--out", str(tmp_path / "run")]
    assert main(["train", "host_tasks:Raises", *flags]) == 2
    error = capsys.readouterr().err
    assert "at step 3 with action [" in error
    assert error.count("\n") == 1
    again = ["resume", str(tmp_path / "run"), "--quiet", "--on-env-error", "restart", "--max-env-restarts", "7"]
    again += ["--import", "host_tasks"]
    assert main(again) == 2
    assert "after 7 restarts" in capsys.readouterr().err


def test_what_cannot_be_restarted_is_refused():
    with pytest.raises(DetentError, match="Hopper-v5 is an EnvPool task and cannot be restarted"):
        next(train(Run("Hopper-v5", on_env_error="restart")))


def test_nothing_is_kept_of_a_step_that_is_not_finite(tmp_path):
    run = Run(functools.partial(host_tasks.Poisoned, after=40), "gaussian", steps=10_000, **QUICK)
    last = None
    with pytest.raises(DetentError, match=r"at step 40 with action .* returned nan"):
        for record in train(run):
            last = record.snapshot()
    assert last.meta["iteration"] == 2
    assert all(np.isfinite(t).all() for name, t in last.tensors.items() if name.startswith(("algorithm", "memory")))


def test_the_last_finite_checkpoint_of_a_diverged_run_is_kept(tmp_path):
    out = tmp_path / "run"
    run = Run("probe/action", "gaussian", steps=100_000, learning_rate=1e30, **QUICK)
    with pytest.raises(DetentError, match="diverged at step"):
        carry_out(out, run, checkpoint_seconds=0)
    directory = RunDirectory(out)
    assert directory.status() == "diverged"
    found = directory.latest()
    assert found is None or all(np.isfinite(t).all() for n, t in found.tensors.items() if n.startswith("algorithm"))
    assert len(directory.records()) == (found.meta["iteration"] if found else 0) + 1


# --- disks that are full ---


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("this machine does not let root mount a file system")
    try:
        out = disk / "run"
        run = Run("probe/action", steps=1_000_000, **QUICK)
        with pytest.raises(files.CannotWrite, match="No space left"):
            carry_out(out, run, checkpoint_seconds=0, keep_all=True)
        assert RunDirectory(out).latest().meta["iteration"] >= 1
        assert not list(out.rglob("*.tmp"))
    finally:
        subprocess.run(["umount", str(disk)], check=True)
