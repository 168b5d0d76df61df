"""A headless Chromium, its requests and console messages, and accessibility faults of a page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import wait_until

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
        """Open a page in a clean state."""
        self.driver.get("about:blank")
        self.news()
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.resize(*size)
        self.driver.get(address)

    def resize(self, width: int, height: int) -> None:
        """Set the size of the window."""
        how = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", how)

    def tells(self, script: str, *arguments: Any) -> Any:
        """Return the value of an expression."""
        return self.driver.execute_script(f"return {script}", *arguments)

    def find(self, selector: str) -> Any:
        """Find the first element of a selector."""
        return self.driver.find_element("css selector", selector)

    def click(self, selector: str) -> None:
        """Click an element, after scrolling to it; once more if the page has drawn it anew meanwhile."""
        from selenium.common.exceptions import StaleElementReferenceException

        for last in (False, True):
            element = self.find(selector)
            try:
                self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
                element.click()
            except StaleElementReferenceException:
                if last:
                    raise
                continue
            return

    def press(self, *keys: str) -> None:
        """Press keys at the element with the focus."""
        self.driver.switch_to.active_element.send_keys(*keys)

    def texts(self, selector: str) -> list[str]:
        """Return the texts of all elements of a selector."""
        found: list[str] = self.tells("[...document.querySelectorAll(arguments[0])].map(e => e.innerText)", selector)
        return found

    def until(self, script: str, deadline: float = 60) -> Any:
        """Wait for an expression to become true."""
        return wait_until(lambda: self.tells(script), deadline, 0.05)

    def news(self) -> tuple[list[str], list[str]]:
        """Return the console messages and all requested addresses since the last call."""
        complaints = [one["message"] for one in self.driver.get_log("browser") if one["level"] in ("SEVERE", "WARNING")]
        asked = []
        for one in self.driver.get_log("performance"):
            said = json.loads(one["message"])["message"]
            if said["method"] in ("Network.requestWillBeSent", "Network.webSocketCreated"):
                asked.append(said["params"].get("request", said["params"])["url"])
        return complaints, asked

    def faults(self) -> list[str]:
        """Return the serious and critical accessibility faults that axe finds, with their elements."""
        if not self.tells("!!window.axe"):
            self.driver.execute_script(axe().read_text(encoding="utf-8"))
        found = self.driver.execute_async_script("axe.run().then(arguments[0])")
        grave = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
        return [f"{one['id']}: {node['target']} {node['failureSummary']}" for one in grave for node in one["nodes"]]

    def shot(self, path: Path) -> None:
        """Take a screenshot of the whole page."""
        size = self.tells("[innerWidth, document.documentElement.scrollHeight]")
        self.resize(*size)
        self.driver.save_screenshot(str(path))


def axe() -> Path:
    """Find the script of axe."""
    package = pytest.importorskip("axe_core_python", reason="axe-core-python is not installed")
    return Path(package.__path__[0]) / "axe.min.js"


@contextmanager
def browser() -> Iterator[Browser]:
    """Start a Chromium; skip the test if there is none."""
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
