"use strict";
// The metrics of a run: curves of all tasks, a parameter against the best values, and the ten best tasks.
const MOST_COLOURS = 8, BEST = 10, TALL = 260, EDGE = { left: 52, right: 10, top: 10, bottom: 24 };
const short = v => v == null ? "" : Number.isInteger(v) && Math.abs(v) < 1e6 ? String(v) : String(Number(v.toPrecision(5)));
function ticks(low, high, most) {
  const raw = (high - low) / most || 1, unit = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].map(n => n * unit).find(s => s >= raw);
  const found = []; for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step) found.push(Math.abs(v) < step * 1e-9 ? 0 : v);
  return found;
}

class Metrics {
  constructor(runs, colour, chosen) {
    this.runs = runs.filter(r => r.metrics.length); this.colour = colour; this.chosen = chosen;
    if (!this.runs.length) return;
    $("metrics").hidden = false; $("of-run").hidden = this.runs.length < 2;
    this.runs.forEach((r, i) => $("metric-run").append(option(i, called(r))));
    this.fill();
    $("metric-run").addEventListener("input", () => { this.fill(); this.draw(); });
    $("metric").addEventListener("input", () => { this.choose(); this.draw(); });
    for (const id of ["goal", "parameter"]) $(id).addEventListener("input", () => this.draw());
    $("curves").addEventListener("pointermove", e => { const near = this.nearest(e, this.lines); tip(e, near ? this.about(near) : ""); });
    $("scatter").addEventListener("pointermove", e => { const near = this.nearest(e, this.dots); tip(e, near ? this.about(near) : ""); });
    for (const [id, of] of [["curves", () => this.lines], ["scatter", () => this.dots]]) {
      $(id).addEventListener("pointerleave", e => tip(e, ""));
      $(id).addEventListener("click", e => { const near = this.nearest(e, of()); if (near) this.chosen(this.run, near.task); });
    }
  }
  get run() { return this.runs[$("metric-run").value]; }
  get metric() { return this.run.metrics[$("metric").value]; }
  fill() {
    const r = this.run; r.places = new Map(r.tasks.map((t, i) => [t[r.at.id], i]));
    $("metric").replaceChildren(...r.metrics.map((m, i) => option(i, m.name)));
    $("parameter").replaceChildren(...r.parameters.map((p, i) => option(i, p)), option(-1, "state"));
    $("of-parameter").hidden = !r.parameters.length;
    this.choose();
  }
  choose() { $("goal").value = this.metric.goal; }
  // The tasks with a value of the metric, the best first.
  ranked() {
    const r = this.run, low = $("goal").value === "min", p = Number($("parameter").value);
    const made = this.metric.curves.map(([task, last, lowest, lowAt, highest, highAt, steps, values]) => {
      const place = r.places.get(task), state = r.tasks[place][r.at.state];
      return { task, last, best: low ? lowest : highest, step: low ? lowAt : highAt, steps, values, name: r.tasks[place][r.at.name], state, settings: r.settings[place], value: p < 0 ? state : r.settings[place][p] };
    }).filter(one => one.best != null);
    return made.sort((a, b) => (low ? a.best - b.best : b.best - a.best) || a.task - b.task);
  }
  draw() {
    if (!this.runs.length) return;
    const found = this.ranked(), values = [...new Set(found.map(one => one.value))].sort((a, b) => isNaN(a) || isNaN(b) ? String(a).localeCompare(String(b)) : a - b);
    const colours = new Map(values.map((v, i) => [v, this.colour("p" + Math.min(i, MOST_COLOURS - 1))]));
    const parameter = $("parameter").selectedOptions[0].textContent, best = found[0], word = $("goal").value === "min" ? "lowest" : "highest";
    $("answer").textContent = best ? `The ${word} ${this.metric.name} is ${short(best.best)}, at step ${short(best.step)} of task ${best.task}: ${best.name}.` : "No task has a value yet.";
    $("h-curves").textContent = `${this.metric.name} of ${many(found.length, "task")}, by ${parameter}`;
    const rest = values.length - MOST_COLOURS;
    legendOf($("curve-legend"), values.slice(0, MOST_COLOURS).map((v, i) => [rest > 0 && i === MOST_COLOURS - 1 ? `${v} and ${rest} more` : v || "none", colours.get(v)]));
    this.drawCurves(found, colours); this.drawScatter(found, colours, parameter, values); this.table(found);
  }
  prepare(canvas) {
    const width = canvas.parentNode.clientWidth || 600, ratio = window.devicePixelRatio || 1, c = canvas.getContext("2d");
    canvas.style.height = TALL + "px"; canvas.width = Math.round(width * ratio); canvas.height = Math.round(TALL * ratio);
    c.setTransform(ratio, 0, 0, ratio, 0, 0); c.fillStyle = this.colour("paper"); c.fillRect(0, 0, width, TALL); c.font = SMALL; c.textBaseline = "middle";
    return [c, width];
  }
  // Some diverge to huge values: the axis spans what most values reach.
  range(values) {
    const sorted = values.slice().sort((a, b) => a - b), at = q => sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))];
    let low = sorted[0], high = sorted.at(-1); const mid = at(.9) - at(.1);
    if (high > at(.95) + 5 * mid) high = at(.95) + mid; if (low < at(.05) - 5 * mid) low = at(.05) - mid;
    const pad = (high - low) * .04 || Math.abs(high) * .05 || 1; return [low - pad, high + pad];
  }
  vertical(c, w, [low, high]) {
    const y = v => TALL - EDGE.bottom - (v - low) / (high - low) * (TALL - EDGE.top - EDGE.bottom);
    c.textAlign = "right";
    for (const v of ticks(low, high, 6)) { c.fillStyle = this.colour("line"); c.fillRect(EDGE.left, Math.round(y(v)), w - EDGE.left - EDGE.right, 1); c.fillStyle = this.colour("faint"); c.fillText(short(v), EDGE.left - 5, y(v)); }
    return y;
  }
  label(c, w, x, text) { const half = c.measureText(text).width / 2; c.textAlign = "center"; c.fillStyle = this.colour("faint"); c.fillText(text, Math.min(Math.max(x, EDGE.left + half - 20), w - half - 2), TALL - EDGE.bottom / 2); }
  drawCurves(found, colours) {
    const [c, w] = this.prepare($("curves")); this.lines = [];
    $("curves").setAttribute("aria-label", `Curves of ${this.metric.name}; the table below has the best values`);
    if (!found.length) return;
    const all = found.flatMap(one => one.values), y = this.vertical(c, w, this.range(all));
    const steps = found.flatMap(one => [one.steps[0], one.steps.at(-1)]), low = Math.min(...steps), high = Math.max(...steps, low + 1e-9);
    const x = s => EDGE.left + (s - low) / (high - low) * (w - EDGE.left - EDGE.right);
    for (const s of ticks(low, high, Math.max(2, Math.floor(w / 90)))) this.label(c, w, x(s), short(s));
    c.save(); c.beginPath(); c.rect(EDGE.left, EDGE.top - 4, w - EDGE.left, TALL - EDGE.top - EDGE.bottom + 6); c.clip();
    const thin = found.length > 60; c.globalAlpha = thin ? Math.max(.25, 30 / found.length) : .9;
    for (const one of found.slice().reverse()) {
      const best = one === found[0]; c.lineWidth = best ? 2.6 : 1.3; if (best) c.globalAlpha = 1;
      c.strokeStyle = c.fillStyle = colours.get(one.value); c.beginPath();
      one.steps.forEach((s, k) => { const px = x(s), py = y(one.values[k]); k ? c.lineTo(px, py) : c.moveTo(px, py); if (!thin || best) this.lines.push([px, py, one]); });
      c.stroke(); if (one.steps.length === 1 || best) { c.beginPath(); c.arc(x(one.steps.at(-1)), y(one.values.at(-1)), best ? 4 : 2.5, 0, 7); c.fill(); }
      if (thin) this.lines.push([x(one.steps.at(-1)), y(one.values.at(-1)), one]);
    }
    c.restore();
  }
  drawScatter(found, colours, parameter, values) {
    $("scatter-box").hidden = !this.run.parameters.length; this.dots = [];
    if ($("scatter-box").hidden || !found.length) return;
    const [c, w] = this.prepare($("scatter")), y = this.vertical(c, w, this.range(found.map(one => one.best)));
    const numbers = values.map(Number), numeric = values.every((v, i) => v !== "" && isFinite(numbers[i])) && values.length > 1, low = Math.min(...numbers), high = Math.max(...numbers);
    const log = numeric && low > 0 && high / low > 20, span = w - EDGE.left - EDGE.right - 40, from = EDGE.left + 20;
    const x = v => !numeric ? from + (values.length > 1 ? values.indexOf(v) / (values.length - 1) : .5) * span
      : from + (log ? Math.log(v / low) / Math.log(high / low) : (v - low) / (high - low)) * span;
    $("h-scatter").textContent = `Best ${this.metric.name} against ${parameter}${log ? " (logarithmic)" : ""}`;
    $("scatter").setAttribute("aria-label", `${$("h-scatter").textContent}; the table below has the same values`);
    let last = -Infinity;
    for (const v of values) { const text = String(v).slice(0, 14), half = c.measureText(text).width / 2; if (x(v) - half < last + 6) continue; last = x(v) + half; this.label(c, w, x(v), text); }
    for (const one of found.slice().reverse()) {
      const px = x(one.value), py = Math.max(EDGE.top, Math.min(TALL - EDGE.bottom, y(one.best))), best = one === found[0];
      c.globalAlpha = best ? 1 : .75; c.fillStyle = colours.get(one.value); c.beginPath(); c.arc(px, py, best ? 6 : 4, 0, 7); c.fill();
      if (best) { c.strokeStyle = this.colour("ink"); c.lineWidth = 1.5; c.stroke(); }
      this.dots.push([px, py, one]);
    }
    c.globalAlpha = 1;
  }
  table(found) {
    const r = this.run, head = el("tr"), thead = el("thead"), body = el("tbody"), shown = r.parameters.slice(0, 6);
    $("h-best").textContent = `Best ${Math.min(BEST, found.length)} of ${whole(found.length)}`;
    for (const name of ["task", "name", ...shown, "best " + this.metric.name, "step", "last", "state"]) { const th = el("th", name, ["task", "best " + this.metric.name, "step", "last"].includes(name) ? "n" : ""); th.scope = "col"; head.append(th); }
    thead.append(head);
    for (const one of found.slice(0, BEST)) {
      const tr = el("tr"), cells = shown.map((_, i) => el("td", one.settings[i])), state = el("td", one.state, "state"); state.style.color = `var(--${one.state}, inherit)`;
      tr.append(el("td", String(one.task), "n"), el("td", this.bare(one)), ...cells, el("td", short(one.best), "n"), el("td", short(one.step), "n"), el("td", short(one.last), "n"), state); body.append(tr);
    }
    $("best").replaceChildren(thead, body);
  }
  bare(one) { const ends = this.run.parameters.map(p => one.name.indexOf(` ${p}=`)).filter(at => at > 0); return ends.length ? one.name.slice(0, Math.min(...ends)) : one.name; }
  nearest(event, points) {
    if (!points) return null;
    const box = event.currentTarget.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top; let near = null, least = 22 ** 2;
    for (const [px, py, one] of points) { const d = (px - x) ** 2 + (py - y) ** 2; if (d < least) { least = d; near = one; } }
    return near;
  }
  about(one) { return `task ${one.task} ${one.name}\nbest ${this.metric.name} ${short(one.best)} at step ${short(one.step)}, last ${short(one.last)}\n${one.state}`; }
}
