"""A study in its database: what its workers must agree on, the stages of its arms, and the signs of life of its workers."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch

from varsmooth.config import Config
from varsmooth.errors import InputError
from varsmooth.experiment import Corpora
from varsmooth.sweep.claims import Claims
from varsmooth.sweep.stage import Stage, winner
from varsmooth.sweep.storage import Store, shown
from varsmooth.sweep.study import Study, study_changes, study_from_mapping, study_mapping
from varsmooth.sweep.ticket import ASKED, Ticket
from varsmooth.train.environment import environment

STUDY, CODE, DATA = "varsmooth.study", "varsmooth.code", "varsmooth.data"


class Board:
    """A study and its stages."""

    def __init__(self, study: Study, store: Store) -> None:
        self.study, self.store = study, store
        self.arms = [Stage(store, study, arm) for arm in study.arms]
        self._seeds: dict[str, Stage] = {}

    @classmethod
    def join(cls, study: Study, store: Store, identity: Mapping[str, Any]) -> Board:
        """Start a study, or work on one that others have started, if it is the same study, code and text."""
        wanted = {STUDY: study_mapping(study), **identity}
        board = cls(study, store)
        for stage in board.arms:
            found = stage.notes()
            for key in wanted.keys() - found.keys():
                store.attempt(stage.optuna_study.set_user_attr, key, wanted[key])
            _refuse_changes(stage.notes(), wanted, study.name)
        return board

    @classmethod
    def open(cls, store: Store, name: str | None = None, data: Mapping[str, Any] | None = None) -> Board:
        """Open a study that has been started, by its name where there are several; ``data`` says where its text is here."""
        attributes = _attributes(store, name)
        return cls(study_from_mapping(attributes[STUDY], data or {"name": attributes[DATA]["name"]}), store)

    def identity(self) -> dict[str, Any]:
        """What the study's workers agree on besides the study: their code and their text."""
        found = self.arms[0].notes()
        return {key: found[key] for key in (CODE, DATA)}

    def stages(self) -> list[Stage]:
        """The arms, and the seeds of those that are through."""
        return [*self.arms, *self.seed_stages()]

    def seed_stages(self) -> list[Stage]:
        """The seeds of every arm whose search is through and found something."""
        for stage in self.arms if self.study.seeds else []:
            if stage.arm.name not in self._seeds and stage.finished() and (best := winner(stage)) is not None:
                self._seeds[stage.arm.name] = Stage(self.store, self.study, best, seeds=True)
        return list(self._seeds.values())

    def finished(self) -> bool:
        """Whether all budgets are spent and the seeds are through."""
        return all(stage.finished() for stage in self.arms) and all(stage.finished() for stage in self.seed_stages())

    def claim(self, claims: Claims, *, asked: bool = False, take_back: bool = False) -> Ticket | None:
        """Claim the next slot, of the arm with the fewest begun, of seeds last; None where there is nothing to do just now."""
        arms = sorted(self.arms, key=lambda stage: sum(trial.state.name != "WAITING" for trial in stage.trials()))
        for stage in [*arms, *self.seed_stages()]:
            if ticket := stage.claim(claims, asked=asked, take_back=take_back):
                return ticket
        return None

    def asked(self) -> list[tuple[Stage, Any]]:
        """The trials that were asked for and not told of yet."""
        return [(stage, trial) for stage in self.stages() for trial in stage.asked()]

    def only_asked_left(self) -> bool:
        """Whether nothing is left to do but what was asked for elsewhere."""
        open_ones = [trial for stage in self.stages() for trial in stage.trials() if not trial.state.is_finished()]
        return bool(open_ones) and all(trial.user_attrs.get(ASKED) for trial in open_ones)


def identity_of(config: Config, corpora: Corpora) -> dict[str, Any]:
    """What this worker runs: its code, and the checksums of its text."""
    corpus, made_with = corpora.of(config), environment(torch.device("cpu"))
    code = {"varsmooth": made_with["versions"]["varsmooth"], "commit": made_with["commit"]}
    return {CODE: code, DATA: {"name": corpus.name, "checksums": dict(corpus.checksums)}}


def refuse_other_data(found: Mapping[str, Any], wanted: Mapping[str, Any], who: str) -> None:
    """Refuse results on another text than the study's."""
    for split, checksum in wanted["checksums"].items():
        if found.get(split, checksum) != checksum:
            raise InputError(
                f"{who}: the {split} text has the checksum {found[split][:12]}..., the study's is {checksum[:12]}...; "
                "use the same text on every machine"
            )


def refuse_other_code(found: Mapping[str, Any], wanted: Mapping[str, Any], who: str) -> None:
    """Refuse results of other code than the study's; a commit that is not known is passed over."""
    commits = found.get("commit"), wanted.get("commit")
    if found["varsmooth"] != wanted["varsmooth"] or (all(commits) and commits[0] != commits[1]):
        raise InputError(
            f"{who} runs varsmooth {_version(found)}, and the study was started with {_version(wanted)}: "
            "use the same code on every machine, or start the study anew with another name"
        )


@contextmanager
def beating(store: Store, tickets: Mapping[str, Ticket]) -> Iterator[None]:
    """Give signs of life for the tickets of this process, while it works on them."""
    if not store.shared:
        yield
        return
    over = threading.Event()

    def beat() -> None:
        while not over.wait(store.interval):
            for ticket in list(tickets.values()):
                # The work itself meets a database that is away, and waits for it; this thread only tries again.
                with suppress(Exception):
                    store.storage.record_heartbeat(ticket.identity)

    thread = threading.Thread(target=beat, name="signs of life", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _refuse_changes(found: Mapping[str, Any], wanted: Mapping[str, Any], name: str) -> None:
    if changes := study_changes(found[STUDY], wanted[STUDY]):
        more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
        raise InputError(
            f"the study {name!r} has changed since it was started: {'; '.join(changes[:3])}{more}; "
            "change it back, or give it another name and another --out"
        )
    refuse_other_code(wanted[CODE], found[CODE], "this worker")
    refuse_other_data(wanted[DATA]["checksums"], found[DATA], "this worker")


def _version(code: Mapping[str, Any]) -> str:
    commit = code.get("commit")
    return f"{code['varsmooth']} ({f'commit {_short(commit)}' if commit else 'commit unknown'})"


def _short(commit: str) -> str:
    head, dash, changed = commit.partition("-")
    return f"{head[:12]}{dash}{changed}"


def _attributes(store: Store, name: str | None) -> dict[str, Any]:
    """What the arms of a started study say of it."""
    studies = {title.partition("/")[0]: title for title in store.names() if title.count("/") == 1}
    if name is None and len(studies) > 1:
        raise InputError(f"{shown(store.url)} holds several studies: choose one with --study {'|'.join(sorted(studies))}")
    if not studies or (name is not None and name not in studies):
        raise InputError(
            f"{shown(store.url)} holds no study{f' {name!r}' if name else ''}; there are: {', '.join(studies) or 'none'}"
        )
    study = store.existing(studies[name] if name else next(iter(studies.values())))
    found: dict[str, Any] = store.attempt(lambda: study.user_attrs)
    if not {STUDY, CODE, DATA} <= found.keys():
        raise InputError(f"{shown(store.url)}: {study.study_name!r} was not made by varsmooth sweep")
    return found
