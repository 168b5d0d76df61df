"use strict";
// A table whose columns can be sorted, hidden and moved, and whose rows open in place. The live page and the report use it.
//
// A column: { id, label, num, fixed, off, out, cls, title, sort, text(row), draw(td, row) }. `fixed` cannot be hidden, `phone` stays on a phone, or not if it is false; `off` is
// hidden until it is chosen; `out` is its rank among the columns that are hidden where there is no room, the lowest first;
// `sort` is false for a column that has no order. A row keeps its element while it is shown, so that the keyboard keeps its
// place.

class Grid {
  // `sorted(by, down)` is called when another order is chosen, `opened(row)` returns the element that is shown below a row.
  constructor(table, { key, sorted, opened, remember }) {
    Object.assign(this, { table, key, sorted, opened, remember, columns: [], rows: [], by: "", down: false, open: new Map(), order: null, choice: {}, gone: new Set(), fitted: "" });
    table.classList.add("grid"); table.append(el("thead"), el("tbody"));
    table.tBodies[0].addEventListener("click", e => this.clicked(e));
    table.tBodies[0].addEventListener("keydown", e => this.pressed(e));
    this.recall();
    let late = 0; addEventListener("resize", () => { clearTimeout(late); late = setTimeout(() => this.draw(), 80); });
  }

  // ---- which columns, and in which order ----

  recall() { try { Object.assign(this, JSON.parse(localStorage.getItem(this.remember)) || {}); } catch { /* no storage, or not ours */ } }
  keep() { try { localStorage.setItem(this.remember, JSON.stringify({ order: this.order, choice: this.choice })); } catch { /* it is kept until the page is closed */ } }
  has(c) { return c.fixed || (this.choice[c.id] ?? !(c.off || this.gone.has(c.id))); }
  inOrder() {
    if (!this.order) return this.columns;
    const place = new Map(this.order.map((id, i) => [id, i]));
    // A column that was not there when the order was chosen stays beside its usual neighbour.
    let last = -1; const keyed = this.columns.map((c, i) => { const at = place.get(c.id); last = at ?? last + 1e-6; return [last, i, c]; });
    return keyed.sort((a, b) => a[0] - b[0] || a[1] - b[1]).map(([, , c]) => c);
  }
  get shown() { return this.inOrder().filter(c => this.has(c)); }
  choose(id, on) { this.choice[id] = on; this.keep(); this.draw(); }
  move(id, before) {
    if (id === before) return;
    const ids = this.inOrder().map(c => c.id).filter(one => one !== id);
    ids.splice(before == null ? ids.length : ids.indexOf(before), 0, id);
    this.order = ids; this.keep(); this.draw();
  }
  shift(id, by) {
    const ids = this.shown.map(c => c.id), at = ids.indexOf(id), to = at + by;
    if (to < 0 || to >= ids.length) return;
    this.move(id, by < 0 ? ids[to] : ids[to + 1] ?? null);
  }
  reset() { this.order = null; this.choice = {}; this.keep(); this.draw(); }

