from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from varsmooth import InputError
from varsmooth.cli.reproducing import reproduce
from varsmooth.config import override, with_values
from varsmooth.recipe import load_recipe, recipe_names
from varsmooth.reproduce.catalogue import (
    SIZES,
    PaperCell,
    budget_values,
    corpora,
    corpus_plan,
    draws_for,
    packaged,
    paper_cell,
    paper_sampling,
)
from varsmooth.reproduce.chosen import Choice, Chosen, best_of, read_chosen
from varsmooth.reproduce.experiments import experiment_jobs, named_experiments, point_name
from varsmooth.reproduce.jobs import table_jobs

NOTHING = Chosen("chosen.toml", {})
TUNED = Chosen("chosen.toml", {("tuned", size, row.name): Choice({}) for size in SIZES for row in corpus_plan("ptb").rows})
PRINTED = """
vanilla-untied 512 89.6 84.5 106.3 100.8
vanilla 512 80.0 74.0 90.6 86.6
noising-linear-interpolation 512 79.4 73.3 88.9 84.6
noising-kneser-ney 512 75.0 70.7 86.1 82.1
smoothing-linear-interpolation 512 76.3 71.2 84.0 79.6
smoothing-kneser-ney 512 74.5 70.6 84.9 80.9
element-kneser-ney 512 70.5 66.8 - -
vanilla-untied 1024 90.3 85.5 97.6 91.9
vanilla 1024 75.9 70.2 85.2 81.0
noising-linear-interpolation 1024 75.5 70.2 84.3 80.1
noising-kneser-ney 1024 71.4 67.3 81.9 78.3
smoothing-linear-interpolation 1024 71.7 67.8 80.5 76.6
smoothing-kneser-ney 1024 70.8 66.9 80.9 76.7
element-kneser-ney 1024 68.6 64.5 - -
"""


def test_every_cell_of_the_papers_table():
    """As its LaTeX has them, line by line: PTB valid, test, WikiText-2 valid, test."""
    cells = 0
    for line in PRINTED.split("\n")[1:-1]:
        row, size, *figures = line.split()
        numbers = [None if figure == "-" else float(figure) for figure in figures]
        assert paper_cell("ptb", int(size), row) == PaperCell(*numbers[:2])
        assert paper_cell("wikitext-2", int(size), row) == PaperCell(*numbers[2:])
        cells += 4
    held = [cell for corpus in ("ptb", "wikitext-2") for rows in packaged("paper.toml")[corpus].values() for cell in rows]
    assert cells == 2 * len(held) == 56
    assert paper_cell("ptb", 512, "smoothing-blank") == PaperCell(None, None)


def test_the_papers_samples():
    assert paper_sampling("ptb", 512) == {"noising-kneser-ney": 96.5, "smoothing-kneser-ney": 89.8}
    assert paper_sampling("ptb", 1024) == {"noising-kneser-ney": 85.1, "smoothing-kneser-ney": 78.7}
    assert paper_sampling("wikitext-2", 512) == {}
    assert [draws_for("ptb", 512, row) for row in ("vanilla", "noising-kneser-ney")] == [0, 20]
    assert draws_for("wikitext-2", 512, "noising-kneser-ney") == 0


def test_every_row_is_a_recipe_at_both_sizes_and_every_row_of_the_paper_is_there():
    assert {name: len(plan.rows) for name, plan in corpora().items()} == {"ptb": 10, "wikitext-2": 8}
    for plan in corpora().values():
        names = [row.name for row in plan.rows]
        for size in SIZES:
            assert {f"{name}/{plan.name}-{size}" for name in names} <= set(recipe_names())
            assert set(packaged("paper.toml")[plan.name][str(size)]) <= set(names)
        assert sum(row.headline for row in plan.rows) == 4, "eight rows at both sizes"
    with pytest.raises(InputError, match="did you mean 'wikitext-2'"):
        corpus_plan("wikitext2")


