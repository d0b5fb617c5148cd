"""Each refusal names the culprit and the way out."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from dropin_for_tests import WIDTH, WORDS, ids, proposal, recurrent
from varsmooth import Counts, InputError, Proposal, smooth, special_ids_of


def refused(pattern, model, noise=None, **options):
    with pytest.raises(InputError, match=pattern):
        smooth(model, proposal() if noise is None else noise, **options)


class Packed(nn.Module):
    """As the quantised embeddings of torch: not an nn.Embedding, its table out of reach."""


class AnswersPacked(nn.Module):
    def get_input_embeddings(self):
        return Packed()


def test_no_embedding():
    refused("no embedding found in Linear: it has no nn.Embedding", nn.Linear(3, 4))
    refused("smooth first, quantise afterwards", nn.Sequential(Packed()))
    refused("its input layer is a Packed", AnswersPacked())


def test_arguments_that_were_exchanged_or_are_counts():
    refused("the model must be a torch.nn.Module, got Proposal", proposal(), recurrent())
    refused(r"such as Proposal.kneser_ney\(counts, 0.2\), got Counts", recurrent(), Counts.from_ids([0, 1, 2], WORDS))


def test_several_embeddings():
    model = nn.ModuleDict({"tokens": nn.Embedding(WORDS, 4), "places": nn.Embedding(7, 4)})
    refused(r"tokens \(29, 4\), places \(7, 4\)\); name the one of the words: input='NAME'", model, output="none")
    handle = smooth(model, proposal(), output="none", input="tokens")
    assert [part.module for part in handle.parts] == [model["tokens"]]


def test_no_head():
    model = nn.Sequential(nn.Embedding(WORDS, 4), nn.Linear(4, 3))
    refused("no output head found in Sequential.*29 rows; smooth the input alone with output='none'", model)
    smooth(model, proposal(), output="none")


def test_several_heads():
    model = nn.Sequential(nn.Embedding(WORDS, 4), nn.Linear(4, WORDS), nn.Linear(4, WORDS))
    refused(r"several layers of Sequential could score words \(1 \(29, 4\), 2 \(29, 4\)\)", model)
    assert smooth(model, proposal(), head="2").parts[1].module is model[2]


def test_a_feed_forward_layer_with_as_many_outputs_as_words_is_not_taken_for_the_head():
    """Its model scores by the embedding's own weight, which no layer tells."""
    model = nn.Sequential(nn.Embedding(WORDS, 4), nn.Linear(4, WORDS), nn.Linear(WORDS, 4))
    refused(r"1 \(29, 4\) has a row for each word, but may be one half of a feed-forward layer, whose other is '2'", model)
    assert smooth(model, proposal(), head="1").parts[1].module is model[1]


def test_a_head_is_found_where_there_are_as_many_units_as_words():
    model = nn.Sequential(nn.Embedding(WORDS, WORDS), nn.Linear(WORDS, WORDS))
    assert smooth(model, proposal()).parts[1].module is model[1]
    model = nn.Sequential(nn.Embedding(WORDS, 4), nn.Linear(4, WORDS), nn.Linear(WORDS, 3))  # the last reads logits
    assert smooth(model, proposal()).parts[1].module is model[1]


class NamesWhatComesBefore(nn.Sequential):
    def get_output_embeddings(self):
        return self[1]


def test_a_layer_that_the_model_names_must_be_able_to_score_words():
    model = NamesWhatComesBefore(nn.Embedding(WORDS, 4), nn.Linear(4, 4), nn.Linear(4, WORDS))
    assert smooth(model, proposal()).parts[1].module is model[2]


def test_the_tied_layer_is_preferred():
    model = nn.Sequential(nn.Embedding(WORDS, 4), nn.Linear(4, WORDS), nn.Linear(4, WORDS))
    model[2].weight = model[0].weight
    assert smooth(model, proposal()).parts[1].module is model[2]


def test_names_that_are_none():
    refused("input='word': RecurrentModel has no module of this name; did you mean 'words'", recurrent(), input="word")
    refused("head='body' is a GRU; it must be an nn.Linear", recurrent(), head="body")
    refused("input= is a Embedding that is no part of the RecurrentModel", recurrent(), input=recurrent().words)
    refused("head= is a Linear that is no part of the RecurrentModel", recurrent(), head=recurrent().head)


