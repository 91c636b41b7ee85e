"""An environment in JAX: scanned without x64, its state in the checkpoint, resumed without repeating anything."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from detent.cli import main
from detent.files import Corrupt
from detent.policy import load
from detent.runs.directory import RunDirectory
from detent.runs.execution import Execution, execute
from detent.runs.run import Run
from detent.runs.snapshot import Snapshot
from detent.runs.training import CLOCK_KEYS, train
from detent.tasks import TASKS
from jax_pendulum import LENGTH, TASK


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    TASKS.names()
    monkeypatch.setitem(TASKS._entries, TASK.name, TASK)


def pendulum(**options):
    return Run(TASK.name, "ordinal", **{"steps": 640, "envs": 8, "batch_size": 128, "seed": 4} | options)


def told(records):
    return [{k: v for k, v in r.items() if k not in CLOCK_KEYS} for r in records]


def test_resuming_gives_the_same_bits_and_repeats_nothing():
    whole = list(told(train(pendulum())))
    assert len(whole) > 4
    for stop in (1, 2, 3):
        # After 2 iterations of 16 steps each environment is in the middle of its second episode.
        *_, last = itertools.islice(train(pendulum()), stop)
        snapshot = last.snapshot()
        assert {name.split("/")[0] for name in snapshot.tensors} == {"algorithm", "memory", "episodes", "environment"}
        assert told(train(pendulum(), snapshot)) == whole[stop:]


def test_the_last_step_of_an_episode_can_be_the_last_before_a_checkpoint():
    batch = 8 * LENGTH
    run = pendulum(batch_size=batch, minibatch_size=batch, steps=3 * batch)
    whole = list(told(train(run)))
    snapshot = next(train(run)).snapshot()
    assert snapshot.tensors["environment/ended"].all()
    rest = told(train(run, snapshot))
    assert rest == whole[1:]
    assert not any("rollout/env_restarts" in record for record in rest)


def test_a_checkpoint_without_the_state_is_refused():
    snapshot = next(train(pendulum())).snapshot()
    without = {name: tensor for name, tensor in snapshot.tensors.items() if name != "environment/speed"}
    with pytest.raises(Corrupt, match="environment/speed should be float32"):
        next(train(pendulum(), Snapshot(without, snapshot.meta)))


def test_a_run_directory_resumes_verifies_and_evaluates(tmp_path, capsys):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    list(execute(pendulum(), whole, Execution()))
    for _ in itertools.islice(execute(pendulum(), parts, Execution(checkpoint_seconds=0.0)), 2):
        pass
    list(execute(pendulum(), parts, Execution(resume=True)))
    ends = [RunDirectory(path).latest().tensors for path in (whole, parts)]
    assert ends[0].keys() == ends[1].keys()
    for name, tensor in ends[0].items():
        np.testing.assert_array_equal(tensor, ends[1][name], err_msg=name)
    assert main(["verify", str(parts)]) == 0
    assert main(["eval", str(parts), "--episodes", "3", "--json"]) == 0
    shown = capsys.readouterr().out
    assert json.loads(shown[shown.index("{") :])["mode"]["mean_ep_length"] == LENGTH
    assert load(parts)(np.zeros((2, 2))).shape == (1,)  # as the environment shows it