  // The list of columns, for a <details> element: a box to show each one, and buttons to move it.
  chooser(box) {
    const list = el("ul", undefined, "columns"), all = el("button", "Usual columns"); all.type = "button"; all.dataset.all = "";
    all.addEventListener("click", () => { this.reset(); this.fillChooser(list); });
    box.append(list, all); this.list = list;
    box.closest("details").addEventListener("toggle", () => this.fillChooser(list));
    box.closest("details").addEventListener("keydown", e => { if (e.key === "Escape") { const d = e.currentTarget; d.open = false; d.querySelector("summary").focus(); e.stopPropagation(); } });
    document.addEventListener("pointerdown", e => { const d = box.closest("details"); if (d.open && !d.contains(e.target)) d.open = false; });
  }
  fillChooser(list) {
    const focus = document.activeElement?.dataset?.focus;
    list.replaceChildren(...this.inOrder().map(c => {
      const item = el("li"), label = el("label"), box = el("input"); box.type = "checkbox"; box.checked = this.has(c); box.disabled = !!c.fixed; box.dataset.choose = c.id;
      box.addEventListener("change", () => this.choose(c.id, box.checked));
      label.append(box, " ", c.label); item.append(label);
      for (const [by, sign, word] of [[-1, "↑", "earlier"], [1, "↓", "later"]]) {
        const b = el("button", sign, "small"); b.type = "button"; b.setAttribute("aria-label", `Move ${c.label} ${word}`); b.dataset.focus = c.id + by;
        b.addEventListener("click", () => { const ids = this.inOrder().map(one => one.id), to = ids.indexOf(c.id) + by; if (to < 0 || to >= ids.length) return; this.move(c.id, by < 0 ? ids[to] : ids[to + 1] ?? null); this.fillChooser(list); });
        item.append(b);
      }
      return item;
    }));
    if (focus) [...list.querySelectorAll("[data-focus]")].find(b => b.dataset.focus === focus)?.focus();
  }

  // ---- the table ----