def test_too_few_rows():
    refused("the table of 'words' has 29 rows, the proposal 31 words; count with vocab_size=29", recurrent(), proposal(31))


def test_too_many_rows_to_be_a_rounding():
    model = recurrent(rows=WORDS + 200)
    refused("229 rows, the proposal 29 words: 200 rows would be padding; say so with padding=200", model)
    refused("padding=3, but the table of 'words' has 200 rows more", model, padding=3)
    assert smooth(model, proposal(), padding=200).padding == {"words": 200, "head": 200}


def test_padded_tables_are_smoothed_up_to_the_padding():
    model = recurrent(rows=32)
    handle = smooth(model, proposal())
    assert handle.padding == {"words": 3, "head": 3}
    assert "3 rows of words are padding" in repr(handle)
    fitting = handle.parts[0].table.proposal
    assert torch.equal(fitting.rate, torch.cat([proposal().rate, torch.zeros(3)]))
    assert torch.equal(fitting.probs, torch.cat([proposal().probs, torch.zeros(3)]))
    drawn = model.words(torch.tensor([[29, 30, 31]]))
    assert torch.equal(drawn, model.words.weight[29:][None])


def test_a_head_may_be_padded_alone():
    model = recurrent(tied=False)
    model.head = nn.Linear(WIDTH, 64)
    refused("no output head found", model)
    assert smooth(model, proposal(), head="head").padding == {"words": 0, "head": 35}
    assert model(ids()).shape[-1] == 64


def test_a_second_handle():
    model = recurrent()
    smooth(model, proposal(), output="none")
    refused(r"embedding 'words' is smoothed already; call remove\(\) on that handle first, or copy", model)
    refused("or copy models before that", copy.deepcopy(model))


def test_a_second_handle_through_the_tie():
    model = recurrent()
    smooth(model, proposal())
    model.more = nn.Embedding(WORDS, WIDTH)
    model.more.weight = model.words.weight
    refused("'words' is smoothed already", model, input="more", output="none")
    assert "forward" not in vars(model.more)


def test_a_frozen_table():
    model = recurrent()
    model.words.weight.requires_grad_(False)
    refused(r"embedding 'words' is frozen.*requires_grad_\(True\).*allow_frozen=True", model)
    handle = smooth(model, proposal(), allow_frozen=True)
    first = model(ids())
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.0)
    optimizer.step()
    assert handle.current_step == 1
    assert not torch.equal(model(ids()), first)


def test_a_quantised_table():
    model = recurrent(tied=False)
    model.words.weight = nn.Parameter(torch.zeros(WORDS, WIDTH, dtype=torch.int8), requires_grad=False)
    refused(r"embedding 'words' is quantised \(int8\)", model)
    model = recurrent(tied=False)
    model.head.weight = nn.Parameter(torch.zeros(WORDS, WIDTH, dtype=torch.float8_e4m3fn), requires_grad=False)
    refused(r"head 'head' is quantised \(float8_e4m3fn\)", model)


class Linear(nn.Module):
    """As the quantised layers of torch: of the same name, and no nn.Linear."""


def test_a_quantised_layer_that_is_named():
    model = nn.Sequential(nn.Embedding(WORDS, 4), Linear())
    refused("head='1' is a Linear of .*, not of torch.nn.*smooth first, quantise afterwards", model, head="1")
    refused("output='none'.*a quantised one cannot be drawn: smooth first", model)


def test_replicas_of_data_parallel():
    model = recurrent()
    smooth(model, proposal())
    with pytest.raises(InputError, match=r"nn\.DataParallel is not supported.*DistributedDataParallel"):
        model._replicate_for_data_parallel()(ids())


def test_embeddings_that_draws_cannot_follow():
    model = recurrent()
    model.words.max_norm = 1.0
    refused("max_norm", model)
    model = recurrent()
    model.words.sparse = True
    refused("sparse=False", model)
    model = recurrent()
    model.words.scale_grad_by_freq = True
    refused("scale_grad_by_freq to False", model)
    model = recurrent()
    model.words.forward = lambda given: given
    refused("forward set on the module itself", model)


class Scaled(nn.Embedding):
    def forward(self, input):
        return super().forward(input) * 3.0


