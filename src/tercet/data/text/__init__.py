"""Captions as words and as numbers."""
