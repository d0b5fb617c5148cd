from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from networks_for_tests import penalty, some_ids, some_network, tiny_config, tiny_corpus, tiny_trainer
from varsmooth import DrawKey, InputError
from varsmooth.config import Config, TrainConfig
from varsmooth.evaluate import evaluate
from varsmooth.model import RecurrentLanguageModel, State
from varsmooth.ops.descend import descend
from varsmooth.recipe import recipe_names
from varsmooth.text.batches import Windows
from varsmooth.train import trainer as trainer_module
from varsmooth.train.schedule import after_plateau, cosine, warm_up
from varsmooth.train.trainer import NotFiniteError, Progress, Terms, Trainer, epoch_offset

ROWS = [name for name in recipe_names() if "/" not in name]
CPU = torch.device("cpu")


def trained(config: Config, steps: int) -> Trainer:
    trainer = tiny_trainer(config)
    for _ in range(steps):
        trainer.step()
    return trainer


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]), name


def weights(trainer: Trainer) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.network.parameters()])


@pytest.fixture(scope="module")
def vanilla() -> Trainer:
    return trained(tiny_config("vanilla"), 30)


SMOOTHED = [row for row in ROWS if row.startswith(("smoothing", "element", "noising")) and not row.endswith("blank")]


@pytest.mark.parametrize("row", SMOOTHED)
def test_gamma_0_trains_to_exactly_the_weights_of_vanilla(vanilla, row):
    config = tiny_config(row, "smoothing.gamma=0")
    assert config.smoothing.method != "none"
    assert_same(trained(config, 30).tensors(), vanilla.tensors())


@pytest.mark.parametrize("row", SMOOTHED)
def test_with_its_own_gamma_every_row_trains_to_other_weights(vanilla, row):
    assert not torch.equal(weights(trained(tiny_config(row), 30)), weights(vanilla))


def test_the_rows_held_against_vanilla_are_all_there_are():
    assert len(SMOOTHED) == 8
    assert set(ROWS) - set(SMOOTHED) == {"vanilla", "vanilla-untied", "word-dropout", "noising-blank", "smoothing-blank"}
    assert vanilla_epochs() > 1, "offsets and the reset of the state are part of the comparison"


def vanilla_epochs() -> float:
    return 30 / tiny_trainer(tiny_config()).steps_per_epoch


def test_every_recipe_takes_a_step_and_predicts():
    corpus = tiny_corpus()
    names = recipe_names()
    assert (len(ROWS), len(names)) == (13, 13 + 13 * 6)
    for name in names:
        config = tiny_config(name)
        trainer = tiny_trainer(config, corpus)
        before = weights(trainer).clone()
        terms = trainer.step()
        moved = (weights(trainer) - before).abs()
        assert torch.isfinite(weights(trainer)).all(), name
        assert 0 < moved.max().item() <= config.train.lr * 1.001, name
        assert terms.total.item() == pytest.approx(terms.nll.item() + config.train.l2 * terms.kl.item(), rel=1e-5), name
        found = evaluate(trainer.network, corpus.valid, corpus.vocab.eos_id, predict=config.smoothing.predict, batch=3)
        assert math.isfinite(found.nll), name
        assert found.tokens == corpus.valid.numel(), name


def objective(
    network: RecurrentLanguageModel, inputs: Tensor, targets: Tensor, state: State, key: DrawKey, l2: float
) -> tuple[Terms, State]:
    """Eq. 10, the penalty included, for autograd to go through."""
    loss, state = network.loss(inputs, targets, state, key)
    nll, kl = loss.per_token.sum(0).mean(), penalty(network)
    return Terms(nll, kl, nll + l2 * kl), state


def settings(**changes: Any) -> TrainConfig:
    plain = {"steps": 10, "batch": 4, "window": 5, "lr": 0.01, "l2": 0.1, "schedule": "constant", "device": "cpu"}
    return TrainConfig(**{**plain, **changes})


