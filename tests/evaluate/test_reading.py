from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from networks_for_tests import WIDTH, WORDS, some_ids, some_network
from varsmooth import Counts, EmbeddingPosterior, Proposal
from varsmooth.evaluate import Reading, Scales, best_temperature, evaluate, output, perplexity, reading, side_by_side
from varsmooth.evaluate.columns import Columns
from varsmooth.evaluate.reading import read, read_together
from varsmooth.evaluate.side_by_side import SideBySide
from varsmooth.model import RecurrentLanguageModel, RecurrentStack, Tables

EOS = 2
IDS = some_ids(101)


@torch.no_grad()
def naive_logits(network: RecurrentLanguageModel, ids: Tensor, predict: str, batch: int, burn_in: int) -> Tensor:
    """Every token's logits [tokens, words] from the definition: column by column, one token at a time."""
    tables, tokens = network.tables(predict), [EOS, *ids.tolist()]
    column = math.ceil(len(ids) / min(batch, len(ids)))
    found = []
    for start in range(0, len(ids), column):
        state = network.initial_state(1)
        for place in range(max(0, start - burn_in) if start else 0, min(start + column, len(ids))):
            logits, state = network.logits(torch.tensor([[tokens[place]]]), state, tables)
            if place >= start:
                found.append(logits[0, 0].double())
    return torch.stack(found)


def naive_losses(logits: Tensor, ids: Tensor, temperature: float) -> list[float]:
    scaled = zip(logits / temperature, ids.tolist(), strict=True)
    return [float(row.logsumexp(0) - row[word]) for row, word in scaled]


@torch.no_grad()
def text_of(network: RecurrentLanguageModel, tokens: int) -> Tensor:
    """A text that the network itself might write, so that its best temperature is not at infinity."""
    generator, state, ids = torch.Generator().manual_seed(5), network.initial_state(1), [EOS]
    for _ in range(tokens):
        logits, state = network.logits(torch.tensor([ids[-1:]]), state, network.tables("mode"))
        ids.append(int(torch.multinomial((logits[0, 0] / 1.3).softmax(0), 1, generator=generator)))
    return torch.tensor(ids[1:])


def some_reading(network: RecurrentLanguageModel, ids: Tensor, predict: str, batch: int, burn_in: int, window: int) -> Reading:
    columns = Columns.cut(ids, EOS, batch, burn_in, torch.device("cpu"))
    return read(network, columns, network.tables(predict), predict, window)


