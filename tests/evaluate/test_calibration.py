from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from rich.console import Console

from networks_for_tests import some_ids, some_network, tiny_config
from varsmooth import LanguageModel
from varsmooth.evaluate.calibration import calibration_of, judge
from varsmooth.evaluate.columns import Columns
from varsmooth.evaluate.reading import read
from varsmooth.experiment import Reporting, corpus_of, start_run

EOS = 2
QUIET = Reporting(Console(quiet=True))


def naive_error(confidence: list[float], correct: list[int], bins: int) -> float:
    """From the definition (eq. 11), bin by bin."""
    total = 0.0
    for low, high in pairwise(index / bins for index in range(bins + 1)):
        inside = [(sure, right) for sure, right in zip(confidence, correct, strict=True) if low < sure <= high]
        if inside:
            accuracy, mean = sum(right for _, right in inside) / len(inside), sum(sure for sure, _ in inside) / len(inside)
            total += len(inside) / len(confidence) * abs(accuracy - mean)
    return total


def test_the_error_is_that_of_the_definition():
    generator = torch.Generator().manual_seed(0)
    confidence = torch.rand(500, generator=generator)
    # Too sure in one bin and not sure enough in the next, so that no two of them could be one.
    correct = ((confidence * 15).ceil().long() % 2).float()
    for bins in (1, 4, 15):
        found = calibration_of(confidence, correct, bins)
        assert found.error == pytest.approx(naive_error(confidence.tolist(), correct.int().tolist(), bins), rel=1e-9)
    assert found.accuracy == pytest.approx(float(correct.mean()))
    assert found.confidence == pytest.approx(float(confidence.mean()))


def test_known_errors():
    assert calibration_of(torch.tensor([1.0, 1.0]), torch.tensor([1.0, 1.0])).error == 0
    assert calibration_of(torch.tensor([1.0, 1.0]), torch.tensor([0.0, 1.0])).error == 0.5
    # 0.75 is sure of three in four; half a bin apart, errors of opposite sign must not cancel.
    assert calibration_of(torch.full((4,), 0.75), torch.tensor([1.0, 1, 1, 0])).error == 0
    both = calibration_of(torch.tensor([0.25, 0.75]), torch.tensor([1.0, 0.0]))
    assert (both.error, both.accuracy, both.confidence) == (0.75, 0.5, 0.5)


def test_a_probability_belongs_to_the_bin_that_it_ends():
    # In bins of a half, 0.5 is in the first with 0.25: their errors cancel.
    assert calibration_of(torch.tensor([0.25, 0.5]), torch.tensor([0.75, 0.0]), 2).error == 0
    assert calibration_of(torch.tensor([0.0]), torch.tensor([1.0])).error == 1


@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
@pytest.mark.parametrize("scheme", ["kneser-ney", "blank"])
def test_a_reading_says_how_sure_and_how_right_it_was(scheme, temperature):
    network, ids = some_network(scheme, output="table"), some_ids(101)
    columns = Columns.cut(ids, EOS, 1, 0, ids.device)
    found = read(network, columns, network.tables("mean"), "mean", 16).judged(temperature)
    with torch.no_grad():
        logits, _ = network.logits(columns.inputs, network.initial_state(1), network.tables("mean"))
    probs = (logits[:, 0].double() / temperature).softmax(-1)
    torch.testing.assert_close(found.confidence, probs.max(-1).values.float(), rtol=1e-4, atol=1e-6)
    assert torch.equal(found.correct.bool(), probs.argmax(-1) == ids)
    assert 0 < found.correct.sum() < len(ids)


def test_no_confidence_is_above_one():
    logits = torch.tensor([[50.0, -50.0, 3.0], [1e5, 0.0, 0.0]])
    found = judge(logits, torch.tensor([0, 1]))
    assert found[1].tolist() == [1.0, 1.0]
    assert found[2].tolist() == [1.0, 0.0]


# What a run records as it ends


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    config = tiny_config("element-kneser-ney", "train.steps=12", "data.max_tokens=500", "evaluate.samples=3")
    return start_run(config, out, QUIET), LanguageModel.load(out), corpus_of(config)


def test_every_fixed_prediction_has_bands_and_a_calibration(finished):
    record, model, corpus = finished
    fixed = [found for found in record["results"] if found["predict"] != "sample"]
    assert len(fixed) == 3 * 2 * 2
    for found in fixed:
        ids = getattr(corpus, found["split"])
        assert found["nll"] == model.evaluate(ids, found["predict"], found["temperature"]).nll, "as without bands"
        assert sum(band["tokens"] for band in found["bands"]) == found["tokens"] == len(ids)
        assert math.fsum(band["nll"] for band in found["bands"]) == pytest.approx(found["nll"] * found["tokens"], rel=1e-12)
        assert 0 <= found["calibration"]["error"] <= 1
    frequent = [int((torch.bincount(corpus.train)[corpus.test] >= 10).sum()), fixed[2]]
    assert sum(band["tokens"] for band in frequent[1]["bands"] if band["low"] >= 10) == frequent[0]


def test_draws_are_part_of_a_run_where_it_is_asked_for(finished):
    record, model, corpus = finished
    drawn = [found for found in record["results"] if found["predict"] == "sample"]
    assert [(found["split"], found["average"], found["samples"]) for found in drawn] == [
        (split, average, 3) for split in ("valid", "test") for average in ("arithmetic", "geometric")
    ]
    for found in drawn:
        ids = getattr(corpus, found["split"])
        alone = model.evaluate(ids, "sample", samples=3, average=found["average"], batch=model.config.evaluate.batch)
        assert found["nll"] == alone.nll
        assert not found["tuned_temperature"]


def test_a_plain_run_draws_nothing(tmp_path):
    record = start_run(tiny_config("vanilla", "data.max_tokens=500", "evaluate.samples=3"), tmp_path / "run", QUIET)
    assert {found["predict"] for found in record["results"]} == {"mode"}


def test_a_trial_can_be_spared_all_that(tmp_path, monkeypatch):
    monkeypatch.setattr(LanguageModel, "load", None)
    record = start_run(tiny_config("element-kneser-ney", "evaluate.final=false"), tmp_path / "run", QUIET)
    assert (record["status"], record["results"]) == ("finished", [])
    assert record["best"]["valid_perplexity"] > 1
