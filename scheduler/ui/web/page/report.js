"use strict";
// A report: its data are in the page, and nothing is requested.
const DATA = JSON.parse($("data").textContent), RUNS = DATA.runs;
const CHARTS = new Charts(RUNS, () => $("colour").value, (r, id) => {
  $("which").value = RUNS.indexOf(r); fillStates(); $("find").value = "#" + id; page = 0; table(); $("h-tasks").focus();
});
const METRICS = new Metrics(RUNS, name => COLOURS[name], (r, id) => CHARTS.chosen(r, id));
const title = RUNS.map(called).join(" and ");
document.title = title; $("title").textContent = title;
for (const r of RUNS) $("about").append(el("p", `${called(r)}: ${r.file || "no file"} on ${r.host}, began ${r.began.replace("T", " ").replace(/\.\d+/, " ")}${r.alive ? ", still running" : ""}`));

// [name, text, compared value, 1 if more is better, -1 if less is]
const NUMBERS = [
  ["Tasks", r => whole(r.summary.tasks), r => r.summary.tasks, 0],
  ["States", r => Object.entries(r.states).map(([s, n]) => whole(n) + " " + s).join(", ")],
  ["Makespan", r => time(r.summary.makespan_s), r => r.summary.makespan_s, -1],
  ["Time for one task at a time", r => time(r.summary.one_at_a_time_s), r => r.summary.one_at_a_time_s, 0],
  ["Speed-up", r => r.summary.times_faster.toFixed(2), r => r.summary.times_faster, 1],
  ["Time spent on probes", r => share(r.summary.profiling_share)],
  ["Out of memory", r => whole(r.summary.ooms)],
  ["Retries", r => whole(r.summary.retries)],
  ["Memory use", r => share(r.summary.memory_use), r => r.summary.memory_use, 1],
  ["Reserved memory / peak", r => r.summary.reserved_for_peaks ? r.summary.reserved_for_peaks.toFixed(2) : "–", r => r.summary.reserved_for_peaks, -1],
  ["Tasks slowed down 1.5 times or more", r => whole(r.summary.stretched)],
];
function compared(r, of, better) {
  const a = of(RUNS[0]), b = of(r); if (!a || !b) return el("td", "–");
  const ratio = b / a, same = Math.abs(ratio - 1) < .005;
  return el("td", same ? "the same" : ratio.toFixed(2) + " times", same || !better ? "" : (ratio > 1) === (better > 0) ? "better" : "worse");
}
function numbers() {
  const head = el("tr"), thead = el("thead"), body = el("tbody"); head.append(el("td", "")); thead.append(head);
  const column = text => { const h = el("th", text); h.scope = "col"; head.append(h); };
  RUNS.forEach(r => column(called(r))); RUNS.slice(1).forEach(r => column(`${called(r)} / ${called(RUNS[0])}`));
  for (const [name, says, of, better] of NUMBERS) {
    const tr = el("tr"), th = el("th", name); th.scope = "row"; tr.append(th, ...RUNS.map(r => el("td", says(r))), ...RUNS.slice(1).map(r => of ? compared(r, of, better) : el("td", "")));
    body.append(tr);
  }
  $("numbers").append(thead, body);
}

