"""A run as a folder of transformers: written whole or not at all."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors import SafetensorError

from hf_for_tests import some_run
from networks_for_tests import some_ids
from varsmooth import Counts, InputError, LanguageModel, Proposal, smooth

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
hf = pytest.importorskip("varsmooth.hf")
hf.quiet()

FILES = {"README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return some_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def copied(run, tmp_path):
    """A copy of the run that a test may damage."""
    return shutil.copytree(run, tmp_path / "copied")


def auto(folder):
    load = (transformers.AutoModelForCausalLM, transformers.AutoTokenizer)
    return tuple(each.from_pretrained(folder) for each in load)


def test_an_exported_run_predicts_scores_and_writes_as_the_run_does(run, tmp_path):
    found = hf.export(run, tmp_path / "new" / "model")
    model = LanguageModel.load(run)
    assert set(found.files) == FILES == {path.name for path in found.folder.iterdir()}
    assert [path.name for path in found.folder.parent.iterdir()] == ["model"]
    assert (found.predict, found.temperature, found.tied) == ("mean", 1.0, True)
    made, tokenizer = auto(found.folder)
    line = "the cat sat on a sofa"
    given = tokenizer(f"{line} <eos>", return_tensors="pt")
    (scored,) = model.score([line])
    loss = made(**given, labels=given["input_ids"]).loss.item()
    assert -loss * scored.tokens == pytest.approx(scored.log_probability, rel=1e-6)
    prompt = tokenizer("the cat", return_tensors="pt")
    text = tokenizer.decode(made.generate(**prompt, max_new_tokens=9)[0], skip_special_tokens=True)
    assert text == model.generate("the cat", 9, top_k=1)
    ids = some_ids(2, 5, words=len(model.vocab))
    network = model.network
    with torch.no_grad():
        logits, _ = network.logits(ids.t(), network.initial_state(2), network.tables("mean"))
        assert torch.equal(made(input_ids=ids).logits, logits.transpose(0, 1))


@pytest.mark.parametrize("changes", [(), ("model.cell=gru", "model.tied=false")], ids=["lstm", "untied gru"])
def test_the_auto_classes_load_a_run_as_it_is(tmp_path, changes):
    run = some_run(tmp_path / "new", *changes)
    exported, exported_tokenizer = auto(hf.export(run, tmp_path / "model").folder)
    made, tokenizer = auto(str(run))
    assert type(made) is hf.VarsmoothForCausalLM
    given = tokenizer("the cat and a bird", return_tensors="pt")
    assert torch.equal(given["input_ids"], exported_tokenizer("the cat and a bird", return_tensors="pt")["input_ids"])
    mine, theirs = made.state_dict(), exported.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    # To the bit only where weights lie alike in memory: some CPUs multiply by another order otherwise.
    torch.testing.assert_close(made(**given).logits, exported(**given).logits)
    asked = transformers.AutoConfig.from_pretrained(run)
    keys = ("model_type", "vocab_size", "hidden_size", "num_hidden_layers", "cell", "eos_token_id", "tie_word_embeddings")
    assert [getattr(asked, key) for key in keys] == [getattr(exported.config, key) for key in keys]


def test_prediction_and_temperature_are_those_asked_for(run, tmp_path):
    record = json.loads((run / "record.json").read_text())
    tuned = {r["predict"]: r for r in record["results"] if r["split"] == "test" and r["tuned_temperature"]}
    found = hf.export(run, tmp_path / "model", predict="mode", temperature="auto")
    assert found.temperature == tuned["mode"]["temperature"] != 1
    made, tokenizer = auto(found.folder)
    given = tokenizer("the cat and a bird <eos> " * 3, return_tensors="pt")
    loss = made(**given, labels=given["input_ids"]).loss
    assert loss.exp().item() == pytest.approx(tuned["mode"]["perplexity"], rel=1e-5)


def test_the_card_has_the_figures_and_no_path(run, tmp_path):
    record = json.loads((run / "record.json").read_text())
    text = (hf.export(run, tmp_path / "model").folder / "README.md").read_text()
    assert text.startswith("---\nlibrary_name: transformers\n")
    for result in record["results"]:
        assert f"| {result['perplexity']:.2f} | {result['tokens']:,} |" in text
    assert "by the mean, at temperature 1" in text
    assert "smoothing-kneser-ney" in text
    assert str(run.parent) not in text
    assert str(run.parent) not in (tmp_path / "model" / "config.json").read_text()


@pytest.mark.parametrize(
    ("recipe", "predict", "reasons"),
    [
        ("smoothing-kneser-ney", "mean", ["second bias"]),
        ("smoothing-kneser-ney", "mean-input", ["second bias", "another table"]),
        ("smoothing-blank", "mode", ["second bias", "blank row"]),
        ("vanilla-untied", "mode", ["second bias"]),
    ],
)
def test_the_card_tells_the_parameters_of_its_files_and_those_of_the_run(recipe, predict, reasons, tmp_path):
    run = some_run(tmp_path / "new", recipe=recipe)
    trained = json.loads((run / "record.json").read_text())["parameters"]
    found = hf.export(run, tmp_path / "model", predict=predict)
    config, made = LanguageModel.load(run).config.model, auto(found.folder)[0]
    assert made.num_parameters() == found.parameters
    assert found.trained_parameters == trained
    table = made.config.vocab_size * config.hidden
    extra = {"second bias": 4 * config.hidden * config.layers, "another table": table, "blank row": -config.hidden}
    assert found.parameters - trained == sum(extra[reason] for reason in reasons)
    text = (found.folder / "README.md").read_text()
    assert f"It has {found.parameters:,} parameters where the run trained {trained:,}: " in text
    assert [reason for reason in extra if reason in text] == reasons


def test_an_export_replaces_only_an_export_and_only_when_told(run, tmp_path):
    target = tmp_path / "model"
    target.mkdir()  # an empty folder will do
    hf.export(run, target)
    before = (target / "model.safetensors").read_bytes()
    (target / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="--force"):
        hf.export(run, target, predict="mode")
    assert (target / "model.safetensors").read_bytes() == before
    hf.export(run, target, predict="mode", force=True)
    assert (target / "model.safetensors").read_bytes() != before
    assert (target / "notes.txt").read_text() == "mine"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="no earlier export"):
        hf.export(run, tmp_path / "other", force=True)
    with pytest.raises(InputError, match="is a run folder"):
        hf.export(run, run, force=True)
    with pytest.raises(InputError, match=r"folder .*notes\.txt/model: .*notes\.txt is a file, not a folder"):
        hf.export(run, target / "notes.txt" / "model")
    with pytest.raises(InputError, match="cannot be written"):
        hf.export(run, target / "notes.txt")
    assert {path.name for path in tmp_path.iterdir()} == {"model", "other"}


def test_runs_that_cannot_be_exported(copied, tmp_path):
    target = tmp_path / "model"
    with pytest.raises(InputError, match="not a run folder"):
        hf.export(tmp_path, target)
    record = json.loads((copied / "record.json").read_text())
    (copied / "record.json").write_text(json.dumps({**record, "status": "running"}))
    with pytest.raises(InputError, match=r"not finished.*--resume"):
        hf.export(copied, target)
    (copied / "record.json").write_text(json.dumps({**record, "results": []}))
    with pytest.raises(InputError, match="no tuned temperature"):
        hf.export(copied, target, temperature="auto")
    with pytest.raises(InputError, match="--temperature"):
        hf.export(copied, target, temperature=0.0)
    with pytest.raises(InputError, match="temperature takes a number or auto, got 'tuned'"):
        hf.export(copied, target, temperature="tuned")
    (copied / "model.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match=r"model\.safetensors"):
        hf.export(copied, target)
    (copied / "record.json").unlink()
    with pytest.raises(InputError, match=r"record\.json"):
        hf.export(copied, target)
    assert not target.exists()


NO_SPACE = "No space left on device"


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("card", OSError(28, NO_SPACE)),
        (
            "VarsmoothForCausalLM.save_pretrained",
            SafetensorError(f"Error while serializing: I/O error: {NO_SPACE} (os error 28)"),
        ),
        ("tokenizer_of", Exception(f"{NO_SPACE} (os error 28)")),
    ],
)
def test_nothing_is_left_where_writing_fails(run, tmp_path, monkeypatch, where, error):
    def full(*_, **__):
        raise error

    monkeypatch.setattr(f"varsmooth.hf.exporting.{where}", full)
    with pytest.raises(InputError, match=f"model cannot be written: .*{NO_SPACE}"):
        hf.export(run, tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_what_is_wrong_with_the_program_is_not_laid_to_the_disk(run, tmp_path, monkeypatch):
    monkeypatch.setattr("varsmooth.hf.exporting.card", lambda *_, **__: {}["missing"])
    with pytest.raises(KeyError):
        hf.export(run, tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
@pytest.mark.parametrize("recipe", ["smoothing-kneser-ney", "vanilla-untied"])
def test_an_exported_model_is_smoothed_and_trained_further(recipe, tmp_path):
    exported = hf.export(some_run(tmp_path, recipe=recipe), tmp_path / "model")
    made, tokenizer = auto(exported.folder)
    rows = [tokenizer(line)["input_ids"] for line in ("the cat sat on the mat", "a dog sat on a cat")]
    data = [{"input_ids": row, "labels": row} for row in rows]
    noise = Proposal.kneser_ney(Counts.from_batches(rows, len(tokenizer)), gamma=0.5)
    handle = smooth(made, noise)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"), max_steps=2, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no",
        logging_strategy="no", per_device_train_batch_size=2, learning_rate=0.01,
    )  # fmt: skip
    before = made.embed_tokens.weight.detach().clone()
    trainer = hf.SmoothingTrainer(made, arguments, train_dataset=data, eval_dataset=data, handle=handle, kl_weight=1e-3)
    loss = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert handle.current_step == 2
    assert not torch.equal(made.embed_tokens.weight, before)
    assert trainer.evaluate()["eval_loss"] < loss
    handle.remove()
    made.save_pretrained(tmp_path / "further")
    assert torch.equal(auto_weights(tmp_path / "further"), made.embed_tokens.weight)


def auto_weights(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder).embed_tokens.weight
