"""Plotly figures built from analyses: one set for the page, reports and notebooks.

Knows no server and no store.
"""
