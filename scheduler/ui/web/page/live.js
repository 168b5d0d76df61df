"use strict";
// The live page: requests the status, shows it, and sends requests for changes.

// The token comes in the fragment, which a browser never sends, and goes out in a header, which another page cannot set.
const KEY = "scheduler-token";
const given = location.hash.match(/token=([\w-]+)/);
if (given) {
  sessionStorage.setItem(KEY, given[1]);
  history.replaceState(null, "", location.pathname + location.search);
}
addEventListener("hashchange", () => { if (/token=/.test(location.hash)) location.reload(); });
const state = {
  run: new URLSearchParams(location.search).get("run") || document.documentElement.dataset.start,
  version: "", facts: null, at: 0, group: "running", sort: "", down: false, page: 0, listed: null,
  log: null, charts: null, again: 0,
};

class Refusal extends Error { constructor(status, says) { super(says); this.status = status; } }
async function call(path, said, signal) {
  const how = { signal, headers: { Authorization: "Bearer " + (sessionStorage.getItem(KEY) || "") }, cache: "no-store", credentials: "omit" };
  if (said) Object.assign(how, { method: "POST", body: JSON.stringify(said), headers: { ...how.headers, "Content-Type": "application/json" } });
  const answer = await fetch(path, how), facts = await answer.json();
  if (!answer.ok) throw new Refusal(answer.status, facts.error || answer.statusText);
  return facts;
}
const query = said => "?" + new URLSearchParams(said);
const pause = seconds => new Promise(done => setTimeout(done, seconds * 1000));
function problem(text) { if ($("problem").textContent !== text) $("problem").textContent = text; $("problem").hidden = !text; }
function link(kind, text) { if ($("link").textContent !== text) $("link").textContent = text; $("link").className = kind; }
const put = (element, text) => { if (element.textContent !== text) element.textContent = text; };

// ---- status ----

let waiting = new AbortController();
async function watch() {
  if (!sessionStorage.getItem(KEY)) return locked();
  for (;;) {
    const run = state.run; waiting = new AbortController();
    try {
      const facts = await call("/api/live" + query({ run, seen: state.version }), undefined, waiting.signal);
      if (run !== state.run) continue;
      link("live", facts.kind === "run" && !facts.goes_on ? "not running" : "live");
      problem(facts.stands && !facts.stands.includes("is over") && !facts.stands.includes("has ended") ? facts.stands : "");
      const changed = facts.version !== state.version;
      Object.assign(state, { version: facts.version, facts, at: performance.now() });
      show(); if (changed) list();
    } catch (error) {
      if (error.status === 401) return locked();
      if (run !== state.run) continue;
      link("lost", error.status ? "refused" : "no answer, retrying");
      problem(error.status ? error.message : "The server of this page does not answer: it was stopped, or the connection is broken. The run continues.");
      await pause(2);
    }
  }
}
function locked() {
  link("lost", "not allowed");
  problem("The token is missing: open the address that scheduler top --web printed, with the part after the #.");
}
const since = () => (performance.now() - state.at) / 1000;

