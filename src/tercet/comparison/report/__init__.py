"""A comparison as one page that needs no network: figures, examples and tables."""
