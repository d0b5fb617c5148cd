from __future__ import annotations

import json

import pytest

from varsmooth import InputError
from varsmooth.config import to_mapping
from varsmooth.reproduce import Choice, TuningTrial, corpus_plan, finalist_jobs, missing_jobs, read_chosen, write_chosen
from varsmooth.reproduce.chosen import Chosen
from varsmooth.reproduce.finalists import SEED, choose_among
from varsmooth.train.trainer import NotFiniteError, Trainer

PTB = corpus_plan("ptb")
TUNED = (
    TuningTrial({"train.lr": 0.002}, 9000, 71.0),
    TuningTrial({}, 9000, 72.0),
    TuningTrial({"train.lr": 0.006}, 9000, None),
    TuningTrial({"train.lr": 0.004}, 3000, 60.0),
    TuningTrial({"dropout.tables": 0.7}, 3000, 59.0),
    TuningTrial({"train.lr": 0.005}, 54_000, 50.0),
)
CHOICES = {
    ("tuned", 512, "vanilla"): Choice({"train.lr": 0.002}, TUNED),
    ("tuned", 512, "element-kneser-ney"): Choice({}, (TuningTrial({"smoothing.gamma": 0.1}, 9000, 70.0),)),
    ("tuned", 512, "noising-kneser-ney"): Choice({}),
    ("paper", 512, "smoothing-blank"): Choice({}, TUNED),
}


def jobs_of(count, choices=CHOICES, **options):
    return finalist_jobs(PTB, Chosen("chosen.toml", choices), count, **{"size": 512, "setting": "tuned", **options})


def test_the_best_short_trials_of_each_row_are_trained_to_the_end_with_a_seed_of_their_own():
    jobs = jobs_of(3)
    values = [(job.config.name, job.config.train.lr, job.config.dropout.tables, job.config.smoothing.gamma) for job in jobs]
    assert values == [
        ("vanilla/ptb-512", 0.002, 0.5, 0.2),
        ("vanilla/ptb-512", 0.003, 0.5, 0.2),
        ("vanilla/ptb-512", 0.003, 0.7, 0.2),
        ("element-kneser-ney/ptb-512", 0.003, 0.5, 0.1),
    ], "those that trained longest first, and neither a failed one nor one that was as long as a final run"
    assert {(job.group, job.config.train.steps, job.config.evaluate.final) for job in jobs} == {
        ("finalists-512-tuned", 54_000, False)
    }
    assert {job.config.train.seed for job in jobs} == {SEED}
    assert all(SEED not in seeds for seeds in PTB.seeds.values())
    assert len({job.name for job in jobs}) == 4
    more = {**CHOICES, ("tuned", 512, "vanilla"): Choice({}, (TuningTrial({"train.lr": 0.007}, 9000, 60.0), *TUNED))}
    assert [job.name for job in jobs_of(3, more)[1:3]] == [job.name for job in jobs[:2]], "a name stays when ranks change"
    assert [job.config.name for job in jobs_of(1, rows=["vanilla"])] == ["vanilla/ptb-512"]


def test_the_same_values_are_trained_once():
    twice = Choice({}, (TuningTrial({}, 9000, 72.0), TuningTrial({}, 3000, 71.0), TuningTrial({"train.lr": 0.004}, 3000, 73.0)))
    jobs = jobs_of(2, {("tuned", 512, "vanilla"): twice})
    assert [job.config.train.lr for job in jobs] == [0.003, 0.004]


@pytest.mark.parametrize(
    ("count", "options", "message"),
    [
        (0, {}, "--finalists must be at least 1, got 0"),
        (1, {"rows": ["noising-kneser-ney"]}, r"chosen.toml: \[tuned.512.noising-kneser-ney\] has no trials"),
        (1, {"size": 1024}, r"\[tuned.1024.ROW\] has no trials"),
        (1, {"choices": {("tuned", 512, "vanilla"): Choice({}, TUNED[-1:])}}, "no finalists"),
    ],
)
def test_without_trials_there_are_no_finalists(count, options, message):
    with pytest.raises(InputError, match=message):
        jobs_of(count, **options)


