"""The command line: importing the verbs registers them."""

from varsmooth.cli import corpora, demonstration, reporting, training, using
from varsmooth.cli.app import app, main

__all__ = ["app", "corpora", "demonstration", "main", "reporting", "training", "using"]
