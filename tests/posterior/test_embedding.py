from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from varsmooth import Counts, EmbeddingPosterior, InputError, Proposal
from varsmooth.draws import DrawKey, Site
from varsmooth.ops.draw_rows import DrawPlan, reference

V, D, T, B = 23, 9, 7, 5
GRANULARITIES = ["word", "element"]
SCOPES = ["sequence", "batch", "position"]
DRAWS = 20_000


def proposal(gamma=0.6, scheme="kneser_ney", vocab_size=V):
    ids = torch.randint(vocab_size - 1, (300,), generator=torch.Generator().manual_seed(1))  # the last word never occurs
    return getattr(Proposal, scheme)(Counts.from_ids(ids, vocab_size), gamma)


def weight(vocab_size=V, width=D):
    return torch.randn(vocab_size, width, generator=torch.Generator().manual_seed(0))


def window(vocab_size=V):
    return torch.randint(vocab_size, (T, B), generator=torch.Generator().manual_seed(2))


settings = pytest.mark.parametrize(
    ("granularity", "dropout_granularity", "dropout", "variance"),
    list(itertools.product(GRANULARITIES, GRANULARITIES, [0.0, 0.4], [0.0, 0.3])),
)


def posterior(granularity="word", scope="sequence", dropout=0.0, dropout_granularity="element", variance=0.0, **other):
    return EmbeddingPosterior(
        other.get("weight", weight()),
        other.get("proposal", proposal()),
        granularity,
        scope,
        dropout,
        dropout_granularity,
        variance,
    )


@settings
@pytest.mark.parametrize("scope", SCOPES)
def test_lookup_is_the_table_of_its_sequence_bit_for_bit(scope, granularity, dropout_granularity, dropout, variance):
    q = posterior(granularity, scope, dropout, dropout_granularity, variance)
    ids = window()
    found = q.lookup(ids, key=7)
    for t in range(T):
        for b in range(B):
            assert torch.equal(found[t, b], q.sample(key=7, sequence=b, position=t)[ids[t, b]])


def test_scopes_share_what_they_say_they_share():
    tables = {
        scope: torch.stack([posterior(scope=scope).sample(7, sequence=b, position=t) for b in range(2) for t in range(2)])
        for scope in SCOPES
    }
    distinct = {scope: len(set(map(str, table.tolist()))) for scope, table in tables.items()}
    assert distinct == {"batch": 1, "sequence": 2, "position": 4}


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("scope", SCOPES)
def test_a_shard_of_columns_draws_what_the_whole_batch_draws(granularity, scope):
    q = posterior(granularity, scope, dropout=0.3)
    ids = window()
    assert torch.equal(q.lookup(ids[:, 2:], 7, first_sequence=2), q.lookup(ids, 7)[:, 2:])


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("noise", [None, proposal(0.0)])
def test_without_noise_everything_is_the_weight_bit_for_bit(granularity, noise):
    q = posterior(granularity, proposal=noise)
    ids = window()
    for table in (q.sample(3), q.mean(), q.mode()):
        assert torch.equal(table, q.weight)
    assert torch.equal(q.lookup(ids, 3), q.weight[ids])