def test_the_papers_setting_is_that_of_the_recipes():
    jobs = table_jobs(corpus_plan("ptb"), NOTHING, size=1024)
    assert len(jobs) == 20, "ten rows and two seeds"
    by_name = {job.name: job.config for job in jobs}
    assert by_name["vanilla-seed2"].dropout.tables == 0.7
    assert by_name["vanilla-seed2"].train.seed == 2
    assert by_name["smoothing-kneser-ney-seed1"].evaluate.samples == 20
    assert by_name["element-kneser-ney-seed1"].evaluate.samples == 0
    assert jobs[0].trial_name == "1024-paper-vanilla-seed1"
    assert jobs[0].record_folder(Path("r")) == Path("r/ptb/1024-paper/vanilla-seed1")


def test_wikitext_differs_by_its_data_alone():
    plans = [table_jobs(corpus_plan(name), NOTHING, size=512, seeds=[1]) for name in ("ptb", "wikitext-2")]
    configs = [{job.name: job.config for job in jobs} for jobs in plans]
    assert set(configs[1]) < set(configs[0])
    for name, config in configs[1].items():
        assert (config.data.name, configs[0][name].data.name) == ("wikitext-2", "ptb")
        assert (config.smoothing, config.dropout, config.model) == (
            configs[0][name].smoothing,
            configs[0][name].dropout,
            configs[0][name].model,
        )


def test_a_quick_budget_is_shorter_and_has_a_place_of_its_own():
    full, quick = (table_jobs(corpus_plan("ptb"), NOTHING, size=512, budget=budget) for budget in ("full", "quick"))
    assert quick[0].group == "512-paper-quick"
    assert quick[0].config.train.steps == budget_values("quick")["train.steps"] < full[0].config.train.steps / 4
    assert len(quick) == len(full) == 30


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 513}, "--size must be one of 512, 1024, got 513"),
        ({"rows": ["vanila"]}, "did you mean 'vanilla'"),
        ({"budget": "ful"}, "--budget"),
        ({"setting": "paaper"}, "--setting"),
        ({"setting": "tuned"}, r"chosen.toml: has no \[tuned.512.ROW\]"),
        ({"setting": "tuned", "rows": ["vanilla"]}, r"chosen.toml: has no \[tuned.512.vanilla\]"),
        ({"seeds": [-1]}, "train.seed"),
    ],
)
def test_what_cannot_be_planned_is_refused_by_name(options, message):
    with pytest.raises(InputError, match=message):
        table_jobs(corpus_plan("ptb"), NOTHING, **{"size": 512, **options})


def test_every_experiment_can_be_planned_and_changes_what_it_says():
    names = {"gamma", "ablation", "beside-dropout", "rare-words", "length", "length-1024", "grid", "alone", "tuning-blank"}
    assert set(named_experiments()) == names | set(TUNED_ALIKE)
    for experiment in named_experiments().values():
        for corpus in experiment.corpora:
            jobs = experiment_jobs(experiment, corpus, TUNED if experiment.setting == "tuned" else NOTHING)
            arms = [arm for arm in experiment.arms if not arm.table]
            places = [place for place, value in enumerate(experiment.values or [0]) if value != experiment.in_table]
            points = sum(len(arm.variants_at(place)) for arm in arms for place in places)
            assert len(jobs) == len({job.name for job in jobs}) == points * len(experiment.seeds)
            assert all(re.fullmatch(r"\w[\w.+=,@-]*", job.trial_name) for job in jobs)
            assert len({(job.share, repr(job.config)) for job in jobs}) == len(jobs), "no two runs are the same"


def test_the_help_names_every_experiment():
    told = re.search(r"Instead of the table: ([^.]*)\.", reproduce.__doc__)
    assert set(re.split(r",\s+|\s+or\s+", told[1])) == {*named_experiments(), "cost"}


