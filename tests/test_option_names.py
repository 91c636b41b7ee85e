"""A run has all its options in one set, so that two of its parts cannot have one name."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import make_dataclass

import pytest

import detent
from detent.algorithms import ALGORITHMS
from detent.critics import CRITICS
from detent.heads import HEADS
from detent.heads.ordinal import Ordinal
from detent.options import option
from detent.runs.run import Run
from detent.trunks import TRUNKS


def having(name):
    """A head that is the ordinal one but for one more option."""
    return make_dataclass("Own", [(name, float, option(0.5, "something else"))], bases=(Ordinal,), frozen=True)


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("gamma", "the algorithm '"),
        ("divide_target_kl", "the algorithm 'ppo'"),
        ("kl_per_dimension", "the algorithm 'ppo'"),
        ("hidden_sizes", "the trunk 'mlp'"),
        ("value_bins", "the critic 'hl_gauss'"),
        ("seed", "every run"),
        ("task", "every run"),
    ],
)
def test_an_option_of_another_part_is_refused(name, owner):
    for registry in (ALGORITHMS, TRUNKS, CRITICS, HEADS):
        registry.names()
    flag = "--" + name.replace("_", "-")
    with pytest.raises(detent.BadInput, match=f"^{flag} is an option of {owner}.* and of the head 'own'.*another name"):
        detent.register_head("own", having(name))
    assert "own" not in HEADS.names()


def test_parts_of_one_kind_share_names_and_other_names_are_free():
    try:
        detent.register_head("own", having("own_only"))
        assert Run("probe/action", "own", bins=5, own_only=0.25).options["own_only"] == 0.25
    finally:
        HEADS._entries.pop("own")


OWN = """
from dataclasses import make_dataclass
import detent
from detent.heads.ordinal import Ordinal
from detent.options import option
Own = make_dataclass("Own", [("{name}", float, option(0.5, "something"))], bases=(Ordinal,), frozen=True)
detent.register_head("own", Own)
"""


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("gamma", "--gamma is an option of the head 'own' and of the algorithm '"),
        ("out", "The head (own) has the option --out, which `detent train` has for something else"),
    ],
)
def test_on_the_command_line_it_is_a_sentence(tmp_path, name, complaint):
    """Where the head is registered before the algorithms are known, too."""
    (tmp_path / "own_module.py").write_text(OWN.format(name=name))
    command = [sys.executable, "-m", "detent.cli", "train", "probe/action", "--import", "own_module", "--head", "own"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


def test_it_stays_a_sentence(tmp_path):
    program = (
        OWN.format(name="gamma")
        + """
for _ in range(2):
    try:
        detent.Run("probe/action", "own")
    except detent.BadInput as error:
        print(error)
"""
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    first, again = done.stdout.splitlines()
    assert first == again
    assert first.startswith("--gamma is an option of the head 'own'")
