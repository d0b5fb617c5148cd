from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from networks_for_tests import WORDS, some_ids, some_network, tiny_config
from varsmooth import Counts, DrawKey, InputError
from varsmooth.evaluate import best_temperature, evaluate, output
from varsmooth.model import RecurrentLanguageModel
from varsmooth.text.synthetic import MarkovSource
from varsmooth.train.build import build_network, build_proposal
from varsmooth.train.trainer import Trainer

EOS = 2
IDS = some_ids(101)


@torch.no_grad()
def naive_nll(network: RecurrentLanguageModel, ids: Tensor, predict: str = "mode", temperature: float = 1.0) -> float:
    """One token at a time, from the definition of perplexity."""
    total, state, last = 0.0, network.initial_state(1), EOS
    for word in ids.tolist():
        logits, state = network.logits(torch.tensor([[last]]), state, network.tables(predict))
        probabilities = (logits[0, 0].double() / temperature).exp()
        total -= math.log(float(probabilities[word] / probabilities.sum()))
        last = word
    return total / len(ids)


@pytest.mark.parametrize("predict", ["mode", "mean", "mean-input"])
@pytest.mark.parametrize(("scheme", "cell"), [("kneser-ney", "lstm"), ("blank", "gru")])
def test_perplexity_is_that_of_a_loop_over_tokens(scheme, cell, predict):
    network = some_network(scheme, cell=cell, output="table", dropout=0.5)
    expected = naive_nll(network, IDS, predict)
    for window in (1, 7, 101, 1000):
        found = evaluate(network, IDS, EOS, predict=predict, window=window)
        assert found.nll == pytest.approx(expected, rel=1e-5)
        assert found.perplexity == pytest.approx(math.exp(expected), rel=1e-5)
        assert (found.tokens, found.predict, found.temperature) == (101, predict, 1.0)


@pytest.mark.parametrize(("name", "value", "least"), [("batch", 0, 1), ("batch", -1, 1), ("window", 0, 1), ("burn_in", -1, 0)])
def test_sizes_that_make_no_sense_are_named(name, value, least):
    for ask in (evaluate, best_temperature):
        with pytest.raises(InputError, match=f"{name} must be at least {least}, got {value}"):
            ask(some_network(), IDS, EOS, **{name: value})


def test_the_three_predictions_differ():
    network = some_network(output="table")
    assert len({evaluate(network, IDS, EOS, predict=predict).nll for predict in ("mode", "mean", "mean-input")}) == 3


def test_columns_agree_with_one_as_far_as_they_should():
    network = some_network(output="table")
    whole = evaluate(network, IDS, EOS)
    two = evaluate(network, IDS, EOS, batch=2, burn_in=10**6, window=9)
    assert two.nll == pytest.approx(whole.nll, rel=1e-6), "the second column has read all of the first"
    cold, warm = (evaluate(network, IDS, EOS, batch=10, burn_in=burn_in) for burn_in in (0, 10**6))
    assert cold.tokens == warm.tokens == whole.tokens == 101
    assert abs(warm.nll - whole.nll) < abs(cold.nll - whole.nll) / 2
    assert evaluate(network, IDS, EOS, batch=10**6).tokens == 101


@pytest.mark.parametrize("temperature", [0.5, 1.7])
def test_a_temperature_divides_the_logits(temperature):
    network = some_network(output="table")
    found = evaluate(network, IDS, EOS, predict="mean", temperature=temperature)
    assert found.nll == pytest.approx(naive_nll(network, IDS, "mean", temperature), rel=1e-5)
    assert found.temperature == temperature


@torch.no_grad()
def text_of(network: RecurrentLanguageModel, predict: str, tokens: int) -> Tensor:
    """A text drawn from the network itself, so that its best temperature is near 1."""
    generator = torch.Generator().manual_seed(5)
    ids, state = [EOS], network.initial_state(1)
    for _ in range(tokens):
        logits, state = network.logits(torch.tensor([ids[-1:]]), state, network.tables(predict))
        ids.append(int(torch.multinomial(logits[0, 0].softmax(-1), 1, generator=generator)))
    return torch.tensor(ids[1:])


