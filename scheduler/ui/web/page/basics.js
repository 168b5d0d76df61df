"use strict";
// Formatting and elements that the live page and the report share.
const $ = id => document.getElementById(id);
function el(name, text, cls) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (cls) made.className = cls;
  return made;
}
const size = b => b == null ? "" : b >= 2 ** 30 ? (b / 2 ** 30).toFixed(1) + "GiB" : Math.round(b / 2 ** 20) + "MiB";
// "18.3 of 24.0GiB": the unit once, where both have the same one.
function part(b, of) { const a = size(b), all = size(of); return (a.slice(-3) === all.slice(-3) ? a.slice(0, -3) : a) + " of " + all; }
const two = n => String(n).padStart(2, "0");
function time(s) {
  if (s == null) return "";
  if (s < 9.95) return Math.max(0, s).toFixed(1) + "s";
  const w = Math.round(s);
  if (w < 60) return w + "s";
  if (w < 3600) return Math.floor(w / 60) + "m" + two(w % 60) + "s";
  if (w < 86400) return Math.floor(w / 3600) + "h" + two(Math.floor(w % 3600 / 60)) + "m";
  return Math.floor(w / 86400) + "d" + two(Math.floor(w % 86400 / 3600)) + "h";
}
const whole = n => n.toLocaleString("en");
const many = (n, word) => `${whole(n)} ${word}${n === 1 ? "" : "s"}`;
const share = x => (100 * x).toFixed(x < .1 ? 1 : 0) + "%";
const called = r => "run " + r.number + (r.name ? " " + r.name : "");
// A number with five digits; what is no number was NaN or infinite.
const short = v => v == null ? "nan" : Number.isInteger(v) && Math.abs(v) < 1e6 ? String(v) : String(Number(v.toPrecision(5)));
// A number with the same number of digits after the point as its neighbours in a column, so that they can be compared.
const even = v => v == null || Number.isInteger(v) ? short(v) : Math.abs(v) >= 1e5 || Math.abs(v) < 1e-3 ? v.toExponential(2) : v.toFixed(Math.abs(v) >= 100 ? 1 : Math.abs(v) >= 10 ? 2 : 4);
const epochs = (done, of) => done == null ? (of ? `–/${of}` : "") : done.toFixed(0) + (of ? "/" + of : "");
// A moment, in seconds since 1970, as the browser's local time; the day is left out where it is today's.
const stamp = s => new Date(s * 1000).toLocaleString("sv");
const clock = s => s == null ? "" : stamp(s).slice(0, 10) === stamp(Date.now() / 1000).slice(0, 10) ? stamp(s).slice(11) : stamp(s).slice(0, 16);
const SOURCE_WORDS = { declared: "declared in the row", profile: "known from earlier attempts", "earlier version": "from an earlier version", similar: "from similar tasks", interpolated: "between similar tasks", probe: "from a probe", measured: "measured as it ran" };
const STATE_WORDS = { oom: "out of memory", timeout: "timed out" };
function option(value, text) { const made = el("option", text); made.value = value; return made; }
function legendOf(box, items) {
  box.replaceChildren(...items.map(([name, colour]) => {
    const item = el("span"), i = el("i"); i.style.background = colour; item.append(i, name); return item;
  }));
}
// The name of a task without its parameters, which have columns of their own.
function bare(name, parameters) {
  const ends = parameters.map(p => name.indexOf(` ${p}=`)).filter(at => at > 0);
  return ends.length ? name.slice(0, Math.min(...ends)) : name;
}
// Numbers before texts; what is missing is last in both directions.
function compare(a, b, down) {
  const none = v => v == null || v === "" || Number.isNaN(v);
  if (none(a) || none(b)) return none(a) - none(b);
  const x = Number(a), y = Number(b), sign = down ? -1 : 1;
  if (!isNaN(x) && !isNaN(y)) return (x - y) * sign;
  if (isNaN(x) !== isNaN(y)) return (isNaN(x) - isNaN(y)) * sign;
  return (a < b ? -1 : a > b ? 1 : 0) * sign;
}
const inOrder = values => [...new Set(values)].sort((a, b) => compare(a, b, false));
function action(name, act, cls) { const b = el("button", name, cls); b.type = "button"; b.addEventListener("click", act); return b; }
