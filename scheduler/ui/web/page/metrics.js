"use strict";
// The metrics of a run: curves of all tasks, a parameter against the best values, two parameters, all of them, the ten best.
//
// What is chosen in one chart (a value in a legend, a cell, a part of an axis) holds for all charts and for the ten best.
const MOST_COLOURS = 8, MOST_RAMP = 24, BEST = 10, TALL = 270, EDGE = { left: 54, right: 12, top: 10, bottom: 26 };
function ticks(low, high, most) {
  const raw = (high - low) / most || 1, unit = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].map(n => n * unit).find(s => s >= raw);
  const found = []; for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step) found.push(Math.abs(v) < step * 1e-9 ? 0 : v);
  return found;
}
const numeric = values => values.length > 0 && values.every(v => v !== "" && isFinite(Number(v)));

// A canvas in the size of its box, and what the charts on canvases share.
function prepare(canvas, tall) {
  const width = canvas.parentNode.clientWidth || 600, ratio = window.devicePixelRatio || 1, c = canvas.getContext("2d");
  canvas.style.height = tall + "px"; canvas.width = Math.round(width * ratio); canvas.height = Math.round(tall * ratio);
  c.setTransform(ratio, 0, 0, ratio, 0, 0); c.clearRect(0, 0, width, tall); c.font = SMALL; c.textBaseline = "middle";
  return [c, width];
}
// Places from 0 to 1 for the values of a parameter: along a (logarithmic) scale for numbers, else in equal steps.
function scaleOf(values) {
  const all = inOrder(values), numbers = all.map(Number), low = numbers[0], high = numbers.at(-1);
  if (!numeric(all) || all.length < 2) return { all, log: false, numeric: false, at: v => all.length > 1 ? all.indexOf(v) / (all.length - 1) : .5 };
  // Logarithmic where the middle value is nearer to the geometric mean of the ends than to their arithmetic mean.
  const middle = numbers[numbers.length >> 1], far = mean => Math.abs(Math.log(middle / mean)), log = low > 0 && high / low >= 8 && far(Math.sqrt(low * high)) < far((low + high) / 2);
  return { all, log, numeric: true, at: v => log ? Math.log(v / low) / Math.log(high / low) : (v - low) / (high - low) };
}

class Metrics {
  // `chosen(run, task)` is called with a task that was clicked.
  constructor(runs, chosen) {
    this.chosen = chosen; this.only = new Map(); colours();
    $("metric-run").addEventListener("input", () => { this.fill(); this.draw(); });
    $("metric").addEventListener("input", () => { this.choose(); this.draw(); });
    for (const id of ["goal", "parameter", "log-scale", "scatter-by", "heat-x", "heat-y", "heat-of"]) $(id).addEventListener("input", () => this.draw());
    $("clear").addEventListener("click", () => { this.only.clear(); this.draw(); $("h-metrics").focus(); });
    this.hovers($("scatter"), () => this.dots);
    this.brushes($("parallel"));
    this.set(runs);
  }
  hovers(canvas, points) {
    canvas.addEventListener("pointermove", e => { const near = this.nearest(e, points()); tip(e, near ? this.about(near) : ""); });
    canvas.addEventListener("pointerleave", e => tip(e, ""));
    canvas.addEventListener("click", e => { const near = this.nearest(e, points()); if (near) this.chosen(this.run, near.task); });
  }
  set(runs) {
    this.runs = runs.filter(r => r.metrics.length); for (const r of this.runs) r.at ??= Object.fromEntries(r.task_columns.map((n, i) => [n, i])); $("metrics").hidden = !this.runs.length;
    if (!this.runs.length) return;
    $("of-run").hidden = this.runs.length < 2;
    fillSelect($("metric-run"), this.runs.map((r, i) => [i, called(r)]));
    this.fill();
  }
  get run() { return this.runs[$("metric-run").value] || this.runs[0]; }
  get metric() { return this.run.metrics[$("metric").value] || this.run.metrics[0]; }
  get low() { return $("goal").value === "min"; }
  fill() {
    const r = this.run, names = r.parameters.map((p, i) => [i, p]), before = $("metric").selectedOptions[0]?.textContent; r.places = new Map(r.tasks.map((t, i) => [t[r.at.id], i]));
    fillSelect($("metric"), r.metrics.map((m, i) => [i, m.name])); fillSelect($("parameter"), [...names, [-1, "state"]]);
    for (const id of ["scatter-by", "heat-x"]) fillSelect($(id), names);
    fillSelect($("heat-y"), names, r.parameters.length > 1 ? "1" : "0");
    if (before !== $("metric").selectedOptions[0]?.textContent) this.choose();
  }
  choose() { $("goal").value = this.metric.goal; this.only.delete(this.last); }
  get last() { return this.run.parameters.length; }  // the place of the metric among the axes

