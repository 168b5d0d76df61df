"""The page of a live run in a real browser: clicked, sorted, by keyboard, narrow, dark, and attacked by names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scheduler.runtime.paths import PAGE
from tests.support.chromium import NARROW, WIDE, Browser
from tests.support.faults import fault
from tests.support.killing import Home
from tests.support.paging import Page
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

UNTIL_GO = "sh -c 'echo epoch 1/3; until [ -e go ]; do sleep 0.1; done'"
EVIL = (
    "<script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "\"><svg onload=window.hacked=1>",
    "'-window.hacked=1-'",
    "javascript:window.hacked=1",
    "{{constructor.constructor('window.hacked=1')()}}",
    "</textarea><iframe srcdoc='<script>parent.hacked=1</script>'>",
    "\u202egnp.<b>exe",
)  # fmt: skip
FAILS, RUNS, FIRST_EVIL = 0, 1, 2
LARGEST = 300 << 10


def begun(root: Path, waiting: int) -> Home:
    """Start a run with a failed and a running task; tasks with malicious names and many others wait."""
    made = Home(root)
    rows = [["sh -c 'echo out of luck; exit 3'", "fails", 0], [UNTIL_GO, "runs", 0]]
    rows += [["true", name, 1] for name in EVIL]
    rows += [["true", f"waits-{number}", 2] for number in range(waiting)]
    made.write("jobs.csv", "Command,Name,Priority", *rows)
    made.call("run", "jobs.csv", "-j", "1", "--num", "40", "--keep-going", "-d", code=0)
    wait_until(lambda: made.states()[RUNS] == "running", 60, 0.1)
    return made


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """Start one run for all tests that do not change it."""
    made = begun(tmp_path_factory.mktemp("browser"), 45)
    yield made
    made.end()


@pytest.fixture(scope="module")
def page(home: Home) -> Iterator[Page]:
    made = Page(home, "r1")
    yield made
    assert made.close() == ""


@contextmanager
def reading(chromium: Browser, page: Page) -> Iterator[Browser]:
    """Open the page of the run; afterwards check that it logged no error and asked no other address."""
    chromium.open(page.address)
    chromium.until("document.querySelector('#link').className === 'live' && !!document.querySelector('#table td')")
    yield chromium
    complaints, asked = chromium.news()
    assert complaints == []
    assert [address for address in asked if not address.startswith((page.root + "/", "data:"))] == []


@pytest.fixture
def opened(chromium: Browser, page: Page) -> Iterator[Browser]:
    with reading(chromium, page):
        yield chromium


@pytest.fixture
def own(tmp_path: Path, chromium: Browser) -> Iterator[Home]:
    """Start a run for one test, and open its page."""
    home = begun(tmp_path, 2)
    page = Page(home, "r1")
    with reading(chromium, page):
        yield home
    assert page.close() == ""
    home.end()


def ids(chromium: Browser) -> list[str]:
    return chromium.texts("#table tbody tr td:first-child")


def choose(chromium: Browser, group: str, rows: str) -> None:
    """Turn to a group of the tasks, and wait until the table is like that."""
    chromium.click(f"[data-group={group}]")
    chromium.until(f"document.querySelector('[data-group={group}]').ariaPressed === 'true' && ({rows})")


def shown(text: str) -> str:
    return f"document.querySelector('#table').innerText.includes({text!r})"


def test_page_shows_devices_and_running_tasks_and_hides_its_token(opened: Browser) -> None:
    assert opened.texts(".device-row .name")[-1] == "host"
    assert opened.texts("#table td.name") == ["runs"]
    assert opened.texts("#states span") == ["53 waiting", "1 running", "1 failed"]
    assert "token" not in opened.tells("location.href")


def test_page_finds_sorts_and_pages_tasks(opened: Browser) -> None:
    choose(opened, "waiting", shown("waits-1"))
    assert ids(opened)[0] == str(FIRST_EVIL)
    opened.click("#next")
    opened.until(shown("waits-44"))
    assert opened.texts("#shown") == ["51–53 of 53"]
    opened.find("#find").send_keys("waits-4")
    opened.until("document.querySelector('#shown').innerText === '1–6 of 6'")
    opened.click("[data-sort=name]")
    opened.until("document.querySelector('th[aria-sort=ascending]')?.innerText.startsWith('name')")
    opened.click("[data-sort=name]")
    opened.until("document.querySelector('#table td.name')?.innerText.startsWith('waits-44')")
    assert opened.tells("document.activeElement.dataset.sort") == "name"
    assert opened.texts("#table td.name")[0].startswith("waits-44")


@fault(66)
def test_page_shows_a_name_like_a_script_and_does_not_run_it(opened: Browser) -> None:
    choose(opened, "waiting", shown("onerror"))
    named = "\n".join(opened.texts("#table td.name"))
    assert [name for name in EVIL if name.removeprefix("\u202e") not in named] == []
    assert "\u202e" not in named
    opened.click(f"[aria-label='Cancel task {FIRST_EVIL}']")
    assert EVIL[0] in opened.find("#sure-says").text
    opened.click("#keep")
    assert opened.tells("window.hacked") is None
    assert opened.tells("document.querySelectorAll('iframe, svg:not(.spark), img, b:not(#states b)').length") == 0


def opens(chromium: Browser, task: int) -> None:
    """Open a task in the table, and wait for its details."""
    chromium.click(f"[aria-label='Task {task}: details']")
    chromium.until("!!document.querySelector('tr.open .cards')")


def test_log_in_an_open_task_follows_its_file_and_closes_by_keyboard(opened: Browser, home: Home) -> None:
    opens(opened, RUNS)
    pre = f"document.querySelector(\"[aria-label='Log of task {RUNS}']\")"
    opened.until(f"{pre}?.textContent === 'epoch 1/3\\n'")
    with open(home.state / f"runs/1/tasks/{RUNS}/1.log", "a") as log:
        log.write("\x1b[32mgreen\x1b[0m\n10%\r99%\rall <b>done</b>\n")
    opened.until(f"{pre}.textContent.endsWith('green\\nall <b>done</b>\\n')")
    opened.driver.execute_script(f"{pre}.focus()")
    opened.press("\ue00c")  # Escape
    opened.until("!document.querySelector('tr.open')")
    assert opened.tells("document.activeElement.ariaLabel") == f"Task {RUNS}: details"


def test_log_of_the_run_opens_and_closes_by_keyboard(opened: Browser) -> None:
    opened.click("#run-log")
    opened.until("document.querySelector('#run-text pre')?.textContent.includes('start')")
    opened.press("\ue00c")  # Escape
    opened.until("document.querySelector('#log').hidden")
    assert opened.tells("document.activeElement.id") == "run-log"


def test_ended_task_opens_with_its_attempt_and_says_when_it_ended(opened: Browser) -> None:
    choose(opened, "all", shown("fails"))
    opens(opened, FAILS)
    ended = opened.texts(f"tr[data-key='{FAILS}'] td[data-column=ended]")[0]
    assert ended.count(":") == 2
    assert opened.texts("tr.open .card.wide tbody tr td")[:2] == ["1", "failed"]
    assert ended in opened.texts("tr.open .card.wide tbody tr td")
    opened.until("document.querySelector('tr.open pre').textContent === 'out of luck\\n'")
    assert dict(zip(opened.texts("tr.open dt"), opened.texts("tr.open dd"), strict=True))["ended"] == ended


def test_history_draws_timeline_and_memory(opened: Browser) -> None:
    opened.click("#show-history")
    opened.until("document.querySelectorAll('#charts canvas').length > 1")
    colours = "new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)).size"
    assert opened.tells(f"[...document.querySelectorAll('#charts canvas')].every(c => {colours} > 3)")
    opened.find("#colour").send_keys("priority")
    opened.until("document.querySelector('#charts .legend').innerText.includes('priority 0')")


def test_choosing_the_machine_and_going_back_returns_to_the_run(opened: Browser) -> None:
    opened.find("#run").send_keys("the whole machine")
    opened.until("document.querySelector('#leases td:nth-child(3)')?.innerText === '1'")
    assert opened.faults() == []
    opened.driver.back()
    opened.until("document.querySelector('#title').innerText === 'run 1' && !document.querySelector('#tasks').hidden")
    assert opened.texts("#table td.name") == ["runs"]


@pytest.mark.parametrize(("size", "dark"), [(WIDE, False), (NARROW, True)])
def test_page_has_no_serious_accessibility_fault(
    opened: Browser, size: tuple[int, int], dark: bool, tmp_path: Path
) -> None:
    """Check for faults with axe and for overflow, in both colour schemes and widths."""
    opened.open(opened.tells("location.href"), size, dark=dark)
    opened.until("!!document.querySelector('#table td')")
    choose(opened, "all", shown("fails"))
    opens(opened, FAILS)
    opened.click("#show-history")
    opened.until("document.querySelectorAll('#charts canvas').length > 1")
    opened.shot(tmp_path / "page.png")
    assert opened.tells("document.documentElement.scrollWidth") <= size[0]
    assert opened.faults() == []


def test_axe_finds_a_missing_label(opened: Browser) -> None:
    opened.driver.execute_script("document.querySelector('#run-log').textContent = ''")
    assert [fault.partition(":")[0] for fault in opened.faults()] == ["button-name"]


def test_page_without_the_token_says_where_to_get_it(opened: Browser, page: Page) -> None:
    opened.driver.execute_script("sessionStorage.clear()")
    opened.open(page.root + "/")
    opened.until(
        "document.querySelector('#problem').innerText.includes('the address that scheduler top --web printed')"
    )
    assert opened.texts("#table td") == []


def test_files_of_the_page_are_small() -> None:
    assert sum(path.stat().st_size for path in PAGE.iterdir()) < LARGEST


def test_cancel_and_retry_by_keyboard_show_at_once(own: Home, chromium: Browser) -> None:
    choose(chromium, "waiting", shown("waits-1"))
    chromium.driver.execute_script(f"document.querySelector(\"[aria-label='Cancel task {FIRST_EVIL}']\").focus()")
    chromium.press("\ue007")  # Enter
    chromium.until("document.querySelector('#sure').open && document.activeElement.id === 'keep'")
    chromium.press("\ue004")  # Tab
    chromium.press("\ue007")
    chromium.until(f"document.querySelector('#said').innerText === 'task {FIRST_EVIL}: cancelled'")
    chromium.until(f"!document.querySelector(\"[aria-label='Cancel task {FIRST_EVIL}']\")")
    choose(chromium, "failed", shown("out of") + " || " + shown("fails"))
    chromium.click(f"[aria-label='Retry task {FIRST_EVIL}']")
    chromium.until(f"document.querySelector('#said').innerText.startsWith('task {FIRST_EVIL}: queued again')")
    choose(chromium, "running", shown("runs"))
    chromium.click(f"[aria-label='Cancel task {RUNS}']")
    chromium.click("#do")
    chromium.until("document.querySelector('#states').innerText.includes('1 cancelled')")
    wait_until(lambda: own.states()[RUNS] == "cancelled", 60, 0.1)
    chromium.until("document.querySelector('#how-far').innerText.startsWith('12 of 12 tasks, 100%')")


def test_page_shows_the_last_values_of_metrics_and_their_shape(chromium: Browser, tmp_path: Path) -> None:
    home = Home(tmp_path)
    says = (
        "for n in 1 2 3 4; do echo epoch $n/9 loss 0.$((9 - n)) val_acc nan; done; until [ -e go ]; do sleep 0.1; done"
    )
    home.write("jobs.csv", "lr", [0.1], [0.2])
    home.call("run", "jobs.csv", "-j", "1", "-d", "--", "sh", "-c", says + "; : {lr}", code=0)
    page = Page(home, "r1")
    try:
        with reading(chromium, page) as opened:
            opened.until("document.querySelector(\"td[data-column='best.loss']\")?.innerText === '0.5000'")
            assert opened.texts("td[data-column='result.val_acc']") == ["nan"]
            assert opened.texts("td[data-column='parameter.lr']") == ["0.1"]
            assert opened.texts("td[data-column=epochs]") == ["4/9"]
            opened.resize(*NARROW)
            assert opened.tells("document.documentElement.scrollWidth <= innerWidth")
            opened.resize(*WIDE)
            (home.root / "go").touch()
            choose(opened, "all", "document.querySelectorAll('#table tbody tr').length === 2")
            best = "[...document.querySelectorAll(\"td[data-column='best.loss']\")]"
            opened.until(f"{best}.every(td => td.innerText === '0.5000')")
            assert opened.faults() == []
    finally:
        assert page.close() == ""
        home.end()


@fault(66)
def test_page_shows_hostile_metrics_and_parameters_as_texts(chromium: Browser, tmp_path: Path) -> None:
    home = Home(tmp_path)
    name = "<img src=x onerror=window.hacked=1>"
    told = {name: 0.25, "id": 1.0, "__proto__": 2.0, "constructor": 3.0, "x": "text", "deep": {"a": 1}}
    (home.root / "told.json").write_text(json.dumps(told)[:-1] + ', "not": NaN, "far": -Infinity}')
    says = 'cp told.json "$SCHEDULER_RESULT"; until [ -e go ]; do sleep 0.1; done'
    home.write("jobs.csv", "<b>lr</b>", ["<i>0.1</i>"], ["<i>0.2</i>"])
    home.call("run", "jobs.csv", "-j", "1", "-d", "--", "sh", "-c", says, "{<b>lr</b>}", code=0)
    page = Page(home, "r1")
    try:
        with reading(chromium, page) as opened:
            opened.until(f"[...document.querySelectorAll('#table th')].some(th => th.innerText.includes({name!r}))")
            assert opened.texts("td[data-column='parameter.<b>lr</b>']") == ["<i>0.1</i>"]
            opened.resize(2000, 900)  # where all columns have room
            opened.until("document.querySelector(\"td[data-column='best.__proto__']\")?.innerText === '2'")
            opens(opened, 0)
            opened.until("!document.querySelector('#metrics').hidden")
            assert name in opened.texts("#metric")[0]
            assert opened.tells("window.hacked") is None
            assert opened.tells("document.querySelectorAll('main img, main table b, main i b').length") == 0
            (home.root / "go").touch()
    finally:
        assert page.close() == ""
        home.end()


def test_page_of_an_ended_run_shows_its_ended_tasks(chromium: Browser, tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.commands("true", "false")
    home.call("run", "jobs.csv", code=1)
    page = Page(home, "r1")
    try:
        chromium.open(page.address)
        chromium.until("document.querySelectorAll('#table tr.row').length === 2")
        assert chromium.texts("#groups [aria-pressed=true]") == ["ended 2"]
        assert chromium.texts("#groups [data-group=failed]") == ["failed 1"]
        assert chromium.news()[0] == []
    finally:
        assert page.close() == ""
        home.end()


def test_best_task_is_found_on_the_page_by_sorting_and_by_words(chromium: Browser, tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.write("jobs.csv", "lr,bs", *[[lr, bs] for lr in (0.1, 0.2, 0.3) for bs in (16, 32)])
    says = 'for n in 1 2 3; do echo "epoch $n/3 loss {lr}"$n"{bs}"; done'
    home.call("run", "jobs.csv", "--", "sh", "-c", says, code=0)
    page = Page(home, "r1")
    try:
        chromium.open(page.address)
        chromium.until("document.querySelector('#link').innerText === 'not running'")
        choose(chromium, "all", "document.querySelectorAll('#table tbody tr').length === 6")
        chromium.click("[data-sort='best.loss']")
        chromium.until("document.querySelector('th[aria-sort=ascending]')?.dataset.column === 'best.loss'")
        chromium.until("document.querySelector('#table td').innerText.trim() === '0'")
        chromium.until("document.querySelector('#answer').innerText.startsWith('The lowest loss is 0.1116, at step 1')")
        chromium.click("[data-sort='parameter.lr']")
        chromium.click("[data-sort='parameter.lr']")
        chromium.until("document.querySelector(\"td[data-column='parameter.lr']\").innerText === '0.3'")
        chromium.find("#find").send_keys("lr=0.2 bs=32")
        chromium.until("document.querySelectorAll('#table tbody tr').length === 1")
        assert ids(chromium) == ["3"]
        chromium.click("#best tbody button")
        chromium.until("document.querySelector('tr.open .detail-head strong')?.innerText.startsWith('task 0 ')")
        chromium.until("document.querySelectorAll('tr.open .uplot').length === 2")
        assert chromium.faults() == []
        assert chromium.news()[0] == []
    finally:
        assert page.close() == ""
        home.end()
