"""``smooth`` on an embedding, a GRU and a head: what is drawn, what predicts, and that nothing else changes."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import nn

from dropin_for_tests import BATCH, TIME, WIDTH, WORDS, ids, loss_of, proposal, recurrent
from varsmooth import DrawKey, EmbeddingPosterior, InputError, Proposal, output_loss, smooth
from varsmooth.draws import Site

SEED = 11


def seen(model, given, **kwargs):
    """Return what the embedding gave, what the head was given, and the logits of one forward pass."""
    found = {}
    hooks = [
        model.words.register_forward_hook(lambda _module, _args, out: found.update(vectors=out)),
        model.head.register_forward_pre_hook(lambda _module, args: found.update(hidden=args[0])),
    ]
    logits = model(given, **kwargs)
    for hook in hooks:
        hook.remove()
    return found["vectors"], found["hidden"], logits


@pytest.mark.parametrize("granularity", ["word", "element"])
@pytest.mark.parametrize("scope", ["sequence", "batch", "position"])
@pytest.mark.parametrize("tied", [True, False])
def test_training_draws_what_the_posterior_draws(granularity, scope, tied):
    model, noise = recurrent(tied=tied), proposal()
    handle = smooth(model, noise, granularity, dropout=0.3, scope=scope, seed=SEED, variance=0.01)
    handle.step(5)
    vectors, hidden, logits = seen(model, ids())
    key = DrawKey(SEED, 5)
    options = {"dropout": 0.3, "variance": 0.01}
    q_input = EmbeddingPosterior(model.words.weight, noise, granularity, scope, **options)
    q_output = EmbeddingPosterior(model.head.weight, noise, granularity, "batch", **options)
    assert torch.equal(vectors, q_input.lookup(ids().t(), key.at(Site.INPUT)).transpose(0, 1))
    assert torch.equal(logits, F.linear(hidden, q_output.sample(key.at(Site.OUTPUT)), model.head.bias))
    assert not torch.equal(vectors, F.embedding(ids(), model.words.weight))
    loss_of(logits, ids(seed=1)).backward()
    assert model.words.weight.grad.abs().sum() > 0


def test_time_first_and_batch_first_draw_alike():
    first, second = recurrent(batch_first=True), recurrent(batch_first=False)
    smooth(first, proposal())
    smooth(second, proposal(), batch_first=False)
    assert torch.equal(first(ids()), second(ids().t()).transpose(0, 1))


def test_vectors_are_contiguous_as_those_of_an_embedding_are():
    model = recurrent()
    smooth(model, proposal())
    assert seen(model, ids())[0].is_contiguous()


def test_the_default_is_element_wise_on_both_tables_and_predicts_by_the_mean():
    model, plain, noise = recurrent(), recurrent(), proposal()
    handle = smooth(model, noise)
    assert (handle.settings.granularity, handle.settings.output, handle.settings.dropout) == ("element", "table", 0.0)
    mean = EmbeddingPosterior(model.words.weight, noise).mean().detach()
    plain.words.weight.data.copy_(mean)
    torch.testing.assert_close(model.eval()(ids()), plain.eval()(ids()))


def test_prediction_by_the_mode_is_the_plain_model():
    model = recurrent()
    smooth(model, proposal(), predict="mode")
    assert torch.equal(model.eval()(ids()), recurrent().eval()(ids()))


@pytest.mark.parametrize("options", [{"predict": "mean-input"}, {"output": "none"}])
def test_the_mean_of_the_input_alone(options):
    model, plain, noise = recurrent(tied=False), recurrent(tied=False), proposal()
    smooth(model, noise, **options)
    plain.words.weight.data.copy_(EmbeddingPosterior(model.words.weight, noise).mean().detach())
    torch.testing.assert_close(model.eval()(ids()), plain.eval()(ids()))


def test_output_none_leaves_the_head_alone():
    model = recurrent()
    smooth(model, proposal(), output="none", dropout=0.5)
    _, hidden, logits = seen(model, ids())
    assert torch.equal(logits, F.linear(hidden, model.head.weight, model.head.bias))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("scope", ["sequence", "batch", "position"])
@pytest.mark.parametrize("bias", [True, False])
def test_target_gives_the_loss_that_the_posterior_defines(batch_first, scope, bias):
    model, noise = recurrent(batch_first=batch_first, bias=bias), proposal()
    handle = smooth(model, noise, "word", "target", dropout=0.2, scope=scope, seed=SEED, batch_first=batch_first)
    inputs, targets = ids(), ids(seed=1)
    given = (inputs, targets) if batch_first else (inputs.t(), targets.t())
    handle.labels(given[1])
    _, hidden, logits = seen(model, given[0])
    found = F.cross_entropy(logits.flatten(0, 1), given[1].flatten(), reduction="none").view(given[1].shape)
    q_input, q_output = (EmbeddingPosterior(model.words.weight, noise, "word", each, dropout=0.2) for each in (scope, "batch"))
    key = DrawKey(SEED)
    replaced = q_input.replaced(inputs.t(), key.at(Site.INPUT))
    assert 0 < replaced.sum() < replaced.numel()
    hidden = hidden.transpose(0, 1) if batch_first else hidden
    expected = output_loss(
        hidden, targets.t(), q_output, model.head.bias, key.at(Site.OUTPUT), rule="target", replaced=replaced, scope=scope
    ).per_token
    torch.testing.assert_close(found.t() if batch_first else found, expected)
    parameters = list(model.parameters())
    ours, theirs = (torch.autograd.grad(each.square().sum(), parameters, retain_graph=True) for each in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_target_takes_no_notice_of_ignored_labels():
    model = recurrent()
    handle = smooth(model, proposal(gamma=1.0), "word", "target")
    handle.labels(torch.full((BATCH, TIME), -100))
    _, hidden, logits = seen(model, ids())
    assert torch.equal(logits, F.linear(hidden, model.head.weight, model.head.bias))


@pytest.mark.parametrize("padded", [False, True])
def test_special_words_keep_their_vectors_as_targets_too(padded):
    model = recurrent(tied=False)
    if padded:
        model.words.padding_idx = 3
    always = Proposal(torch.ones(WORDS), proposal().probs, noises_output=True)
    handle = smooth(model, always, "word", "target", special_ids=[] if padded else [3])

    def logits(target):
        handle.step(0)
        handle.labels(torch.full_like(ids(), target))
        return model(ids())

    assert torch.equal(logits(3), logits(-100))
    assert not torch.equal(logits(4), logits(-100))


def test_labels_serve_one_forward_pass_and_their_want_is_explained():
    model = recurrent()
    handle = smooth(model, proposal(), "word", "target")
    with pytest.raises(InputError, match=r"handle\.labels"):
        model(ids())
    handle.labels(ids())
    model(ids())
    with pytest.raises(InputError, match=r"handle\.labels"):
        model(ids())
    handle.labels(ids()[:, 1:])
    with pytest.raises(InputError, match="one label for each input word"):
        model(ids())
    handle.labels(ids())
    model.eval()(ids())  # prediction needs none, but is a forward pass
    with pytest.raises(InputError, match=r"handle\.labels"):
        model.train()(ids())


def test_labels_can_be_shifted():
    model, other = recurrent(), recurrent()
    handles = [smooth(each, proposal(gamma=1.0), "word", "target") for each in (model, other)]
    handles[0].labels(ids(), shift=True)
    handles[1].labels(torch.cat([ids()[:, 1:], torch.full((BATCH, 1), -100)], 1))
    assert torch.equal(model(ids()), other(ids()))


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_keys_tie_and_files_are_untouched(tied):
    model, plain = recurrent(tied=tied), recurrent(tied=tied)
    parameters = list(model.parameters())
    with smooth(model, proposal()) as handle:
        (loss_of(model(ids()), ids(seed=1)) + 1e-3 * handle.kl()).backward()
        assert list(model.state_dict()) == list(plain.state_dict())
        assert all(new is old for new, old in zip(model.parameters(), parameters, strict=True))
        assert (model.head.weight is model.words.weight) == tied
        tensors = [{name: value.clone() for name, value in each.state_dict().items()} for each in (model, plain)]
        assert safetensors.torch.save(tensors[0]) == safetensors.torch.save(tensors[1])


@pytest.mark.parametrize("tied", [True, False])
def test_kl_counts_each_drawn_table_once(tied):
    model, noise = recurrent(tied=tied), proposal()
    handle = smooth(model, noise)
    expected = EmbeddingPosterior(model.words.weight, noise).kl()
    if not tied:
        expected = expected + EmbeddingPosterior(model.head.weight, noise).kl()
    torch.testing.assert_close(handle.kl(), expected)
    assert handle.kl("plain") != handle.kl()


def test_tables_that_are_computed_by_now_count_once_each_and_are_not_folded():
    model = recurrent(tied=False)
    handle = smooth(model, proposal())
    expected = handle.kl().item()
    for module in (model.words, model.head):
        nn.utils.parametrizations.weight_norm(module)
    assert handle.kl().item() == pytest.approx(expected, rel=1e-5)
    with pytest.raises(InputError, match=r"'words' has a weight that is computed by now, which fold\(\) cannot set"):
        handle.fold()


def test_kl_leaves_out_a_head_that_is_not_drawn():
    model, noise = recurrent(tied=False), proposal()
    torch.testing.assert_close(smooth(model, noise, output="none").kl(), EmbeddingPosterior(model.words.weight, noise).kl())


def test_remove_gives_the_model_back():
    model, plain = recurrent(), recurrent()
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    with smooth(model, proposal()) as handle:
        assert not torch.equal(model(ids()), plain(ids()))
        assert "step 0" in repr(handle)
        assert "ever replaced" not in repr(handle)
    assert torch.equal(model(ids()), plain(ids()))
    assert {name: dict(vars(module)).keys() for name, module in model.named_modules()} == {
        name: each.keys() for name, each in before.items()
    }
    assert not model._forward_pre_hooks
    assert not model._forward_hooks
    handle.remove()
    model.words = nn.Embedding(2 * WORDS, WIDTH)
    assert "removed" in repr(handle)


def test_a_proposal_that_replaces_nothing_is_told_by_the_handle():
    assert "no word is ever replaced" in repr(smooth(recurrent(), proposal(), special_ids=range(WORDS)))


def test_a_removed_handle_does_not_take_off_its_successor():
    model = recurrent()
    first = smooth(model, proposal())
    first.remove()
    smooth(model, proposal())
    first.remove()
    assert not torch.equal(model(ids()), recurrent()(ids()))


def test_a_copied_model_is_smoothed_by_itself():
    model = recurrent()
    handle = smooth(model, proposal())
    model(ids())
    twin = copy.deepcopy(model)
    twin.words.weight.data.mul_(2)
    expected = recurrent()
    expected.words.weight.data.mul_(2)
    smooth(expected, proposal()).step(0)
    expected(ids())
    assert torch.equal(twin(ids()), expected(ids()))
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    optimizer.step()
    assert handle.current_step == 0
    assert twin.words.forward.__self__.clock.step == 1


def test_a_model_is_copied_after_a_pass_with_weights_of_a_step():
    model = recurrent()
    smooth(model, proposal())
    weights = {name: weight * 2 for name, weight in model.named_parameters()}
    torch.func.functional_call(model, weights, ids())
    twin = copy.deepcopy(model)
    assert torch.equal(twin(ids()), model(ids()))


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.source, self.target, self.head = nn.Embedding(WORDS, WIDTH), nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.target.weight = self.source.weight

    def forward(self, given):
        return self.head(self.source(given) + self.target(given))


@pytest.mark.parametrize("training", [True, False])
def test_tables_that_are_untied_after_they_were_smoothed_are_refused(training):
    model = Pair().train(training)
    handle = smooth(model, proposal(), output="none", input="source")
    tied = model.source.weight
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    for action in (lambda: model(ids()), handle.kl, handle.fold):
        with pytest.raises(InputError, match="shared the table of 'source' when that was smoothed has one of its own now"):
            action()
    model.source.weight = model.target.weight = tied
    model(ids())


def test_a_forgotten_handle_keeps_nothing_alive():
    model = recurrent()
    smooth(model, proposal())
    model(ids())
    watched = weakref.ref(model.words)
    del model
    gc.collect()
    assert watched() is None


@pytest.mark.parametrize("tied", [True, False])
def test_fold_leaves_a_plain_model_that_predicts_the_same(tied):
    model = recurrent(tied=tied)
    handle = smooth(model, proposal())
    expected = model.eval()(ids())
    handle.fold()
    assert handle.removed
    torch.testing.assert_close(model(ids()), expected)
    with pytest.raises(InputError, match="removed or folded already"):
        handle.fold()
    torch.testing.assert_close(model(ids()), expected)


def test_fold_under_autocast_rounds_nothing():
    model, other = recurrent(), recurrent()
    smooth(model, proposal()).fold()
    with torch.autocast("cpu", torch.bfloat16):
        smooth(other, proposal()).fold()
    assert torch.equal(model.words.weight, other.words.weight)


@pytest.mark.parametrize("options", [{"predict": "mean-input"}, {"output": "none"}])
def test_fold_refuses_two_values_for_one_table(options):
    handle = smooth(recurrent(), proposal(), **options)
    with pytest.raises(InputError, match=r"tied.*(keep the handle|use predict='mean')"):
        handle.fold()


def test_fold_refuses_to_change_an_embedding_that_was_not_smoothed():
    """As of a decoder whose head is tied to its own embedding, where the encoder's was smoothed."""
    model = recurrent(tied=False)
    model.second = nn.Embedding(WORDS, WIDTH)
    model.second.weight = model.head.weight
    handle = smooth(model, proposal(), input="words")
    before = model.second.weight.clone()
    with pytest.raises(InputError, match=r"fold\(\) would change 'second' too"):
        handle.fold()
    assert torch.equal(model.second.weight, before)
    assert not handle.removed


