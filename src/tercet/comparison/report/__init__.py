"""HTML report of a comparison, self-contained: tables, figures and retrieved examples."""
