"""The Trainer of transformers: the KL enters the loss once for each step, and a resumed run draws the same."""

from __future__ import annotations

import pytest
import torch

from dropin_for_tests import WIDTH, WORDS, ids, proposal
from varsmooth import InputError, smooth

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
hf = pytest.importorskip("varsmooth.hf")
# Of transformers and accelerate, about machines without a GPU.
pytestmark = pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        row = ids(1, 6, seed=index)[0]
        return {"input_ids": row, "labels": row}


def model():
    torch.manual_seed(3)
    settings = {"vocab_size": WORDS, "n_embd": WIDTH, "n_layer": 1, "n_head": 2, "n_positions": 8, "bos_token_id": 0}
    settings |= {"eos_token_id": 0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**settings))


def arguments(folder, **options):
    settings = {"output_dir": str(folder), "max_steps": 4, "report_to": [], "use_cpu": True, "disable_tqdm": True}
    settings |= {"learning_rate": 0.05, "lr_scheduler_type": "constant", "per_device_train_batch_size": 4, "seed": 1}
    settings |= {"save_strategy": "steps", "save_steps": 2, "logging_strategy": "no", "weight_decay": 0.0}
    return transformers.TrainingArguments(**(settings | options))


def trained(folder, *, kl_weight=0.01, resume=False, **options):
    each = model()
    handle = smooth(each, proposal(), seed=4)
    trainer = hf.SmoothingTrainer(each, arguments(folder, **options), train_dataset=Texts(), handle=handle, kl_weight=kl_weight)
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-2") if resume else None)
    assert handle.current_step == 4
    return each.state_dict()


def same(left, right):
    return all(torch.equal(value, right[name]) for name, value in left.items())


def close(left, right):
    return all(torch.allclose(value, right[name], atol=1e-5) for name, value in left.items())


def test_a_resumed_run_is_the_one_that_never_stopped(tmp_path):
    whole = trained(tmp_path)
    assert same(trained(tmp_path, resume=True), whole)
    assert not close(trained(tmp_path, kl_weight=0.0, save_strategy="no"), whole)


def test_accumulated_micro_batches_train_as_the_whole_batch(tmp_path):
    # Plain descent: the relative steps of Adam would blow roundings up.
    options = {"optim": "sgd", "save_strategy": "no", "learning_rate": 0.5}
    whole = trained(tmp_path, kl_weight=0.05, **options)
    parts = trained(tmp_path, kl_weight=0.05, per_device_train_batch_size=2, gradient_accumulation_steps=2, **options)
    assert close(whole, parts)
    assert not close(whole, trained(tmp_path, kl_weight=0.025, **options))


def test_the_oldest_transformers_that_we_take_does_without_the_newer_attribute(tmp_path, monkeypatch):
    each = model()
    trainer = hf.SmoothingTrainer(each, arguments(tmp_path), handle=smooth(each, proposal()), kl_weight=0.1)
    trainer.current_gradient_accumulation_steps = 4
    monkeypatch.delattr(transformers.Trainer, "loss_is_scaled_for_ga", raising=False)
    assert trainer._share(num_items_in_batch=20) == 0.25
    assert trainer._share(num_items_in_batch=None) == 1.0


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_a_weight_that_is_no_weight_is_refused(tmp_path, weight):
    each = model()
    with pytest.raises(InputError, match="kl_weight"):
        hf.SmoothingTrainer(each, arguments(tmp_path), handle=smooth(each, proposal()), kl_weight=weight)


def test_the_draws_keep_to_the_count_of_the_trainer(tmp_path):
    """Also where the optimiser's steps tell nothing."""
    each = model()
    handle, seen = smooth(each, proposal(), advance="manual"), []
    each.register_forward_pre_hook(lambda *_: seen.append(handle.current_step))
    settings = arguments(tmp_path, save_strategy="no", per_device_train_batch_size=2, gradient_accumulation_steps=2)
    hf.SmoothingTrainer(each, settings, train_dataset=Texts(), handle=handle).train()
    assert seen == [0, 0, 1, 1, 2, 2, 3, 3]
    assert handle.current_step == 4


def test_a_handle_of_another_model_is_refused(tmp_path):
    handle = smooth(model(), proposal())
    settings = arguments(tmp_path, save_strategy="no")
    with pytest.raises(InputError, match="does not smooth the model that the Trainer trains"):
        hf.SmoothingTrainer(model(), settings, train_dataset=Texts(), handle=handle).train()
    handle.remove()
    with pytest.raises(InputError, match="it was removed"):
        hf.SmoothingTrainer(handle.model, settings, train_dataset=Texts(), handle=handle).train()
