"""Our model among those of transformers: it predicts, scores, generates and is saved as ``LanguageModel`` has it."""

from __future__ import annotations

import pytest
import torch

from hf_for_tests import VOCAB, some_language_model, some_run
from networks_for_tests import WORDS, some_ids
from varsmooth import InputError, LanguageModel

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
hf = pytest.importorskip("varsmooth.hf")
hf.quiet()

EOS = VOCAB.eos_id
MODELS = {
    "plain": {"method": "none", "predict": "mode"},
    "untied": {"method": "none", "predict": "mode", "tied": False},
    "gru": {"cell": "gru", "output": "table"},
    "mean": {"output": "table"},
    "mean of untied tables": {"output": "table", "tied": False},
    "mean-input": {"predict": "mean-input", "output": "table"},
    "mean with the mode behind": {"output": "none"},
    "noising": {"method": "noising", "kl": "plain"},
    "blank": {"scheme": "blank", "output": "none"},
}


def expected(model, ids, predict=None):
    """What the network itself makes of ids [batch, time]."""
    network = model.network
    with torch.no_grad():
        logits, _ = network.logits(ids.t(), network.initial_state(len(ids)), network.tables(predict or model.predict))
    return logits.transpose(0, 1)


@torch.no_grad()
def logits_of(made, ids):
    return made(input_ids=ids).logits


def tokens(prompts):
    return hf.tokenizer_of(VOCAB)(list(prompts), return_tensors="pt", padding=True)


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_logits_are_those_of_the_network(options):
    model = some_language_model(**options)
    ids = some_ids(3, 7)
    logits = logits_of(hf.VarsmoothForCausalLM.from_language_model(model), ids)
    assert torch.equal(logits, expected(model, ids))
    assert logits.shape == (3, 7, WORDS)


def test_the_cases_differ():
    """So that the test above could fail: mode, mean and mean-input are three predictions."""
    model = some_language_model(output="table")
    ids = some_ids(3, 7)
    logits = [expected(model, ids, predict) for predict in ("mode", "mean", "mean-input")]
    assert not any(torch.allclose(logits[one], logits[other]) for one, other in ((0, 1), (0, 2), (1, 2)))
    by_mode = hf.VarsmoothForCausalLM.from_language_model(model, "mode")
    assert torch.equal(logits_of(by_mode, ids), logits[0])


def test_one_table_serves_both_ends_only_where_it_may():
    tied = {name: some_language_model(**options) for name, options in MODELS.items()}
    found = {name: hf.VarsmoothForCausalLM.from_language_model(model) for name, model in tied.items()}
    shares = {name for name, model in found.items() if model.lm_head.weight is model.embed_tokens.weight}
    assert shares == {"plain", "gru", "mean"}
    assert {name for name, model in found.items() if model.config.tie_word_embeddings} == shares


def test_the_loss_is_the_score_of_a_line():
    model = some_language_model(output="table")
    line = "the w3 w9 nowhere w3 w17"
    (scored,) = model.score([line])
    made = hf.VarsmoothForCausalLM.from_language_model(model)
    given = tokens([f"{line} <eos>"])
    loss = made(**given, labels=given["input_ids"]).loss
    assert -loss.item() * scored.tokens == pytest.approx(scored.log_probability, rel=1e-6)
    ids = model.vocab.encode([*line.split(), "<eos>"])
    assert loss.exp().item() == pytest.approx(model.perplexity(ids), rel=1e-5)


def test_the_temperature_divides_the_logits():
    model = some_language_model(output="table")
    ids = some_ids(20, seed=8)
    made = hf.VarsmoothForCausalLM.from_language_model(model, temperature=1.7)
    given = torch.cat([torch.tensor([EOS]), ids])[None]
    assert made(input_ids=given, labels=given).loss.exp().item() == pytest.approx(
        model.perplexity(ids, temperature=1.7), rel=1e-5
    )
    with pytest.raises(InputError, match="logit_temperature"):
        hf.VarsmoothConfig(logit_temperature=0.0)