  // The tasks with a value of the metric, the best first.
  ranked() {
    const r = this.run, low = this.low, p = Number($("parameter").value);
    const made = this.metric.curves.map(([task, last, lowest, lowAt, highest, highAt, steps, values, nanFrom]) => {
      const place = r.places.get(task), row = r.tasks[place], state = row[r.at.state], settings = r.settings[place];
      return { task, last, best: low ? lowest : highest, step: low ? lowAt : highAt, steps, values, nanFrom, name: row[r.at.name], state, settings, value: p < 0 ? state : settings[p] };
    }).filter(one => one.best != null);
    for (const one of made) one.on = [...this.only].every(([at, says]) => says(at === -1 ? one.state : at === this.last ? one.best : one.settings[at]));
    return made.sort((a, b) => (low ? a.best - b.best : b.best - a.best) || a.task - b.task);
  }
  draw() {
    if (!this.runs.length) return;
    const all = this.ranked(), found = all.filter(one => one.on), parameter = $("parameter").selectedOptions[0].textContent;
    const colour = this.colouring(all), best = found[0], word = this.low ? "lowest" : "highest", without = this.metric.curves.length - all.length;
    const part = this.only.size ? ` of the ${many(found.length, "chosen task")}` : "";
    $("answer").textContent = best ? `The ${word} ${this.metric.name}${part} is ${short(best.best)}, at step ${short(best.step)} of task ${best.task}: ${best.name}.` + (without ? ` ${many(without, "task")} without a finite value.` : "") : this.only.size ? "No task has all that is chosen." : "No task has a value yet.";
    this.told?.(best && !this.only.size ? best : null);
    $("clear").hidden = !this.only.size;
    const several = this.run.parameters.length > 0; for (const id of ["scatter-box", "parallel-box"]) $(id).hidden = !several;
    $("heat-box").hidden = this.run.parameters.length < 2; $("of-parameter").hidden = !several;
    $("h-curves").textContent = `${this.metric.name} of ${many(all.length, "task")}, by ${parameter}`;
    this.legend(all, colour); this.table(found);
    this.drawCurves(all, found, colour); this.drawScatter(all, found, colour); this.drawHeat(all); this.drawParallel(all, found, colour);
  }
  // A function from the value of the chosen parameter to its colour: numbers along the scale, other values apart.
  colouring(all) {
    const values = inOrder(all.map(one => one.value)), scale = values.length > 2 && numeric(values) ? scaleOf(values) : null;
    const made = new Map(values.map((v, i) => [v, scale ? css(ramp(values.length > MOST_RAMP ? scale.at(v) : i / (values.length - 1))) : COLOURS[v] && $("parameter").value === "-1" ? COLOURS[v] : COLOURS["p" + Math.min(i, MOST_COLOURS - 1)]]));
    return { values, of: v => made.get(v), most: scale ? MOST_RAMP : MOST_COLOURS };
  }
  legend(all, { values, of, most }) {
    const box = $("curve-legend"), p = Number($("parameter").value), focused = document.activeElement?.dataset?.value, rest = values.length - most;
    const shown = rest > 0 && most === MOST_RAMP ? [0, .25, .5, .75, 1].map(q => values[Math.round(q * (values.length - 1))]) : values.slice(0, most);
    box.replaceChildren(...shown.map((v, i) => {
      const text = rest > 0 && most !== MOST_RAMP && i === most - 1 ? `${v} and ${rest} more` : v || "none", b = action("", () => this.toggle(p, v), "key"), dot = el("i"); dot.style.background = of(v);
      b.append(dot, text); b.dataset.value = v; b.setAttribute("aria-pressed", String(this.only.get(p)?.value === v)); b.title = `only the tasks with ${v}`; return b;
    }));
    if (focused != null && ![...document.querySelectorAll("button:focus")].length) [...box.children].find(b => b.dataset.value === focused)?.focus();
  }
  toggle(at, value) {
    if (this.only.get(at)?.value === value) this.only.delete(at);
    else this.only.set(at, Object.assign(v => v === value, { value }));
    this.draw();
  }

