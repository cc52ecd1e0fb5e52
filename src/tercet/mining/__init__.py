"""Hard negatives of the whole training set, found once: blocks of S -> a table on disk."""
