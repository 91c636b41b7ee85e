"""A picture of every task, as docs/tasks.png.

    pip install 'detent-rl[box2d,roboschool,report]' && MUJOCO_GL=egl python docs/contact_sheet.py

Tasks that look alike (versions of one task, tasks of one dm_control domain) share a picture. EnvPool draws nothing, so
its tasks are drawn by Gymnasium, and dm_control's by MuJoCo from the models that EnvPool brings along.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import gymnasium
import matplotlib
import mujoco
import numpy as np

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from detent.tasks import TASKS
from detent.tasks.classic import CHOICES
from detent.tasks.dm_control import SUITE
from detent.tasks.paper import NEAREST

COLUMNS = 8
DISTANCES = {"dog": 1.6, "lqr": 1.5, "quadruped": 4.0, "swimmer": 2.0}
"""From how far to look where the model's first camera does not show the robot."""
Picture = np.ndarray


def acted(env: gymnasium.Env, steps: int = 12) -> Picture:
    """What an environment looks like after a few random steps."""
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(steps):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
    picture = env.render()
    env.close()
    return picture


def of_gymnasium(name: str) -> Picture:
    newest = {"LunarLanderContinuous-v2": "LunarLanderContinuous-v3"}.get(name, name)
    return acted(gymnasium.make(newest, render_mode="rgb_array"))


def of_factory(name: str) -> Picture:
    return acted(TASKS.get(name).factory({"render_mode": "rgb_array"})())


def of_domain(domain: str) -> Picture:
    models = Path(find_spec("envpool_assets").submodule_search_locations[0]) / "mujoco" / "assets_dmc"
    model = mujoco.MjModel.from_xml_path(str(models / f"{domain}.xml"))
    data = mujoco.MjData(model)
    if model.nkey:
        mujoco.mj_resetDataKeyframe(model, data, 0)
    mujoco.mj_forward(model, data)
    with mujoco.Renderer(model, 240, 320) as renderer:
        camera = mujoco.MjvCamera()
        camera.lookat, camera.azimuth, camera.elevation = data.subtree_com[0], 120, -20
        camera.distance = DISTANCES.get(domain, 1.0)
        renderer.update_scene(data, camera=camera if domain in DISTANCES else 0)
        return renderer.render()


def pictures() -> dict[str, Callable[[], Picture]]:
    drawn: dict[str, Callable[[], Picture]] = {}
    for name in NEAREST:
        version = 3 if name in ("BipedalWalker", "LunarLanderContinuous") else 5
        drawn[name] = functools.partial(of_gymnasium, f"{name}-v{version}")
    for name in ("Pusher-v5", "BipedalWalkerHardcore-v3", *CHOICES):
        drawn[name] = functools.partial(of_gymnasium, name)
    for name in TASKS.names():
        if TASKS.get(name).suite in ("rllab", "roboschool"):
            drawn[name] = functools.partial(of_factory, name)
    for domain in SUITE:
        drawn[f"dm_control/{domain}"] = functools.partial(of_domain, domain)
    return drawn


def main() -> None:
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    drawn = pictures()
    rows = -(-len(drawn) // COLUMNS)
    figure, axes = plt.subplots(rows, COLUMNS, figsize=(2 * COLUMNS, 1.75 * rows), layout="constrained")
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, (name, draw) in zip(axes.flat, drawn.items(), strict=False):
        axis.imshow(draw())
        axis.set_title(name, fontsize=7.5)
    path = Path(__file__).with_name("tasks.png")
    figure.savefig(path, dpi=100)
    print(f"{len(drawn)} pictures: {path}")


if __name__ == "__main__":
    main()
