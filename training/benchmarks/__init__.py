"""The measurements of ``scripts/benchmark.py``, one subject per file."""
