"use strict";
// A report: its data are in the page, and nothing is requested.
const DATA = JSON.parse($("data").textContent), RUNS = DATA.runs;
const CHARTS = new Charts(RUNS, () => $("colour").value, show);
const METRICS = new Metrics(RUNS, show);
const title = RUNS.map(called).join(" and ");
document.title = title; $("title").textContent = title;
for (const r of RUNS) $("about").append(el("p", `${RUNS.length > 1 ? called(r) + ": " : ""}${r.file || "no file"} on ${r.host}, began ${stamp(r.begin)}${r.alive ? ", still running" : ", ended " + stamp(r.begin + r.seconds)}`));

// [name, text, compared value, 1 if more is better, -1 if less is, what it means]; an empty text makes no tile.
const NUMBERS = [
  ["Tasks", r => Object.entries(r.states).map(([s, n]) => whole(n) + " " + (STATE_WORDS[s] || s)).join(", "), null, 0, "Tasks by state"],
  ["Makespan", r => time(r.summary.makespan_s), r => r.summary.makespan_s, -1, "From the first start to the last end"],
  ["Task time", r => time(r.summary.tasks_ran_s), r => r.summary.tasks_ran_s, 0, "The running times of all attempts, added"],
  ["Tasks at once", r => r.summary.at_once.toFixed(1), r => r.summary.at_once, 0, "On average: the task time, divided by the makespan"],
  ["Time in probes", r => r.summary.profiling_share ? share(r.summary.profiling_share) : "", null, 0, "The part of the task times that only measured memory"],
  ["Out of memory", r => r.summary.ooms ? whole(r.summary.ooms) : "", null, 0, "Attempts that ended for lack of memory"],
  ["Retries", r => r.summary.retries ? whole(r.summary.retries) : "", null, 0, "Attempts beyond the first one of each task"],
  ["Memory use", r => share(r.summary.memory_use), r => r.summary.memory_use, 1, "The part of the devices' memory that tasks used, over the makespan"],
  ["GPU energy", r => r.summary.energy_wh ? r.summary.energy_wh.toPrecision(3) + " Wh" : "", r => r.summary.energy_wh, -1, "The energy of all GPUs of the run, idle time between tasks included"],
  ["Reserved", r => r.summary.reserved_for_peaks ? r.summary.reserved_for_peaks.toFixed(2) + " × peak" : "–", r => r.summary.reserved_for_peaks, -1, "The reservations at the end, divided by the peaks of the tasks"],
  ["Slowed by others", r => r.summary.stretched ? many(r.summary.stretched, "task") : "", null, 0, "Tasks whose epochs took at least 1.5 times as long beside other tasks"],
];
function compared(r, of, better) {
  const a = of(RUNS[0]), b = of(r); if (!a || !b) return el("td", "–", "n");
  const ratio = b / a, same = Math.abs(ratio - 1) < .005;
  return el("td", same ? "the same" : ratio.toFixed(2) + " times", "n " + (same || !better ? "" : (ratio > 1) === (better > 0) ? "better" : "worse"));
}
function numbers() {
  $("beside").hidden = RUNS.length < 2; $("figures").hidden = RUNS.length > 1;
  if (RUNS.length < 2) {
    const list = el("dl", undefined, "tiles");
    for (const [name, says, , , means] of NUMBERS) { const text = says(RUNS[0]), box = el("div"); box.title = means; box.append(el("dt", name), el("dd", text)); if (text) list.append(box); }
    $("figures").append(list); return;
  }
  const head = el("tr"), thead = el("thead"), body = el("tbody"); head.append(el("td", "")); thead.append(head);
  const column = text => { const h = el("th", text, "n"); h.scope = "col"; head.append(h); };
  RUNS.forEach(r => column(called(r))); RUNS.slice(1).forEach(r => column(`${called(r)} / ${called(RUNS[0])}`));
  for (const [name, says, of, better, means] of NUMBERS) {
    const tr = el("tr"), th = el("th", name); th.scope = "row"; th.title = means; tr.append(th, ...RUNS.map(r => el("td", says(r) || "0", "n")), ...RUNS.slice(1).map(r => of ? compared(r, of, better) : el("td", "")));
    body.append(tr);
  }
  $("numbers").append(thead, body);
}

