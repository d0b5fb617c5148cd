from __future__ import annotations

import io
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sweeps_for_tests import board_of, outcomes, store_in, swept, tiny_study
from varsmooth import Counts
from varsmooth.config import load_config
from varsmooth.errors import InputError
from varsmooth.experiment import Reporting
from varsmooth.recipe import load_recipe
from varsmooth.sweep import FILE, Board, Store, summarize, work, worker, write_winners
from varsmooth.sweep import board as board_module
from varsmooth.sweep import stage as stage_module
from varsmooth.sweep.stage import Stage
from varsmooth.sweep.storage import StorageDownError
from varsmooth.train.display import Screen
from varsmooth.train.folder import RunFolder
from varsmooth.train.trainer import NotFiniteError, Trainer

KEPT = ("model.safetensors", "state-00000008.safetensors", "metrics.jsonl", "config.toml")
ALL_DONE = {f"tiny/{arm}": {0: "COMPLETE", 1: "COMPLETE"} for arm in ("vanilla", "kn")}


def record(run: Path) -> dict[str, Any]:
    return RunFolder(run).read_record()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep that was never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    end = swept(tiny_study(folder, seeds=[3]), folder / "out", at_once=2)
    assert (end.signal, end.asked) == (None, 0)
    return folder


def test_trials_and_seeds_are_ordinary_runs(whole: Path) -> None:
    board = board_of(tiny_study(whole, seeds=[3]), whole / "out")
    assert outcomes(board) == ALL_DONE
    for arm in ("vanilla", "kn"):
        for name in ("trial-0000", "trial-0001", "seed-3"):
            assert record(whole / "out" / arm / name)["status"] == "finished"
    for stage in board.arms:
        for slot, trial in stage.outcomes().items():
            run = RunFolder(whole / "out" / stage.arm.name / f"trial-{slot:04d}")
            assert trial.value == run.read_record()["best"]["valid_perplexity"]
            assert trial.intermediate_values == {line["step"]: line["valid_perplexity"] for line in run.read_metrics()}


def test_the_summary_says_what_each_arm_was_given_and_used(whole: Path) -> None:
    board = Board.open(Store.in_folder(whole / "out"))
    found = summarize(board, whole / "out")
    assert (found.study, found.finished, [arm.arm for arm in found.arms]) == ("tiny", True, ["vanilla", "kn"])
    for arm in found.arms:
        assert arm.budget == {"trials": 2, "steps_per_trial": 8, "total_steps": None, "minutes": None}
        assert (arm.used["trials"], arm.used["finished"], arm.used["steps"], arm.used["open"]) == (2, 2, 16, 0)
        assert arm.used["minutes"] == pytest.approx(arm.trials[-1].minutes_so_far)
        assert arm.best is not None
        assert arm.best.valid_perplexity == min(trial.valid_perplexity or 0 for trial in arm.trials)
        (seed,) = arm.seeds
        results = record(whole / "out" / arm.arm / "seed-3")["results"]
        assert seed.test_perplexity in [result["perplexity"] for result in results if result["split"] == "test"]
        assert arm.importance is None
        assert arm.importance_missing == "there are fewer than two parameters to compare"
    json.dumps(found.as_json(), allow_nan=False)


def test_the_winner_is_a_recipe(whole: Path) -> None:
    board = Board.open(Store.in_folder(whole / "out"))
    written = write_winners(board, whole / "out")
    for stage in board.arms:
        best = stage.best()
        assert best is not None
        recipe = load_recipe(written[stage.arm.name])
        assert recipe.train.lr == best.params["train.lr"]
        seed_run = load_config(whole / "out" / stage.arm.name / "seed-3" / "config.toml")
        assert recipe.smoothing == seed_run.smoothing
        assert recipe.train.steps == 8


def test_a_finished_sweep_has_nothing_left_to_do(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "step", lambda _: pytest.fail("a finished trial is trained again"))
    assert swept(tiny_study(whole, seeds=[3]), whole / "out").signal is None


