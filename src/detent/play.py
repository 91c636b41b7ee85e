"""Watching a policy: episodes in a Gymnasium environment, drawn into a film or shown in a window."""

from __future__ import annotations

import io
import math
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium.envs.registration import find_highest_version, parse_env_id
from numpy.typing import NDArray

from detent.environments.host import make_factory
from detent.environments.serial import FAILURES, make_all
from detent.environments.spaces import action_space, observation_layout
from detent.errors import BadInput, DetentError, EnvironmentFailed, one_line
from detent.files import cannot_write, flush, temporary_name, write_whole
from detent.ops import Choose
from detent.package import import_optional
from detent.policy import Policy
from detent.runs.acting import acting
from detent.runs.evaluation import MOST_STEPS
from detent.runs.run import Run
from detent.tasks import Factory, Task

Env = gymnasium.Env[Any, Any]
Picture = NDArray[np.uint8]
"""[height, width, 3]."""
T = TypeVar("T")

FASTEST_FILM, FASTEST_GIF = 60, 15
"""Pictures per second; of a faster simulation only every second or third step is drawn, so that time runs as it did."""
GIF_WIDTH, GIF_PICTURES, GIF_COLORS = 320, 150, 128
DRAWS_WITHOUT_MUJOCO = ("box2d", "classic", "roboschool")
BACKENDS = ("egl", "osmesa")


# --- The environment to play in ---


def factory_of(task: Task, options: Mapping[str, Any]) -> Factory:
    """What makes one Gymnasium environment of a task; of a task of EnvPool's, Gymnasium's own of the same id."""
    if task.factory is not None:
        return task.factory(options)
    if task.envpool_id is None:
        raise BadInput(f"{task.name} is a problem of numbers, written in JAX; there is nothing to see.")
    spec = gymnasium.registry.get(task.envpool_id)
    # Gymnasium registers the MuJoCo ids that it gave up, with a function that raises.
    if spec is not None and isinstance(spec.entry_point, str):
        return make_factory(task.envpool_id, options)
    raise BadInput(
        f"{task.name} is simulated by EnvPool, which draws nothing, and Gymnasium has no environment with the same "
        f"observations; {_instead(task.envpool_id)}"
    )


def _instead(envpool_id: str) -> str:
    namespace, name, _ = parse_env_id(envpool_id)
    newest = find_highest_version(namespace, name)
    if newest is None:
        return "a policy can be watched that was trained on a task of `detent tasks mujoco` with version 4 or 5."
    return f"a policy trained on {name}-v{newest} can be watched."


def make_env(run: Run, window: bool = False) -> Env:
    """One environment of the run's task that can be drawn, or shown in a window."""
    task, options = run.task, dict(run.settings.env_kwargs or {})
    factory = factory_of(task, {**options, "render_mode": "human" if window else "rgb_array"})
    if window:
        if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            raise BadInput("There is no display for a window; leave --window out to record a film.")
    else:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        if task.suite not in DRAWS_WITHOUT_MUJOCO:
            choose_backend()
    try:
        with warnings.catch_warnings(action="ignore"):  # about versions that are not the newest
            [env] = make_all(factory, task.name, 1)
    except BadInput as error:
        if "render_mode" in str(error) and window:
            raise BadInput(f"{task.name} has no window; leave --window out to record a film.") from error
        if isinstance(error.__cause__, TypeError):  # as of an argument that is not expected
            raise BadInput(
                f"{str(error).rstrip('.')}; to be drawn, an environment must take `render_mode`, and so must what "
                "makes it."
            ) from error
        raise
    return env


def choose_backend() -> None:
    """Have MuJoCo draw without a display: by EGL, or else by OSMesa. A choice of the user's (MUJOCO_GL) stands.

    MuJoCo decides once for a process, and a driver that does not work may end it; hence other processes try first.
    """
    if "MUJOCO_GL" in os.environ:
        return
    program = "import mujoco; context = mujoco.GLContext(8, 8); context.make_current(); context.free()"
    for backend in BACKENDS:
        environment = {**os.environ, "MUJOCO_GL": backend, "PYOPENGL_PLATFORM": backend}
        if subprocess.run([sys.executable, "-P", "-c", program], env=environment, capture_output=True).returncode == 0:
            os.environ |= {"MUJOCO_GL": backend, "PYOPENGL_PLATFORM": backend}
            return
    raise BadInput(
        "MuJoCo cannot draw here, because neither EGL nor OSMesa works; install one of them (on Debian and Ubuntu: "
        "apt install libegl1 or libosmesa6)."
    )


