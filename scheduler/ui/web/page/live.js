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
  version: "", facts: null, at: 0, group: "", picked: false, page: 0, log: null, charts: null, report: 0, parameters: [], metrics: new Map(),
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
      link(facts.kind === "run" && !facts.goes_on ? "still" : "live", facts.kind === "run" && !facts.goes_on ? "not running" : "live");
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
  inOrderOf(isRun && !f.goes_on);
  $("machine").hidden = isRun;
  choices(f); devices(f);
  if (isRun) { progress(f); usualGroup(f); groups(f); } else { $("metrics").hidden = true; machine(f); }
  runs(f);
}
// In a finished run the results matter: they come first, and the present state of the devices comes last.
function inOrderOf(over) {
  const main = $("tasks").parentNode; if (main.dataset.over === String(over)) return;
  main.dataset.over = over; main.insertBefore($("metrics"), over ? $("tasks") : $("history")); main.insertBefore($("now"), over ? $("mine") : main.querySelector("#tasks, #metrics"));
  put($("h-devices"), over ? "Devices now" : "Devices");
}
function choices(f) {
  const wanted = [["all", "the whole machine"], ...f.runs.map(r => [String(r.number), `run ${r.number} ${r.name || r.file}`])];
  if (!wanted.some(([value]) => value === state.run)) wanted.push([state.run, "run " + state.run]);
  const now = JSON.stringify(wanted); if ($("run").dataset.now === now) return;
  $("run").dataset.now = now;
  $("run").replaceChildren(...wanted.map(([value, text]) => option(value, text.length > 48 ? text.slice(0, 47) + "…" : text)));
  $("run").value = state.run;
}
function progress(f) {
  const tick = f.goes_on ? since() : 0;
  put($("about"), `${f.what || "commands"} on ${f.host}` + (f.began ? `, began ${clock(f.began)}` + (f.goes_on ? `, for ${time(f.seconds + (f.living.length ? tick : 0))}` : f.last ? `, ended ${clock(f.last)} after ${time(f.last - f.began)}` : "") : "") + (f.draining ? ", starts nothing new" : ""));
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
  const bad = FAILURES.reduce((sum, s) => sum + (f.states[s] || 0), 0), all = f.tasks || 1;
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

function devices(f) {
  deviceRows($("devices"), f.bars.map(bar => ({ ...bar, says: bar.drained ? "drained: " + bar.drained
    : [`${part(bar.ours + bar.others, bar.total)} used`, bar.reserved ? `${size(bar.reserved)} more reserved` : "", bar.celsius == null ? "" : `${bar.celsius}°C`, bar.tasks ? many(bar.tasks, "task") : ""].filter(Boolean).join(", "), ...loadOf(bar) })), f.legend);
  deviceLegend($("legend"), f.legend);
}
// The load of a device now, with its last minutes while this page was open.
const LOADS = new Map(), LAST = 600;
function loadOf(bar) {
  if (bar.load == null) return {};
  const key = state.run + bar.label, now = performance.now() / 1000, all = (LOADS.get(key) || []).filter(([at]) => at > now - LAST), every = Math.max(1, Math.floor(all.length / 60));
  all.push([now, Math.min(1, bar.load / (bar.capacity || 1))]); LOADS.set(key, all);
  return { load: bar.capacity === 1 ? `${Math.round(100 * bar.load)}% busy` : `${bar.load.toFixed(1)} of ${bar.capacity.toFixed(0)} cores`, loads: all.filter((_, i) => i % every === 0 || i === all.length - 1).map(([, v]) => v), over: `load over the last ${time(now - all[0][0])}` };
}

// ---- the simple tables: rows stay the same elements while they are shown, so that the keyboard keeps its place ----

function fill(table, columns, rows, key) {
  if (!table.tHead) {
    const tr = el("tr"), thead = el("thead");
    for (const c of columns) { const th = el("th", c.label, c.num ? "n" : ""); th.scope = "col"; tr.append(th); }
    table.classList.add("stacks"); thead.append(tr); table.replaceChildren(thead, el("tbody"));
  }
  const body = table.tBodies[0], old = new Map([...body.rows].map(tr => [tr.dataset.key, tr])), made = [];
  rows.forEach((row, i) => {
    const id = String(key(row, i)); let tr = old.get(id); old.delete(id);
    if (!tr) { tr = el("tr"); tr.dataset.key = id; tr.append(...columns.map(c => { const td = el("td", undefined, [c.num ? "n" : "", c.cls || ""].join(" ").trim()); if (!c.plain) td.dataset.label = c.label; return td; })); }
    columns.forEach((c, k) => c.draw(tr.cells[k], row));
    made.push(tr);
  });
  for (const tr of old.values()) tr.remove();
  made.forEach((tr, i) => { if (body.rows[i] !== tr) body.insertBefore(tr, body.rows[i] || null); });
  if (!made.length) { const tr = el("tr"), td = el("td", "none"); td.colSpan = columns.length; tr.append(td); tr.dataset.key = "-"; body.replaceChildren(tr); }
}
const words = (label, of, more = {}) => ({ label, draw: (td, row) => put(td, of(row)), ...more });
const numbers = (label, of, more = {}) => words(label, of, { num: true, ...more });

// ---- the table of tasks ----

const ALIVE = ["running", "probing"], WAITS = ["waiting", "held", "interrupted"], AGAIN = [...FAILURES, "cancelled"], OVER = [...AGAIN, "pruned"];
const stateOf = t => t.live ? (t.live.asked === "cancel" ? "cancelling" : t.live.asked ? "stopping" : t.state) : t.state;
function does(td, id, name, state_) {
  const wanted = [(ALIVE.includes(state_) || WAITS.includes(state_)) && "Cancel", OVER.includes(state_) && "Retry", (WAITS.includes(state_) || OVER.includes(state_)) && "Why"].filter(Boolean), now = wanted.join() + state_;
  if (td.dataset.now === now) return;
  const focused = td.contains(document.activeElement) ? document.activeElement.textContent : null;
  td.dataset.now = now;
  td.replaceChildren(...wanted.map(what => {
    const b = action(what, () => what === "Cancel" ? confirmCancel(id, name, state_) : ask(what.toLowerCase(), [id]), "small");
    b.setAttribute("aria-label", what === "Why" ? `Why task ${id} is ${state_}` : `${what} task ${id}`); return b;
  }));
  if (focused) ([...td.children].find(b => b.textContent === focused) || $("h-tasks")).focus();
}
const tick = () => state.facts?.goes_on ? since() : 0;
const GRID = new Grid($("table"), { key: t => t.id, remember: "scheduler-columns", sorted: () => { state.page = 0; sorts(); list(); }, opened: openTask });
// A column that had something to show once stays, so that columns do not come and go from page to page.
const SEEN = new Set();
const seen = (id, rows, of) => { if (!SEEN.has(id) && rows.some(of)) SEEN.add(id); return SEEN.has(id); };
function columnsOf(rows) {
  const names = state.parameters, group = state.group, living = group === "running", several = (id, of) => seen(id, rows, t => of(t) !== of(rows[0]));
  for (const t of rows) for (const [name, m] of Object.entries(t.metrics)) if (!state.metrics.has(name)) state.metrics.set(name, m.goal);
  const metrics = [...state.metrics], bares = !names.length || several("name", t => bare(t.name, names));
  return [
    { id: "id", label: "id", num: true, fixed: true, first: true, text: t => String(t.id) },
    { id: "name", label: "name", cls: "name", off: !bares, text: t => (t.live?.probe ? "probe: " : "") + (bares && bare(t.name, names) || t.name) + (t.attempts > 1 ? ` (attempt ${t.attempts})` : "") },
    { id: "state", label: "state", cls: "state", draw: (td, t) => stateCell(td, stateOf(t)) },
    ...names.map((name, i) => ({ id: "parameter." + name, out: i > 2 && 10 - i / 100, label: name, num: numeric(rows.map(t => t.settings[i])), off: i > 5, text: t => t.settings[i] })),
    ...metrics.flatMap(([name, goal], i) => [
      { id: "best." + name, out: i && 6, label: "best " + name, num: true, cls: "value", off: i > 1, down: goal === "max", text: t => t.metrics[name]?.best == null ? "" : even(t.metrics[name].best) },
      { phone: false, id: "result." + name, label: name, num: true, off: i > 0, down: goal === "max", title: `last ${name}, with its curve`, draw: (td, t) => curveCell(td, t.metrics[name]?.last, t.metrics[name]?.values) },
    ]),
    { id: "reason", out: 9, phone: true, label: "reason", cls: "reason", sort: false, off: !seen("reason", rows, t => t.reason), draw: reasonCell },
    { id: "epochs", out: 5, label: "epochs", num: true, sort: false, off: !seen("epochs", rows, t => t.epochs != null || t.live?.epochs != null), text: t => t.live?.epochs != null ? epochs(t.live.epochs, t.live.of_epochs) : epochs(t.epochs, t.of_epochs) },
    { id: "ran_s", label: living ? "time" : "ran", num: true, text: t => t.live ? time(t.live.seconds + tick()) : time(t.ran_s) },
    { id: "left", label: "left", num: true, sort: false, off: !living || !seen("left", rows, t => t.live?.left != null), text: t => t.live?.left == null ? "" : time(Math.max(0, t.live.left - tick())) },
    { id: "ended", out: 7, label: "ended", num: true, off: living || group === "waiting", text: t => ALIVE.includes(t.state) ? "" : clock(t.ended) },
    { id: "expected", label: "expected", sort: false, off: group !== "waiting", text: t => t.expected || "" },
    { id: "peak_bytes", label: "peak / reserved", phone: false, out: 8, num: true, cls: "mem", draw: (td, t) => memoryCell(td, t.live?.peak ?? t.peak_bytes, t.live?.reserved ?? t.reserved_bytes) },
    { id: "device", out: 2, label: "device", sort: false, off: !several("device", t => t.device), text: t => t.device || "" },
    { id: "attempts", out: 3, label: "attempts", num: true, sort: false, off: true, text: t => t.attempts ? String(t.attempts) : "" },
    { id: "ooms", out: 4, label: "OOMs", num: true, sort: false, off: !seen("ooms", rows, t => t.ooms), text: t => t.ooms ? String(t.ooms) : "" },
    { id: "priority", out: 4, label: "prio", num: true, off: !several("priority", t => t.priority), text: t => String(t.priority) },
    { id: "batch", label: "batch", num: true, off: true, text: t => String(t.batch) },
    { id: "waited_s", label: "waited", num: true, sort: false, off: true, text: t => time(t.waited_s) },
    { id: "exit_code", out: 7.5, label: "exit", num: true, sort: false, off: group !== "failed", text: t => t.exit_code == null ? "" : String(t.exit_code) },
    { id: "command", out: 1, label: "command", cls: "long code", sort: false, off: true, text: t => t.command },
    { id: "actions", label: "actions", cls: "does", sort: false, off: !seen("actions", rows, t => !["succeeded", "skipped"].includes(t.state)), draw: (td, t) => does(td, t.id, t.name, stateOf(t)) },
  ];
}
function sorts() {
  const columns = GRID.columns.filter(c => c.sort !== false && GRID.has(c));
  $("sort").replaceChildren(option("", "usual order"), ...columns.flatMap(c => [option(c.id, c.label + " ↑"), option(c.id + "\n", c.label + " ↓")]));
  $("sort").value = GRID.by + (GRID.by && GRID.down ? "\n" : "");
}
const ROWS = 50;
let listing = false, wanted = false;
async function list() {
  if (!state.facts || state.facts.kind !== "run") return;
  if (listing) { wanted = true; return; }
  listing = true;
  const said = { run: state.run, group: state.group, find: $("find").value.trim(), sort: GRID.by, down: GRID.down ? "1" : "", page: state.page };
  try {
    const got = await call("/api/tasks" + query(said));
    if (got.group === state.group && said.run === state.run) { state.page = got.page; state.parameters = got.parameters; rows(got.tasks); pager(got.found, got.pages); }
  } catch (error) { put($("said"), error.message); }
  await pause(.4);
  listing = false; if (wanted) { wanted = false; list(); }
}
function rows(found) {
  const living = new Map(state.facts.living.map(t => [t.task, t]));
  for (const t of found) t.live = living.get(t.id);
  const before = GRID.columns.length; GRID.set(columnsOf(found), found); if (GRID.columns.length !== before) sorts();
  for (const t of found) if (GRID.open.has(String(t.id))) freshen(t);
}
function pager(found, pages) {
  const first = state.page * ROWS;
  put($("shown"), found ? `${whole(first + 1)}–${whole(Math.min(found, first + ROWS))} of ${whole(found)}` : "no matching tasks");
  $("back").disabled = state.page === 0; $("next").disabled = state.page >= pages - 1; $("back").hidden = $("next").hidden = pages < 2;
}
const GROUPS = [["running", ALIVE], ["waiting", WAITS], ["ended", ["succeeded", "skipped", "pruned", ...AGAIN]], ["failed", AGAIN], ["all", null]];
// Until the user picks a group, it is the first one that has tasks.
function usualGroup(f) {
  const has = name => GROUPS.find(([one]) => one === name)[1].some(s => f.states[s]);
  const group = has("running") ? "running" : !f.goes_on && has("ended") ? "ended" : has("waiting") ? "waiting" : has("ended") ? "ended" : "all";
  if (state.picked || group === state.group || (state.group === "running" && f.goes_on)) return;
  const first = !state.group; Object.assign(state, { group, page: 0 }); if (!first) { sorts(); list(); }
}
const nameOf = (name, f) => name === "failed" && f.states.cancelled ? "failed, cancelled" : name;
function groups(f) {
  const box = $("groups");
  if (!box.children.length) for (const [name] of GROUPS) { const b = el("button"); b.type = "button"; b.dataset.group = name; b.addEventListener("click", () => choose(name)); box.append(b); }
  GROUPS.forEach(([name, states], i) => {
    const n = states ? states.reduce((sum, s) => sum + (f.states[s] || 0), 0) : f.tasks, b = box.children[i];
    put(b, `${nameOf(name, f)} ${whole(n)}`); b.setAttribute("aria-pressed", String(state.group === name));
    if (name === "failed") $("retry-all").hidden = !(state.group === "failed" && n);
  });
}
function choose(name) {
  Object.assign(state, { group: name, picked: true, page: 0 }); Object.assign(GRID, { by: "", down: false }); GRID.closeAll(); sorts(); groups(state.facts); list();
}

// ---- a task that is open ----

const OPEN = new Map();
function openTask(t, tr) {
  const box = el("div"), one = { box, shown: "", log: null }; OPEN.set(t.id, one); box.append(el("p", "reading …"));
  tr.addEventListener("closed", () => { OPEN.delete(t.id); one.log?.stop(); });
  freshen(t); return box;
}
// Show the parts that have changed; the log is updated separately.
async function freshen(t) {
  const one = OPEN.get(t.id), now = JSON.stringify([t.state, t.attempts, t.metrics, t.peak_bytes]); if (!one || one.shown === now) return;
  one.shown = now;
  try {
    const d = await call("/api/task" + query({ run: state.run, task: t.id }));
    one.log ??= t.attempts ? new LogView(state.run, t.id, `Log of task ${t.id}`) : null;
    const says = [["state", STATE_WORDS[t.state] || t.state], ["epochs", epochs(t.live?.epochs ?? t.epochs, t.live?.of_epochs ?? t.of_epochs)], ["waited", time(t.waited_s)], ["began", clock(t.started)], ["ended", ALIVE.includes(t.state) ? "" : clock(t.ended)], ["expected", t.expected], ["priority", String(t.priority)]];
    const detail = taskDetail({ ...d, name: t.name, state: stateOf(t), brief: [t.exit_code ? `exit ${t.exit_code}` : "", t.live ? time(t.live.seconds) : t.ran_s == null ? "" : `after ${time(t.ran_s)}`, t.device], command: t.command, reason: t.reason, log: null, parameters: state.parameters.map((name, i) => [name, d.settings[i]]), facts: says }, one.log ? [card("Log", one.log.box, "wide log")] : []);
    const keep = one.box.contains(document.activeElement) && one.log?.box.contains(document.activeElement) ? document.activeElement : null;
    const choice = [...one.box.querySelectorAll(".card > label select")].map(s => s.value); one.box.replaceChildren(detail);
    [...one.box.querySelectorAll(".card > label select")].forEach((s, i) => { if (choice[i] && s.options[choice[i]]) s.value = choice[i]; });
    if (one.log) one.log.follows.hidden = !ALIVE.includes(t.state);
    one.log?.draw(); keep?.focus();
  } catch (error) { one.shown = ""; one.box.replaceChildren(el("p", error.message)); }
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

const KEPT = 1 << 19;
// The log of a task (or of the run, if there is none), as it grows.
class LogView {
  constructor(run, task, label) {
    Object.assign(this, { run, task, attempt: 0, end: -1, raw: "", timer: 0, ended: false });
    this.pre = el("pre"); this.pre.tabIndex = 0; this.pre.setAttribute("role", "region"); this.pre.setAttribute("aria-label", label);
    this.select = el("select"); this.tries = el("label", "Attempt "); this.tries.append(this.select); this.tries.hidden = true;
    this.follow = el("input"); this.follow.type = "checkbox"; this.follow.checked = true;
    const follows = this.follows = el("label"), strip = el("div", undefined, "strip"); follows.append(this.follow, " Follow"); strip.append(this.tries, follows);
    this.box = el("div"); this.box.append(strip, this.pre);
    this.select.addEventListener("change", () => { this.attempt = Number(this.select.value); this.end = -1; this.raw = ""; clearTimeout(this.timer); this.read(); });
    this.read();
  }
  async read() {
    let more = 1;
    try {
      const got = await call("/api/log" + query({ run: this.run, attempt: this.attempt, at: this.end, ...(this.task == null ? {} : { task: this.task }) })); if (this.ended) return;
      if (got.begin !== this.end) this.raw = got.begin > 0 ? "…\n" : "";
      if (got.text || got.begin !== this.end) { this.raw = (this.raw + got.text).slice(-KEPT); this.draw(); }
      this.end = got.end; if (got.end < got.size) more = .05;
      this.tries.hidden = got.attempts.length < 2; fillSelect(this.select, got.attempts.map(n => [n, n]));
      if (this.attempt !== got.attempt) { this.attempt = got.attempt; this.select.value = got.attempt; }
    } catch (error) { if (this.ended) return; put(this.pre, error.message); more = 2; }
    this.timer = setTimeout(() => this.read(), 1000 * (document.hidden ? Math.max(more, 3) : more));
  }
  draw() { this.pre.textContent = tidy(this.raw) || "no output yet"; if (this.follow.checked) requestAnimationFrame(() => { this.pre.scrollTop = this.pre.scrollHeight; }); }
  stop() { this.ended = true; clearTimeout(this.timer); }
}
function openLog() {
  closeLog(); state.log = new LogView(state.run, null, `Log of run ${state.run}`);
  put($("h-log"), `Log of run ${state.run}`); $("run-text").replaceChildren(state.log.box); $("log").hidden = false; $("h-log").focus(); $("log").scrollIntoView({ block: "nearest" });
}
function closeLog() { state.log?.stop(); state.log = null; $("log").hidden = true; }
$("close-log").addEventListener("click", () => { closeLog(); $("run-log").focus(); });
$("run-log").addEventListener("click", openLog);

// ---- metrics and history, from the data of a report ----

const colourBy = () => $("colour").value;
const chosen = (_, id) => { $("find").value = "#" + id; choose("all"); whenListed(id, () => { GRID.toggle(id, true); GRID.focus(id); }); $("h-tasks").scrollIntoView({ block: "start" }); };
function whenListed(id, act, goes = 40) { if (GRID.rows.length === 1 && GRID.rows[0].id === id || !goes) act(); else setTimeout(() => whenListed(id, act, goes - 1), 100); }
const METRICS = new Metrics([], chosen);
// The best task is also shown at the top, where it is a link to the charts.
METRICS.told = best => {
  const box = $("best-so-far"); box.hidden = !best || !state.facts?.goes_on; if (box.hidden) return;  // in a finished run the metrics are directly below
  const text = `${METRICS.low ? "lowest" : "highest"} ${METRICS.metric.name} ${short(best.best)}`, now = text + best.task; if (box.dataset.now === now) return;
  const b = action("", () => { $("h-metrics").scrollIntoView({ block: "start" }); $("h-metrics").focus({ preventScroll: true }); }, "plain"); b.append(el("b", text), ` task ${best.task}: ${best.name}`);
  box.dataset.now = now; box.replaceChildren(b);
};
const showsHistory = () => $("show-history").getAttribute("aria-expanded") === "true";
// Read the data of the charts if there are metrics or the history is shown; again while the run goes on.
async function report() {
  const run = state.run; clearTimeout(state.report);
  if (!state.facts || state.facts.kind !== "run" || !(showsHistory() || state.metrics.size)) { state.report = setTimeout(report, 1000); return; }
  const began = performance.now();
  try {
    const got = await call("/api/report" + query({ run })); if (run !== state.run) return;
    METRICS.set(got.runs); METRICS.draw();
    if (showsHistory()) history_(got.runs);
  } catch (error) { if (showsHistory()) $("charts").replaceChildren(el("p", error.message)); }
  if (state.facts?.goes_on) state.report = setTimeout(report, Math.max(document.hidden ? 60000 : 5000, 20 * (performance.now() - began)));
}
function history_(found) {
  const before = state.charts, made = new Charts(found, colourBy, chosen);
  if (before && before.to < before.longest) { made.from = before.from; made.to = before.to; }
  state.charts = made; $("charts").replaceChildren(...made.runs.map(r => made.build(r))); made.draw();
  if (!$("controls").children.length) $("controls").append(...[["Zoom in", c => c.scale(.5)], ["Zoom out", c => c.scale(2)], ["Earlier", c => c.move(-.5)], ["Later", c => c.move(.5)], ["Whole run", c => c.all()]].map(([name, act]) => action(name, () => act(state.charts))));
}
function hideCharts() { state.charts = null; $("charts").replaceChildren(); $("controls").replaceChildren(); $("colours").hidden = true; $("show-history").setAttribute("aria-expanded", "false"); }
$("show-history").addEventListener("click", () => {
  if (showsHistory()) return hideCharts();
  $("show-history").setAttribute("aria-expanded", "true"); $("colours").hidden = false; $("charts").replaceChildren(el("p", "reading the run's journal …")); report();
});
$("colour").addEventListener("input", () => state.charts?.redraw());
let resized = 0; addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(() => { state.charts?.redraw(); if (!$("metrics").hidden) METRICS.draw(); }, 60); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { state.charts?.recolour(); recolourPlots(); METRICS.draw(); });

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
  { label: "run", plain: true, draw: (td, r) => { if (td.firstChild) return; const b = el("button", "run " + r.number); b.type = "button"; b.addEventListener("click", () => turnTo(String(r.number))); td.append(b); } },
  words("list", r => r.trouble || [r.name, r.file].filter(Boolean).join(" "), { cls: "wide", plain: true }),
  words("status", r => r.trouble ? "" : r.over ? "ended" : r.alive ? "running" : "no scheduler: can be resumed", { plain: true }),
  words("tasks", r => Object.entries(r.states || {}).map(([s, n]) => `${whole(n)} ${s}`).join(", "), { cls: "wide", plain: true }),
  words("accepted", r => date(r.accepted)), words("last event", r => date(r.ended)),
];
function runs(f) { fill($("runs"), RUNS, f.runs, r => r.number); }
function turnTo(run, keep) {
  if (run === state.run) return;
  closeLog(); hideCharts(); GRID.closeAll(); put($("said"), ""); $("find").value = ""; $("metrics").hidden = $("best-so-far").hidden = true; clearTimeout(state.report);
  Object.assign(state, { run, version: "", facts: null, group: "", picked: false, page: 0, parameters: [], metrics: new Map() }); Object.assign(GRID, { by: "", down: false }); SEEN.clear(); sorts();
  if (!keep) history.pushState(null, "", query({ run }));
  $("run").value = run; link("", "connecting"); waiting.abort(); report();
}
addEventListener("popstate", () => turnTo(new URLSearchParams(location.search).get("run") || document.documentElement.dataset.start, true));
$("run").addEventListener("change", () => turnTo($("run").value));
$("find").addEventListener("input", () => { state.page = 0; list(); });
$("sort").addEventListener("change", () => { const [by, down] = $("sort").value.split("\n"); Object.assign(GRID, { by, down: down !== undefined }); state.page = 0; list(); });
$("back").addEventListener("click", () => { state.page--; list(); });
$("next").addEventListener("click", () => { state.page++; list(); });
addEventListener("keydown", e => {
  if (e.key === "Escape" && !$("sure").open && state.log) $("close-log").click();
  if (e.key === "/" && !/INPUT|SELECT|TEXTAREA/.test(document.activeElement.tagName)) { e.preventDefault(); $("find").focus(); }
});
setInterval(() => { const f = state.facts; if (f && f.kind === "run" && f.goes_on && !document.hidden) { progress(f); if (GRID.rows.some(t => t.live)) GRID.draw(); } }, 1000);
colours(); GRID.chooser($("columns")); sorts(); watch(); report();