function show() {
  const f = state.facts; if (!f) return;
  const isRun = f.kind === "run", name = isRun ? `run ${f.run}${f.name ? " " + f.name : ""}` : f.hostname;
  put($("title"), name); document.title = (isRun ? `${f.over}/${f.tasks} ` : "") + name;
  for (const id of ["progress", "tasks", "history"]) $(id).hidden = !isRun;
  $("machine").hidden = isRun;
  choices(f); devices(f);
  if (isRun) { progress(f); groups(f); if (state.group === "running") running(f); } else machine(f);
  runs(f);
}
function choices(f) {
  const wanted = [["all", "the whole machine"], ...f.runs.map(r => [String(r.number), `run ${r.number} ${r.name || r.file}`])];
  if (!wanted.some(([value]) => value === state.run)) wanted.push([state.run, "run " + state.run]);
  const now = JSON.stringify(wanted); if ($("run").dataset.now === now) return;
  $("run").dataset.now = now;
  $("run").replaceChildren(...wanted.map(([value, text]) => option(value, text.length > 48 ? text.slice(0, 47) + "…" : text)));
  $("run").value = state.run;
}
const BAD = ["failed", "oom", "timeout", "refused"];
const STATE_WORDS = { oom: "out of memory", timeout: "timed out" };
function progress(f) {
  const tick = f.goes_on ? since() : 0;
  put($("about"), `${f.what || "commands"} on ${f.host}` + (f.began ? `, for ${time(f.seconds + (f.living.length ? tick : 0))}` : "") + (f.draining ? ", starts nothing new" : ""));
  const counted = Object.entries(f.states).map(([s, n]) => [s, n, STATE_WORDS[s] || s]);
  if (f.retried) counted.push(["again", f.retried, "retried"]);
  if (f.ooms) counted.push(["oom", f.ooms, f.ooms === 1 ? "OOM" : "OOMs"]);
  const now = JSON.stringify(counted);
  if ($("states").dataset.now !== now) {
    $("states").dataset.now = now;
    $("states").replaceChildren(...counted.map(([s, n, word]) => {
      const one = el("span"), b = el("b", whole(n)); b.style.color = `var(--${s}, inherit)`; one.append(b, " " + word); return one;
    }));
  }
  const bad = BAD.reduce((sum, s) => sum + (f.states[s] || 0), 0), all = f.tasks || 1;
  $("done").style.width = 100 * (f.over - bad) / all + "%"; $("bad").style.width = 100 * bad / all + "%";
  $("track").setAttribute("aria-valuemax", f.tasks); $("track").setAttribute("aria-valuenow", f.over);
  put($("how-far"), `${whole(f.over)} of ${many(f.tasks, "task")}, ${Math.floor(100 * f.over / all)}%${f.goes_on ? ahead(f, tick) : ""}`);
}
// Rounded to the precision of the forecast, as in the terminal's view.
const ROUGH = [[60, 5], [600, 30], [3600, 60], [21600, 300], [86400, 1800]];
function roughly(s) {
  const step = (ROUGH.find(([below]) => s < below) || [0, 3600])[1];
  return time(Math.max(step, Math.round(s / step) * step)).replace(/^(\d+m)00s$/, "$1").replace(/^(\d\dm)\d\ds$/, "$1");
}
function ahead(f, tick) {
  if (!f.end) return f.unknown ? `, time left ${f.unknown}` : "";
  const [likely, early, late] = ["likely", "early", "late"].map(w => roughly(Math.max(0, f.end[w] - f.now - tick)));
  return `, about ${likely} left` + (early === late && late === likely ? "" : ` (${early} to ${late})`);
}

const PARTS = ["ours", "reserved", "others", "buffer"];
function devices(f) {
  const box = $("devices");
  f.bars.forEach((bar, i) => {
    let row = box.children[i];
    if (!row) {
      row = el("div", undefined, "device-row"); const track = el("div", undefined, "track device"); track.setAttribute("role", "img");
      track.append(...PARTS.map(p => el("span", undefined, "slice " + p))); row.append(el("span", undefined, "name"), track, el("span", undefined, "numbers")); box.append(row);
    }
    const [name, track, numbers] = row.children;
    PARTS.forEach((p, k) => { track.children[k].style.width = bar.total ? 100 * bar[p] / bar.total + "%" : "0"; });
    const held = `${size(bar.ours + bar.others)} of ${size(bar.total)} used`, load = bar.load == null ? "" : bar.capacity === 1 ? `, ${Math.round(100 * bar.load)}% busy` : `, load ${bar.load.toFixed(1)} of ${bar.capacity.toFixed(0)}`;
    put(name, bar.label);
    put(numbers, bar.closed ? "drained: " + bar.closed : `${held}, ${size(bar.reserved)} more reserved${load}${bar.celsius == null ? "" : `, ${bar.celsius}°C`}, ${many(bar.tasks, "task")}`);
    track.setAttribute("aria-label", `${bar.label}: ` + PARTS.filter(p => p in f.legend).map(p => `${size(bar[p])} ${f.legend[p]}`).join(", ") + `, ${size(bar.free)} free`);
    track.title = track.getAttribute("aria-label");
  });
  while (box.children.length > f.bars.length) box.lastChild.remove();
  if (!f.bars.length) box.replaceChildren();
  const now = JSON.stringify(f.legend); if ($("legend").dataset.now === now) return;
  $("legend").dataset.now = now;
  legendOf($("legend"), [...PARTS.filter(p => p in f.legend).map(p => [f.legend[p], `var(--${p})`]), ["free", "var(--panel)"]]);
}