# --- Episodes ---


@dataclass(frozen=True)
class Episode:
    """One that has ended."""

    total: float
    """Its return."""
    length: int


def play(
    run: Run,
    policy: Policy,
    env: Env,
    episodes: int,
    seed: int,
    choose: Choose = "mode",
    film: Film | None = None,
) -> Iterator[Episode]:
    """Play episodes, the first under `seed`, the next under `seed + 1`, ..., and tell of each when it has ended."""
    name = run.names.task
    layout = observation_layout(name, env.observation_space)
    own = action_space(name, env.action_space, bounded=False)
    policy.refuse_other_task(f"{name} as Gymnasium has it", layout.size, own.low, own.high)
    of_vector = acting(run, policy, choose, np.random.default_rng(seed))

    def act(observation: Any) -> Any:
        return of_vector(_asked(name, lambda: layout.flat(observation)))

    for episode in range(episodes):
        with np.errstate(all="ignore"):  # what is not finite is refused
            played = _episode(name, act, env, seed + episode, policy, film)
        yield played


def _episode(name: str, act: Callable[[Any], Any], env: Env, seed: int, policy: Policy, film: Film | None) -> Episode:
    observation, _ = _asked(name, lambda: env.reset(seed=seed))
    total, length, over = 0.0, 0, False
    space = env.action_space
    while not over and length < MOST_STEPS:
        action = act(observation)
        if not np.isfinite(action).all():
            raise BadInput(
                "The policy gave an action that is not finite; it is damaged, or was never trained for this."
            )
        native = np.asarray(action, space.dtype).reshape(space.shape or ())[()]
        observation, reward, terminated, truncated, _ = _asked(name, partial(env.step, native))
        total, length, over = total + float(reward), length + 1, bool(terminated or truncated)
        if film and (over or length % film.every == 0):
            picture = _checked_picture(name, _asked(name, env.render))
            film.add(with_overlay(picture, total, length, heights(policy, action), middle=not _whole(policy)))
    return Episode(total, length)


def _asked(name: str, question: Callable[[], T]) -> T:
    """What an environment answers; what it raises becomes a sentence."""
    try:
        return question()
    except DetentError:
        raise
    except FAILURES as error:
        raise EnvironmentFailed(f"{name} raised {one_line(error)}") from error


def _checked_picture(name: str, picture: Any) -> Picture:
    array = np.asarray(picture)
    if array.ndim != 3 or array.shape[2] != 3 or array.dtype != np.uint8:
        raise BadInput(
            f"{name} cannot be drawn: its render() gives no picture, that is, an array [height, width, 3] of uint8."
        )
    return array


# --- What is drawn over a picture ---


def _whole(policy: Policy) -> bool:
    return bool(np.issubdtype(policy.tensors["space/low"].dtype, np.integer))


def heights(policy: Policy, action: NDArray[Any]) -> NDArray[np.float64]:
    """[m] Where in its bounds each dimension of an action is: 0 at the lower, 1 at the upper one."""
    low, high = (policy.tensors[f"space/{end}"].astype(np.float64) for end in ("low", "high"))
    flat = np.asarray(action, np.float64).reshape(-1)
    if _whole(policy):  # the first of n choices shows too: 1 / n
        return (flat - low + 1) / (high - low + 1)
    bounded = np.isfinite(low) & np.isfinite(high)
    low, high = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
    return np.clip((flat - low) / (high - low), 0.0, 1.0)


