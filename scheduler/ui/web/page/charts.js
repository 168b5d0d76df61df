"use strict";
// The timeline of a run and its memory over time, drawn on canvases from the data of a report.
const PAD = { left: 38, right: 8, axis: 22, head: 20 };
const outcomeOf = b => b[6] === "probe" && b[5] === "succeeded" ? "probe" : b[5];

function ready(r) {
  const at = r.at = Object.fromEntries(r.task_columns.map((n, i) => [n, i]));
  r.priorities = [...new Set(r.tasks.map(t => t[at.priority]))].sort((a, b) => a - b);
  r.byId = new Map(r.tasks.map(t => [t[at.id], t]));
  for (const d of r.devices) {
    d.lanes = d.bars.reduce((m, b) => Math.max(m, b[2] + 1), 0);
    d.points = [];
    d.memory.forEach((m, i) => { for (const s of m.steps) d.points.push([s[0], i, s[1], s[2]]); d.points.push([m.end, i, 0, 0]); });
    d.points.sort((a, b) => a[0] - b[0] || a[2] - b[2]);
    let reserved = 0, held = 0, seen = 0, kept = 0; const now = new Map(); d.most = 0;
    d.points.forEach(([t, i, p, h], k) => {
      const [op, oh] = now.get(i) || [0, 0]; reserved += p - op; held += h - oh; now.set(i, [p, h]);
      if (d.points[k + 1]?.[0] !== t) { d.most = Math.max(d.most, reserved, held); seen = Math.max(seen, held); kept = Math.max(kept, reserved); }  // sums between events of the same moment are not real
    });
    d.used = seen; d.kept = kept;
    d.above = d.capacity && d.most * 5 < d.capacity;  // at full height, the used memory would not be visible
    if (d.capacity && !d.above) d.most = Math.max(d.capacity, seen, Math.min(d.most, d.capacity * 1.25));  // a growing reservation may exceed the capacity for a moment
  }
  return r;
}

class Charts {
  // `colourBy()` returns outcome or priority; `chosen(run, id)` is called with the task that was clicked.
  constructor(runs, colourBy, chosen) {
    this.runs = runs.map(ready); this.colourBy = colourBy; this.chosen = chosen;
    this.longest = Math.max(1e-6, ...runs.map(r => r.seconds));
    this.from = 0; this.to = this.longest; this.due = 0;
    colours();
  }

  // ---- elements ----

  build(r) {
    const box = el("section", undefined, "charts"); if (this.runs.length > 1) box.append(el("h3", called(r)));
    r.legend = el("div", undefined, "legend"); r.timeline = el("canvas"); r.timeline.setAttribute("role", "img");
    r.timeline.setAttribute("aria-label", `Timeline of ${called(r)}: ` + (r.devices.map(d => `${d.label} ${many(d.bars.length, "attempt")}`).join(", ") || "nothing has started"));
    box.append(r.legend, r.timeline);
    if (r.arrows.length) { const says = el("div", undefined, "legend"); says.append(el("span", "arrows: from the end of a task to the start of one that depends on it")); box.append(says); }
    this.draggable(r.timeline, e => { const [d, b] = this.barAt(r, e); return b ? this.aboutBar(r, d, b) : ""; }, e => { const [, b] = this.barAt(r, e); if (b) this.chosen(r, b[0]); });
    for (const d of r.devices) {
      if (!d.memory.length) continue;
      box.append(el("h3", `Memory on ${d.label}` + (d.capacity ? `, ${size(d.capacity)}` : "") + (d.above ? " (capacity is far above this chart)" : "")));
      d.canvas = el("canvas"); d.canvas.setAttribute("role", "img");
      d.canvas.setAttribute("aria-label", `Memory on ${d.label} over time, ${many(d.memory.length, "attempt")} stacked, at most ${size(d.most)} used or reserved`);
      box.append(d.canvas); this.draggable(d.canvas, e => this.aboutMemory(d, e));
      if (d.load.length) {
        const busy = d.load.reduce((sum, p) => sum + p[1], 0) / d.load.length, hot = d.load.reduce((most, p) => Math.max(most, p[3] ?? 0), 0);
        d.busy = el("canvas"); d.busy.setAttribute("role", "img"); d.busy.setAttribute("aria-label", `Utilisation of ${d.label} over time, ${share(busy)} on average`);
        box.append(el("h4", `Utilisation of ${d.label}: ${share(busy)} on average` + (hot ? `, at most ${hot}°C` : "")), d.busy); this.draggable(d.busy, e => this.aboutLoad(d, e));
      }
    }
    const says = el("div", undefined, "legend");
    says.append(el("span", "areas: memory used by each task (highest so far); line: reserved" + (r.devices.some(d => d.capacity && !d.above) ? "; dashed: capacity" : "")));
    box.append(says, this.waits(r));
    return box;
  }

