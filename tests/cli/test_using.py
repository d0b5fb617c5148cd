"""train, eval, score, generate and demo, as a person calls them."""

from __future__ import annotations

import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from commands_for_tests import Run, refused
from networks_for_tests import TINY
from varsmooth import demo as demo_module
from varsmooth.evaluate import LanguageModel
from varsmooth.train.record import result_of

TEXT = "the cat sat on the mat\nthe dog sat on the <unk>\n\na cat and a dog sat\n"


def settings(*changes: str) -> list[str]:
    tiny = [change for change in TINY if not change.startswith("data.name")]
    return [part for change in (*tiny, *changes) for part in ("--set", change)]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    for split, times in (("train", 20), ("valid", 3), ("test", 4)):
        (folder / f"{split}.txt").write_text(TEXT * times)
    return folder


@pytest.fixture(scope="module")
def trained(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run with Kneser-Ney smoothing."""
    out = tmp_path_factory.mktemp("runs") / "kn"
    arguments = ["train", "--data", text, "--recipe", "smoothing-kneser-ney", "--out", out, *settings("train.steps=30")]
    command = [sys.executable, "-m", "varsmooth", *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return out


def test_train_ends_with_its_figures_and_where_they_are(run: Run, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "[bold] :car:"
    status, shown, _ = run("train", "--recipe", "vanilla", "--out", out, *settings(), "--data", text)
    assert status == 0
    assert "valid perplexity" in shown
    assert f"run: {out}\n" in shown
    names = {path.name for path in out.iterdir()}
    assert {"config.toml", "metrics.jsonl", "record.json", "vocab.txt", "model.safetensors"} <= names


@pytest.mark.parametrize("verb", ["eval", "score", "generate", "export"])
def test_a_run_without_a_model_yet_is_named(run: Run, trained: Path, tmp_path: Path, verb: str) -> None:
    if verb == "export":
        pytest.importorskip("transformers")
    for name in ("config.toml", "vocab.txt"):
        shutil.copy(trained / name, tmp_path / name)
    more = {"generate": ["--prompt", "the"], "export": ["--to", "hf", tmp_path / "model"]}.get(verb, [])
    refused(
        run(verb, tmp_path, *more), f"{tmp_path} has no model yet", f"continue it with: varsmooth train --resume {tmp_path}"
    )


def test_data_and_seed_reach_the_record(run: Run, text: Path, tmp_path: Path) -> None:
    status, shown, _ = run("train", "--out", tmp_path / "run", "--data", text, *settings(), "--seed", 7, "--json")
    record = json.loads(shown)
    assert status == 0
    assert record["data"]["name"] == text.name
    assert Path(record["config"]["data"]["name"]) == text
    assert record["seed"] == 7
    assert record["status"] == "finished"


def test_tensorboard_gets_the_metrics(run: Run, text: Path, tmp_path: Path) -> None:
    status, _, _ = run("train", "--out", tmp_path / "run", *settings(), "--data", text, "--tensorboard")
    assert status == 0
    (events,) = (tmp_path / "run" / "tensorboard").iterdir()
    assert b"valid_perplexity" in events.read_bytes()


def test_a_run_can_be_resumed_from_another_folder(
    run: Run, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(text.parent)
    assert run("train", "--out", tmp_path / "run", *settings(), "--data", text.name)[0] == 0
    monkeypatch.chdir(tmp_path)
    assert run("train", "--resume", "run")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "smoothing.gamma=1.5"], ["smoothing.gamma", "[0, 1]", "1.5"]),
        (["--set", "dropout.tables=1"], ["dropout.tables", "1"]),
        (["--set", "train.lrr=0.1"], ["train.lrr", "train.lr"]),
        (["--set", "train.window=500"], ["train.window = 500"]),
        (["--set", "train.batch=5000"], ["train.batch = 5000"]),
        (["--set", "train.device=cuda"], ["train.device", "no GPU"]),
        (["--recipe", "vanila"], ["vanila", "did you mean 'vanilla'"]),
        (["--recipe", "missing.toml"], ["missing.toml"]),
        (["--recipe", ""], ["--recipe is empty"]),
        (["--set", "model.hidden=1000000000"], ["out of memory", "model.hidden"]),
        (["--set", "model.layers=1000000000"], ["model.layers", "1000"]),
        (["--set", "train.threads=100000"], ["train.threads", "1024"]),
        (["--set", "data.max_words=1"], ["varsmooth: max_words must be at least 2"]),
        (["--set", "data.max_tokens=3"], ["varsmooth: max_tokens 3 leaves nothing to train on"]),
        (["--data", "nowhere-at-all"], ["nowhere-at-all"]),
        (["--steps", "3"], ["--steps"]),
    ],
)
def test_bad_flags_get_one_line_and_leave_nothing(
    run: Run, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: list[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    data = [] if "--data" in arguments else ["--data", text]
    refused(run("train", "--out", tmp_path / "run", *data, *settings(), *arguments), *words)
    assert not (tmp_path / "run").exists()


def test_out_is_needed_and_must_be_writable(run: Run, text: Path, tmp_path: Path) -> None:
    refused(run("train", "--data", text), "--out")
    (tmp_path / "file").write_text("not a folder")
    refused(run("train", "--data", text, *settings(), "--out", tmp_path / "file" / "run"), "cannot be written")
    refused(run("train", "--resume", tmp_path, "--data", text), "--resume")
    refused(run("train", "--resume", tmp_path), "not a run folder")


def test_an_existing_run_is_not_overwritten(run: Run, text: Path, trained: Path) -> None:
    before = (trained / "model.safetensors").read_bytes()
    refused(run("train", "--data", text, *settings(), "--out", trained), "--resume")
    assert (trained / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("name", ["café", "日本", "😀"])
def test_a_folder_may_have_any_name(run: Run, text: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(text, tmp_path / name)
    assert run("train", "--data", tmp_path / name, *settings(), "--out", tmp_path / "run")[0] == 0
    assert run("eval", tmp_path / "run")[0] == 0


def test_a_text_that_has_changed_is_told_of(run: Run, text: Path, tmp_path: Path) -> None:
    shutil.copytree(text, tmp_path / "text")
    assert run("train", "--data", tmp_path / "text", *settings(), "--out", tmp_path / "run")[0] == 0
    assert run("eval", tmp_path / "run")[2] == ""
    (tmp_path / "text" / "test.txt").write_text(TEXT)
    status, _, told = run("eval", tmp_path / "run")
    assert (status, told) == (0, "varsmooth: warning: the test text has changed since this run was trained\n")
    assert run("eval", tmp_path / "run", "--data", tmp_path / "text")[2] == "", "it was asked for"


def test_a_new_word_in_a_text_whose_words_were_all_known_is_told_as_a_change(run: Run, tmp_path: Path) -> None:
    folder, out = tmp_path / "closed", tmp_path / "run"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text("one two three\n" * 10)
    assert run("train", "--out", out, *settings("train.batch=2"), "--data", folder)[0] == 0
    with (folder / "valid.txt").open("a") as file:
        file.write("four\n")
    changed = "the text has changed since this run was trained", "valid.txt, line 11 has the word 'four'"
    refused(run("eval", out), *changed)
    refused(run("eval", out, "--data", folder), "the word 'four' is not in the vocabulary", "--set data.min_count=11")


def test_what_is_wrong_with_a_record_is_no_reason_not_to_evaluate(run: Run, trained: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(trained, tmp_path / "copy"))
    (copy / "record.json").write_text("{")
    assert run("eval", copy) == run("eval", trained)


def test_what_cannot_be_said_in_json_is_null(run: Run, trained: Path) -> None:
    status, shown, _ = run("eval", trained, "--temperature", "1e-5", "--json")
    assert status == 0
    assert json.loads(shown, parse_constant=pytest.fail)["perplexity"] is None
    for verb in (["eval"], ["generate", "--prompt", "the"]):
        refused(run(verb[0], trained, *verb[1:], "--temperature", "1e-40"), "temperature", "at least 1e-06")


def test_draws_are_for_sampling_alone(run: Run, trained: Path) -> None:
    refused(run("eval", trained, "--samples", "3"), "--samples goes with --predict sample", "the mean")
    refused(run("eval", trained, "--average", "geometric"), "--average goes with --predict sample")
    refused(run("eval", trained, "--seed", "-1"), "--seed goes with --predict sample")
    refused(run("eval", trained, "--seed", "0", "--predict", "mode"), "--seed goes with --predict sample")
    refused(run("eval", trained, "--seed", "-1", "--predict", "sample"), "seed must")
    for samples in ("0", "10001", "99999999999999999999"):
        refused(run("eval", trained, "--predict", "sample", "--samples", samples), "samples must be from 1 to 10,000")


def test_a_prompt_may_begin_with_a_hyphen(run: Run, trained: Path) -> None:
    assert run("generate", trained, "--prompt", "-5 degrees")[0] == 0


@pytest.mark.parametrize("predict", ["mode", "mean", "mean-input"])
def test_eval_prints_what_was_recorded(run: Run, trained: Path, predict: str) -> None:
    record = json.loads((trained / "record.json").read_text())
    for split in ("valid", "test"):
        status, shown, _ = run("eval", trained, "--split", split, "--predict", predict, "--json")
        found = json.loads(shown)
        (recorded,) = (
            r for r in record["results"] if (r["split"], r["predict"], r["tuned_temperature"]) == (split, predict, False)
        )
        assert status == 0
        assert found.keys() == {"split", "perplexity", "nll", "tokens", "unknown", "predict", "temperature"}
        assert found["perplexity"] == pytest.approx(recorded["perplexity"], rel=1e-6)
        assert found["perplexity"] == pytest.approx(math.exp(found["nll"]))
        assert found["tokens"] == recorded["tokens"] == (66 if split == "valid" else 88)


def test_eval_predicts_as_the_recipe_says_and_tunes_on_valid(run: Run, trained: Path) -> None:
    record = json.loads((trained / "record.json").read_text())
    found = json.loads(run("eval", trained, "--temperature", "auto", "--json")[1])
    assert found["predict"] == "mean"
    (recorded,) = (r for r in record["results"] if (r["split"], r["predict"], r["tuned_temperature"]) == ("test", "mean", True))
    assert found["temperature"] == pytest.approx(recorded["temperature"])
    assert found["perplexity"] == pytest.approx(recorded["perplexity"])


def test_eval_tunes_scales_on_valid_and_takes_two_numbers(run: Run, trained: Path) -> None:
    record = json.loads((trained / "record.json").read_text())
    (recorded,) = (r for r in record["results"] if (r["split"], r["predict"], r["tuned_temperature"]) == ("test", "mean", True))
    found = json.loads(run("eval", trained, "--scales", "auto", "--json")[1])
    assert found.keys() == {"split", "perplexity", "nll", "tokens", "unknown", "predict", "scale_of_context", "scale_of_bias"}
    scales = recorded["scaled"]["context"], recorded["scaled"]["bias"]
    assert (found["scale_of_context"], found["scale_of_bias"]) == pytest.approx(scales, abs=0.01)
    given = json.loads(run("eval", trained, f"--scales={scales[0]},{scales[1]}", "--json")[1])
    assert given["perplexity"] == pytest.approx(recorded["scaled"]["perplexity"], rel=1e-6)
    assert "scale_of_bias" in run("eval", trained, "--scales", "0.5,-1")[1]
    assert "-1.0" in run("eval", trained, "--scales", "-1,1")[1]
    refused(run("eval", trained, "--scales", "--json"), "--scales takes two numbers", "got nothing")


def test_score_and_generate_take_scales_from_the_record(run: Run, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("the cat sat\n")
    record = json.loads((trained / "record.json").read_text())
    recorded = (result_of(record, "valid", "mode", tuned=True) or {})["scaled"]
    numbers = f"{recorded['context']},{recorded['bias']}"
    score = ("score", trained, tmp_path / "lines.txt", "--predict", "mode")
    auto = run(*score, "--scales", "auto")
    assert auto == run(*score, "--scales", numbers)
    assert auto[1] != run(*score)[1]
    assert run(*score, "--scales", "-1,1") == run(*score, "--scales=-1,1") != run(*score)
    generate = ("generate", trained, "--prompt", "the", "--predict", "mode", "--seed", 1)
    assert run(*generate, "--scales", "auto") == run(*generate, "--scales", numbers)
    assert run(*generate, "--scales", "-1,1")[0] == 0
    assert run(*generate, "--scales", "50,50") == run(*generate, "--temperature", 0.02) != run(*generate)
    shutil.copytree(trained, tmp_path / "older")
    for entry in record["results"]:
        entry.get("scaled", {})["perplexity"] = None  # beyond all numbers on one split, which does not unmake the scales
    (tmp_path / "older" / "record.json").write_text(json.dumps(record))
    assert run("score", tmp_path / "older", *score[2:], "--scales", "auto") == auto
    for entry in record["results"]:
        entry.pop("scaled", None)
    (tmp_path / "older" / "record.json").write_text(json.dumps(record))
    refused(run("score", tmp_path / "older", tmp_path / "lines.txt", "--scales", "auto"), "no scales for prediction by mean")


def test_eval_samples(run: Run, trained: Path) -> None:
    common = ("eval", trained, "--predict", "sample", "--samples", 3, "--json")
    arithmetic, geometric = (json.loads(run(*common, "--average", a)[1]) for a in ("arithmetic", "geometric"))
    assert arithmetic["samples"] == 3
    assert arithmetic["perplexity"] < geometric["perplexity"]
    assert json.loads(run(*common)[1]) == json.loads(run(*common, "--seed", 0)[1]) == arithmetic
    assert json.loads(run(*common, "--seed", 5)[1])["perplexity"] != arithmetic["perplexity"]


def test_eval_measures_a_single_file(run: Run, trained: Path, tmp_path: Path) -> None:
    text = Path(json.loads((trained / "record.json").read_text())["config"]["data"]["name"]) / "test.txt"
    path = tmp_path / "article.txt"
    path.write_bytes(text.read_bytes())
    for options in (["--temperature", "1"], ["--temperature", "auto"], ["--scales", "auto"]):
        common = (*options, "--json")
        own, found = (json.loads(run("eval", trained, *data, *common)[1]) for data in ((), ("--data", path)))
        assert found == {**own, "split": "article.txt"}
    path.write_text("\n \n")
    refused(run("eval", trained, "--data", path), "article.txt is empty; it must hold at least one line of text")


def test_eval_shows_a_table(run: Run, trained: Path) -> None:
    status, shown, _ = run("eval", trained)
    assert status == 0
    assert "perplexity" in shown
    assert re.search(r"tokens\W+88\W", shown)
    assert re.search(r"unknown\W+4\W", shown)


def test_eval_counts_unknown_words(run: Run, trained: Path, tmp_path: Path) -> None:
    path = tmp_path / "article.txt"
    path.write_text("The Cat sat on an <unk>\n")
    assert json.loads(run("eval", trained, "--data", path, "--json")[1])["unknown"] == 4
    path.write_text("the cat sat on the mat\n")
    assert json.loads(run("eval", trained, "--data", path, "--json")[1])["unknown"] == 0


def test_eval_refuses(run: Run, trained: Path, tmp_path: Path) -> None:
    refused(run("eval", tmp_path), "not a run folder")
    refused(run("eval", tmp_path / "nowhere"), "not a run folder")
    refused(run("eval", trained, "--temperature", "hot"), "--temperature", "hot")
    refused(run("eval", trained, "--temperature", "0"), "temperature")
    refused(run("eval", trained, "--predict", "sample", "--temperature", "auto"), "sample")
    refused(run("eval", trained, "--scales", "0.8"), "--scales takes two numbers", "'0.8'")
    refused(run("eval", trained, "--scales", "0.8,low"), "--scales takes two numbers")
    refused(run("eval", trained, "--scales", "nan,1"), "scales must be finite")
    refused(run("eval", trained, "--scales", "auto", "--temperature", "auto"), "--scales takes the place of a temperature")
    refused(run("eval", trained, "--scales", "1e39,1"), "scales must be finite")
    refused(run("eval", trained, "--scales", "auto", "--predict", "sample"), "--scales auto goes with")
    refused(run("eval", trained, "--predict", "sample", "--samples", "0"), "samples")
    refused(run("eval", trained, "--batch", "0"), "--batch")
    refused(run("eval", trained, "--data", ""), "the data's name is empty")
    refused(run("stats", ""), "the data's name is empty")
    refused(run("eval", trained, "--predict", "median"), "median", '"mode", "mean", "mean-input", "sample"')


def test_score_writes_a_json_line_per_line(run: Run, trained: Path, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("the cat sat\n\nthe elephant sat\n")
    status, shown, _ = run("score", trained, file)
    lines = [json.loads(line) for line in shown.splitlines()]
    assert status == 0
    assert [line["tokens"] for line in lines] == [4, 1, 4]
    assert [line["unknown"] for line in lines] == [0, 0, 1]
    (expected,) = LanguageModel.load(trained).score(["the cat sat"])
    assert lines[0]["log_probability"] == pytest.approx(expected.log_probability)
    assert lines[0]["perplexity"] == pytest.approx(math.exp(-lines[0]["log_probability"] / 4))


def test_score_reads_standard_input(run: Run, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"the cat\n")))
    status, shown, _ = run("score", trained, "-")
    assert status == 0
    assert json.loads(shown)["tokens"] == 3


def test_score_answers_each_line_before_it_reads_the_next(trained: Path) -> None:
    command = [sys.executable, "-m", "varsmooth", "score", str(trained)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in ("the cat\n", "a dog sat\n"):
            process.stdin.write(line)
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["tokens"] == len(line.split()) + 1
        process.stdin.close()


def test_score_refuses(run: Run, trained: Path, tmp_path: Path) -> None:
    refused(run("score", trained, tmp_path / "nothing.txt"), "nothing.txt")
    (tmp_path / "binary.txt").write_bytes(b"ab\0c")
    refused(run("score", trained, tmp_path / "binary.txt"), "binary")


def test_generate_is_the_same_for_the_same_seed(run: Run, trained: Path) -> None:
    first, again, other = (run("generate", trained, "--prompt", "the cat", "--words", 8, "--seed", s)[1] for s in (1, 1, 2))
    assert first == again != other
    assert first.startswith("the cat ")
    found = json.loads(run("generate", trained, "--prompt", "the cat", "--words", 8, "--seed", 1, "--json")[1])
    assert found["text"] == first.strip()
    assert found["unknown"] == 0


def test_generate_names_unknown_words_of_the_prompt(run: Run, trained: Path) -> None:
    _, text, told = run("generate", trained, "--prompt", "Return the List.")
    assert text.startswith("Return the List.")
    assert told == "varsmooth: 2 of 3 words of the prompt are unknown to this run: Return, List.\n"
    status, shown, told = run("generate", trained, "--prompt", "the a1 a2 a1 a3 a4 a5 a6", "--json")
    assert (status, json.loads(shown)["unknown"]) == (0, 7)
    assert told == "varsmooth: 7 of 8 words of the prompt are unknown to this run: a1, a2, a3, a4, a5, ...\n"
    assert "1 of 2 words of the prompt is unknown to this run: [red]\n" in run("generate", trained, "--prompt", "the [red]")[2]
    assert run("generate", trained, "--prompt", "the cat")[2] == ""


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt", "  "], "the prompt is empty"),
        (["--prompt", "\udcff\udcfe"], "--prompt must be text without NUL or undecodable bytes, got '\\udcff\\udcfe'"),
        (["--prompt", "the", "--words", "0"], "words must be at least 1"),
        (["--prompt", "the", "--temperature", "-1"], "temperature must be positive"),
        (["--prompt", "the", "--top-k", "-2"], "top_k must be 0"),
        (["--prompt", "the", "cat", "sat"], "unexpected: 'cat', 'sat'; put quotes around a value that holds spaces"),
        ([], "--prompt"),
    ],
)
def test_generate_refuses(run: Run, trained: Path, arguments: list[str], word: str) -> None:
    refused(run("generate", trained, *arguments), word)


def test_words_that_a_closed_vocabulary_lacks_are_named(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text("one two three\n" * 10)
    out = tmp_path / "run"
    assert run("train", "--out", out, *settings("train.batch=2"), "--data", folder)[0] == 0
    refused(run("generate", out, "--prompt", "four"), "four")
    assert json.loads(run("generate", out, "--prompt", "one two", "--json")[1])["unknown"] == 0
    assert json.loads(run("eval", out, "--json")[1])["unknown"] == 0
    (tmp_path / "text.txt").write_text("one four\n")
    refused(run("score", out, tmp_path / "text.txt"), "four")
    (tmp_path / "text.txt").write_text("x" * 100_000)
    complaint = run("eval", out, "--data", tmp_path / "text.txt")
    refused(complaint, "is not in the vocabulary")
    assert len(complaint[2]) < 1000, "however long a word is"


def test_demo_trains_its_arms_and_writes_the_page(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VARSMOOTH_CACHE", str(tmp_path / "cache"))
    status, shown, _ = run("demo", "--steps", 3)
    assert status == 0
    out = tmp_path / "runs" / "demo"
    for arm in demo_module.ARMS:
        record = json.loads((out / arm.partition("/")[0] / "record.json").read_text())
        assert record["status"] == "finished"
        assert record["steps"] == 3
        assert f"{arm}: best after" in shown
    page = (out / "report.html").read_text()
    assert demo_module.SENTENCE in page
    assert str(out / "report.html") in shown.replace("\n", "")
    refused(run("demo", "--out", out), "not empty")
    refused(run("eval", out), "is not a run folder", "it holds runs: element-kneser-ney, smoothing-kneser-ney, vanilla")
    refused(run("demo", "--steps", "0"), "--steps: train.steps must be in")
    refused(run("demo", "--seed", "-1"), "--seed: train.seed")
