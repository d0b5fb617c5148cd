from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from statistics_for_tests import FAILURE_RATE, chi_square_p
from varsmooth.draws import DrawKey
from varsmooth.errors import InputError
from varsmooth.ops.noise import noise, noise_inputs
from varsmooth.proposal import Proposal
from varsmooth.text.counts import Counts

# a b a c a b d after an opening f; e never occurs: counts 3 2 1 1 0 1, after 2 2 1 0 0 1, before 3 1 1 1 0 0
COUNTS = Counts.from_ids(torch.tensor([5, 0, 1, 0, 2, 0, 1, 3]), 6)
SCHEMES = ["linear_interpolation", "absolute_discounting", "kneser_ney"]


@pytest.mark.parametrize("total", [1.00005, 0.99995])
def test_probabilities_that_nearly_sum_to_1_are_made_to(total):
    """What is missing is not one word's: of 50,000 words as likely as each other each has less than that."""
    size = 50_000
    proposal = Proposal(torch.full((size,), 0.2), torch.full((size,), total / size))
    assert float(proposal.probs.double().sum()) == pytest.approx(1, abs=1e-7)
    drawn = torch.bincount(proposal.draw(torch.arange(-(2**31), 2**31, 499)), minlength=size)
    assert float(drawn.max() / drawn.sum()) == pytest.approx(1 / size, rel=0.1)


def test_what_only_rounding_keeps_from_a_sum_of_1_stays_as_it_is():
    probs = torch.rand(1000, generator=torch.Generator().manual_seed(1))
    probs /= probs.sum()
    assert Proposal(torch.full((1000,), 0.2), probs).probs is probs


def test_linear_interpolation_by_hand():
    proposal = Proposal.linear_interpolation(COUNTS, 0.4)
    assert torch.allclose(proposal.rate, torch.tensor([0.4, 0.4, 0.4, 0.4, 0.0, 0.4]))
    assert torch.allclose(proposal.probs, torch.tensor([3, 2, 1, 1, 0, 1]) / 8)
    assert not proposal.noises_output


def test_absolute_discounting_by_hand():
    proposal = Proposal.absolute_discounting(COUNTS, 0.3)
    assert torch.allclose(proposal.rate, 0.3 * torch.tensor([2 / 3, 2 / 2, 1, 0, 0, 1]))
    assert torch.allclose(proposal.probs, torch.tensor([3, 2, 1, 1, 0, 1]) / 8)
    assert not proposal.noises_output


def test_kneser_ney_by_hand():
    proposal = Proposal.kneser_ney(COUNTS, 0.3)
    assert torch.allclose(proposal.rate, 0.3 * torch.tensor([2 / 3, 2 / 2, 1, 0, 0, 1]))
    assert torch.allclose(proposal.probs, torch.tensor([3, 1, 1, 1, 0, 0]) / 6)
    assert proposal.noises_output


def test_blank_by_hand():
    proposal = Proposal.blank(4, gamma=0.25, blank_id=2)
    assert proposal.rate.tolist() == [0.25, 0.25, 0.0, 0.25]
    assert proposal.probs.tolist() == [0, 0, 1, 0]
    assert not proposal.noises_output


def test_rare_words_are_spared_by_hand():
    proposal = Proposal.kneser_ney(COUNTS, 0.3)
    spared = proposal.sparing(COUNTS, below=2)
    assert torch.allclose(spared.rate, 0.3 * torch.tensor([2 / 3, 1, 0, 0, 0, 0]))
    assert torch.equal(spared.probs, proposal.probs)
    assert spared.noises_output
    assert torch.equal(proposal.sparing(COUNTS, 0).rate, proposal.rate)
    assert proposal.sparing(COUNTS, 4).silent
    assert torch.equal(proposal.rate, Proposal.kneser_ney(COUNTS, 0.3).rate), "the proposal itself has not changed"


def test_sparing_words_leaves_the_blank_as_it_is():
    proposal = Proposal.blank(7, gamma=0.25, blank_id=6).sparing(COUNTS, below=2)
    assert proposal.rate.tolist() == [0.25, 0.25, 0, 0, 0, 0, 0]
    assert proposal.probs.tolist() == [0, 0, 0, 0, 0, 0, 1]


def test_what_cannot_be_spared_is_refused():
    with pytest.raises(ValueError, match="below must be at least 0, got -1"):
        Proposal.kneser_ney(COUNTS, 0.3).sparing(COUNTS, -1)
    with pytest.raises(ValueError, match="counts are of 6 words, the proposal of 5"):
        Proposal.blank(5, 0.1, 4).sparing(COUNTS, 1)


def test_ids_in_place_of_counts_are_refused():
    with pytest.raises(
        InputError, match=r"counts must be Counts, as Counts\.from_ids\(ids, vocab_size\) makes them; got Tensor"
    ):
        Proposal.kneser_ney(torch.tensor([0, 1, 2]), 0.2)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("gamma", [-0.1, 1.5, math.nan, math.inf])
def test_gamma_out_of_range_is_named(scheme, gamma):
    with pytest.raises(ValueError, match="gamma"):
        getattr(Proposal, scheme)(COUNTS, gamma)
    with pytest.raises(ValueError, match="gamma"):
        Proposal.blank(3, gamma, 0)


@given(st.lists(st.integers(0, 8), max_size=60), st.floats(0, 1), st.sampled_from(SCHEMES))
def test_every_stream_gives_a_valid_proposal(stream, gamma, scheme):
    counts = Counts.from_ids(torch.tensor(stream, dtype=torch.int64), 9)
    proposal = getattr(Proposal, scheme)(counts, gamma)
    unseen = counts.unigram == 0
    assert (proposal.rate[unseen] == 0).all()
    assert (proposal.probs[unseen] == 0).all()
    assert proposal.silent == (not proposal.rate.any())
    assert float(proposal.rate.max()) <= gamma + 1e-6


