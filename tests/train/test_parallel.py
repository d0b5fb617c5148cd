"""Several processes that train one run, held against one process that trains it alone.

This file is also what the processes run: ``python test_parallel.py FOLDER`` does a process's part of every case.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import Tensor

from networks_for_tests import TINY, tiny_config, tiny_corpus
from processes_for_tests import PATIENCE, started, wait_until
from varsmooth import Counts, DrawKey, InputError, LanguageModel
from varsmooth.config import Config
from varsmooth.experiment import Reporting, Session, continued_run, start_run
from varsmooth.experiment.together import validated
from varsmooth.text.batches import Windows
from varsmooth.train.build import build_network, build_proposal, resolve_device
from varsmooth.train.captured import Captured, way_to_step
from varsmooth.train.display import Screen
from varsmooth.train.folder import RunFolder, state_step
from varsmooth.train.parallel import Ranks, is_first, joined, processes
from varsmooth.train.shares import checksum
from varsmooth.train.trainer import Trainer
from varsmooth.version import VERSION

CPU = torch.device("cpu")
QUIET = Reporting(Console(quiet=True))
STEPS, HALF = 12, 7
NEAR = {"rtol": 0.0, "atol": 2e-6}
"""How near the weights of both stay after ``STEPS`` steps at a learning rate of 0.003: sums are taken in another order."""
CASES = {
    "vanilla": ("vanilla",),
    "word-target": ("smoothing-kneser-ney",),
    "word-position": ("smoothing-linear-interpolation", "smoothing.scope=position", "smoothing.variance=0.01"),
    "element-batch": ("element-kneser-ney", "smoothing.scope=batch"),
    "element-sequence": ("element-kneser-ney", "smoothing.scope=sequence"),
    "noising": ("noising-kneser-ney",),
    "rows-sequence": ("vanilla", "dropout.recurrent_scope=sequence", "dropout.recurrent=0.3"),
    "update": ("smoothing-kneser-ney", "dropout.recurrent_kind=update", "dropout.recurrent=0.3", "train.average=0.9"),
    "gru-untied": ("element-kneser-ney", "model.cell=gru", "model.tied=false", "dropout.recurrent_variance=0.01"),
}


def config_of(case: str) -> Config:
    return tiny_config(*CASES[case], f"train.steps={STEPS}", "train.l2=0.01", "train.save_every=5")


def trainer_of(case: str, ranks: Ranks | None = None) -> Trainer:
    config, corpus = config_of(case), tiny_corpus(200)
    proposal = build_proposal(config, Counts.from_ids(corpus.train, len(corpus.vocab)))
    return Trainer(build_network(config, len(corpus.vocab), proposal), corpus.train, config.train, CPU, ranks)


def trained(case: str, steps: int = STEPS, ranks: Ranks | None = None) -> tuple[Trainer, list[list[float]]]:
    trainer = trainer_of(case, ranks)
    return trainer, [[float(term) for term in trainer.step()] for _ in range(steps)]


def kept(trainer: Trainer) -> dict[str, Tensor]:
    return {name: tensor.clone().contiguous() for name, tensor in trainer.tensors().items()}


# What each of the processes does.


def take_part(folder: Path) -> None:
    """Do this process's part of all that ``together`` checks; the first leaves what it finds in ``folder``."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    with joined(CPU) as ranks:
        for case in CASES:
            trainer, terms = trained(case, HALF, ranks)
            half = kept(trainer)
            meta = trainer.meta()
            terms += [[float(term) for term in trainer.step()] for _ in range(STEPS - HALF)]
            found[case] = {"terms": terms, "meta": meta, "means": trainer.take_means()}
            whole = kept(trainer)
            if ranks.first:
                save_file(half, folder / f"{case}.half")
                save_file(whole, folder / f"{case}.whole")
        continued = trainer_of("word-target", ranks)
        continued.restore(load_file(folder / "alone.half"), json.loads((folder / "alone.json").read_text()))
        found["continued_from"] = continued.progress.step
        for _ in range(STEPS - HALF):
            continued.step()
        whole = kept(continued)
        if ranks.first:
            save_file(whole, folder / "continued.whole")
        found["difference"] = difference_found(continued)
        found["stopped"] = ranks.exchange(steps_until_stopped(trainer_of("vanilla", ranks)))
        found["uneven"] = complaint(lambda: ranks.columns(5))
    found["left"] = not ranks.joined
    record = start_run(run_config(), folder / ("run" if ranks.first else "of-the-other"), QUIET)
    found["status"] = record["status"]
    (folder / f"found-{ranks.rank}.json").write_text(json.dumps(found))


