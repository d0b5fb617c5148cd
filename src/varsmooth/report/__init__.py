"""What came of the runs: tables, learning curves and one page."""

from varsmooth.experiment.seeds import Spread
from varsmooth.report.page import Sample, write_page
from varsmooth.report.plots import learning_curves, write_learning_curves
from varsmooth.report.runs import RunSummary, load_run, runs_in
from varsmooth.report.tables import ResultsTable, Row, as_json, as_markdown, build_rows

__all__ = [
    "ResultsTable",
    "Row",
    "RunSummary",
    "Sample",
    "Spread",
    "as_json",
    "as_markdown",
    "build_rows",
    "learning_curves",
    "load_run",
    "runs_in",
    "write_learning_curves",
    "write_page",
]
