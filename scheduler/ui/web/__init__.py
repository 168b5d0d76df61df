"""The page in the browser (`top --web`): its server and data; and the report, a page that opens offline.

HTML, CSS and JavaScript are in `page`. No module of this package reads a journal: `app` passes a feed with the data.
Start at `server`.
"""
