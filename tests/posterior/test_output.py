from __future__ import annotations

import pytest
import torch

from varsmooth import Counts, EmbeddingPosterior, Proposal
from varsmooth.draws import DrawKey, Site, row_words
from varsmooth.posterior import output_loss

V, D, T, B = 13, 6, 5, 4


@pytest.fixture
def parts():
    generator = torch.Generator().manual_seed(0)
    noise = Proposal.kneser_ney(Counts.from_ids(torch.randint(V, (200,), generator=generator), V), 0.9)
    table = torch.randn(V, D, generator=generator, dtype=torch.float64).requires_grad_()
    hidden = torch.randn(T, B, D, generator=generator, dtype=torch.float64).requires_grad_()
    bias = torch.randn(V, generator=generator, dtype=torch.float64).requires_grad_()
    inputs, targets = (torch.randint(V, (T, B), generator=generator) for _ in range(2))
    return noise, table, hidden, bias, inputs, targets


def naive(q, hidden, bias, targets, key, rule, replaced=None, scope="sequence"):
    """One position at a time, straight from docs/maths.md, section 4."""
    base = (
        q
        if rule == "table"
        else EmbeddingPosterior(q.weight, None, dropout=q.dropout, dropout_granularity=q.dropout_granularity)
    )
    table = base.sample(key)
    kept = base.sample(key, sequence=0)
    losses = torch.zeros(targets.shape, dtype=torch.float64)
    for t in range(T):
        for b in range(B):
            word = targets[t, b]
            rows = table.clone()
            if rule == "target" and replaced[t, b]:
                place = {"sequence": (b, 0), "batch": (0, 0), "position": (b, t)}[scope]
                bits = row_words(DrawKey.of(key), word[None], *place)[1]
                other = q.proposal.draw(bits)[0]
                mask = torch.where(kept[word] == 0, 0.0, 1 / (1 - q.dropout)).double()
                rows[word] = q.weight[other] * mask
            logits = rows @ hidden[t, b] + bias
            losses[t, b] = logits.logsumexp(0) - logits[word]
    return losses


@pytest.mark.parametrize(
    ("rule", "granularity"),
    [("none", "word"), ("none", "element"), ("table", "word"), ("table", "element"), ("target", "word")],
)
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("dropout_granularity", ["word", "element"])
def test_each_rule_equals_a_naive_loop_over_positions(parts, rule, granularity, dropout, dropout_granularity):
    noise, table, hidden, bias, inputs, targets = parts
    q = EmbeddingPosterior(table, noise, granularity, "batch", dropout, dropout_granularity)
    replaced = EmbeddingPosterior(table, noise).replaced(inputs, DrawKey(3, 1, Site.INPUT))
    key = DrawKey(3, 1, Site.OUTPUT)
    loss = output_loss(hidden, targets, q, bias, key, rule=rule, replaced=replaced)
    expected = naive(q, hidden, bias, targets, key, rule, replaced)
    torch.testing.assert_close(loss.per_token.double(), expected, rtol=1e-5, atol=1e-5)
    assert loss.tokens == T * B
    for name, value in (("table", table), ("hidden", hidden), ("bias", bias)):
        ours, theirs = (torch.autograd.grad(x.sum(), value, retain_graph=True)[0] for x in (loss.per_token, expected))
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("scope", ["sequence", "batch", "position"])
def test_the_new_word_is_keyed_by_scope(parts, scope):
    noise, table, hidden, bias, _, targets = parts
    q = EmbeddingPosterior(table, noise, scope="batch")
    everywhere = torch.ones_like(targets, dtype=torch.bool)
    loss = output_loss(hidden, targets, q, bias, 5, rule="target", replaced=everywhere, scope=scope)
    expected = naive(q, hidden, bias, targets, 5, "target", everywhere, scope)
    torch.testing.assert_close(loss.per_token.double(), expected, rtol=1e-5, atol=1e-5)


def test_target_rule_changes_the_loss_only_where_the_input_was_replaced(parts):
    noise, table, hidden, bias, _, targets = parts
    q = EmbeddingPosterior(table, noise, scope="batch")
    replaced = torch.arange(T * B).view(T, B) % 3 == 0
    plain = output_loss(hidden, targets, q, bias, 5, rule="none").per_token
    changed = output_loss(hidden, targets, q, bias, 5, rule="target", replaced=replaced).per_token
    assert torch.equal(plain[~replaced], changed[~replaced])
    assert not torch.equal(plain[replaced], changed[replaced])


def test_words_leaves_out_rows_that_are_never_targets(parts):
    noise, table, hidden, bias, _, targets = parts
    q = EmbeddingPosterior(table, noise, "element", "batch", dropout=0.3)
    targets = targets.clamp(max=V - 2)
    loss = output_loss(hidden, targets, q, bias[: V - 1], 5, rule="table", words=V - 1)
    logits = hidden.float() @ q.sample(5)[: V - 1].float().T + bias[: V - 1].float()
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    torch.testing.assert_close(loss.per_token.flatten(), expected)


def test_record_sums_and_averages_what_it_holds(parts):
    noise, table, hidden, _, _, targets = parts
    loss = output_loss(hidden.detach(), targets, EmbeddingPosterior(table.detach(), noise), None, 1)
    assert float(loss.total) == pytest.approx(float(loss.per_token.sum()))
    assert float(loss.mean) == pytest.approx(float(loss.total) / loss.tokens)


def test_bad_arguments_are_named(parts):
    noise, table, hidden, bias, _, targets = parts
    q = EmbeddingPosterior(table, noise)
    with pytest.raises(ValueError, match="did you mean 'table'"):
        output_loss(hidden, targets, q, bias, 1, rule="tabel")
    with pytest.raises(ValueError, match="replaced"):
        output_loss(hidden, targets, q, bias, 1, rule="target")
    with pytest.raises(ValueError, match="does not fit"):
        output_loss(hidden[:2], targets, q, bias, 1)
