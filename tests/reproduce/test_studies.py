"""The studies that tune the rows can be started as they are, and name their arms so that the choice finds the rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from varsmooth.reproduce import corpus_plan
from varsmooth.sweep import load_study
from varsmooth.sweep.space import recipe_point

STUDIES = sorted((Path(__file__).parents[2] / "results" / "reproduce" / "studies").glob("*.toml"))


def test_wikitext_has_none_for_its_tuned_setting_which_starts_from_what_penn_treebank_taught():
    assert [path.stem for path in STUDIES] == ["ptb-paper", "ptb-tuned", "wikitext-2-paper"]


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_arms_are_rows_of_the_corpus_tuned_over_what_they_have(path):
    study = load_study(path)
    corpus, _, setting = path.stem.rpartition("-")
    plan = corpus_plan(corpus)
    names = [row.name for row in plan.rows]
    assert {arm.name for arm in study.arms} <= set(names)
    assert {row.name for row in plan.rows if row.headline} <= {arm.name for arm in study.arms}
    assert setting == "tuned" or len(study.arms) == len(names)
    assert study.budget.trials is not None
    assert (study.sampler.recipe_first, study.sampler.distinct) == (1, 1)
    common = {"train.lr"} | ({"dropout.tables", "dropout.recurrent"} if setting == "tuned" else set())
    common |= {"train.l2"} if corpus == "ptb" else set()
    for arm in study.arms:
        assert (arm.config.data.name, arm.config.model.hidden, arm.config.evaluate.final) == (corpus, 512, False)
        own = set() if arm.name.startswith("vanilla") else {"smoothing.gamma"}
        if setting == "paper" and arm.name in ("smoothing-linear-interpolation", "smoothing-absolute-discounting"):
            own |= {"smoothing.output"}
        if setting == "tuned":
            own |= {"smoothing-kneser-ney": {"smoothing.output"}, "element-kneser-ney": {"smoothing.scope"}}.get(
                arm.name, set()
            )
        assert set(arm.space) == common | own
        assert set(recipe_point(arm.config, arm.space)) == set(arm.space), "the recipe is a point of its space"
