"use strict";
// A task that opens in place: its parameters, attempts, curves, memory over time, and the end of its log.

const facts = pairs => {
  const list = el("dl", undefined, "facts");
  for (const [name, value, cls] of pairs) if (value != null && value !== "") { list.append(el("dt", name), el("dd", value, cls)); }
  return list;
};
function card(title, content, cls) { const box = el("div", undefined, "card " + (cls || "")); box.append(el("h4", title), ...[content].flat()); return box; }

// `d`: { task, name, state, brief, command, reason, parameters, facts, attempts, metrics, memory, log, links }; `more` are elements below.
function taskDetail(d, more = []) {
  const box = el("div", undefined, "detail"), cards = el("div", undefined, "cards");
  const head = el("div", undefined, "detail-head"); const stands = el("span", undefined, "state"); stateCell(stands, d.state); head.append(el("strong", `task ${d.task}  ${d.name}`), stands, ...(d.brief || []).filter(Boolean).map(text => el("span", text)));
  for (const address of d.links || []) { const a = el("a", tracker(address)); a.href = address; a.target = "_blank"; a.rel = "noopener noreferrer"; head.append(a); }
  if (d.reason) head.append(el("p", d.reason, FAILURES.includes(d.state) ? "reason bad" : "reason"));
  box.append(head);
  if (d.command) box.append(el("code", d.command, "command"));
  cards.append(card("Parameters and state", facts([...d.parameters, ...d.facts])));
  if (d.metrics.length) cards.append(metricCard(d));
  if (d.memory.length) cards.append(memoryCard(d));
  if (d.attempts.length) cards.append(card(d.attempts.length === 1 ? "Attempt" : `${d.attempts.length} attempts`, attempts(d.attempts), "wide"));
  if (d.log != null) { const pre = el("pre", tidy(d.log) || "no output"); pre.tabIndex = 0; pre.setAttribute("role", "region"); pre.setAttribute("aria-label", `End of the log of task ${d.task}`); cards.append(card("End of the log", pre, "wide")); requestAnimationFrame(() => { pre.scrollTop = pre.scrollHeight; }); }
  box.append(cards, ...more);
  return box;
}
const tracker = address => /wandb/.test(address) ? "Weights & Biases ↗" : /#\/experiments\//.test(address) ? "MLflow ↗" : "tracker ↗";
function attempts(found) {
  const table = el("table", undefined, "stacks"), head = el("tr"), thead = el("thead"), body = el("tbody"), box = el("div", undefined, "scroll"); box.tabIndex = 0; box.setAttribute("role", "region"); box.setAttribute("aria-label", "Attempts");
  for (const [name, n] of [["attempt", 1], ["outcome"], ["device"], ["began"], ["ended"], ["ran", 1], ["peak / reserved", 1], ["reserved"], ["exit", 1]]) { const th = el("th", name, n ? "n" : ""); th.scope = "col"; head.append(th); }
  for (const a of found) {
    const tr = el("tr"), state = el("td", undefined, "state"), memory = el("td", undefined, "n mem"); stateCell(state, a.outcome); memoryCell(memory, a.peak, a.reserved);
    tr.append(el("td", a.attempt + (a.purpose === "probe" ? " (probe)" : ""), "n"), state, el("td", a.device), el("td", clock(a.began)), el("td", clock(a.ended)), el("td", time(a.seconds), "n"), memory, el("td", a.source || ""), el("td", a.exit == null ? "" : String(a.exit), "n"));
    [...tr.cells].forEach((td, i) => { if (i !== 1) td.dataset.label = head.cells[i].textContent; }); body.append(tr);
  }
  thead.append(head); table.append(thead, body); box.append(table); return box;
}
function metricCard(d) {
  const select = el("select"), box = el("div"), says = el("p"), label = el("label", "Curve of "); label.append(select);
  d.metrics.forEach((m, i) => select.append(option(i, m.name)));
  // All metrics of a task have one x axis; a cross marks where one became NaN or infinite.
  const from = Math.min(...d.metrics.map(m => m.steps[0] ?? m.nan_from ?? Infinity)), to = Math.max(...d.metrics.map(m => m.end ?? -Infinity));
  const show = () => {
    const m = d.metrics[select.value], lost = m.nan_from != null;
    says.replaceChildren(m.best == null ? "no finite value" : `best ${short(m.best)} at step ${short(m.step)}`, lost ? "; " : `, last ${short(m.last)}`, ...(lost ? [el("b", `nan from step ${short(m.nan_from)}`, "bad")] : []));
    const cross = u => { if (lost) drawCross(u.ctx, u.valToPos(m.nan_from, "x", true), m.values.length ? u.valToPos(m.values.at(-1), "y", true) : u.bbox.top + u.bbox.height / 2); };
    const x = lost ? [...m.steps, m.nan_from] : m.steps, scales = to > from ? { x: { range: () => [from, to] } } : {};
    if (x.length) plot(box, { x, series: [{ values: lost ? [...m.values, null] : m.values, stroke: () => COLOURS.accent }], kinds: [stepKind(x), "number"], tall: 150, scales, drag: false, hooks: { draw: [cross] }, label: `Curve of ${m.name} of task ${d.task}: ${says.textContent}` });
    else { forget(box); box.replaceChildren(); }
  };
  select.addEventListener("input", show); requestAnimationFrame(show);
  return card("Metrics", [label, box, says]);
}
function memoryCard(d) {
  const box = el("div"), select = el("select"), says = el("p");
  d.memory.forEach((m, i) => select.append(option(i, m.label)));
  const show = () => {
    const m = d.memory[select.value], steps = [...m.steps, [m.end, m.steps.at(-1)[1], m.steps.at(-1)[2]]], from = steps[0][0];
    says.textContent = `filled: used so far; line: reserved. Peak ${size(Math.max(...steps.map(s => s[2])))} of ${size(steps.at(-1)[1])}`;
    plot(box, {
      x: steps.map(s => s[0] - from), kinds: ["time", "bytes"], least: 0, tall: 150, label: `Memory of task ${d.task} on ${m.label} over time. ${says.textContent}`,
      series: [{ values: steps.map(s => s[2]), stroke: () => COLOURS.ours, fill: () => COLOURS.ours + "55", stepped: true }, { values: steps.map(s => s[1]), stroke: () => COLOURS.reservation, stepped: true, width: 1.2 }],
    });
  };
  select.addEventListener("input", show); requestAnimationFrame(show);
  const label = el("label", "Memory on "); label.append(select);
  return card("Memory", [label, box, says]);
}

// What a terminal would show of an output: without colours, and without what a carriage return has overwritten.
const ESCAPES = /\x1b\[[0-?]*[ -\/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x1b\\|\x07)?|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]/g;
const tidy = text => text.replace(/\r+\n/g, "\n").replace(ESCAPES, "").replace(/[^\n]*\r(?=[^\n])/g, "");
