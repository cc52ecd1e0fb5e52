"""Examples of every extension point of Tercet."""
