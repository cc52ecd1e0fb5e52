"""A finished run laid open: what its objective pulls and pushes, what it finds, and what ails it."""