@pytest.mark.parametrize("predict", ["mode", "mean"])
def test_the_best_temperature_is_that_of_a_grid_search(predict):
    network = some_network(output="table", tied=False)
    ids = text_of(network, predict, 400)
    table, bias = network.own_output_table.detach().clone(), network.bias.detach().clone()
    for scale in (0.02, 0.5, 1.0, 30.0, 1000.0):
        network.own_output_table.data, network.bias.data = scale * table, scale * bias
        found = best_temperature(network, ids, EOS, predict=predict, batch=3)
        assert found == pytest.approx(scale, rel=0.2)
        grid = [found * 1.005**place for place in range(-30, 31)]
        losses = [evaluate(network, ids, EOS, predict=predict, temperature=t, batch=3).nll for t in grid]
        assert abs(losses.index(min(losses)) - 30) <= 1


def test_a_perfect_and_a_hopeless_model_still_have_a_finite_best_temperature():
    network = some_network(method="none")
    for parameter in network.parameters():
        parameter.data.zero_()
    assert best_temperature(network, IDS, EOS) == 1.0
    for sign in (1, -1):
        network.bias.data[5] = sign * 3.0
        assert 0 < best_temperature(network, torch.full((20,), 5), EOS) < math.inf


@pytest.mark.parametrize("method", ["none", "noising", "variational"])
def test_one_draw_without_smoothing_is_the_mode(method):
    network = some_network(method=method, gamma=0.0, dropout=0.5, output="table" if method == "variational" else "none")
    for average in ("arithmetic", "geometric"):
        sampled = evaluate(network, IDS, EOS, predict="sample", samples=1, average=average)
        assert sampled.nll == pytest.approx(evaluate(network, IDS, EOS).nll, rel=1e-6)
        assert (sampled.samples, sampled.average, sampled.tokens) == (1, average, 101)


@torch.no_grad()
def naive_samples(network: RecurrentLanguageModel, samples: int, window: int, seed: int) -> Tensor:
    """Log-likelihoods [samples, tokens]: each draw reads the whole stream alone, with a state of its own."""
    inputs = torch.cat([torch.tensor([EOS]), IDS[:-1]])
    rows = []
    for sample in range(samples):
        state, row = network.initial_state(1), []
        for index, start in enumerate(range(0, len(IDS), window)):
            key = DrawKey(seed, (index + 1) * samples + sample)
            logits, state = network.sampled_logits(inputs[start : start + window, None], state, key)
            row.append(logits[:, 0].double().log_softmax(-1).gather(1, IDS[start : start + window, None]))
        rows.append(torch.cat(row)[:, 0])
    return torch.stack(rows)


@pytest.mark.parametrize(
    "case",
    [{"output": "target", "dropout": 0.5}, {"output": "table", "granularity": "element"}, {"method": "noising"}],
    ids=str,
)
def test_draws_are_combined_as_they_say(case):
    network = some_network(**case)
    logs = naive_samples(network, samples=5, window=10, seed=4)
    options = {"predict": "sample", "samples": 5, "window": 10, "seed": 4}
    arithmetic, geometric = (evaluate(network, IDS, EOS, average=name, **options) for name in ("arithmetic", "geometric"))
    assert geometric.nll == pytest.approx(-float(logs.mean()), rel=1e-5)
    assert arithmetic.nll == pytest.approx(-float(logs.exp().mean(0).log().mean()), rel=1e-5)
    assert arithmetic.perplexity < geometric.perplexity, "Jensen"
    assert evaluate(network, IDS, EOS, average="geometric", **options) == geometric
    assert evaluate(network, IDS, EOS, average="geometric", **{**options, "seed": 5}).nll != geometric.nll


