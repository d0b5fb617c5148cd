"""A trained network in a run's folder: written when it is the best so far, read back without the training text."""

from __future__ import annotations

from torch import Tensor

from varsmooth.config import Config, config_checksum, load_config
from varsmooth.errors import InputError
from varsmooth.model import RecurrentLanguageModel
from varsmooth.proposal import Proposal
from varsmooth.text.vocab import Vocab
from varsmooth.train.build import build_network
from varsmooth.train.checkpoint import check_tensors, load_model
from varsmooth.train.folder import RunFolder
from varsmooth.train.folder_lock import resume_command
from varsmooth.train.record import record_or_empty
from varsmooth.train.writer import RunWriter
from varsmooth.version import VERSION


def save_network(writer: RunWriter, network: RecurrentLanguageModel, config: Config, vocab: Vocab, step: int) -> None:
    """Have the weights written, and the proposal, which prediction by the mean needs."""
    writer.model(_tensors(network), {**_identity(config, vocab), "step": step, "version": VERSION})


def load_network(folder: RunFolder) -> tuple[RecurrentLanguageModel, Config, Vocab]:
    """Read the best network of a run; its shapes, vocabulary and configuration are checked."""
    refuse_without_model(folder)
    config, vocab = load_config(folder.config_path), Vocab.load(folder.vocab_path)
    tensors, meta = load_model(folder.model_path)
    made_beside = {"vocab_checksum": folder.vocab_path, "config_checksum": folder.config_path}
    for key, checksum in _identity(config, vocab).items():
        if meta.get(key) != checksum:
            raise InputError(
                f"{made_beside[key]}: is not the one that {folder.model_path.name} was made with; put that one back"
            )
    proposal = None
    if "proposal.rate" in tensors and "proposal.probs" in tensors:
        noises_output = config.smoothing.scheme == "kneser-ney"
        proposal = Proposal(tensors["proposal.rate"], tensors["proposal.probs"], noises_output)
    network = build_network(config, len(vocab), proposal)
    check_tensors(folder.model_path, tensors, _tensors(network))
    network.load_state_dict({name.removeprefix("weight."): t for name, t in tensors.items() if name.startswith("weight.")})
    return network.eval(), config, vocab


def refuse_without_model(folder: RunFolder) -> None:
    """Refuse a run that ended before its first evaluation; one that has lost its model is another matter."""
    if folder.model_path.exists():
        return
    if not (record_or_empty(folder).get("best") or {}).get("step"):
        raise InputError(
            f"{folder.path} has no model yet: it was not evaluated before it ended; "
            f"continue it with: {resume_command(folder.path)}"
        )


def _tensors(network: RecurrentLanguageModel) -> dict[str, Tensor]:
    found = {f"weight.{name}": tensor for name, tensor in network.state_dict().items()}
    if network.smoothing.proposal is not None:
        proposal = network.smoothing.proposal
        found |= {"proposal.rate": proposal.rate, "proposal.probs": proposal.probs}
    return found


def _identity(config: Config, vocab: Vocab) -> dict[str, str]:
    return {"vocab_checksum": vocab.checksum, "config_checksum": config_checksum(config)}
