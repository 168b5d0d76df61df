"""The page in the browser (`top --web`): its server and data; and the report, a page that opens offline.

HTML, CSS and JavaScript are in `page`. Nothing here reads a journal: a feed from `app` is passed in. Start at `server`.
"""
