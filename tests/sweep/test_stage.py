"""Slots: each is given out once, whatever happens to its workers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sweeps_for_tests import board_of, outcomes, tiny_study
from varsmooth.cli.sweep_tables import print_summary
from varsmooth.config import Config
from varsmooth.errors import InputError
from varsmooth.experiment.seeds import Spread
from varsmooth.sweep import summarize
from varsmooth.sweep.board import Board
from varsmooth.sweep.claims import Claims
from varsmooth.sweep.space import finite_size, grid, parse_space, point_at
from varsmooth.sweep.stage import Stage
from varsmooth.sweep.ticket import REASON, SECONDS, SLOT, Ticket
from varsmooth.sweep.ticket import STEPS as TRAINED

STEPS = 3


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return board_of(tiny_study(tmp_path, arms=[{"recipe": "vanilla"}]), tmp_path / "out")


@pytest.fixture
def claims(tmp_path: Path) -> Claims:
    return Claims(tmp_path / "out")


def ended(ticket: Ticket, value: float = 5.0) -> None:
    assert ticket.stage.tell(ticket, "COMPLETE", value, {SECONDS: 30.0})
    assert ticket.claim is not None
    ticket.claim.release()


def killed(ticket: Ticket) -> None:
    """What the system does for a process that is killed."""
    assert ticket.claim is not None
    ticket.claim.release()


def claimed(stage: Stage, claims: Claims, **options: Any) -> Ticket:
    ticket = stage.claim(claims, **options)
    assert ticket is not None
    return ticket


def test_a_grid_is_given_out_point_by_point_and_then_nothing(board: Board, claims: Claims) -> None:
    (stage,) = board.arms
    tickets = [claimed(stage, claims), claimed(stage, claims)]
    assert stage.claim(claims) is None
    assert [ticket.config.train.lr for ticket in tickets] == [0.01, 0.03]
    assert not board.finished()
    for number, ticket in enumerate(tickets):
        ended(ticket, 9.0 - number)
    assert board.finished()
    assert outcomes(board) == {"tiny/vanilla": {0: "COMPLETE", 1: "COMPLETE"}}
    best = stage.best()
    assert best is not None
    assert (best.params, best.value) == ({"train.lr": 0.03}, 8.0)


def test_a_dead_process_leaves_its_trial_to_the_next_of_the_same_folder(board: Board, claims: Claims) -> None:
    (stage,) = board.arms
    first = claimed(stage, claims)
    first.stage.report(first, [(2, 7.0)])
    assert claimed(stage, claims).slot == 1
    assert stage.claim(claims) is None, "the first worker lives"
    killed(first)
    again = claimed(stage, claims)
    assert (again.slot, again.identity, again.config) == (0, first.identity, first.config)
    assert again.reported == {2}
    ended(again)
    assert len(stage.trials()) == 2


def test_a_slot_that_was_queued_twice_counts_once(board: Board, claims: Claims) -> None:
    (stage,) = board.arms
    stage.fill()
    stage.optuna_study.enqueue_trial({"train.lr": 0.01}, user_attrs={SLOT: 0})
    tickets = [claimed(stage, claims), claimed(stage, claims)]
    assert [ticket.slot for ticket in tickets] == [0, 1]
    killed(tickets[0])
    ended(claimed(stage, claims))
    ended(tickets[1])
    assert stage.claim(claims) is None
    assert board.finished()
    assert len(stage.trials()) == 2, "the second of slot 0 was put aside"


def test_a_trial_that_was_given_up_for_dead_is_queued_again_with_its_parameters(board: Board, claims: Claims) -> None:
    (stage,) = board.arms
    silent = claimed(stage, claims)
    stage.optuna_study.tell(silent.trial, state=stage.store.optuna.trial.TrialState.FAIL)  # as a missed heartbeat does
    killed(silent)
    again = claimed(stage, claims)
    assert again.identity != silent.identity
    assert (again.slot, again.config) == (silent.slot, silent.config)
    assert not stage.tell(silent, "COMPLETE", 1.0, {}), "the silent worker comes back, and is too late"
    assert stage.report(silent, [(4, 1.0)]) is True
    assert silent.lost
    ended(again)
    assert outcomes(board) == {"tiny/vanilla": {0: "COMPLETE"}}
    assert stage.outcomes()[0].value == 5.0


def test_a_trial_that_is_given_up_for_dead_while_it_is_taken_up_is_left(
    board: Board, claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    (stage,) = board.arms
    killed(claimed(stage, claims))
    adopt = stage._adopt

    def too_late(trial: Any, claim: Any) -> Any:
        stage.optuna_study.tell(trial.number, state=stage.store.optuna.trial.TrialState.FAIL)
        return adopt(trial, claim)

    monkeypatch.setattr(stage, "_adopt", too_late)
    assert claimed(stage, claims).slot == 1
    again = claimed(stage, claims)
    assert again.slot == 0, "queued again, and its lock is free"


def test_a_failure_of_its_own_is_an_outcome(board: Board, claims: Claims) -> None:
    (stage,) = board.arms
    ticket = claimed(stage, claims)
    assert stage.tell(ticket, "FAIL", None, {REASON: "not finite"})
    killed(ticket)
    assert claimed(stage, claims).slot == 1
    assert outcomes(board) == {"tiny/vanilla": {0: "FAIL"}}
    assert stage.best() is None


def test_telling_twice_counts_once(board: Board, claims: Claims) -> None:
    (stage,) = board.arms
    ticket = claimed(stage, claims)
    assert stage.tell(ticket, "COMPLETE", 5.0, {})
    assert not stage.tell(ticket, "COMPLETE", 6.0, {"steps": 1})
    assert stage.outcomes()[0].value == 5.0


def test_what_was_asked_for_is_not_taken_here_unless_it_is_taken_back(board: Board, claims: Claims) -> None:
    (stage,) = board.arms
    assert claimed(stage, claims, asked=True).slot == 0
    ended(claimed(stage, claims))
    assert stage.claim(claims) is None
    assert board.only_asked_left()
    assert [trial.user_attrs[SLOT] for _, trial in board.asked()] == [0]
    ended(claimed(stage, claims, take_back=True))
    assert board.finished()


def test_minutes_end_an_arm_after_the_trial_that_used_them_up(tmp_path: Path, claims: Claims) -> None:
    study = tiny_study(tmp_path, sampler="random", budget={"steps": 3, "minutes": 1.2}, arms=[{"recipe": "vanilla"}])
    board = board_of(study, tmp_path / "out")
    (stage,) = board.arms
    for _ in range(3):
        assert not board.finished()
        ended(claimed(stage, claims))  # half a minute each
    assert stage.claim(claims) is None
    assert board.finished()
    assert (len(stage.outcomes()), stage.seconds()) == (3, 90.0)


def test_steps_end_an_arm_that_has_too_few_left_for_another_trial(tmp_path: Path, claims: Claims) -> None:
    budget = {"steps": 10, "total_steps": 25}
    study = tiny_study(tmp_path, sampler="random", budget=budget, arms=[{"recipe": "vanilla"}])
    board = board_of(study, tmp_path / "out")
    (stage,) = board.arms
    for number, steps in enumerate((10, 4, 10)):  # the second was pruned
        assert not board.finished(), number
        ticket = claimed(stage, claims)
        assert stage.tell(ticket, "PRUNED" if steps < 10 else "COMPLETE", 5.0, {TRAINED: steps})
        killed(ticket)
    assert stage.claim(claims) is None
    assert board.finished()
    (arm,) = summarize(board).arms
    assert (arm.used["steps"], arm.used["trials"], arm.budget["total_steps"]) == (24, 3, 25)


@pytest.mark.parametrize("asked", [False, True])
def test_steps_are_handed_out_once_however_many_trials_are_under_way(tmp_path: Path, claims: Claims, asked: bool) -> None:
    budget = {"steps": 10, "total_steps": 40}
    study = tiny_study(tmp_path, sampler="random", budget=budget, arms=[{"recipe": "vanilla"}])
    (stage,) = board_of(study, tmp_path / "out").arms

    def all_claimed() -> list[Ticket]:
        found = [stage.claim(claims, asked=asked) for _ in range(16)]
        return [ticket for ticket in found if ticket is not None]

    def through(ticket: Ticket, steps: int) -> None:
        assert stage.tell(ticket, "COMPLETE" if steps == 10 else "PRUNED", 5.0, {TRAINED: steps})
        if ticket.claim is not None:
            ticket.claim.release()

    first, second, third, fourth = all_claimed()
    through(first, 10)
    through(second, 4)
    assert all_claimed() == [], "of the 6 steps that were left no trial can be trained"
    through(third, 6)
    (late,) = all_claimed()
    assert late.slot == 4
    for ticket in (fourth, late):
        assert not stage.finished()
        through(ticket, 10)
    assert all_claimed() == []
    assert stage.finished()
    assert stage.steps() == 40


def test_the_steps_of_a_dead_worker_are_kept_for_whoever_goes_on(tmp_path: Path, claims: Claims) -> None:
    study = tiny_study(tmp_path, sampler="random", budget={"steps": 10, "total_steps": 20}, arms=[{"recipe": "vanilla"}])
    (stage,) = board_of(study, tmp_path / "out").arms
    silent, other = claimed(stage, claims), claimed(stage, claims)
    stage.optuna_study.tell(silent.trial, state=stage.store.optuna.trial.TrialState.FAIL)  # as a missed heartbeat does
    killed(silent)
    assert claimed(stage, claims).slot == silent.slot
    assert stage.claim(claims) is None
    assert other.slot == 1


def test_a_folder_that_was_moved_or_a_machine_that_was_renamed_keeps_its_trials(board: Board, tmp_path: Path) -> None:
    (stage,) = board.arms
    before, now = Claims(tmp_path / "out"), Claims(tmp_path / "out")
    now.place = f"renamed:{tmp_path / 'moved'}"
    first = claimed(stage, before)
    assert claimed(stage, now).slot == 1, "the first worker lives"
    killed(first)
    assert claimed(stage, now).identity == first.identity


def test_sweeps_that_share_a_file_share_its_locks(board: Board, tmp_path: Path) -> None:
    (stage,) = board.arms
    here, there = (Claims(tmp_path / name, board.store.folder) for name in ("here", "there"))
    first = claimed(stage, here)
    assert claimed(stage, there).slot == 1
    assert stage.claim(there) is None
    killed(first)
    assert claimed(stage, there).identity == first.identity


def test_parameters_that_exclude_each_other_fail_their_trial_alone(
    board: Board, claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    (stage,) = board.arms
    config = stage.config

    def refusing(params: dict[str, Any]) -> Config:
        if params["train.lr"] == 0.01:
            raise InputError("train.lr and something else exclude each other")
        return config(params)

    monkeypatch.setattr(stage, "config", refusing)
    assert claimed(stage, claims).slot == 1
    assert stage.outcomes()[0].user_attrs[REASON] == "train.lr and something else exclude each other"
    assert stage.claim(claims) is None


@pytest.mark.parametrize("kind", ["tpe", "random"])
def test_what_is_sampled_depends_on_the_seed_and_the_trials_before(kind: str, tmp_path: Path) -> None:
    def chosen(name: str, seed: int) -> list[float]:
        space = {"train": {"lr": {"low": 1e-3, "high": 1.0, "log": True}}}
        sampler = {"kind": kind, "seed": seed, "startup_trials": 1}
        arms = [{"recipe": "vanilla"}]
        study = tiny_study(tmp_path, sampler=sampler, budget={"steps": 3, "trials": 3}, space=space, arms=arms)
        (stage,) = board_of(study, tmp_path / name).arms
        found = []
        for _ in range(3):
            ticket = claimed(stage, Claims(tmp_path / name))
            found.append(ticket.config.train.lr)
            ended(ticket, abs(ticket.config.train.lr - 0.1))
        return found

    first = chosen("a", 1)
    assert len(set(first)) == 3
    assert chosen("b", 1) == first
    assert chosen("c", 2) != first


def test_arms_take_turns(tmp_path: Path, claims: Claims) -> None:
    board = board_of(tiny_study(tmp_path), tmp_path / "out")
    names = []
    while (ticket := board.claim(claims)) is not None:
        names.append(ticket.name)
    assert names == ["vanilla-trial-0000", "kn-trial-0000", "vanilla-trial-0001", "kn-trial-0001"]


def test_seeds_follow_the_search_with_the_best_configuration(tmp_path: Path, claims: Claims) -> None:
    board = board_of(tiny_study(tmp_path, seeds=[5, 6], arms=[{"recipe": "vanilla"}]), tmp_path / "out")
    for value in (4.0, 3.0):
        assert board.seed_stages() == []
        ended(claimed(board.arms[0], claims), value)
    tickets = []
    while (ticket := board.claim(claims)) is not None:
        tickets.append(ticket)
    found = [(ticket.name, ticket.config.train.lr, ticket.config.train.seed) for ticket in tickets]
    assert found == [("vanilla-seed-5", 0.03, 5), ("vanilla-seed-6", 0.03, 6)]
    assert not board.finished()
    for ticket in tickets:
        ended(ticket)
    assert board.finished()


def test_a_mean_over_seeds_says_how_many_of_them_failed(tmp_path: Path, claims: Claims) -> None:
    board = board_of(tiny_study(tmp_path, seeds=[5, 6, 7], arms=[{"recipe": "vanilla"}]), tmp_path / "out")
    for _ in range(2):
        ended(claimed(board.arms[0], claims))
    (seeds,) = board.seed_stages()
    first, second, third = (claimed(seeds, claims) for _ in range(3))
    ended(first, 10.0)
    assert seeds.tell(second, "FAIL", None, {REASON: "not finite"})
    ended(third, 12.0)
    (arm,) = summarize(board).arms
    assert arm.seeds_valid == Spread(11.0, pytest.approx(math.sqrt(2)), 2)
    assert arm.seeds_test is None
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        print_summary(summarize(board), console)
    assert "11.00 ±1.41 (2 of 3)" in capture.get()


def test_importance_comes_with_enough_trials(tmp_path: Path, claims: Claims) -> None:
    space = {"train": {"lr": [0.001, 0.01, 0.03, 0.1]}, "dropout": {"tables": [0.0, 0.5]}}
    board = board_of(tiny_study(tmp_path, space=space, arms=[{"recipe": "vanilla"}]), tmp_path / "out")
    for number in range(8):
        (arm,) = summarize(board).arms
        assert arm.importance_missing == f"it needs 8 trials that were trained to the end, and there are {number}"
        ticket = claimed(board.arms[0], claims)
        ended(ticket, 100 * ticket.config.train.lr + ticket.config.dropout.tables / 100)
    (arm,) = summarize(board).arms
    assert arm.importance is not None
    assert list(arm.importance) == ["train.lr", "dropout.tables"], "the largest first"
    assert 0.9 < sum(arm.importance.values()) <= 1
    assert arm.importance["train.lr"] > 0.9
    assert arm.used["minutes"] == arm.trials[-1].minutes_so_far == 4.0


def test_on_a_shared_database_a_worker_gives_signs_of_life_and_whoever_was_asked_gives_none(
    board: Board, claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    signs: list[int] = []
    (stage,) = board.arms
    monkeypatch.setattr(board.store, "shared", True)
    monkeypatch.setattr(board.store.storage, "record_heartbeat", signs.append)
    asked = claimed(stage, claims, asked=True)
    assert signs == [], "else its trial would be given to another after the grace"
    worker = claimed(stage, claims)
    assert signs == [worker.identity] != [asked.identity]
    killed(worker)
    assert claimed(stage, claims).identity == worker.identity
    assert signs == [worker.identity] * 2, "one that goes on gives a sign at once: those of the dead one are old"


@pytest.mark.parametrize(("kind", "startup"), [("tpe", 5), ("random", 1)])
def test_random_trials_can_be_distinct_and_are_the_same_for_every_worker(tmp_path: Path, kind: str, startup: int) -> None:
    space = {"train": {"lr": [0.001, 0.01, 0.003], "l2": [0.0, 1e-4]}}
    sampler = {"kind": kind, "startup_trials": startup, "recipe_first": True, "distinct": True}
    study = tiny_study(tmp_path, space=space, arms=[{"recipe": "vanilla"}], budget={"steps": 3, "trials": 8}, sampler=sampler)
    found = []
    for worker in ("one", "two"):
        (stage,) = board_of(study, tmp_path / worker).arms
        configs = [claimed(stage, Claims(tmp_path / worker)).config.train for _ in range(8)]
        found.append([(config.lr, config.l2) for config in configs])
    assert found[0] == found[1]
    assert found[0][0] == (0.003, 1e-4)
    known = 5 if kind == "tpe" else 6
    assert len(set(found[0][:known])) == known


def test_places_of_a_space_are_its_grid() -> None:
    space = parse_space({"train.lr": [1.0, 2.0], "dropout.tables": {"low": 0.1, "high": 0.3, "step": 0.1}}, "here")
    assert [point_at(space, place) for place in range(6)] == list(grid(space))
    assert finite_size(space) == 6
    assert finite_size(parse_space({"train.lr": {"low": 0.1, "high": 0.3}}, "here")) is None


@pytest.mark.parametrize("kind", ["tpe", "random"])
def test_the_first_trial_can_have_the_values_of_its_recipe(tmp_path: Path, claims: Claims, kind: str) -> None:
    space = {"train": {"lr": [0.001, 0.01, 0.003]}, "dropout": {"tables": {"low": 0.1, "high": 0.9, "step": 0.2}}}
    arms = [{"name": f"arm-{rate}", "recipe": "vanilla", "set": {"dropout": {"tables": rate}}} for rate in (0.3, 0.4)]
    budget = {"steps": STEPS, "trials": 2}
    study = tiny_study(tmp_path, space=space, arms=arms, budget=budget, sampler={"kind": kind, "recipe_first": True})
    inside, outside = board_of(study, tmp_path / "out").arms
    first, second = (claimed(inside, claims).config for _ in range(2))
    assert (first.train.lr, first.dropout.tables) == (0.003, 0.3)
    assert (second.train.lr, second.dropout.tables) != (0.003, 0.3)
    assert claimed(outside, claims).config.train.lr == 0.003, "0.4 is no point of the space, and is left to the sampler"
