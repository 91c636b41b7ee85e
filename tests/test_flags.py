"""Every flag of every verb with values that nobody should give, and terminals that nobody should have.

Whatever a command is given, it does as it is asked or says in one sentence what is wrong: no traceback, nothing
executed, and nothing written outside the directory in which it works.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import pty
import random
import resource
import shutil
import stat
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest

from detent.cli import VERBS, main
from detent.errors import BadInput
from detent.options import whole, whole_number
from detent.runs.directory import RunDirectory
from detent.runs.run import PARTS, Run
from detent.verbs.flags import Parser
from marks import slow_unless
from test_reliability import TINY, carry_out

# --- what is tried ---

NUMBERS = [
    "0", "-1", "-0", "+1", "1.5", "1e3", "1e-400", "1e400", "-1e400", "inf", "-inf", "nan", "Infinity", "0x10", "1_000",
    "1__0", "²", "½", "٣", "１２", "1" * 19, "9" * 400, "-" + "9" * 400, "9" * 5_000, "1." + "9" * 400, str(2**31),
    str(2**63 - 1), str(2**63), str(2**64), "1,2", "1 2", "64,,64", "0-0", "4-0", "0-99999999999999999999", "²-²",
]  # fmt: skip
WORDS = [
    "", " ", "\t", "\n", "None", "true", "x", ":", "..:x", ":x", "x:", "a.b:", "é:è", "os.path", "gymnasium/", "/", "-",
    "--", "-x", "--help", "=", "%s%n%(prog)s", "{0}{task}", "\x1b[31m", "\r", "\0", "a\0b", "\udcff", "\ud800", "💥",
    "~", "*", "a" * 300, "a/" * 300, "a" * 100_000, "uniform:", "uniform:1,0", "uniform:nan,inf", "log-uniform:0,1",
    "log-uniform:1,1e400", "choice:", "choice:,", "choice:²,1e400", "sideways:0,1",
]  # fmt: skip
JSON = [
    "{}", "[]", "null", "0", '"x"', "{'a': 1}", '{"a": NaN}', '{"a": -Infinity}', '{"a": 1e999}', '{"": null}',
    '{"a": ' + "9" * 5_000 + "}", "[" * 100_000, '{"a":' * 100_000, '{"a":' * 500 + "1" + "}" * 500, '{"a": "\\ud800"}',
    '{"self": 1, "render_mode": [], "seed": {}}', '{"num_envs": -1, "task_id": 0}',
]  # fmt: skip
PROGRAMS = [
    "$(touch trace)", "`touch trace`", ";touch trace", "|touch trace", "__import__('os').system('touch trace')",
    "!!python/object/apply:os.system ['touch trace']", "canary", "canary.make", '{"__class__": "canary.make"}',
]  # fmt: skip
"""Whoever executed one of these would leave a trace."""
PIECES = [
    *"0123456789+-.,:=_e ²٣é%\\\"'{}[]()<>|&;#@!?*~\0\n\x1b\udcff", "1e", "nan", "inf", "true", "null", "0-9",
    "uniform:", "choice:", "log-uniform:", "--", "99999999999999999999",
]  # fmt: skip


def made_up(rng):
    """A random value; as a path, it stays in the current directory."""
    return "".join(rng.choices(PIECES, k=rng.randint(1, 12)))


def values(rng, count):
    """Values to try: `count` of those above, and as many made up."""
    return rng.sample([*NUMBERS, *WORDS, *JSON, *PROGRAMS], count) + [made_up(rng) for _ in range(count)]


COMMANDS = {
    # Whatever is changed here is refused at last: by a directory that is not empty, or a run that is nowhere.
    "train": [(["probe/action"], ["--init-from=nowhere", "--out=full"])],
    "sweep": [([], ["--task=probe/action", "--out=sweep", "--dry-run"]), (["sweep.toml"], ["--dry-run"])],
    "tune": [(["probe/action"], ["--dry-run"])],
    "resume": [(["run"], ["--quiet"])],
    "verify": [(["run"], ["--link=1000"]), (["nowhere"], [])],
    "eval": [(["bare"], [])],
    "export": [(["run"], ["--to=numpy", "--out=policy.py"])],
    "play": [(["run"], ["--out=film"])],
    "card": [(["bare"], ["--out=card.md"])],
    "ls": [(["bare"], [])],
    "report": [(["bare"], ["--out=page.html"])],
    "paper": [([], [])],
    "paper run": [(["figure1"], ["--task=Hopper", "--algo=ppo", "--head=gaussian", "--no-tuning", "--dry-run"])],
    "paper show": [(["figure1", "bare"], ["--out=shown"])],
    "check": [(["gymnasium/Pendulum-v1"], ["--steps=1", "--env-kwargs={\"nothing\": 1}"])],
    "tasks": [(["classic"], [])],
    "heads": [([], [])],
}  # fmt: skip
"""Verb -> arguments and flags to which another flag is added, or in which an argument is exchanged. All of them end
quickly, whatever that flag says: `bare` has no policy to evaluate, `run` is finished, `full` is no run."""


@cache
def parser_of(*words):
    """The parser of a command."""
    found = []
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(SystemExit):
        patch.setattr(Parser, "print_help", lambda self, file=None: found.append(self))
        main([*words, "--help"])
    return found[0]


def arguments(verb):
    """Every argument of a verb, and the flags that it takes to have it."""
    if verb != "train":
        return [(action, []) for action in parser_of(*verb.split())._actions]
    found = {}
    for kind, registry in PARTS.items():
        for name in registry.names():
            for action in parser_of("train", f"--{kind}={name}")._actions:
                found.setdefault((*action.option_strings, action.dest), (action, [f"--{kind}={name}"]))
    return list(found.values())


def commands(verb, count):
    """Commands in which one argument has a value that is tried, and commands with a word too many."""
    words = verb.split()
    for (given, flags), (action, needed) in itertools.product(COMMANDS[verb], arguments(verb)):
        rng = random.Random(f"{verb} {action.option_strings} {action.dest}")
        tried = values(rng, count)
        if "--debug" in action.option_strings:  # which is there to show tracebacks
            continue
        if {"--import", "--task"} & set(action.option_strings):  # flags that are there to execute what they name
            tried = [value for value in tried if not value.startswith("canary")]
        if isinstance(action, argparse._HelpAction):
            yield from ([*words, *given, *flags, value] for value in tried)
        elif not action.option_strings:
            yield from ([*words, *flags, "--", value, *given[1:]] for value in tried)
        else:
            for name in action.option_strings:
                if action.nargs == 0:
                    yield [*words, *given, *flags, *needed, name]
                yield from ([*words, *given, *flags, *needed, f"{name}={value}"] for value in tried)


# --- what must not happen ---

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = ("os.mkdir", "os.remove", "os.rmdir", "os.rename", "os.link", "os.symlink", "os.truncate", "os.chmod",
           "os.chown", "os.utime", "shutil.rmtree", "shutil.move", "shutil.copyfile")  # fmt: skip
STARTS = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.Popen", "socket.connect")


class Guard:
    """Sees all that this process writes, deletes and starts while it is active. An audit hook cannot be removed."""

    def __init__(self):
        self.inside, self.seen = None, []
        sys.addaudithook(self._hook)

    def _hook(self, event, args):
        if self.inside is None:
            return
        if event in STARTS or (event == "import" and str(args[0]).startswith("canary")):
            self.seen.append((event, *args[:1]))
        elif event == "open":
            path, _, flags = args
            if isinstance(path, str | bytes | os.PathLike) and flags & WRITES:
                self._check(event, path)
        elif event == "os.remove" and args[1] != -1:  # a name in a directory that is open
            self._check(event, os.path.join(os.readlink(f"/proc/self/fd/{args[1]}"), args[0]))
        elif event in CHANGES:
            for path in args[: 2 if event in ("os.rename", "os.link", "shutil.move") else 1]:
                if isinstance(path, str | bytes | os.PathLike):
                    self._check(event, path)

    def _check(self, event, path):
        whole = os.path.realpath(os.fsdecode(path))
        allowed = (self.inside, os.devnull, os.environ["JAX_COMPILATION_CACHE_DIR"])
        if not whole.startswith(allowed) and "__pycache__" not in whole:
            self.seen.append((event, whole))


GUARD = Guard()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("flags") / "run"
    carry_out(out, Run("probe/action", steps=8, **TINY), checkpoint_seconds=0)
    return out


@pytest.fixture
def place(trained, tmp_path, monkeypatch):
    """A directory to work in: a finished run, one without a policy, a directory that is neither, and a trap."""
    work = tmp_path / "work"
    shutil.copytree(trained, work / "run")
    shutil.copytree(trained, work / "bare")
    (work / "bare" / "policy.safetensors").unlink()
    (work / "bare" / "records.jsonl").write_text("")
    (work / "full").mkdir()
    (work / "full" / "mine.txt").write_text("mine")
    (work / "canary.py").write_text("open('trace', 'w')\ndef make(): open('trace', 'w')\n")
    (work / "sweep.toml").write_text('task = "probe/action"\n')
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MPLCONFIGDIR", str(work / "matplotlib"))
    monkeypatch.setattr("tempfile.tempdir", str(work))
    monkeypatch.chdir(work)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    return work


def outcome(words):
    """The exit code of a command; `--help` exits."""
    try:
        return main(words)
    except SystemExit as end:
        return end.code or 0


def one_sentence(error):
    return error.startswith("detent: ") and error.endswith(".\n") and error.count("\n") == 1 and len(error) < 2_100


def tried(cases, place, capfd):
    """Try commands; the number of them."""
    number = 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for words in cases:
        number += 1
        began = time.process_time()
        GUARD.inside, GUARD.seen = str(place), []
        try:
            code = outcome(words)
        finally:
            GUARD.inside = None
        shown = [word if len(word) < 200 else f"{word[:40]}... ({len(word)})" for word in words]
        out, error = capfd.readouterr()
        assert "Traceback" not in out + error, shown
        assert code in (0, 2) or (words[0] == "check" and code == 1), (shown, code, error)
        assert code != 2 or one_sentence(error), (shown, error)
        assert not GUARD.seen, (shown, GUARD.seen)
        assert not (place / "trace").exists(), shown
        assert time.process_time() - began < 20, shown
    assert (place / "full" / "mine.txt").read_text() == "mine"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000
    return number


def test_every_verb_is_tried():
    assert {verb.split()[0] for verb in COMMANDS} == set(VERBS)
    flags = {name for verb in COMMANDS for action, _ in arguments(verb) for name in action.option_strings}
    assert {"--env-kwargs", "--max-kl", "--no-normalize-rewards", "--target-kl", "--compact", "--import"} <= flags


@pytest.mark.parametrize("verb", COMMANDS)
def test_no_value_of_a_flag_is_a_traceback(place, capfd, verb):
    assert tried(commands(verb, 1), place, capfd)


@pytest.mark.slow
@pytest.mark.parametrize("verb", COMMANDS)
def test_no_value_of_a_flag_is_a_traceback_however_many_are_tried(place, capfd, verb):
    assert tried(commands(verb, 20), place, capfd)


# --- each kind of value ---


@pytest.mark.parametrize(
    "value, number",
    [("1e6", 10**6), ("+5", 5), ("1_000", 1000), ("٣", 3), ("-0", 0), (2.0, 2), (str(2**63 - 1), 2**63 - 1)],
)
def test_whole_numbers(value, number):
    assert whole(value) == number


NOT_WHOLE = [
    "", "inf", "-inf", "nan", "²", "½", "1.5", "x", "0x10", "9" * 400, "9" * 5_000, "1e19", 2**63, 10**400, 1e300,
    1.5, float("inf"), float("nan"), True, None, [], {}, b"5",
]  # fmt: skip


@pytest.mark.parametrize("value", NOT_WHOLE, ids=lambda value: f"{type(value).__name__} {value!s:.9}")
def test_what_is_no_whole_number(value):
    with pytest.raises(BadInput, match=r"--n must be a whole number of at (least 0|most 9223372036854775807)"):
        whole_number("--n", value, 0)
    with pytest.raises(BadInput, match="--steps must be"):
        Run("probe/action", steps=value if value is not None else "")
    with pytest.raises(BadInput, match="--hidden-sizes must be"):
        Run("probe/action", hidden_sizes=[value])


LONG = "a" * 300
DEEP = "[" * 100_000
NESTED = '{"a":' * 500 + "1" + "}" * 500
REFUSED = {
    "infinitely many steps": ("train probe/action --steps inf", "--steps must be a whole number, not 'inf'"),
    "a square": ("train probe/action --steps ²", "--steps must be a whole number, not '²'"),
    "400 digits": (f"train probe/action --steps {'9' * 400}", "--steps must be a whole number, not '999"),
    "5,000 digits": (f"train probe/action --seed {'9' * 5_000}", "--seed must be a whole number, not '999"),
    "a rate that is no number": ("train probe/action --learning-rate nan", "--learning-rate must be a finite number"),
    "a head without a finite number": (
        "train probe/action --head gaussian --initial-log-std nan", "--initial-log-std must be a finite number",
    ),
    "a batch with few divisors": (
        "train probe/action --batch-size 16777213 --minibatch-size 16777213", "of --envs 64; --envs 1 would do",
    ),
    "a batch that is too large": ("train probe/action --batch-size 1e17", "--batch-size must be at most 16777216, not"),
    "a NaN in JSON": ('train probe/action --env-kwargs {"a":NaN}', "--env-kwargs must be a JSON object"),
    "an infinity in JSON": ('train probe/action --env-kwargs {"a":[-Infinity]}', "--env-kwargs must be a JSON object"),
    "a number too large for JSON": ('train probe/action --env-kwargs {"a":1e999}', "--env-kwargs must be a JSON obj"),
    "100,000 brackets": (f"train probe/action --env-kwargs {DEEP}", "--env-kwargs must be a JSON object"),
    "500 brackets": (f"train probe/action --env-kwargs {NESTED}", "--env-kwargs must be a JSON object"),
    "brackets to check": (f"check gymnasium/Pendulum-v1 --env-kwargs {DEEP}", "--env-kwargs must be a JSON object"),
    "a task of a colon": ("train :", "'' is not the name of a module"),
    "a task of dots": ("train ..:x", "'..' is not the name of a module"),
    "a module without a name": ("train probe/action --import=", "'' is not the name of a module"),
    "a module with a path": ("heads --import ./canary.py", "'./canary.py' is not the name of a module"),
    "a module that raises": ("heads --import raises", "Cannot import the module 'raises': ZeroDivisionError: division"),
    "a module that exits": ("heads --import exits", "Cannot import the module 'exits': SystemExit: 0"),
    "a module with a mistake": ("heads --import mistaken", "Cannot import the module 'mistaken': SyntaxError"),
    "dashes for a value": ("heads --import=--", "Argument --import: expected a value, not '--'"),
    "no directory": ("train probe/action --out=", "the name of a file or directory cannot be ''"),
    "no directory for a sweep": ("sweep --task probe/action --out=", "the name of a file or directory cannot be ''"),
    "no run": ("eval --", "arguments are required: RUN"),
    "a NUL": ("resume run\0", r"the name of a file or directory cannot be 'run\x00'"),
    "a NUL to write": ("report run --compact a\0b", r"the name of a file or directory cannot be 'a\x00b'"),
    "half a character": ("report run --figures \ud800", r"the name of a file or directory cannot be '\ud800'"),
    "300 characters": (f"verify {LONG}", "File name too long"),
    "300 characters to write": (f"export run --to c --out {LONG}", "File name too long"),
    "300 characters to train in": (f"train probe/action --out {LONG} --steps 8", "File name too long"),
    "the root for a page": ("report run --out /", "Cannot write /: it is not a regular file"),
    "300 characters for a page": (f"report run --out {LONG}", "File name too long"),
    "300 characters for a sweep": (f"sweep --task probe/action --out {LONG}", "File name too long"),
    "a squared seed": ("eval run --seed ²", "--seed must be a whole number of at least 0, not '²'"),
    "5,000 digits of episodes": (f"card run --episodes {'9' * 5_000}", "--episodes must be a whole number of at"),
    "a squared link": ("verify run --link ²", "--link must be a whole number of at least 1, not '²'"),
    "a port that is too high": ("report run --port 65536", "--port must be a whole number of at most 65535"),
    "a directory for a sweep": ("sweep full", "full: cannot be read: Is a directory"),
    "a binary sweep": ("sweep binary", "binary: this is not valid TOML"),
    "a huge sweep": ("sweep huge", "huge: a sweep file must be smaller than 1 MB"),
    "an endless sweep": ("sweep /dev/zero", "/dev/zero: a sweep file must be smaller than 1 MB"),
    "a deep sweep": ("sweep deep", "deep: this is not valid TOML"),
    "a sweep with 5,000 digits": ("sweep digits", "digits: this is not valid TOML"),
    "a sweep with 5,000 hexadecimal digits": ("sweep hex", "hex: seed must be a whole number, not a int that is too"),
    "a sweep of a number that is too large": ("sweep hextask", "hextask: task must be a name or a list of names"),
    "seeds without an end": (f"sweep --task probe/action --out x --seeds {'9' * 400}", "--seeds must be a whole numb"),
    "a squared number of seeds": ("sweep --task probe/action --out x --seeds ²", "--seeds must be a whole number"),
    "a preset that is a directory": ("train probe/action --preset full", "There is no preset named 'full'"),
    "a reference that is a directory": ("report run --reference full", "Cannot read full: Is a directory"),
    "a binary reference": ("report run --reference binary", "binary should have tables [[result]]"),
    "a deep reference": ("report run --reference deep", "deep should have tables [[result]]"),
    "an endless reference": ("report run --reference /dev/zero", "/dev/zero should have tables [[result]]"),
    "squared bins": ("paper run figure5a --bins ²", "--bins must be a whole number of at least 2, not '²'"),
    "a place in a file": ("train probe/action --steps 8 --out binary/run", "Not a directory"),
    "colours": ("eval \x1b[31mred", r"\x1b[31mred does not exist"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_one_sentence(place, capfd, what):
    (place / "binary").write_bytes(bytes(range(256)))
    (place / "huge").write_bytes(b"#" * (2**20 + 1))
    (place / "deep").write_text("a = " + DEEP)
    (place / "digits").write_text(f'task = "probe/action"\nseed = {"9" * 5_000}\n')
    (place / "hex").write_text(f'task = "probe/action"\nseed = 0x{"f" * 5_000}\n')
    (place / "hextask").write_text(f"task = 0x{'f' * 5_000}\n")
    (place / "raises.py").write_text("1 / 0")
    (place / "exits.py").write_text("import sys\nsys.exit(0)")
    (place / "mistaken.py").write_text("this is no Python")
    words, sentence = REFUSED[what]
    assert main(words.split(" ")) == 2
    out, error = capfd.readouterr()
    assert sentence in error and one_sentence(error)
    assert not out and not (place / "trace").exists()


def test_seeds_and_episodes_of_any_size(place, capfd):
    assert main(["eval", "run", "--seed", str(2**63 - 1), "--episodes", "1e0"]) == 0
    assert main(["verify", "run", "--sample", str(2**63 - 1), "--seed", str(2**63 - 1)]) == 0


def test_arguments_of_an_environment_that_are_no_json():
    for value in (float("nan"), [float("inf")], {"a": float("-inf")}, object(), {1, 2}):
        with pytest.raises(BadInput, match="--env-kwargs must be a JSON object"):
            Run("probe/action", env_kwargs={"a": value})


@pytest.mark.slow
def test_more_jobs_than_anybody_has(place):
    tiny = [f"--{name.replace('_', '-')}={value}" for name, value in (TINY | {"hidden_sizes": 2}).items()]
    words = ["sweep", "--task=probe/action", "--steps=8", *tiny, "--out=sweep", f"--jobs={2**63 - 1}", "--quiet"]
    assert main(words) == 0


# --- places ---


@contextlib.contextmanager
def somebody_else():
    """Without root's right to read everything."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


