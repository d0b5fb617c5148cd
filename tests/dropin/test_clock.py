"""When draws are new and when they are the same: optimiser steps, accumulation, checkpointing, resuming."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dropin_for_tests import WIDTH, WORDS, gradients, ids, loss_of, proposal, recurrent
from varsmooth import InputError, smooth

SCOPES = ["sequence", "batch", "position"]


def train(model, handle, steps, optimizer=None, first=0):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5) if optimizer is None else optimizer
    for step in range(first, first + steps):
        optimizer.zero_grad()
        (loss_of(model(ids(seed=step)), ids(seed=step + 1)) + 1e-3 * handle.kl()).backward()
        optimizer.step()


def test_the_optimiser_advances_the_step():
    model = recurrent()
    handle = smooth(model, proposal())
    first = model(ids())
    torch.optim.SGD(model.parameters(), lr=0.0).step()
    assert handle.current_step == 1
    second = model(ids())
    assert not torch.equal(first, second)
    handle.step(0)
    assert torch.equal(model(ids()), first)
    handle.step(1)
    assert torch.equal(model(ids()), second)


def test_a_table_that_was_loaded_in_place_of_the_first_still_tells_the_steps():
    model = recurrent(tied=False)
    handle = smooth(model, proposal())
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    train(model, handle, 2)
    assert handle.current_step == 2


def test_optimisers_of_parts_of_the_model_count_once_around_one_draw():
    model = recurrent()
    handle = smooth(model, proposal())
    for step in (1, 2):
        model(ids())
        for part in (model.body, model.words):
            torch.optim.SGD(part.parameters(), lr=0.1).step()
            assert handle.current_step == step


def test_a_model_whose_table_nobody_trains_has_new_draws_all_the_same():
    model = recurrent(tied=False)
    handle = smooth(model, proposal())
    train(model, handle, 2, torch.optim.SGD(model.head.parameters(), lr=0.5))
    assert handle.current_step == 2


def test_what_is_added_to_a_frozen_model_later_tells_the_steps():
    model = recurrent(tied=False).requires_grad_(False)
    handle = smooth(model, proposal(), allow_frozen=True)
    model.body.adapter = nn.Parameter(torch.zeros(3))
    for _ in range(2):
        model(ids())
        torch.optim.SGD([model.body.adapter], lr=0.5).step()
    assert handle.current_step == 2


def test_a_table_that_is_replaced_is_told_of_at_the_first_step():
    model = recurrent(tied=False)
    handle = smooth(model, proposal())
    model.words = nn.Embedding(WORDS, model.words.embedding_dim)
    with pytest.warns(UserWarning, match="no effect on words"):
        train(model, handle, 2)
    assert handle.current_step == 2


@pytest.mark.parametrize("frozen", [False, True])
def test_optimisers_that_step_inside_backward_count_once(frozen):
    model = recurrent(tied=False)
    handle = smooth(model, proposal())
    model.words.weight.requires_grad_(not frozen)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda own: torch.optim.SGD([own], lr=0.5).step())
    for step in (1, 2):
        loss_of(model(ids()), ids(seed=1)).backward()
        assert handle.current_step == step


class TwoHeads(nn.Module):
    """A body in a checkpoint, and two heads that are trained one after the other."""

    def __init__(self, *, checkpointed):
        super().__init__()
        self.inner, self.second, self.checkpointed = recurrent(tied=False), nn.Linear(WIDTH, WORDS), checkpointed

    def body(self, given):
        return self.inner.body(self.inner.words(given))[0]

    def forward(self, given):
        hidden = checkpoint(self.body, given, use_reentrant=False) if self.checkpointed else self.body(given)
        return self.inner.head(hidden), self.second(hidden)


def test_a_recomputation_after_the_optimiser_of_another_part_sees_the_draw_it_had():
    found = []
    for checkpointed in (True, False):
        torch.manual_seed(1)
        model = TwoHeads(checkpointed=checkpointed)
        handle = smooth(model, proposal(), output="none", dropout=0.2)
        first, second = model(ids())
        loss_of(first, ids(seed=1)).backward(retain_graph=True)
        torch.optim.SGD(model.inner.head.parameters(), lr=0.5).step()
        model.zero_grad()
        loss_of(second, ids(seed=1)).backward()
        found.append(model.inner.words.weight.grad)
        assert handle.current_step == handle.state_dict()["step"] == 1
        assert handle.step() == 2
    torch.testing.assert_close(found[0], found[1])


def test_a_copy_of_the_embedding_alone_leaves_the_model_out_and_follows_what_trains_it(tmp_path):
    model = recurrent(tied=False)
    handle = smooth(model, proposal(), output="none")
    model.body.unused = torch.ones(2, requires_grad=True) * 2  # which refuses to be copied
    words = copy.deepcopy(model.words)
    clock = words.forward.__self__.clock
    assert clock is not handle.clock
    for step in (0, 1):
        words(ids())
        assert int(clock.step) == step
        torch.optim.SGD(model.head.parameters(), lr=0.5).step()
    assert handle.current_step == 0, "nothing was drawn by the model's own"
    torch.save(words, tmp_path / "words")
    assert (tmp_path / "words").stat().st_size < 20_000


def test_an_optimiser_of_copies_is_told_of_when_draws_have_stayed_the_same_for_long():
    model = recurrent()
    handle = smooth(model, proposal())
    optimizer = torch.optim.SGD([parameter.detach().clone() for parameter in model.parameters()], lr=0.5)
    for _ in range(9):
        model(ids())
        optimizer.step()
    model(ids())
    with pytest.warns(UserWarning, match="not advanced in 10 steps.*advance='manual'"):
        optimizer.step()
    assert handle.current_step == 0


def test_training_another_model_after_one_draw_is_no_cause_for_a_warning(recwarn):
    model, other = recurrent(), recurrent()
    handle = smooth(model, proposal())
    model(ids())
    optimizer = torch.optim.SGD(other.parameters(), lr=0.5)
    for _ in range(20):
        loss_of(other(ids()), ids(seed=1)).backward()
        optimizer.step()
    assert not recwarn.list
    assert handle.current_step == 0


def test_a_critic_that_has_many_steps_to_one_of_the_model_is_no_cause_either(recwarn):
    model = recurrent()
    smooth(model, proposal())
    own, other = (torch.optim.SGD(each.parameters(), lr=0.5) for each in (model, recurrent()))
    for _ in range(2):
        model(ids())
        own.step()
        for _ in range(12):
            model(ids())
            other.step()
    assert not recwarn.list


class Wrapped(nn.Module):
    """As in Lightning: what trains is a method, and ``forward`` is never called."""

    def __init__(self):
        super().__init__()
        self.inner = recurrent()

    def training_step(self, given):
        return self.inner(given)


def test_labels_reach_a_model_that_is_called_by_another_method_than_forward():
    model, plain = Wrapped(), recurrent()
    for step in range(2):
        for each, call in ((model, model.training_step), (plain, plain)):
            handle = smooth(each, proposal(), "word", "target")
            handle.step(step)
            handle.labels(ids(seed=1))
            loss_of(call(ids()), ids(seed=1)).backward()
            handle.remove()
    torch.testing.assert_close(gradients(model.inner), gradients(plain))


@pytest.mark.parametrize("step", ["a", 1.5, torch.tensor([1, 2]), torch.tensor(1.5)])
def test_what_is_no_step_is_refused_and_changes_nothing(step):
    handle = smooth(recurrent(), proposal(), advance="manual")
    handle.step(3)
    with pytest.raises(InputError, match="a step is one integer"):
        handle.step(step)
    assert handle.current_step == 3


def test_steps_by_hand():
    model = recurrent()
    handle = smooth(model, proposal(), advance="manual")
    model(ids())
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert handle.current_step == 0
    assert handle.step() == 1
    with pytest.raises(InputError, match="step must be"):
        handle.step(-1)


def test_prediction_does_not_move_the_draws():
    model, other = recurrent(), recurrent()
    for each in (model, other):
        smooth(each, proposal())
    other.eval()(ids())
    other.train()
    assert torch.equal(model(ids()), other(ids()))


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("output", ["table", "none"])
def test_accumulated_gradients_are_those_of_the_whole_batch(scope, output):
    whole, parts = recurrent(), recurrent()
    for model in (whole, parts):
        smooth(model, proposal(), scope=scope, output=output, dropout=0.2)
    for _ in range(2):
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.5) for model in (whole, parts)]
        loss_of(whole(ids()), ids(seed=1)).backward()
        for piece in (slice(0, 1), slice(1, 4)):
            share = (piece.stop - piece.start) / 4
            (share * loss_of(parts(ids()[piece]), ids(seed=1)[piece])).backward()
        torch.testing.assert_close(gradients(parts), gradients(whole))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_model_recomputes_the_same_draws(scope, reentrant):
    model, plain = recurrent(), recurrent()
    for each in (model, plain):
        smooth(each, proposal(), scope=scope, dropout=0.2)
    for _ in range(2):  # the second micro-batch stands at other columns
        # A reentrant checkpoint needs an input that asks for a gradient.
        dummy = torch.zeros((), requires_grad=True)
        logits = checkpoint(lambda given, zero: model(given) + zero, ids(), dummy, use_reentrant=reentrant)
        loss_of(logits, ids(seed=1)).backward()
        loss_of(plain(ids()), ids(seed=1)).backward()
    torch.testing.assert_close(gradients(model), gradients(plain))


def test_a_checkpointed_target_rule_keeps_its_labels():
    model, plain = recurrent(), recurrent()
    for each in (model, plain):
        handle = smooth(each, proposal(), "word", "target")
        handle.labels(ids(seed=1))
    loss_of(checkpoint(model, ids(), use_reentrant=False), ids(seed=1)).backward()
    loss_of(plain(ids()), ids(seed=1)).backward()
    torch.testing.assert_close(gradients(model), gradients(plain))


def test_a_table_that_is_frozen_later_leaves_the_steps_to_the_other_parameters():
    model = recurrent(tied=False)
    handle = smooth(model, proposal())
    model.words.weight.requires_grad_(False)
    train(model, handle, 2, torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.5))
    assert handle.current_step == 2


class CheckpointedHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = recurrent()

    def forward(self, given):
        return checkpoint(self.inner.head, self.inner.body(self.inner.words(given))[0], use_reentrant=False)


def test_a_checkpointed_head_keeps_its_labels_or_refuses():
    model, plain = CheckpointedHead(), recurrent()
    handles = [smooth(each, proposal(), "word", "target") for each in (model, plain)]
    for seed in range(2):
        for each, handle in zip((model, plain), handles, strict=True):
            handle.labels(ids(seed=seed + 5))
            loss_of(each(ids(seed=seed)), ids(seed=seed + 5)).backward()
    torch.testing.assert_close(gradients(model.inner), gradients(plain))
    losses = []
    for seed in range(2):
        handles[0].labels(ids(seed=seed + 5))
        losses.append(loss_of(model(ids(seed=seed)), ids(seed=seed + 5)))
    with pytest.raises(InputError, match="its own draws cannot be told"):
        sum(losses).backward()


def test_recomputation_that_cannot_be_told_apart_is_refused():
    model = recurrent()
    smooth(model, proposal())
    both = [loss_of(checkpoint(model, ids(seed=seed), use_reentrant=False), ids()) for seed in (0, 1)]
    with pytest.raises(InputError, match="its own draws cannot be told"):
        sum(both).backward()


def test_with_one_table_for_the_batch_it_can_be_told():
    model, plain = recurrent(), recurrent()
    for each in (model, plain):
        smooth(each, proposal(), scope="batch")
    sum(loss_of(checkpoint(model, ids(seed=seed), use_reentrant=False), ids()) for seed in (0, 1)).backward()
    sum(loss_of(plain(ids(seed=seed)), ids()) for seed in (0, 1)).backward()
    torch.testing.assert_close(gradients(model), gradients(plain))


def test_a_resumed_run_is_the_one_that_never_stopped():
    model = recurrent()
    handle = smooth(model, proposal(), seed=3)
    train(model, handle, 6)
    stopped = recurrent()
    before = smooth(stopped, proposal(), seed=3)
    train(stopped, before, 2)
    resumed = recurrent(seed=2)
    resumed.load_state_dict(stopped.state_dict())
    after = smooth(resumed, proposal())
    after.load_state_dict(before.state_dict())
    train(resumed, after, 4, first=2)
    assert after.current_step == 6
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in resumed.state_dict().items())


def test_a_run_can_be_resumed_between_micro_batches():
    model, resumed = recurrent(), recurrent()
    handle = smooth(model, proposal())
    model(ids())
    other = smooth(resumed, proposal())
    other.load_state_dict(handle.state_dict())
    assert torch.equal(model(ids(seed=1)), resumed(ids(seed=1)))


def test_a_step_in_a_tensor_is_the_one_in_a_number():
    model, other = recurrent(), recurrent()
    handle, counter = smooth(model, proposal()), torch.tensor(7)
    handle.step(counter)
    smooth(other, proposal()).step(7)
    assert torch.equal(model(ids()), other(ids()))
    counter.add_(1)
    assert handle.current_step == 8
    torch.optim.SGD(model.parameters(), lr=0.0).step()
    assert handle.current_step == 8, "whoever gave the tensor advances it"


def test_parts_called_without_the_model_draw_alike():
    model, parts = recurrent(), recurrent()
    for each in (model, parts):
        smooth(each, proposal())
    for seed in range(2):
        assert torch.equal(model(ids(seed=seed)), parts.head(parts.body(parts.words(ids(seed=seed)))[0]))


class StepByStep(nn.Module):
    """Looks up one word after the other within one forward pass."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 4)

    def forward(self, given):
        return torch.stack([self.words(given[:, time : time + 1])[:, 0] for time in range(given.shape[1])], 1)


