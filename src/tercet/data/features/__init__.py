"""Frozen encoders, run once over a data set: pictures and captions to files of features."""
