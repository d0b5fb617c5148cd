"""Rows of an embedding table, drawn from the posterior without ever building the table."""

from varsmooth.ops.draw_rows.plan import DrawPlan
from varsmooth.ops.draw_rows.reference import draw_rows, replaced_words

__all__ = ["DrawPlan", "draw_rows", "replaced_words"]