def complaint(act: Any) -> str | None:
    try:
        act()
    except InputError as error:
        return str(error)
    return None


def difference_found(trainer: Trainer) -> list[Any]:
    """Evaluate as a run does, once as all is well and once with a weight that has gone astray in the last process."""

    def perplexity() -> Any:
        yield
        return 40.0 + trainer.ranks.rank

    def asked() -> Any:
        steps = validated(trainer, perplexity if trainer.ranks.first else None)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value

    well = asked()
    if trainer.ranks.rank == 1:
        trainer.network.bias.data[3] += 1e-6
    return [well, complaint(asked)]


def steps_until_stopped(trainer: Trainer) -> list[Any]:
    """Send a signal to the last process alone, before its fourth step."""
    with trainer.ranks.interruptions:
        while trainer.ranks.signal is None and trainer.progress.step < STEPS:
            if trainer.ranks.rank == 1 and trainer.progress.step == 3:
                signal.raise_signal(signal.SIGTERM)
            trainer.step()
        return [trainer.progress.step, trainer.ranks.signal]


def run_config() -> Config:
    return tiny_config(
        "smoothing-kneser-ney",
        "data.max_tokens=400",
        "train.steps=150",
        "train.eval_every=5",
        "train.save_every=10",
        "train.schedule=plateau",
        "train.plateau_patience=1",
        "train.patience=4",
        "train.lr=0.05",
    )


# What they are held to.


def start(folder: Path, rank: int, port: int) -> AbstractContextManager[subprocess.Popen[str]]:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    environment = {name: str(value) for name, value in place.items()}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    return started([__file__, str(folder)], env=environment, stderr=subprocess.STDOUT)


