"""What decoder.py's model makes of a stream: every token once, in full precision, at any temperature."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from decoder_model import Decoder
from varsmooth.evaluate import Scales, newton, output
from varsmooth.evaluate.precision import full_precision


@torch.no_grad()
def read(model: Decoder, ids: Tensor, eos: int, stride: int, batch: int = 64) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield hidden states and targets, every token once; past the first window each has ``window - stride`` words before it."""
    window, device = model.window, model.words.weight.device
    ids = ids.long().to(device)
    inputs = torch.cat([ids.new_tensor([eos]), ids[:-1]])
    starts = list(range(0, max(1, len(ids) - window + stride), stride))
    padded = F.pad(inputs, (0, starts[-1] + window - len(ids)), value=eos)
    for some in (starts[place : place + batch] for place in range(0, len(starts), batch)):
        hidden = model.hidden(torch.stack([padded[start : start + window] for start in some]))
        for start, states in zip(some, hidden, strict=True):
            first = 0 if start == 0 else window - stride
            last = min(window, len(ids) - start)
            yield states[first:last], ids[start + first : start + last]


@torch.no_grad()
def measured(
    model: Decoder, ids: Tensor, eos: int, stride: int, temperatures: tuple[float | None, ...]
) -> list[dict[str, float]]:
    """Return nll, tokens and temperature for each temperature; None is the one that is best for these ids."""
    model.eval()
    with full_precision(model.words.weight.device):
        parts = list(read(model, ids, eos, stride))
        hidden, targets = torch.cat([part for part, _ in parts]), torch.cat([part for _, part in parts])
        assert len(targets) == len(ids)
        found = []
        for temperature in temperatures:
            chosen = best_temperature(model, hidden, targets) if temperature is None else temperature
            chunks = _logits(model, hidden, targets)
            total = sum(float(output.target_nll(*chunk, chosen).sum(dtype=torch.float64)) for chunk in chunks)
            found.append({"temperature": chosen, "nll": total / len(ids), "tokens": len(ids)})
    model.train()
    return found


def _logits(model: Decoder, hidden: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    rows = output.rows_at_once(model.head.out_features, hidden.device) * 8
    for some, of_some in zip(hidden.split(rows), targets.split(rows), strict=True):
        yield model.head(some).float(), of_some


def best_temperature(model: Decoder, hidden: Tensor, targets: Tensor) -> float:
    """Return the temperature with the lowest loss."""
    no_bias = torch.zeros(model.head.out_features, device=hidden.device)

    def terms_at(scales: Scales) -> newton.Derivatives:
        chunks = _logits(model, hidden, targets)
        sums = [output.scale_terms(*chunk, no_bias, scales).sum(-1, dtype=torch.float64) for chunk in chunks]
        return newton.Derivatives(*torch.stack(sums).sum(0).tolist())

    return 1 / newton.minimum(terms_at, Scales(1.0, 1.0), newton.together, tolerance=1e-4).context
