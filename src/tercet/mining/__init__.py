"""Offline hard negative mining over a whole training set: blocks of S -> top-k lists on disk."""
