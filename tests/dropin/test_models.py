"""Models that people bring: encoders of torch, decoders and encoder-decoders of transformers; autocast."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from dropin_for_tests import BATCH, TIME, WIDTH, WORDS, gradients, ids, loss_of, proposal, recurrent
from varsmooth import Counts, DrawKey, EmbeddingPosterior, InputError, Proposal, smooth, special_ids_of
from varsmooth.draws import Site
from varsmooth.dropin.finding import shifts_labels

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()


def gpt2(kind="GPT2LMHeadModel", **options):
    torch.manual_seed(3)
    settings = {"vocab_size": WORDS, "n_embd": WIDTH, "n_layer": 1, "n_head": 2, "n_positions": 16, "bos_token_id": 0}
    settings |= {"eos_token_id": 0, "pad_token_id": 1, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return getattr(transformers, kind)(transformers.GPT2Config(**settings, **options)).train()


def llama():
    torch.manual_seed(3)
    settings = {"vocab_size": WORDS, "hidden_size": WIDTH, "intermediate_size": 16, "num_hidden_layers": 1}
    settings |= {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 16}
    settings |= {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1, "tie_word_embeddings": False}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings)).train()


def t5():
    torch.manual_seed(3)
    settings = {"vocab_size": WORDS, "d_model": WIDTH, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    settings |= {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1, "dropout_rate": 0.0}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**settings)).train()


def draws_of(module, calls):
    module.register_forward_hook(lambda _module, args, out: calls.append((args[0], out)))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(torch.randn(TIME, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, given):
        mask = nn.Transformer.generate_square_subsequent_mask(given.shape[1])
        return self.head(self.body(self.words(given) + self.places, mask=mask, is_causal=True))


def test_a_transformer_of_torch():
    torch.manual_seed(3)
    model, noise = Encoder(), proposal()
    calls = []
    draws_of(model.words, calls)
    handle = smooth(model, noise, seed=2)
    (loss_of(model(ids()), ids(seed=1)) + 1e-4 * handle.kl()).backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())
    q = EmbeddingPosterior(model.words.weight, noise, "element")
    assert torch.equal(calls[0][1], q.lookup(ids().t(), 2).transpose(0, 1))
    assert model.eval()(ids()).shape == (BATCH, TIME, WORDS)


@pytest.mark.parametrize(("make", "tied"), [(gpt2, True), (llama, False)])
def test_decoders_of_transformers(make, tied):
    model = make()
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    assert (embedding.weight is head.weight) == tied
    calls = []
    draws_of(embedding, calls)
    draws_of(head, calls)
    handle = smooth(model, proposal(), seed=2)
    result = model(input_ids=ids(), labels=ids())
    (result.loss + 1e-4 * handle.kl()).backward()
    noise = handle.parts[0].table.proposal  # without the padding that a Llama's embedding names
    q_input = EmbeddingPosterior(embedding.weight, noise, "element")
    q_output = EmbeddingPosterior(head.weight, noise, "element", "batch")
    assert torch.equal(calls[0][1], q_input.lookup(ids().t(), 2).transpose(0, 1))
    table = q_output.sample(DrawKey(2, 0, Site.OUTPUT))
    assert torch.equal(calls[1][1], nn.functional.linear(calls[1][0], table))
    assert embedding.weight.grad.any()


class Translator(nn.Module):
    """nn.Transformer with one table for both languages and for the head."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.body = nn.Transformer(WIDTH, 2, 1, 1, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.head(self.body(self.words(source), self.words(target), tgt_mask=mask, tgt_is_causal=True))


def test_the_encoder_decoder_of_torch():
    torch.manual_seed(3)
    model, noise, calls = Translator(), proposal(), []
    for module in (model.words, model.head):
        draws_of(module, calls)
    handle = smooth(model, noise, seed=2)
    (loss_of(model(ids(), ids(time=5, seed=1)), ids(time=5, seed=2)) + 1e-4 * handle.kl()).backward()
    q = EmbeddingPosterior(model.words.weight, noise, "element")
    assert len(calls) == 3
    for given, vectors in calls[:2]:
        assert torch.equal(vectors, q.lookup(given.t(), 2).transpose(0, 1))
    table = EmbeddingPosterior(model.words.weight, noise, "element", "batch").sample(DrawKey(2, 0, Site.OUTPUT))
    assert torch.equal(calls[2][1], nn.functional.linear(calls[2][0], table))
    with torch.no_grad():
        found = model.eval()(ids(), ids(seed=1))
        handle.fold()
        torch.testing.assert_close(found, model(ids(), ids(seed=1)))