  set(columns, rows) { this.columns = columns; this.rows = rows; this.draw(); }
  // Columns with a number in `out` are hidden where the table is too wide, the lowest first, unless they were chosen.
  draw() {
    const box = this.table.closest(".table"), wide = box?.clientWidth || 0, now = wide + JSON.stringify(this.columns.map(c => [c.id, c.off]));
    if (this.fitted !== now) { this.fitted = now; this.gone = new Set(innerWidth <= 640 ? this.columns.filter(c => c.phone === false || c.out && !c.phone).map(c => c.id) : []); }  // a phone shows what matters
    this.paint();
    while (wide && this.table.offsetWidth > wide + 1) {
      const next = this.shown.filter(c => c.out && this.choice[c.id] === undefined).sort((a, b) => a.out - b.out)[0]; if (!next) return;
      this.gone.add(next.id); this.paint();
    }
  }
  paint() {
    const shown = this.shown, now = JSON.stringify([shown.map(c => [c.id, c.label]), this.by, this.down]);
    if (this.table.dataset.now !== now) this.drawHead(shown, now);
    const body = this.table.tBodies[0], old = new Map([...body.rows].map(tr => [tr.dataset.key, tr])), made = [];
    for (const row of this.rows) {
      const key = String(this.key(row)); let tr = old.get(key); old.delete(key);
      if (!tr) tr = this.newRow(key, shown);
      shown.forEach((c, i) => { const td = tr.cells[i]; if (c.first) this.drawFirst(td, row, key, c); else if (c.draw) c.draw(td, row); else { const text = c.text(row); if (td.textContent !== text) { td.textContent = text; td.title = text.length > 12 && !c.num ? text : ""; } } });
      made.push(tr);
      const open = this.open.get(key); old.delete("open-" + key);
      if (open) { open.cells[0].colSpan = Math.max(1, shown.length); made.push(open); }
    }
    for (const tr of old.values()) tr.remove();
    made.forEach((tr, i) => { if (body.rows[i] !== tr) body.insertBefore(tr, body.rows[i] || null); });
    if (!made.length) { const tr = el("tr", undefined, "none"), td = el("td", "no matching tasks"); td.colSpan = Math.max(1, shown.length); tr.append(td); body.replaceChildren(tr); }
  }
  newRow(key, shown) {
    const tr = el("tr", undefined, "row"); tr.dataset.key = key;
    for (const c of shown) { const td = el("td", undefined, [c.num ? "n" : "", c.cls || ""].join(" ").trim()); td.dataset.label = c.short ?? c.label; td.dataset.column = c.id; tr.append(td); }
    return tr;
  }
  drawFirst(td, row, key, c) {
    let b = td.firstChild;
    if (!b) { b = el("button", undefined, "opens"); b.type = "button"; b.append(el("i", undefined, "chevron"), el("span")); b.firstChild.setAttribute("aria-hidden", "true"); td.append(b); }
    const text = c.text(row); if (b.lastChild.textContent !== text) { b.lastChild.textContent = text; b.setAttribute("aria-label", `Task ${text}: details`); }
    b.setAttribute("aria-expanded", String(this.open.has(key)));
  }
  drawHead(shown, now) {
    const focused = this.table.tHead.contains(document.activeElement) ? document.activeElement.dataset.sort : null, tr = el("tr");
    for (const c of shown) {
      const th = el("th", undefined, [c.num ? "n" : "", c.cls || ""].join(" ").trim()), on = this.by === c.id; th.scope = "col"; th.dataset.column = c.id;
      th.title = c.title || (c.label.length > 14 ? c.label : "");
      if (c.sort === false) th.append(el("span", c.label));
      else {
        const b = el("button"); b.type = "button"; b.dataset.sort = c.id; b.append(el("span", c.label, "label"),el("i", on ? (this.down ? "↓" : "↑") : ""));
        b.addEventListener("click", () => this.order_(c.id)); b.addEventListener("keydown", e => { if (e.altKey && (e.key === "ArrowLeft" || e.key === "ArrowRight")) { e.preventDefault(); this.shift(c.id, e.key === "ArrowLeft" ? -1 : 1); } });
        th.append(b); th.setAttribute("aria-sort", on ? (this.down ? "descending" : "ascending") : "none");
      }
      this.draggable(th, c); tr.append(th);
    }
    const again = this.table.dataset.now; this.table.dataset.now = now; this.table.tHead.replaceChildren(tr);
    if (again && JSON.stringify(JSON.parse(again)[0]) !== JSON.stringify(JSON.parse(now)[0])) for (const row of [...this.table.tBodies[0].rows]) if (row.dataset.key?.startsWith("open-") !== true) row.remove();
    if (focused) [...this.table.tHead.querySelectorAll("[data-sort]")].find(b => b.dataset.sort === focused)?.focus();
  }
  order_(id) {
    const first = this.columns.find(c => c.id === id)?.down ?? false;  // a metric that is better when it is higher begins at the highest
    if (this.by !== id) { this.by = id; this.down = first; } else if (this.down === first) this.down = !first; else { this.by = ""; this.down = false; }
    this.sorted(this.by, this.down);
  }
  // The pointer is followed on the whole page, since it may leave the head at once.
  draggable(th, c) {
    let from = null, far = false, target = null;
    const marks = () => { for (const one of th.parentNode?.children || []) one.classList.remove("before", "after", "moves"); };
    const moved = e => {
      if (!far && Math.abs(e.clientX - from) < 6) return;
      far = true; marks(); th.classList.add("moves");
      const all = [...th.parentNode.children], over = all.find(one => { const b = one.getBoundingClientRect(); return e.clientX >= b.left && e.clientX < b.right; }) || (e.clientX > from ? all.at(-1) : all[0]);
      const box = over.getBoundingClientRect(), after = e.clientX > box.left + box.width / 2, ids = this.shown.map(one => one.id);
      over.classList.add(after ? "after" : "before"); target = { before: ids[ids.indexOf(over.dataset.column) + (after ? 1 : 0)] ?? null };
    };
    const ended = e => {
      removeEventListener("pointermove", moved); removeEventListener("pointerup", ended); removeEventListener("pointercancel", ended); marks();
      if (e.type === "pointerup" && far && target) this.move(c.id, target.before);
      setTimeout(() => { far = false; });
    };
    th.addEventListener("pointerdown", e => {
      if (e.button !== 0 || e.pointerType === "touch") return;
      from = e.clientX; far = false; target = null;
      addEventListener("pointermove", moved); addEventListener("pointerup", ended); addEventListener("pointercancel", ended);
    });
    th.addEventListener("click", e => { if (far) { e.stopPropagation(); e.preventDefault(); } }, true);
  }

  // ---- a row that opens ----