def test_fold_of_the_mode_changes_nothing():
    model = recurrent()
    smooth(model, proposal(), output="none", predict="mode").fold()
    assert torch.equal(model.words.weight, recurrent().words.weight)


def test_moving_and_casting_the_model_is_followed():
    model = recurrent()
    smooth(model, proposal())
    single = model(ids())
    torch.testing.assert_close(model.double()(ids()).float(), recurrent_again(single))


def recurrent_again(single):
    """The second pass of a step draws for further columns, so the expectation is that of a fresh handle's second pass."""
    model = recurrent()
    smooth(model, proposal())
    assert torch.equal(model(ids()), single)
    return model(ids())


@pytest.mark.parametrize(("scope", "shape"), [("batch", (12,)), ("batch", (2, 3, 2)), ("sequence", (2, 3, 2))])
def test_the_target_rule_takes_ids_of_any_shape_that_the_scope_takes(scope, shape):
    def logits(given, targets):
        model = nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS))
        torch.manual_seed(1)
        for parameter in model.parameters():
            nn.init.normal_(parameter)
        handle = smooth(model, proposal(gamma=1.0), "word", "target", scope=scope, seed=SEED)
        handle.labels(targets)
        return model(given)

    flat, wanted = torch.arange(12) % WORDS, (5 * torch.arange(12)) % WORDS
    matrix = (2, 6)  # of the two sequences, as [batch, time]
    expected = logits(flat.view(matrix), wanted.view(matrix))
    assert torch.equal(logits(flat.view(shape), wanted.view(shape)), expected.view(*shape, WORDS))
    plain = nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS))
    assert logits(flat.view(matrix)[:, :0], wanted.view(matrix)[:, :0]).shape == plain(flat.view(matrix)[:, :0]).shape


