"""The documentation is true: what it tells one to type works, what it names exists, and the site builds."""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
import subprocess
import sys
import tomllib

import pytest

import detent
from detent.cli import VERBS
from detent.options import flag, options_of
from detent.runs.run import PARTS, Settings
from documented import INCLUDED, NOT_RUN, PAGES, ROOT, blocks, commands

SLOW = {
    "choosing-a-head.md",
    "critics.md",
    "deploy.md",
    "other-libraries.md",
    "own-environment.md",
    "own-head.md",
    "paper.md",
    "quick-start.md",
    "reliability.md",
    "report.md",
    "results.md",
    "sweeps.md",
    "tasks.md",
    "trunks.md",
    "tuning.md",
}
"""Pages whose blocks are run by `make test-all`."""
TYPED = [page for page in PAGES if any(block.language in ("python", "sh") for block in blocks(page))]
LINKED = [*PAGES, ROOT / "CHANGELOG.md"]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def name_of(path):
    return path.name


def prose(page):
    """A page without its fenced blocks, each replaced by as many empty lines."""
    text = page.read_text(encoding="utf-8")
    return re.sub(r"^ *```.*?^ *```$", lambda found: "\n" * found[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)


def spans(page):
    """What stands `like this` in a page."""
    return re.findall(r"`([^`\n]+)`", prose(page))


# --- what it tells one to type ---


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory):
    """What RUN stands for: a run that was stopped, every checkpoint of which was kept."""
    out = tmp_path_factory.mktemp("docs") / "RUN"
    run = detent.Run("Hopper-v5", batch_size=64, minibatch_size=32, envs=8, steps=1_000, anneal_learning_rate=False)
    records = []
    for record in detent.train(
        run, out, keep_all=True, checkpoint_seconds=0.0, stop=lambda: "enough" if len(records) == 8 else None
    ):
        records.append(record)
    return out


def furnish(place, request, page):
    """Put into a directory what the pages speak of."""
    if any(re.search(r"\bRUN\b", block.text) for block in blocks(page)):
        shutil.copytree(request.getfixturevalue("run_directory"), place / "RUN")
    shutil.copytree(ROOT / "examples", place / "examples", ignore=shutil.ignore_patterns("__pycache__", "runs"))
    (place / "results").symlink_to(ROOT / "results")
    (place / "my_module.py").write_text(
        "import gymnasium\n\n\ndef make_env():\n    return gymnasium.make('Pendulum-v1')\n"
    )


def type_in(page, place):
    command = [sys.executable, str(ROOT / "tests" / "documented.py"), str(page)]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=900)


@pytest.mark.parametrize(
    "page", [pytest.param(p, marks=pytest.mark.slow if p.name in SLOW else (), id=p.name) for p in TYPED]
)
def test_what_a_page_tells_one_to_type_works(page, tmp_path, request):
    furnish(tmp_path, request, page)
    done = type_in(page, tmp_path)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


