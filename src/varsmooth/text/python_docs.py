"""The embedded corpus: prose from the docstrings of the standard library that is running.

Source files are parsed, never imported, so the corpus is the same every time on one Python version.
"""

from __future__ import annotations

import ast
import hashlib
import platform
import sys
import sysconfig
import warnings
from collections.abc import Mapping
from pathlib import Path

from varsmooth.errors import InputError
from varsmooth.text.cache import load_texts, store_texts
from varsmooth.text.prose import sentences

BUILDER_VERSION = 1
MIN_COUNT = 3

# Tests, bundled packages, generated tables and demonstrations hold little prose of their own.
_SKIPPED = {"test", "tests", "idle_test", "_bundled", "pydoc_data", "encodings", "turtledemo"}
_SPLIT_ENDS = {"train": 0.8, "valid": 0.9, "test": 1.0}


def python_texts() -> dict[str, str]:
    """Return the texts of train, valid and test, one sentence a line, from the cache where they are there."""
    stdlib = Path(sysconfig.get_path("stdlib"))
    files = source_files(stdlib)
    name = f"python-{platform.python_version()}-{_fingerprint(files)}.json"
    texts = load_texts(name)
    if texts is None:
        prose = module_prose(files)
        if not prose:
            raise InputError(f"the python corpus needs the standard library's source files; {stdlib} has none")
        texts = split_texts(prose)
        store_texts(name, texts)
    return texts


def source_files(stdlib: Path) -> dict[str, Path]:
    """Return the standard library's modules and their source files, in an order that only the names decide."""
    files = {}
    for name in sys.stdlib_module_names - _SKIPPED:
        for path in [stdlib / f"{name}.py", *(stdlib / name).rglob("*.py")]:
            parts = path.relative_to(stdlib).with_suffix("").parts
            if not _SKIPPED.intersection(parts) and path.is_file():
                files[".".join(parts).removesuffix(".__init__")] = path
    return dict(sorted(files.items(), key=lambda item: _name_hash(item[0])))


def module_prose(files: Mapping[str, Path]) -> dict[str, list[str]]:
    """Return each module's sentences; a sentence that an earlier module has is left out, so no split repeats another."""
    seen: set[str] = set()
    prose = {}
    for module, path in files.items():
        lines = [" ".join(tokens) for text in docstrings(path.read_bytes()) for tokens in sentences(text)]
        fresh = [line for line in dict.fromkeys(lines) if line not in seen]
        seen.update(fresh)
        if fresh:
            prose[module] = fresh
    return prose


def docstrings(source: bytes) -> list[str]:
    """Return the docstrings of a source file in the order in which they stand; none when it does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about old escapes in other people's code
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(tree) if isinstance(node, documented)]
    nodes.sort(key=lambda node: 0 if isinstance(node, ast.Module) else node.lineno)
    return [text for node in nodes if (text := ast.get_docstring(node, clean=False))]


def assign_splits(prose: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return the modules of each split: cut in the order of their hashed names at 80% and 90% of the tokens."""
    sizes = {module: sum(line.count(" ") + 2 for line in lines) for module, lines in prose.items()}
    total = sum(sizes.values())
    modules: dict[str, list[str]] = {split: [] for split in _SPLIT_ENDS}
    before = 0
    for module in sorted(sizes, key=_name_hash):
        modules[next(split for split, end in _SPLIT_ENDS.items() if before < end * total)].append(module)
        before += sizes[module]
    return modules


def split_texts(prose: Mapping[str, list[str]]) -> dict[str, str]:
    """Return the text of each split, its modules one after the other."""
    return {
        split: "".join(f"{line}\n" for module in modules for line in prose[module])
        for split, modules in assign_splits(prose).items()
    }


def _name_hash(module: str) -> bytes:
    return hashlib.sha256(module.encode()).digest()


def _fingerprint(files: Mapping[str, Path]) -> str:
    sizes = [(module, path.stat().st_size) for module, path in files.items()]
    return hashlib.sha256(repr((BUILDER_VERSION, sizes)).encode()).hexdigest()[:16]