class Positional(nn.Embedding):
    def forward(self, input):
        return super().forward(input) + input[..., None]


def test_a_subclass_keeps_what_it_does_to_the_vectors():
    model, plain = (nn.Sequential(kind(WORDS, 4)) for kind in (Scaled, nn.Embedding))
    plain[0].weight = model[0].weight
    handles = [smooth(each, proposal(), output="none", input="0") for each in (model,)]
    drawn, mean = model(ids()), model.eval()(ids())
    handles[0].remove()
    smooth(plain, proposal(), output="none")
    assert torch.equal(drawn, plain(ids()) * 3)
    assert torch.equal(mean, plain.eval()(ids()) * 3)
    drawn.sum().backward()
    assert model[0].weight.grad.sum() == pytest.approx(3 * ids().numel() * 4)


class Masked(nn.Embedding):
    def forward(self, input):
        return super().forward(input) * (input != 5)[..., None]


@pytest.mark.parametrize("kind", [Positional, Masked])
def test_a_subclass_that_looks_at_the_ids_is_refused(kind):
    refused("does more than look rows up", nn.Sequential(kind(WORDS, 4)), output="none")


class Short(nn.Embedding):
    def forward(self, input):
        if input.shape[-1] > 512:
            raise ValueError("too long")
        return super().forward(input)


def test_a_subclass_may_have_a_longest_line():
    smooth(nn.Sequential(Short(2000, 4)), proposal(2000), output="none", input="0")


class Named(nn.Embedding):
    def forward(self, input_ids, scale=1.0):
        return super().forward(input_ids) * scale


def test_a_subclass_is_called_by_its_own_names_and_with_what_it_reads_alone():
    model, other = Named(WORDS, 4), Named(WORDS, 4)
    other.weight = model.weight
    for each in (model, other):
        smooth(each, proposal(), output="none", input=each)
    assert torch.equal(model(input_ids=ids()), other(ids()))
    with pytest.raises(InputError, match="was called with 2 arguments"):
        model(ids(), 2.0)


class Decoupled(nn.Embedding):
    """Words past the table's are another's: as IdeficsDecoupledEmbedding has it."""

    def forward(self, input):
        past = input >= self.num_embeddings
        return torch.where(past[..., None], 100.0, super().forward(input.masked_fill(past, 0)))


def test_a_batch_of_more_places_than_words_is_read_by_a_subclass_as_any():
    model, plain = Decoupled(WORDS, 4), nn.Embedding(WORDS, 4)
    plain.weight = model.weight
    for each in (model, plain):
        smooth(each, proposal(), output="none", input=each)
    many = ids(batch=8)
    assert many.numel() > WORDS
    assert torch.equal(model(many), plain(many))


def test_a_table_without_values():
    with torch.device("meta"):
        model = recurrent()
    refused("embedding 'words' has no values yet", model)


def test_bad_options():
    refused("output must be one of", recurrent(), output="tables")
    refused("predict must be one of", recurrent(), predict="mena")
    refused("advance must be one of", recurrent(), advance="auto")
    refused("granularity must be one of word, element, got 3", recurrent(), granularity=3)
    refused(r"dropout must be a number in \[0, 1\), got 1.0", recurrent(), dropout=1.0)
    refused(r"dropout must be a number in \[0, 1\), got 'a'", recurrent(), dropout="a")
    refused("padding must be at least 0, got -1", recurrent(), padding=-1)
    refused("granularity='word'", recurrent(), output="target")
    refused(r"seed must be in \[0, 2\*\*32\)", recurrent(), seed=-1)
    refused("data_parallel must be a rank", recurrent(), data_parallel=(2, 2))
    model = recurrent()
    refused("scope must be one of", model, scope="window")
    assert "forward" not in vars(model.words), "what fails leaves nothing behind"


def test_special_ids_are_never_replaced_and_never_proposed():
    model = recurrent()
    fitting = smooth(model, proposal(gamma=1.0), special_ids=[0, 7]).parts[0].table.proposal
    for values in (fitting.rate, fitting.probs):
        assert not values[[0, 7]].any()
        assert values[1] > 0
    assert float(fitting.probs.sum()) == pytest.approx(1)
    everything = torch.arange(WORDS).repeat(50, 1)
    vectors = model.words(everything)
    weight = model.words.weight
    assert torch.equal(vectors[:, [0, 7]], weight[[0, 7]].expand(50, -1, -1))
    others = [index for index in range(WORDS) if index not in (0, 7)]
    assert not torch.isin(vectors[:, others], weight[[0, 7]]).any()


