"""Reading text files line by line, with one clear line for everything that can be wrong with them."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from varsmooth.errors import InputError


class Digest(Protocol):
    """What ``hashlib.sha256()`` returns, as far as reading needs it."""

    def update(self, data: bytes, /) -> object: ...


def read_lines(path: Path, digest: Digest | None = None) -> Iterator[list[str]]:
    """Yield the tokens of each line, split on white space; a blank line yields ``[]``.

    ``digest`` is fed the file's bytes on the way.
    """
    with reading(path), Path(path).open("rb") as file:
        yield from decode_lines(file, str(path), digest)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what the system says when a file cannot be read into one clear line."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except PermissionError:
        raise InputError(f"{path}: no permission to read it; try chmod +r on it and +x on its folders") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder where a text file belongs") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


def exists(path: Path) -> bool:
    """Tell whether there is such a file or folder; unlike ``Path.exists``, never take a missing permission for a no."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError:
        raise InputError(f"{path}: no permission to look at it; try chmod +x on its folders") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be opened: {getattr(error, 'strerror', error)}") from None
    return True


def size_of(path: Path) -> int:
    """Return the bytes of a file."""
    with reading(path):
        return path.stat().st_size


def decode_lines(
    lines: Iterable[bytes], source: str, digest: Digest | None = None, offset: int = 0, first: int = 1
) -> Iterator[list[str]]:
    """Yield the tokens of each raw line; errors name ``source``, in which line ``first``, the first here, is at ``offset``."""
    empty = True
    for number, raw in enumerate(lines, start=first):
        if digest is not None:
            digest.update(raw)
        text = _decode(raw, offset, number, source)
        offset += len(raw)
        if text:
            empty = False
            yield text.split()
    if empty:
        raise InputError(no_text(source))


def no_text(source: str) -> str:
    return f"{source} is empty; it must hold at least one line of text"


def _decode(raw: bytes, offset: int, line: int, source: str) -> str:
    if b"\0" in raw:
        place = offset + raw.index(b"\0")
        raise InputError(
            f"{source} holds binary data (a NUL byte at byte {place}, in line {line}); it must be plain UTF-8 text"
        )
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        place, value = offset + error.start, raw[error.start]
        raise InputError(f"{source} is not UTF-8 (0x{value:02x} at byte {place}, in line {line}); save it as UTF-8") from None
    return text[1:] if offset == 0 and raw.startswith(codecs.BOM_UTF8) else text
