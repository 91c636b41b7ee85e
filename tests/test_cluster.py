"""Sweeps on Ray: nodes that vanish, and storage that is not shared."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from detent.errors import BadInput, DetentError
from detent.runs.directory import RunDirectory
from detent.runs.execution import Execution, execute
from detent.runs.run import Run
from detent.sweeps import cluster
from detent.sweeps.cores import sweep
from detent.sweeps.plan import run_name
from marks import slow_unless
from test_sweeps import FLAGS, LONG, QUICK, finished, records, wait_for

# --- run directories that travel ---


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "whole"
    finished(out, Run("probe/action", steps=640, **QUICK))
    return out


def contents(directory):
    return {
        path.relative_to(directory): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def test_a_directory_arrives_as_it_was_sent(whole, tmp_path):
    stale = tmp_path / "copy" / "checkpoints" / "000000002.safetensors"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"of an earlier stage of the same run")
    cluster.unpack(cluster.packed(whole), tmp_path / "copy")
    assert contents(tmp_path / "copy") == contents(whole)


class Killed(BaseException):
    """As if the process had ended here."""


@pytest.mark.parametrize(
    ("nth", "earlier"),
    slow_unless(
        lambda nth, earlier: (nth, earlier) in ((2, True), (5, False)), itertools.product(range(7), (False, True))
    ),
)
def test_a_directory_that_arrives_in_part_can_be_continued(whole, tmp_path, monkeypatch, nth, earlier):
    """The driver may be killed while it writes what a node has sent, over an earlier stage or over nothing."""
    out, run = tmp_path / "run", RunDirectory(whole).run()
    if earlier:
        begun = execute(run, out, Execution())
        next(begun)
        begun.close()
    files = cluster.packed(whole)
    assert len(files) == 7
    calls, write = itertools.count(), cluster.write_whole

    def dying(path, data):
        if next(calls) == nth:
            raise Killed
        write(path, data)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(cluster, "write_whole", dying)
        cluster.unpack(files, out)
    assert finished_in(out, run) == (whole / "policy.safetensors").read_bytes()
    assert len(RunDirectory(out).records()) == len(RunDirectory(whole).records())


def finished_in(out, run):
    for _ in execute(run, out, Execution(resume=True)):
        pass
    return (out / "policy.safetensors").read_bytes()


@pytest.mark.parametrize("name", ["../escaped", "/etc/escaped", "checkpoints/../../escaped"])
def test_a_node_writes_only_into_its_run(tmp_path, name):
    with pytest.raises(DetentError, match="no part of a run directory"):
        cluster.unpack({name: b"x"}, tmp_path / "out" / "run")
    assert not list(tmp_path.rglob("escaped"))


def test_an_address_where_nobody_listens(tmp_path):
    pytest.importorskip("ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(BadInput, match=f"There is no Ray cluster at {address}"):
        list(sweep([Run("probe/action", steps=128, **QUICK)], tmp_path, ray=address))


def test_the_board_keeps_the_latest_of_what_is_under_way():
    board = cluster.Board()
    board.keep("a", {"run.json": b"as the driver had it"})
    assert board.kept("a") == {"run.json": b"as the driver had it"} and board.kept("b") == {}
    board.report({"name": "a", "steps": 1}, {"run.json": b"new"})
    board.report({"name": "a", "steps": 2}, None)
    board.report({"name": "b", "steps": 3}, None)
    assert board.news(["a", "b"]) == [
        ({"name": "a", "steps": 2}, {"run.json": b"new"}),
        ({"name": "b", "steps": 3}, None),
    ]
    assert board.news(["a", "b"]) == []
    board.report({"name": "a", "steps": 4}, None)
    assert board.news(["a"]) == [({"name": "a", "steps": 4}, None)], "what has not changed is not sent again"
    assert board.kept("a") == {"run.json": b"new"}, "for whoever takes the run up"
    board.report({"name": "a", "steps": 5}, {"run.json": b"late"})
    assert board.news([]) == [] and board.kept("a") == {}, "it has ended"
    board.stop("enough")
    assert board.report({"name": "a", "steps": 6}, None) == "enough"


# --- on clusters of this machine ---


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A run, its name and its policy."""
    run = Run("Hopper-v5", **LONG)
    return run, run_name(run), finished(tmp_path_factory.mktemp("undisturbed") / "run", run)


@pytest.fixture
def nodes(monkeypatch, tmp_path):
    """A cluster: a head that computes nothing, and a node with two processors."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)  # where the nodes are at home
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(Path(p).absolute()) for p in sys.path))
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    made.add_node(num_cpus=2)
    made.wait_for_nodes()
    yield made
    ray.shutdown()
    made.shutdown()


def assert_undisturbed(out, name, policy):
    assert RunDirectory(out / name).status() == "finished"
    assert (out / name / "policy.safetensors").read_bytes() == policy
    assert not list(out.glob(".token-*"))


@pytest.mark.slow
def test_a_node_removed_without_grace_mid_run(nodes, tmp_path, undisturbed):
    """The run goes on where its checkpoint is, on a node that joins later."""
    run, name, policy = undisturbed
    out = tmp_path / "out"
    (doomed,) = nodes.worker_nodes
    removed = False
    for event in sweep([run], out, ray=nodes.address, checkpoint_seconds=0.01):
        status = event.status
        if not removed and records(out / name) > 5:
            nodes.remove_node(doomed, allow_graceful=False)
            removed = True
            assert RunDirectory(out / name).status() == "running"
            assert RunDirectory(out / name).links()
            nodes.add_node(num_cpus=1)
    assert removed
    assert status == "finished"
    assert_undisturbed(out, name, policy)
    assert any(link["from"] for link in RunDirectory(out / name).links()), "it went on, and did not start again"


@pytest.fixture
def unshared(tmp_path, monkeypatch):
    """A place that the nodes do not see: /proc/self/cwd is another one in every process. Its name there and here."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    return Path("/proc/self/cwd/out"), home / "out"