def with_overlay(picture: Picture, total: float, step: int, bars: NDArray[np.float64], middle: bool) -> Picture:
    """The picture with return and step, and a bar for each dimension of the action, above, where sky is and no robot.

    Bars begin in the `middle` of their bounds, or at the bottom.
    """
    from PIL import Image, ImageDraw, ImageFont

    height, width = picture.shape[:2]
    base = Image.fromarray(picture)
    layer = Image.new("RGBA", base.size)
    draw = ImageDraw.Draw(layer)
    font = ImageFont.load_default(size=max(10, height // 26))
    margin = max(4, height // 60)

    text = f"return {total:,.1f}   step {step:,}"
    _, _, right, bottom = draw.textbbox((2 * margin, 2 * margin), text, font=font)
    draw.rounded_rectangle((margin, margin, right + margin, bottom + margin), margin, fill=PANEL)
    draw.text((2 * margin, 2 * margin), text, font=font, fill=INK)

    # Beside the text, at the right, leaving room for it to grow; under it, where bars would be too thin to see.
    widest = max(right, int(2 * margin + font.getlength("return -88,888.8   step 8,888")))
    top, room = 2 * margin, width - widest - 5 * margin
    if room < 4 * len(bars):
        top, room = bottom + 3 * margin, width - 4 * margin
    pitch, tall = min(height / 26, room / len(bars)), max(24, height // 9)
    left, lower = width - 2 * margin - pitch * len(bars), top + tall
    draw.rounded_rectangle((left - margin, top - margin, width - margin, lower + margin), margin, fill=PANEL)
    level = lower - tall / 2 if middle else lower
    gap = pitch / 10 if pitch >= 5 else 0.0
    for i, bar in enumerate(bars):
        x, y = left + i * pitch, lower - bar * tall
        draw.rectangle((x + gap, min(y, level), x + pitch - gap, max(y, level)), fill=BAR)
    draw.line((left, level, left + pitch * len(bars), level), fill=INK)
    return np.asarray(Image.alpha_composite(base.convert("RGBA"), layer).convert("RGB"))


PANEL, INK, BAR = (20, 20, 28, 170), (255, 255, 255, 255), (255, 176, 46, 255)


# --- The film ---


class Film:
    """An MP4, a GIF or both, made of pictures as they come; the files appear when it ends without an error.

    The GIF is small: it has every few pictures only, and of a long film only the beginning.
    """

    def __init__(self, env: Env, mp4: Path | None, gif: Path | None) -> None:
        rate = float(env.metadata.get("render_fps") or 30)
        self.every = math.ceil(rate / FASTEST_FILM)
        """Steps from one picture to the next."""
        self._rate = rate / self.every
        self._mp4, self._gif = mp4, gif
        self._temporary = temporary_name(mp4) if mp4 else Path()
        """Where the MP4 grows."""
        self._gif_every = math.ceil(self._rate / FASTEST_GIF)
        self._gif_pictures: list[Any] = []
        self._count = 0
        self._writer: Any = None
        self._ffmpeg = import_optional("imageio_ffmpeg", "play") if mp4 else None

    def __enter__(self) -> Film:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._mp4 and self._temporary.exists():
            if kind is None:
                flush(self._temporary)
                os.replace(self._temporary, self._mp4)
                flush(self._mp4.parent)
            else:
                self._temporary.unlink()
        if self._gif and kind is None and self._gif_pictures:
            self._write_gif(self._gif)

    def add(self, picture: Picture) -> None:
        if self._mp4:
            # The codec wants even sizes.
            even = np.ascontiguousarray(picture[: picture.shape[0] // 2 * 2, : picture.shape[1] // 2 * 2])
            if self._writer is None:
                self._begin(even)
            self._writer.send(even)
        if self._gif and self._count % self._gif_every == 0 and len(self._gif_pictures) < GIF_PICTURES:
            self._gif_pictures.append(_small(picture))
        self._count += 1

    def _begin(self, picture: Picture) -> None:
        assert self._mp4 and self._ffmpeg
        try:
            self._mp4.parent.mkdir(parents=True, exist_ok=True)
            self._temporary.touch(exist_ok=False)
        except OSError as error:
            raise cannot_write(self._mp4, error) from error
        self._writer = self._ffmpeg.write_frames(
            str(self._temporary),
            (picture.shape[1], picture.shape[0]),
            fps=self._rate,
            codec="libx264",
            macro_block_size=2,
            quality=7,
            ffmpeg_log_level="error",
            output_params=["-movflags", "+faststart", "-f", "mp4"],
        )
        with warnings.catch_warnings(action="ignore"):  # JAX warns of forks, and ffmpeg is not one that goes on
            self._writer.send(None)

    def _write_gif(self, path: Path) -> None:
        first, *others = self._gif_pictures
        data = io.BytesIO()
        duration = round(1000 * self._gif_every / self._rate, -1)  # ms; GIF counts in hundredths of a second
        first.save(data, "GIF", save_all=True, append_images=others, duration=duration, loop=0)
        write_whole(path, data.getvalue())


def _small(picture: Picture) -> Any:
    from PIL import Image

    image = Image.fromarray(picture)
    if image.width > GIF_WIDTH:
        image = image.resize((GIF_WIDTH, round(image.height * GIF_WIDTH / image.width)))
    return image.quantize(GIF_COLORS, dither=Image.Dither.NONE)
