"use strict";
// The report of an experiment: the arms as a table, and a chart for each number of which more or less is better.
const DATA = JSON.parse($("data").textContent), KINDS = { plain: ["without MPS", "p0"], mps: ["with MPS", "p2"], base: ["what the others are compared with", "p7"] };
colours();
for (const id of ["title", "words", "explained"]) $(id).textContent = DATA[id];
$("verdict").textContent = DATA.verdict + "."; $("words").className = DATA.simulated ? "simulated" : "";
for (const [name, value] of DATA.machine) $("machine").append(el("dt", name), el("dd", value));
$("notes").append(...DATA.notes.map(note => el("p", note)));

const ARMS = DATA.arms.map((arm, id) => ({ ...arm, id }));
const GRID = new Grid($("arms"), { key: arm => arm.id, remember: "scheduler-arms", sorted: table });
// The best mean of a column; null where none is better or all arms are equal.
function best({ better }, i) {
  const means = ARMS.map(arm => arm.cells[i].mean), most = Math.max(...means), least = Math.min(...means);
  return !better || most === least ? null : better === "more" ? most : least;
}
const COLUMNS = [
  { id: "arm", label: "arm", fixed: true, text: arm => arm.name, value: arm => arm.name },
  { id: "repeats", label: "repeats", num: true, text: arm => String(arm.repeats), value: arm => arm.repeats },
  ...DATA.columns.map((c, i) => ({ id: "metric." + c.title, label: c.title, num: true, title: c.better ? c.better + " is better" : "", down: c.better === "more", text: arm => arm.cells[i].text, value: arm => arm.cells[i].mean,
    draw: (td, arm) => { td.textContent = arm.cells[i].text; td.classList.toggle("better", arm.cells[i].mean === best(c, i)); } })),
];
function table() {
  const column = COLUMNS.find(c => c.id === GRID.by);
  GRID.set(COLUMNS, column ? [...ARMS].sort((a, b) => compare(column.value(a), column.value(b), GRID.down) || a.id - b.id) : ARMS);
}

function chart(title, better, cells) {
  const box = el("div", undefined, "panel"), head = el("h3", title[0].toUpperCase() + title.slice(1)), most = Math.max(...cells.map(c => c.most)) || 1;
  head.append(el("span", `, ${better} is better`, "better")); box.append(head); box.style.setProperty("--name", Math.max(...ARMS.map(arm => arm.name.length)) + "ch");
  ARMS.forEach((arm, i) => {
    const row = el("div", undefined, "arm"), track = el("div", undefined, "track"), bar = el("i", undefined, "bar " + arm.kind), cell = cells[i], name = el("span", arm.name, "name");
    bar.style.width = 100 * cell.mean / most + "%"; track.append(bar); name.title = arm.name; track.title = cell.text;
    if (cell.most - cell.least > most / 500) { const w = el("i", undefined, "whisker"); w.style.left = 100 * cell.least / most + "%"; w.style.width = 100 * (cell.most - cell.least) / most + "%"; track.append(w); }
    row.append(name, track, el("span", cell.short, "says")); box.append(row);
  });
  return box;
}
// The mean waits by batch, a line for each priority.
function waits({ arm, waits }) {
  const box = el("div", undefined, "panel"), place = el("div"), legend = el("div", undefined, "legend"), batches = inOrder(waits.map(w => w[0])), priorities = inOrder(waits.map(w => w[1]));
  box.append(el("h3", `Mean wait, batch by batch: ${arm}`), place, legend);
  legendOf(legend, priorities.map((p, i) => ["priority " + p, `var(--p${i % 8})`]));
  requestAnimationFrame(() => plot(place, { x: batches, kinds: ["count", "time"], least: 0, label: `Mean waits of ${arm} by batch and priority`,
    series: priorities.map((p, i) => ({ dots: true, stroke: () => COLOURS["p" + i % 8], values: batches.map(b => waits.find(w => w[0] === b && w[1] === p)?.[2] ?? null) })) }));
  return box;
}

table(); GRID.chooser($("columns"));
const kinds = Object.keys(KINDS).filter(kind => ARMS.some(arm => arm.kind === kind));
if (kinds.includes("mps")) legendOf($("legend"), kinds.map(kind => [KINDS[kind][0], `var(--${KINDS[kind][1]})`]));
DATA.columns.forEach((c, i) => { if (c.better) $("bars").append(chart(c.title, c.better, ARMS.map(arm => arm.cells[i]))); });
$("waits").append(...DATA.batches.filter(b => new Set(b.waits.map(w => w[0])).size > 1).map(waits));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolourPlots);