  waits(r) {
    const box = el("div"); box.append(el("h3", "Waiting time by priority (smaller first)"));
    const most = Math.max(1e-9, ...r.waits.map(x => x.max_s)), grid = el("div", undefined, "wait");
    for (const x of r.waits) {
      const track = el("div", undefined, "track"), far = el("i", undefined, "far"), mid = el("i");
      far.style.width = 100 * x.p95_s / most + "%"; mid.style.width = 100 * x.median_s / most + "%"; track.append(far, mid);
      grid.append(el("span", `priority ${x.priority} (${whole(x.tasks)})`), track, el("span", `median ${time(x.median_s)}, 95th percentile ${time(x.p95_s)}, maximum ${time(x.max_s)}`, "says"));
    }
    box.append(r.waits.length ? grid : el("p", "No task has started."));
    return box;
  }

  // ---- drawing ----

  redraw() { if (!this.due) this.due = requestAnimationFrame(() => { this.due = 0; this.draw(); }); }
  draw() { for (const r of this.runs) { this.legend(r); this.drawTimeline(r); for (const d of r.devices) { if (d.canvas) this.drawMemory(d); if (d.busy) this.drawLoad(d); } } }
  recolour() { colours(); this.redraw(); }
  get span() { return this.to - this.from; }
  zoom(from, to) {
    const span = Math.min(this.longest, Math.max(this.longest / 5000, to - from));
    this.from = Math.min(Math.max(0, from), this.longest - span); this.to = this.from + span; this.redraw();
  }
  move(by) { this.zoom(this.from + by * this.span, this.to + by * this.span); }
  scale(by) { const middle = (this.from + this.to) / 2, half = this.span * by / 2; this.zoom(middle - half, middle + half); }
  all() { this.zoom(0, this.longest); }
  xAt(t, w) { return PAD.left + (t - this.from) / this.span * (w - PAD.left - PAD.right); }
  tAt(x, w) { return this.from + (x - PAD.left) / (w - PAD.left - PAD.right) * this.span; }