def test_the_target_rule_asks_for_no_labels_where_nothing_is_smoothed():
    model, other = recurrent(), recurrent()
    smooth(model, None, "word", "target", dropout=0.5, seed=SEED)
    smooth(other, None, "word", "table", dropout=0.5, seed=SEED)
    assert torch.equal(model(ids()), other(ids()))


def test_no_proposal_is_dropout_alone():
    model = recurrent()
    smooth(model, None, dropout=0.5, output="none", seed=SEED)
    vectors = seen(model, ids())[0]
    assert torch.equal(
        vectors, EmbeddingPosterior(model.words.weight, None, dropout=0.5).lookup(ids().t(), SEED).transpose(0, 1)
    )
    assert torch.equal(model.eval()(ids()), recurrent().eval()(ids()))


def test_ids_without_sequences_need_the_scope_batch():
    model = recurrent()
    with smooth(model, proposal(), output="none"), pytest.raises(InputError, match="scope='batch' takes any shape"):
        model.words(torch.arange(5))
    noise = proposal()
    smooth(model, noise, scope="batch", seed=SEED)
    table = EmbeddingPosterior(model.words.weight, noise, "element", "batch").sample(SEED)
    assert torch.equal(model.words(torch.arange(WORDS)), table)
    assert torch.equal(model.words(ids().view(2, 2, TIME)), table[ids().view(2, 2, TIME)])


