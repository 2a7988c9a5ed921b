"""Random cases, drawn by hypothesis: what is computed against the printed lines, and what is read against damage.

    pytest tests/project/test_fuzz.py -m slow --hypothesis-profile fuzz                      ten thousand of each area
    pytest tests/project/test_fuzz.py -m slow --hypothesis-profile fuzz -k files             of this area
    pytest tests/project/test_fuzz.py -m slow --hypothesis-profile fuzz --hypothesis-seed 7  the same cases again

hypothesis prints the seed of a case that fails, and begins with that case the next time.

* `attention`   sizes, masks and their conjunctions, dtypes: each implementation against "paper"
* `files`       damaged runs, checkpoints and data: our sentence, never another error
* `requests`    damaged requests to the server: never its own error
"""
