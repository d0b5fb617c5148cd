"""benchmarks/decoder.py at tiny size: it measures what it says, and its records are whole."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

TINY = ["--width", "16", "--layers", "1", "--heads", "2", "--batch", "4", "--window", "16", "--warm-up", "5", "--lr", "0.01"]


@pytest.fixture
def decoder(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    yield importlib.import_module("decoder")
    for name in ("decoder", "decoder_model", "decoder_measuring", "decoder_records"):
        sys.modules.pop(name, None)


def call(decoder, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["decoder.py", *arguments])
    decoder.main()


@pytest.mark.parametrize(("window", "stride", "length"), [(8, 4, 53), (8, 8, 53), (8, 4, 5), (8, 4, 8), (8, 3, 64)])
def test_every_token_is_measured_once_with_the_words_before_it(decoder, window, stride, length):
    torch.manual_seed(1)
    model = decoder.Decoder(29, 16, 1, 2, window, 0.5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    ids = torch.randint(29, (length,))
    (found,) = decoder.measured(model, ids, 3, stride, (1.0,))
    inputs, total = torch.cat([torch.tensor([3]), ids]), 0.0
    for place in range(length):
        # The window that scores this place: the first that reaches it.
        start = next(s for s in range(0, length, stride) if s + window > place)
        with torch.no_grad():
            logits = model.eval()(inputs[None, start : place + 1])[0, -1]
        total -= float(logits.log_softmax(0)[ids[place]])
    assert found["tokens"] == length
    assert found["nll"] == pytest.approx(total / length, rel=1e-5)


@torch.no_grad()
def test_the_best_temperature_is_the_one_that_text_was_drawn_at(decoder):
    torch.manual_seed(1)
    model, hidden = decoder.Decoder(29, 16, 1, 2, 8, 0.0), 40 * torch.randn(20_000, 16)
    targets = torch.multinomial((model.head(hidden) / 1.3).softmax(-1), 1)[:, 0]
    found = importlib.import_module("decoder_measuring").best_temperature(model, hidden, targets)
    assert found == pytest.approx(1.3, abs=0.05)


@pytest.mark.parametrize("data", ["ptb", "wikitext-2", "mine"])
def test_smoothing_has_no_more_trials_than_dropout_and_the_same_dropouts(decoder, data):
    dropped = decoder.trials_of(data, "dropout")
    assert len(set(dropped)) == (3 if data == "mine" else 4)
    for arm in ("word", "element"):
        smoothed = decoder.trials_of(data, arm)
        assert [trial.dropout for trial in smoothed] == [trial.dropout for trial in dropped]
        assert all(trial.gamma for trial in smoothed)


@pytest.mark.slow
def test_records_hold_what_a_figure_needs_and_are_made_once(decoder, monkeypatch, capsys, tmp_path):
    options = ["--out", str(tmp_path), "--data", "synthetic", "--max-tokens", "3000", "--tokens", "4000", "--evaluations", "3"]
    call(decoder, monkeypatch, "train", *options, *TINY, "--seeds", "1")
    records = {path.stem: json.loads(path.read_text()) for path in tmp_path.iterdir()}
    smoothed = {f"synthetic-{arm}-{trial}-1" for arm in ("word", "element") for trial in ("0.1-0.1", "0.2-0.1", "0.3-0.2")}
    assert set(records) == {"synthetic-plain-0-1", *(f"synthetic-dropout-{rate}-1" for rate in (0.1, 0.2, 0.3)), *smoothed}
    for name, record in records.items():
        assert {"commit", "versions", "hardware", "seed", "config", "ms_per_step", "curve"} <= set(record)
        assert record["steps"] == 4000 // 64
        predicts = {"mode"} if record["arm"] in ("plain", "dropout") else {"mode", "mean"}
        keys = {(r["split"], r["predict"], r["tuned_temperature"]) for r in record["results"]}
        assert keys == {(split, p, tuned) for split in ("valid", "test") for p in predicts for tuned in (False, True)}
        assert all(result["perplexity"] < 200 for result in record["results"] if result["split"] == "valid")
        assert record["config"]["dropout"] == float(name.split("-")[2])
        assert name not in smoothed or record["config"]["gamma"] == float(name.split("-")[3])
    assert len({json.dumps(record["results"]) for record in records.values()}) == len(records)
    before = (tmp_path / "synthetic-word-0.1-0.1-1.json").read_bytes()
    best = decoder.chosen(tmp_path, "synthetic", "word", 1)
    tried = decoder.trials_of("synthetic", "word")
    valid = {trial: decoder.own(records[f"synthetic-word-{trial.name}-1"], "valid") for trial in tried}
    assert valid[best] == min(valid.values())
    capsys.readouterr()
    call(decoder, monkeypatch, "train", *options, *TINY, "--seeds", "1", "2", "--arms", "word")
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["record"] == f"synthetic-word-{best.name}-2.json"
    assert (tmp_path / "synthetic-word-0.1-0.1-1.json").read_bytes() == before
    call(decoder, monkeypatch, "table", "--out", str(tmp_path))
    means, trials = capsys.readouterr().out.split("\n\n")
    found = [line.split(" | ") for line in means.splitlines()[2:]]
    assert [(cells[1], *cells[4:6]) for cells in found] == [
        ("plain", "mode", "1"),
        ("dropout", "mode", "1"),
        ("word", "mean", "2"),
        ("word", "mode", "2"),
        ("element", "mean", "1"),
        ("element", "mode", "1"),
    ]
    assert len(trials.splitlines()) == 2 + 9
    assert f"| word | {best.cells} | **{valid[best]:.2f}** |" in trials


def test_overhead_is_a_ratio_of_neighbours(decoder, monkeypatch, capsys, tmp_path):
    options = ["--out", str(tmp_path), "--data", "synthetic", "--max-tokens", "1000", "--calls", "1", "--repeats", "3"]
    call(decoder, monkeypatch, "overhead", *options, *TINY)
    record = json.loads((tmp_path / "synthetic-overhead.json").read_text())
    assert json.loads(capsys.readouterr().out)["ms_per_step"] == record["ms_per_step"]
    assert set(record["ms_per_step"]) == {"plain", "dropout", "word", "element"}
    assert record["ratio_to_dropout"]["dropout"]["median"] == 1
    assert all(len(times) == 3 for times in record["times"].values())
