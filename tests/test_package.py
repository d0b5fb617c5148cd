"""The public names, and the one-way imports of the layout."""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import varsmooth

PUBLIC = {
    "Counts",
    "DrawKey",
    "EmbeddingPosterior",
    "InputError",
    "OutputLoss",
    "Proposal",
    "noise",
    "output_loss",
    "Corpus",
    "LanguageModel",
    "Scales",
    "Vocab",
    "__version__",
    "open_corpus",
    "SmoothingHandle",
    "smooth",
    "special_ids_of",
}
# Data flows down this list: a module imports only from those above it (and from its own package).
LAYERS = [
    "version",
    "errors",
    "files",
    "text",
    "draws",
    "proposal",
    "ops",
    "posterior",
    "dropin",
    "config",
    "keys",
    "recipe",
    "recipes",
    "model",
    "train",
    "evaluate",
    "hf",
    "experiment",
    "fleet",
    "sweep",
    "bench",
    "report",
    "reproduce",
    "demo",
    "cli",
    "__main__",
]
ROOT = Path(varsmooth.__file__).parent


def test_public_names_are_pinned():
    assert set(varsmooth.__all__) == PUBLIC
    assert set(dir(varsmooth)) >= PUBLIC, "also those that are still to be loaded"


def test_modules_of_the_public_names_need_no_import_of_their_own():
    code = "import varsmooth; varsmooth.errors.InputError; varsmooth.text.Corpus; varsmooth.proposal"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert all(hasattr(varsmooth, name) for name in PUBLIC)


def imported_layers(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        modules = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            modules = [node.module or ""]
            if node.module == "varsmooth":
                modules = [f"varsmooth.{alias.name}" for alias in node.names if alias.name in LAYERS]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        found |= {module.split(".")[1] for module in modules if module.startswith("varsmooth.")}
    return found


def test_imports_go_one_way():
    modules = [path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py"]
    assert len(modules) > 10
    for path in modules:
        layer = path.relative_to(ROOT).parts[0].removesuffix(".py")
        allowed = LAYERS[: LAYERS.index(layer) + 1]
        assert imported_layers(path) <= set(allowed), f"{path.relative_to(ROOT)} imports from below"


def test_every_layer_of_the_list_exists():
    present = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert present - {"__init__", "__pycache__"} == set(LAYERS)


def test_version_is_that_of_the_distribution():
    assert varsmooth.__version__ == importlib.metadata.version("varsmooth")


def test_an_import_leaves_the_compiler_and_the_extras_alone():
    """Each costs seconds; whoever does not ask for it does not wait for it."""
    heavy = {"torch._dynamo", "triton", "transformers", "optuna", "duckdb", "matplotlib", "pyarrow", "huggingface_hub"}
    program = f"import sys, varsmooth.cli; print(sorted({heavy!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