def test_a_stopped_sweep_goes_on_bit_for_bit(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step, out = Trainer.step, tmp_path / "out"
    study = tiny_study(tmp_path, seeds=[3], data=str(whole / "text"))

    for moment in (3, 21):
        taken = 0

        def signalled(self: Trainer, moment: int = moment) -> Any:
            nonlocal taken
            taken += 1
            if taken == moment:
                signal.raise_signal(signal.SIGTERM)
            return step(self)

        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "step", signalled)
            assert swept(study, out).signal == signal.SIGTERM
    assert swept(study, out).signal is None
    board = board_of(study, out)
    assert outcomes(board) == ALL_DONE
    assert all(len(stage.trials()) == 2 for stage in board.arms), "no trial was asked for twice"
    runs = [path.parent for path in sorted((whole / "out").glob("*/*/record.json"))]
    assert len(runs) == 6
    for run in runs:
        for name in KEPT:
            assert (out / run.parent.name / run.name / name).read_bytes() == (run / name).read_bytes(), (run, name)


def test_a_trial_that_fails_fails_alone(tmp_path: Path) -> None:
    study = tiny_study(tmp_path, space={"train": {"lr": [1e30, 0.01]}}, arms=[{"recipe": "vanilla"}])
    assert swept(study, tmp_path / "out", at_once=2).signal is None
    (stage,) = board_of(study, tmp_path / "out").arms
    states = {slot: (trial.state.name, trial.user_attrs.get("reason")) for slot, trial in stage.outcomes().items()}
    assert states[1] == ("COMPLETE", None)
    assert states[0][0] == "FAIL"
    assert "not finite" in states[0][1]