// ---- tables: rows stay the same elements while they are shown, so that the keyboard keeps its place ----

function fill(table, columns, rows, key, sort) {
  const names = JSON.stringify([columns.map(c => c.label), sort && [sort.by, sort.down]]);
  if (table.dataset.columns !== names) head(table, columns, sort, names);
  const body = table.tBodies[0], old = new Map([...body.rows].map(tr => [tr.dataset.key, tr])), made = [];
  rows.forEach((row, i) => {
    const id = String(key(row, i)); let tr = old.get(id); old.delete(id);
    if (!tr) { tr = el("tr"); tr.dataset.key = id; tr.append(...columns.map(c => { const td = el("td", undefined, [c.num ? "n" : "", c.cls || ""].join(" ").trim()); if (c.short) td.dataset.short = c.short; return td; })); }
    columns.forEach((c, k) => c.draw(tr.cells[k], row));
    made.push(tr);
  });
  for (const tr of old.values()) tr.remove();
  made.forEach((tr, i) => { if (body.rows[i] !== tr) body.insertBefore(tr, body.rows[i] || null); });
  if (!made.length) { const tr = el("tr"), td = el("td", "none"); td.colSpan = columns.length; tr.append(td); tr.dataset.key = "-"; body.replaceChildren(tr); }
}
function head(table, columns, sort, names) {
  const focused = table.contains(document.activeElement) ? document.activeElement.dataset.sort : null;
  table.dataset.columns = names;
  const tr = el("tr"), thead = el("thead");
  for (const c of columns) {
    const th = el("th", undefined, c.num ? "n" : ""); th.scope = "col";
    if (sort && c.sort) {
      const on = sort.by === c.sort, b = el("button", c.label + (on ? (sort.down ? " ↓" : " ↑") : "")); b.type = "button"; b.dataset.sort = c.sort;
      b.addEventListener("click", () => sort.set(c.sort)); th.append(b); th.setAttribute("aria-sort", on ? (sort.down ? "descending" : "ascending") : "none");
    } else th.append(c.label);
    tr.append(th);
  }
  thead.append(tr); table.replaceChildren(thead, el("tbody"));
  if (focused) table.querySelector(`[data-sort="${focused}"]`)?.focus();
}
const words = (label, of, more = {}) => ({ label, draw: (td, row) => put(td, of(row)), ...more });
const numbers = (label, of, more = {}) => words(label, of, { num: true, ...more });

function memoryCell(td, peak, reserved) {
  const text = reserved == null ? "" : `${size(peak) || "–"} of ${size(reserved)}`;
  if (td.dataset.now === text) return;
  td.dataset.now = text; td.replaceChildren(text); if (!reserved) return;
  const box = el("span", undefined, "memory"), i = el("i", undefined, peak > reserved ? "tight" : ""); i.style.width = Math.min(100, 100 * (peak || 0) / reserved) + "%"; box.append(i); td.append(box);
}
const ALIVE = ["running", "probing"], WAITS = ["waiting", "held", "interrupted"], AGAIN = [...BAD, "cancelled"];
function does(td, id, name, state_, tried) {
  const wanted = [tried && "Log", (ALIVE.includes(state_) || WAITS.includes(state_)) && "Cancel", AGAIN.includes(state_) && "Retry", (WAITS.includes(state_) || AGAIN.includes(state_)) && "Why"].filter(Boolean), now = wanted.join() + state_;
  if (td.dataset.now === now) return;
  const focused = td.contains(document.activeElement) ? document.activeElement.textContent : null;
  td.dataset.now = now;
  td.replaceChildren(...wanted.map(what => {
    const b = el("button", what); b.type = "button"; b.setAttribute("aria-label", what === "Log" ? `Log of task ${id}` : what === "Why" ? `Why task ${id} is ${state_}` : `${what} task ${id}`);
    b.addEventListener("click", () => what === "Log" ? openLog(id) : what === "Cancel" ? confirmCancel(id, name, state_) : ask(what.toLowerCase(), [id])); return b;
  }));
  if (focused) ([...td.children].find(b => b.textContent === focused) || $("h-tasks")).focus();
}