@pytest.mark.parametrize(
    "block",
    [
        "```python\nassert detent.load\n```",
        "```sh\ndetent nonsense\n```",
        "```sh\ndetent train Hopper-v5 --nonsense 1\n```",
        "```sh\npython examples/missing.py\n```",
        "```sh\nmake sense\n```",
    ],
)
def test_what_does_not_work_is_noticed(block, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\n{block}\n")
    assert type_in(page, tmp_path).returncode != 0


def test_blocks_say_what_they_are():
    """A block that nobody runs must say so: ```text, or the name of another language."""
    for page in PAGES:
        for block in blocks(page):
            assert block.language not in ("", "bash", "shell", "console", "py"), f"{page.name}:{block.line}"
        commanding = re.search(r"\n\n {4,}(detent|python|make|pip|import|from|cd) .*", prose(page))
        assert commanding is None, f"{page.name}: fence {commanding[0].strip()!r} as ```sh or ```python"


def test_what_is_left_out_is_still_there():
    told = {
        shlex.join(words)
        for page in PAGES
        for block in blocks(page)
        if block.language == "sh"
        for words in commands(block, shortened=False)
    }
    assert set(NOT_RUN) <= told


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_examples_run(example, tmp_path):
    done = subprocess.run(
        [sys.executable, str(example), "1000"], cwd=tmp_path, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-4000:]


# --- what it names ---


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if not re.match(r"\w+:|#", target):
            assert (page.parent / target.split("#")[0]).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_are_named_exist(page):
    """`benchmarks/where.py`, `heads/ordinal.py`, `kfac.py`; also in commands and in what a block includes."""
    files = {path.name for path in ROOT.rglob("*.py") if ".venv" not in path.parts}
    bases = (ROOT, ROOT / "src/detent", page.parent)
    for word in " ".join(spans(page)).split():
        path = word.split("::")[0]
        if re.fullmatch(r"[\w-]+\.py", path):
            assert path in files, word
        elif re.fullmatch(r"(?!runs/)[\w-]+(/[\w.-]+)+\.\w+|(src|tests|benchmarks|examples|docs)/[\w/]*", path):
            assert any((base / path).exists() for base in bases), word
    for block in blocks(page):
        assert block.file is None or block.file in EXAMPLES, f"{block.text}: only examples are tested by themselves"
        assert block.file or not INCLUDED.search(block.text)
        for words in commands(block) if block.language == "sh" else ():
            for word in words:
                assert not word.endswith(".py") or (ROOT / word).exists(), word


def test_commands_and_flags_that_are_named_exist():
    parts = [Settings, *(registry.get(name) for registry in PARTS.values() for name in registry.names())]
    flags = {flag(field.name) for part in parts for field in options_of(part)}
    known = flags | {f"--no-{name[2:]}" for name in flags} | {"--help"}
    for source in (
        ROOT / "src/detent/cli.py",
        *(ROOT / "src/detent/verbs").glob("*.py"),
        *(ROOT / "benchmarks").glob("*.py"),
    ):
        known |= set(re.findall(r'"(--[a-z-]+)"', source.read_text(encoding="utf-8")))
    for page in PAGES:
        for span in spans(page):
            ours = [] if span.startswith("ray ") else re.findall(r"(?<!\S)--[a-z][a-z-]+", span)
            for word in ours:
                assert word in known, f"{page.name}: {word}"
            verb = re.match(r"detent ([a-z]+)", span)
            assert verb is None or verb[1] in VERBS, f"{page.name}: {span}"


def test_python_names_that_are_named_exist():
    for page in PAGES:
        for span in spans(page):
            for dotted in re.findall(r"\bdetent(?:\.\w+)+", span):
                found = detent
                parts = dotted.split(".")[1:]
                for depth, part in enumerate(parts, 1):
                    try:
                        found = getattr(found, part)
                    except AttributeError:
                        found = importlib.import_module(".".join(["detent", *parts[:depth]]))
                assert found is not detent, dotted


def test_tests_that_are_named_exist():
    """docs/reliability.md gives the test of every promise."""
    written = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("test_*.py"))
    defined = set(re.findall(r"^def (test_\w+)", written, flags=re.MULTILINE))
    for page in PAGES:
        for span in spans(page):
            for test in re.findall(r"(?:^|::)(test_\w+)$", span):
                assert test in defined, f"{page.name}: {test}"


# --- the site ---


def test_the_site_builds_and_needs_no_network(tmp_path):
    site = tmp_path / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    for page in PAGES:
        built = {"README.md": "index", "CONTRIBUTING.md": "contributing"}.get(page.name, page.stem)
        assert (site / f"{built}.html").exists()
    loaded = re.compile(r"<(?:script|img|iframe|link)\b[^>]*(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]+)")
    for html in site.rglob("*.html"):
        assert loaded.findall(html.read_text(encoding="utf-8")) == [], html
    for css in site.rglob("*.css"):
        assert re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", css.read_text(encoding="utf-8")) == [], css


def test_the_layers_in_the_design_are_those_that_are_checked():
    """Each module of the import contract, in its order; a name that begins a line follows from the one above by `|`."""
    block = next(b for b in blocks(ROOT / "docs" / "design.md") if b.text.startswith("cli\n"))
    columns = "\n".join(re.split(r" {3,}", line.rstrip(), maxsplit=1)[0] for line in block.text.splitlines() if line)
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    documented = [layer.replace("\n", " ").split() for layer in re.split(r"\n(?! )", columns)]
    assert documented == [layer.replace("detent.", "").split() for layer in layers]