def free_port() -> int:
    """A port below those that the system gives out itself: such a one might be given out before both processes have met."""
    for port in range(20_000 + os.getpid() % 5_000, 32_000):
        with socket.socket() as found, suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two processes have left what they found; their start is what takes time, so there is one."""
    folder = tmp_path_factory.mktemp("together")
    alone, _ = trained("word-target", HALF)
    save_file(kept(alone), folder / "alone.half")
    (folder / "alone.json").write_text(json.dumps(alone.meta()))
    port = free_port()
    with ExitStack() as stack:
        both = [stack.enter_context(start(folder, rank, port)) for rank in (0, 1)]
        said = [process.communicate(timeout=300)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], "\n".join(said)
    return folder


def found(together: Path, rank: int = 0) -> dict[str, Any]:
    return dict(json.loads((together / f"found-{rank}.json").read_text()))


def assert_near(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        torch.testing.assert_close(tensor, right[name], **NEAR, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("case", CASES)
def test_two_processes_take_the_steps_of_one(together, case):
    alone, terms = trained(case)
    assert_near(load_file(together / f"{case}.whole"), kept(alone))
    torch.testing.assert_close(torch.tensor(found(together)[case]["terms"]), torch.tensor(terms), rtol=2e-6, atol=0)
    assert found(together)[case]["means"] == pytest.approx(alone.take_means(), rel=2e-6)


@pytest.mark.parametrize("case", CASES)
def test_all_processes_hear_of_the_same_terms(together, case):
    assert found(together, 0)[case] == found(together, 1)[case]


def test_the_cases_draw_differently_in_every_column():
    """Else nothing would be shown: with the draws of column 0 a second process would train otherwise."""
    for case in CASES:
        trainer = trainer_of(case, Ranks(1, 2))
        inputs, targets = trainer.windows.at(0)
        nlls = []
        for first in (0, 2):
            loss, _ = trainer.network.loss(inputs, targets, trainer.carried, DrawKey(1, 0), first)
            nlls.append(loss.total.item())
        assert (nlls[0] != nlls[1]) == (case != "element-batch"), case


def test_a_state_of_two_processes_serves_one(together):
    for case in ("word-target", "update", "gru-untied"):
        alone = trainer_of(case)
        alone.restore(load_file(together / f"{case}.half"), found(together)[case]["meta"])
        assert alone.progress.step == HALF
        for _ in range(STEPS - HALF):
            alone.step()
        assert_near(kept(alone), kept(trained(case)[0]))


def test_a_state_of_one_process_serves_two(together):
    assert found(together)["continued_from"] == HALF
    assert_near(load_file(together / "continued.whole"), kept(trained("word-target")[0]))


def test_the_first_process_evaluates_for_all_and_a_weight_astray_is_named(together):
    complaints = []
    for rank in (0, 1):
        perplexity, complaint = found(together, rank)["difference"]
        assert perplexity == 40.0, "the first one's"
        complaints.append(complaint)
    assert complaints[0] == complaints[1]
    assert complaints[0].startswith(f"process 1 of 2 has another weights than process 0 at step {STEPS}")


def test_a_signal_to_one_process_stops_all_at_the_same_step(together):
    assert found(together)["stopped"] == [[4, signal.SIGTERM], [4, signal.SIGTERM]]


def test_a_batch_that_cannot_be_shared_is_refused(together):
    assert "train.batch = 5 cannot be shared equally by 2 processes" in found(together, 1)["uneven"]
    assert found(together)["left"], "and a second run could be started in the same processes"


def test_a_process_that_follows_leaves_the_folder_that_it_goes_on_with_as_it_is(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    start_run(tiny_config("vanilla", "train.steps=4", "data.max_tokens=400"), folder.path, QUIET)
    folder.write_record({**folder.read_record(), "status": "running"})
    folder.append_metrics({"step": 5})  # after the last state: the first process takes it back
    before = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    with RunFolder.open(folder.path, lock=True):  # as the first process does
        steps = continued_run(folder.path, Session(Screen(QUIET.console), ranks=Ranks(1, 2)))
        next(steps)
        steps.close()
    assert {path.name: path.read_bytes() for path in folder.path.iterdir()} == before


def test_a_run_of_two_processes_is_that_of_one(together, tmp_path):
    alone = start_run(run_config(), tmp_path / "run", QUIET)
    folders = [RunFolder(together / "run"), RunFolder(tmp_path / "run")]
    record = folders[0].read_record()
    assert (found(together, 0)["status"], found(together, 1)["status"]) == ("finished", "followed")
    assert (record["hardware"]["processes"], alone["hardware"]["processes"]) == (2, 1)
    assert record["stopped_because"] == alone["stopped_because"] == "patience", "all heard of the same evaluations"
    for key in ("steps", "config", "data", "parameters"):
        assert record[key] == alone[key]
    names = [{path.name for path in folder.path.iterdir()} for folder in folders]
    assert names[0] == names[1]
    assert not (together / "of-the-other").exists(), "only the first writes"
    metrics = [folder.read_metrics() for folder in folders]
    assert len({line["lr"] for line in metrics[0]}) > 1, "the plateau was reached"
    for left, right in zip(*metrics, strict=True):
        assert left == pytest.approx(right, rel=1e-3)
    assert [r["perplexity"] for r in record["results"]] == pytest.approx([r["perplexity"] for r in alone["results"]], rel=1e-3)
    LanguageModel.load(together / "run")


# Without other processes.


def test_each_process_reads_its_block_of_columns():
    ids = torch.arange(100)
    whole = Windows(ids, 6, 5).at(2, 3)
    parts = [Windows(ids, 6, 5, Ranks(rank, 3).columns(6)).at(2, 3) for rank in range(3)]
    for i in (0, 1):
        assert torch.equal(torch.cat([part[i] for part in parts], 1), whole[i])


def test_alone_there_is_nobody_to_wait_for(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert (processes(), is_first()) == (1, True)
    with joined(CPU) as ranks:
        assert (ranks.first, ranks.joined, ranks.exchange([1]), ranks.columns(7)) == (True, False, [[1]], range(7))
    assert trainer_of("vanilla").shares is None


def test_a_process_count_without_torchrun_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(
        InputError, match="RANK in the environment is None, not a number: start several processes with torchrun"
    ):
        is_first()
    monkeypatch.setenv("WORLD_SIZE", "many")
    with pytest.raises(InputError, match="WORLD_SIZE in the environment is 'many'"):
        processes()


def test_each_process_has_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name, value in {"WORLD_SIZE": "3", "RANK": "1", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert resolve_device("auto") == torch.device("cuda", 1)
    assert resolve_device("cpu") == CPU
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(InputError, match="process 2 of this machine has no GPU of its own, there are 2"):
        resolve_device("cuda")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert resolve_device("auto") == torch.device("cuda")


def test_several_gpus_launch_their_kernels_one_by_one_unless_a_graph_is_asked_for():
    def step() -> None: ...

    gpu = torch.device("cuda", 0)
    settings = {engine: tiny_config("vanilla", f"train.engine={engine}").train for engine in ("auto", "graph", "eager")}
    assert way_to_step(step, settings["auto"], gpu, 2) is step
    assert isinstance(way_to_step(step, settings["auto"], gpu, 1), Captured)
    assert isinstance(way_to_step(step, settings["graph"], gpu, 2), Captured)
    assert not isinstance(way_to_step(step, settings["eager"], gpu, 2), Captured)


def test_checksums_tell_weights_apart():
    weights = torch.linspace(-1, 1, 50)
    other = weights.clone()
    other[7] = torch.nextafter(other[7], torch.tensor(9.0))
    assert checksum([weights, other]) == checksum([weights.clone(), other])
    assert checksum([weights]) != checksum([other])


def test_a_fleet_under_torchrun_is_refused(monkeypatch, tmp_path, capsys):
    from varsmooth.__main__ import run  # here, as the processes above can do without the command line

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    (tmp_path / "fleet").mkdir()
    (tmp_path / "fleet" / "fleet.json").touch()
    for arguments in (["--fleet", "vanilla"], ["--fleet=vanilla"], ["--resume", str(tmp_path / "fleet")]):
        with pytest.raises(SystemExit) as left:
            run(["train", *arguments, "--out", str(tmp_path / "new")])
        complaint = capsys.readouterr().err
        assert left.value.code == 2
        assert complaint.startswith("varsmooth: --fleet trains its runs in one process: start it without torchrun")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("rank", ["1", None])
def test_other_verbs_do_not_mind_what_a_cluster_sets_for_torchrun(monkeypatch, capsys, rank):
    from varsmooth.__main__ import run

    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    with pytest.raises(SystemExit) as left:
        run(["--version"])
    assert (left.value.code, capsys.readouterr().out.strip()) == (0, VERSION)


# With torchrun itself.

SETTINGS = (
    *TINY,
    "data.max_tokens=500",
    "train.steps=400",
    "train.eval_every=50",
    "train.save_every=20",
    "train.schedule=constant",
    "train.lr=0.002",
)


def under_torchrun(*arguments: str, several: bool = True) -> AbstractContextManager[subprocess.Popen[str]]:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if several else []
    return started([*torchrun, "-m", "varsmooth", "train", *arguments])


def new(out: Path, *settings: str) -> list[str]:
    changes = [part for setting in (*SETTINGS, *settings) for part in ("--set", setting)]
    return ["--recipe", "smoothing-kneser-ney", "--out", str(out), *changes]


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    said, complained = process.communicate(timeout=PATIENCE)
    return process.returncode, said, complained


def ran(*arguments: str, several: bool = True) -> tuple[int, str, str]:
    """Run a command to its end, or into the end of patience."""
    with under_torchrun(*arguments, several=several) as process:
        return ended(process)


def saved_step(run: Path) -> int:
    return max((state_step(path) for path in RunFolder(run).state_paths()), default=0) if run.exists() else 0


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of one process."""
    folder = RunFolder(tmp_path_factory.mktemp("alone") / "run")
    start_run(tiny_config("smoothing-kneser-ney", *SETTINGS), folder.path, QUIET)
    return folder