// The last values of the most important metrics, each with a line of blocks that shows its shape.
const BLOCKS = "▁▂▃▄▅▆▇█";
function blocks(values) {
  const known = values.filter(v => v != null), low = Math.min(...known), span = Math.max(...known) - low;
  return values.slice(-12).map(v => v == null ? "×" : BLOCKS[span ? Math.round((v - low) / span * 7) : 3]).join("");
}
const metric = v => v == null ? "nan" : String(Number(v.toPrecision(4)));
function metricCell(td, found) {
  const said = Object.entries(found || {}).filter(([, values]) => values.length).slice(0, 2), now = JSON.stringify(said); if (td.dataset.now === now) return;
  td.dataset.now = now;
  td.replaceChildren(...said.map(([name, values]) => { const box = el("span", `${name} ${metric(values.at(-1))} `, "metric"), i = el("i", blocks(values)); i.setAttribute("aria-hidden", "true"); box.append(i); return box; }));
}
const METRICS = { label: "metrics", cls: "metrics", draw: (td, t) => metricCell(td, t.metrics), when: t => Object.keys(t.metrics || {}).length };
const shown = (columns, rows) => columns.filter(c => !c.when || rows.some(c.when));

const tick = () => state.facts.goes_on ? since() : 0;
const epochs = one => one.epochs == null ? (one.of_epochs ? `–/${one.of_epochs}` : "") : one.epochs.toFixed(0) + (one.of_epochs ? "/" + one.of_epochs : "");
const RUNNING = [
  numbers("id", t => String(t.task), { sort: "id", value: t => t.task }),
  { label: "name", cls: "wide", sort: "name", value: t => t.name, draw: (td, t) => put(td, (t.asked ? (t.asked === "cancel" ? "cancelling: " : "stopping: ") : "") + (t.probe ? "probe: " : "") + t.name + (t.attempt > 1 ? ` (attempt ${t.attempt})` : "")) },
  words("device", t => t.devices.join(", "), { sort: "device", value: t => t.devices.join(), short: "on" }),
  numbers("time", t => time(t.seconds + tick()), { sort: "time", value: t => t.seconds, short: "for" }),
  numbers("epochs", epochs, { short: "epochs" }),
  METRICS,
  { label: "peak / reserved", cls: "mem", num: true, sort: "peak_bytes", value: t => t.peak, draw: (td, t) => memoryCell(td, t.peak, t.reserved) },
  numbers("left", t => t.left == null ? "" : time(Math.max(0, t.left - tick())), { sort: "left", value: t => t.left ?? Infinity, short: "left" }),
  { label: "actions", cls: "does", draw: (td, t) => does(td, t.task, t.name, t.asked ? "" : "running", true) },
];
function nameCell(td, t) {
  const now = [t.name, t.command, t.reason].join("\n"); if (td.dataset.now === now) return;
  td.dataset.now = now; td.replaceChildren(t.name);
  if (letters(t.command) !== letters(t.name)) { const command = el("span", t.command, "command"); command.title = t.command; td.append(command); }
  if (t.reason) td.append(el("span", t.reason, "reason"));
}
const letters = text => text.replace(/[^\p{L}\p{N}]/gu, "");
const LISTED = [
  numbers("id", t => String(t.id), { sort: "id" }),
  { label: "name", cls: "wide", sort: "name", draw: nameCell },
  { label: "state", cls: "state", sort: "state", draw: (td, t) => { if (td.textContent !== t.state) { td.style.color = `var(--${t.state}, inherit)`; td.textContent = t.state; } } },
  numbers("prio", t => String(t.priority), { sort: "priority", short: "prio" }),
  numbers("batch", t => String(t.batch), { sort: "batch", short: "batch" }),
  METRICS,
  words("device", t => t.device || "", { short: "on" }),
  numbers("attempts", t => t.attempts ? String(t.attempts) : "", { short: "attempts" }),
  numbers("waited", t => time(t.waited_s), { short: "waited" }),
  words("expected", t => t.expected || ""),
  numbers("ran", t => time(t.ran_s), { sort: "ran_s", short: "ran" }),
  { label: "peak / reserved", cls: "mem", num: true, sort: "peak_bytes", draw: (td, t) => memoryCell(td, t.peak_bytes, t.reserved_bytes) },
  { label: "actions", cls: "does", draw: (td, t) => does(td, t.id, t.name, t.state, t.attempts > 0) },
];
function sorting() {
  return { by: state.sort, down: state.down, set: by => { state.down = state.sort === by ? !state.down : false; state.sort = by; state.page = 0; sorts(); again(); } };
}
function sorts() {
  const columns = (state.group === "running" ? RUNNING : LISTED).filter(c => c.sort);
  $("sort").replaceChildren(option("", "default order"), ...columns.flatMap(c => [option(c.sort, c.label + " ↑"), option(c.sort + " down", c.label + " ↓")]));
  $("sort").value = state.sort + (state.sort && state.down ? " down" : "");
}
function again() { if (state.group === "running") running(state.facts); else list(); }

