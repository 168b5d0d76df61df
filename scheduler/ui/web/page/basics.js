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
function option(value, text) { const made = el("option", text); made.value = value; return made; }
function legendOf(box, items) {
  box.replaceChildren(...items.map(([name, colour]) => {
    const item = el("span"), i = el("i"); i.style.background = colour; item.append(i, name); return item;
  }));
}
