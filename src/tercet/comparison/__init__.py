"""`tercet compare`: trains a grid of objectives x seeds, tests the differences, writes tables and a report."""
