"""Lines that a user of the library could have written: the examples of docs/research.md, which import it alone."""