def window_of(trainer: Trainer, step: int) -> tuple[Tensor, Tensor]:
    epoch, index = divmod(step, trainer.steps_per_epoch)
    return trainer.windows.at(index, epoch_offset(trainer.settings.seed, epoch, trainer.settings.window))


def test_the_objective_is_a_mean_over_the_batch_of_sums_over_time():
    trainer = Trainer(some_network(output="target"), some_ids(200), settings(l2=0.3), CPU)
    network = some_network(output="target")
    loss, _ = network.loss(*window_of(trainer, 0), network.initial_state(4), DrawKey(1, 0))
    terms = trainer.step()
    assert terms.nll.item() == pytest.approx(sum(loss.per_token[:, b].sum().item() for b in range(4)) / 4)
    assert terms.kl.item() == pytest.approx(penalty(network).item())
    assert terms.total.item() == pytest.approx(terms.nll.item() + 0.3 * terms.kl.item())


@pytest.mark.parametrize("clip", [1e9, 0.5])
def test_steps_are_rmsprop_with_the_penalty_inside_the_clip(clip):
    """Adam with beta1 = 0, beta2 = 0.999, eps = 1e-8, written out; the penalty is large, so outside the clip it would show."""
    ids, plain = some_ids(200), settings(clip=clip, l2=2.0)
    trainer, network = Trainer(some_network(output="target"), ids, plain, CPU), some_network(output="target").double()
    squares = [torch.zeros_like(parameter) for parameter in network.parameters()]
    state = network.initial_state(4)
    for step in range(3):
        terms, state = objective(network, *window_of(trainer, step), state, DrawKey(plain.seed, step), plain.l2)
        state = tuple(part.detach() for part in state)
        gradients = torch.autograd.grad(terms.total, list(network.parameters()))
        norm = math.sqrt(sum(gradient.square().sum().item() for gradient in gradients))
        assert norm > 0.5
        for parameter, square, gradient in zip(network.parameters(), squares, gradients, strict=True):
            clipped = gradient * min(1.0, clip / norm)
            square.mul_(0.999).add_(0.001 * clipped.square())
            parameter.data -= plain.lr * clipped / ((square / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8)
        trainer.step()
        found = trainer.tensors()
        for (name, parameter), square in zip(network.named_parameters(), squares, strict=True):
            torch.testing.assert_close(found[f"weight.{name}"].double(), parameter.detach(), rtol=1e-3, atol=2e-4)
            torch.testing.assert_close(found[f"square.{name}"].double(), square, rtol=1e-3, atol=1e-9)


def test_the_first_step_is_as_long_as_the_learning_rate():
    trainer = Trainer(some_network(method="none"), some_ids(200), settings(), CPU)
    before = weights(trainer).clone()
    trainer.step()
    moved = (weights(trainer) - before).abs()
    assert moved.median().item() == pytest.approx(0.01, rel=1e-3)


def test_each_step_has_its_own_draws_and_seeds_differ():
    config = tiny_config("smoothing-kneser-ney", "train.lr=1e-30")
    trainer = tiny_trainer(config)
    inputs, targets = window_of(trainer, 0)
    state = trainer.network.initial_state(4)
    keys = [DrawKey(1, 0), DrawKey(1, 1), DrawKey(2, 0)]
    nlls = {objective(trainer.network, inputs, targets, state, key, 0)[0].nll.item() for key in keys}
    assert len(nlls) == 3
    assert trainer.step().nll.item() in nlls


def test_the_state_is_carried_and_forgotten_when_an_epoch_ends():
    trainer = tiny_trainer(tiny_config("vanilla", "train.lr=1e-30", "dropout.tables=0", "dropout.recurrent=0"))
    ends = []
    for step in range(trainer.steps_per_epoch + 1):
        state = trainer.network.initial_state(4) if step in (0, trainer.steps_per_epoch) else ends[-1]
        _, expected = trainer.network.loss(*window_of(trainer, step), state, DrawKey(1, step))
        trainer.step()
        ends.append(trainer.carried)
        torch.testing.assert_close(trainer.carried, expected)
        assert not any(part.requires_grad for part in trainer.carried)


def test_epochs_start_at_offsets_that_depend_on_seed_and_epoch_alone():
    offsets = [epoch_offset(1, epoch, 35) for epoch in range(500)]
    assert offsets == [epoch_offset(1, epoch, 35) for epoch in range(500)]
    assert set(offsets) == set(range(35))
    assert offsets[:20] != [epoch_offset(2, epoch, 35) for epoch in range(20)]
    assert {epoch_offset(3, epoch, 1) for epoch in range(20)} == {0}


def test_each_epoch_reads_from_its_own_offset(monkeypatch):
    asked = []
    at = Windows.starting_at
    monkeypatch.setattr(Windows, "starting_at", lambda self, start: asked.append(int(start)) or at(self, start))
    trainer = trained(tiny_config(), 45)
    per_epoch = trainer.steps_per_epoch
    offsets = [epoch_offset(1, step // per_epoch, 5) for step in range(45)]
    assert asked == [offset + step % per_epoch * 5 for step, offset in enumerate(offsets)]
    assert len(set(offsets)) > 1


def test_means_are_those_of_the_steps_since_last_asked():
    trainer = tiny_trainer(tiny_config())
    trainer.step()
    trainer.take_means()
    terms = [trainer.step() for _ in range(3)]
    means = trainer.take_means()
    assert means["nll"] == pytest.approx(sum(term.nll.item() for term in terms) / 3 / 5)
    assert means["kl"] == pytest.approx(sum(term.kl.item() for term in terms) / 3)
    assert means["total"] == pytest.approx(sum(term.total.item() for term in terms) / 3)
    assert means["grad_norm"] > 0


def test_cosine():
    assert [cosine(step, 100, 0.0) for step in (0, 50, 100, 120)] == pytest.approx([1, 0.5, 0, 0])
    assert [cosine(step, 100, 0.2) for step in (0, 50, 100)] == pytest.approx([1, 0.6, 0.2])
    falls = [cosine(step, 37, 0.1) for step in range(38)]
    assert falls == sorted(falls, reverse=True)


def test_plateau():
    factor, waited, factors = 1.0, 0, []
    for gained in (True, False, True, False, False, False, False, True):
        factor, waited = after_plateau(factor, waited, gained, decay=0.5, patience=2)
        factors.append(factor)
    assert factors == [1, 1, 1, 1, 0.5, 0.5, 0.25, 0.25]


def test_the_learning_rate_follows_its_schedule(monkeypatch):
    rates: dict[str, list[float]] = {"cosine": [], "constant": [], "plateau": []}
    for schedule, found in rates.items():
        trainer = tiny_trainer(tiny_config("vanilla", f"train.schedule={schedule}", "train.final_lr_fraction=0.25"))
        with monkeypatch.context() as patch:
            patch.setattr(trainer_module, "descend", lambda *given, to=found: to.append(float(given[2])) or descend(*given))
            for _ in range(8):
                trainer.step()
    assert rates["cosine"] == pytest.approx([0.003 * cosine(step, 8, 0.25) for step in range(8)])
    assert rates["constant"] == rates["plateau"] == pytest.approx([0.003] * 8)


def test_a_warm_up_comes_before_any_schedule():
    assert [warm_up(step, 4) for step in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
    assert [warm_up(step, 0) for step in (0, 1)] == [1, 1]
    for schedule, then in (("cosine", cosine(3, 8, 0.0)), ("constant", 1.0), ("plateau", 1.0)):
        trainer = tiny_trainer(tiny_config("vanilla", f"train.schedule={schedule}", "train.warm_up=5"))
        for _ in range(3):
            trainer.step()
        assert trainer.lr == pytest.approx(0.003 * then * 0.8)


def test_a_lower_rate_of_the_plateau_holds_from_the_next_step_on():
    trainer = tiny_trainer(tiny_config("vanilla", "train.schedule=plateau", "train.plateau_patience=1"))
    moved = []
    for _ in range(3):
        before = weights(trainer).clone()
        trainer.step()
        moved.append((weights(trainer) - before).abs().max().item())
        trainer.observe(10.0)
    assert trainer.progress.lr_factor == 0.25
    assert moved[2] < 0.75 * moved[1]


@pytest.mark.parametrize(("schedule", "factor"), [("plateau", 0.25), ("cosine", 1.0)])
def test_evaluations_without_gain_lower_the_rate_of_the_plateau_alone(schedule, factor):
    trainer = Trainer(some_network(), some_ids(200), settings(schedule=schedule, plateau_patience=2), CPU)
    trainer.step()
    gains = [trainer.observe(perplexity) for perplexity in (50.0, 40.0, 40.0, 41.0, 45.0, 42.0, 39.0)]
    assert gains == [True, True, False, False, False, False, True]
    assert trainer.progress.lr_factor == factor
    assert trainer.lr == pytest.approx(0.01 * factor * (cosine(1, 10, 0) if schedule == "cosine" else 1))
    assert (trainer.progress.best_perplexity, trainer.progress.since_best) == (39.0, 0)


def test_the_first_evaluation_is_the_best_so_far_whatever_it_says():
    trainer = tiny_trainer(tiny_config())
    trainer.step()
    assert trainer.observe(math.inf)
    assert not trainer.observe(math.inf)
    assert not trainer.observe(math.nan)


def test_a_gain_below_a_ten_thousandth_is_none():
    trainer = tiny_trainer(tiny_config())
    trainer.progress.step = 1
    assert [trainer.observe(perplexity) for perplexity in (100.0, 99.995, 99.985)] == [True, False, True]


def test_the_average_follows_the_weights():
    trainer = tiny_trainer(tiny_config("vanilla", "train.average=0.4"))
    expected = weights(trainer).double()
    for step in range(6):
        trainer.step()
        decay = min(0.4, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * weights(trainer).double()
    last = weights(trainer).clone()
    trainer.swap_average()
    torch.testing.assert_close(weights(trainer).double(), expected, rtol=1e-5, atol=1e-6)
    trainer.swap_average()
    assert torch.equal(weights(trainer), last)


def test_averaging_does_not_change_the_training_and_none_is_kept_unless_asked_for(vanilla):
    averaged = trained(tiny_config("vanilla", "train.average=0.9"), 30)
    assert torch.equal(weights(averaged), weights(vanilla))
    assert not vanilla.average
    vanilla.swap_average()
    assert torch.equal(weights(averaged), weights(vanilla))


@pytest.mark.parametrize("row", ["vanilla", "smoothing-kneser-ney", "element-kneser-ney", "noising-kneser-ney"])
def test_bf16_steps_stay_near_those_of_single_precision(row):
    single, half = (trained(tiny_config(row, f"train.precision={precision}"), 10) for precision in ("fp32", "bf16"))
    assert {parameter.dtype for parameter in half.network.parameters()} == {torch.float32}
    assert not torch.equal(weights(half), weights(single))
    nlls = [trainer.take_means()["nll"] for trainer in (single, half)]
    assert nlls[1] == pytest.approx(nlls[0], rel=0.02)


@pytest.mark.parametrize(
    "changes",
    [
        ["train.average=0.9"],
        ["train.schedule=plateau", "train.plateau_patience=1"],
        ["model.cell=gru", "dropout.recurrent_kind=update"],
        ["train.precision=bf16", "dropout.kind=activation"],
        ["model.tied=false", "smoothing.scheme=blank", "smoothing.output=table", "smoothing.variance=0.1"],
    ],
    ids=str,
)
@pytest.mark.parametrize("stop", [0, 13])
def test_a_restored_trainer_goes_on_bit_for_bit(changes, stop):
    config = tiny_config("smoothing-kneser-ney", *changes)
    whole, first, second = (tiny_trainer(config) for _ in range(3))

    def run(trainer: Trainer, steps: range) -> None:
        for step in steps:
            trainer.step()
            if step % 6 == 0:
                trainer.observe(10.0 + step % 4)

    run(whole, range(22))
    run(first, range(stop))
    second.restore({name: tensor.clone() for name, tensor in first.tensors().items()}, first.meta())
    run(second, range(stop, 22))
    assert_same(second.tensors(), whole.tensors())
    assert second.meta() == whole.meta()
    assert second.take_means() == whole.take_means()


def test_a_state_of_another_configuration_is_refused():
    plain, averaged = (tiny_trainer(tiny_config("vanilla", f"train.average={decay}")) for decay in (0.0, 0.9))
    plain.step()
    for one, other in ((plain, averaged), (averaged, plain)):
        with pytest.raises(InputError, match=r"do not fit: 'average\.bias' is in one of them alone"):
            other.restore(one.tensors(), one.meta())
    assert averaged.progress.step == 0, "and nothing was taken over"


def test_a_gradient_that_is_not_finite_stops_before_it_reaches_the_weights():
    trainer = tiny_trainer(tiny_config("vanilla", "train.precision=bf16", "train.lr=0.5", "train.clip=3"))
    for _ in range(2):
        trainer.step()
    trainer.network.input_table.data[0, 0] = math.inf
    before = weights(trainer).clone()
    with pytest.raises(NotFiniteError) as error:
        trainer.step()
    assert "not finite at step 3: lower train.lr (now 0.5) or train.clip (now 3)" in str(error.value)
    assert "train.precision=fp32" in str(error.value)
    assert torch.equal(weights(trainer), before)
    assert trainer.progress.step == 2
    with pytest.raises(NotFiniteError):
        trainer.check_finite()


def test_where_only_now_and_then_is_asked_the_first_bad_step_is_named(monkeypatch):
    trainer = tiny_trainer(tiny_config())
    check = trainer.check_finite
    monkeypatch.setattr(trainer, "check_finite", lambda: None)  # as on a GPU, where asking would wait
    for step in range(4):
        if step == 2:
            trainer.network.bias.data[0] = math.nan
        trainer.step()
    with pytest.raises(NotFiniteError, match="not finite at step 3:"):
        check()


def test_a_loss_that_is_not_finite_stops_even_if_its_gradient_is():
    network = some_network(method="none", tied=False)
    network.input_table.data[20] = 2e19  # never looked up; its square is too large for single precision, its gradient is not
    trainer = Trainer(network, some_ids(200, words=10), settings(l2=1e-4), CPU)
    with pytest.raises(NotFiniteError, match="step 1"):
        trainer.step()


def test_progress_is_all_numbers_so_that_a_state_can_hold_it():
    assert all(isinstance(value, int | float) for value in vars(Progress()).values())


@pytest.mark.gpu
@pytest.mark.parametrize("row", ROWS)
def test_every_row_takes_the_same_steps_on_a_gpu(row):
    config, corpus = tiny_config(row, "train.l2=0.01"), tiny_corpus()
    here = tiny_trainer(config, corpus)
    there = Trainer(tiny_trainer(config, corpus).network, corpus.train, config.train, torch.device("cuda"))
    for _ in range(3):
        terms = [trainer.step().total.item() for trainer in (here, there)]
        assert terms[1] == pytest.approx(terms[0], rel=1e-3)
    found = evaluate(there.network, corpus.valid, corpus.vocab.eos_id, predict="sample", samples=2)
    assert math.isfinite(found.nll)