  rowOf(key) { return this.rows.find(row => String(this.key(row)) === key); }
  clicked(e) {
    const tr = e.target.closest("tr.row"); if (!tr || e.target.closest("button:not(.opens), a, input, select") || String(getSelection())) return;
    this.toggle(tr.dataset.key);
  }
  pressed(e) {
    const inside = e.key === "Escape" && e.target.closest?.("tr.open");
    if (inside) { const key = inside.dataset.key.slice(5); e.stopPropagation(); this.toggle(key, false); this.focus(key); return; }
    const b = e.target.closest?.("button.opens"); if (!b || e.altKey || e.ctrlKey || e.metaKey) return;
    const all = [...this.table.tBodies[0].querySelectorAll("button.opens")], at = all.indexOf(b);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 }[e.key];
    if (to != null && all[to]) { e.preventDefault(); all[to].focus(); }
    else if (e.key === "Escape" && this.open.has(b.closest("tr").dataset.key)) this.toggle(b.closest("tr").dataset.key);
  }
  toggle(key, on = !this.open.has(key)) {
    key = String(key);
    if (!this.opened || on === this.open.has(key)) return;
    if (!on) { const tr = this.open.get(key); tr.dispatchEvent(new Event("closed")); this.open.delete(key); tr.remove(); this.draw(); return; }
    const row = this.rowOf(key); if (!row) return;
    const tr = el("tr", undefined, "open"), td = el("td"); tr.dataset.key = "open-" + key; tr.append(td); this.open.set(key, tr); this.draw();
    td.append(this.opened(row, tr));
  }
  closeAll() { for (const key of [...this.open.keys()]) this.toggle(key, false); }
  focus(key) { this.table.querySelector(`tr[data-key="${CSS.escape(String(key))}"] button.opens`)?.focus(); }
}

// ---- cells that both pages have ----

function stateCell(td, state) {
  if (td.dataset.now === state) return;
  td.dataset.now = state; const dot = el("i", undefined, "dot"); dot.style.background = `var(--${state}, var(--faint))`;
  td.replaceChildren(dot, STATE_WORDS[state] || state);
}
const FAILURES = ["failed", "oom", "timeout", "refused"];
function reasonCell(td, t) {
  const text = t.reason || ""; if (td.textContent !== text) { td.textContent = text; td.title = text; }
  td.classList.toggle("bad", FAILURES.includes(t.state));
}
function memoryCell(td, peak, reserved) {
  const text = reserved == null ? "" : `${size(peak) || "–"} / ${size(reserved)}`;
  if (td.dataset.now === text) return;
  td.dataset.now = text; td.replaceChildren(); if (!text) return;
  const box = el("span", undefined, "memory"), i = el("i", undefined, peak > reserved ? "tight" : ""); i.style.width = Math.min(100, 100 * (peak || 0) / (reserved || 1)) + "%"; box.append(i);
  td.append(box, text);
}
// A value with the shape of its curve before it.
const SVG = "http://www.w3.org/2000/svg";
function curveCell(td, value, values) {
  const text = value === undefined ? "" : even(value), now = text + (values || []).join(); if (td.dataset.now === now) return;
  td.dataset.now = now; td.replaceChildren(); if (!text) return;
  const known = (values || []).filter(v => v != null);
  if (known.length > 1) td.append(spark(known));
  td.append(el("span", text, value === null ? "number bad" : "number"));
}
function spark(values, wide = 44, tall = 14, [low, high] = [Math.min(...values), Math.max(...values)]) {
  const span = high - low || 1, made = document.createElementNS(SVG, "svg"), line = document.createElementNS(SVG, "polyline");
  made.setAttribute("viewBox", `0 0 ${wide} ${tall}`); made.setAttribute("class", "spark"); made.setAttribute("aria-hidden", "true");
  line.setAttribute("points", values.map((v, i) => `${(i / (values.length - 1) * (wide - 2) + 1).toFixed(1)},${(tall - 1.5 - (v - low) / span * (tall - 3)).toFixed(1)}`).join(" "));
  made.append(line); return made;
}
