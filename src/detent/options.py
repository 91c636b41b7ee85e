"""Options are fields of frozen dataclasses: a default, one line of help, and the values that make sense.

Options age. Each has a *baseline*, which never changes: its default when it was introduced or, if it was added to
something that already existed, the value that reproduces runs from before it. Defaults and presets may change later.
Where a file lacks an option, its baseline is meant. Runs that differ from the baselines in the same way are the same.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from detent.draws import Draw
from detent.errors import BadInput, quoted

FREE_OPTIONS = ("workers", "threads", "env_timeout", "on_env_error", "max_env_restarts")
"""Options that change no result (as long as nothing fails), so a resumed run may change them."""


LARGEST = 2**63 - 1
"""The largest whole number that an array can hold."""


class Unset:
    """Stands for a missing value where None is a valid one."""


def option(
    default: Any,
    help: str,
    *,
    baseline: Any = Unset,
    formerly: tuple[str, ...] = (),
    instead_of: str | None = None,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    choices: tuple[str, ...] | None = None,
    search: Draw | None = None,
) -> Any:
    """A dataclass field that appears as a command-line flag, with its help and its range.

    Give `baseline` if it differs from the default: when a default changes, or when an option is added to something that
    already exists. `formerly` lists the option's old names, which files may still use. `instead_of` names an option of
    the same part that sets the same thing; only one of the two may differ from its baseline. `search` is the range in
    which `detent tune` looks for good values (`detent.draws`); without it, an option is searched only if a user asks.
    """
    limits = {"at_least": at_least, "above": above, "at_most": at_most, "choices": choices}
    aging = {"baseline": default if baseline is Unset else baseline, "formerly": formerly, "instead_of": instead_of}
    return dataclasses.field(default=default, metadata={"help": help, "limits": limits, "search": search, **aging})


def options_of(configurable: Any) -> tuple[dataclasses.Field[Any], ...]:
    """The fields of a dataclass (or an instance of one) that were declared with `option`."""
    return _options_of(configurable if isinstance(configurable, type) else type(configurable))


@functools.cache  # planning a thousand runs asks a hundred thousand times
def _options_of(configurable: type) -> tuple[dataclasses.Field[Any], ...]:
    return tuple(f for f in dataclasses.fields(configurable) if "help" in f.metadata)


_OWNERS: dict[str, tuple[str, str]] = {}
"""Option -> the kind of part (`head`, `algorithm`, ...) that has it, and the first owner of that kind."""


def claim_names(kind: str, owner: str, names: Sequence[str]) -> None:
    """Refuse an option that another kind of part has: a run has all its options in one set.

    Parts of one kind may share names, since a run has only one of them.
    """
    for name in names:
        other_kind, other = _OWNERS.get(name, (kind, owner))
        if other_kind != kind:
            raise BadInput(
                f"{flag(name)} is an option of {other} and of {owner}, and a run has all its options in one set; "
                "give one of them another name."
            )
    for name in names:
        _OWNERS.setdefault(name, (kind, owner))


def names_of(configurable: Any) -> list[str]:
    """The names of its options, former ones included; none if it is no dataclass."""
    if not dataclasses.is_dataclass(configurable):
        return []
    return [name for f in options_of(configurable) for name in (f.name, *f.metadata["formerly"])]


def old_names(configurables: Iterable[Any]) -> dict[str, str]:
    """Name that an option of one of these had before -> its name today."""
    return {old: f.name for part in configurables for f in options_of(part) for old in f.metadata["formerly"]}


def rivals(configurables: Iterable[Any]) -> dict[str, str]:
    """Option of one of these -> the option that sets the same thing, both ways round."""
    pairs = [(f.name, f.metadata["instead_of"]) for part in configurables for f in options_of(part)]
    return {name: rival for pair in pairs if pair[1] for name, rival in (pair, pair[::-1])}


def flag(name: str) -> str:
    """`learning_rate` -> `--learning-rate`."""
    return "--" + name.replace("_", "-")


_ELSEWHERE = {
    "learning_rate": ("lr",),
    "anneal_learning_rate": ("anneal_lr",),
    "steps": ("total_timesteps", "timesteps", "n_timesteps", "num_timesteps"),
    "envs": ("n_envs", "num_envs"),
    "batch_size, the steps of all --envs together": ("n_steps", "num_steps"),
    "minibatch_size, which is --batch-size divided by their number": ("num_minibatches", "n_minibatches"),
    "epochs": ("n_epochs", "num_epochs", "update_epochs"),
    "entropy_coef": ("ent_coef",),
    "value_coef": ("vf_coef",),
    "clip_range": ("clip_coef",),
    "clip_range_value": ("clip_range_vf", "clip_vloss"),
    "gae_lambda": ("lam",),
    "hidden_sizes": ("net_arch",),
    "activation": ("activation_fn",),
    "initial_log_std": ("log_std_init",),
    "normalize_observations": ("norm_obs",),
    "normalize_rewards": ("norm_reward",),
    "normalization_clip": ("clip_obs", "clip_reward"),
    "cg_iterations": ("cg_max_steps",),
    "damping": ("cg_damping",),
    "line_search_steps": ("line_search_max_iter",),
    "line_search_factor": ("line_search_shrinking_factor",),
    "eval_every": ("eval_freq",),
    "eval_episodes": ("n_eval_episodes",),
    "bins": ("n_bins", "num_bins"),
    "checkpoint_minutes": ("save_freq",),
    "tensorboard": ("tensorboard_log",),
    "wandb": ("track",),
    "out": ("exp_name", "log_folder", "log_dir"),
    "import": ("gym_packages",),
}
ELSEWHERE = {theirs: ours for ours, names in _ELSEWHERE.items() for theirs in names}
"""Names that options have in Stable-Baselines3, its zoo and CleanRL -> ours, with a remark if they are not the same."""


def name_here(name: str) -> tuple[str, str] | None:
    """Our name of an option that other libraries call `name`, and a sentence about it; None if there is none."""
    if name not in ELSEWHERE:
        return None
    ours, comma, remark = ELSEWHERE[name].partition(", ")
    return ours, f"There is no option {flag(name)}; what comes nearest is {flag(ours)}{comma}{remark}."


def whole(value: Any) -> int:
    """The whole number that a value from the command line, a file or Python stands for; 1e6 is one, 1.5 is not.

    Anything else raises ValueError, TypeError or OverflowError, and so does a number above `LARGEST`.
    """
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            value = float(value)
    number = int(value)
    if isinstance(value, bool) or number != value or abs(number) > LARGEST:
        raise ValueError("not a whole number that an array can hold")
    return number


def whole_number(name: str, value: Any, least: int, most: int = LARGEST) -> int:
    """The value of a flag or key that is not an option of a run."""
    try:
        number = whole(value)
    except (ValueError, TypeError, OverflowError):
        number = None
    if number is None or not least <= number <= most:
        above = number is not None and number > most
        wanted = f"at most {most}" if above else f"at least {least}"
        raise BadInput(f"{name} must be a whole number of {wanted}, not {quoted(value)}.")
    return number


def check_options(configured: Any) -> None:
    """Raise `BadInput` for the first option outside its range, or if two set the same thing.

    Called by `__post_init__`.
    """
    differ = {f.name for f in options_of(configured) if getattr(configured, f.name) != f.metadata["baseline"]}
    for name, rival in rivals([configured]).items():
        if {name, rival} <= differ:
            raise BadInput(f"{flag(name)} and {flag(rival)} set the same thing; give only one of them.")
    for declared in options_of(configured):
        value = getattr(configured, declared.name)
        if value is None:
            continue
        expected = _expected(value, **declared.metadata["limits"])
        if expected:
            raise BadInput(f"{flag(declared.name)} must be {expected}, not {value}.")


def _expected(
    value: Any,
    at_least: float | None,
    above: float | None,
    at_most: float | None,
    choices: tuple[str, ...] | None,
) -> str | None:
    """What an option outside its range should be; None if the value is fine."""
    if choices is not None:
        return None if value in choices else "one of " + ", ".join(choices)
    if at_least is above is at_most is None:
        return None
    if not math.isfinite(value):
        return "a finite number"
    if at_least is not None and value < at_least:
        return f"at least {at_least}"
    if above is not None and value <= above:
        return f"greater than {above}"
    if at_most is not None and value > at_most:
        return f"at most {at_most}"
    return None