  prepare(canvas, height) {
    const width = canvas.clientWidth || canvas.parentNode.clientWidth || 600, ratio = window.devicePixelRatio || 1;
    canvas.style.height = height + "px"; canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
    const c = canvas.getContext("2d"); c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.fillStyle = COLOURS.paper; c.fillRect(0, 0, width, height); c.font = FONT; c.textBaseline = "middle";
    return [c, width];
  }
  axis(c, w, top, bottom) {
    const most = Math.max(2, Math.floor(w / 110)), step = STEPS.find(s => this.span / s <= most) || this.span / most;
    c.textAlign = "center";
    for (let t = Math.ceil(this.from / step) * step; t <= this.to + 1e-9; t += step) {
      const x = this.xAt(t, w); c.fillStyle = COLOURS.line; c.fillRect(Math.round(x), top, 1, bottom - top);
      const text = mark(t), half = c.measureText(text).width / 2;
      c.fillStyle = COLOURS.faint; c.fillText(text, Math.min(Math.max(x, half + 2), w - half - 2), bottom + PAD.axis / 2);
    }
  }
  colourOf(r, b) {
    if (this.colourBy() === "outcome") return COLOURS[outcomeOf(b)] || COLOURS.faint;
    const t = r.byId.get(b[0]); return COLOURS["p" + (t ? r.priorities.indexOf(t[r.at.priority]) % 8 : 7)];
  }
  legend(r) {
    const first = r.priorities.slice(0, 8).map((p, i) => ["priority " + p, COLOURS["p" + i]]), rest = r.priorities.length - 8;
    legendOf(r.legend, this.colourBy() === "outcome"
      ? [...new Set(r.devices.flatMap(d => d.bars.map(outcomeOf)))].map(o => [o, COLOURS[o] || COLOURS.faint])
      : rest > 0 ? [...first, [`and ${rest} more (colours repeat)`, "transparent"]] : first);
  }
  layout(r) {
    const layout = []; let y = 0;
    for (const d of r.devices) {
      if (!d.bars.length) continue;
      const lane = Math.max(3, Math.min(18, Math.floor(420 / d.lanes)));
      layout.push({ d, top: y + PAD.head, lane }); y += PAD.head + lane * d.lanes + 6;
    }
    r.layout = layout;
    return Math.max(60, y + PAD.axis);
  }
  drawTimeline(r) {
    const height = Math.max(...this.runs.map(one => this.layout(one))), [c, w] = this.prepare(r.timeline, height), layout = r.layout;
    this.axis(c, w, 0, height - PAD.axis);
    for (const one of layout) this.drawDevice(r, c, w, one);
    this.drawArrows(r, c, w, layout);
    if (!layout.length) { c.textAlign = "center"; c.fillStyle = COLOURS.faint; c.fillText("nothing has started yet", w / 2, (height - PAD.axis) / 2); }
  }
  drawDevice(r, c, w, { d, top, lane }) {
    const tall = lane - (lane > 4 ? 1 : 0);
    for (const b of d.bars) {
      if (b[4] < this.from || b[3] > this.to) continue;
      const x0 = Math.max(PAD.left, this.xAt(b[3], w)), x1 = Math.min(w - PAD.right, this.xAt(b[4], w)), wide = Math.max(1, x1 - x0);
      c.fillStyle = this.colourOf(r, b); c.fillRect(x0, top + b[2] * lane, wide > 3 ? wide - 1 : wide, tall);
      if (lane >= 13 && wide > 26) {
        c.textAlign = "left"; c.fillStyle = COLOURS.paper; c.font = SMALL;
        if (c.measureText(String(b[0])).width + 6 < wide) c.fillText(String(b[0]), x0 + 3, top + b[2] * lane + lane / 2);
        c.font = FONT;
      }
    }
    const text = `${d.label}: ${many(d.bars.length, "attempt")}, at most ${d.lanes} at the same time`;
    c.textAlign = "left"; c.fillStyle = COLOURS.paper; c.fillRect(8, top - PAD.head + 2, c.measureText(text).width + 6, PAD.head - 4);
    c.fillStyle = COLOURS.ink; c.fillText(text, 8, top - PAD.head / 2);
  }
  drawArrows(r, c, w, layout) {  // from the last end of a parent to the first start of its child after that
    if (!r.arrows.length) return;
    const bars = new Map();
    for (const { d, top, lane } of layout) for (const b of d.bars) bars.set(b[0], [...(bars.get(b[0]) || []), [b[3], b[4], top + (b[2] + .5) * lane]]);
    c.save(); c.beginPath(); c.rect(PAD.left, 0, w - PAD.left - PAD.right, c.canvas.height); c.clip();
    c.strokeStyle = c.fillStyle = COLOURS.ink; c.lineWidth = 1; c.globalAlpha = r.arrows.length > 60 ? .3 : .6;
    for (const [parent, child] of r.arrows) {
      const from = (bars.get(parent) || []).reduce((last, b) => last && last[1] > b[1] ? last : b, null);
      const to = from && (bars.get(child) || []).filter(b => b[0] >= from[1] - 1e-3).sort((a, b) => a[0] - b[0])[0];
      if (!to) continue;
      const x0 = this.xAt(from[1], w), x1 = this.xAt(to[0], w), slope = Math.atan2(to[2] - from[2], x1 - x0);
      c.beginPath(); c.moveTo(x0, from[2]); c.lineTo(x1, to[2]); c.stroke();
      c.beginPath(); c.moveTo(x1, to[2]);
      for (const side of [-.4, .4]) c.lineTo(x1 - 7 * Math.cos(slope + side), to[2] - 7 * Math.sin(slope + side));
      c.fill();
    }
    c.restore();
  }
  drawMemory(d) {
    const height = 150, [c, w] = this.prepare(d.canvas, height), bottom = height - PAD.axis, top = 8;
    const most = d.most * 1.05 || 1, yAt = b => bottom - b / most * (bottom - top);
    this.axis(c, w, 0, bottom); this.heights(c, w, most, yAt);
    const now = new Map(), line = []; let reserved = 0;
    const at = t => Math.max(PAD.left, Math.min(w - PAD.right, this.xAt(t, w)));
    const paint = (x0, x1) => {
      let sum = 0;
      for (const [n, [, h]] of now) {
        if (!h) continue;
        const y1 = yAt(sum), y0 = yAt(sum + h); sum += h;
        c.fillStyle = COLOURS.ours; c.globalAlpha = d.memory[n].task % 2 ? .9 : .65; c.fillRect(x0, y0, Math.max(.5, x1 - x0), Math.max(.5, y1 - y0 - .4));
      }
      c.globalAlpha = 1;
    };
    let x = at(d.points.length ? d.points[0][0] : 0);
    for (const [t, n, p, h] of d.points) {
      const nx = at(t);
      if (nx - x >= .75) { paint(x, nx); line.push([x, reserved], [nx, reserved]); x = nx; }
      const old = now.get(n); reserved += p - (old ? old[0] : 0);
      if (p || h) now.set(n, [p, h]); else now.delete(n);
    }
    line.push([x, reserved]);
    c.beginPath(); c.strokeStyle = COLOURS.reservation; c.lineWidth = 1.3;
    line.forEach(([lx, b], k) => k ? c.lineTo(lx, yAt(b)) : c.moveTo(lx, yAt(b))); c.stroke();
    if (d.capacity && !d.above) {
      c.setLineDash([5, 4]); c.strokeStyle = COLOURS.failed; c.beginPath(); c.moveTo(PAD.left, yAt(d.capacity)); c.lineTo(w - PAD.right, yAt(d.capacity)); c.stroke(); c.setLineDash([]);
    }
  }
  drawLoad(d) {
    const height = 84, [c, w] = this.prepare(d.busy, height), bottom = height - PAD.axis, top = 8, y = v => bottom - Math.min(1, v) * (bottom - top);
    this.axis(c, w, 0, bottom); c.textAlign = "right"; c.font = SMALL;
    for (const v of [0, .5, 1]) { c.fillStyle = COLOURS.line; c.fillRect(PAD.left, Math.round(y(v)), w - PAD.left - PAD.right, 1); c.fillStyle = COLOURS.faint; c.fillText(100 * v + "%", PAD.left - 4, y(v)); }
    c.save(); c.beginPath(); c.rect(PAD.left, 0, w - PAD.left - PAD.right, height); c.clip();
    const points = d.load.map(p => [this.xAt(p[0], w), y(p[1])]); c.beginPath(); c.moveTo(points[0][0], bottom);
    for (const [px, py] of points) c.lineTo(px, py);
    c.lineTo(points.at(-1)[0], bottom); c.fillStyle = COLOURS.accent; c.globalAlpha = .25; c.fill(); c.globalAlpha = 1;
    c.beginPath(); points.forEach(([px, py], k) => k ? c.lineTo(px, py) : c.moveTo(px, py)); c.strokeStyle = COLOURS.accent; c.lineWidth = 1.3; c.stroke(); c.restore(); c.font = FONT;
  }
  aboutLoad(d, event) {
    const box = d.busy.getBoundingClientRect(), t = this.tAt(event.clientX - box.left, box.width), p = d.load.reduce((near, one) => Math.abs(one[0] - t) < Math.abs(near[0] - t) ? one : near);
    return `${time(p[0])}: ${Math.round(100 * p[1])}% busy, ${size(p[2])} used` + (p[3] == null ? "" : `, ${p[3]}°C`);
  }
  heights(c, w, most, yAt) {
    let step = 2 ** Math.ceil(Math.log2(most / 3)); if (most / step < 2) step /= 2;
    c.textAlign = "right"; c.font = SMALL;
    for (let b = 0; b < most; b += step) {
      const y = Math.max(7, yAt(b)); c.fillStyle = COLOURS.line; c.fillRect(PAD.left, Math.round(yAt(b)), w - PAD.left - PAD.right, 1);
      c.fillStyle = COLOURS.faint; c.fillText(b >= 2 ** 30 ? +(b / 2 ** 30).toFixed(1) + "G" : Math.round(b / 2 ** 20) + (b ? "M" : ""), PAD.left - 4, y);
    }
    c.font = FONT;
  }

