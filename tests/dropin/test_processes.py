"""Two processes draw what one would, and a resumed pair goes on as one that never stopped; compiled models."""

from __future__ import annotations

import faulthandler
import time
from datetime import timedelta
from pathlib import Path

import pytest
import safetensors.torch
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dropin_for_tests import gradients, ids, loss_of, proposal, recurrent
from varsmooth import smooth

STEPS, ACCUMULATED = 4, 2
PATIENCE = 150.0
"""Seconds that two processes may take for their few steps, most of them the import of torch."""
pytestmark = pytest.mark.slow


def micro_batches(step: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Each of 4 sequences; a process takes its half."""
    return [(ids(seed=10 * step + part), ids(seed=500 + 10 * step + part)) for part in range(ACCUMULATED)]


def train(model: nn.Module, handle, first: int, last: int, mine: slice) -> None:
    # Momentum-free, so that the model and the handle are all there is to resume.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(first, last):
        optimizer.zero_grad()
        for inputs, targets in micro_batches(step):
            loss = loss_of(model(inputs[mine]), targets[mine]) + 1e-3 * handle.kl()
            (loss / ACCUMULATED).backward()
        optimizer.step()


def process(rank: int, folder: str, scope: str, first: int, last: int) -> None:
    faulthandler.dump_traceback_later(PATIENCE - 20)
    torch.set_num_threads(1)
    # They meet at a file: a port found free might be taken by the time both have imported torch.
    meeting_place, timeout = f"file://{folder}/meeting-{first}", timedelta(seconds=PATIENCE - 30)
    dist.init_process_group("gloo", init_method=meeting_place, rank=rank, world_size=2, timeout=timeout)
    model = recurrent()
    if first:
        model.load_state_dict(safetensors.torch.load_file(Path(folder) / f"{first}.safetensors"), strict=False)
    parallel = DistributedDataParallel(model)
    handle = smooth(parallel, proposal(), scope=scope, dropout=0.2, seed=9)
    handle.load_state_dict({"seed": 9, "step": first, "sequences": 0})
    train(parallel, handle, first, last, slice(2 * rank, 2 * rank + 2))
    assert handle.current_step == last
    if rank == 0:
        # A tied table is saved once.
        saved = {name: value for name, value in model.state_dict().items() if name != "head.weight"}
        safetensors.torch.save_file(saved, Path(folder) / f"{last}.safetensors")
    # Gloo's thread takes Python's lock to let go of its last sum, and ending gloo waits for that thread with the lock held.
    time.sleep(1)
    dist.destroy_process_group()


def spawn(folder: Path, scope: str, first: int, last: int) -> dict[str, torch.Tensor]:
    both = torch.multiprocessing.spawn(process, (str(folder), scope, first, last), nprocs=2, join=False, daemon=True)
    deadline = time.monotonic() + PATIENCE
    try:
        while not both.join(timeout=1):
            assert time.monotonic() < deadline, f"two processes have not ended after {PATIENCE:.0f} s; see where they were"
    finally:
        for each in both.processes:
            each.kill()
    return safetensors.torch.load_file(folder / f"{last}.safetensors")


@pytest.mark.parametrize("scope", ["sequence", "batch"])
def test_two_processes_train_as_one_and_resume_exactly(tmp_path, scope):
    alone = recurrent()
    train(alone, smooth(alone, proposal(), scope=scope, dropout=0.2, seed=9), 0, STEPS, slice(None))
    pair = spawn(tmp_path, scope, 0, STEPS)
    for name, value in pair.items():
        torch.testing.assert_close(value, alone.state_dict()[name], msg=lambda text, name=name: f"{name}: {text}")
    (tmp_path / "again").mkdir()
    spawn(tmp_path / "again", scope, 0, STEPS // 2)
    resumed = spawn(tmp_path / "again", scope, STEPS // 2, STEPS)
    assert all(torch.equal(value, resumed[name]) for name, value in pair.items())


class Feedforward(nn.Module):
    """A model that compiles as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(29, 8)
        self.body = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.head = nn.Linear(8, 29)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.words(given)).cumsum(1))


def feedforward() -> Feedforward:
    torch.manual_seed(4)
    return Feedforward()


# Torch's own, where a graph starts with a tensor that eager code computed.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("smooth_first", [True, False])
def test_a_compiled_model_draws_as_an_eager_one(smooth_first):
    torch._dynamo.reset()
    eager, model = feedforward(), feedforward()
    handles = [smooth(eager, proposal(), dropout=0.2)]
    if smooth_first:
        handles.append(smooth(model, proposal(), dropout=0.2))
    compiled = torch.compile(model, backend="aot_eager")
    if not smooth_first:
        torch.testing.assert_close(compiled(ids()), feedforward()(ids()))
        handles.append(smooth(compiled, proposal(), dropout=0.2))
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.5) for each in (eager, model)]
    for step in range(4):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for each in (eager, compiled):
            for part in range(2):
                loss_of(each(ids(seed=2 * step + part)), ids(seed=99)).backward()
        torch.testing.assert_close(gradients(model), gradients(eager))
        for optimizer in optimizers:
            optimizer.step()
    assert [handle.current_step for handle in handles] == [4, 4]
    eager.eval()
    compiled.eval()
    torch.testing.assert_close(compiled(ids()), eager(ids()))
    for handle in handles:
        handle.remove()
    torch.testing.assert_close(compiled(ids()), eager(ids()))
