"""`tercet serve`: HTTP server and web page for image search, model comparison, training runs and objectives."""
