"""One HTML file from a template, styles, scripts and data, which needs no other file and runs only its own scripts."""

from __future__ import annotations

import hashlib
import html
import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from scheduler.values import dataclass

FRAME, LICENSE = "frame.html", "uPlot.LICENSE"
"""The file with the beginning and the end that all pages share, and the file with the licence of the library in
them.
"""


@dataclass(frozen=True, slots=True)
class PageParts:
    """The names of the files of which a page is made."""

    body: str
    styles: Sequence[str]
    scripts: Sequence[str]
    inserted: Mapping[str, str]
    """The files that are inserted into the body, by the place of their insertion."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all files."""
        return (FRAME, self.body, LICENSE, *self.styles, *self.scripts, *self.inserted.values())


def assemble(parts: PageParts, texts: Mapping[str, str], title: str, data: Mapping[str, Any]) -> str:
    """Return the page. Its data are escaped so that they cannot end the element that contains them; `texts` has the
    content of each part by its file name.
    """
    said = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        said = said.replace(sign, f"\\u{ord(sign):04x}")
    style, script = ("\n".join(texts[name] for name in names) for names in (parts.styles, parts.scripts))
    script = f"/* uPlot:\n{texts[LICENSE]}*/\n{script}"
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:; base-uri 'none'"
    )
    body = _filled(texts[parts.body], {name: texts[file] for name, file in parts.inserted.items()})
    put = {"title": html.escape(title), "policy": policy, "style": style, "script": script, "data": said, "body": body}
    return _filled(texts[FRAME], put)


def _filled(template: str, put: Mapping[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda match: put[match[1]], template)


def _hash(text: str) -> str:
    """Return the hash of a script or style for the page's security policy: a browser executes no others."""
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
