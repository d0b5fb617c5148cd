from __future__ import annotations

import json
import math

import pytest

from varsmooth import InputError
from varsmooth.config import override
from varsmooth.recipe import load_recipe
from varsmooth.reproduce.chosen import Choice, Chosen, write_chosen
from varsmooth.reproduce.experiment_tables import arm_bands_table, curves, experiment_table
from varsmooth.reproduce.experiments import experiment_jobs, named_experiments
from varsmooth.reproduce.markdown import NOT_RUN
from varsmooth.reproduce.page import build_page
from varsmooth.reproduce.records import Records

PNG = b"\x89PNG\r\n\x1a\n"
GAMMA, ABLATION, DATA_SIZE, TUNING, LENGTH = (
    named_experiments()[name] for name in ("gamma", "ablation", "data-size", "tuning-1024", "length")
)


def test_the_gamma_figure_shows_what_was_run(results, keep):
    for gamma, test in ((0.05, 67.0), (0.1, 66.0), (0.6, 80.0)):
        keep("smoothing-kneser-ney", test, group="gamma", name=f"word-{gamma}")
    found = experiment_table(GAMMA, Records(results), "ptb").text
    assert "| word smoothing, Kneser-Ney | 71.00 | 70.00 | - | - | - | - | 84.00 |" in found, "the development set's"
    assert "| element-wise smoothing, Kneser-Ney | - | - | - | - | - | - | - |" in found
    absent = "element-wise smoothing, Kneser-Ney at 0.05; element-wise smoothing, Kneser-Ney at 0.1; 0.2; 0.3; 0.4; 0.5; "
    assert f"Not run yet: {absent}element-wise smoothing, Kneser-Ney at 0.6." in found
    points = curves(GAMMA, Records(results), "ptb")["word smoothing, Kneser-Ney"]
    assert [(value, height.mean) for value, height in points] == [(0.05, 71.0), (0.1, 70.0), (0.6, 84.0)]
    page = build_page(results)
    assert list(page.pictures) == ["ptb-gamma.png"]
    assert page.pictures["ptb-gamma.png"]().startswith(PNG)
    assert page.parts["ptb/gamma"].startswith("![Development perplexity over gamma, Penn Treebank](ptb-gamma.png)")


def test_the_plain_model_of_the_table_stands_beside_the_gamma_curves(results, keep, monkeypatch):
    for gamma in (0.05, 0.1):
        keep("smoothing-kneser-ney", 66.0, group="gamma", name=f"word-{gamma}")
    assert "the plain model" not in build_page(results).parts["ptb/gamma"]
    keep("vanilla", 64.0, 1)
    keep("vanilla", 65.0, 2)
    drawn = {}
    monkeypatch.setattr("varsmooth.reproduce.page.line_chart", lambda found, **about: drawn.update(found=found, **about))
    page = build_page(results)
    assert "\n\nFor comparison, the plain model of the table: 68.50." in page.parts["ptb/gamma"], "on valid"
    page.pictures["ptb-gamma.png"]()
    points = drawn["found"][drawn["floor"]]
    assert [(value, height.mean) for value, height in points] == [(value, 68.5) for value in GAMMA.values]


def test_without_records_there_is_no_picture(results):
    page = build_page(results)
    assert page.pictures == {}
    for name in ("ptb/gamma", "ptb/ablation", "wikitext-2/data-size", "cost"):
        assert page.parts[name].endswith("Not run yet.")
    assert "wikitext-2/gamma" not in page.parts


def test_quick_runs_have_a_part_of_their_own(results, keep):
    keep("smoothing-kneser-ney", 70.0, group="gamma-quick", name="word-0.1")
    page = build_page(results)
    assert page.parts["ptb/gamma"].endswith("Not run yet.")
    assert "| word smoothing, Kneser-Ney | - | 74.00 |" in page.parts["ptb/gamma-quick"]


def test_the_ablation_lists_its_arms(results, keep):
    for seed in (1, 3):
        keep("element-kneser-ney", 62.0, seed)  # in the table; the ablation's seeds are 1 and 2
    keep("element-kneser-ney", 63.0, 2, group="ablation", name="element-plain")
    found = experiment_table(ABLATION, Records(results), "ptb").text
    assert "| element-wise smoothing, Kneser-Ney, as it is | 1 | 66.00 | 62.00 | 61.00 |" in found
    assert "| plain L2 in place of the data-dependent one | 2 | 67.00 | 63.00 | 62.00 |" in found
    assert "| the mode in place of the mean | 1 | 66.50 | 62.50 | 61.50 |" in found, "of the same run"
    assert "Not run yet: a fresh draw at every position" in found


