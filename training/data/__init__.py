"""Data: files and named corpora, tokenized, stored, and read in batches."""