@pytest.mark.parametrize(
    ("rate", "probs", "message"),
    [
        ([0.5, 0.5], [0.5, 0.4], "sum to 1"),
        ([0.5, 1.5], [0.5, 0.5], "rate"),
        ([0.5, 0.5], [1.5, -0.5], "probs"),
        ([0.5, math.nan], [0.5, 0.5], "rate"),
        ([0.5], [0.5, 0.5], "1 and 2"),
        ([], [], "1-D float"),
    ],
)
def test_invalid_proposals_are_refused(rate, probs, message):
    with pytest.raises(ValueError, match=message):
        Proposal(torch.tensor(rate), torch.tensor(probs))


def test_blank_id_outside_the_vocabulary_is_named():
    for blank_id in (-1, 3):
        with pytest.raises(ValueError, match="blank_id"):
            Proposal.blank(3, 0.1, blank_id)
    assert Proposal.blank(3, 0.1, 0).probs.tolist() == [1, 0, 0]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_saved_and_loaded_alike(tmp_path, scheme):
    proposal = getattr(Proposal, scheme)(COUNTS, 0.2)
    proposal.save(tmp_path / "p.safetensors")
    loaded = Proposal.load(tmp_path / "p.safetensors")
    assert torch.equal(loaded.rate, proposal.rate)
    assert torch.equal(loaded.probs, proposal.probs)
    assert loaded.noises_output == proposal.noises_output


@pytest.mark.parametrize("content", [None, b"", b"not safetensors at all"])
def test_loading_something_else_is_refused(tmp_path, content):
    path = tmp_path / "p.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"p\.safetensors"):
        Proposal.load(path)


def window(rows=50, columns=400):
    inputs = torch.arange(rows * columns).view(rows, columns) % 6
    return inputs, (inputs + 1) % 6


def test_noise_replaces_at_the_rate_by_the_proposal_and_labels_only_where_inputs_were():
    proposal = Proposal(torch.tensor([0.5, 0, 1, 0.25, 0, 0]), torch.tensor([0, 0, 0, 0.5, 0.25, 0.25]), noises_output=True)
    inputs, targets = window()
    noised, labels = noise(inputs, targets, proposal, key=3)
    for word, rate in enumerate(proposal.rate.tolist()):
        at = inputs == word
        changed = noised[at] != word
        seen_change = rate * (1 - float(proposal.probs[word]))
        deviation = math.sqrt(seen_change * (1 - seen_change) / int(at.sum()))
        assert abs(float(changed.float().mean()) - seen_change) <= 4.5 * deviation
    everywhere = inputs == 2
    observed = torch.bincount(noised[everywhere], minlength=6)[3:]
    assert chi_square_p(observed, proposal.probs[3:] * int(everywhere.sum())) > FAILURE_RATE
    assert torch.equal(labels[proposal.rate[inputs] == 0], targets[proposal.rate[inputs] == 0])
    pairs = (noised[everywhere] - 3) * 3 + labels[everywhere] - 3
    joint = (proposal.probs[3:, None] * proposal.probs[None, 3:]).flatten() * int(everywhere.sum())
    assert chi_square_p(torch.bincount(pairs, minlength=9), joint) > FAILURE_RATE


def test_positions_decide_alone():
    inputs = torch.zeros(200, 100, dtype=torch.int64)
    noised, _ = noise(inputs, inputs, Proposal(torch.tensor([0.5, 0.0]), torch.tensor([0.0, 1.0])), key=1)
    assert len({tuple(column) for column in noised.T.tolist()}) == 100
    assert len({tuple(row) for row in noised.tolist()}) == 200


def test_labels_stay_where_the_scheme_leaves_them():
    inputs, targets = window()
    noised, labels = noise(inputs, targets, Proposal.linear_interpolation(COUNTS, 0.5), key=3)
    assert torch.equal(labels, targets)
    assert not torch.equal(noised, inputs)


def test_ids_that_noise_cannot_take_are_named():
    proposal = Proposal(torch.full((3,), 0.5), torch.full((3,), 1 / 3))
    for kind in (torch.uint8, torch.float32):
        wrong = torch.zeros(3, 1, dtype=kind)
        with pytest.raises(ValueError, match="inputs must be int64 or int32"):
            noise(wrong, wrong, proposal, 1)
    with pytest.raises(ValueError, match=r"inputs must be in \[0, 3\)"):
        noise_inputs(torch.full((3, 1), 3), proposal, 1)


def test_noise_inputs_is_the_input_half_of_noise():
    inputs, targets = window()
    proposal = Proposal.kneser_ney(COUNTS, 0.5)
    assert torch.equal(noise_inputs(inputs, proposal, 3), noise(inputs, targets, proposal, 3)[0])


def test_a_shard_of_columns_draws_what_the_whole_batch_draws():
    inputs, targets = window()
    proposal = Proposal.kneser_ney(COUNTS, 0.5)
    whole, _ = noise(inputs, targets, proposal, DrawKey(1, 4))
    shard, _ = noise(inputs[:, 100:], targets[:, 100:], proposal, DrawKey(1, 4), first_sequence=100)
    assert torch.equal(shard, whole[:, 100:])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_gamma_0_changes_nothing_and_gamma_1_replaces_all(scheme):
    inputs, targets = window()
    silent = getattr(Proposal, scheme)(COUNTS, 0.0)
    assert silent.silent
    noised, labels = noise(inputs, targets, silent, 5)
    assert torch.equal(noised, inputs)
    assert torch.equal(labels, targets)
    noised, _ = noise(inputs, targets, Proposal.blank(7, 1.0, 6), 5)
    assert (noised == 6).all()