def test_arms_with_variants_have_a_line_for_each(results, keep):
    beside = named_experiments()["beside-dropout"]
    assert experiment_table(beside, Records(results), "ptb").text.endswith("\n\nNot run yet.")
    keep("vanilla", 63.0, 1, group="beside-dropout", name="vanilla-v2")
    found = experiment_table(beside, Records(results), "ptb").text
    assert "| vanilla, dropout of activations, `dropout.tables=0.5` | 1 | 67.00 | 63.00 | 62.00 |" in found
    assert "| vanilla, dropout of activations, `dropout.tables=0.6` | - |" in found
    assert found.count("| - | - | - | - |") == sum(len(arm.variants) for arm in beside.arms) - 1
    assert found.count("element-wise smoothing of the input") == 4 + 1, "what has not been run is told once"


def test_arms_by_frequency_are_told_by_their_own_prediction_and_by_the_mode(results, keep):
    rare_words = named_experiments()["rare-words"]
    assert arm_bands_table(rare_words, Records(results), "ptb") == NOT_RUN
    keep("vanilla", 65.0, rare=5.0)
    folder = keep("element-kneser-ney", 63.0, group="rare-words", name="spared-v2", rare=4.0)
    content = json.loads((folder / "record.json").read_text())
    for entry in content["results"]:
        if (entry["split"], entry["predict"], entry["tuned_temperature"]) == ("test", "mode", True):
            entry["bands"][1]["nll"] *= 2
    (folder / "record.json").write_text(json.dumps(content))
    spared, rest = "rarer words are spared, `smoothing.spare_below=100`", " | ".join([f"{math.exp(4):.2f}"] * 3)
    assert arm_bands_table(rare_words, Records(results), "ptb").text.splitlines()[2:] == [
        "| share of the tokens | 0.0% | 10.0% | 20.0% | 30.0% | 40.0% |",
        f"| {spared}, by the mean | - | {math.exp(4):.2f} | {rest} |",
        f"| {spared}, by the mode | - | {math.exp(8):,.2f} | {rest} |",
        f"| vanilla, as it is, by the mode | - | {math.exp(5):.2f} | {rest} |",
    ]
    missing = experiment_table(rare_words, Records(results), "ptb").text.rpartition("Not run yet: ")[2]
    names = "element-wise smoothing, Kneser-Ney, as it is; rarer words are spared, `smoothing.spare_below=10`; "
    assert missing == names + "rarer words are spared, `smoothing.spare_below=1000`.", "of an arm that was begun, its variants"


def test_a_band_whose_loss_was_beyond_all_numbers_is_infinite(results, keep):
    rare_words = named_experiments()["rare-words"]
    path = keep("vanilla", 65.0, 1) / "record.json"
    content = json.loads(path.read_text())
    for entry in content["results"]:
        entry["bands"][1]["nll"] = None
    path.write_text(json.dumps(content))
    line = arm_bands_table(rare_words, Records(results), "ptb").text.splitlines()[-1]
    assert line.startswith("| vanilla, as it is, by the mode | - | inf | ")


def test_a_seed_without_bands_leaves_the_table_whole(results, keep):
    rare_words = named_experiments()["rare-words"]
    for seed in (1, 2):
        folder = keep("vanilla", 65.0, seed)
        content = json.loads((folder / "record.json").read_text())
        for entry in content["results"] if seed == 1 else ():
            entry.pop("bands", None)
        (folder / "record.json").write_text(json.dumps(content))
    line = arm_bands_table(rare_words, Records(results), "ptb").text.splitlines()[-1]
    rest = " | ".join([f"{math.exp(4):.2f}"] * 3)
    assert line == f"| vanilla, as it is, by the mode | - | {math.exp(5):.2f} | {rest} |"


def test_the_longer_schedule_is_compared_with_its_own_seed(results, keep):
    write_chosen(results / "ptb" / "chosen.toml", {("tuned", 512, "vanilla"): Choice({})})
    for seed, test in ((1, 64.0), (2, 60.0)):
        keep("vanilla", test, seed, group="512-tuned")
    keep("vanilla", 62.0, 1, group="length", name="vanilla-108000")
    assert "| vanilla | 63.00 | 61.00 |" in experiment_table(LENGTH, Records(results), "ptb").text


