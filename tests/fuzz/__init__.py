"""Random cases of attention, drawn by hypothesis: sizes, masks and dtypes, each implementation against "paper".

    pytest tests/project/test_fuzz.py -m slow --hypothesis-profile fuzz                      ten thousand
    pytest tests/project/test_fuzz.py -m slow --hypothesis-profile fuzz --hypothesis-seed 7  the same cases again

hypothesis prints the seed of a case that fails, and begins with that case the next time.
"""