UNREADABLE = [
    "eval locked/run", "verify locked/run", "resume locked/run", "card locked/run", "play locked/run",
    "export locked/run --to c", "report locked", "report locked/run", "train probe/action --out locked/new",
    "train probe/action --out new --init-from locked/run", "sweep locked/sweep.toml",
    "sweep --task probe/action --out locked", "report run --out locked/page.html", "report run --compact locked/x",
    "report run --reference locked/x.toml", "paper show figure1 locked", "export run --to c --out locked/policy.c",
]  # fmt: skip


@pytest.mark.parametrize("command", UNREADABLE)
def test_an_unreadable_directory(trained, tmp_path_factory, monkeypatch, capfd, command):
    base = tmp_path_factory.getbasetemp()
    place = Path(os.path.realpath(f"/tmp/{base.parent.name}-{base.name}-unreadable"))
    shutil.copytree(trained, place / "locked" / "run", dirs_exist_ok=True)
    shutil.copytree(trained, place / "run", dirs_exist_ok=True)
    try:
        for path in (place, *place.glob("run/**")):
            path.chmod(0o777)
        for path in place.glob("run/**/*.*"):
            path.chmod(0o666)
        (place / "locked").chmod(0)
        monkeypatch.chdir(place)
        with somebody_else():
            assert main(command.split()) == 2
        error = capfd.readouterr().err
        assert one_sentence(error) and "Permission denied" in error and "locked" in error
    finally:
        (place / "locked").chmod(0o700)
        shutil.rmtree(place)