def test_samples_in_columns_count_every_token():
    network = some_network(output="table")
    found = evaluate(network, IDS, EOS, predict="sample", samples=3, batch=4, window=10, burn_in=5, temperature=1.5)
    assert (found.tokens, found.temperature) == (101, 1.5)
    assert found.nll == pytest.approx(evaluate(network, IDS, EOS, predict="sample", samples=3, window=10).nll, rel=0.2)


def test_draws_of_a_large_vocabulary_go_in_fewer_columns_and_not_in_shorter_windows(monkeypatch):
    network = some_network(output="table")
    options = {"predict": "sample", "samples": 2, "window": 20, "burn_in": 5}
    in_two, in_one = (evaluate(network, IDS, EOS, batch=batch, **options) for batch in (2, 1))
    for room, expected in ((2.5, in_two), (0.5, in_one)):
        monkeypatch.setattr(output, "LOGIT_BYTES", int(room * 4 * 20 * WORDS))
        assert evaluate(network, IDS, EOS, batch=3, **options) == expected


def test_evaluating_leaves_no_gradient_and_changes_nothing():
    network = some_network(output="table")
    before = [parameter.detach().clone() for parameter in network.parameters()]
    evaluate(network, IDS, EOS, predict="mean")
    assert all(torch.equal(*pair) for pair in zip(before, network.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in network.parameters())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"predict": "maen"}, "did you mean 'mean'"),
        ({"average": "arithmetical"}, "did you mean 'arithmetic'"),
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"temperature": math.nan}, "temperature must be positive"),
        ({"temperature": math.inf}, "temperature must be positive"),
        ({"samples": 0, "predict": "sample"}, "samples must be from 1"),
        ({"ids": torch.tensor([], dtype=torch.int64)}, "no token"),
    ],
    ids=str,
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(InputError, match=message):
        evaluate(some_network(), **{"ids": IDS, "eos_id": EOS, **arguments})
    with pytest.raises(InputError, match="predict must be one of"):
        best_temperature(some_network(), IDS, EOS, predict="sample")


def test_a_loss_too_large_for_a_perplexity():
    network = some_network(method="none")
    network.bias.data[0] = 1e6
    assert evaluate(network, torch.ones(3, dtype=torch.int64), EOS).perplexity == math.inf


def trained(ids: Tensor, words: int, *changes: str, recipe: str = "vanilla") -> RecurrentLanguageModel:
    config = tiny_config(recipe, "train.l2=0", "dropout.tables=0", "dropout.recurrent=0", *changes)
    network = build_network(config, words, build_proposal(config, Counts.from_ids(ids, words)))
    trainer = Trainer(network, ids, config.train, torch.device("cpu"))
    for _ in range(config.train.steps):
        trainer.step()
    return network


def test_a_short_text_is_learnt_by_heart():
    ids = torch.cat([some_ids(199, words=30), torch.tensor([EOS])])
    changes = ["model.hidden=48", "model.layers=1", "train.batch=2", "train.window=20", "train.steps=220", "train.lr=0.02"]
    network = trained(ids, 30, *changes)
    assert evaluate(network, ids, EOS).perplexity < 1.2


@pytest.mark.parametrize("recipe", ["vanilla", "element-kneser-ney"])
def test_the_entropy_of_a_source_is_approached_and_never_beaten(recipe):
    source = MarkovSource(16, 4, seed=1)
    train, test = source.sample(20_000, seed=1), source.sample(20_000, seed=2)
    changes = ["model.hidden=24", "model.layers=1", "train.batch=16", "train.window=16", "train.steps=350", "train.lr=0.02"]
    network = trained(train, source.vocab_size, *changes, "smoothing.gamma=0.1", recipe=recipe)
    token_nll = source.token_nll(test)
    standard_error = float(token_nll.std()) / math.sqrt(len(test))
    for predict in ("mode", "mean"):
        found = evaluate(network, test, 0, predict=predict, batch=8)
        assert found.nll > source.optimal_nll(test) - standard_error
    assert evaluate(network, test, 0, predict=tiny_config(recipe).smoothing.predict, batch=8).perplexity < 1.05 * math.exp(
        source.optimal_nll(test)
    )
