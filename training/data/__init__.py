"""Data: files and named corpora, tokenised, stored, and read in batches."""
