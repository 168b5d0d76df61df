"""The output for people and programs: terminal, web page, charts, exports.

A module here gets values and returns text or data; it reads no journal, no device and no clock that affects decisions.
`terminal` has the views of a run, `verbs` the output of single verbs, `doctor` its page, `web` the page in the browser
and the report, `charts` SVG, `export` the JSON schemas, tables and Prometheus. Start at `terminal/plain_view`.
"""