@pytest.mark.parametrize("make", [gpt2, llama])
def test_saved_models_of_transformers_are_the_same_bytes_and_load_without_us(make, tmp_path):
    model = make()
    model.save_pretrained(tmp_path / "plain")
    with smooth(model, proposal()):
        model(input_ids=ids()).logits.sum().backward()
        model.save_pretrained(tmp_path / "smoothed")
    files = sorted(path.name for path in (tmp_path / "plain").iterdir())
    assert "model.safetensors" in files
    assert sorted(path.name for path in (tmp_path / "smoothed").iterdir()) == files
    for name in files:
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "smoothed" / name).read_bytes(), name
    loaded = type(model).from_pretrained(tmp_path / "smoothed").eval()
    assert torch.equal(loaded(input_ids=ids()).logits, model.eval()(input_ids=ids()).logits)
    assert (loaded.get_input_embeddings().weight is loaded.get_output_embeddings().weight) == (make is gpt2)


def test_labels_given_to_the_model_serve_the_target_rule():
    model, other = gpt2(), gpt2()
    smooth(model, proposal(gamma=1.0), "word", "target")
    by_hand = smooth(other, proposal(gamma=1.0), "word", "target")
    by_hand.labels(ids(), shift=True)
    logits = model(input_ids=ids(), labels=ids()).logits
    assert torch.equal(logits, other(input_ids=ids()).logits)
    by_hand.step(0)
    by_hand.labels(torch.full_like(ids(), -100))
    changed = (logits != other(input_ids=ids()).logits).nonzero()
    # At most the target's logit, at most once in a place, and never at the last, which has no target.
    assert len(changed) > BATCH
    assert all(ids()[batch, time + 1] == word for batch, time, word in changed.tolist())


class OwnGPT2(transformers.GPT2LMHeadModel):
    """A class of one's own, whose name says nothing."""