def test_gradients_stay_off_the_padding_row_and_it_is_special():
    model = recurrent(tied=False)
    model.words.padding_idx = 3
    handle = smooth(model, Proposal(torch.full((WORDS,), 0.5), torch.full((WORDS,), 1 / WORDS)))
    fitting = handle.parts[0].table.proposal
    assert fitting.rate[3] == 0
    assert fitting.probs[3] == 0
    given = ids()
    given[:, 2] = 3
    vectors, _, logits = seen(model, given)
    assert torch.equal(vectors[:, 2], model.words.weight[3].expand(BATCH, -1))
    loss_of(logits, ids(seed=1)).backward()
    assert not model.words.weight.grad[3].any()
    assert model.words.weight.grad[4].any()


class TwoHeads(nn.Module):
    """Scores two places of its input by one table, as source and target language may share it."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.heads = nn.ModuleList(nn.Linear(WIDTH, WORDS, bias=False) for _ in range(2))
        for head in self.heads:
            head.weight = self.words.weight

    def forward(self, given):
        vectors = self.words(given)
        return [head(vectors) for head in self.heads]


def test_every_head_of_the_table_is_drawn():
    model = TwoHeads()
    handle = smooth(model, proposal())
    first, second = model(ids())
    assert torch.equal(first, second)
    assert not torch.equal(first, F.linear(model.words(ids()), model.words.weight))
    torch.testing.assert_close(handle.kl(), EmbeddingPosterior(model.words.weight, proposal()).kl())
    first, second = model.eval()(ids())
    assert torch.equal(first, second)
    handle.remove()
    assert not any("forward" in vars(module) for module in model.modules())


def test_an_empty_batch_gives_an_empty_result():
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS))
    smooth(model, proposal())
    for given in (ids()[:0], ids()[:, :0]):
        assert model(given).shape == (*given.shape, WORDS)