const ROWS = 50;
function running(f) {
  const word = $("find").value.trim().toLowerCase();
  let rows = f.living.filter(t => !word || `${t.task} ${t.name} ${t.devices.join()}`.toLowerCase().includes(word));
  const column = RUNNING.find(c => c.sort === state.sort);
  if (column) rows = [...rows].sort((a, b) => { const x = column.value(a), y = column.value(b); return (x < y ? -1 : x > y ? 1 : a.task - b.task) * (state.down ? -1 : 1); });
  const pages = Math.max(1, Math.ceil(rows.length / ROWS)); state.page = Math.min(state.page, pages - 1);
  fill($("table"), shown(RUNNING, rows), rows.slice(state.page * ROWS, state.page * ROWS + ROWS), t => t.task, sorting());
  pager(rows.length, pages);
}
let listing = false, wanted = false;
async function list() {
  if (!state.facts || state.facts.kind !== "run" || state.group === "running") return;
  if (listing) { wanted = true; return; }
  listing = true;
  const said = { run: state.run, group: state.group, find: $("find").value.trim(), sort: state.sort, down: state.down ? "1" : "", page: state.page };
  try {
    const got = await call("/api/tasks" + query(said));
    if (got.group === state.group && said.run === state.run) { state.page = got.page; fill($("table"), shown(LISTED, got.tasks), got.tasks, t => t.id, sorting()); pager(got.found, got.pages); }
  } catch (error) { put($("said"), error.message); }
  await pause(.4);
  listing = false; if (wanted) { wanted = false; list(); }
}
function pager(found, pages) {
  const first = state.page * ROWS;
  put($("shown"), found ? `${whole(first + 1)}–${whole(Math.min(found, first + ROWS))} of ${whole(found)}` : "no matching tasks");
  $("back").disabled = state.page === 0; $("next").disabled = state.page >= pages - 1;
}
const GROUPS = [["running", ALIVE], ["waiting", WAITS], ["ended", ["succeeded", "skipped", ...AGAIN]], ["failed", AGAIN], ["all", null]];
const GROUP_WORDS = { failed: "to retry" };
function groups(f) {
  const box = $("groups");
  if (!box.children.length) for (const [name] of GROUPS) { const b = el("button"); b.type = "button"; b.dataset.group = name; b.addEventListener("click", () => choose(name)); box.append(b); }
  GROUPS.forEach(([name, states], i) => {
    const n = states ? states.reduce((sum, s) => sum + (f.states[s] || 0), 0) : f.tasks, b = box.children[i];
    put(b, `${GROUP_WORDS[name] || name} ${whole(n)}`); b.setAttribute("aria-pressed", String(state.group === name));
    if (name === "failed") $("retry-all").hidden = !(state.group === "failed" && n);
  });
}
function choose(name) {
  Object.assign(state, { group: name, sort: "", down: false, page: 0 }); sorts(); groups(state.facts); $("table").dataset.columns = ""; again();
}

// ---- requests ----

