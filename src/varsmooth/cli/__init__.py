"""The command line: importing the verbs registers them."""

from varsmooth.cli import (
    benching,
    corpora,
    demonstration,
    exporting,
    recipes,
    reporting,
    reproducing,
    sweeping,
    training,
    using,
)
from varsmooth.cli.app import app, main

__all__ = [
    "app",
    "benching",
    "corpora",
    "demonstration",
    "exporting",
    "main",
    "recipes",
    "reporting",
    "reproducing",
    "sweeping",
    "training",
    "using",
]
