"""The home of the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from plugins.tests.plugin_home import PluginHome


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PluginHome]:
    """Yield one home, with one queue, for all tests of a module."""
    made = PluginHome(tmp_path_factory.mktemp("home"))
    yield made
    made.end()
