"""Fast implementations of lines 4 and 5 of Algorithm 4, and the choice among them."""
