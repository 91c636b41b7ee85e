"""`detent check`: each thing that can be wrong with an environment is told, and nothing else is."""

from __future__ import annotations

import functools
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from detent.cli import main
from detent.environments.checking import check


class Good(gymnasium.Env):
    """A point that is pushed about and should stay at 0; nothing is wrong with it."""

    observation_space = spaces.Box(-100.0, 100.0, (2,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    horizon = 50

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        self.state = self.np_random.normal(size=2)
        return self.seen(), {}

    def step(self, action):
        self.time += 1
        self.state = 0.9 * self.state + 0.1 * float(action[0]) + 0.01 * self.np_random.normal(size=2)
        return self.seen(), self.reward(), False, self.time >= self.horizon, {}

    def seen(self):
        return self.state.astype(np.float32)

    def reward(self):
        return -float(np.square(self.state).sum())


class InfiniteBounds(Good):
    action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)


class InvertedBounds(Good):
    def __init__(self):
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space.low, self.action_space.high = self.action_space.high, self.action_space.low


class Images(Good):
    observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)


class ImageInside(Good):
    observation_space = spaces.Dict({"camera": Images.observation_space, "place": Good.observation_space})


class Named(Good):
    observation_space = spaces.Dict({"place": Good.observation_space, "late": spaces.Discrete(2)})

    def seen(self):
        return {"place": super().seen(), "late": int(self.time > 25)}


class NamedOtherwise(Named):
    def seen(self):
        return {"late": 0, "place": np.zeros(3)} if self.time == 3 else super().seen()


class Binary(Good):
    action_space = spaces.MultiBinary(3)


class RewardNaN(Good):
    def reward(self):
        return float("nan") if self.time == 7 else 0.0


class RewardText(Good):
    def reward(self):
        return "much"


class RewardWild(Good):
    def reward(self):
        return 1e7 * super().reward()


class RewardRare(Good):
    def reward(self):
        return 1e3 if self.time == 50 and self.np_random.random() < 0.2 else 0.01 * super().reward()


class RewardConstant(Good):
    def reward(self):
        return 1.0


class ObservationNaN(Good):
    def seen(self):
        return np.array([0.0, np.nan]) if self.time == 3 else super().seen()


class ObservationLonger(Good):
    def seen(self):
        return np.zeros(3) if self.time == 3 else super().seen()


class ObservationOutside(Good):
    observation_space = spaces.Box(-1e-3, 1e-3, (2,), np.float32)


class ObservationOffset(Good):
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def seen(self):
        return 1e9 + self.state


class Blind(Good):
    def seen(self):
        return np.zeros(2, np.float32)


class Unseeded(Good):
    def seen(self):
        return (self.state + np.random.default_rng().normal(size=2)).astype(np.float32)


class Remembers(Good):
    """Its steps depend on how many episodes were played before."""

    episodes = 0

    def reset(self, *, seed=None, options=None):
        self.episodes += 1
        return super().reset(seed=seed)

    def reward(self):
        return super().reward() * self.episodes


class Deaf(Good):
    def step(self, action):
        return super().step(np.zeros(1))


class Endless(Good):
    horizon = 10**9


class Bandit(Good):
    horizon = 1


class OldReset(Good):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


class OldStep(Good):
    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or truncated, info


class TruncatedNone(Good):
    def step(self, action):
        return (*super().step(action)[:3], None, {})


class Unseedable(Good):
    def reset(self):
        return super().reset()


class Slow(Good):
    def step(self, action):
        import time

        time.sleep(0.02)
        return super().step(action)


class Succeeds(Good):
    def step(self, action):
        return (*super().step(action)[:4], {"is_success": True})


def unmade():
    raise RuntimeError("the robot is not plugged in")