def test_a_trial_that_ends_makes_room_for_the_next_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at a time: the first of three fails early, and the third begins while the second goes on."""
    seen: list[tuple[float, int]] = []
    step = Trainer.step

    def watched(self: Trainer) -> Any:
        seen.append((self.settings.lr, self.progress.step))
        return step(self)

    monkeypatch.setattr(Trainer, "step", watched)
    space = {"train": {"lr": [1e30, 0.01, 0.03]}}
    swept(tiny_study(tmp_path, space=space, arms=[{"recipe": "vanilla"}], budget={"steps": 40}), tmp_path / "out", at_once=2)
    assert seen.index((0.01, 0)) < seen.index((0.03, 0)) < seen.index((0.01, 39)) < seen.index((0.03, 39))
    ended_first = max(place for place, (lr, _) in enumerate(seen) if lr == 1e30)
    assert ended_first < seen.index((0.03, 0)), "and no more than two at a time"


def test_a_text_is_counted_once_for_all_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    from_ids = Counts.from_ids
    monkeypatch.setattr(Counts, "from_ids", lambda ids, size: counted.append(size) or from_ids(ids, size))
    swept(tiny_study(tmp_path), tmp_path / "out")
    assert len(counted) == 1


def test_the_bar_counts_what_was_through_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    advance = Screen.advance_total
    monkeypatch.setattr(Screen, "advance_total", lambda self, steps: counted.append(steps) or advance(self, steps))
    study = tiny_study(tmp_path, seeds=[3])
    for _ in range(2):
        counted.clear()
        swept(study, tmp_path / "out")
        assert sum(counted) == 2 * (2 + 1) * 8


def test_out_of_memory_is_the_reason_of_one_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    step = Trainer.step

    def hungry(self: Trainer) -> Any:
        if self.settings.lr == 0.03:
            raise torch.OutOfMemoryError
        return step(self)

    monkeypatch.setattr(Trainer, "step", hungry)
    study = tiny_study(tmp_path, arms=[{"recipe": "vanilla"}])
    swept(study, tmp_path / "out")
    (stage,) = board_of(study, tmp_path / "out").arms
    assert outcomes(board_of(study, tmp_path / "out")) == {"tiny/vanilla": {0: "COMPLETE", 1: "FAIL"}}
    assert stage.outcomes()[1].user_attrs["reason"].startswith("out of GPU memory")


@pytest.mark.parametrize(
    "pruner",
    [{"kind": "median", "startup_trials": 1}, {"kind": "halving", "min_steps": 2, "factor": 2}],
    ids=lambda p: p["kind"],
)
def test_a_hopeless_trial_is_given_up_with_its_state(pruner: dict[str, Any], tmp_path: Path) -> None:
    space = {"train": {"lr": [0.03, 1e-9]}}
    study = tiny_study(tmp_path, pruner=pruner, space=space, arms=[{"recipe": "vanilla"}], budget={"steps": 16})
    swept(study, tmp_path / "out")
    assert outcomes(board_of(study, tmp_path / "out")) == {"tiny/vanilla": {0: "COMPLETE", 1: "PRUNED"}}
    run = tmp_path / "out" / "vanilla" / "trial-0001"
    found = record(run)
    assert (found["status"], found["stopped_because"]) == ("pruned", "pruned")
    assert 2 <= found["steps"] < 16
    assert RunFolder(run).state_path(found["steps"]).exists()
    summary = summarize(board_of(study, tmp_path / "out"))
    assert summary.arms[0].used["pruned"] == 1
    assert summary.arms[0].used["steps"] == 16 + found["steps"]


def test_what_is_said_of_a_trial_names_its_arm_and_that_it_was_given_up(tmp_path: Path) -> None:
    space, said = {"train": {"lr": [0.03, 1e-9]}}, io.StringIO()
    pruner = {"kind": "median", "startup_trials": 1}
    study = tiny_study(tmp_path, pruner=pruner, space=space, arms=[{"recipe": "vanilla"}], budget={"steps": 16})
    work(study, tmp_path / "out", store_in(tmp_path / "out"), Reporting(Console(file=said, width=200)))
    assert "vanilla-trial-0000: step 2/16" in said.getvalue()
    assert "vanilla-trial-0000: finished after 16 steps" in said.getvalue()
    assert "vanilla-trial-0001: given up after" in said.getvalue()


@pytest.mark.parametrize("said", [{}, {"stopped_because": "signal", "signal": 0}], ids=["now", "in older folders"])
def test_a_trial_that_was_given_up_is_not_gone_on_with_where_its_worker_died_before_it_could_say_so(
    said: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space, out = {"train": {"lr": [0.03, 1e-9]}}, tmp_path / "out"
    pruner = {"kind": "median", "startup_trials": 1}
    study = tiny_study(tmp_path, pruner=pruner, space=space, arms=[{"recipe": "vanilla"}], budget={"steps": 16})
    with monkeypatch.context() as patch:
        patch.setattr(worker, "marked_pruned", lambda *_: pytest.fail("the worker dies"))
        with pytest.raises(pytest.fail.Exception, match="the worker dies"):
            swept(study, out)
    run = out / "vanilla" / "trial-0001"
    left = record(run)
    assert (left["status"], left["stopped_because"], "signal" in left) == ("stopped", "given up", False)
    RunFolder(run).write_record({**left, **said})
    monkeypatch.setattr(Trainer, "step", lambda _: pytest.fail("a trial that was given up is trained again"))
    swept(study, out)
    assert outcomes(board_of(study, out)) == {"tiny/vanilla": {0: "COMPLETE", 1: "PRUNED"}}
    found = record(run)
    assert (found["status"], found["stopped_because"], "signal" in found) == ("pruned", "pruned", False)


def test_a_trial_that_was_given_to_another_and_comes_back_is_not_taken_for_pruned(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a machine that slept: its trial was given up for dead and queued again, and it is this machine that claims it."""
    study, out = tiny_study(tmp_path, data=str(whole / "text"), arms=[{"recipe": "vanilla"}]), tmp_path / "out"
    step, slept = Trainer.step, False

    def sleeping(self: Trainer) -> Any:
        nonlocal slept
        if self.progress.step == 3 and not slept:
            slept = True
            (stage,) = board_of(study, out).arms
            (running,) = (trial for trial in stage.trials() if trial.state.name == "RUNNING")
            stage.optuna_study.tell(running.number, state=stage.store.optuna.trial.TrialState.FAIL)
        return step(self)

    monkeypatch.setattr(Trainer, "step", sleeping)
    swept(study, out)
    (stage,) = board_of(study, out).arms
    assert {slot: trial.state.name for slot, trial in stage.outcomes().items()} == {0: "COMPLETE", 1: "COMPLETE"}
    assert len(stage.trials()) == 3
    name = "vanilla/trial-0000/model.safetensors"
    assert (out / name).read_bytes() == (whole / "out" / name).read_bytes()


def refused(study: Any, out: Path) -> str:
    with pytest.raises(InputError) as error:
        swept(study, out)
    return str(error.value)


def test_a_changed_study_is_refused_by_what_changed(whole: Path) -> None:
    message = refused(tiny_study(whole, seeds=[3, 4]), whole / "out")
    assert "'tiny' has changed since it was started: seeds (was [3], now [3, 4])" in message
    message = refused(tiny_study(whole, seeds=[3], space={"train": {"lr": [0.01, 0.02]}}), whole / "out")
    assert "arms.vanilla.space.train.lr (was [0.01, 0.03], now [0.01, 0.02])" in message


