"""Documents whose tables come from records: what lies between two markers is replaced, all else is a person's."""

from __future__ import annotations

import re
from pathlib import Path

from varsmooth.errors import InputError, nearest
from varsmooth.files import write_atomically
from varsmooth.reproduce.page import Page

BEGIN = re.compile(r"<!-- reproduce: ([\w./-]+) -->")
END = "<!-- end -->"
BLOCK = re.compile(rf"{BEGIN.pattern}\n(.*?){re.escape(END)}", re.DOTALL)
DOCUMENTS = (Path("README.md"), Path("docs/reproduction.md"))
IMAGES = Path("docs/images/reproduction")


def filled(text: str, blocks: dict[str, str], source: str) -> str:
    """Return the document with every marked part replaced by its block."""
    marked = BEGIN.findall(text)
    if len(marked) != len(BLOCK.findall(text)) or any(BEGIN.search(match[1]) for match in BLOCK.findall(text)):
        raise InputError(f"{source}: every <!-- reproduce: NAME --> on a line needs its own {END} on a later line")
    for name in marked:
        if name not in blocks:
            raise InputError(f"{source}: there is no part called {name!r}{nearest(name, blocks)}")
    return BLOCK.sub(lambda match: f"<!-- reproduce: {match[1]} -->\n{blocks[match[1]]}\n{END}", text)


def _as_records_say(root: Path, name: Path, page: Page) -> tuple[str, str]:
    """Return a document as it is and as it should be."""
    path = root / name
    text = path.read_text(encoding="utf-8")
    return text, filled(text, page.with_links(path.parent.relative_to(root), IMAGES), str(path))


def stale_documents(root: Path, page: Page) -> list[Path]:
    """Return the documents below ``root`` that do not say what the records say, or whose pictures are missing."""
    stale = []
    for name in DOCUMENTS:
        if (root / name).is_file():
            text, wanted = _as_records_say(root, name, page)
            stale += [name] if wanted != text else []
    return stale + [IMAGES / picture for picture in page.pictures if not (root / IMAGES / picture).is_file()]


def write_documents(root: Path, page: Page) -> list[Path]:
    """Fill the documents and write the pictures; return the files that were written."""
    if not any((root / name).is_file() for name in DOCUMENTS):
        raise InputError(f"--write-docs: there is neither {' nor '.join(map(str, DOCUMENTS))} here; run it where they are")
    written = []
    for picture, draw in page.pictures.items():
        write_atomically(root / IMAGES / picture, draw())
        written.append(root / IMAGES / picture)
    for name in DOCUMENTS:
        path = root / name
        if not path.is_file():
            continue
        text, new = _as_records_say(root, name, page)
        if new != text:
            write_atomically(path, new.encode())
            written.append(path)
    return written
