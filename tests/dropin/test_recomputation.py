"""Several losses of one checkpointed pass: each recomputation sees the draws of its own pass, or is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dropin_for_tests import gradients, ids, loss_of, proposal, recurrent
from varsmooth import InputError, smooth

PARTS = ["input", "head", "whole"]
SCOPES = ["sequence", "batch", "position"]
REFUSED = "after a later pass or step.*for each loss of a pass"


def checkpointed(function, given, reentrant):
    # A reentrant checkpoint needs an input that asks for a gradient.
    zero = torch.zeros((), requires_grad=True)
    return checkpoint(lambda given, zero: function(given) + zero, given, zero, use_reentrant=reentrant)


class Model(nn.Module):
    """A recurrent model of which a part lies in a checkpoint: what the embedding feeds, the head, or the whole."""

    def __init__(self, part=None, *, reentrant=False):
        super().__init__()
        self.inner, self.other, self.part, self.reentrant = recurrent(tied=False), nn.Linear(2, 2), part, reentrant

    def run(self, part, function, given):
        return checkpointed(function, given, self.reentrant) if part == self.part else function(given)

    def forward(self, given):
        hidden = self.run("input", lambda given: self.inner.body(self.inner.words(given))[0], given)
        return self.run("head", self.inner.head, hidden)

    def logits(self, given):
        return self.run("whole", self, given)


def two_losses(model, given):
    logits = model.logits(given)
    return loss_of(logits, ids(seed=5)), logits.sin().mean()


def second_gradients(model, between, backward=torch.Tensor.backward, **options):
    """Return the gradients of a pass's second loss when ``between`` has come after the backward of its first."""
    handle = smooth(model, proposal(), "word", dropout=0.2, **options)
    handle.labels(ids(seed=5))
    first, second = two_losses(model, ids())
    backward(first, retain_graph=True)
    between(model, handle)
    model.zero_grad()
    backward(second)
    return gradients(model)


def another_pass(model, handle, seed=1):
    handle.labels(ids(seed=6))
    return two_losses(model, ids(seed=seed))


def same_words_again(model, handle):
    another_pass(model, handle, seed=0)


def pass_without_gradients(model, handle):
    with torch.no_grad():
        another_pass(model, handle)


def prediction(model, _):
    model.eval()
    model.logits(ids(seed=1))
    model.train()


def pass_of_the_next_step(model, handle):
    torch.optim.SGD(model.other.parameters(), lr=0.5).step()
    another_pass(model, handle)


def next_step(_, handle):
    handle.step()


LATER = [another_pass, same_words_again, pass_without_gradients, pass_of_the_next_step, next_step]


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("between", LATER)
@pytest.mark.parametrize("scope", ["sequence", "position"])
@pytest.mark.parametrize("part", ["input", "whole"])
def test_an_embedding_is_not_recomputed_with_the_columns_of_a_later_pass(part, scope, between, reentrant):
    with pytest.raises(InputError, match=REFUSED):
        second_gradients(Model(part, reentrant=reentrant), between, scope=scope)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("between", LATER)
@pytest.mark.parametrize("part", ["head", "whole"])
def test_a_head_is_not_recomputed_with_the_labels_of_a_later_pass(part, between, reentrant):
    with pytest.raises(InputError, match=REFUSED):
        second_gradients(Model(part, reentrant=reentrant), between, output="target", scope="batch")


def test_a_pass_of_the_parts_alone_is_refused_after_one_without_gradients():
    model = Model()
    smooth(model, proposal())
    loss = loss_of(checkpointed(model.forward, ids(), reentrant=False), ids(seed=5))
    with torch.no_grad():
        model.forward(ids(seed=1))
    with pytest.raises(InputError, match=REFUSED):
        loss.backward()


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("between", [pass_of_the_next_step, next_step])
@pytest.mark.parametrize("part", PARTS)
def test_a_table_of_the_batch_is_not_recomputed_with_the_draw_of_a_later_step(part, between, reentrant):
    with pytest.raises(InputError, match=REFUSED):
        second_gradients(Model(part, reentrant=reentrant), between, scope="batch")


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("between", [another_pass, same_words_again, pass_without_gradients])
@pytest.mark.parametrize("part", PARTS)
def test_a_table_of_the_batch_is_that_of_every_pass_of_its_step(part, between, reentrant):
    found = second_gradients(Model(part, reentrant=reentrant), between, scope="batch")
    torch.testing.assert_close(found, second_gradients(Model(), between, scope="batch"))


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("part", PARTS)
def test_losses_of_one_pass_after_the_other_see_their_own_draws(part, scope, reentrant):
    model, plain = Model(part, reentrant=reentrant), Model()
    for each in (model, plain):
        handle = smooth(each, proposal(), "word", "target", scope=scope)
        for seed in (0, 0, 1):
            for again, loss in enumerate(another_pass(each, handle, seed)):
                loss.backward(retain_graph=not again)
    torch.testing.assert_close(gradients(model), gradients(plain))


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("part", PARTS)
def test_prediction_is_no_later_pass(part, scope, reentrant):
    options = {"scope": scope, "output": "target"}
    found = second_gradients(Model(part, reentrant=reentrant), prediction, **options)
    torch.testing.assert_close(found, second_gradients(Model(), prediction, **options))


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize("outer", [True, False])
def test_a_checkpoint_within_another_sees_its_own_draws(outer, inner, scope):
    model, plain = Model("input", reentrant=inner), Model()
    for each in (model, plain):
        smooth(each, proposal(), scope=scope)
        for seed in range(2):
            logits = checkpointed(each, ids(seed=seed), outer) if each is model else each(ids(seed=seed))
            loss_of(logits, ids(seed=5)).backward()
    torch.testing.assert_close(gradients(model), gradients(plain))


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("reentrant", [True, False])
def test_passes_may_go_on_in_another_thread_which_numbers_nodes_anew(reentrant, scope):
    model, plain = Model("whole", reentrant=reentrant), Model()
    for each in (model, plain):
        handle = smooth(each, proposal(), scope=scope)
        for _ in range(2):
            another_pass(each, handle)[0].backward()
        with ThreadPoolExecutor(1) as thread:
            thread.submit(lambda each=each, handle=handle: another_pass(each, handle)[0].backward()).result()
    torch.testing.assert_close(gradients(model), gradients(plain))


def backward_in_a_thread(loss, **options):
    with ThreadPoolExecutor(1) as thread:
        thread.submit(loss.backward, **options).result()


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("part", ["input", "whole"])
def test_backward_may_have_a_thread_of_its_own_as_on_a_gpu(part, reentrant):
    found = second_gradients(Model(part, reentrant=reentrant), prediction, backward_in_a_thread)
    torch.testing.assert_close(found, second_gradients(Model(), prediction))
    with pytest.raises(InputError, match=REFUSED):
        second_gradients(Model(part, reentrant=reentrant), another_pass, backward_in_a_thread)