@pytest.mark.parametrize("flag", ["--out", "--compact"])
def test_a_device_stays_a_device(place, capfd, flag):
    """`--out /dev/null` must not make a file of it."""
    if os.geteuid():
        os.mkfifo("device")
    else:
        os.mknod("device", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    kind = os.lstat("device").st_mode
    assert main(["report", "run", flag, "device"]) == 2
    assert "device" in (error := capfd.readouterr().err) and one_sentence(error)
    assert os.lstat("device").st_mode == kind


# --- terminals ---

PROGRAM = [sys.executable, "-m", "detent.cli"]
TRAIN = ["train", "probe/action", "--steps=8", "--batch-size=8", "--minibatch-size=8", "--epochs=1", "--envs=1",
         "--hidden-sizes=2", "--bins=2", "--out=new"]  # fmt: skip


def shell(command, **environment):
    """A command in a shell, by which its streams are closed."""
    ended = subprocess.run(
        ["sh", "-c", f'exec "$@" {command}', "sh", *PROGRAM, *TRAIN],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert "Traceback" not in ended.stdout + ended.stderr
    return ended


@pytest.mark.parametrize("closed", slow_unless(lambda c: c == "<&- >&- 2>&-", ["2>&-", ">&-", "<&-", "<&- >&- 2>&-"]))
def test_closed_streams(trained, place, closed):
    """No file of the run takes the number of a closed stream, and with it what is printed there."""
    ended = shell(closed)
    assert ended.returncode == 0
    assert ("finished after 8 steps" in ended.stdout) == (">&-" not in closed.replace("2>&-", ""))
    assert RunDirectory("new").status() == "finished"
    assert len(RunDirectory("new").records()) == len(RunDirectory(trained).records())
    assert Path("new", "policy.safetensors").read_bytes() == (trained / "policy.safetensors").read_bytes()


@pytest.mark.parametrize(
    "environment",
    slow_unless(
        lambda environment: "PYTHONUTF8" in environment,
        [
            {"PYTHONIOENCODING": "ascii"},
            {"PYTHONIOENCODING": "ascii:strict", "LANG": "C", "LC_ALL": "C"},
            {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
            {"PYTHONIOENCODING": "cp500"},
        ],
    ),
    ids=str,
)
def test_output_that_is_not_utf_8(place, environment):
    """`eval` prints ±; a directory may be named anything."""
    os.rename("run", "läuft\udcff")
    for words in (["report", "läuft\udcff", "--out", "é\udcff.html"], ["eval", "läuft\udcff", "--episodes", "1"]):
        ended = subprocess.run([*PROGRAM, *words], env={**os.environ, **environment}, capture_output=True)
        assert (ended.returncode, ended.stderr) == (0, b"") and ended.stdout


def on_terminal(words, **environment):
    """The exit code of a command in a terminal, and what it shows."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [*PROGRAM, *words], env={**os.environ, "TERM": "xterm", **environment}, stdin=terminal, stdout=terminal,
        stderr=terminal,
    )  # fmt: skip
    os.close(terminal)
    shown = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while read := os.read(controller, 65536):
            shown += read
    os.close(controller)
    return process.wait(), shown.decode(errors="replace")


@pytest.mark.parametrize(
    "columns", slow_unless(lambda c: c == "²", ["20", "1", "0", "-5", "abc", "²", "", "9" * 10, "9" * 5_000])
)
@pytest.mark.parametrize("encoding", slow_unless(lambda e: e == "ascii", ["ascii", "utf-8"]))
def test_a_terminal_of_any_width(place, columns, encoding):
    code, shown = on_terminal(TRAIN, COLUMNS=columns, LINES=columns, PYTHONIOENCODING=encoding)
    assert code == 0 and "Traceback" not in shown and "finished after 8 steps" in shown


@pytest.mark.slow
def test_a_home_that_cannot_be_written(place):
    """Nothing that Detent needs is there; Matplotlib finds another place for its cache."""
    homeless = {**os.environ, "HOME": "/proc/nowhere"}
    homeless.pop("MPLCONFIGDIR")
    for words in (TRAIN, ["report", "run", "--figures", "figures"]):
        ended = subprocess.run([*PROGRAM, *words], env=homeless, capture_output=True, text=True)
        assert ended.returncode == 0 and "Traceback" not in ended.stderr


def test_a_defect_where_nothing_can_be_written(place, capfd, monkeypatch):
    """The sentence does not depend on a place for the traceback."""
    with monkeypatch.context() as patch:
        patch.setattr("tempfile.tempdir", "/proc/nowhere")
        patch.setattr("detent.verbs.heads.main", lambda argv: 1 / 0)
        assert main(["heads"]) == 70
    assert "a defect of Detent's" in (error := capfd.readouterr().err) and one_sentence(error)