  // ---- curves ----

  // Some curves diverge to huge values, so the axis covers only the range of most values.
  range(values) {
    const sorted = values.slice().sort((a, b) => a - b), at = q => sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))];
    let low = sorted[0], high = sorted.at(-1); const mid = at(.9) - at(.1);
    if (high > at(.95) + 5 * mid) high = at(.95) + mid; if (low < at(.05) - 5 * mid) low = at(.05) - mid;
    const pad = (high - low) * .04 || Math.abs(high) * .05 || 1; return [low - pad, high + pad];
  }
  drawCurves(all, found, colour) {
    const box = $("curves"); forget(box); box.replaceChildren(); if (!all.length) return;
    if (!all.some(one => one.steps.length)) { box.append(el("p", "A report of this many tasks has curves of its most important metrics only; --metrics names them.")); return; }
    let first = Infinity, final = -Infinity, sample = []; const every = Math.max(1, Math.floor(all.length / 2000));
    all.forEach((one, i) => { for (const s of one.nanFrom == null ? one.steps : [...one.steps, one.nanFrom]) { if (s < first) first = s; if (s > final) final = s; } if (i % every === 0) sample = sample.concat(one.values); });
    if (final <= first) { first -= .5; final += .5; }
    const logarithmic = $("log-scale").checked && all.every(one => one.values.every(v => v > 0)), [low, high] = this.range(sample);
    const least = logarithmic ? sample.reduce((m, v) => Math.min(m, v), Infinity) * .95 : low; $("log-scale").disabled = !all.every(one => one.values.every(v => v > 0));
    this.curveSet = { all, found, colour };
    const u = plot(box, {
      x: [first, final], series: [{ values: [null, null], stroke: () => COLOURS.ink }], kinds: [all.every(one => stepKind(one.steps) === "count") ? "count" : "number", "number"], tall: 300, logarithmic, least, most: high,
      label: `Curves of ${this.metric.name}: ${many(all.length, "task")}, one colour for each value of ${$("parameter").selectedOptions[0].textContent}; the table of the best has the same values`,
      hooks: { draw: [u => this.paintCurves(u)] },
    });
    const over = el("canvas", undefined, "over"); u.over.append(over);
    u.over.addEventListener("pointermove", e => { const near = this.nearCurve(u, e); this.highlight(u, over, near); tip(e, near ? this.about(near) : ""); });
    u.over.addEventListener("pointerleave", e => { this.highlight(u, over, null); tip(e, ""); });
    u.over.addEventListener("click", e => { const near = this.nearCurve(u, e); if (near && u.select.width < 1) this.chosen(this.run, near.task); });
  }
  places(u, one, box) {
    const { x, y } = u.scales, of = y.distr === 3 ? Math.log10 : v => v, bottom = of(y.min), tall = of(y.max) - bottom;
    return one.steps.map((s, k) => [box.left + (s - x.min) / (x.max - x.min) * box.width, box.top + (1 - (of(one.values[k]) - bottom) / tall) * box.height]);
  }
  stroke(c, points) { c.beginPath(); points.forEach(([x, y], k) => k ? c.lineTo(x, y) : c.moveTo(x, y)); c.stroke(); }
  paintCurves(u) {
    const { all, found, colour } = this.curveSet, c = u.ctx, box = u.bbox, ratio = window.devicePixelRatio || 1, best = found[0];
    c.save(); c.beginPath(); c.rect(box.left, box.top, box.width, box.height); c.clip(); c.lineJoin = "round";
    const alpha = found.length > 60 ? Math.max(.12, .9 - .12 * Math.log2(found.length / 30)) : .9;
    for (const on of [false, true]) for (const one of (on ? found : all.filter(one => !one.on)).slice().reverse()) {
      c.globalAlpha = one === best ? 1 : on ? alpha : .5; c.strokeStyle = c.fillStyle = on ? colour.of(one.value) : COLOURS.line; c.lineWidth = (one === best ? 2.8 : 1.2) * ratio;
      const points = this.places(u, one, box); this.stroke(c, points);
      if (points.length === 1 || one === best) { const at = one === best ? points[Math.max(0, one.values.indexOf(Number(one.best.toPrecision(5))))] : points[0]; c.beginPath(); c.arc(...at, (one === best ? 4 : 2.5) * ratio, 0, 7); c.fill(); }
    }
    c.restore();
    for (const one of found) if (one.nanFrom != null && one.values.length) drawCross(c, box.left + (one.nanFrom - u.scales.x.min) / (u.scales.x.max - u.scales.x.min) * box.width, Math.max(box.top, Math.min(box.top + box.height, this.places(u, one, box).at(-1)[1])));
  }
  nearCurve(u, e) {
    const box = u.over.getBoundingClientRect(), px = e.clientX - box.left, py = e.clientY - box.top, rect = { left: 0, top: 0, width: box.width, height: box.height };
    let near = null, least = 18 ** 2;
    for (const one of this.curveSet.found) {
      const points = this.places(u, one, rect);
      for (let k = 0; k < points.length; k++) {
        const [ax, ay] = points[Math.max(0, k - 1)], [bx, by] = points[k]; if (bx < px - 20 && k < points.length - 1) continue; if (ax > px + 20) break;
        const t = bx > ax ? Math.min(1, Math.max(0, (px - ax) / (bx - ax))) : 1, d = (ax + t * (bx - ax) - px) ** 2 + (ay + t * (by - ay) - py) ** 2;
        if (d < least) { least = d; near = one; }
      }
    }
    return near;
  }
  highlight(u, over, one) {
    const c = over.getContext("2d"), ratio = window.devicePixelRatio || 1, w = u.over.clientWidth, h = u.over.clientHeight;
    over.width = w * ratio; over.height = h * ratio; if (!one) return;
    c.setTransform(ratio, 0, 0, ratio, 0, 0); const points = this.places(u, one, { left: 0, top: 0, width: w, height: h }); c.lineJoin = "round";
    c.strokeStyle = COLOURS.raised; c.lineWidth = 6; this.stroke(c, points); c.strokeStyle = COLOURS.ink; c.lineWidth = 2.4; this.stroke(c, points);
  }

  // ---- a parameter against the best values ----

  vertical(c, w, [low, high]) {
    const y = v => TALL - EDGE.bottom - (v - low) / (high - low) * (TALL - EDGE.top - EDGE.bottom);
    c.textAlign = "right";
    for (const v of ticks(low, high, 6)) { c.fillStyle = COLOURS.line; c.fillRect(EDGE.left, Math.round(y(v)), w - EDGE.left - EDGE.right, 1); c.fillStyle = COLOURS.faint; c.fillText(short(v), EDGE.left - 6, y(v)); }
    return y;
  }
  drawScatter(all, found, colour) {
    this.dots = []; if ($("scatter-box").hidden || !all.length) return;
    const p = Number($("scatter-by").value), scale = scaleOf(all.map(one => one.settings[p])), [c, w] = prepare($("scatter"), TALL), y = this.vertical(c, w, this.range(all.map(one => one.best)));
    const span = w - EDGE.left - EDGE.right - 40, from = EDGE.left + 20, name = this.run.parameters[p];
    $("h-scatter").textContent = `Best ${this.metric.name} against ${name}${scale.log ? " (logarithmic)" : ""}`;
    $("scatter").setAttribute("aria-label", `${$("h-scatter").textContent}; the table of the best has the same values`);
    let last = -Infinity; c.textAlign = "center"; c.fillStyle = COLOURS.faint;
    for (const v of scale.all) { const text = String(v).slice(0, 14), half = c.measureText(text).width / 2, x = from + scale.at(v) * span; if (x - half < last + 6) continue; last = x + half; c.fillText(text, Math.min(x, w - half - 2), TALL - EDGE.bottom / 2); }
    this.medians(c, found, p, scale, x => from + x * span, y);
    // Equal values stand beside each other, so that they can be counted.
    const beside = new Map(), wide = Math.min(26, span / Math.max(1, scale.all.length) * .7);
    for (const one of [...all.filter(one => !one.on), ...found.slice().reverse()]) {
      const n = beside.get(one.settings[p]) || 0; beside.set(one.settings[p], n + 1);
      const px = from + scale.at(one.settings[p]) * span + ((n * 0.618) % 1 - .5) * wide, py = Math.max(EDGE.top, Math.min(TALL - EDGE.bottom, y(one.best))), best = one === found[0];
      c.globalAlpha = best ? 1 : one.on ? .8 : .4; c.fillStyle = one.on ? colour.of(one.value) : COLOURS.line; c.beginPath(); c.arc(px, py, best ? 6 : 3.5, 0, 7); c.fill();
      if (best) { c.strokeStyle = COLOURS.ink; c.lineWidth = 1.8; c.stroke(); }
      if (one.on) this.dots.push([px, py, one]);
    }
    c.globalAlpha = 1;
  }
  medians(c, found, p, scale, x, y) {
    const groups = new Map(); for (const one of found) groups.set(one.settings[p], [...(groups.get(one.settings[p]) || []), one.best]);
    if (found.length < 2 * groups.size) return;
    const line = scale.all.filter(v => groups.has(v)).map(v => { const all = groups.get(v).sort((a, b) => a - b); return [x(scale.at(v)), y(all[Math.floor(all.length / 2)])]; });
    c.strokeStyle = COLOURS.faint; c.lineWidth = 1.2; c.setLineDash([4, 4]); if (scale.numeric) this.stroke(c, line); c.setLineDash([]);
    for (const [px, py] of line) c.strokeRect(px - 9, py - .5, 18, 1);
  }

  // ---- two parameters ----

  drawHeat(all) {
    const box = $("heat"); box.replaceChildren(); if ($("heat-box").hidden || !all.length) return;
    const [a, b] = [Number($("heat-x").value), Number($("heat-y").value)], mean = $("heat-of").value === "mean", xs = inOrder(all.map(one => one.settings[a])), ys = inOrder(all.map(one => one.settings[b])).reverse();
    const many_ = xs.length > 40 || ys.length > 40; $("heat-note").hidden = !many_; if (many_) { $("heat-note").textContent = "Too many values for a map: choose parameters with at most 40."; return; }
    const cells = new Map(); for (const one of all) { const key = one.settings[a] + "\0" + one.settings[b]; cells.set(key, [...(cells.get(key) || []), one]); }
    const value = list => mean ? list.reduce((sum, one) => sum + one.best, 0) / list.length : list[0].best;
    const values = [...cells.values()].map(value), [least, most] = this.range(values), low = Math.max(least, Math.min(...values)), high = Math.max(low + 1e-12, Math.min(most, Math.max(...values))), place = v => { const p = Math.min(1, Math.max(0, (v - low) / (high - low))); return this.low ? 1 - p : p; };
    const letters = Math.max(...ys.map(v => String(v).slice(0, 12).length)), left = 14 + 7 * letters, width = box.clientWidth || 500, foot = 22, tall = Math.max(16, Math.min(40, (TALL - foot) / ys.length)), wide = (width - left - 4) / xs.length;
    const svg = document.createElementNS(SVG, "svg"), height = tall * ys.length + foot; svg.setAttribute("width", width); svg.setAttribute("height", height); svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", `${mean ? "Mean" : "Best"} ${this.metric.name} for each ${this.run.parameters[a]} and ${this.run.parameters[b]}`);
    const put_ = (name, attributes, text) => { const made = document.createElementNS(SVG, name); for (const [k, v] of Object.entries(attributes)) made.setAttribute(k, v); if (text != null) made.textContent = text; svg.append(made); return made; };
    const best = Math[this.low ? "min" : "max"](...values), digits = Math.floor((wide - 6) / 6.4), said_ = v => this.fitting(v, digits), labels = values.every(v => { const text = said_(v); return text && Math.abs(Number(text) - v) <= (high - low) / 25; });  // all cells have their value, or none
    ys.forEach((v, j) => put_("text", { x: left - 7, y: tall * (j + .5) + 4, "text-anchor": "end", class: "axis" }, String(v).slice(0, 12)));
    let end = -9; xs.forEach((v, i) => { const text = String(v).slice(0, 10), x = left + wide * (i + .5), half = text.length * 3.3; if (x - half > end + 4) { put_("text", { x, y: height - 7, "text-anchor": "middle", class: "axis" }, text); end = x + half; } });
    ys.forEach((y, j) => xs.forEach((x, i) => {
      const list = cells.get(x + "\0" + y), at = { x: left + wide * i + 1, y: tall * j + 1, width: Math.max(1, wide - 2), height: Math.max(1, tall - 2), rx: 2 };
      if (!list) { put_("rect", { ...at, class: "missing" }); return; }
      const v = value(list), rgb = ramp(place(v), "h"), on = list.some(one => one.on), text = list[0].best;
      const rect = put_("rect", { ...at, fill: css(rgb), class: (v === best ? "best " : "") + (on ? "" : "dim") });
      rect.addEventListener("pointermove", e => tip(e, `${this.run.parameters[a]} ${x}, ${this.run.parameters[b]} ${y}\n${mean ? "mean" : "best"} ${this.metric.name} ${short(v)} of ${many(list.length, "task")}\nbest: task ${list[0].task}, ${short(text)}`));
      rect.addEventListener("pointerleave", e => tip(e, "")); rect.addEventListener("click", () => this.pair(a, x, b, y));
      const said = labels && said_(v); if (said) put_("text", { x: at.x + at.width / 2, y: at.y + at.height / 2 + 4, "text-anchor": "middle", fill: readable(rgb), class: "inside" + (on ? "" : " dim") }, said);
    }));
    box.append(svg); this.scale(low, high);
    $("h-heat").textContent = `${mean ? "Mean" : "Best"} ${this.metric.name} by ${this.run.parameters[a]} and ${this.run.parameters[b]}`;
  }
  fitting(v, digits) { for (let n = 4; n > 1; n--) { const text = String(Number(v.toPrecision(n))); if (text.length <= digits) return text; } return ""; }
  scale(low, high) {
    const box = $("heat-legend"), bar = el("i", undefined, "ramp"), stops = [0, .25, .5, .75, 1].map(p => css(ramp(this.low ? 1 - p : p, "h")));
    bar.style.background = `linear-gradient(to right, ${stops.join(",")})`; const [a, b] = [low, high].map(v => short(Number(v.toPrecision(3)))); box.replaceChildren(el("span", this.low ? a + " best" : a), bar, el("span", this.low ? b : b + " best"));
  }
  pair(a, x, b, y) {
    const same = this.only.get(a)?.value === x && this.only.get(b)?.value === y;
    for (const [at, value] of [[a, x], [b, y]]) { this.only.delete(at); if (!same) this.only.set(at, Object.assign(v => v === value, { value })); }
    this.draw();
  }

  // ---- all parameters ----

  drawParallel(all, found, colour) {
    if ($("parallel-box").hidden || !all.length) return;
    const names = [...this.run.parameters.slice(0, 9), this.metric.name], [c, w] = prepare($("parallel"), TALL), top = 30, bottom = TALL - 14, right = Math.min(80, Math.max(46, w * .12));
    const left = 14 + Math.max(...scaleOf(all.map(one => one.settings[0])).all.map(v => c.measureText(String(v).slice(0, 10)).width));
    const [low, high] = this.range(all.map(one => one.best)), clip = v => Math.min(1, Math.max(0, v));
    this.axes = names.map((name, i) => {
      const last = i === names.length - 1, at = last ? this.last : i, scale = last ? { at: v => clip((v - low) / (high - low)), ticks: ticks(low, high, 5) } : scaleOf(all.map(one => one.settings[i]));
      return { name, at, scale, x: left + (w - left - right) * i / Math.max(1, names.length - 1), of: one => bottom - scale.at(last ? one.best : one.settings[i]) * (bottom - top), says: last ? scale.ticks : scale.all, last, top, bottom, value: y => (bottom - y) / (bottom - top) };
    });
    const alpha = Math.max(.1, Math.min(.85, 60 / found.length)); c.lineJoin = "round";
    for (const on of [false, true]) for (const one of (on ? found : all.filter(one => !one.on)).slice().reverse()) {
      const best = one === found[0]; c.globalAlpha = best ? 1 : on ? Math.max(alpha, .35) : .35; c.strokeStyle = on ? colour.of(one.value) : COLOURS.line; c.lineWidth = best ? 3 : 1;
      this.stroke(c, this.axes.map(axis => [axis.x, axis.of(one)]));
    }
    c.globalAlpha = 1; const room = (w - left - right) / Math.max(1, names.length - 1) - 10;
    for (const axis of this.axes) this.drawAxis(c, axis, room, w);
    $("parallel").setAttribute("aria-label", `Parallel coordinates of ${names.join(", ")}: a line for each of ${many(all.length, "task")}`);
  }
  drawAxis(c, axis, room, w) {
    const { x, top, bottom } = axis, only = this.only.get(axis.at); c.fillStyle = COLOURS.faint; c.fillRect(Math.round(x), top, 1, bottom - top);
    if (only?.between) { const [y0, y1] = only.between; c.fillStyle = COLOURS.accent; c.globalAlpha = .3; c.fillRect(x - 7, y0, 15, y1 - y0); c.globalAlpha = 1; }
    c.textAlign = x < 80 ? "left" : x > w - 90 ? "right" : "center"; c.font = "600 " + SMALL; c.fillStyle = COLOURS.ink;
    let name = axis.name; while (name.length > 3 && c.measureText(name).width > Math.max(60, room)) name = name.slice(0, -2) + "…"; c.fillText(name, x < 80 ? 4 : x > w - 90 ? w - 4 : x, 12); c.font = SMALL;
    let last = Infinity; const far = axis.last ? 1 : -1; c.textAlign = axis.last ? "left" : "right";
    for (const v of axis.says) {
      const y = bottom - (axis.last ? axis.scale.at(v) : axis.scale.at(v)) * (bottom - top); if (y > last - 12) continue; last = y;
      const text = axis.last ? short(v) : String(v).slice(0, 10), wide = c.measureText(text).width, at = x + far * 7;
      c.fillStyle = COLOURS.raised; c.globalAlpha = .8; c.fillRect(axis.last ? at - 2 : at - wide - 2, y - 7, wide + 4, 14); c.globalAlpha = 1; c.fillStyle = COLOURS.ink; c.fillText(text, at, y);
    }
  }
  brushes(canvas) {
    let from = null; const place = e => { const box = canvas.getBoundingClientRect(); return [e.clientX - box.left, e.clientY - box.top]; };
    canvas.addEventListener("pointerdown", e => { const [x, y] = place(e), axis = (this.axes || []).find(one => Math.abs(one.x - x) < 24); if (axis) { from = [axis, y]; canvas.setPointerCapture(e.pointerId); e.preventDefault(); } });
    canvas.addEventListener("pointermove", e => { const [x] = place(e); canvas.style.cursor = (this.axes || []).some(one => Math.abs(one.x - x) < 24) ? "ns-resize" : ""; });
    canvas.addEventListener("pointerup", e => {
      if (!from) return; const [axis, start] = from, [, y] = place(e); from = null;
      if (Math.abs(y - start) < 5) this.only.delete(axis.at);
      else {
        const y0 = Math.max(axis.top, Math.min(start, y)), y1 = Math.min(axis.bottom, Math.max(start, y)), low = axis.value(y1) - 1e-9, high = axis.value(y0) + 1e-9, at = axis.scale.at;
        this.only.set(axis.at, Object.assign(v => { const p = at(v); return low <= p && p <= high; }, { between: [y0, y1] }));
      }
      this.draw();
    });
  }

  // ---- the best ----

  table(found) {
    const r = this.run, head = el("tr"), thead = el("thead"), body = el("tbody"), shown = r.parameters.slice(0, 8), names = inOrder(found.slice(0, BEST).map(one => bare(one.name, r.parameters))).length > 1;
    $("h-best").textContent = `Best ${Math.min(BEST, found.length)} of ${whole(found.length)}`;
    const title = ["task", ...(names ? ["name"] : []), ...shown, "best " + this.metric.name, "step", "last", "state"], right = new Set(["task", "best " + this.metric.name, "step", "last", ...shown.filter((_, i) => numeric(found.map(one => one.settings[i])))]);
    for (const name of title) { const th = el("th", name, right.has(name) ? "n" : ""); th.scope = "col"; head.append(th); }
    thead.append(head);
    for (const one of found.slice(0, BEST)) {
      const tr = el("tr"), first = el("td", undefined, "n"), state = el("td", undefined, "state"); first.append(action(String(one.task), () => this.chosen(r, one.task), "plain")); first.firstChild.setAttribute("aria-label", `Task ${one.task}: show it in the table`); stateCell(state, one.state);
      tr.append(first, ...(names ? [el("td", bare(one.name, r.parameters))] : []), ...shown.map((name, i) => el("td", one.settings[i], right.has(name) ? "n" : "")), el("td", even(one.best), "n value"), el("td", short(one.step), "n"), el("td", even(one.last), "n"), state); body.append(tr);
    }
    $("best").replaceChildren(thead, body);
  }
  nearest(event, points) {
    if (!points) return null;
    const box = event.currentTarget.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top; let near = null, least = 18 ** 2;
    for (const [px, py, one] of points) { const d = (px - x) ** 2 + (py - y) ** 2; if (d < least) { least = d; near = one; } }
    return near;
  }
  about(one) { return `task ${one.task} ${one.name}\nbest ${this.metric.name} ${short(one.best)} at step ${short(one.step)}, last ${short(one.last)}${one.nanFrom == null ? "" : ` (nan from step ${short(one.nanFrom)})`}\n${STATE_WORDS[one.state] || one.state}`; }
}
// Fill a select element with options, and keep its choice if that still exists.
function fillSelect(select, values, usual) {
  const now = JSON.stringify(values); if (select.dataset.now === now) return;
  const before = select.dataset.now ? select.value : null; select.dataset.now = now; select.replaceChildren(...values.map(([value, text]) => option(value, text)));
  if (before !== null && values.some(([value]) => String(value) === before)) select.value = before; else if (usual != null) select.value = usual;
}
