"""A trained decoder behind HTTP, as clients of OpenAI's completions expect it.

`protocol` reads what is asked and writes what is answered, `engine` generates for all that arrives together, and `app`
connects both to HTTP.
"""