def test_look_ups_of_one_pass_share_the_table_of_their_sequence():
    model = StepByStep()
    smooth(model, proposal(), output="none")
    at_once, given = model(ids()), ids()
    handle = model.words.forward.__self__.clock
    handle.go_to(0)
    assert torch.equal(at_once, model.words(given))


class WideAndWider(nn.Module):
    """Reads the first rows of a batch, then all of them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.words = nn.Embedding(WORDS, WIDTH)

    def forward(self, given):
        return self.words(given[:1]), self.words(given)


def test_the_next_pass_begins_after_the_widest_look_up_of_this_one():
    model, whole = WideAndWider(), WideAndWider()
    for each in (model, whole):
        smooth(each, proposal(), output="none")
    few = ids()[:2]
    first, second = model(few)[1], model(few)[1]
    assert torch.equal(torch.cat([first, second]), whole(torch.cat([few, few]))[1])


def test_under_position_scope_look_ups_of_one_pass_differ():
    model = StepByStep()
    smooth(model, proposal(gamma=1.0), output="none", scope="position")
    vectors = model(torch.full((1, 8), 3))[0]
    assert len(vectors.unique(dim=0)) > 4


def test_under_position_scope_look_ups_of_one_checkpointed_pass_are_refused():
    model = StepByStep()
    smooth(model, proposal(), output="none", scope="position")
    vectors = checkpoint(model, ids(), use_reentrant=False)
    with pytest.raises(InputError, match="several look-ups, and which one cannot be told"):
        vectors.sin().sum().backward()


@pytest.mark.parametrize("scope", SCOPES)
def test_the_target_rule_accumulates_too(scope):
    whole, parts = recurrent(), recurrent()
    handles = [smooth(each, proposal(gamma=1.0), "word", "target", scope=scope) for each in (whole, parts)]
    handles[0].labels(ids(seed=1))
    loss_of(whole(ids()), ids(seed=1)).backward()
    for piece in (slice(0, 1), slice(1, 4)):
        handles[1].labels(ids(seed=1)[piece])
        share = (piece.stop - piece.start) / 4
        (share * loss_of(parts(ids()[piece]), ids(seed=1)[piece])).backward()
    torch.testing.assert_close(gradients(parts), gradients(whole))
