"""Which objective wins, by how much: a grid of runs, and the table that answers."""
