"""From a trained model to pictures found by words: index, query."""
