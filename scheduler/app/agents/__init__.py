"""The tools by which agents (programs that a language model steers) submit tasks and read results: `scheduler mcp`.

`server` alone knows the protocol and imports the package `mcp`. Start at `tools`; `short_answers` keeps answers short.
"""