const SHOWN = { id: "id", name: "name", state: "state", priority: "prio", batch: "batch", device: "device", attempts: "attempts", ooms: "OOMs", started: "started", waited_s: "waited", ran_s: "ran", peak_bytes: "peak", reserved_bytes: "reserved", exit_code: "exit", reason: "reason", command: "command" };
const NUMERIC = new Set(["id", "priority", "batch", "attempts", "ooms", "waited_s", "ran_s", "peak_bytes", "reserved_bytes", "started", "exit_code"]);
const cell = (name, v) => v == null ? "" : name.endsWith("_bytes") ? size(v) : name.endsWith("_s") || name === "started" ? time(v) : String(v);
let page = 0, by = "id", down = false, found = [];
const PAGE = 100;
function fillStates() {
  const r = RUNS[$("which").value], keep = $("state").value;
  $("state").replaceChildren(...["all", ...Object.keys(r.states)].map(s => option(s, s)));
  $("state").value = keep in r.states ? keep : "all";
}
function select() {
  const r = RUNS[$("which").value], at = r.at, word = $("find").value.trim().toLowerCase(), state = $("state").value;
  const says = t => word[0] === "#" ? String(t[at.id]) === word.slice(1)
    : [t[at.id], t[at.name], t[at.command], t[at.reason], t[at.device]].join(" ").toLowerCase().includes(word);
  found = r.tasks.filter(t => (state === "all" || t[at.state] === state) && (!word || says(t)));
  found.sort((a, b) => {
    const x = a[at[by]], y = b[at[by]]; if (x == null || y == null) return (x == null) - (y == null) || a[at.id] - b[at.id];
    return (x < y ? -1 : x > y ? 1 : a[at.id] - b[at.id]) * (down ? -1 : 1);
  });
  return at;
}
function table() {
  const at = select(), pages = Math.max(1, Math.ceil(found.length / PAGE)); page = Math.min(page, pages - 1);
  const head = el("tr"), thead = el("thead"), body = el("tbody"); thead.append(head);
  for (const [name, label] of Object.entries(SHOWN)) {
    const th = el("th", undefined, NUMERIC.has(name) ? "n" : ""), b = el("button", label + (by === name ? (down ? " ↓" : " ↑") : "")); b.type = "button"; th.scope = "col"; b.dataset.column = name;
    th.setAttribute("aria-sort", by === name ? (down ? "descending" : "ascending") : "none");
    b.addEventListener("click", () => { down = by === name ? !down : false; by = name; page = 0; table(); document.querySelector(`#tasks button[data-column=${name}]`).focus(); });
    th.append(b); head.append(th);
  }
  for (const t of found.slice(page * PAGE, page * PAGE + PAGE)) {
    const tr = el("tr");
    for (const name of Object.keys(SHOWN)) {
      const td = el("td", cell(name, t[at[name]]), NUMERIC.has(name) ? "n" : name === "command" || name === "reason" && t[at.reason] ? "wide" : name === "state" ? "state" : "");
      if (name === "state") td.style.color = `var(--${t[at.state]}, inherit)`;
      tr.append(td);
    }
    body.append(tr);
  }
  $("tasks").replaceChildren(thead, body);
  const n = found.length; $("shown").textContent = n ? `${whole(page * PAGE + 1)}–${whole(Math.min(n, page * PAGE + PAGE))} of ${whole(n)}` : "no matching tasks";
  $("back").disabled = page === 0; $("next").disabled = page >= pages - 1;
}
function save(name, text, kind) { const a = el("a"); a.href = URL.createObjectURL(new Blob([text], { type: kind })); a.download = name; a.click(); setTimeout(() => URL.revokeObjectURL(a.href), 1000); }
const quoted = v => { let s = v == null ? "" : String(v); if (typeof v === "string" && /^[=+\-@\t\r]/.test(s)) s = "'" + s; return /[",\n\r]/.test(s) ? '"' + s.replaceAll('"', '""') + '"' : s; };

numbers();
$("charts").append(...RUNS.map(r => CHARTS.build(r)));
CHARTS.controls($("controls"));
RUNS.forEach((r, i) => $("which").append(option(i, called(r))));
fillStates(); table(); CHARTS.draw(); METRICS.draw();
for (const id of ["which", "state", "find"]) $(id).addEventListener("input", () => { if (id === "which") fillStates(); page = 0; table(); });
$("colour").addEventListener("input", () => CHARTS.redraw());
$("back").addEventListener("click", () => { page--; table(); });
$("next").addEventListener("click", () => { page++; table(); });
$("json").addEventListener("click", () => save("report.json", $("data").textContent, "application/json"));
$("csv").addEventListener("click", () => { const r = RUNS[$("which").value]; save(`run-${r.number}.csv`, [r.task_columns, ...found].map(row => row.map(quoted).join(",")).join("\n") + "\n", "text/csv"); });
addEventListener("resize", () => { CHARTS.redraw(); METRICS.draw(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { CHARTS.recolour(); METRICS.draw(); });