// The devices of one run: its highest use, and its load over the whole run.
function devicesOf(r) {
  const known = r.devices.filter(d => d.capacity); $("device-section").hidden = RUNS.length > 1 || !known.length;
  if ($("device-section").hidden) return;
  const legend = { ours: "highest use by this run", reserved: "highest reservation beyond it" };
  deviceRows($("devices"), known.map(d => {
    const used = Math.min(d.capacity, d.used), loads = d.load.map(p => p[1]), every = Math.max(1, Math.floor(loads.length / 60)), mean = loads.reduce((a, b) => a + b, 0) / (loads.length || 1), hot = d.load.reduce((most, p) => Math.max(most, p[3] ?? 0), 0);
    return { label: d.label, node: d.node, total: d.capacity, ours: used, reserved: Math.max(0, Math.min(d.capacity, d.kept) - used), says: `${part(d.used, d.capacity)} used, ${size(d.capacity ? Math.min(d.capacity, d.kept) : d.kept)} reserved${hot ? `, ${hot}°C` : ""}${d.bars.length ? `, ${many(d.bars.length, "attempt")}` : ""}`,
      load: loads.length ? `${share(mean)} busy` : "", loads: loads.filter((_, i) => i % every === 0), over: "utilisation over the run" };
  }), legend);
  deviceLegend($("legend"), legend);
}

// ---- the table of tasks ----

