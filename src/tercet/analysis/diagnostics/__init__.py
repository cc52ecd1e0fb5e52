"""Measurements of a finished run and the rules that turn them into findings."""
