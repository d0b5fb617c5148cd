"""Many workers on one PostgreSQL server, of which some are killed; needs Debian's package ``postgresql``."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

from processes_for_tests import PATIENCE, started, wait_until
from sweeps_for_tests import tiny_study, write_text
from varsmooth.errors import InputError
from varsmooth.sweep import Board, Store
from varsmooth.sweep.storage import StorageDownError
from varsmooth.sweep.ticket import SLOT

pytestmark = pytest.mark.slow
TRIALS, GRACE = 12, 6
STUDY = f"""
name = "many"
data = "text"
sampler = {{kind = "tpe", startup_trials = 4}}
seeds = [2, 3]
budget = {{trials = {TRIALS}, steps = 300}}
[base]
model.hidden = 8
train.batch = 4
train.window = 5
train.device = "cpu"
train.eval_every = 50
train.save_every = 20
[space]
train.lr = {{low = 0.001, high = 0.1, log = true}}
[[arms]]
recipe = "vanilla"
"""


class Server:
    """A PostgreSQL server of its own, in a folder that goes with it; initdb refuses root, so another user runs it."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        self.binaries, self.folder = binaries, folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"postgresql://tester@127.0.0.1:{self.port}/postgres"
        folder.chmod(0o777)
        self._run("initdb", "-D", str(folder / "data"), "-U", "tester", "-A", "trust", "--no-sync")

    def start(self) -> None:
        options = f"-p {self.port} -k {self.folder} -h 127.0.0.1"
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-l", str(self.folder / "log"), "-w", "-o", options, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-m", "immediate", "-w", "stop")

    def run_sql(self, statement: str) -> None:
        self._run("psql", self.url, "-q", "-c", statement)

    def _run(self, program: str, *arguments: str) -> None:
        as_user = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
        command = [*as_user, str(self.binaries / program), *arguments]
        subprocess.run(command, cwd="/", check=True, stdout=subprocess.DEVNULL, timeout=120)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("no PostgreSQL server is installed: apt-get install postgresql")
    if os.getuid() == 0 and shutil.which("runuser") is None:
        pytest.skip("PostgreSQL does not run as root, and there is no runuser to become another user")
    folder = Path(tempfile.mkdtemp(prefix="varsmooth-postgres-"))
    try:
        own = Server(found[-1].parent, folder)
        try:
            own.start()
            yield own
        finally:
            own.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def worker(study: Path, out: Path, url: str) -> AbstractContextManager[subprocess.Popen[str]]:
    options = ["--out", str(out), "--storage", url, "--grace", str(GRACE)]
    return started(["-m", "varsmooth", "sweep", str(study), *options], stdout=subprocess.DEVNULL)


def running_in(url: str, out: Path) -> list[Any]:
    """The trials that the worker with this folder is at, and has reported on."""
    (stage,) = Board.open(Store(url, GRACE), "many").arms
    here = [trial for trial in stage.trials() if str(trial.user_attrs.get("place", "")).endswith(f":{out}")]
    return [trial for trial in here if trial.state.name == "RUNNING" and trial.intermediate_values]


def test_four_workers_two_killed_every_trial_done_exactly_once(server: Server, tmp_path: Path) -> None:
    study = write_text(tmp_path) / "many.toml"
    study.write_text(STUDY)
    outs = [tmp_path / f"machine-{number}" for number in range(4)]  # of its own: no lock of the others is seen there
    with ExitStack() as stack:
        workers = [stack.enter_context(worker(study, out, server.url)) for out in outs]
        wait_until(lambda: "many/vanilla" in Store(server.url, GRACE).names() and bool(running_in(server.url, outs[0])))
        workers[0].send_signal(signal.SIGKILL)
        wait_until(lambda: bool(running_in(server.url, outs[1])))
        workers[1].send_signal(signal.SIGKILL)
        for killed in workers[:2]:
            assert killed.wait(timeout=PATIENCE) == -signal.SIGKILL
        for survivor in workers[2:]:
            _, complaint = survivor.communicate(timeout=PATIENCE)
            assert survivor.returncode == 0, complaint
    board = Board.open(Store(server.url, GRACE), "many")
    (stage,) = board.arms
    assert board.finished()
    trials = stage.store.attempt(stage.optuna_study.get_trials)
    complete = Counter(trial.user_attrs[SLOT] for trial in trials if trial.state.name == "COMPLETE")
    assert complete == dict.fromkeys(range(TRIALS), 1)
    lost = [trial for trial in stage.trials() if not stage.is_outcome(trial)]
    assert len(lost) == 2, "each killed worker left one trial"
    for trial in lost:
        assert trial.state.name == "FAIL"
        assert stage.outcomes()[trial.user_attrs[SLOT]].params == trial.params, "it was retried as it was"
    (seeds,) = board.seed_stages()
    assert Counter(trial.params["train.seed"] for trial in seeds.trials() if seeds.is_outcome(trial)) == {2: 1, 3: 1}


def test_a_mistake_in_the_url_is_told_at_once_and_nothing_is_made_to_look_for_a_study(server: Server) -> None:
    address, _, _ = server.url.rpartition("/")
    for url in (f"{address}/nowhere", server.url.replace("tester@", "nobody@")):
        with pytest.raises(StorageDownError, match=r"cannot be used as the database of a sweep: .* does not exist"):
            Store(url, GRACE, waits=(1e9,))
    server.run_sql("create database bare")
    for _ in range(2):
        with pytest.raises(InputError, match="bare holds no study"):
            Store(f"{address}/bare", GRACE, make=False)
    Store(f"{address}/bare", GRACE)
    Store(f"{address}/bare", GRACE, make=False)


def test_a_server_that_restarts_is_waited_for_and_one_that_stays_away_is_named(server: Server, tmp_path: Path) -> None:
    store = Store(server.url, GRACE, waits=(0.1, 0.2))
    board = Board(tiny_study(tmp_path), store)
    server.stop()
    try:
        with pytest.raises(StorageDownError, match="the database does not answer"):
            board.arms[0].trials()
    finally:
        server.start()
    assert board.arms[0].trials() == []
