"use strict";
// The devices: a bar of the same length for each, with the parts of its memory, and its load over time.
const PARTS = ["ours", "reserved", "others", "buffer"];
// A device: { label, total, ours, reserved, others, buffer, says, load, loads, over }.
function deviceRows(box, all, legend) {
  box.style.setProperty("--label", Math.max(4, ...all.map(d => d.label.length)) + 1 + "ch");  // one width for all rows
  all.forEach((device, i) => {
    let row = box.children[i];
    if (!row) {
      row = el("div", undefined, "device-row"); const track = el("div", undefined, "track device"); track.setAttribute("role", "img");
      track.append(...PARTS.map(p => el("span", undefined, "slice " + p))); row.append(el("span", undefined, "name"), track, el("span", undefined, "busy"), el("span", undefined, "numbers")); box.append(row);
    }
    const [name, track, busy, numbers] = row.children;
    PARTS.forEach((p, k) => { track.children[k].style.width = device.total ? 100 * (device[p] || 0) / device.total + "%" : "0"; });
    row.classList.toggle("next-node", i > 0 && (device.node || "") !== (all[i - 1].node || ""));
    name.textContent = name.title = device.label; numbers.textContent = device.says;
    track.title = `${device.label}: ` + PARTS.filter(p => p in legend).map(p => `${size(device[p] || 0)} ${legend[p]}`).join(", "); track.setAttribute("aria-label", track.title);
    busy.replaceChildren(); busy.title = device.over || "";
    if (device.loads?.length > 1) busy.append(spark(device.loads, 90, 20, [0, 1]));
    if (device.load) busy.append(device.load);
  });
  while (box.children.length > all.length) box.lastChild.remove();
}
function deviceLegend(box, legend) {
  const now = JSON.stringify(legend); if (box.dataset.now === now) return;
  box.dataset.now = now; legendOf(box, [...PARTS.filter(p => p in legend).map(p => [legend[p], `var(--${p})`]), ["free", "var(--panel)"]]);
}
