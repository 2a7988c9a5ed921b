"""Lines 4 and 5 of Algorithm 4 for speed: the choice of an implementation, and the implementations."""