@pytest.mark.parametrize("options", [MODELS["mean"], MODELS["gru"], MODELS["untied"], MODELS["blank"]], ids=str)
def test_saving_and_loading_changes_no_bit(options, tmp_path, caplog):
    transformers.logging.set_verbosity_warning()
    transformers.logging.enable_propagation()
    model = hf.VarsmoothForCausalLM.from_language_model(some_language_model(**options), temperature=1.25)
    model.save_pretrained(tmp_path)
    loaded, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    transformers.logging.set_verbosity_error()
    assert type(loaded) is hf.VarsmoothForCausalLM
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert not caplog.records
    assert loaded.config.to_dict() == {**model.config.to_dict(), "_name_or_path": str(tmp_path)} or (
        loaded.config.to_diff_dict() == model.config.to_diff_dict()
    )
    assert (loaded.lm_head.weight is loaded.embed_tokens.weight) == model.config.tie_word_embeddings
    assert loaded.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in model.state_dict().items())
    assert loaded.generation_config.suppress_tokens == [VOCAB.unk_id]
    loaded.save_pretrained(tmp_path / "again")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (tmp_path / "model.safetensors").read_bytes()


def test_a_run_is_loaded_as_it_is(tmp_path):
    run = some_run(tmp_path)
    model, made = LanguageModel.load(run), hf.VarsmoothForCausalLM.from_pretrained(run)
    ids = some_ids(2, 9, words=len(model.vocab))
    assert torch.equal(logits_of(made, ids), expected(model, ids))
    informed, about = hf.VarsmoothForCausalLM.from_pretrained(run, output_loading_info=True)
    assert torch.equal(logits_of(informed, ids), expected(model, ids))
    assert not about["missing_keys"]
    by_mode = hf.VarsmoothForCausalLM.from_pretrained(str(run), predict="mode", dtype=torch.bfloat16)
    assert by_mode.dtype == torch.bfloat16
    assert torch.allclose(logits_of(by_mode, ids).float(), expected(model, ids, "mode"), atol=0.1)


def test_greedy_text_is_that_of_the_model():
    model = some_language_model(output="table", scale=0.8)
    made = hf.VarsmoothForCausalLM.from_language_model(model)
    tokenizer = hf.tokenizer_of(VOCAB)
    texts = set()
    for prompt in ("the", "w3 w4", "w7 w7 the", "nowhere w12"):
        given = tokenizer(prompt, return_tensors="pt")
        with_state, without = (made.generate(**given, max_new_tokens=12, use_cache=cached) for cached in (True, False))
        assert torch.equal(with_state, without)
        wanted = model.generate(prompt, 12, top_k=1)
        found = tokenizer.decode(with_state[0, 1:])
        assert found.removesuffix(" <eos>") == wanted.replace("nowhere", "<unk>")
        texts.add(wanted)
    assert len(texts) == 4
    assert any(len(text.split()) > 8 for text in texts)


def test_one_word_at_a_time_gives_the_logits_of_all_at_once():
    made = hf.VarsmoothForCausalLM.from_language_model(some_language_model(output="table"))
    ids = some_ids(3, 6)
    whole = made(input_ids=ids).logits
    state, parts = None, []
    for word in ids.split(1, dim=1):
        found = made(input_ids=word, past_key_values=state, use_cache=True)
        state = found.past_key_values
        parts.append(found.logits)
    assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-6)
    assert state.get_seq_length() == 6
    assert made(input_ids=ids, use_cache=False).past_key_values is None


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_padding_is_not_read(cell):
    made = hf.VarsmoothForCausalLM.from_language_model(some_language_model(output="table", cell=cell))
    prompts = ["w3", "w4 w5 w6 w7", "the w9"]
    alone = [made.generate(**tokens([prompt]), max_new_tokens=6, do_sample=False)[0] for prompt in prompts]
    given = tokens(prompts)
    assert not given["attention_mask"].all()
    together = made.generate(**given, max_new_tokens=6, do_sample=False)
    for row, own, prompt in zip(together, alone, prompts, strict=True):
        start = given["input_ids"].shape[1] - 1 - len(prompt.split())
        assert row[start : start + len(own)].tolist() == own.tolist()
    # On the right, and a hole: the words that are read give what they give by themselves.
    ids, mask = some_ids(2, 5), torch.tensor([[1, 1, 0, 0, 0], [1, 0, 1, 0, 1]])
    found = made(input_ids=ids, attention_mask=mask)
    shorter, holed = made(input_ids=ids[:1, :2]), made(input_ids=ids[1:, [0, 2, 4]])
    assert torch.allclose(found.logits[0, :2], shorter.logits[0], atol=1e-6)
    assert torch.allclose(found.logits[1, [0, 2, 4]], holed.logits[0], atol=1e-6)
    for place, single in enumerate((shorter, holed)):
        ends = zip(found.past_key_values.tensors, single.past_key_values.tensors, strict=True)
        assert all(torch.allclose(both[:, place], own[:, 0], atol=1e-6) for both, own in ends)