def test_the_gamma_figure_goes_from_0_05_to_0_6():
    jobs = {job.name: job.config for job in experiment_jobs(named_experiments()["gamma"], "ptb", NOTHING)}
    for arm, row in (("word", "smoothing-kneser-ney"), ("element", "element-kneser-ney")):
        assert jobs[f"{arm}-0.05-seed1"].smoothing.gamma == 0.05
        assert jobs[f"{arm}-0.6-seed1"].smoothing.gamma == 0.6
        expected = override(load_recipe(f"{row}/ptb-512"), ["train.lr=0.004", "train.eval_every=3000"])
        assert jobs[f"{arm}-0.2-seed1"] == expected, "as long as a run of the table"


IN_FULL = ["tuning-paper", "tuning-512", "tuning-rate", "tuning-warm-up", "tuning-wide"]
TUNED_ALIKE = ["data-size", "data-size-zero", "tuning-kind", "tuning-1024", *IN_FULL]


@pytest.mark.parametrize("name", TUNED_ALIKE)
def test_arms_that_are_tuned_have_the_same_budget(name):
    experiment = named_experiments()[name]
    for place in range(len(experiment.steps or experiment.values or [0])):
        assert len({len(arm.variants_at(place)) for arm in experiment.arms}) == 1


@pytest.mark.parametrize("name", IN_FULL)
def test_later_rounds_are_as_long_as_a_final_run_and_have_a_seed_of_their_own(name):
    jobs = experiment_jobs(named_experiments()[name], "ptb", TUNED)
    rows = {job.config.name.partition("/")[0] for job in jobs}
    assert rows == {"vanilla", "noising-kneser-ney", "smoothing-kneser-ney", "element-kneser-ney"}
    for job in jobs:
        assert (job.config.train.steps, job.config.train.seed, job.config.evaluate.final) == (54_000, 11, False)


def test_the_second_round_is_about_dropout_of_activations_and_the_third_about_the_learning_rate():
    for job in experiment_jobs(named_experiments()["tuning-512"], "ptb", TUNED):
        assert (job.config.dropout.kind, job.config.model.bias) == ("activation", "zero")
        assert (job.config.smoothing.scope == "position") == job.name.startswith("element"), "words as the paper has them"
    third = [job.config for job in experiment_jobs(named_experiments()["tuning-rate"], "ptb", TUNED)]
    assert [config.train.lr for config in third] == [0.004, 0.005] * 8
    assert [config.dropout.kind for config in third] == ["table", "table", "activation", "activation"] * 4
    assert {config.smoothing.scope for config in third if config.dropout.kind == "table"} == {"position"}


def test_what_every_row_chose_is_tried_again_with_a_warm_up_and_nothing_else():
    chosen = read_chosen(Path(__file__).parents[2] / "results/reproduce/ptb/chosen.toml")
    jobs = experiment_jobs(named_experiments()["tuning-warm-up"], "ptb", NOTHING)
    assert len(jobs) == 4
    for job in jobs:
        row = job.config.name.partition("/")[0]
        others = [trial for trial in chosen.choices["tuned", 512, row].trials if "train.warm_up" not in trial.set]
        values = {**best_of(tuple(others)).set, "train.warm_up": 1000, "train.seed": 11, "train.eval_every": 3000}
        assert job.config == with_values(load_recipe(f"{row}/ptb-512"), {**values, "evaluate.final": False}, "what was chosen")


def test_trials_that_choose_stay_the_same_whatever_is_chosen():
    other = {(setting, size, row): Choice({"train.clip": 9.0}) for setting, size, row in TUNED.choices for size in SIZES}
    other |= {("paper", size, row): choice for (_, size, row), choice in other.items()}
    for experiment in named_experiments().values():
        if experiment.tunes:
            for corpus in experiment.corpora:
                jobs = experiment_jobs(experiment, corpus, Chosen("chosen.toml", other))
                assert jobs == experiment_jobs(experiment, corpus, NOTHING), experiment.name