def assert_same_run(run: Path, uninterrupted: RunFolder, processes: int) -> None:
    record = RunFolder(run).read_record()
    assert (record["status"], record["hardware"]["processes"]) == ("finished", processes)
    pairs = zip(RunFolder(run).read_metrics(), uninterrupted.read_metrics(), strict=True)
    for left, right in pairs:
        assert left == pytest.approx(right, rel=1e-3)


@pytest.mark.slow
def test_only_the_first_process_speaks(tmp_path, uninterrupted):
    status, said, complained = ran(*new(tmp_path / "run"), "--json")
    assert status == 0, complained
    assert json.loads(said)["hardware"]["processes"] == 2
    assert complained.count("step 400/400") == 1
    assert_same_run(tmp_path / "run", uninterrupted, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("several", "number"),
    [(True, signal.SIGTERM), (True, signal.SIGINT), (False, signal.SIGTERM)],
    ids=["2 to 1", "2 to 1, ctrl-c", "1 to 2"],
)
def test_a_stopped_run_goes_on_with_another_number_of_processes(tmp_path, uninterrupted, several, number):
    out = tmp_path / "run"
    with under_torchrun(*new(out), several=several) as process:
        wait_until(lambda: saved_step(out) >= 60, process)
        process.send_signal(number)
        status, _, complained = ended(process)
    record = RunFolder(out).read_record()
    assert (status != 0, record["status"], record["signal"]) == (True, "stopped", number), complained
    assert saved_step(out) == record["steps"] < 400
    assert complained.count("varsmooth: stopped at step") == 1
    assert record["hardware"]["processes"] == (2 if several else 1)
    status, _, complained = ran("--resume", str(out), several=not several)
    assert status == 0, complained
    assert_same_run(out, uninterrupted, 1 if several else 2)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_where_one_process_is_killed_the_others_end_and_the_run_goes_on(tmp_path, uninterrupted, rank):
    out = tmp_path / "run"
    with under_torchrun(*new(out)) as process:
        wait_until(lambda: saved_step(out) >= 60, process)
        os.kill(process_of(process.pid, rank), signal.SIGKILL)
        status, _, complained = ended(process)
    assert status != 0
    assert saved_step(out) >= 60
    if rank == 1:
        record = RunFolder(out).read_record()
        assert (record["status"], record["stopped_because"]) == ("failed", "process lost"), complained
        assert "varsmooth: process 0 of 2 has lost the others" in complained
    status, _, complained = ran("--resume", str(out))
    assert status == 0, complained
    assert_same_run(out, uninterrupted, 2)


