"""Benchmarks, one claim a file; `python -m bench` runs them. Not part of the library and not installed with it."""
