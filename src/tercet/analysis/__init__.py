"""Analysis of objectives: COCOS counts, gradient checks, diagrams, gradient breakdowns, diagnostics, reports."""