def test_the_best_finalist_is_chosen_and_all_trials_are_kept(keep, results):
    path = results / "ptb" / "chosen.toml"
    write_chosen(path, {("tuned", 512, "vanilla"): Choice({"train.lr": 0.002}, TUNED[:4]), **dict(list(CHOICES.items())[1:])})
    jobs = finalist_jobs(PTB, read_chosen(path), 2, size=512, setting="tuned", rows=["vanilla"])
    for job, valid in zip(jobs, (68.0, 67.0), strict=True):
        assert choose_among(jobs, results, PTB, "tuned", path) == {}, "not all have ended"
        config = {key: values for key, values in to_mapping(job.config).items() if isinstance(values, dict)}
        name, best = job.name.removesuffix(f"-seed{SEED}"), {"valid_perplexity": valid, "step": 9}
        keep("vanilla", 0.0, SEED, group=job.group, name=name, config=config, best=best, steps=54_000)
    found = choose_among(jobs, results, PTB, "tuned", path)
    ended = (TuningTrial({"train.lr": 0.002}, 54_000, 68.0), TuningTrial({}, 54_000, 67.0))
    (expected,) = found.values()
    assert (list(found), expected.set, expected.trials[:4]) == ([("tuned", 512, "vanilla")], {}, TUNED[:4])
    assert sorted(expected.trials[4:], key=repr) == sorted(ended, key=repr)
    assert choose_among(jobs, results, PTB, "tuned", path) == found, "chosen from again, nothing counts twice"
    after = read_chosen(path).choices
    assert after == {**CHOICES, ("tuned", 512, "vanilla"): expected}
    assert [job.config for job in jobs_of(2, after, rows=["vanilla"])] == [job.config for job in jobs]


def test_the_verb_trains_them_and_then_chooses(run, tmp_path, data, steps):
    path = tmp_path / "results" / "ptb" / "chosen.toml"
    trials = (TuningTrial({"train.lr": 0.002}, 5, 71.0), TuningTrial({"train.lr": 0.004}, 5, 72.0))
    write_chosen(path, {("tuned", 512, "vanilla"): Choice({"train.lr": 0.002}, trials)})
    common = ["--setting", "tuned", "--data-dir", data, "--out", tmp_path / "out", "--results", tmp_path / "results"]
    told = json.loads(run("reproduce", "ptb", "--finalists", 2, *common, "--dry-run", "--json")[1])
    assert (len(told["missing"]), steps) == (2, [])
    assert run("reproduce", "ptb", "--finalists", 2, *common)[0] == 0
    assert steps == [SEED] * 12
    choice = read_chosen(path).choices["tuned", 512, "vanilla"]
    assert choice.trials[:2] == trials
    assert sorted((trial.set["train.lr"], trial.steps) for trial in choice.trials[2:]) == [(0.002, 6), (0.004, 6)]
    best = min(choice.trials[2:], key=lambda trial: trial.valid_perplexity)
    assert choice.set == best.set


def test_one_that_diverges_does_not_keep_the_others_from_being_chosen(run, tmp_path, data, steps, monkeypatch):
    path = tmp_path / "results" / "ptb" / "chosen.toml"
    trials = (TuningTrial({"train.lr": 0.002}, 5, 71.0), TuningTrial({"train.lr": 0.004}, 5, 72.0))
    write_chosen(path, {("tuned", 512, "vanilla"): Choice({"train.lr": 0.002}, trials)})
    check = Trainer.check_finite

    def not_finite(self):
        if self.settings.lr == 0.002:
            raise NotFiniteError("the loss is not finite at step 3")
        check(self)

    monkeypatch.setattr(Trainer, "check_finite", not_finite)
    common = ["--setting", "tuned", "--data-dir", data, "--out", tmp_path / "out", "--results", tmp_path / "results"]
    jobs = finalist_jobs(PTB, read_chosen(path), 2, size=512, setting="tuned")
    status, _, told = run("reproduce", "ptb", "--finalists", 2, *common)
    assert (status, "is not finite" in told) == (1, True)
    choice = read_chosen(path).choices["tuned", 512, "vanilla"]
    assert choice.set["train.lr"] == 0.004
    assert {trial.set["train.lr"]: trial.valid_perplexity for trial in choice.trials[2:]}[0.002] is None
    assert missing_jobs(jobs, tmp_path / "results") == [], "it is not trained again"
