"""Executors: they execute the runs of a comparison."""
