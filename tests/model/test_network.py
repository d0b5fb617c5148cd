from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from networks_for_tests import WIDTH, WORDS, penalty, some_ids, some_network, some_proposal
from varsmooth import DrawKey, EmbeddingPosterior, InputError, noise
from varsmooth.config import override
from varsmooth.draws import Site, Stream, element_bits, element_counter, row_words
from varsmooth.model import RecurrentLanguageModel, RecurrentStack, Smoothing
from varsmooth.ops.noise import noise_inputs
from varsmooth.recipe import load_recipe
from varsmooth.text.counts import Counts
from varsmooth.train.build import build_network, build_untrained

T, B = 7, 5
KEY = DrawKey(seed=11, step=3)


@pytest.mark.parametrize(
    ("words", "hidden", "tied", "millions"),
    [
        (10_000, 512, True, 9.33),
        (10_000, 1024, True, 27.04),
        (10_000, 512, False, 14.45),
        (10_000, 1024, False, 37.28),
        (33_278, 512, True, 21.27),
        (33_278, 1024, True, 50.90),
        (33_278, 512, False, 38.31),
        (33_278, 1024, False, 84.97),
    ],
)
def test_parameter_counts_are_those_of_the_paper(monkeypatch, words, hidden, tied, millions):
    for kind in (RecurrentStack, RecurrentLanguageModel):  # memory that nobody writes to takes no room
        monkeypatch.setattr(kind, "reset_parameters", lambda *_: None)
    row = "vanilla" if tied else "vanilla-untied"
    network = build_network(override(load_recipe(row), [f"model.hidden={hidden}"]), words, None)
    count = sum(parameter.numel() for parameter in network.parameters())
    assert count == (1 if tied else 2) * words * hidden + words + 2 * (2 * 4 * hidden * hidden + 4 * hidden)
    assert round(count / 1e6, 2) == millions