def test_arms_that_the_table_has_are_not_trained_again_and_arms_can_be_chosen():
    jobs = experiment_jobs(ABLATION, "ptb", Chosen("chosen.toml", {}))
    assert len(jobs) == 2 * sum(not arm.table for arm in ABLATION.arms) > 0
    assert not {"element-seed1", "vanilla-seed1", "word-mode-seed1"} & {job.name for job in jobs}
    some = experiment_jobs(ABLATION, "ptb", Chosen("chosen.toml", {}), seeds=[1], arms=["vanilla-update"])
    assert [(job.name, job.config.dropout.recurrent_kind) for job in some] == [("vanilla-update-seed1", "update")]
    with pytest.raises(InputError, match="'vanila' is no arm of ablation; did you mean 'vanilla'"):
        experiment_jobs(ABLATION, "ptb", Chosen("chosen.toml", {}), arms=["vanila"])


def test_points_of_a_curve_can_be_chosen():
    nothing = Chosen("chosen.toml", {})
    some = experiment_jobs(GAMMA, "ptb", nothing, points=[0.1, 0.6], arms=["word"])
    assert [job.name for job in some] == ["word-0.1-seed1", "word-0.6-seed1"]
    shares = experiment_jobs(DATA_SIZE, "wikitext-2", nothing, points=[0.25])
    assert {(job.share, job.config.train.steps) for job in shares} == {(0.25, 14000)}
    with pytest.raises(InputError, match=r"--points: 0\.15 is no point of gamma; points: 0\.05, 0\.1, 0\.2"):
        experiment_jobs(GAMMA, "ptb", nothing, points=[0.15])
    with pytest.raises(InputError, match="--points: 1 is no point of ablation, which has none"):
        experiment_jobs(ABLATION, "ptb", nothing, points=[1.0])


def test_the_point_that_the_tuned_table_has_is_not_trained_again(results, keep):
    nothing = Chosen("chosen.toml", {})
    assert 1.0 not in {job.share for job in experiment_jobs(DATA_SIZE, "wikitext-2", nothing)}
    with pytest.raises(InputError, match="--points: 1 is the tuned table, and trained with it: --setting tuned"):
        experiment_jobs(DATA_SIZE, "wikitext-2", nothing, points=[0.5, 1.0])
    keep("vanilla", 70.0, 1, group="512-tuned", corpus="wikitext-2")
    keep("vanilla", 71.0, 1, group="512-paper", corpus="wikitext-2")
    keep("vanilla", 72.0, 1, group="512-tuned")
    page = build_page(results)
    assert "| vanilla | - | - | - | - | 69.00 |" in page.parts["wikitext-2/data-size"], "at its tuned temperature"
    assert page.parts["wikitext-2/data-size/cost"].splitlines()[2].startswith("| 1 | ")
    assert page.parts["wikitext-2/data-size/chosen"] == "Not run yet.", "that of the table is told elsewhere"
    assert "| vanilla | 71.00 | - |" in page.parts["ptb/length"]


def test_longer_schedules_are_those_of_the_tuned_rows():
    chosen = Chosen("chosen.toml", {("tuned", 512, "vanilla"): Choice({"train.l2": 0.002, "dropout.tables": 0.55})})
    (job,) = experiment_jobs(LENGTH, "ptb", chosen)
    settings = ["train.l2=0.002", "dropout.tables=0.55", "train.steps=108000", "train.eval_every=3000"]
    assert (job.name, job.config) == ("vanilla-108000-seed1", override(load_recipe("vanilla/ptb-512"), settings))


def test_longer_schedules_of_larger_models_wait_until_these_were_tuned_themselves():
    longer = named_experiments()["length-1024"]
    small = {("tuned", 512, row): Choice({"smoothing.scope": "batch"}) for row in ("vanilla", "noising-kneser-ney")}
    with pytest.raises(InputError, match=r"has no \[tuned.1024.ROW\]"):
        experiment_jobs(longer, "ptb", Chosen("chosen.toml", small))
    large = {("tuned", 1024, "vanilla"): Choice({"dropout.recurrent": 0.3})}
    (job,) = experiment_jobs(longer, "ptb", Chosen("chosen.toml", {**small, **large}))
    settings = ["smoothing.scope=batch", "dropout.recurrent=0.3", "train.steps=108000", "train.eval_every=3000"]
    assert (job.name, job.config) == ("vanilla-108000-seed1", override(load_recipe("vanilla/ptb-1024"), settings))