@pytest.mark.slow
def test_without_shared_storage_results_come_back(nodes, unshared, tmp_path, undisturbed):
    """A node is lost here too: its run goes on from the last checkpoint that has reached the driver."""
    run, name, policy = undisturbed
    out, here = unshared
    (doomed,) = nodes.worker_nodes
    removed = False
    for event in sweep([run], out, ray=nodes.address, checkpoint_seconds=0.01):
        if not removed and event.steps > 500 and RunDirectory(here / name).links():
            assert not event.ended
            assert RunDirectory(here / name).records(), "a report can follow it"
            nodes.remove_node(doomed, allow_graceful=False)
            removed = True
            nodes.add_node(num_cpus=1)
    assert removed
    assert_undisturbed(here, name, policy)
    assert not list((tmp_path / "elsewhere").iterdir())
    assert any(link["from"] for link in RunDirectory(here / name).links()), "it went on, and did not start again"


@pytest.mark.slow
def test_without_shared_storage_a_stopped_run_comes_back_and_goes_on(nodes, unshared, undisturbed):
    run, name, policy = undisturbed
    out, here = unshared
    steps = [0]
    for event in sweep([run], out, ray=nodes.address, stop=lambda: "enough" if steps[-1] > 500 else None):
        steps.append(event.steps)
    assert event.status == RunDirectory(here / name).status() == "stopped"
    *_, event = sweep([run], out, ray=nodes.address)
    assert event.status == "finished"
    assert_undisturbed(here, name, policy)
    assert any(link["from"] for link in RunDirectory(here / name).links())


@pytest.mark.slow
def test_the_driver_of_a_ray_sweep_killed_and_restarted(nodes, tmp_path, undisturbed):
    """The cluster goes on without it; the same command finishes what is left."""
    _, name, policy = undisturbed
    out = tmp_path / "out"
    flags = ["--task", "Hopper-v5", "--steps", str(LONG["steps"]), *FLAGS, "--checkpoint-minutes", "0.001"]
    command = [sys.executable, "-m", "detent.cli", "sweep", *flags, "--out", str(out), "--ray", nodes.address]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: records(out / name) > 5, first)
    first.kill()
    first.communicate()
    again = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stderr
    assert "1 finished" in again.stdout
    assert "Traceback" not in again.stderr
    assert_undisturbed(out, name, policy)


def children(name, parents):
    """The numbers of these processes' children whose program is called so."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            program = (place / "cmdline").read_bytes().split(b"\0")[0].decode()
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            if program.rpartition("/")[2] == name and parent in parents:
                found.append(int(place.name))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False])
def test_the_board_killed_mid_run(nodes, unshared, tmp_path, undisturbed, shared):
    """Ray starts another, which hears all it needs to know; twice."""
    run, name, policy = undisturbed
    out, here = (tmp_path / "out",) * 2 if shared else unshared
    killed = []
    for event in sweep([run], out, ray=nodes.address, checkpoint_seconds=0.01):
        status = event.status
        boards = [board for board in children("ray::Board", children("raylet", [os.getpid()])) if board not in killed]
        if boards and len(killed) < 2 and event.steps > 500 * (1 + 4 * len(killed)):
            os.kill(boards[0], signal.SIGKILL)
            killed.append(boards[0])
    assert len(killed) == 2
    assert status == "finished"
    assert_undisturbed(here, name, policy)
    assert not any(link["from"] for link in RunDirectory(here / name).links()), "the run itself was not disturbed"


@pytest.mark.slow
@pytest.mark.parametrize("part", ["raylet", "gcs_server"])
def test_the_cluster_killed_mid_run(tmp_path, undisturbed, part):
    """One sentence with the command to continue, which then ends with the same bits."""
    pytest.importorskip("ray")
    _, name, policy = undisturbed
    out = tmp_path / "out"
    # Long enough for Ray to be missed; a run with the same name, which a second command then ends where it should.
    flags = [
        "--task",
        "Hopper-v5",
        "--steps",
        str(LONG["steps"]),
        *FLAGS,
        "--checkpoint-minutes",
        "0.001",
        "--seed",
        "0-7",
    ]
    command = [sys.executable, "-m", "detent.cli", "sweep", *flags, "--out", str(out), "--ray", "--jobs", "1"]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: records(out / name) > 5, first)
    (doomed,) = children(part, [first.pid])
    os.kill(doomed, signal.SIGKILL)
    _, told = first.communicate(timeout=120)
    assert first.returncode == 3, told
    assert "Traceback" not in told
    assert told.count("detent: ") == 1 and "Continue with the same command: detent sweep" in told
    again = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stderr
    assert "8 finished" in again.stdout
    assert_undisturbed(out, name, policy)


@pytest.mark.slow
def test_a_ray_of_ones_own_machine(tmp_path):
    """`--ray` alone makes a cluster that ends with the sweep."""
    pytest.importorskip("ray")
    run = Run("probe/action", steps=640, **QUICK)
    command = [sys.executable, "-m", "detent.cli", "sweep", "--task", "probe/action", "--steps", "640", *FLAGS]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out"), "--ray", "--jobs", "1"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / run_name(run) / "policy.safetensors").read_bytes() == finished(tmp_path / "alone", run)
