"""A headless Chromium, what it asked for and complained of, and what keeps people from using a page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_until

WIDE, NARROW = (1280, 900), (360, 740)
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
    "--disable-component-update", "--no-first-run", "--hide-scrollbars",
)  # fmt: skip


class Browser:
    """One Chromium for many pages."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, address: str, size: tuple[int, int] = WIDE, *, dark: bool = False) -> None:
        """Turn to a page, as if nothing had been open before."""
        self.driver.get("about:blank")
        self.news()
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.resize(*size)
        self.driver.get(address)

    def resize(self, width: int, height: int) -> None:
        """As if the window were so large."""
        how = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", how)

    def tells(self, script: str, *arguments: Any) -> Any:
        """What an expression comes to."""
        return self.driver.execute_script(f"return {script}", *arguments)

    def find(self, selector: str) -> Any:
        """The first element of a kind."""
        return self.driver.find_element("css selector", selector)

    def click(self, selector: str) -> None:
        """As its user would, who scrolls there first."""
        element = self.find(selector)
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def press(self, *keys: str) -> None:
        """Keys, wherever the focus is."""
        self.driver.switch_to.active_element.send_keys(*keys)

    def texts(self, selector: str) -> list[str]:
        """What all elements of a kind say."""
        found: list[str] = self.tells("[...document.querySelectorAll(arguments[0])].map(e => e.innerText)", selector)
        return found

    def until(self, script: str, deadline: float = 60) -> Any:
        """Wait for an expression to become true."""
        return wait_until(lambda: self.tells(script), deadline, 0.05)

    def news(self) -> tuple[list[str], list[str]]:
        """What was complained of in the console, and every address that was asked for, since the last call."""
        complaints = [one["message"] for one in self.driver.get_log("browser") if one["level"] in ("SEVERE", "WARNING")]
        asked = []
        for one in self.driver.get_log("performance"):
            said = json.loads(one["message"])["message"]
            if said["method"] in ("Network.requestWillBeSent", "Network.webSocketCreated"):
                asked.append(said["params"].get("request", said["params"])["url"])
        return complaints, asked

    def faults(self) -> list[str]:
        """What axe finds that keeps somebody from using the page: serious and critical, with where."""
        if not self.tells("!!window.axe"):
            self.driver.execute_script(axe().read_text(encoding="utf-8"))
        found = self.driver.execute_async_script("axe.run().then(arguments[0])")
        grave = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
        return [f"{one['id']}: {node['target']} {node['failureSummary']}" for one in grave for node in one["nodes"]]

    def shot(self, path: Path) -> None:
        """A picture of all of the page, for people."""
        size = self.tells("[innerWidth, document.documentElement.scrollHeight]")
        self.resize(*size)
        self.driver.save_screenshot(str(path))


def axe() -> Path:
    """Where the checker lies."""
    package = pytest.importorskip("axe_core_python", reason="axe-core-python is not installed")
    return Path(package.__path__[0]) / "axe.min.js"


@contextmanager
def browser() -> Iterator[Browser]:
    """A Chromium of our own; skips where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not program or not driver:
        pytest.skip("there is no chromium or no chromedriver on PATH (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    try:
        made.set_script_timeout(60)
        yield Browser(made)
    finally:
        made.quit()
