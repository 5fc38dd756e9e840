"""A Flower app: nodes adapt a tiny transformer to a language that they share, and one has learned another."""
