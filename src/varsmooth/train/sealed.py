"""Sealed files: plain safetensors that hold the SHA-256 of themselves.

The metadata hold one JSON object under one key: the format, what the writer wants to remember, and the digest of the whole
file as it is with 64 zeros in the digest's place. A file is put together in one piece of memory, into which the tensors are
copied directly: there is no second copy, and a thread can hash and write it while Python goes on elsewhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from varsmooth.errors import InputError

METADATA_KEY = "varsmooth"
NO_DIGEST = b"0" * 64
BEFORE_DIGEST = rb'{"__metadata__":{"varsmooth":"{\"sha256\": \"'
"""How every header begins, so that the digest has a fixed place in the file, after eight bytes of length."""
DIGEST_START = 8 + len(BEFORE_DIGEST)
DIGEST_END = DIGEST_START + len(NO_DIGEST)
ALIGNMENT = 8
SLACK = 4096
"""Room for a longer header when a buffer is used again."""
TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class Snapshot:
    """A sealed file in memory, of the tensors as they are now; ``buffer`` is that of an earlier one, to be used again.

    From a GPU the copy is queued behind what the current stream has to do, and only ``sealed`` waits for it.
    """

    @torch.no_grad()
    def __init__(
        self, format_name: str, tensors: Mapping[str, Tensor], content: Mapping[str, Any], buffer: Tensor | None = None
    ) -> None:
        # The widest elements come first, so that every tensor lies at a multiple of its element's size.
        ordered = dict(sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])))
        header = _header(format_name, ordered, content)
        size = len(header) + sum(tensor.nbytes for tensor in ordered.values())
        on_gpu = any(tensor.is_cuda for tensor in ordered.values())
        if buffer is None or buffer.numel() < size:
            buffer = torch.empty(size + SLACK, dtype=torch.uint8, pin_memory=on_gpu)
        self.buffer = buffer
        self._bytes = buffer.numpy().data[:size]
        self._bytes[: len(header)] = header
        place = len(header)
        for tensor in ordered.values():
            room = buffer[place : place + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            room.copy_(tensor, non_blocking=on_gpu)
            place += tensor.nbytes
        self._copied = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        if self._copied is not None:
            self._copied.record()

    def sealed(self) -> memoryview:
        """Return the bytes of the file, its digest in place; any thread may call this."""
        if self._copied is not None:
            self._copied.synchronize()
        self._bytes[DIGEST_START:DIGEST_END] = NO_DIGEST
        self._bytes[DIGEST_START:DIGEST_END] = hashlib.sha256(self._bytes).hexdigest().encode()
        return self._bytes


def unsealed(path: Path, format_name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a sealed file: nothing in it is interpreted before its digest has been checked."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(data) < DIGEST_END or data[8:DIGEST_START] != BEFORE_DIGEST:
        raise InputError(f"{path} is cut off, damaged or not a file of varsmooth")
    if data[DIGEST_START:DIGEST_END] != _digest(data):
        raise InputError(f"{path} is damaged: its checksum does not match")
    try:
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        content = json.loads(header["__metadata__"][METADATA_KEY])
        if content["format"] != format_name:
            raise InputError(f"{path} has format {content['format']!r}, and this version of varsmooth reads {format_name!r}")
        return safetensors.torch.load(data), dict(content)
    except (safetensors.SafetensorError, KeyError, TypeError, RecursionError, UnicodeDecodeError, json.JSONDecodeError):
        raise InputError(f"{path} was not written by varsmooth") from None


def _header(format_name: str, tensors: Mapping[str, Tensor], content: Mapping[str, Any]) -> bytes:
    """Return everything before the tensors: the length, the description with zeros for its digest, and each one's place."""
    description = json.dumps({"sha256": NO_DIGEST.decode(), "format": format_name, **content})
    entries: dict[str, Any] = {"__metadata__": {METADATA_KEY: description}}
    place = 0
    for name, tensor in tensors.items():
        offsets = [place, place := place + tensor.nbytes]
        entries[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _digest(data: bytes) -> bytes:
    digest = hashlib.sha256(data[:DIGEST_START] + NO_DIGEST)
    digest.update(memoryview(data)[DIGEST_END:])
    return digest.hexdigest().encode()
