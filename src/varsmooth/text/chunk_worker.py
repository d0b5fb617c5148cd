"""Numbers the words of one chunk of a text file, as a program of its own.

It needs the standard library alone and no package around it, so a process starts in milliseconds and holds one chunk in memory,
where an import of torch would take seconds and hundreds of megabytes. What the files mean is said in ``chunks.py``.
"""

from __future__ import annotations

import json
import sys
from array import array
from pathlib import Path

EOS = "<eos>"
BOM = "\ufeff"


class Numbers(dict[str, int]):
    """Words numbered in the order in which they were first asked for."""

    def __missing__(self, word: str) -> int:
        self[word] = number = len(self)
        return number


def number(text: str, *, is_last: bool) -> tuple[array[int], array[int], Numbers]:
    """Return word numbers with ``<eos>`` after each line, the places just after each line, and the words; 0 is ``<eos>``.

    A chunk may end within a line, which then goes on in the next one; the last line of a file may lack its line end.
    """
    ids, line_ends, words = array("i"), array("q"), Numbers({EOS: 0})
    number_of = words.__getitem__
    *lines, rest = text.split("\n")
    for line in lines:
        ids.extend(map(number_of, line.split()))
        ids.append(0)
        line_ends.append(len(ids))
    ids.extend(map(number_of, rest.split()))
    if is_last and rest:
        ids.append(0)
        line_ends.append(len(ids))
    return ids, line_ends, words


def work(path: Path, start: int, end: int, size: int, stem: str) -> dict[str, int]:
    """Number the bytes from ``start`` to ``end`` of a file into three files, and return how many tokens and lines there are."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            raw = file.read(end - start)
    except OSError as error:
        return {"unread": error.errno or 0}
    if len(raw) < end - start:
        return {"short": 1}
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return {"bad": 1}
    if "\0" in text:
        return {"bad": 1}
    if start == 0:
        text = text.removeprefix(BOM)
    del raw
    ids, line_ends, words = number(text, is_last=end == size)
    del text
    try:
        Path(stem + ".ids").write_bytes(memoryview(ids).cast("B"))
        Path(stem + ".lines").write_bytes(memoryview(line_ends).cast("B"))
        Path(stem + ".words").write_bytes("\n".join(words).encode())
    except OSError as error:
        return {"unwritten": error.errno or 0}
    return {"tokens": len(ids), "lines": len(line_ends)}


if __name__ == "__main__":
    path, start, end, size, stem = sys.argv[1:]
    json.dump(work(Path(path), int(start), int(end), int(size), stem), sys.stdout)