def test_blanked_words_have_fewer_trials_than_the_plain_model_and_its_learning_rate():
    trials = [job.config for job in experiment_jobs(named_experiments()["tuning-blank"], "ptb", NOTHING)]
    chosen = read_chosen(Path(__file__).parents[2] / "results/reproduce/ptb/chosen.toml")
    plain = chosen.choices["tuned", 512, "vanilla"]
    assert len(trials) < sum(trial.steps == 54_000 for trial in plain.trials)
    assert {config.train.lr for config in trials} == {plain.set["train.lr"]}
    assert max(config.dropout.tables for config in trials) == plain.set["dropout.tables"]
    assert {(config.train.steps, config.train.seed, config.evaluate.final) for config in trials} == {(54_000, 11, False)}


def test_full_length_trials_of_the_papers_grid_change_nothing_else():
    jobs = experiment_jobs(named_experiments()["tuning-paper"], "ptb", NOTHING)
    rates = {
        row: [job.config.train.lr for job in jobs if job.name.startswith(row)] for row in ("vanilla", "noising", "smoothing")
    }
    assert rates == {
        "vanilla": [0.002, 0.003, 0.004, 0.004],
        "noising": [0.003, 0.003, 0.004, 0.004],
        "smoothing": [0.003, 0.003, 0.004, 0.004],
    }
    for job in jobs:
        recipe = load_recipe(job.config.name)
        grid = {"lr", "l2", "seed", "eval_every"}
        assert job.config.dropout == recipe.dropout, "the paper's"
        assert replace(job.config.smoothing, gamma=0) == replace(recipe.smoothing, gamma=0)
        assert {key for key, value in vars(job.config.train).items() if value != getattr(recipe.train, key)} <= grid
        assert job.config.train.seed not in corpus_plan("ptb").seeds[512]


def test_wikitext_chooses_between_kinds_of_dropout_in_full_at_one_learning_rate():
    jobs = {job.name: job.config for job in experiment_jobs(named_experiments()["tuning-kind"], "wikitext-2", NOTHING)}
    rows = ("vanilla", "noising-kneser-ney", "smoothing-kneser-ney", "element-kneser-ney")
    assert set(jobs) == {f"{row}-v{number}-seed11" for row in rows for number in (1, 2, 3)}
    for row in rows:
        own = [jobs[f"{row}-v{number}-seed11"] for number in (1, 2, 3)]
        kinds = [(config.dropout.kind, config.dropout.tables) for config in own]
        assert kinds == [("table", 0.5), ("table", 0.55), ("activation", 0.6)]
        assert [config.smoothing.scope for config in own[:2]] == ["position"] * 2
        steps = load_recipe(f"{row}/wikitext-2-512").train.steps
        assert {(config.train.steps, config.train.lr, config.evaluate.final) for config in own} == {(steps, 0.004, False)}


def test_the_data_size_curve_goes_from_a_twentieth_to_all_which_the_table_has():
    experiment = named_experiments()["data-size"]
    jobs = experiment_jobs(experiment, "wikitext-2", NOTHING)
    assert {job.share for job in jobs} == {0.05, 0.1, 0.25, 0.5}
    assert (experiment.values[-1], experiment.in_table) == (1.0, 1.0)
    assert {job.config.train.steps for job in jobs if job.share == 0.05} == {1500}
    assert jobs[0].name == f"{point_name(experiment.arms[0], 0.05, 0)}-seed11" == "vanilla-0.05-v1-seed11"


def test_the_rows_of_the_headline_are_trained_first_and_one_seed_of_each_before_the_next():
    jobs = table_jobs(corpus_plan("ptb"), Chosen("chosen.toml", {}), size=1024, seeds=[2, 1])
    headline = ["vanilla", "noising-kneser-ney", "smoothing-kneser-ney", "element-kneser-ney"]
    names = [job.name for job in jobs]
    assert names[:8] == [f"{row}-seed{seed}" for seed in (2, 1) for row in headline]
    assert names[8:10] == ["vanilla-untied-seed2", "noising-linear-interpolation-seed2"]
    assert names[14] == "vanilla-untied-seed1"
    assert len(names) == 20