def test_an_arm_that_would_train_nothing_is_refused():
    with pytest.raises(InputError, match="--rows: word-mode is a row of the table"):
        experiment_jobs(ABLATION, "ptb", Chosen("chosen.toml", {}), arms=["word-mode"])
    chosen = Chosen("chosen.toml", {("tuned", 512, "vanilla"): Choice({})})
    with pytest.raises(InputError, match="--rows: element has not been tuned yet"):
        experiment_jobs(LENGTH, "ptb", chosen, arms=["element"])
    with pytest.raises(InputError, match=r"has no \[tuned.512.ROW\]"):
        experiment_jobs(LENGTH, "ptb", Chosen("chosen.toml", {}))


def test_a_quick_budget_makes_no_run_longer_and_leaves_lengths_alone():
    nothing = Chosen("chosen.toml", {})
    steps = {job.share: job.config.train.steps for job in experiment_jobs(DATA_SIZE, "ptb", nothing, budget="quick")}
    assert steps == {0.05: 1500, 0.1: 3500, 0.25: 6000, 0.5: 6000}
    with pytest.raises(InputError, match="--budget quick does not go with --experiment length"):
        experiment_jobs(LENGTH, "ptb", nothing, budget="quick")


def test_a_variant_that_diverged_is_not_waited_for(results, keep):
    experiment = named_experiments()["data-size-zero"]
    for number in (1, 2, 3):
        keep("vanilla", 90.0 - number, group=experiment.name, name=f"vanilla-0.05-v{number}", corpus="wikitext-2")
    assert "| vanilla | - |" in experiment_table(experiment, Records(results), "wikitext-2").text
    about = {"status": "failed", "stopped_because": "not finite"}
    keep("vanilla", 90.0, group=experiment.name, name="vanilla-0.05-v4", corpus="wikitext-2", **about)
    assert "| vanilla | 86.00 |" in experiment_table(experiment, Records(results), "wikitext-2").text


def test_every_arm_of_the_ablation_changes_what_it_says():
    jobs = {job.name: job.config for job in experiment_jobs(ABLATION, "ptb", Chosen("chosen.toml", {}), seeds=[1])}
    rarely = ["train.eval_every=3000"]
    element, vanilla = (override(load_recipe(f"{row}/ptb-512"), rarely) for row in ("element-kneser-ney", "vanilla"))
    assert (element.smoothing.kl, element.smoothing.scope, element.smoothing.tie) == ("exact", "sequence", "independent")
    assert jobs["element-plain-seed1"] == override(element, ["smoothing.kl=plain"])
    assert jobs["element-shared-seed1"] == override(element, ["smoothing.scope=batch", "smoothing.tie=shared-draw"])
    assert jobs["element-batch-seed1"] == override(element, ["smoothing.scope=batch"])
    for arm, row in (("element", element), ("vanilla", vanilla)):
        assert jobs[f"{arm}-position-seed1"] == override(row, ["smoothing.scope=position"])
    assert jobs["vanilla-unigram-seed1"] == override(vanilla, ["model.bias=unigram"])
    assert jobs["vanilla-update-seed1"] == override(vanilla, ["dropout.recurrent_kind=update"])


def test_a_run_alone_shows_its_time(results, keep):
    experiment = named_experiments()["alone"]
    assert "Not run yet" in experiment_table(experiment, Records(results), "ptb").text
    about = {"seconds": 90.0, "ms_per_step": 0.7, "steps": 54000, "hardware": {"name": "a card"}}
    keep("vanilla", 65.0, group="alone", name="vanilla", **about)
    found = experiment_table(experiment, Records(results), "ptb").text
    assert "| vanilla LSTM, tied, 512 units | a card | 54,000 | 0.70 | 1.50 | 65.00 |" in found


def test_trials_of_a_larger_model_are_shown_by_their_best_on_valid(results, keep):
    jobs = experiment_jobs(TUNING, "ptb", Chosen("chosen.toml", {}), arms=["vanilla"])
    assert [job.name for job in jobs] == [f"vanilla-v{number}-seed11" for number in (1, 2, 3)]
    assert [job.config.dropout.tables for job in jobs] == [0.65, 0.7, 0.75]
    assert {(job.config.model.hidden, job.config.evaluate.final) for job in jobs} == {(1024, False)}
    keep("vanilla", 0.0, group="tuning-1024", name="vanilla-v2", best={"valid_perplexity": 61.5, "step": 9})
    assert "| vanilla LSTM, tied | `dropout.tables=0.7` | 61.50 |" in experiment_table(TUNING, Records(results), "ptb").text