async function ask(what, tasks) {
  put($("said"), what === "why" ? "asking for the reason …" : `sending ${what} …`);
  try {
    const got = await call("/api/ask", { run: Number(state.run), what, tasks });
    put($("said"), got.lines.join("; ") + (got.applied === "at resume" ? `. Run ${got.run} has no scheduler: recorded, applied at its next start (scheduler resume ${got.run})` : ""));
  } catch (error) { put($("said"), error.message); }
  list();
}
let toCancel = null;
function confirmCancel(id, name, stands) {
  toCancel = id;
  put($("sure-says"), `Cancel task ${id}, ${name}? ` + (ALIVE.includes(stands) ? "It is running: it gets its stop signal, and is killed after its grace time. It does not start again by itself." : "It is waiting, and will never start."));
  $("sure").showModal();
}
$("keep").addEventListener("click", () => $("sure").close());
$("do").addEventListener("click", () => { $("sure").close(); ask("cancel", [toCancel]); });
$("retry-all").addEventListener("click", () => ask("retry", []));

// ---- logs ----

const ESCAPES = /\x1b\[[0-?]*[ -\/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x1b\\|\x07)?|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]/g;
const tidy = text => text.replace(/\r+\n/g, "\n").replace(ESCAPES, "").replace(/[^\n]*\r(?=[^\n])/g, "");
const KEPT = 1 << 19;
function openLog(task) {
  if (state.log?.timer) clearTimeout(state.log.timer);
  const log = state.log = { task, run: state.run, attempt: 0, at: -1, end: -1, raw: "", timer: 0 };
  put($("h-log"), task == null ? `Log of run ${state.run}` : `Log of task ${task}`);
  put($("text"), ""); $("log").hidden = false; $("tries").hidden = true; $("h-log").focus(); $("log").scrollIntoView({ block: "nearest" });
  readLog(log);
}
async function readLog(log) {
  let more = 1;
  try {
    const said = { run: log.run, attempt: log.attempt, at: log.end, ...(log.task == null ? {} : { task: log.task }) };
    const got = await call("/api/log" + query(said)); if (state.log !== log) return;
    if (got.begin !== log.end) log.raw = got.begin > 0 ? "…\n" : "";
    if (got.text || got.begin !== log.end) { log.raw = (log.raw + got.text).slice(-KEPT); draw(log); }
    log.end = got.end; if (got.end < got.size) more = .05;
    tries(log, got);
  } catch (error) { if (state.log !== log) return; put($("text"), error.message); more = 2; }
  log.timer = setTimeout(() => readLog(log), 1000 * (document.hidden ? Math.max(more, 3) : more));
}
function draw() {
  const pre = $("text"), stays = !$("follow").checked; pre.textContent = tidy(state.log.raw) || "no output yet";
  if (!stays) pre.scrollTop = pre.scrollHeight;
}
function tries(log, got) {
  $("tries").hidden = got.attempts.length < 2; const now = got.attempts.join();
  if ($("attempt").dataset.now !== now + log.task) { $("attempt").dataset.now = now + log.task; $("attempt").replaceChildren(...got.attempts.map(n => option(n, n))); }
  if (log.attempt !== got.attempt) { log.attempt = got.attempt; $("attempt").value = got.attempt; }
}
function closeLog() { if (state.log) { clearTimeout(state.log.timer); state.log = null; } $("log").hidden = true; }
$("attempt").addEventListener("change", () => { const log = state.log; log.attempt = Number($("attempt").value); log.end = -1; log.raw = ""; clearTimeout(log.timer); readLog(log); });
$("close-log").addEventListener("click", () => { const task = state.log?.task; closeLog(); ($("table").querySelector(`[data-key="${task}"] button`) || $("h-tasks")).focus(); });
$("run-log").addEventListener("click", () => openLog(null));

// ---- history ----