def test_initial_weights_depend_on_the_seed_alone():
    config = override(load_recipe("vanilla"), ["model.hidden=8"])
    first, second, other = (
        torch.cat(
            [p.detach().flatten() for p in build_network(override(config, [f"train.seed={seed}"]), 20, None).parameters()]
        )
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert float(first.abs().max()) == 1.0, "the forget bias"
    assert 0.3 < float(first[: 20 * 8].abs().max()) <= 8**-0.5


@pytest.mark.parametrize("row", ["vanilla", "smoothing-blank", "vanilla-untied"])
def test_a_bias_may_start_at_how_frequent_words_are(row):
    ids = torch.tensor([0, 3, 3, 3, 1, 0, 3, 1, 3, 3])
    counts = Counts.from_ids(ids, 5)
    config = override(load_recipe(row), ["model.hidden=8", "model.bias=unigram"])
    network = build_untrained(config, counts)
    expected = torch.tensor([3, 3, 1, 7, 1]) / 15  # words 2 and 4 are never seen
    assert torch.allclose(network.bias.softmax(0), expected)
    assert float(network.bias.detach().sum()) == pytest.approx(0, abs=1e-6)
    plain = build_untrained(override(config, ["model.bias=zero"]), counts)
    assert torch.equal(plain.bias, torch.zeros(5))
    others = zip(network.named_parameters(), plain.named_parameters(), strict=True)
    assert all(torch.equal(own, same) for (name, own), (_, same) in others if name != "bias")


def naive_penalty(network: RecurrentLanguageModel, input_weights: list[float], output_weights: list[float]) -> float:
    total = 0.0
    for name, parameter in network.named_parameters():
        weights = {"input_table": input_weights, "own_output_table": output_weights}.get(name)
        for i, row in enumerate(parameter.detach().double()):
            total += float(row.square().sum()) * (1 if weights is None else weights[i])
    return total / 2


def exact_weights(scheme: str) -> list[float]:
    """How often each row is used when every word draws one: the sum over words of eq. 1."""
    proposal = some_proposal(scheme)
    rate, probs = proposal.rate.tolist(), proposal.probs.tolist()
    rows = range(proposal.vocab_size)
    return [sum((1 - rate[i]) * (v == i) + rate[i] * probs[v] for i in rows) for v in rows]


@pytest.mark.parametrize("scheme", ["kneser-ney", "linear-interpolation", "absolute-discounting", "blank"])
@pytest.mark.parametrize(("tied", "output"), list(itertools.product([True, False], ["none", "target", "table"])))
def test_penalty_weighs_each_drawn_table_by_how_often_its_rows_are_drawn(scheme, tied, output):
    network = some_network(scheme, tied=tied, output=output)
    for table in {network.input_table, network.output_table}:
        table.data.mul_(torch.arange(len(table))[:, None])  # or the average row would hide its weight
    drawn = exact_weights(scheme)
    expected = naive_penalty(network, drawn, [1] * len(drawn) if output == "none" else drawn)
    assert penalty(network).item() == pytest.approx(expected, rel=1e-5)
    assert expected != pytest.approx(naive_penalty(network, [1] * len(drawn), [1] * len(drawn)), rel=1e-3)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("method", ["none", "noising"])
def test_penalty_is_plain_without_a_drawn_table(method, tied):
    network = some_network(method=method, tied=tied, output="none", kl="exact")
    assert penalty(network).item() == pytest.approx(naive_penalty(network, [1] * WORDS, [1] * WORDS), rel=1e-5)


def test_penalty_forms():
    proposal = some_proposal()
    printed = [1 + (WORDS - 2 + t) * g for g, t in zip(proposal.rate.tolist(), proposal.probs.tolist(), strict=True)]
    for form, weights in (("printed", printed), ("plain", [1] * WORDS)):
        network = some_network(kl=form)
        assert penalty(network).item() == pytest.approx(naive_penalty(network, weights, []), rel=1e-5)


@pytest.mark.parametrize("kl", ["exact", "printed", "plain"])
@pytest.mark.parametrize(("tied", "output"), list(itertools.product([True, False], ["none", "table"])))
def test_row_weights_are_for_the_tables_that_are_drawn(kl, tied, output):
    network = some_network(tied=tied, output=output, kl=kl)
    parameters, weights = list(network.parameters()), network.row_weights()
    for parameter, weight in zip(parameters, weights, strict=True):
        assert weight is None or weight.shape == (len(parameter),)
    drawn = [network.input_table] + ([] if tied or output == "none" else [network.own_output_table])
    weighed = [p for p, w in zip(parameters, weights, strict=True) if w is not None]
    assert [id(p) for p in weighed] == [id(p) for p in (drawn if kl != "plain" else [])]


@pytest.mark.parametrize("settings", [{"method": "none"}, {"method": "noising"}, {"gamma": 0.0, "output": "table"}])
def test_rows_count_alike_where_nothing_is_drawn(settings):
    assert set(some_network(**settings).row_weights()) == {None}


def test_row_weights_are_made_once_and_follow_the_module():
    network = some_network()
    first = network.row_weights()[0]
    assert network.row_weights()[0] is first
    network.double()
    assert network.row_weights()[0].dtype == torch.float64
    torch.testing.assert_close(network.row_weights()[0], first.double())


def input_replaced(network: RecurrentLanguageModel, word: int, sequence: int, position: int) -> bool:
    """Whether the coin of this input fell: its 24 top bits, read as a signed number, lie in the last share of g_i."""
    bits = int(row_words(KEY.at(Site.INPUT), torch.tensor(word), sequence, position)[0]) ^ 1 << 31
    return bits >> 8 >= (1 - float(network.smoothing.proposal.rate[word].double())) * 2**24


def activation_mask(network: RecurrentLanguageModel, site: Site) -> Tensor:
    """What multiplies activations [T, B, D], one element after the other; ones unless they are what is dropped."""
    mask, rate = torch.ones(T, B, WIDTH, dtype=torch.float64), network.smoothing.dropout
    if network.smoothing.dropout_kind == "table":
        return mask
    for t, b, d in itertools.product(range(T), range(B), range(WIDTH)):
        words = [part.int() for part in row_words(KEY.at(site), torch.tensor([0]), b, t)]
        bits = element_bits(words[2], words[3], element_counter(torch.tensor([d], dtype=torch.int32), Stream.COIN))
        mask[t, b, d] = 0 if int(bits) >> 8 < round((rate - 0.5) * 2**24) else 1 / (1 - rate)
    assert 0 < float((mask == 0).double().mean()) < 1
    return mask


def naive_loss(network: RecurrentLanguageModel, inputs: Tensor, targets: Tensor) -> Tensor:
    """One column and one position at a time, from whole tables."""
    smoothing, state = network.smoothing, network.initial_state(B)
    rate = smoothing.dropout if smoothing.dropout_kind == "table" else 0.0
    common = (rate, smoothing.dropout_granularity, smoothing.variance)
    if smoothing.method == "noising":
        inputs, targets = noise(inputs, targets, smoothing.proposal, KEY.at(Site.NOISING))
    drawn = smoothing.proposal if smoothing.method == "variational" else None
    q_input = EmbeddingPosterior(network.input_table, drawn, smoothing.granularity, smoothing.scope, *common)
    vectors = torch.stack(
        [
            torch.stack([q_input.sample(KEY.at(Site.INPUT), b, t)[inputs[t, b]] for b in range(inputs.shape[1])])
            for t in range(inputs.shape[0])
        ]
    )
    vectors = vectors * activation_mask(network, Site.INPUT_ACTIVATION)
    hidden, _ = network.stack(vectors, state, KEY.at(Site.RECURRENT))
    hidden = hidden * activation_mask(network, Site.OUTPUT_ACTIVATION)
    on_output = drawn if smoothing.output == "table" else None
    q_output = EmbeddingPosterior(network.output_table, on_output, smoothing.granularity, "batch", *common)
    output_key = KEY.at(Site.INPUT if smoothing.shared_draw else Site.OUTPUT)
    table = q_output.sample(output_key)[:WORDS]
    factor = EmbeddingPosterior(torch.ones_like(network.output_table), None, "word", "batch", *common[:2]).sample(output_key)
    losses = torch.empty(inputs.shape, dtype=network.bias.dtype)
    for t, b in itertools.product(range(inputs.shape[0]), range(inputs.shape[1])):
        target = int(targets[t, b])
        logits = table @ hidden[t, b] + network.bias
        if smoothing.output == "target" and input_replaced(network, int(inputs[t, b]), b, 0):
            bits = row_words(output_key, torch.tensor(target), b)[1]
            other = network.output_table[smoothing.proposal.draw(bits)] * factor[target]
            logits = logits.clone()
            logits[target] = hidden[t, b] @ other + network.bias[target]
        losses[t, b] = logits.logsumexp(0) - logits[target]
    return losses


CASES: list[dict[str, Any]] = [
    {"method": "none"},
    {"method": "none", "dropout": 0.4},
    {"method": "none", "dropout": 0.4, "tied": False, "cell": "gru"},
    {"method": "none", "dropout": 0.4, "dropout_granularity": "word"},
    {"method": "none", "dropout": 0.4, "dropout_kind": "activation"},
    {"method": "none", "dropout": 0.3, "dropout_kind": "activation", "tied": False, "cell": "gru"},
    {"method": "noising", "dropout": 0.4},
    {"method": "noising", "scheme": "blank"},
    {"method": "noising", "scheme": "linear-interpolation"},
    {"scope": "sequence"},
    {"scope": "batch", "output": "none", "dropout": 0.4},
    {"scope": "position", "dropout": 0.4, "tied": False},
    {"scope": "sequence", "output": "target"},
    {"scope": "sequence", "output": "target", "dropout": 0.4, "tied": False},
    {"scope": "sequence", "output": "target", "dropout": 0.4, "dropout_kind": "activation"},
    {"scope": "sequence", "output": "table", "dropout": 0.4, "variance": 0.3},
    {"scope": "sequence", "output": "table", "granularity": "element", "dropout": 0.4, "dropout_kind": "activation"},
    {"scope": "sequence", "output": "table", "granularity": "element", "dropout": 0.4},
    {"scope": "position", "output": "table", "granularity": "element", "dropout": 0.4, "dropout_granularity": "word"},
    {"scope": "batch", "output": "table", "granularity": "element", "dropout": 0.4, "shared_draw": True},
    {"scheme": "absolute-discounting", "output": "table", "tied": False},
    {"scheme": "blank", "output": "none", "dropout": 0.4},
    {"scheme": "blank", "output": "table", "granularity": "element"},
    {"scheme": "blank", "output": "target", "tied": False},
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(value) for value in case.values()))
def test_loss_equals_a_naive_one_from_whole_tables(case):
    network = some_network(**case).double()
    inputs, targets = some_ids(T, B), some_ids(T, B, seed=4)
    loss, _ = network.loss(inputs, targets, network.initial_state(B), KEY)
    expected = naive_loss(network, inputs, targets)
    torch.testing.assert_close(loss.per_token, expected.float(), rtol=1e-5, atol=1e-5)
    names, parameters = zip(*network.named_parameters(), strict=True)
    found, naive = (torch.autograd.grad(each.double().sum(), parameters) for each in (loss.per_token, expected))
    for name, ours, theirs in zip(names, found, naive, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(value) for value in case.values()))