def test_another_text_is_refused(whole: Path, tmp_path: Path) -> None:
    study = tiny_study(tmp_path, seeds=[3])
    (tmp_path / "text" / "valid.txt").write_text("the cat\n")
    assert "the valid text has the checksum" in refused(study, whole / "out")


@pytest.mark.parametrize(("change", "word"), [({"versions": {"varsmooth": "9.9"}}, "9.9"), ({"commit": "f00"}, "commit f00")])
def test_other_code_is_refused(change: dict[str, Any], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"versions": {"varsmooth": "1.0"}, "commit": "abc"}
    monkeypatch.setattr(board_module, "environment", lambda _: known)
    study = tiny_study(tmp_path, arms=[{"recipe": "vanilla"}])
    swept(study, tmp_path / "out")
    monkeypatch.setattr(board_module, "environment", lambda _: {**known, **change})
    message = refused(study, tmp_path / "out")
    assert word in message
    assert "1.0 (commit abc)" in message


def test_runs_of_another_sweep_are_neither_counted_nor_continued(tmp_path: Path) -> None:
    study, out = tiny_study(tmp_path, arms=[{"recipe": "vanilla"}]), tmp_path / "out"
    swept(study, out)
    (out / FILE).unlink()
    changed = tiny_study(tmp_path, arms=[{"recipe": "vanilla"}], space={"train": {"lr": [0.02, 0.03]}})
    message = refused(changed, out)
    assert "trial-0000: was trained with train.lr = 0.01; the trial asked for 0.02" in message
    assert "choose another --out" in message
    assert outcomes(board_of(changed, out)) == {"tiny/vanilla": {}}


def test_a_lost_database_is_made_anew_from_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, out = tiny_study(tmp_path), tmp_path / "out"
    swept(study, out)
    (out / FILE).unlink()
    monkeypatch.setattr(Trainer, "step", lambda _: pytest.fail("a finished trial is trained again"))
    swept(study, out)
    assert outcomes(board_of(study, out)) == ALL_DONE