let page = 0, found = [];
const PAGE = innerWidth <= 640 ? 25 : 100;
const GRID = new Grid($("tasks"), { key: t => t.id, remember: "scheduler-columns", sorted: () => { page = 0; sorts(); table(); }, opened: t => taskDetail(detailOf(RUNS[$("which").value], t)) });
// A task as an object; what it reads from the run's lists is made once, when the table needs it.
function tasksOf(r) {
  if (r.objects) return r.objects;
  r.objects = r.tasks.map((t, i) => ({ place: i, ...Object.fromEntries(r.task_columns.map((name, k) => [name, t[k]])), settings: r.settings[i], metrics: [] }));
  const byId = new Map(r.objects.map(t => [t.id, t]));
  r.metrics.forEach((m, i) => { for (const curve of m.curves) { const t = byId.get(curve[0]); if (t) t.metrics[i] = curve; } });
  return r.objects;
}
function columnsOf(r) {
  const all = tasksOf(r), names = r.parameters, differ = of => new Set(all.map(of)).size > 1, some = of => all.some(of), bares = differ(t => bare(t.name, names));
  const best = (m, c) => c && (m.goal === "min" ? c[2] : c[4]);
  return [
    { id: "id", label: "id", num: true, fixed: true, first: true, text: t => String(t.id), value: t => t.id },
    { id: "name", label: "name", cls: "name", off: !bares && names.length > 0, text: t => bares || !names.length ? bare(t.name, names) || t.name : t.name, value: t => t.name },
    { id: "state", label: "state", cls: "state", draw: (td, t) => stateCell(td, t.state), value: t => t.state },
    ...names.map((name, i) => ({ id: "parameter." + name, out: i > 2 && 10 - i / 100, label: name, num: numeric(all.map(t => t.settings[i])), off: i > 5, text: t => t.settings[i], value: t => t.settings[i] })),
    ...r.metrics.flatMap((m, i) => [
      { id: "best." + m.name, out: i && 6, label: "best " + m.name, num: true, cls: "value", off: i > 1, down: m.goal === "max", text: t => { const v = best(m, t.metrics[i]); return v == null ? "" : even(v); }, value: t => best(m, t.metrics[i]) },
      { phone: false, id: "result." + m.name, label: m.name, num: true, off: i > 0, down: m.goal === "max", title: `last ${m.name}, with its curve`, draw: (td, t) => { const c = t.metrics[i]; curveCell(td, c && c[1], c && c[7]); }, value: t => t.metrics[i]?.[1] },
    ]),
    { id: "reason", out: 9, phone: true, label: "reason", cls: "reason", off: !some(t => t.reason), draw: reasonCell, value: t => t.reason },
    { id: "epochs", out: 5, label: "epochs", num: true, off: !some(t => t.epochs != null), text: t => epochs(t.epochs, t.of_epochs), value: t => t.epochs },
    { id: "ran_s", label: "ran", num: true, text: t => time(t.ran_s), value: t => t.ran_s },
    { id: "ended", out: 7, label: "ended", num: true, text: t => t.ended == null ? "" : clock(r.begin + t.ended), value: t => t.ended },
    { id: "memory", label: "peak / reserved", phone: false, out: 8, num: true, cls: "mem", draw: (td, t) => memoryCell(td, t.peak_bytes, t.reserved_bytes), value: t => t.peak_bytes },
    { id: "device", out: 2, label: "device", off: !differ(t => t.device), text: t => t.device || "", value: t => t.device },
    { id: "attempts", out: 3, label: "attempts", num: true, off: !some(t => t.attempts > 1), text: t => String(t.attempts), value: t => t.attempts },
    { id: "ooms", out: 4, label: "OOMs", num: true, off: !some(t => t.ooms), text: t => String(t.ooms), value: t => t.ooms },
    { id: "priority", out: 4, label: "prio", num: true, off: !differ(t => t.priority), text: t => String(t.priority), value: t => t.priority },
    { id: "batch", label: "batch", num: true, off: true, text: t => String(t.batch), value: t => t.batch },
    { id: "waited_s", label: "waited", num: true, off: true, text: t => time(t.waited_s), value: t => t.waited_s },
    { id: "started", label: "started", num: true, off: true, text: t => t.started == null ? "" : clock(r.begin + t.started), value: t => t.started },
    { id: "exit_code", out: 7.5, label: "exit", num: true, off: !some(t => t.exit_code), text: t => t.exit_code == null ? "" : String(t.exit_code), value: t => t.exit_code },
    { id: "command", out: 1, label: "command", cls: "long code", off: names.length > 0, text: t => t.command, value: t => t.command },
  ];
}
function fillStates() {
  const r = RUNS[$("which").value], keep = $("state").value;
  $("state").replaceChildren(...["all", ...Object.keys(r.states)].map(s => option(s, STATE_WORDS[s] || s)));
  $("state").value = keep in r.states ? keep : "all";
}
// Words that a task's texts must all contain; NAME=VALUE is compared with a parameter, #12 is a task.
function finder(r, text) {
  const words = text.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const tests = words.map(word => {
    if (/^#\d+$/.test(word)) return t => String(t.id) === word.slice(1);
    const [name, value] = word.split("="), i = value ? r.parameters.findIndex(p => p.toLowerCase() === name) : -1;
    return i >= 0 ? t => t.settings[i].toLowerCase() === value : t => (t.text ??= [t.id, t.name, t.command, t.reason, t.device].join(" ").toLowerCase()).includes(word);
  });
  return t => tests.every(one => one(t));
}
function select(r, columns) {
  const says = finder(r, $("find").value), state = $("state").value, column = columns.find(c => c.id === GRID.by);
  found = tasksOf(r).filter(t => (state === "all" || t.state === state) && says(t));
  if (column) found.sort((a, b) => compare(column.value(a), column.value(b), GRID.down) || a.id - b.id);
}
function table() {
  const r = RUNS[$("which").value], columns = r.columns ??= columnsOf(r); select(r, columns);
  const pages = Math.max(1, Math.ceil(found.length / PAGE)), n = found.length; page = Math.min(page, pages - 1);
  GRID.set(columns, found.slice(page * PAGE, page * PAGE + PAGE));
  $("shown").textContent = n ? `${whole(page * PAGE + 1)}–${whole(Math.min(n, page * PAGE + PAGE))} of ${whole(n)}` : "no matching tasks";
  $("back").disabled = page === 0; $("next").disabled = page >= pages - 1; $("back").hidden = $("next").hidden = pages < 2;
}
function sorts() {
  const columns = (RUNS[$("which").value].columns || []).filter(c => GRID.has(c));
  $("sort").replaceChildren(option("", "usual order"), ...columns.flatMap(c => [option(c.id, c.label + " ↑"), option(c.id + "\n", c.label + " ↓")]));
  $("sort").value = GRID.by + (GRID.by && GRID.down ? "\n" : "");
}
// Show a task in the table, opened; a chart was clicked.
function show(r, id) {
  $("which").value = RUNS.indexOf(r); fillStates(); $("find").value = "#" + id; $("state").value = "all"; page = 0; GRID.closeAll(); table(); GRID.toggle(id, true);
  $("h-tasks").scrollIntoView({ block: "start" }); GRID.focus(id);
}
function detailOf(r, t) {
  const tries = [], memory = [];
  for (const d of r.devices) {
    for (const b of d.bars) if (b[0] === t.id) tries.push({ attempt: b[1], outcome: b[5], purpose: b[6], device: d.label, began: r.begin + b[3], ended: b[5] === "running" ? null : r.begin + b[4], seconds: b[4] - b[3], reserved: b[7], peak: b[8], source: SOURCE_WORDS[b[9]] || b[9] });
    const last = d.memory.filter(m => m.task === t.id).at(-1); if (last) memory.push({ label: d.label, end: last.end - last.steps[0][0], steps: last.steps.map(([at, reserved, held]) => [at - last.steps[0][0], reserved, held]) });
  }
  tries.sort((a, b) => a.attempt - b.attempt); if (tries.length) tries.at(-1).exit = t.exit_code;
  return {
    task: t.id, name: t.name, state: t.state, brief: [t.exit_code ? `exit ${t.exit_code}` : "", t.ran_s == null ? "" : `after ${time(t.ran_s)}`, t.device], command: t.command, reason: t.reason, attempts: tries, memory, log: r.logs?.[t.id] ?? (t.attempts ? `not in this report, since it has many tasks: scheduler logs ${t.id}` : null), links: r.links?.[t.id] || [],
    parameters: r.parameters.map((name, i) => [name, t.settings[i]]),
    facts: [["state", STATE_WORDS[t.state] || t.state], ["epochs", epochs(t.epochs, t.of_epochs)], ["waited", time(t.waited_s)], ["began", t.started == null ? "" : clock(r.begin + t.started)], ["ended", t.ended == null ? "" : clock(r.begin + t.ended)], ["priority", String(t.priority)]],
    metrics: r.metrics.flatMap((m, i) => { const c = t.metrics[i]; return c ? [{ name: m.name, last: c[1], best: m.goal === "min" ? c[2] : c[4], step: m.goal === "min" ? c[3] : c[5], steps: c[6], values: c[7], nan_from: c[8], end: c[8] ?? c[6].at(-1) }] : []; }),
  };
}
function save(name, text, kind) { const a = el("a"); a.href = URL.createObjectURL(new Blob([text], { type: kind })); a.download = name; a.click(); setTimeout(() => URL.revokeObjectURL(a.href), 1000); }
const quoted = v => { let s = v == null ? "" : String(v); if (typeof v === "string" && /^[=+\-@\t\r]/.test(s) && isNaN(s)) s = "'" + s; return /[",\n\r]/.test(s) ? '"' + s.replaceAll('"', '""') + '"' : s; };
function saveRows() {
  const r = RUNS[$("which").value], head = [...r.task_columns, ...r.parameters, ...r.metrics.flatMap(m => ["best." + m.name, "result." + m.name])];
  const rows = found.map(t => [...r.task_columns.map(name => t[name]), ...t.settings, ...r.metrics.flatMap((m, i) => { const c = t.metrics[i]; return c ? [m.goal === "min" ? c[2] : c[4], c[1]] : ["", ""]; })]);
  save(`run-${r.number}.csv`, [head, ...rows].map(row => row.map(quoted).join(",")).join("\n") + "\n", "text/csv");
}

numbers(); devicesOf(RUNS[0]);
$("charts").append(...RUNS.map(r => CHARTS.build(r)));
CHARTS.controls($("controls"));
RUNS.forEach((r, i) => $("which").append(option(i, called(r)))); $("of-which").hidden = RUNS.length < 2;
fillStates(); table(); sorts(); GRID.chooser($("columns")); METRICS.draw(); CHARTS.draw();
for (const id of ["which", "state", "find"]) $(id).addEventListener("input", () => { if (id === "which") { fillStates(); GRID.closeAll(); } page = 0; table(); if (id === "which") sorts(); });
$("sort").addEventListener("input", () => { const [by, down] = $("sort").value.split("\n"); Object.assign(GRID, { by, down: down !== undefined }); page = 0; table(); });
$("colour").addEventListener("input", () => CHARTS.redraw());
$("back").addEventListener("click", () => { page--; table(); });
$("next").addEventListener("click", () => { page++; table(); });
$("json").addEventListener("click", () => save("report.json", $("data").textContent, "application/json"));
$("csv").addEventListener("click", saveRows);
addEventListener("keydown", e => { if (e.key === "/" && !/INPUT|SELECT|TEXTAREA/.test(document.activeElement.tagName)) { e.preventDefault(); $("find").focus(); } });
let resized = 0; addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(() => { CHARTS.redraw(); METRICS.draw(); }, 60); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { CHARTS.recolour(); recolourPlots(); METRICS.draw(); });