@pytest.mark.parametrize("noise", [None, proposal(0.0), proposal(0.7)])
@pytest.mark.parametrize("vectors", [1, 200])
@pytest.mark.parametrize("has_bias", [True, False])
def test_the_mean_can_be_used_without_building_it(noise, vectors, has_bias):
    q = posterior(proposal=noise, weight=weight().requires_grad_())
    ids, hidden = window(), torch.randn(2, vectors, D, generator=torch.Generator().manual_seed(1))
    bias = torch.linspace(-1, 1, len(q.weight)) if has_bias else None
    assert torch.equal(q.lookup_mean(ids), q.mean()[ids])
    scores, expected = q.score_mean(hidden, bias), F.linear(hidden, q.mean(), bias)
    torch.testing.assert_close(scores, expected)
    gradients = [torch.autograd.grad(table.square().sum(), q.weight)[0] for table in (scores, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        assert q.score_mean(hidden, bias).dtype == torch.bfloat16
        torch.testing.assert_close(q.score_mean(hidden, bias).float(), expected, rtol=0.05, atol=0.1)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_one_word_vocabulary_draws_itself(granularity, dropout):
    noise = Proposal.kneser_ney(Counts.from_ids(torch.zeros(4, dtype=torch.int64), 1), 1.0)
    table = weight(1)
    q = posterior(granularity, proposal=noise, weight=table, dropout=dropout)
    drawn = q.sample(1)
    assert torch.equal(drawn[drawn != 0], (table / (1 - dropout))[drawn != 0])
    assert dropout > 0 or torch.equal(drawn, table)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gamma_1_replaces_every_word_and_only_by_proposed_ones(granularity, dropout):
    """Word v's row holds v in every place, so a draw shows where it came from."""
    table = torch.arange(1.0, 7).unsqueeze(1).expand(6, 400).contiguous()
    noise = Proposal(torch.tensor([1.0, 1, 1, 1, 1, 0]), torch.tensor([0, 0, 0, 0.5, 0.5, 0]))
    q = EmbeddingPosterior(table, noise, granularity, dropout=dropout)
    drawn = q.sample(11) * (1 - dropout)
    assert set(drawn[:5].round(decimals=4).unique().tolist()) - {0.0} == {4.0, 5.0}
    assert set(drawn[5].round(decimals=4).unique().tolist()) - {0.0} == {6.0}
    assert dropout > 0 or bool((drawn > 0).all())


def test_dropping_ends_exactly_where_replacing_everything_starts():
    everything = Proposal(torch.ones(3), torch.full((3,), 1 / 3))
    for step in range(1000):
        plan = DrawPlan.of(everything, by_element=True, dropout=step / 1000, dropout_by_element=True, variance=0.0)
        assert plan.replace_from is not None
        assert set(plan.replace_from.tolist()) == {plan.drop_below}


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_a_word_that_never_occurs_is_neither_replaced_nor_proposed(granularity):
    table = torch.arange(float(V)).unsqueeze(1).expand(V, 8).contiguous()
    q = posterior(granularity, weight=table, proposal=proposal(1.0))
    draws = torch.stack([q.sample(key) for key in range(300)])
    assert (draws[:, V - 1] == V - 1).all()
    assert not (draws[:, : V - 1] == V - 1).any()


def test_granularity_decides_what_moves_together():
    table = torch.arange(float(V)).unsqueeze(1).expand(V, 32).contiguous()
    words, elements = (posterior(g, weight=table, proposal=proposal(1.0)).sample(4) for g in GRANULARITIES)
    assert (words == words[:, :1]).all()
    assert not (elements == elements[:, :1]).all()
    dropped_words, dropped_elements = (
        posterior(weight=table + 1, proposal=None, dropout=0.5, dropout_granularity=g).sample(4) == 0 for g in GRANULARITIES
    )
    assert (dropped_words == dropped_words[:, :1]).all()
    assert 0.4 < float(dropped_elements.float().mean()) < 0.6


@settings
def test_average_of_draws_is_the_mean(granularity, dropout_granularity, dropout, variance):
    """Each of V D averages within 6 standard errors: fails by chance about once in two million runs."""
    q = posterior(granularity, "sequence", dropout, dropout_granularity, variance)
    total = torch.zeros(V, D, dtype=torch.float64)
    squares = torch.zeros(V, D, dtype=torch.float64)
    ids = torch.arange(V)[:, None].expand(V, 500)
    for step in range(DRAWS // 500):
        draws = q.lookup(ids, DrawKey(5, step)).double()
        total += draws.sum(1)
        squares += draws.square().sum(1)
    average = total / DRAWS
    error = ((squares / DRAWS - average.square()).clamp(min=1e-12) / DRAWS).sqrt()
    assert float(((average - q.mean().double()).abs() / (error + 1e-6)).max()) < 6


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("scheme", ["kneser_ney", "absolute_discounting", "linear_interpolation"])
def test_squared_norm_of_draws_is_the_exact_kl_weighting(granularity, scheme):
    """E sum_i |e~_i|^2 = sum_v c_v |e_v|^2 (no dropout, no variance), within 5 standard errors."""
    q = posterior(granularity, proposal=proposal(0.6, scheme))
    ids = torch.arange(V)[:, None].expand(V, 500)
    norms = torch.cat([q.lookup(ids, DrawKey(6, step)).double().square().sum((0, 2)) for step in range(DRAWS // 500)])
    expected = float((q.kl_weights("exact") * q.weight.square().sum(1)).sum())
    assert abs(float(norms.mean()) - expected) < 5 * float(norms.std()) / math.sqrt(DRAWS)
    assert float(q.kl("exact")) == pytest.approx(expected / 2, rel=1e-6)


@pytest.mark.parametrize("scheme", ["kneser_ney", "absolute_discounting", "linear_interpolation"])
def test_exact_weights_sum_to_the_vocabulary(scheme):
    assert float(posterior(proposal=proposal(0.7, scheme)).kl_weights("exact").sum()) == pytest.approx(V, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_kl_of_a_table_in_half_precision_does_not_overflow(dtype):
    table = (100 * weight()).to(dtype).requires_grad_()
    wide = table.detach().float().requires_grad_()
    kl, expected = (EmbeddingPosterior(each, proposal()).kl() for each in (table, wide))
    assert expected > torch.finfo(torch.float16).max
    torch.testing.assert_close(kl, expected)
    kl.backward()
    expected.backward()
    assert torch.equal(table.grad, wide.grad.to(dtype))


def test_kl_weights_by_hand():
    noise = Proposal(torch.tensor([0.5, 0.25, 0.0]), torch.tensor([0.0, 0.5, 0.5]))
    q = EmbeddingPosterior(torch.tensor([[1.0], [2.0], [3.0]]), noise)
    assert q.kl_weights("exact").tolist() == [0.5, 0.75 + 0.375, 1 + 0.375]
    assert q.kl_weights("printed").tolist() == [1 + 1 * 0.5, 1 + 1.5 * 0.25, 1.0]
    assert q.kl_weights("plain").tolist() == [1, 1, 1]
    assert float(q.kl("plain")) == 7.0


@settings
@pytest.mark.parametrize("scope", SCOPES)
def test_gradients_reach_the_weight_where_each_value_was_read(scope, granularity, dropout_granularity, dropout, variance):
    """With its key fixed a draw is a smooth function of the weight, so finite differences know its gradient."""
    table = weight(5, 3).double().requires_grad_()
    q = posterior(
        granularity, scope, dropout, dropout_granularity, variance, weight=table, proposal=proposal(0.6, vocab_size=5)
    )
    ids = window(5)
    for draw in (lambda: q.lookup(ids, 3), lambda: q.sample(3), q.mean, lambda: q.kl()):
        assert torch.autograd.gradcheck(lambda _, draw=draw: draw(), (table,))


@pytest.mark.parametrize("granularity", ["word", "element"])
def test_a_table_may_lie_in_memory_as_it_likes(granularity):
    lying, options = weight().t().contiguous().t().requires_grad_(), {"dropout": 0.3, "dropout_granularity": "element"}
    assert not lying.is_contiguous()
    found = EmbeddingPosterior(lying, proposal(), granularity, **options).sample(7)
    assert torch.equal(found, EmbeddingPosterior(weight(), proposal(), granularity, **options).sample(7))
    found.sum().backward()
    assert lying.grad.abs().sum() > 0


@pytest.mark.parametrize("dropout_granularity", ["word", "element"])
def test_what_dropout_keeps_of_a_double_is_scaled_as_a_double(dropout_granularity):
    table = weight().double()
    found = EmbeddingPosterior(table, None, dropout=0.3, dropout_granularity=dropout_granularity).sample(7)
    kept = found != 0
    assert 0 < kept.sum() < kept.numel()
    assert torch.equal(found[kept], (table * (1 / 0.7))[kept])


def test_draws_keep_the_dtype_of_the_weight():
    for dtype in (torch.float64, torch.bfloat16):
        q = posterior("element", weight=weight().to(dtype), dropout=0.5, variance=0.1)
        assert q.sample(1).dtype == q.lookup(window(), 1).dtype == q.mean().dtype == dtype


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("variance", [0.0, 0.1])
def test_draws_are_cast_at_the_end_and_gradients_keep_the_dtype_of_the_weight(granularity, variance):
    table = weight().requires_grad_()
    q = posterior(granularity, weight=table, dropout=0.5, variance=variance)
    draws = [
        lambda **options: q.sample(1, **options),
        lambda **options: q.lookup(window(), 1, **options),
        lambda **options: q.lookup_replaced(window(), 1, **options),
    ]
    for draw in draws:
        half = draw(dtype=torch.bfloat16)
        assert torch.equal(half, draw().to(torch.bfloat16))
        assert half.dtype == torch.bfloat16
        (grad,) = torch.autograd.grad(half.float().sum(), table)
        assert grad.dtype == torch.float32
        torch.testing.assert_close(grad, torch.autograd.grad(draw().sum(), table)[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("granularity", ["word", "element"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_gradients_of_a_word_that_replaces_many_add_up_in_half_precision_too(dtype, granularity, dropout):
    """In half precision a sum of a thousand numbers of one size stands still before its first half."""
    words = 5000
    noise = Proposal.blank(words, 0.5, words - 1)
    tables = [torch.ones(words, 8, dtype=kind).requires_grad_() for kind in (dtype, torch.float32)]
    for table in tables:
        q = EmbeddingPosterior(table, noise, granularity=granularity, dropout=dropout)
        q.sample(key=1).backward(torch.full((words, 8), 2.0**-8, dtype=table.dtype))
        assert table.grad.dtype == table.dtype
    torch.testing.assert_close(tables[0].grad.float(), tables[1].grad, rtol=0.01, atol=0)


def test_the_first_rows_are_those_of_the_whole_table():
    q = posterior("element", weight=weight().requires_grad_(), dropout=0.4)
    assert torch.equal(q.sample(3, rows=V - 2), q.sample(3)[: V - 2])
    assert torch.equal(q.sample(3, rows=V), q.sample(3))
    (grad,) = torch.autograd.grad(q.sample(3, rows=1).sum(), q.weight)
    assert torch.equal(grad, torch.autograd.grad(q.sample(3)[0].sum(), q.weight)[0])


@pytest.mark.parametrize("scope", SCOPES)
def test_scores_of_replaced_words_are_the_products_with_their_vectors(scope):
    q = posterior(dropout=0.4, variance=0.2)
    hidden = torch.randn(T, B, D, generator=torch.Generator().manual_seed(4))
    wanted = torch.arange(T * B).view(T, B) % 3 > 0
    found = q.score_replaced(hidden, window(), 7, wanted, scope, first_sequence=2)
    vectors = q.lookup_replaced(window(), 7, scope, first_sequence=2)
    torch.testing.assert_close(found, (hidden * vectors).sum(-1) * wanted)
    assert not torch.equal(vectors, q.unsmoothed.lookup(window(), 7)), "another word's"


def test_rows_are_the_same_however_the_work_is_cut(monkeypatch):
    q = posterior("element", dropout=0.4)
    whole = q.sample(9)
    monkeypatch.setattr(reference, "CACHED_ELEMENTS", 2 * D)
    assert torch.equal(q.sample(9), whole)


def test_replaced_says_where_the_coin_fell_even_if_the_same_word_came_back():
    table = torch.arange(float(V)).unsqueeze(1).expand(V, 2).contiguous()
    q = posterior(weight=table)
    ids = window()
    replaced = q.replaced(ids, 7)
    changed = q.lookup(ids, 7)[..., 0] != ids
    assert (replaced | ~changed).all()
    assert replaced.any()
    always = EmbeddingPosterior(torch.ones(1, 1), Proposal(torch.ones(1), torch.ones(1)))
    assert always.replaced(torch.zeros(3, 2, dtype=torch.int64), 1).all()


def test_tied_tables_are_drawn_twice_and_a_shared_draw_once():
    q = posterior("element", "batch")
    key = DrawKey(1, 2)
    assert not torch.equal(q.sample(key.at(Site.INPUT)), q.sample(key.at(Site.OUTPUT)))
    assert torch.equal(q.sample(key.at(Site.INPUT)), q.sample(key.at(Site.INPUT)))


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"dropout": 1.0}, "dropout"),
        ({"dropout": float("nan")}, "dropout"),
        ({"variance": -1.0}, "variance"),
        ({"granularity": "words"}, "did you mean 'word'"),
        ({"scope": "window"}, "scope"),
        ({"dropout_granularity": "row"}, "dropout_granularity"),
        ({"weight": torch.zeros(4, 2)}, "4 rows"),
        ({"weight": torch.zeros(V)}, "weight"),
    ],
)
def test_bad_arguments_are_named(arguments, name):
    with pytest.raises(ValueError, match=name):
        posterior(**arguments)


def test_bad_ids_and_forms_are_named():
    with pytest.raises(ValueError, match="ids"):
        posterior().lookup(torch.zeros(3, dtype=torch.int64), 1)
    for wrong in (window() - 1 - window().max(), window() + V):
        with pytest.raises(InputError, match=rf"ids must be in \[0, {V}\), the rows of the table, got"):
            posterior().lookup(wrong, 1)
    for kind in (torch.float32, torch.uint8, torch.int16, torch.bool):
        with pytest.raises(InputError, match=f"ids must be int64 or int32, got {str(kind).removeprefix('torch.')}"):
            posterior().lookup(window().to(kind), 1)
    assert torch.equal(posterior().lookup(window().int(), 1), posterior().lookup(window(), 1))
    with pytest.raises(ValueError, match="did you mean 'exact'"):
        posterior().kl("exakt")
    with pytest.raises(ValueError, match="granularity 'word'"):
        posterior("element").replaced(window(), 1)
    for noise in (None, proposal(0.0)):
        q = posterior(proposal=noise)
        with pytest.raises(ValueError, match="lookup_replaced needs a proposal"):
            q.lookup_replaced(window(), 1)
        with pytest.raises(ValueError, match="score_replaced needs a proposal"):
            q.score_replaced(torch.zeros(T, B, D), window(), 1, torch.ones(T, B))