def process_of(torchrun: int, rank: int) -> int:
    children = Path(f"/proc/{torchrun}/task/{torchrun}/children").read_text().split()
    for child in children:
        if f"RANK={rank}".encode() in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return int(child)
    raise AssertionError(f"no process {rank} among {children}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--recipe", "vanila"], "did you mean 'vanilla'?"),
        (["--fleet", "vanilla"], "varsmooth: --fleet trains its runs in one process"),
        (["--recipe", "vanilla", *(f"--set={s}" for s in (*TINY, "train.batch=5"))], "train.batch = 5 cannot be shared"),
        (["--recipe", "vanilla", *(f"--set={s}" for s in (*TINY, "train.lr=1e30"))], "not finite at step 2"),
    ],
    ids=["recipe", "fleet", "batch", "not finite"],
)
def test_what_is_wrong_is_said_once(tmp_path, arguments, complaint):
    status, said, complained = ran(*arguments, "--out", str(tmp_path / "new"))
    assert (status != 0, said) == (True, "")
    assert complained.count(complaint) == 1, complained


@pytest.mark.slow
def test_a_folder_in_use_is_left_alone(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    status, _, complained = ran(*new(tmp_path / "run"))
    assert status != 0
    assert complained.count("is not empty; choose another --out") == 1
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"]


if __name__ == "__main__":
    take_part(Path(sys.argv[1]))