@pytest.fixture
def steps_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps of every call of a recurrent stack."""
    read_so_far = []
    forward = RecurrentStack.forward

    def watched(self, inputs, *arguments):
        read_so_far.append(len(inputs))
        return forward(self, inputs, *arguments)

    monkeypatch.setattr(RecurrentStack, "forward", watched)
    return read_so_far


@pytest.mark.parametrize(("cell", "scheme"), [("lstm", "kneser-ney"), ("gru", "blank")])
@pytest.mark.parametrize(
    ("tokens", "batch", "burn_in", "window"),
    [(101, 1, 64, 128), (101, 1, 0, 7), (101, 4, 10, 9), (101, 10, 3, 50), (101, 200, 64, 128), (1, 1, 64, 128), (1, 16, 5, 1)],
)
def test_losses_are_those_of_the_definition(cell, scheme, tokens, batch, burn_in, window):
    network = some_network(scheme, cell=cell, output="table", dropout=0.5)
    ids = IDS[:tokens]
    longest = math.ceil(tokens / min(batch, tokens))
    for predict in ("mode", "mean", "mean-input"):
        found = some_reading(network, ids, predict, batch, burn_in, window)
        # A burn-in is never longer than a column.
        logits = naive_logits(network, ids, predict, batch, min(burn_in, longest))
        for temperature in (1.0, 0.5, 3.0):
            expected = naive_losses(logits, ids, temperature)
            assert len(expected) == tokens
            torch.testing.assert_close(found.token_nll(temperature), torch.tensor(expected), rtol=1e-4, atol=1e-4)
            assert found.evaluate(temperature).nll == pytest.approx(sum(expected) / tokens, rel=1e-5)


@pytest.mark.parametrize(("batch", "burn_in"), [(1, 0), (4, 10)])
def test_one_reading_answers_as_the_functions_do_and_runs_the_stack_once(steps_read, batch, burn_in):
    network = some_network(output="table")
    ids = text_of(network, 101)
    steps_read.clear()
    options = {"predict": "mean", "batch": batch, "burn_in": burn_in, "window": 9}
    expected = [evaluate(network, ids, EOS, temperature=temperature, **options) for temperature in (1.0, 1.7)]
    tuned = best_temperature(network, ids, EOS, **options)
    assert 0.5 < tuned < 2
    steps = math.ceil(101 / batch) + burn_in
    assert sum(steps_read) == 3 * steps, "each of them reads once, however many passes Newton's method takes"
    steps_read.clear()
    found = some_reading(network, ids, "mean", batch, burn_in, 9)
    assert [found.evaluate(temperature) for temperature in (1.0, 1.7)] == expected
    assert found.best_temperature() == tuned
    assert sum(steps_read) == steps


def test_a_stream_too_long_to_keep_is_read_for_every_question_with_the_same_answers(steps_read, monkeypatch):
    network = some_network(output="table")
    ids = text_of(network, 101)
    kept = some_reading(network, ids, "mean", 4, 10, 9)
    monkeypatch.setitem(reading.HIDDEN_BYTES, "cpu", 26 * 4 * WIDTH * 4)
    assert some_reading(network, ids, "mean", 4, 10, 9).hidden is not None, "just fits"
    monkeypatch.setitem(reading.HIDDEN_BYTES, "cpu", 26 * 4 * WIDTH * 4 - 1)
    steps_read.clear()
    again = some_reading(network, ids, "mean", 4, 10, 9)
    assert again.hidden is None
    assert steps_read == []
    torch.testing.assert_close(again.token_nll(1.3), kept.token_nll(1.3))
    assert sum(steps_read) == 36
    assert again.best_temperature() == pytest.approx(kept.best_temperature(), rel=1e-6)
    assert sum(steps_read) >= 2 * 36
    assert sum(steps_read) % 36 == 0


@pytest.mark.parametrize("side_by_side", [False, True, None])
def test_streams_and_predictions_read_together_are_as_each_alone(steps_read, side_by_side):
    network = some_network("blank", output="table")
    ids = text_of(network, 101)
    streams = {"long": ids, "short": ids[50:87], "one": ids[:1]}
    steps_read.clear()
    predicts = ("mode", "mean", "mean-input")
    found = read_together(network, streams, EOS, predicts, window=9, side_by_side=side_by_side)
    # The two means share the input table, and so what the recurrent layers make of it.
    assert sum(steps_read) == (101 if side_by_side else 2 * (101 + 37 + 1))
    assert set(found) == {(name, predict) for name in streams for predict in predicts}
    assert len({found["short", predict].evaluate().nll for predict in predicts}) == 3
    for (name, predict), each in found.items():
        for temperature in (1.0, 0.7):
            alone = evaluate(network, streams[name], EOS, predict=predict, temperature=temperature, window=9)
            joined = each.evaluate(temperature)
            if side_by_side:
                assert (joined.predict, joined.tokens) == (alone.predict, alone.tokens)
                assert joined.nll == pytest.approx(alone.nll, rel=1e-6)
            else:
                assert joined == alone
        assert each.best_temperature() == pytest.approx(
            best_temperature(network, streams[name], EOS, predict=predict), rel=1e-5
        )


def test_only_streams_short_enough_are_kept(monkeypatch):
    network = some_network()
    monkeypatch.setitem(reading.HIDDEN_BYTES, "cpu", 50 * 4 * WIDTH)
    found = read_together(network, {"long": IDS, "short": IDS[:50]}, EOS, ["mode"], window=9)
    assert (found["long", "mode"].hidden, found["short", "mode"].hidden is None) == (None, False)
    assert found["long", "mode"].evaluate().nll == pytest.approx(evaluate(network, IDS, EOS).nll, rel=1e-6)


@pytest.mark.parametrize("predict", ["mode", "mean"])
def test_the_best_temperature_has_no_slope(predict):
    """Against a central difference of the naive loss."""
    network = some_network(output="table")
    ids = text_of(network, 101)
    found = some_reading(network, ids, predict, 4, 10, 9).best_temperature(tolerance=1e-7)
    logits = naive_logits(network, ids, predict, 4, 10)
    losses = [sum(naive_losses(logits, ids, found * factor)) for factor in (0.99, 1.0, 1.01)]
    assert losses[1] < min(losses[0], losses[2])
    assert abs(losses[2] - losses[0]) < 0.05 * (losses[0] + losses[2] - 2 * losses[1])


@pytest.mark.parametrize(("words", "rows"), [(1, 1 << 20), (3800, 275), (10_000, 104), (267_735, 64), (1 << 40, 1)])
def test_few_logits_are_held_at_once(words, rows):
    assert output.rows_at_once(words, torch.device("cpu")) == rows
    on_gpu = output.rows_at_once(words, torch.device("cuda"))
    assert on_gpu >= rows
    assert 4 * words * on_gpu <= output.LOGIT_BYTES or on_gpu == 1


def test_memory_is_bounded_whatever_the_window_and_the_batch(monkeypatch):
    network = some_network()
    options = [{"batch": batch, "burn_in": 50, "window": 10**6} for batch in (1, 3)]
    whole = [evaluate(network, IDS, EOS, **each).nll for each in options]
    ids = text_of(network, 101)
    tuned = best_temperature(network, ids, EOS, batch=3)
    logits, gates = [], []
    linear, forward = output.F.linear, RecurrentStack.forward

    def watched_linear(*arguments):
        logits.append(4 * linear(*arguments).numel())
        return linear(*arguments)

    def watched_forward(self, inputs, *arguments):
        gates.append(16 * inputs.numel())
        return forward(self, inputs, *arguments)

    monkeypatch.setattr(output.F, "linear", watched_linear)
    monkeypatch.setattr(RecurrentStack, "forward", watched_forward)
    monkeypatch.setattr(output, "LOGIT_BYTES", 4 * WORDS * 7)
    monkeypatch.setattr(reading, "GATE_BYTES", 16 * WIDTH * 3 * 5)
    for each, nll in zip(options, whole, strict=True):
        assert evaluate(network, IDS, EOS, **each).nll == pytest.approx(nll, rel=1e-6)
    assert best_temperature(network, ids, EOS, batch=3) == pytest.approx(tuned, rel=1e-5)
    assert max(logits) == 4 * WORDS * 7
    assert max(gates) == 16 * WIDTH * 3 * 5


@torch.no_grad()
def test_a_network_of_low_precision_is_scored_in_high():
    network = some_network(method="none").bfloat16()
    found = some_reading(network, IDS, "mode", 1, 0, 50)
    assert found.hidden is not None
    assert found.hidden.dtype == torch.bfloat16
    logits = torch.nn.functional.linear(found.hidden[:, 0], network.input_table, network.bias).double()
    expected = torch.nn.functional.cross_entropy(logits, IDS)
    assert found.evaluate().nll == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize(("cell", "tied"), [("lstm", True), ("gru", False)])
@pytest.mark.parametrize("window", [1, 7, 50, 100, 101, 500])
def test_what_is_captured_is_the_same_reading(monkeypatch, cell, tied, window):
    """With the step itself in the place of its graph: every call must find what the one before it left."""
    monkeypatch.setattr(side_by_side, "Captured", lambda step: step)
    network = some_network(output="table", cell=cell, tied=tied)
    inputs = some_ids(101, 2)
    tables = [network.input_table, network.tables("mean").input]
    with torch.inference_mode():
        found = SideBySide(network, inputs, tables, window).read()
        for number in range(4):
            table, stream = divmod(number, 2)
            vectors = torch.nn.functional.embedding(inputs[:, stream : stream + 1], tables[table])
            alone, _ = network.stack(vectors, network.initial_state(1), None)
            torch.testing.assert_close(found[:, number : number + 1], alone)


@pytest.mark.parametrize("temperatures", [(1.0,), (1.0, 0.8), (1.3, 1.0, 0.8)])
def test_several_temperatures_at_once_are_each_exactly_as_alone(temperatures, monkeypatch):
    network = some_network(output="table")
    found = some_reading(network, IDS, "mean", 1, 0, 16)
    computed, linear = [], output.F.linear
    monkeypatch.setattr(output.F, "linear", lambda *arguments: computed.append(1) or linear(*arguments))
    together = found.judged_at(temperatures)
    assert len(computed) == 1, "one pass over the logits"
    for temperature, each in zip(temperatures, together, strict=True):
        assert torch.equal(each.nll, found.token_nll(temperature))
        assert all(torch.equal(*pair) for pair in zip(each, found.judged(temperature), strict=True))
    computed.clear()
    scales = Scales(0.8, 1.3)
    again, scaled = found.judged_and_scaled(temperatures, scales)
    assert len(computed) == 1, "with scales, too"
    for pair in zip(again, together, strict=True):
        assert all(torch.equal(*parts) for parts in zip(*pair, strict=True))
    assert scaled == found.scaled(scales)


@pytest.mark.gpu
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_on_a_gpu_streams_are_read_side_by_side_with_the_results_of_the_cpu(steps_read, cell):
    network = some_network(output="table", cell=cell)
    ids = text_of(network, 301)
    streams, predicts = {"long": ids, "short": ids[50:87]}, ("mode", "mean", "mean-input")
    expected = read_together(network, streams, EOS, predicts, window=50)
    figures = {pair: (each.evaluate(1.2).nll, each.best_temperature()) for pair, each in expected.items()}
    network.cuda()
    steps_read.clear()
    found = read_together(network, streams, EOS, predicts, window=50)
    assert steps_read == [43] * 4, "three windows before the capture and one in it; the others are replayed"
    for pair, each in found.items():
        assert (each.evaluate(1.2).nll, each.best_temperature()) == pytest.approx(figures[pair], rel=1e-5)
        assert each.token_nll().is_cuda


@pytest.mark.gpu
def test_nothing_waits_for_the_gpu_but_the_reading_of_a_sum():
    network = some_network(output="table").cuda()
    columns = Columns.cut(some_ids(3000), EOS, 8, 20, torch.device("cuda"))
    read(network, columns, network.tables("mean"), "mean", 50).evaluate()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        losses = read(network, columns, network.tables("mean"), "mean", 50).token_nll(1.5)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.isfinite(losses).all()


def test_a_temperature_is_one_scale_for_context_and_bias():
    network = some_network(output="table")
    found = some_reading(network, IDS, "mode", 4, 10, 9)
    for temperature in (0.7, 1.0, 1.9):
        scales = Scales(1 / temperature, 1 / temperature)
        assert found.scaled(scales).perplexity == pytest.approx(found.evaluate(temperature).perplexity, rel=1e-5)


def test_the_mean_of_a_table_smoothed_at_one_rate_is_a_scale_of_the_context():
    network = some_network()
    columns, mode = Columns.cut(IDS, EOS, 1, 0, torch.device("cpu")), network.tables("mode")
    counts = Counts.from_ids(torch.arange(WORDS), WORDS)
    mean = EmbeddingPosterior(mode.output, Proposal.linear_interpolation(counts, 0.3)).mean()
    smoothed = read(network, columns, Tables(mode.input, mean), "mean", 9)
    plain = read(network, columns, mode, "mode", 9)
    assert plain.scaled(Scales(1 - 0.3, 1.0)).perplexity == pytest.approx(smoothed.evaluate().perplexity, rel=1e-5)


def test_the_best_scales_are_best():
    network = some_network(output="table")
    found = some_reading(network, text_of(network, 400), "mode", 1, 0, 50)
    best = found.best_scales()
    lowest = found.scaled(best).perplexity
    assert lowest <= found.evaluate(found.best_temperature()).perplexity
    for context, bias in ((0.1, 0.0), (-0.1, 0.0), (0.0, 0.1), (0.0, -0.1), (0.1, 0.1), (-0.1, -0.1)):
        assert found.scaled(Scales(best.context + context, best.bias + bias)).perplexity > lowest
    with torch.no_grad():
        network.bias.fill_(1.5)
    assert found.best_scales().bias == 1.0, "the same for every word, it says nothing"


def test_a_long_stream_is_read_where_a_part_of_it_points(monkeypatch):
    """The part tells where to begin, not what is found."""
    network = some_network(output="table", tied=False)
    found = some_reading(network, text_of(network, 2000), "mode", 1, 0, 50)
    looked_at = []
    scale_terms = output.scale_terms

    def watched(logits, targets, **about):
        looked_at.append(len(targets))
        return scale_terms(logits, targets, **about)

    monkeypatch.setattr(output, "scale_terms", watched)
    monkeypatch.setattr(output, "rows_at_once", lambda *_: 10_000)
    with torch.no_grad():
        network.own_output_table *= 1.3
    whole = found.best_temperature(tolerance=1e-6), found.best_scales(tolerance=1e-6)
    assert set(looked_at) == {2000}
    passes = len(looked_at)
    looked_at.clear()
    monkeypatch.setattr(reading, "LONG", 1000)
    assert found.best_temperature(tolerance=1e-6) == pytest.approx(whole[0], rel=1e-5)
    scales = found.best_scales(tolerance=1e-6)
    assert (scales.context, scales.bias) == pytest.approx((whole[1].context, whole[1].bias), rel=1e-4)
    assert set(looked_at) == {2000, 250}
    assert looked_at.count(2000) < passes
    monkeypatch.setattr(reading, "LONG", 100)
    assert found.best_temperature(tolerance=1e-6) == pytest.approx(whole[0], rel=1e-5), "of a part of a part"
    assert 31 in looked_at


def test_lines_of_equal_length_whose_beginnings_surprise_do_not_lead_astray(monkeypatch):
    """Every eighth token is one that the model takes for unlikely, so that of these alone no temperature is high enough."""
    generator = torch.Generator().manual_seed(5)
    context, bias = torch.randn(4000, 40, generator=generator), torch.randn(40, generator=generator) / 2
    logits = context + bias
    logits[::8] *= -1
    targets = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    columns, identity = Columns.cut(targets, EOS, 1, 0, bias.device), torch.eye(40)
    network = SimpleNamespace(bias=bias)
    found = reading.Reading(network, columns, Tables(identity, identity), "mode", 128, context[:, None])
    temperature, scales = found.best_temperature(), found.best_scales()
    monkeypatch.setattr(reading, "LONG", 1000)
    assert found.best_temperature() == pytest.approx(temperature, rel=1e-3) == pytest.approx(1.34, abs=0.1)
    assert found.best_scales() == pytest.approx(scales, rel=5e-3)


def test_what_is_found_can_be_used_where_nothing_is_sure_enough():
    """A context that is right and nearly nothing: its best factor has no end."""
    targets, bias = torch.arange(30) % 5, torch.zeros(5)
    columns, identity = Columns.cut(targets, EOS, 1, 0, bias.device), torch.eye(5)
    context = 1e-5 * identity[targets]
    found = reading.Reading(SimpleNamespace(bias=bias), columns, Tables(identity, identity), "mode", 128, context[:, None])
    assert found.best_temperature() == perplexity.COLDEST
    assert found.best_scales().context == 1 / perplexity.COLDEST


def test_where_the_context_says_the_same_of_every_word_the_bias_alone_is_scaled():
    """As by the mean where every word is always replaced: every row of the table is then the same."""
    generator = torch.Generator().manual_seed(5)
    shares = torch.tensor([0.02, 0.4, 0.35, 0.12, 0.08, 0.03])
    targets, right = torch.multinomial(shares, 600, replacement=True, generator=generator), shares.log() - shares.log().mean()
    columns, table = Columns.cut(targets, EOS, 1, 0, right.device), torch.randn(1, 8, generator=generator).expand(6, 8)
    hidden = torch.randn(600, 1, 8, generator=generator)
    for far in (5.0, -0.3):
        network = SimpleNamespace(bias=far * right)
        found = reading.Reading(network, columns, Tables(table, table), "mean", 128, hidden)
        best = found.best_scales()
        assert best.bias == pytest.approx(1 / far, rel=0.1), "for the bias is right but for a factor"
        assert best.context == 1.0
        assert found.scaled(best).perplexity < found.scaled(Scales(1.0, 1 / far)).perplexity


def test_the_derivatives_by_the_scales_are_those_of_autograd():
    generator = torch.Generator().manual_seed(4)
    logits, bias = torch.randn(7, 11, generator=generator).double(), torch.randn(11, generator=generator).double()
    targets, scales = torch.arange(7), Scales(0.8, 1.3)

    def loss(context: Tensor, of_bias: Tensor) -> Tensor:
        return F.cross_entropy(context * (logits - bias) + of_bias * bias, targets, reduction="sum")

    at = tuple(torch.tensor(scale, dtype=torch.float64) for scale in scales)
    slopes, second = torch.autograd.functional.jacobian(loss, at), torch.autograd.functional.hessian(loss, at)
    expected = torch.stack([loss(*at), *slopes, second[0][0], second[0][1], second[1][1]])
    found = output.scale_terms(logits.clone(), targets, bias, scales).sum(-1)
    torch.testing.assert_close(found, expected)
