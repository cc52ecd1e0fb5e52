"""`tercet analyse` and `tercet doctor`: load finished runs, analyse them and write reports."""