const colourBy = () => $("colour").value;
async function charts() {
  const run = state.run; clearTimeout(state.again);
  const began = performance.now();
  try {
    const got = await call("/api/report" + query({ run })); if (run !== state.run || $("show-history").getAttribute("aria-expanded") !== "true") return;
    const before = state.charts, made = new Charts(got.runs, colourBy, (_, id) => { $("find").value = String(id); choose("all"); $("h-tasks").focus(); });
    if (before && before.to < before.longest) { made.from = before.from; made.to = before.to; }
    state.charts = made; $("charts").replaceChildren(...made.runs.map(r => made.build(r))); made.draw();
    if (!$("controls").children.length) { const button = (name, act) => { const b = el("button", name); b.type = "button"; b.addEventListener("click", () => act(state.charts)); return b; };
      $("controls").append(button("Zoom in", c => c.scale(.5)), button("Zoom out", c => c.scale(2)), button("Earlier", c => c.move(-.5)), button("Later", c => c.move(.5)), button("Whole run", c => c.all())); }
    if (state.facts.goes_on) state.again = setTimeout(charts, Math.max(5000, 20 * (performance.now() - began)));
  } catch (error) { $("charts").replaceChildren(el("p", error.message)); }
}
function hideCharts() { clearTimeout(state.again); state.charts = null; $("charts").replaceChildren(); $("controls").replaceChildren(); $("colours").hidden = true; $("show-history").setAttribute("aria-expanded", "false"); }
$("show-history").addEventListener("click", () => {
  if (state.charts || $("show-history").getAttribute("aria-expanded") === "true") return hideCharts();
  $("show-history").setAttribute("aria-expanded", "true"); $("colours").hidden = false; $("charts").replaceChildren(el("p", "reading the run's journal …")); charts();
});
$("colour").addEventListener("input", () => state.charts?.redraw());
addEventListener("resize", () => state.charts?.redraw());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => state.charts?.recolour());

// ---- the machine, and the user's runs ----

const held = by => Object.entries(by).filter(([, b]) => b).map(([device, b]) => `${device} ${size(b)}`).join(", ");
const LEASES = [words("user", l => l.user), words("run", l => l.run), numbers("task", l => String(l.task)), words("reserved", l => held(l.reserved)), words("used", l => held(l.used))];
const WAITERS = [words("user", w => w.user), words("run", w => w.run), words("needs", w => (w.gpus ? many(w.gpus, "GPU") + " " : "") + (w.bytes ? size(w.bytes) : "")), words("on", w => w.devices.join(", ")), numbers("waiting for", w => time(w.waited))];
function machine(f) {
  fill($("leases"), LEASES, f.leases, l => `${l.user} ${l.run} ${l.task} ${l.shim}`);
  fill($("waiters"), WAITERS, f.waiting, (w, i) => `${w.user} ${w.run} ${i}`);
  problem(f.gpus_trouble || "");
}
const date = s => s == null ? "" : new Date(s * 1000).toLocaleString("sv").slice(0, 16);
const RUNS = [
  { label: "run", draw: (td, r) => { if (td.firstChild) return; const b = el("button", "run " + r.number); b.type = "button"; b.addEventListener("click", () => turnTo(String(r.number))); td.append(b); } },
  words("list", r => r.trouble || [r.name, r.file].filter(Boolean).join(" "), { cls: "wide" }),
  words("status", r => r.trouble ? "" : r.over ? "ended" : r.alive ? "running" : "no scheduler: can be resumed"),
  words("tasks", r => Object.entries(r.states || {}).map(([s, n]) => `${whole(n)} ${s}`).join(", "), { cls: "wide" }),
  words("accepted", r => date(r.accepted)), words("last event", r => date(r.ended)),
];
function runs(f) { fill($("runs"), RUNS, f.runs, r => r.number); }
function turnTo(run, keep) {
  if (run === state.run) return;
  closeLog(); hideCharts(); put($("said"), ""); $("find").value = "";
  Object.assign(state, { run, version: "", facts: null, group: "running", sort: "", down: false, page: 0 }); $("table").dataset.columns = ""; sorts();
  if (!keep) history.pushState(null, "", query({ run }));
  $("run").value = run; link("", "connecting"); waiting.abort();
}
addEventListener("popstate", () => turnTo(new URLSearchParams(location.search).get("run") || document.documentElement.dataset.start, true));
$("run").addEventListener("change", () => turnTo($("run").value));
$("find").addEventListener("input", () => { state.page = 0; again(); });
$("sort").addEventListener("change", () => { const [by, down] = $("sort").value.split(" "); Object.assign(state, { sort: by, down: !!down, page: 0 }); again(); });
$("back").addEventListener("click", () => { state.page--; again(); });
$("next").addEventListener("click", () => { state.page++; again(); });
addEventListener("keydown", e => { if (e.key === "Escape" && !$("sure").open && state.log) $("close-log").click(); });
setInterval(() => { const f = state.facts; if (f && f.kind === "run" && f.goes_on && !document.hidden) { progress(f); if (state.group === "running") running(f); } }, 1000);
sorts(); watch();
