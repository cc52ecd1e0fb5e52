"""GOAL: fifteen objectives defined by their gradient, T x P. Weights (Eq. 5 to 13) in weights.py, cells in cells.py."""