def test_a_shard_of_columns_has_the_loss_it_has_in_the_whole_batch(case):
    network = some_network(**case)
    inputs, targets, state = some_ids(T, B), some_ids(T, B, seed=4), network.initial_state(B)
    whole = network.loss(inputs, targets, state, KEY)[0].per_token
    shard, after = network.loss(inputs[:, 2:], targets[:, 2:], network.initial_state(B - 2), KEY, first_sequence=2)
    torch.testing.assert_close(shard.per_token, whole[:, 2:])
    assert after[0].shape == (2, B - 2, WIDTH)


@pytest.mark.parametrize("case", [case for case in CASES if case.get("method") != "none"], ids=str)
def test_cases_are_not_the_plain_loss_in_disguise(case):
    plain = {
        "method": "none",
        **{key: case[key] for key in ("tied", "dropout", "dropout_granularity", "dropout_kind") if key in case},
    }
    inputs, targets = some_ids(T, B), some_ids(T, B, seed=4)
    network, vanilla = some_network(**case), some_network(**plain)
    vanilla.load_state_dict({name: value[: len(vanilla.state_dict()[name])] for name, value in network.state_dict().items()})
    losses = [each.loss(inputs, targets, each.initial_state(B), KEY)[0].per_token for each in (network, vanilla)]
    assert not torch.allclose(*losses, rtol=1e-2)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")  # the first product in autograd's thread
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(value) for value in case.values()))
@pytest.mark.parametrize(("precision", "limit"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
def test_a_gpu_has_the_loss_and_the_gradients_of_the_cpu(monkeypatch, case, precision, limit):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    inputs, targets = some_ids(T, B), some_ids(T, B, seed=4)
    results = []
    for device in ("cpu", "cuda"):
        network = some_network(**case).to(device)
        with torch.autocast("cuda", precision, enabled=precision != torch.float32):
            state = network.initial_state(B)
            loss, _ = network.loss(inputs.to(device), targets.to(device), state, KEY)
        gradients = torch.autograd.grad(loss.per_token.sum(), list(network.parameters()))
        results.append([loss.per_token.detach(), *gradients])
    names = ["loss", *dict(some_network(**case).named_parameters())]
    for name, ours, theirs in zip(names, *results, strict=True):
        assert theirs.dtype == torch.float32
        assert float((theirs.cpu() - ours).norm()) <= limit * float(ours.norm()), name


def test_state_is_carried_from_window_to_window():
    network = some_network(method="none", recurrent_dropout=0.0)
    inputs, targets = some_ids(2 * T, B), some_ids(2 * T, B, seed=4)
    whole, end = network.loss(inputs, targets, network.initial_state(B), KEY)
    first, state = network.loss(inputs[:T], targets[:T], network.initial_state(B), KEY)
    second, state = network.loss(inputs[T:], targets[T:], state, KEY)
    torch.testing.assert_close(torch.cat([first.per_token, second.per_token]), whole.per_token)
    torch.testing.assert_close(state, end)


def mean_table(network: RecurrentLanguageModel, table: Tensor) -> Tensor:
    proposal = network.smoothing.proposal
    centre = sum(float(p) * row for p, row in zip(proposal.probs, table, strict=True))
    return torch.stack([(1 - float(g)) * row + float(g) * centre for g, row in zip(proposal.rate, table, strict=True)])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("output", ["none", "target", "table"])
def test_tables_that_predict(tied, output):
    network = some_network(tied=tied, output=output, dropout=0.5)
    mode, mean, mean_input = (network.tables(predict) for predict in ("mode", "mean", "mean-input"))
    assert mode.input is network.input_table
    assert mode.output is network.output_table
    for tables in (mean, mean_input):
        torch.testing.assert_close(tables.input, mean_table(network, network.input_table))
    torch.testing.assert_close(mean_input.output, network.output_table)
    drawn = output != "none"
    torch.testing.assert_close(mean.output, mean_table(network, network.output_table) if drawn else network.output_table)


def test_without_a_proposal_every_prediction_is_the_mode_and_noising_has_the_mean_of_its_inputs():
    vanilla, noising = some_network(method="none"), some_network(method="noising")
    for predict in ("mode", "mean", "mean-input"):
        assert all(torch.equal(table, vanilla.input_table) for table in vanilla.tables(predict))
    torch.testing.assert_close(noising.tables("mean").input, mean_table(noising, noising.input_table))
    assert torch.equal(noising.tables("mean").output, noising.input_table)


def test_logits_have_no_noise_and_match_a_loss_without_any():
    network = some_network(method="none", dropout=0.5)
    inputs, targets = some_ids(T, B), some_ids(T, B, seed=4)
    logits, state = network.logits(inputs, network.initial_state(B), network.tables("mode"))
    again, _ = network.logits(inputs, network.initial_state(B), network.tables("mode"))
    assert torch.equal(logits, again)
    quiet = some_network(method="none", dropout=0.0, recurrent_dropout=0.0)
    loss, quiet_state = quiet.loss(inputs, targets, quiet.initial_state(B), KEY)
    picked = logits.gather(-1, targets[..., None]).squeeze(-1)
    torch.testing.assert_close(logits.logsumexp(-1) - picked, loss.per_token)
    torch.testing.assert_close(state, quiet_state)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("output", ["none", "target", "table"])
def test_a_blank_is_never_a_target(tied, output):
    network = some_network("blank", tied=tied, output=output)
    assert len(network.input_table) == len(network.output_table) == WORDS + 1
    blanks = torch.full((T, B), WORDS)
    for logits in (
        network.logits(blanks, network.initial_state(B), network.tables("mean"))[0],
        network.sampled_logits(blanks, network.initial_state(B), KEY)[0],
    ):
        assert logits.shape == (T, B, WORDS)
    loss, _ = network.loss(blanks, some_ids(T, B), network.initial_state(B), KEY)
    assert torch.isfinite(loss.per_token).all()
    with pytest.raises(IndexError, match=f"{WORDS} is out of bounds"):
        network.loss(some_ids(T, B), blanks, network.initial_state(B), KEY)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.get("method") != "noising"], ids=lambda case: "-".join(map(str, case.values()))
)
def test_sampled_logits_are_those_of_drawn_tables_without_dropout(case):
    network = some_network(**case)
    smoothing = network.smoothing
    inputs = some_ids(T, B)
    drawn = (smoothing.granularity, smoothing.scope, 0.0, "element", smoothing.variance)
    q_input = EmbeddingPosterior(network.input_table, smoothing.drawn, *drawn)
    on_output = None if smoothing.output == "none" else smoothing.drawn
    q_output = EmbeddingPosterior(network.output_table, on_output, *drawn)
    table = q_output.sample(KEY.at(Site.INPUT if smoothing.shared_draw else Site.OUTPUT))[:WORDS]
    hidden, after = network.stack(q_input.lookup(inputs, KEY.at(Site.INPUT)), network.initial_state(B), None)
    logits, state = network.sampled_logits(inputs, network.initial_state(B), KEY)
    torch.testing.assert_close(logits, hidden @ table.T + network.bias)
    torch.testing.assert_close(state, after)


