"""The command line: importing the verbs registers them."""

from varsmooth.cli import benching, corpora, demonstration, reporting, training, using
from varsmooth.cli.app import app, main

__all__ = ["app", "benching", "corpora", "demonstration", "main", "reporting", "training", "using"]
