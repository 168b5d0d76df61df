"use strict";
// Charts over time, which uPlot draws in the colours of the page; and colours along a scale.
const FONT = "12px system-ui, sans-serif", SMALL = "11px system-ui, sans-serif";
const STEPS = [.1, .2, .5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800, 1209600];
const NAMED = ["paper", "ink", "faint", "line", "panel", "raised", "accent", "succeeded", "failed", "oom", "timeout", "interrupted", "cancelled",
  "lost", "unstarted", "again", "running", "probe", "reservation", "ours", "h0", "h1", "h2", "r0", "r1", "r2", "r3", "r4", "p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7"];
let COLOURS = {};
function colours() {
  const style = getComputedStyle(document.documentElement);
  COLOURS = Object.fromEntries(NAMED.map(name => [name, style.getPropertyValue("--" + name).trim()]));
}
const mark = t => t < 1e-9 ? "0" : time(t).replace(/^(\d+[mhd])00[smh]$/, "$1").replace(/^(\d)\.0s$/, "$1s");
const bytes = b => b >= 2 ** 30 ? +(b / 2 ** 30).toFixed(1) + "G" : Math.round(b / 2 ** 20) + (b ? "M" : "");

// The colour at a place from 0 to 1 of a scale, as red, green and blue. Values of parameters have the scale "r", values of
// metrics the scale "h", whose strongest colour is the best value.
function ramp(place, scale = "r") {
  const parts = scale === "r" ? 4 : 2, at = Math.min(parts - 1e-4, Math.max(0, place) * parts), n = Math.floor(at), part = at - n;
  const [a, b] = [COLOURS[scale + n], COLOURS[scale + (n + 1)]].map(c => [1, 3, 5].map(i => parseInt(c.slice(i, i + 2), 16)));
  return a.map((v, i) => Math.round(v + (b[i] - v) * part));
}
const css = rgb => `rgb(${rgb.join(" ")})`;
// Black or white, whichever is easier to read on a colour.
function readable(rgb) {
  const [r, g, b] = rgb.map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
  return .2126 * r + .7152 * g + .0722 * b > .18 ? "#000" : "#fff";
}

const PLOTS = new Map();
const WATCHED = new ResizeObserver(found => {
  for (const { target } of found) {
    const u = PLOTS.get(target); if (!u) continue;
    if (!target.isConnected) { PLOTS.delete(target); WATCHED.unobserve(target); u.destroy(); continue; }
    const width = Math.floor(target.clientWidth); if (width && width !== u.width) u.setSize({ width, height: u.height });
  }
});
function forget(box) { const u = PLOTS.get(box); if (u) { PLOTS.delete(box); WATCHED.unobserve(box); u.destroy(); } }
const AXES = {
  number: { values: (u, all) => all.map(v => v == null ? "" : short(v)) },
  count: { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 1e4, 1e5, 1e6], values: (u, all) => all.map(v => String(v)) },
  time: { incrs: STEPS, space: 70, values: (u, all) => all.map(mark) },
  bytes: { incrs: [...Array(48).keys()].map(n => 2 ** n), values: (u, all) => all.map(bytes) },
};
// The kind of the axis of steps: epochs have no halves.
const stepKind = steps => steps.every(Number.isInteger) ? "count" : "number";
// Draw a chart in a box: series have { stroke(), fill(), values, stepped, dots }, over `x`; `dots` marks each value and
// draws over values that are missing; `x` and `y` name a kind of axis.
function plot(box, { x, series, kinds, label, tall = 170, most, least, scales = {}, hooks = {}, drag = true, logarithmic }) {
  forget(box); box.classList.add("plot"); box.setAttribute("role", "img"); box.setAttribute("aria-label", label);
  const axis = (kind, more) => ({ stroke: () => COLOURS.faint, font: SMALL, grid: { stroke: () => COLOURS.line, width: 1 }, ticks: { show: false }, gap: 4, ...AXES[kind], ...more });
  const range = (u, low, high) => {
    low = least ?? low; high = most ?? high;
    if (low == null || high == null) return [0, 1];
    const pad = (high - low) * .04 || Math.abs(high) * .05 || 1; return [least ?? low - pad, most ?? high + pad];
  };
  const u = new uPlot({
    width: Math.max(120, Math.floor(box.clientWidth) || 320), height: tall, legend: { show: false }, padding: [8, 10, 0, 0],
    cursor: { drag: { x: drag, y: false, dist: 6 }, points: { size: 6 }, y: false },
    scales: { x: { time: false, ...scales.x }, y: { range, ...(logarithmic ? { distr: 3 } : {}), ...scales.y } },
    axes: [axis(kinds[0], { size: 26, space: kinds[0] === "time" ? 70 : 50 }), axis(kinds[1], { size: 54, space: 28 })],
    series: [{}, ...series.map(s => ({ stroke: s.stroke, fill: s.fill, width: s.width ?? 1.6, dash: s.dash, points: { show: s.values.length < 2 || !!s.dots, size: 4 }, spanGaps: !!s.dots, paths: s.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined }))],
    hooks,
  }, [x, ...series.map(s => s.values)], box);
  PLOTS.set(box, u); WATCHED.observe(box);
  return u;
}
// A red cross where a curve became NaN or infinite.
function drawCross(c, x, y) {
  const far = 4.5 * (window.devicePixelRatio || 1); c.save(); c.globalAlpha = 1; c.strokeStyle = COLOURS.failed; c.lineWidth = far / 2;
  c.beginPath(); for (const sign of [-1, 1]) { c.moveTo(x - far, y - sign * far); c.lineTo(x + far, y + sign * far); } c.stroke(); c.restore();
}
function recolourPlots() { colours(); for (const [box, u] of PLOTS) if (box.isConnected) u.redraw(false); else forget(box); }

// ---- the text next to the pointer ----

function tip(event, text) {
  const t = $("tip");
  if (!text) { t.style.display = "none"; return; }
  t.textContent = text; t.style.display = "block";
  t.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - t.offsetWidth - 6)) + "px";
  t.style.top = (event.clientY + 18 + t.offsetHeight > innerHeight ? Math.max(4, event.clientY - t.offsetHeight - 10) : event.clientY + 18) + "px";
}