def test_sampling_a_noised_model_noises_its_inputs_alone():
    network = some_network(method="noising", dropout=0.5)
    inputs = some_ids(T, B)
    noised = noise_inputs(inputs, network.smoothing.proposal, KEY.at(Site.NOISING))
    assert not torch.equal(noised, inputs)
    expected, _ = network.logits(noised, network.initial_state(B), network.tables("mode"))
    assert torch.equal(network.sampled_logits(inputs, network.initial_state(B), KEY)[0], expected)


@pytest.mark.parametrize("method", ["variational", "noising"])
def test_moving_the_module_moves_everything_that_draws(method):
    network = some_network(method=method, output="table" if method == "variational" else "none", dropout=0.4)
    inputs, targets = some_ids(T, B), some_ids(T, B, seed=4)
    single = network.loss(inputs, targets, network.initial_state(B), KEY)[0].per_token
    before = network.posteriors
    network.double()
    assert network.posteriors is not before
    assert all(q.weight is table for q, table in zip(network.posteriors, network.tables("mode"), strict=True))
    assert network.initial_state(B)[0].dtype == penalty(network).dtype == torch.float64
    assert all(table.dtype == torch.float64 for table in network.tables("mean"))
    double = network.loss(inputs, targets, network.initial_state(B), KEY)[0].per_token
    torch.testing.assert_close(double, single, rtol=1e-4, atol=1e-4)
    network.float()
    assert torch.equal(network.loss(inputs, targets, network.initial_state(B), KEY)[0].per_token, single)


