from __future__ import annotations

import itertools
import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from rich.console import Console

from networks_for_tests import tiny_config
from statistics_for_tests import FAILURE_RATE, chi_square_p
from varsmooth import InputError, LanguageModel, Vocab
from varsmooth.evaluate import Scales
from varsmooth.evaluate.perplexity import COLDEST
from varsmooth.experiment import Reporting, start_run
from varsmooth.train.checkpoint import load_model, save_model
from varsmooth.train.folder import RunFolder

LINES = ["the cat sat on the mat", "a dog sat on the cat", "the dog and the cat ran", "", "a mat"]
QUIET = Reporting(Console(quiet=True))


def train_on(texts: dict[str, str], folder: Path, *changes: str, recipe: str = "smoothing-kneser-ney") -> Path:
    (folder / "text").mkdir(parents=True)
    for split, text in texts.items():
        (folder / "text" / f"{split}.txt").write_text(text)
    config = tiny_config(recipe, f"data.name={folder / 'text'}", "train.steps=25", "train.eval_every=10", *changes)
    start_run(config, folder / "run", QUIET)
    return folder / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with an <unk>: words that occur once become one."""
    text = "\n".join(LINES * 6) + "\n"
    texts = {"train": text + "a rare word\n", "valid": text, "test": "the cat and a bird\n" * 3}
    return train_on(texts, tmp_path_factory.mktemp("open"), "data.min_count=2")


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    """A model whose vocabulary has no <unk>."""
    text = "\n".join(LINES * 6) + "\n"
    return LanguageModel.load(train_on(dict.fromkeys(("train", "valid", "test"), text), tmp_path_factory.mktemp("closed")))


@pytest.fixture
def model(run: Path) -> LanguageModel:
    return LanguageModel.load(run)


def ids_of(model: LanguageModel, *lines: str) -> list[int]:
    return [row for line in lines for row in (*model.vocab.encode(line.split()), model.vocab.eos_id)]


def test_what_is_loaded_is_what_was_recorded(run, model):
    record = json.loads((run / "record.json").read_text())
    results = [result for result in record["results"] if result["split"] == "test"]
    assert {result["predict"] for result in results} == {"mode", "mean", "mean-input"}
    ids = ids_of(model, *["the cat and a bird"] * 3)
    for result in results:
        found = model.evaluate(ids, result["predict"], result["temperature"])
        assert found.perplexity == pytest.approx(result["perplexity"], rel=1e-9)
        assert found.tokens == result["tokens"] == 18
        if not result["tuned_temperature"]:
            assert result["temperature"] == 1.0
    assert model.predict == "mean"
    assert model.perplexity(ids) == model.perplexity(torch.tensor(ids), "mean")
    assert model.vocab.unk_id is not None


def test_the_tuned_temperature_is_that_of_the_development_set(run, model):
    record = json.loads((run / "record.json").read_text())
    results = [result for result in record["results"] if result["predict"] == "mode"]
    tuned = {result["temperature"] for result in results if result["tuned_temperature"]}
    valid = ids_of(model, *(LINES * 6))
    assert tuned == {model.best_temperature(valid, "mode")}
    found = {temperature: model.perplexity(valid, "mode", temperature) for temperature in (1.0, *tuned)}
    assert min(found, key=found.__getitem__) in tuned


def test_the_scales_of_context_and_bias_are_those_of_the_development_set(run, model):
    results = json.loads((run / "record.json").read_text())["results"]
    valid = ids_of(model, *(LINES * 6))
    for result in results:
        assert ("scaled" in result) == result["tuned_temperature"]
        if result["tuned_temperature"]:
            scaled = result["scaled"]
            scales = model.best_scales(valid, result["predict"])
            assert (scaled["context"], scaled["bias"]) == pytest.approx((scales.context, scales.bias), abs=0.01)
            recorded = Scales(scaled["context"], scaled["bias"])
            if result["split"] == "valid":
                assert scaled["perplexity"] <= result["perplexity"] * (1 + 1e-6)
                found = model.evaluate(valid, result["predict"], scales=recorded)
                assert found.perplexity == pytest.approx(scaled["perplexity"], rel=1e-6)
                assert (found.scales, found.tokens) == (recorded, len(valid))


def test_scales_multiply_what_the_context_says_and_the_bias(model):
    valid, tables = ids_of(model, *LINES), model.network.tables("mean")
    inputs = torch.tensor([model.vocab.eos_id, *valid[:-1]])[:, None]
    logits, _ = model.network.logits(inputs, model.network.initial_state(1), tables)
    bias = model.network.bias.detach()
    for scales in (Scales(1.0, 1.0), Scales(0.6, 1.7), Scales(0.0, 1.0), Scales(1.3, -0.2)):
        expected = (logits[:, 0].detach() - bias) * scales.context + bias * scales.bias
        loss = torch.nn.functional.cross_entropy(expected, torch.tensor(valid))
        assert model.evaluate(valid, "mean", scales=scales).nll == pytest.approx(float(loss), rel=1e-5)
        assert model.evaluate(valid, "mean", scales=scales, batch=3).tokens == len(valid)
    assert model.evaluate(valid, scales=Scales(1.0, 1.0)).nll == pytest.approx(model.evaluate(valid).nll, rel=1e-6)
    assert model.evaluate(valid, scales=Scales(1 / COLDEST, -1 / COLDEST)).nll > 0, "the largest that can be found can be used"


def test_lines_and_texts_take_scales_too(model):
    scales = Scales(0.5, 1.2)
    for line, score in zip(LINES, model.score(LINES, "mode", scales), strict=True):
        expected = model.evaluate(ids_of(model, line), "mode", scales=scales)
        assert score.perplexity == pytest.approx(expected.perplexity, rel=1e-6)
    assert model.generate("the cat", 6, scales=Scales(0.5, 0.5), seed=3) == model.generate("the cat", 6, temperature=2, seed=3)
    texts = [model.generate(prompt, 4, scales=Scales(0.0, 1.0), seed=3).removeprefix(prompt) for prompt in ("the", "a bird")]
    assert texts[0] == texts[1], "without what the context says the prompt does not matter"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scales": Scales(math.nan, 1.0)}, "scales must be finite, .* got nan for the context"),
        ({"scales": Scales(1.0, -1e39)}, "got 1 for the context and -1e.39 for the bias"),
        ({"scales": Scales(1.0, math.inf)}, "scales must be finite"),
        ({"scales": Scales(1.000001 / COLDEST, 1.0)}, "scales must be finite"),
        ({"scales": Scales(1.0, 1.0), "temperature": 2.0}, "scales take the place of a temperature"),
        ({"scales": Scales(1.0, 1.0), "predict": "sample"}, "not with sample"),
    ],
)
def test_scales_that_cannot_be_are_refused(model, options, message):
    with pytest.raises(InputError, match=message):
        model.evaluate(ids_of(model, *LINES), **options)
    if options.keys() == {"scales"}:
        with pytest.raises(InputError, match=message):
            model.generate("the cat", 3, **options)
        with pytest.raises(InputError, match=message):
            model.score([], **options)


def test_the_best_model_is_that_of_the_metrics(run):
    folder = RunFolder(run)
    best = min(folder.read_metrics(), key=lambda line: line["valid_perplexity"])
    _, meta = load_model(folder.model_path)
    assert meta["step"] == best["step"] == folder.read_record()["best"]["step"]


@pytest.mark.parametrize("predict", [None, "mode", "mean-input"])
def test_a_line_scores_what_its_perplexity_says(model, predict):
    for line, score in zip(LINES, model.score(LINES, predict), strict=True):
        ids = ids_of(model, line)
        assert score.tokens == len(ids) == len(line.split()) + 1
        assert score.perplexity == pytest.approx(model.perplexity(ids, predict), rel=1e-6)
        assert score.log_probability == pytest.approx(-score.tokens * math.log(model.perplexity(ids, predict)), rel=1e-6)


@torch.no_grad()
def next_word_logits(model: LanguageModel, words: list[str]) -> torch.Tensor:
    ids = torch.tensor([model.vocab.eos_id, *model.vocab.encode(words)])[:, None]
    logits, _ = model.network.logits(ids, model.network.initial_state(1), model.network.tables(model.predict))
    return logits[-1, 0]


def test_a_score_is_the_sum_of_its_words(model):
    words = ["the", "cat", "sat", "<eos>"]
    logs = [next_word_logits(model, words[:n]).log_softmax(-1)[model.vocab.index(word)] for n, word in enumerate(words)]
    (score,) = model.score(["the cat sat"])
    assert score.log_probability == pytest.approx(float(sum(logs)), rel=1e-5)


def test_lines_are_scored_alone_and_as_they_come(model):
    alone = [next(iter(model.score([line]))) for line in LINES]
    assert list(model.score(LINES)) == alone
    assert list(itertools.islice(model.score(itertools.cycle(LINES)), 7)) == [*alone, *alone[:2]]


def test_one_text_is_not_taken_for_lines(model):
    with pytest.raises(InputError, match=r"score takes a list of lines, .* 'the cat sat' for one: pass \[line\]"):
        model.score("the cat sat")


def test_unknown_words_are_counted_and_scored_as_unk(model):
    known, unknown, both = model.score(["the cat", "the zebra", "<unk> zebra"])
    assert (known.unknown, unknown.unknown, both.unknown) == (0, 1, 2)
    assert unknown.log_probability == next(iter(model.score(["the <unk>"]))).log_probability


def test_text_depends_on_the_seed_alone(model):
    texts = [model.generate("the cat", 12, seed=seed) for seed in range(8)]
    assert texts == [model.generate("the cat", 12, seed=seed) for seed in range(8)]
    assert len(set(texts)) > 4
    assert all(text.startswith("the cat") for text in texts)
    assert all(len(text.split()) <= 2 + 12 for text in texts)
    assert {word for text in texts for word in text.split()} <= set(model.vocab.words) - {"<unk>", "<eos>"}


def test_unk_is_never_written_however_likely(model):
    model.network.bias.data[model.vocab.unk_id] = 50.0
    for arguments in ({}, {"top_k": 1}, {"top_k": 3}, {"temperature": 0.01}):
        assert "<unk>" not in model.generate("the", 10, **arguments)


def test_top_1_is_greedy_and_so_is_a_low_temperature(model):
    model.network.bias.data[model.vocab.eos_id] = -50.0
    words = ["the", "cat"]
    for _ in range(6):
        logits = next_word_logits(model, words)
        logits[model.vocab.unk_id] = -math.inf
        words.append(model.vocab.words[int(logits.argmax())])
    for seed in range(3):
        assert model.generate("the cat", 6, top_k=1, seed=seed) == " ".join(words)
        assert model.generate("the cat", 6, temperature=1e-6, seed=seed) == " ".join(words)


def test_words_are_drawn_as_often_as_the_model_says(model):
    """The end of the line leaves the prompt as it is."""
    model.network.bias.data.copy_(torch.linspace(-2, 2, len(model.vocab)))
    logits = next_word_logits(model, ["the"]) / 0.7
    logits[model.vocab.unk_id] = -math.inf
    texts = [model.generate("the", 1, temperature=0.7, seed=seed) for seed in range(1500)]
    observed = torch.tensor([texts.count("the" if word == "<eos>" else f"the {word}") for word in model.vocab.words])
    expected = 1500 * logits.softmax(-1)
    assert observed[expected == 0].sum() == 0
    common = expected >= 10
    bins = [torch.cat([counts[common], counts[~common].sum()[None]]) for counts in (observed, expected)]
    assert chi_square_p(*bins) > FAILURE_RATE


def test_only_the_likeliest_are_drawn(model):
    model.network.bias.data[model.vocab.unk_id] = -50.0
    likeliest = {model.vocab.words[row] for row in next_word_logits(model, ["the"]).topk(3).indices.tolist()}
    found = {model.generate("the", 1, top_k=3, temperature=5.0, seed=seed).removeprefix("the").strip() for seed in range(60)}
    assert {word or "<eos>" for word in found} == likeliest
    assert model.generate("the", 5, top_k=10**6, seed=3) == model.generate("the", 5, seed=3)


def test_a_line_ends_where_the_model_ends_it(model):
    model.network.bias.data[model.vocab.eos_id] = 50.0
    assert model.generate("the  cat") == "the cat"


def test_unknown_words_of_a_prompt_stay_as_they_are(model):
    assert model.generate("the zebra", 3, seed=1).startswith("the zebra")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": " \n"}, "the prompt is empty"),
        ({"words": 0}, "words must be at least 1"),
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"temperature": math.nan}, "temperature must be positive"),
        ({"temperature": math.inf}, "temperature must be positive"),
        ({"top_k": -1}, "top_k must be 0"),
        ({"seed": -1}, "seed must be in"),
        ({"seed": 2**32}, "seed must be in"),
        ({"predict": "maen"}, "did you mean 'mean'"),
    ],
    ids=str,
)
def test_bad_generation_is_named(model, arguments, message):
    with pytest.raises(InputError, match=message):
        model.generate(**{"prompt": "the", **arguments})


def test_a_closed_vocabulary_refuses_unknown_words(closed):
    assert closed.vocab.unk_id is None
    assert closed.generate("the cat", 3).startswith("the cat")
    for use in (lambda: closed.generate("the zebra"), lambda: list(closed.score(["the cat", "the zebra"]))):
        with pytest.raises(InputError, match=r"'zebra' is not in the vocabulary, which has no <unk>"):
            use()


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "at least one integer"),
        (torch.zeros(2, 2, dtype=torch.int64), "at least one integer"),
        ([0.5, 1.0], "at least one integer"),
        ([0, -1], "must be in"),
        ([0, 10**6], "must be in"),
    ],
    ids=str,
)
def test_bad_streams_are_named(model, ids, message):
    for use in (model.perplexity, model.evaluate, model.best_temperature, lambda ids: model.read({"valid": ids}, ["mode"])):
        with pytest.raises(InputError, match=message):
            use(ids)


def test_what_is_read_once_is_evaluated_as_if_read_for_each_question(model):
    streams = {"valid": ids_of(model, *(LINES * 6)), "test": torch.tensor(ids_of(model, *LINES))}
    readings = model.read(streams, ["mode", "mean"])
    assert set(readings) == {(split, predict) for split in streams for predict in ("mode", "mean")}
    for (split, predict), reading in readings.items():
        tuned = reading.best_temperature()
        assert tuned == model.best_temperature(streams[split], predict)
        for temperature in (1.0, tuned):
            assert reading.evaluate(temperature) == model.evaluate(streams[split], predict, temperature)


def test_sampling_takes_the_window_of_training_and_is_reproducible(model):
    ids = ids_of(model, *LINES)
    first = model.evaluate(ids, "sample", samples=4, seed=1)
    assert first == model.evaluate(ids, "sample", samples=4, seed=1)
    assert first.nll != model.evaluate(ids, "sample", samples=4, seed=2).nll
    assert first.perplexity < model.evaluate(ids, "sample", samples=4, seed=1, average="geometric").perplexity
    assert math.isfinite(model.evaluate(ids, "sample", samples=2, batch=3).nll)


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "copy"))


def refusal(run: Path) -> str:
    with pytest.raises(InputError) as error:
        LanguageModel.load(run)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("place", [3, 60, 300, -1], ids=["length", "digest", "header", "weights"])
def test_a_tampered_model_is_refused(copy, place):
    path = copy / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    assert str(path) in refusal(copy)


def test_missing_files_are_named(copy, tmp_path):
    (copy / "model.safetensors").unlink()
    assert "model.safetensors cannot be read" in refusal(copy)
    (copy / "vocab.txt").unlink()
    assert "vocab.txt" in refusal(copy)
    assert "is not a run folder" in refusal(tmp_path)


@pytest.mark.parametrize("recorded", [True, False])
def test_a_run_that_was_never_evaluated_is_to_be_continued(copy, recorded):
    folder = RunFolder(copy)
    for path in (folder.model_path, folder.metrics_path):
        path.unlink()
    if recorded:
        folder.write_record({**folder.read_record(), "status": "running", "best": {"step": 0, "valid_perplexity": None}})
    else:
        folder.record_path.unlink()
    assert refusal(copy) == (
        f"{copy} has no model yet: it was not evaluated before it ended; continue it with: varsmooth train --resume {copy}"
    )


def test_another_vocabulary_is_refused(copy):
    words = Vocab.load(copy / "vocab.txt").words
    Vocab((*words[1:], words[0])).save(copy / "vocab.txt")
    assert f"{copy / 'vocab.txt'}: is not the one that model.safetensors was made with" in refusal(copy)


def test_another_configuration_is_refused(copy):
    text = (copy / "config.toml").read_text()
    (copy / "config.toml").write_text(text.replace("hidden = 8", "hidden = 9"))
    assert f"{copy / 'config.toml'}: is not the one that model.safetensors was made with" in refusal(copy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.update({"weight.bias": torch.zeros(3)}), "'weight.bias' is float32"),
        (lambda tensors: tensors.update({"weight.input_table": tensors["weight.input_table"].double()}), "is float64"),
        (lambda tensors: tensors.update({"weight.extra": torch.zeros(1)}), "unknown tensor 'weight.extra'"),
        (lambda tensors: tensors.pop("weight.stack.bias.0"), "lacks the tensor 'weight.stack.bias.0'"),
        (lambda tensors: tensors.pop("proposal.rate"), "proposal"),
        (lambda tensors: tensors.update({"proposal.rate": tensors["proposal.rate"] + 2}), "rate must be in"),
        (lambda tensors: tensors.update({"proposal.rate": tensors["proposal.rate"][:3]}), "one shape"),
    ],
)
def test_a_sound_file_with_the_wrong_tensors_is_refused(copy, change, message):
    tensors, meta = load_model(copy / "model.safetensors")
    change(tensors)
    save_model(copy / "model.safetensors", tensors, meta)
    assert message in refusal(copy)


def test_a_state_is_not_a_model(copy):
    (state, *_) = RunFolder(copy).state_paths()
    shutil.copy(state, copy / "model.safetensors")
    assert "varsmooth.state.1" in refusal(copy)
