"""The studies that tune the rows can be started as they are, and name their arms so that the choice finds the rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from varsmooth.reproduce import corpus_plan
from varsmooth.sweep import load_study

STUDIES = sorted((Path(__file__).parents[2] / "results" / "reproduce" / "studies").glob("*.toml"))


def test_there_is_one_for_each_corpus_and_setting():
    assert [path.stem for path in STUDIES] == ["ptb-paper", "ptb-tuned", "wikitext-2-paper", "wikitext-2-tuned"]


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_arms_are_rows_of_the_corpus_that_differ_in_gamma_alone(path):
    study = load_study(path)
    corpus, _, setting = path.stem.rpartition("-")
    plan = corpus_plan(corpus)
    names = [row.name for row in plan.rows]
    assert {arm.name for arm in study.arms} <= set(names)
    assert {row.name for row in plan.rows if row.headline} <= {arm.name for arm in study.arms}
    assert setting == "tuned" or len(study.arms) == len(names)
    assert study.budget.trials is not None
    common = {"train.lr", "train.l2"} | ({"dropout.tables", "dropout.recurrent"} if setting == "tuned" else set())
    for arm in study.arms:
        assert (arm.config.data.name, arm.config.model.hidden) == (corpus, 512)
        gamma = set() if arm.name.startswith("vanilla") else {"smoothing.gamma"}
        assert set(arm.space) == common | gamma