def test_beams_take_their_states_with_them():
    made = hf.VarsmoothForCausalLM.from_language_model(some_language_model(output="table", scale=0.8))
    options = {"max_new_tokens": 8, "num_beams": 4, "num_return_sequences": 4, "return_dict_in_generate": True}
    given = tokens(["w3", "w4 w5 w6 w7"])
    with_state, without = (made.generate(**given, **options, output_scores=True, use_cache=cached) for cached in (True, False))
    assert torch.equal(with_state.sequences, without.sequences)
    assert torch.allclose(with_state.sequences_scores, without.sequences_scores, atol=1e-5)
    # Beams crossed, or the test would not see an unordered state.
    assert any(len(set(row.tolist())) > 1 for row in with_state.beam_indices)


def test_samples_follow_the_distribution_and_never_write_unk():
    made = hf.VarsmoothForCausalLM.from_language_model(some_language_model(output="table"))
    given = tokens(["w3"])
    transformers.set_seed(5)
    samples = made.generate(**given, do_sample=True, top_k=0, max_new_tokens=1, num_return_sequences=20_000)[:, -1]
    logits = made(**given).logits[0, -1].detach()
    logits[VOCAB.unk_id] = -torch.inf
    counts = torch.bincount(samples, minlength=WORDS)
    assert counts[VOCAB.unk_id] == 0
    assert torch.allclose(counts / 20_000, logits.softmax(0), atol=0.02)
    transformers.set_seed(5)
    again = made.generate(**given, do_sample=True, top_k=0, max_new_tokens=1, num_return_sequences=20_000)[:, -1]
    assert torch.equal(samples, again)


def test_a_conversation_goes_on_from_its_state():
    made = hf.VarsmoothForCausalLM.from_language_model(some_language_model(output="table"))
    first = made.generate(
        **tokens(["w3 w4"]), max_new_tokens=3, min_new_tokens=3, do_sample=False, return_dict_in_generate=True
    )
    assert first.past_key_values.get_seq_length() == 5
    options = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    mask = torch.ones_like(first.sequences)
    going_on = made.generate(first.sequences, attention_mask=mask, past_key_values=first.past_key_values, **options)
    assert torch.equal(going_on, made.generate(first.sequences, attention_mask=mask, **options))


def test_what_it_refuses():
    made = hf.VarsmoothForCausalLM.from_language_model(some_language_model(output="table"))
    ids = some_ids(2, 3)
    with pytest.raises(InputError, match="RecurrentState"):
        made(input_ids=ids, past_key_values=transformers.DynamicCache())
    with pytest.raises(InputError, match="holds 2 texts, the batch 1"):
        made(input_ids=ids[:1], past_key_values=made(input_ids=ids).past_key_values)
    with pytest.raises(InputError, match=r"attention_mask must be \[2, 3\]"):
        made(input_ids=ids, attention_mask=torch.ones(2, 2))
    with pytest.raises(InputError, match="either input_ids or inputs_embeds"):
        made()
    with pytest.raises(InputError, match="cannot forget"):
        made(input_ids=ids).past_key_values.crop(-1)
    with pytest.raises(InputError, match="cell must be one of"):
        hf.VarsmoothConfig(cell="rnn")
    with pytest.raises(ValueError, match="stateful"):
        made.generate(**tokens(["w3"]), assistant_model=made)


def test_a_new_model_starts_as_a_run_does():
    torch.manual_seed(2)
    made = transformers.AutoModelForCausalLM.from_config(hf.VarsmoothConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1))
    width, weights = 16, made.state_dict()
    assert weights["embed_tokens.weight"].abs().max() <= width**-0.5
    assert weights["rnn.weight_hh_l0"].abs().max() <= width**-0.5
    assert weights["rnn.weight_hh_l0"].std() > 0.1
    assert weights["rnn.bias_ih_l0"].tolist() == [0.0] * width + [1.0] * width + [0.0] * 2 * width
    assert not weights["rnn.bias_hh_l0"].any()
    assert not weights["lm_head.bias"].any()
    assert made.lm_head.weight is made.embed_tokens.weight