  // ---- pointer ----

  barAt(r, event) {
    const box = r.timeline.getBoundingClientRect(), y = event.clientY - box.top, t = this.tAt(event.clientX - box.left, box.width), near = this.span / box.width * 1.5;
    for (const { d, top, lane } of r.layout) {
      const n = Math.floor((y - top) / lane);
      if (y >= top && n < d.lanes) return [d, d.bars.find(b => b[2] === n && b[3] - near <= t && t <= b[4] + near)];
    }
    return [null, null];
  }
  aboutBar(r, d, b) {
    const t = r.byId.get(b[0]);
    return `task ${b[0]} ${t ? t[r.at.name] : ""}\n${outcomeOf(b)}${b[6] === "probe" ? " (probe)" : ""}, attempt ${b[1]} on ${d.label}\n`
      + `${time(b[3])} to ${time(b[4])} (${time(b[4] - b[3])})\npeak ${size(b[8])} of ${size(b[7])} reserved (${SOURCE_WORDS[b[9]] || b[9]})`
      + (t ? `\npriority ${t[r.at.priority]}, waited ${time(t[r.at.waited_s])}` : "");
  }
  aboutMemory(d, event) {
    const box = d.canvas.getBoundingClientRect(), t = this.tAt(event.clientX - box.left, box.width); let reserved = 0, held = 0; const who = [];
    for (const m of d.memory) {
      if (m.end <= t || m.steps[0][0] > t) continue;
      const s = m.steps.filter(s => s[0] <= t).at(-1); reserved += s[1]; held += s[2]; who.push([s[2], s[1], m.task]);
    }
    who.sort((a, b) => b[0] - a[0]);
    return `${time(t)}: ${many(who.length, "task")}, ${size(held)} used, ${size(reserved)} reserved${d.capacity ? " of " + size(d.capacity) : ""}`
      + who.slice(0, 8).map(([h, p, n]) => `\ntask ${n}: ${size(h)} of ${size(p)}`).join("") + (who.length > 8 ? `\nand ${who.length - 8} more` : "");
  }
  draggable(canvas, hover, click) {
    let from = null;
    canvas.addEventListener("pointerdown", e => { from = e.clientX; canvas.setPointerCapture(e.pointerId); });
    canvas.addEventListener("pointermove", e => tip(e, hover(e)));
    canvas.addEventListener("pointerleave", e => tip(e, ""));
    canvas.addEventListener("pointerup", e => {
      const box = canvas.getBoundingClientRect(); if (from === null) return;
      const a = this.tAt(Math.min(from, e.clientX) - box.left, box.width), b = this.tAt(Math.max(from, e.clientX) - box.left, box.width), far = Math.abs(e.clientX - from) > 6; from = null;
      if (far) this.zoom(a, b); else if (click) click(e);
    });
  }

  // ---- buttons ----

  controls(box) {
    const made = [["Zoom in", () => this.scale(.5)], ["Zoom out", () => this.scale(2)], ["Earlier", () => this.move(-.5)], ["Later", () => this.move(.5)],
      ["Whole run", () => this.all()], ["Save PNG", () => this.savePictures()]];
    box.append(...made.map(([name, act]) => { const b = el("button", name); b.type = "button"; b.addEventListener("click", act); return b; }));
  }
  savePictures() { for (const r of this.runs) { const a = el("a"); a.href = r.timeline.toDataURL("image/png"); a.download = `run-${r.number}.png`; a.click(); } }
}
