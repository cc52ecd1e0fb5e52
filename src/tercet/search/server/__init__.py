"""`tercet serve`: pictures found, models compared, runs watched and objectives tried, in a browser."""