SAID = {
    InfiniteBounds: ("problem", "actions without finite bounds"),
    InvertedBounds: ("problem", "empty action bounds"),
    Images: ("problem", "of shape (8, 8, 3)). Images are not supported"),
    ImageInside: ("problem", "Images are not supported"),
    Named: ("fine", "Observations are vectors of 4, flattened from a Dict"),
    NamedOtherwise: ("problem", "of its part 'place', its shape is (3,) and should be (2,)"),
    Binary: ("problem", "MultiBinary actions"),
    RewardNaN: ("problem", "The reward of step 7 was nan"),
    RewardText: ("problem", "Step 1 returned 'much' as its reward, which should be a number"),
    RewardWild: ("warning", "very large"),
    RewardRare: ("warning", "A few rewards dwarf all others"),
    RewardConstant: ("warning", "Every reward was 1"),
    ObservationNaN: ("problem", "Step 3 returned nan in number 1 of its observation"),
    ObservationLonger: (
        "problem",
        "Step 3 returned an observation that the observation space does not allow: its shape is (3,)",
    ),
    ObservationOutside: ("warning", "outside its space: number"),
    ObservationOffset: ("warning", "the seven digits of float32"),
    Blind: ("warning", "Observations never change"),
    Unseeded: ("warning", "gave different results in the same environment, at the reset"),
    Remembers: ("warning", "gave different results in the same environment, at step 1"),
    Deaf: ("warning", "Other actions changed nothing in 50 steps"),
    Endless: ("warning", "No episode ended in 600 random steps"),
    Bandit: ("warning", "Episodes last one step"),
    OldReset: ("problem", "`reset` must return (observation, info)"),
    OldStep: ("problem", "Environments for the old Gym"),
    TruncatedNone: ("problem", "`truncated` must be True or False; step 1 returned NoneType"),
    Unseedable: ("problem", "`reset(seed=0)` raised TypeError"),
    Slow: ("warning", "hours for a million steps"),
    Succeeds: ("fine", "success rate"),
    unmade: ("problem", "could not be made: it raised RuntimeError: the robot is not plugged in"),
}


def findings(make, steps=600):
    return list(check(make, "own", steps))


def test_nothing_is_wrong_with_what_is_good():
    found = findings(Good)
    assert {finding.kind for finding in found} == {"fine"}
    assert any("bit for bit" in finding.sentence for finding in found)
    assert any("12 episodes ended in 600 random steps" in finding.sentence for finding in found)
    assert any("steps per second" in finding.sentence for finding in found)


@pytest.mark.parametrize("make", SAID, ids=lambda make: make.__name__)
def test_what_is_wrong_is_told(make):
    kind, words = SAID[make]
    found = findings(make, 100 if make is Slow else 600)
    assert [finding.kind for finding in found if words in finding.sentence] == [kind], found
    # Everything else about it is as good as Good, or follows from what is wrong.
    follows = {Blind: "Other", Slow: "", Bandit: "", RewardRare: "", Endless: ""}
    others = [f for f in found if f.kind != "fine" and words not in f.sentence]
    assert all(finding.sentence.startswith(follows.get(make, "nothing")) for finding in others), others
    if kind == "problem":
        assert found[-1].kind == "problem"


def test_what_cannot_reach_a_worker_is_told():
    found = findings(lambda: Good())
    assert "cannot be made in worker processes" in found[-1].sentence


def test_real_environments_fit():
    for name in ("Pendulum-v1", "CartPole-v1", "Hopper-v5"):
        found = list(check(functools.partial(gymnasium.make, name, disable_env_checker=True), name, 400))
        quick = [finding for finding in found if "`reset` takes" not in finding.sentence]  # a busy machine may be slow
        assert {finding.kind for finding in quick} == {"fine"}, found


@pytest.fixture
def here(monkeypatch):
    """This module under the name by which a user would give it."""
    monkeypatch.setitem(sys.modules, "own_tasks", sys.modules[__name__])


def test_the_command_tells_and_its_exit_code_too(here, capsys):
    assert main(["check", "own_tasks:Good", "--steps", "300"]) == 0
    shown = capsys.readouterr().out
    assert shown.endswith("It is suitable for training. Train with: detent train own_tasks:Good\n")
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert main(["check", "own_tasks:Endless", "--steps", "300"]) == 0
    assert "with the limitations above" in capsys.readouterr().out
    assert main(["check", "own_tasks:RewardNaN"]) == 1
    assert capsys.readouterr().out.endswith("It cannot be used for training as it is.\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["Hopper-v5"], "is not a Gymnasium environment but one of Detent's own tasks"),
        (["no_such_module:make"], "Cannot import the module"),
        (["own_tasks:Good", "--steps", "none"], "--steps must be a whole number"),
        (["own_tasks:Good", "--env-kwargs", "["], "--env-kwargs must be a JSON object"),
    ],
)
def test_bad_input_is_one_sentence(words, sentence, here, capsys):
    assert main(["check", *words]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