def bert():
    torch.manual_seed(3)
    settings = {"vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 2}
    settings |= {"intermediate_size": 16, "max_position_embeddings": 16, "hidden_dropout_prob": 0.0}
    return transformers.BertForMaskedLM(transformers.BertConfig(**settings, attention_probs_dropout_prob=0.0)).train()


def test_labels_are_shifted_for_causal_models_alone():
    own, causal = OwnGPT2(gpt2().config).train(), gpt2()
    own.load_state_dict(causal.state_dict())
    for each in (own, causal):
        smooth(each, proposal(gamma=1.0), "word", "target")
    assert torch.equal(*(each(input_ids=ids(), labels=ids()).logits for each in (own, causal)))
    masked = bert()  # its labels stand where they are
    handle = smooth(masked, proposal(gamma=1.0), "word", "target")
    with pytest.raises(InputError, match=r"call handle\.labels\(targets\) first"):
        masked(input_ids=ids(), labels=ids())
    handle.step(0)
    handle.labels(ids(seed=1))
    logits = masked(input_ids=ids(), labels=ids(seed=1)).logits
    handle.step(0)
    handle.labels(torch.full_like(ids(), -100))
    changed = (logits != masked(input_ids=ids()).logits).nonzero()
    assert len(changed) > BATCH
    assert all(ids(seed=1)[batch, time] == word for batch, time, word in changed.tolist())


def bart():
    torch.manual_seed(3)
    settings = {"vocab_size": WORDS, "d_model": WIDTH, "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 16}
    settings |= {"max_position_embeddings": 16, "dropout": 0.0, "pad_token_id": 1}
    return transformers.BartForCausalLM(transformers.BartConfig(**settings)).train()


class CallsSuper(transformers.GPT2LMHeadModel):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


class CallsByName(transformers.GPT2LMHeadModel):
    def forward(self, *args, **kwargs):
        return transformers.GPT2LMHeadModel.forward(self, *args, **kwargs)


class Partial(transformers.GPT2LMHeadModel):
    forward = functools.partialmethod(transformers.GPT2LMHeadModel.forward, use_cache=False)


def of_own_forward(kind):
    return kind(gpt2().config).train()


@pytest.mark.parametrize(
    ("make", "shifts"),
    [
        (gpt2, True),
        (llama, True),
        *((functools.partial(of_own_forward, kind), True) for kind in (CallsSuper, CallsByName, Partial)),
        (bart, False),
        (bert, False),
        (t5, False),
    ],
)
def test_labels_are_shifted_where_the_model_shifts_them(make, shifts):
    model = make()
    found = model(input_ids=ids(), labels=ids())
    losses = [
        torch.nn.functional.cross_entropy(found.logits[:, : TIME - far].flatten(0, 1), ids()[:, far:].flatten())
        for far in (0, 1)
    ]
    assert found.loss.item() == pytest.approx(losses[shifts].item(), rel=1e-5), "what the model itself does"
    assert shifts_labels(model) == shifts


def test_prediction_of_transformers_uses_the_mean_and_generates():
    model, plain, noise = gpt2().eval(), gpt2().eval(), proposal()
    smooth(model, noise)
    plain.transformer.wte.weight.data.copy_(EmbeddingPosterior(model.transformer.wte.weight, noise).mean().detach())
    torch.testing.assert_close(model(input_ids=ids()).logits, plain(input_ids=ids()).logits)
    found = [each.generate(ids(2, 3), max_new_tokens=5, do_sample=False) for each in (model, plain)]
    assert torch.equal(*found)


def test_gradient_checkpointing_of_transformers():
    model, plain = gpt2(), gpt2()
    # Newer versions of transformers have another name for it, and warn of the old one.
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    for each in (model, plain):
        smooth(each, proposal(), dropout=0.2)
        each(input_ids=ids(), labels=ids()).loss.backward()
    torch.testing.assert_close(gradients(model), gradients(plain))


def test_sequence_classification_smooths_the_input():
    model, noise = gpt2("GPT2ForSequenceClassification", num_labels=3), proposal()
    calls = []
    draws_of(model.get_input_embeddings(), calls)
    handle = smooth(model, noise, output="none", special_ids=[1])
    loss = model(input_ids=ids(), labels=torch.tensor([0, 1, 2, 0])).loss
    (loss + 1e-4 * handle.kl()).backward()
    assert len(handle.parts) == 1
    assert (calls[0][1] != nn.functional.embedding(ids(), model.get_input_embeddings().weight)).any()


def test_an_encoder_decoder_draws_one_table_for_each_sequence_on_both_sides():
    model, noise = t5(), proposal()
    calls = []
    for module in (model.encoder.embed_tokens, model.decoder.embed_tokens):
        draws_of(module, calls)
    handle = smooth(model, noise, output="none", seed=2)
    (model(input_ids=ids(), labels=ids(seed=1)).loss + 1e-4 * handle.kl()).backward()
    q = EmbeddingPosterior(model.shared.weight, noise, "element")
    assert len(calls) == 2
    for given, vectors in calls:
        assert torch.equal(vectors, q.lookup(given.t(), 2).transpose(0, 1))
    torch.testing.assert_close(handle.kl(), q.kl())
    assert handle.clock.sequences == BATCH
    model.eval().generate(ids(2, 3), max_new_tokens=3)


@pytest.mark.parametrize("output", ["table", "target"])
def test_autocast(output):
    model, exact = recurrent(), recurrent()
    for each in (model, exact):
        handle = smooth(each, proposal(), "word", output, dropout=0.2)
        handle.labels(ids(seed=1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(ids())
        loss = loss_of(logits.float(), ids(seed=1))
    loss.backward()
    assert logits.dtype == torch.bfloat16
    expected = loss_of(exact(ids()), ids(seed=1))
    expected.backward()
    # The same draws, in another precision.
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), abs=0.05)
    assert model.words.weight.grad.dtype == torch.float32
    torch.testing.assert_close(gradients(model), gradients(exact), atol=0.02, rtol=0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model.eval()(ids()).dtype == torch.bfloat16


def test_a_model_in_half_precision():
    model = recurrent().bfloat16()
    smooth(model, proposal(), dropout=0.2)
    logits = model(ids())
    assert logits.dtype == torch.bfloat16
    loss_of(logits.float(), ids(seed=1)).backward()
    assert model.words.weight.grad.any()
    assert model.eval()(ids()).dtype == torch.bfloat16


def test_a_subword_vocabulary_with_its_special_tokens():
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {token: index for index, token in enumerate(["<pad>", "<s>", "</s>", "<unk>", *"abcdefgh"])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **names)
    special = special_ids_of(tokenizer)
    assert special == [0, 1, 2]
    texts = ["<s> a b c d </s>", "<s> b c h g e f z </s>"]
    counts = Counts.from_batches((torch.tensor(tokenizer(text).input_ids) for text in texts), len(tokenizer))
    model = nn.Sequential(nn.Embedding(len(tokenizer), 4))
    handle = smooth(model, Proposal.kneser_ney(counts, 0.5), output="none", special_ids=special)
    fitting = handle.parts[0].table.proposal
    assert not fitting.rate[:3].any()
    assert not fitting.probs[:3].any()
    assert fitting.rate[3] > 0


def test_special_ids_are_all_that_a_tokenizer_marks_but_the_unknown_word():
    tokenizers = pytest.importorskip("tokenizers")
    words = ["<pad>", "a", "</s>", "<unk>", "<mask>", "<extra>", "b"]
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: row for row, word in enumerate(words)}, unk_token="<unk>"))
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **names, extra_special_tokens=["<extra>"])
    assert special_ids_of(tokenizer) == [0, 2, 4, 5]
    tokenizer.add_tokens([tokenizers.AddedToken("<|start|>", special=True), "c"])
    assert special_ids_of(tokenizer) == [0, 2, 4, 5, 7]
    both = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>", unk_token="</s>")
    assert 2 in special_ids_of(both), "the end of the text, though it stands for unknown words too"
