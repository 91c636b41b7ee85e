"""Detent as it is built, named and installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from detent import package

ROOT = Path(__file__).resolve().parents[1]


def test_no_page_or_message_installs_another_projects_package():
    """In the package index, `detent` is not this Detent."""
    wrong = re.compile(r"pip install ['\"]?detent(?!-rl)")
    places = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    assert not [path for path in places if wrong.search(path.read_text())]
    assert package.NAME in (ROOT / "pyproject.toml").read_text()


@pytest.mark.slow
def test_what_is_built_installs_and_trains_in_an_empty_environment(tmp_path):
    """The wheel, with its dependencies and nothing else; the source distribution holds all that the wheel does."""
    called([sys.executable, "-m", "build", "--outdir", str(tmp_path / "dist"), str(ROOT)])
    [wheel], [source] = ((tmp_path / "dist").glob(pattern) for pattern in ("*.whl", "*.tar.gz"))
    assert wheel.name.startswith("detent_rl-") and source.name.startswith("detent_rl-")
    with zipfile.ZipFile(wheel) as archive, tarfile.open(source) as sources:
        held = {name for name in archive.namelist() if name.startswith("detent/")}
        shipped = {name.partition("/src/")[2] for name in sources.getnames()}
    kept = (path for path in (ROOT / "src" / "detent").rglob("*") if path.is_file() and path.suffix != ".pyc")
    assert {str(path.relative_to(ROOT / "src")) for path in kept} == held
    assert held <= shipped

    venv.create(tmp_path / "empty", with_pip=True)
    bin = tmp_path / "empty" / "bin"
    called([str(bin / "pip"), "install", "--quiet", "-c", str(ROOT / "constraints.txt"), str(wheel)])
    command = [str(bin / "detent"), "train", "Hopper-v5", "--steps", "4096", "--out", str(tmp_path / "run")]
    called(command, cwd=tmp_path)
    assert called([str(bin / "detent"), "--version"], cwd=tmp_path) == f"detent {package.version()}\n"
    assert "identical" in called([str(bin / "detent"), "verify", str(tmp_path / "run")], cwd=tmp_path)


def called(command, cwd=None):
    """What a program prints; it must succeed, without this environment's paths."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