def test_the_proposal_goes_where_the_module_goes(monkeypatch):
    network = some_network(method="noising")
    asked = []
    monkeypatch.setattr(type(network.smoothing.proposal), "to", lambda self, device: asked.append(device) or self)
    network.to("cpu")
    assert asked == [network.bias.device]


def test_new_weights_in_place_are_what_is_drawn_from():
    network, other = some_network(), some_network()
    inputs, targets = some_ids(T, B), some_ids(T, B, seed=4)
    network.loss(inputs, targets, network.initial_state(B), KEY)
    for parameter in other.parameters():
        parameter.data.mul_(0.5)
    network.load_state_dict(other.state_dict())
    losses = [each.loss(inputs, targets, each.initial_state(B), KEY)[0].per_token for each in (network, other)]
    assert torch.equal(*losses)


def test_weights_that_are_put_in_place_of_others_are_drawn_from():
    network, other = some_network(), some_network()
    inputs, targets = some_ids(T, B), some_ids(T, B, seed=4)
    network.loss(inputs, targets, network.initial_state(B), KEY)
    with torch.no_grad():
        other.input_table.mul_(3.0)
    network.load_state_dict(other.state_dict(), assign=True)
    losses = [each.loss(inputs, targets, each.initial_state(B), KEY)[0].per_token for each in (network, other)]
    assert torch.equal(*losses)


def test_an_output_table_of_its_own_that_is_put_in_place_of_another_is_drawn_from():
    network, other = some_network(tied=False, output="table"), some_network(tied=False, output="table")
    inputs, targets = some_ids(T, B), some_ids(T, B, seed=4)
    network.loss(inputs, targets, network.initial_state(B), KEY)
    with torch.no_grad():
        other.own_output_table.mul_(3.0)
    network.own_output_table = torch.nn.Parameter(other.own_output_table.detach().clone())
    losses = [each.loss(inputs, targets, each.initial_state(B), KEY)[0].per_token for each in (network, other)]
    assert torch.equal(*losses)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "variational"}, "needs a proposal"),
        ({"shared_draw": True, "output": "table"}, "scope 'batch'"),
        ({"shared_draw": True, "scope": "batch"}, "output 'table'"),
        ({"output": "target", "granularity": "element"}, "granularity 'word'"),
    ],
)
def test_settings_that_make_no_sense_together(settings, message):
    with pytest.raises(InputError, match=message):
        Smoothing(**settings)


def test_a_shared_draw_needs_tied_tables():
    with pytest.raises(InputError, match="tied"):
        some_network(tied=False, shared_draw=True, output="table", scope="batch")