def test_special_ids_must_be_words_and_leave_some():
    refused(r"special_ids must be in \[0, 29\).*got 29", recurrent(), special_ids=[29])
    refused("special_ids must be integers.*None", recurrent(), special_ids=[None, 0])
    refused(r"special_ids must be integers, as special_ids_of\(tokenizer\)", recurrent(), special_ids=["<pad>"])
    refused("special_ids must be integers", recurrent(), special_ids=3)
    with pytest.raises(InputError, match="needs a tokenizer of transformers, got str"):
        special_ids_of("bert-base-uncased")
    refused(
        "special_ids and padding_idx leave the proposal no word",
        recurrent(),
        Proposal.blank(WORDS, 0.1, blank_id=2),
        special_ids=[2],
    )


def test_special_ids_may_lie_in_the_padding_of_a_table():
    """A row of its own for padding, after the words, is usual; the proposal need not know it."""
    model = recurrent(rows=WORDS + 1)
    model.words.padding_idx = WORDS
    handle = smooth(model, proposal(), special_ids=[2, WORDS])
    assert handle.padding == {"words": 1, "head": 1}
    fitting = handle.parts[0].table.proposal
    assert not fitting.rate[[2, WORDS]].any()
    assert not fitting.probs[[2, WORDS]].any()
    assert fitting.rate[3] > 0


def test_a_weight_that_is_computed():
    model = recurrent(tied=False)
    nn.utils.parametrizations.weight_norm(model.words)
    refused("embedding 'words' has a weight that is computed from other parameters", model)
    model = recurrent(tied=False)
    nn.utils.parametrizations.weight_norm(model.head)
    refused("head 'head' has a weight that is computed", model)
    smooth(model, proposal(), output="none")


def test_a_table_that_grew_after_it_was_smoothed():
    model = recurrent()
    smooth(model, proposal())
    model(ids())
    model.words.weight.data = torch.randn(WORDS + 4, WIDTH)
    with pytest.raises(InputError, match=r"'words' had 29 rows when it was smoothed and has 33 now; call remove\(\)"):
        model(ids())


@pytest.mark.parametrize("granularity", ["word", "element"])
@pytest.mark.parametrize("wrong", [-1, WORDS])
def test_ids_that_the_table_lacks_are_refused_as_by_a_plain_embedding(granularity, wrong):
    model = recurrent()
    smooth(model, proposal(), granularity)
    with pytest.raises(IndexError, match="index out of range"):
        model(torch.tensor([[0, wrong]]))


class Functional(nn.Module):
    """Reads the weights of its modules without calling them."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.calls_embedding = False

    def forward(self, given):
        vectors = self.words(given) if self.calls_embedding else nn.functional.embedding(given, self.words.weight)
        return nn.functional.linear(vectors, self.head.weight, self.head.bias)


@pytest.mark.parametrize("advance", ["optimizer", "manual"])
@pytest.mark.parametrize(("calls_embedding", "names"), [(True, "head"), (False, "head, words")])
def test_smoothing_that_has_no_effect_is_told_once(advance, calls_embedding, names):
    model = Functional()
    model.calls_embedding = calls_embedding
    handle = smooth(model, proposal(), advance=advance)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        model(ids()).sum().backward()
        optimizer.step()
        if advance == "manual":
            handle.step()

    with pytest.warns(UserWarning, match=f"smoothing had no effect on {names}: .*output='none'"):
        step()
    step()  # a second warning would be an error
    assert handle.current_step == 2


def test_a_step_that_is_none_and_a_state_that_is_not_its_own():
    handle = smooth(recurrent(), proposal())
    for wrong in (1.5, torch.tensor(1.0), torch.tensor([1, 2])):
        with pytest.raises(InputError, match="a step is one integer"):
            handle.step(wrong)
    with pytest.raises(InputError, match=r"lacks sequences, seed; give it what handle.state_dict\(\) returned"):
        handle.load_state_dict({"step": 3})
    assert handle.current_step == 0
