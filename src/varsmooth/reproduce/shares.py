"""A part of a corpus's training text as a data folder of its own; the other splits stay whole."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

from varsmooth.files import write_atomically
from varsmooth.text.named import KNOWN, locate

TRAIN = "train.txt"


def data_for(corpus: str, share: float, out: Path, data_dir: Path | None) -> str:
    """Return ``data.name`` for a share of a corpus; where it needs a folder, that is made beside the fleet ``out``."""
    source = locate(corpus, data_dir) if corpus in KNOWN else Path(corpus)
    if share == 1:
        return corpus
    folder = out.with_name(f"{out.name}-data") / f"{corpus}-{share:g}"
    if not (folder / TRAIN).is_file():
        for split in ("valid.txt", "test.txt"):
            write_atomically(folder / split, (source / split).read_bytes())
        write_atomically(folder / TRAIN, first_lines((source / TRAIN).read_bytes(), share))
    return str(folder.absolute())


def first_lines(text: bytes, share: float) -> bytes:
    """Return the first whole lines that hold at least ``share`` of the words."""
    lines = BytesIO(text).readlines()  # which end at a line feed and nowhere else, as for whoever reads the text
    sizes = [len(line.split()) + 1 for line in lines]
    wanted, so_far = share * sum(sizes) - 1e-6, 0  # 0.07 * 100 is more than 7 by a rounding
    for number, size in enumerate(sizes, start=1):
        so_far += size
        if so_far >= wanted:
            return b"".join(lines[:number])
    return text
