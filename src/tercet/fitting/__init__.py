"""`tercet fit`: from data to a compared, trained and indexed model, within a budget of time."""
