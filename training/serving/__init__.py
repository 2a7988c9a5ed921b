"""A trained model behind HTTP, as clients of OpenAI's API expect it.

`engine` generates for all that arrives together. `fields` reads JSON, `generating` what completions and chat share,
`completions`, `chat`, `embeddings` and `tokenizing` one kind of request and its answers each. `app` connects them to
HTTP, behind `guards` and `connections`, and `metrics` counts.
"""
