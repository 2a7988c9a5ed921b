"""A trained model behind HTTP, for clients of OpenAI's API.

`engine` generates for all concurrent requests together. `fields` reads JSON, and `generating` what completions and chat
share; `completions`, `chat` and `embeddings` have one kind of request each. `app` connects them to HTTP, behind
`guards`, and counts them.
"""