@pytest.mark.parametrize("again", [1, 2])
def test_a_database_made_anew_has_the_parameters_of_the_runs_where_the_sampler_chose_them(
    again: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside others that were under way it may have chosen otherwise than it would now that all have ended."""
    about: dict[str, Any] = {"sampler": {"kind": "tpe", "startup_trials": 2}, "budget": {"steps": 8, "trials": 7}}
    space = {"train": {"lr": {"low": 0.001, "high": 0.1, "log": True}}, "dropout": {"tables": [0.0, 0.3, 0.6]}}
    study, out = tiny_study(tmp_path, **about, space=space, arms=[{"recipe": "vanilla"}]), tmp_path / "out"
    swept(study, out, 2)
    (before,) = board_of(study, out).arms
    params = {slot: trial.params for slot, trial in before.outcomes().items()}
    (out / FILE).unlink()
    sampler = stage_module.seeded_sampler
    monkeypatch.setattr(stage_module, "seeded_sampler", lambda *about: sampler(*about[:-1], f"{about[-1]}, otherwise"))
    monkeypatch.setattr(Trainer, "step", lambda _: pytest.fail("a finished trial is trained again"))
    swept(study, out, again)
    (after,) = board_of(study, out).arms
    assert {slot: trial.params for slot, trial in after.outcomes().items()} == params
    assert len(params) == 7


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_database_made_anew_knows_what_the_runs_have_cost(at_once: int, tmp_path: Path) -> None:
    study, out = tiny_study(tmp_path, arms=[{"recipe": "vanilla"}]), tmp_path / "out"
    swept(study, out, at_once)
    (out / FILE).unlink()
    swept(study, out, at_once)
    (stage,) = board_of(study, out).arms
    clocks = [record(out / "vanilla" / f"trial-000{slot}")["seconds"] for slot in range(2)]
    assert [stage.outcomes()[slot].user_attrs["seconds"] for slot in range(2)] == [clock / at_once for clock in clocks]


def test_minutes_that_were_used_up_stay_so_without_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = {"steps": 8, "minutes": 1e-4}  # less than any trial takes
    study, out = tiny_study(tmp_path, sampler="random", budget=budget, arms=[{"recipe": "vanilla"}]), tmp_path / "out"
    swept(study, out)
    (out / FILE).unlink()
    monkeypatch.setattr(Trainer, "step", lambda _: pytest.fail("the minutes are spent again"))
    swept(study, out)
    assert outcomes(board_of(study, out)) == {"tiny/vanilla": {0: "COMPLETE"}}


def away(times: int) -> Any:
    """A way to ask that fails so many times, as SQLAlchemy does when the server is gone."""
    from sqlalchemy.exc import OperationalError

    left = times

    def fail() -> None:
        nonlocal left
        if left > 0:
            left -= 1
            raise OperationalError("SELECT 1", {}, Exception("connection refused"))

    return fail


def test_a_database_that_comes_back_is_waited_for(tmp_path: Path) -> None:
    said: list[str] = []
    store = Store(f"sqlite:///{tmp_path}/a.db", waits=(0.0, 0.0), say=said.append)
    store.attempt(away(2))
    (line,) = said
    assert "does not answer (connection refused); trying again" in line
    with pytest.raises(StorageDownError, match=r"does not answer \(connection refused\); nothing is lost"):
        store.attempt(away(3))


@pytest.mark.parametrize("spoil", [lambda path: path.write_bytes(b"no database " * 99), lambda path: path.mkdir()])
def test_a_file_that_is_no_database_is_told_at_once(spoil: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("varsmooth.sweep.storage.time.sleep", lambda _: pytest.fail("waiting changes nothing"))
    spoil(tmp_path / FILE)
    with pytest.raises(InputError, match=r"sweep\.db: cannot be used as the database of a sweep"):
        Store.in_folder(tmp_path)


def test_when_the_database_goes_away_every_run_is_saved_also_beside_one_that_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of three fails, and the database has gone; the second fails as it is saved; the third must be saved yet."""
    space = {"train": {"lr": [0.01, 0.02, 0.03]}}
    out, study = tmp_path / "out", tiny_study(tmp_path, arms=[{"recipe": "vanilla"}], budget={"steps": 20}, space=space)
    tell, attempt = Stage.tell, Store.attempt
    down = False

    def failing(self: Store, ask: Any, *args: Any, **options: Any) -> Any:
        if down:
            raise StorageDownError("the database does not answer")
        return attempt(self, ask, *args, **options)

    def refusing(self: Stage, *args: Any) -> Any:
        nonlocal down
        down = True
        return tell(self, *args)

    step, check = Trainer.step, Trainer.check_finite

    def spoiled(self: Trainer) -> Any:
        if self.settings.lr == 0.01 and self.progress.step == 3:
            raise NotFiniteError("the loss is not finite")
        return step(self)

    def checked(self: Trainer) -> None:
        if self.settings.lr == 0.02 and down:
            raise NotFiniteError("the loss is not finite")
        check(self)

    monkeypatch.setattr(Trainer, "step", spoiled)
    monkeypatch.setattr(Trainer, "check_finite", checked)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "attempt", failing)
        patch.setattr(Stage, "tell", refusing)
        with pytest.raises(StorageDownError):
            swept(study, out, at_once=3)
    assert [record(out / "vanilla" / f"trial-000{slot}")["status"] for slot in range(3)] == ["failed", "failed", "stopped"]
    saved = record(out / "vanilla" / "trial-0002")
    assert RunFolder(out / "vanilla" / "trial-0002").state_path(saved["steps"]).exists()
    down = False
    swept(study, out)
    assert outcomes(board_of(study, out)) == {"tiny/vanilla": {0: "FAIL", 1: "FAIL", 2: "COMPLETE"}}


def test_when_the_database_goes_away_runs_are_saved_and_nothing_is_lost(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, step = tmp_path / "out", Trainer.step
    study = tiny_study(tmp_path, seeds=[3], data=str(whole / "text"))
    attempt, down = Store.attempt, False

    def sometimes(self: Store, ask: Any, *args: Any, **options: Any) -> Any:
        if down:
            raise StorageDownError("the database does not answer")
        return attempt(self, ask, *args, **options)

    def stepped(self: Trainer) -> Any:
        nonlocal down
        down = down or self.progress.step == 5
        return step(self)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "attempt", sometimes)
        patch.setattr(Trainer, "step", stepped)
        with pytest.raises(StorageDownError):
            swept(study, out)
    saved = record(out / "vanilla" / "trial-0000")
    assert saved["status"] == "stopped"
    assert RunFolder(out / "vanilla" / "trial-0000").state_path(saved["steps"]).exists()
    assert swept(study, out).signal is None
    assert outcomes(board_of(study, out)) == ALL_DONE
    name = "vanilla/trial-0000/model.safetensors"
    assert (out / name).read_bytes() == (whole / "out" / name).read_bytes()
