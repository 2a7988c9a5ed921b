"""The documentation: what is written by hand lies here as Markdown, what is written by code is made by `book`."""
