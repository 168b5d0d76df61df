"""The output for people and programs: terminal, web page, charts, exports.

Modules of this package get values and return text or data; they read no journal, no device and no clock that affects
decisions. `terminal` has the views of a run, `live` the interactive view, `verbs` the output of single verbs, `web` the
page in the browser and the report, `charts` SVG, `export` the JSON schemas, tables and Prometheus. Start at
`terminal/plain_view`.
"""
