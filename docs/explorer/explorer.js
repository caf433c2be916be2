// The table gives the crops (p, q) for a framework's arguments. The script knows one equation:
// input i and tap t meet at output o where s*i + d*t = o + p.
"use strict";

const table = JSON.parse(document.getElementById("table").textContent);
const find = id => document.getElementById(id);
const WORDS = ["begin", "end", "extra", "target"];
const NUMBERS = ["size", "kernel", "stride", "dilation"];
const CELL = 36;

// ---- geometry ----------------------------------------------------------------------------------

const slug = mode => `${mode.framework} ${mode.name}`.toLowerCase().match(/[a-z0-9]+/g).join("-");
const fullSize = a => a.stride * (a.size - 1) + a.dilation * (a.kernel - 1) + 1;

/** The row of a mode for this kernel, stride and dilation. */
function rowOf(numbers, pick) {
  const [strides, dilations] = [table.ranges.stride[1], table.ranges.dilation[1]];
  const at = ((pick.kernel - 1) * strides + pick.stride - 1) * dilations + pick.dilation - 1;
  return table.rows[numbers[at]];
}

/** Return {p, q}, or {refusal}, a sentence. */
function cropsOf(mode, reading, pick) {
  const row = rowOf(reading.rows, pick);
  const target = "target" in mode.words;
  const index = target ? fullSize(pick) - pick.target : "extra" in mode.words ? pick.extra : 0;
  if (index < 0 && target)
    return {refusal: `${mode.words.target} must be at most the full result, ${fullSize(pick)}.`};
  const base = row.crops[index];
  if (!base) return {refusal: row.refusal};
  const crops = [...base];
  for (const [word, slope] of Object.entries(mode.slopes))
    slope.forEach((rise, end) => { crops[end] += rise * pick[word]; });
  const out = fullSize(pick) - crops[0] - crops[1];
  if (out < reading.least_out || out < 0)
    return {refusal: `the output would have ${out} positions, fewer than ${reading.least_out}.`};
  return {p: crops[0], q: crops[1]};
}

/** Return a mode's arguments for crops (p, q), or null. */
function wordsFor(mode, pick, p, q) {
  const [full, row] = [fullSize(pick), rowOf(mode.rows, pick)];
  const out = full - p - q;
  if (out < mode.least_out) return null;
  const low = mode.low ?? -Infinity;
  for (let index = 0; index < row.crops.length; index++) {
    const base = row.crops[index];
    if (!base || "target" in mode.words && index !== full - out) continue;
    const {begin: rise, end: last} = mode.slopes;
    const begin = rise ? (p - base[0]) * rise[0] : 0;
    const end = last ? (q - base[1]) * last[1] : 0;
    const made = [base[0] + begin * (rise?.[0] ?? 0),
      base[1] + begin * (rise?.[1] ?? 0) + end * (last?.[1] ?? 0)];
    if (made[0] !== p || made[1] !== q || begin < low || end < low) continue;
    return {begin, end, extra: index, target: out};
  }
  return null;
}

function written(mode, pick, words) {
  const values = {k: pick.kernel, s: pick.stride, d: pick.dilation, ...words};
  return mode.call.replace(/{(\w+)}/g, (_, name) => values[name]);
}

/** Return the call in each framework, in the selected mode if possible. */
function callsFor(pick, p, q) {
  const picked = table.modes[pick.mode];
  const calls = Object.fromEntries(table.modes.map(mode => [mode.framework, null]));
  for (const mode of [picked, ...table.modes]) {
    const words = calls[mode.framework] ? null : wordsFor(mode, pick, p, q);
    if (words) calls[mode.framework] = written(mode, pick, words);
  }
  return calls;
}

/** Return everything that the page shows for a selection. */
function compute(pick) {
  const mode = table.modes[pick.mode];
  const {p, q, refusal} = cropsOf(mode, mode, pick);
  if (refusal) return {refusal};
  const full = fullSize(pick);
  const out = full - p - q;
  const feeds = Array.from({length: out}, () => []);
  for (let i = 0; i < pick.size; i++)
    for (let t = pick.kernel - 1; t >= 0; t--)
      feeds[pick.stride * i + pick.dilation * t - p]?.push([i, t]);
  const phases = Array.from({length: Math.min(pick.stride, out)}, (_, r) => {
    let taps = 0;
    for (let t = 0; t < pick.kernel; t++) taps += (pick.dilation * t - r - p) % pick.stride === 0;
    return taps;
  });
  const others = {};
  for (const [name, reading] of Object.entries(mode.others)) {
    const found = cropsOf(mode, reading, pick);
    if (found.p !== p || found.q !== q) others[name] = found;
  }
  return {p, q, full, out, feeds, phases, others, calls: callsFor(pick, p, q)};
}

// ---- selection ---------------------------------------------------------------------------------

function element(kind, parent, text = "", attributes = {}) {
  const made = document.createElement(kind);
  if (text !== "") made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  parent.append(made);
  return made;
}

function fillModes() {
  const groups = {};
  table.modes.forEach((mode, number) => {
    groups[mode.framework] ??= element("optgroup", find("mode"), "", {label: mode.framework});
    element("option", groups[mode.framework], `${mode.framework}: ${mode.name}`, {value: number});
  });
}

/** Set the names and limits of the fields for the selected mode. */
function fit() {
  const mode = table.modes[find("mode").value];
  for (const word of WORDS) {
    const field = find(word);
    field.parentElement.hidden = !(word in mode.words);
    field.previousElementSibling.textContent = mode.words[word] ?? "";
    const low = word === "extra" ? 0 : word === "target" ? 1 : mode.low ?? table.paddings[0];
    field.min = low;
    field.max = {extra: table.most_extra, target: 200}[word] ?? table.paddings[1];
  }
}

/** Return the numbers in the fields, or the first field whose number is out of range. */
function read() {
  const pick = {mode: Number(find("mode").value)};
  for (const name of [...NUMBERS, ...WORDS]) {
    const field = find(name);
    const value = Number(field.value);
    const legal = field.value !== "" && Number.isInteger(value)
      && value >= field.min && value <= field.max;
    field.setAttribute("aria-invalid", !legal && !field.parentElement.hidden);
    if (!legal && !field.parentElement.hidden) return {wrong: field};
    pick[name] = legal ? value : 0;
  }
  return pick;
}

function remember(pick) {
  const mode = table.modes[pick.mode];
  const names = [...NUMBERS, ...WORDS.filter(word => word in mode.words)];
  const said = names.map(name => `${name}=${pick[name]}`);
  history.replaceState(null, "", `#${["mode=" + slug(mode), ...said].join("&")}`);
}

function recall() {
  const said = new URLSearchParams(location.hash.slice(1));
  const number = table.modes.findIndex(mode => slug(mode) === said.get("mode"));
  if (number >= 0) find("mode").value = number;
  for (const name of [...NUMBERS, ...WORDS])
    if (/^-?\d{1,3}$/.test(said.get(name) ?? "")) find(name).value = said.get(name);
}

// ---- display -----------------------------------------------------------------------------------

const positions = number => `${number} ${number === 1 ? "position" : "positions"}`;
const cropped = (crop, end) => crop < 0 ? `${-crop} added at the ${end}` : `${crop} cut from the ${end}`;

function show() {
  fit();
  const pick = read();
  const found = pick.wrong
    ? {refusal: `${pick.wrong.parentElement.textContent.trim()} takes an integer from `
      + `${pick.wrong.min} to ${pick.wrong.max}.`}
    : compute(pick);
  find("legal").hidden = Boolean(found.refusal);
  find("result").classList.toggle("refused", Boolean(found.refusal));
  find("formula").textContent = "";
  find("notes").replaceChildren();
  if (found.refusal) {
    find("result").textContent = `Refused: ${found.refusal}`;
    return;
  }
  remember(pick);
  showResult(pick, found);
  showFeeds(pick, found);
  showOverlap(pick, found);
  find("calls").replaceChildren();
  for (const [framework, call] of Object.entries(found.calls)) {
    element("dt", find("calls"), framework);
    if (call) element("code", element("dd", find("calls")), call);
    else element("dd", find("calls"), `no padding cuts ${found.p} from the beginning and ${found.q} from the end`,
      {class: "no"});
  }
}

function showResult(pick, {p, q, full, out, others}) {
  find("result").textContent = `${positions(pick.size)} in, ${positions(out)} out. Of the full `
    + `result's ${full}, ${cropped(p, "beginning")}, ${cropped(q, "end")}.`;
  const signed = crop => crop < 0 ? `(${crop})` : crop;
  find("formula").textContent = `stride*(size - 1) + dilation*(kernel - 1) + 1 - begin - end = `
    + `${pick.stride}*(${pick.size} - 1) + ${pick.dilation}*(${pick.kernel} - 1) + 1`
    + ` - ${signed(p)} - ${signed(q)} = ${out}`;
  for (const [name, other] of Object.entries(others)) {
    const size = full - other.p - other.q;
    element("li", find("notes"), other.refusal ? `${name} refuses this node: ${other.refusal}`
      : `${name} reads this node differently: crops (${other.p}, ${other.q}), ${positions(size)}.`);
  }
}

function sum(o, feeds) {
  const products = feeds[o].map(([i, t]) => `x[${i}]*w[${t}]`);
  return `y[${o}] = ${products.join(" + ") || "0 (the bias alone)"}`;
}

function spoken(o, feeds) {
  const from = feeds[o].map(([i, t]) => `input ${i} by tap ${t}`);
  return `Output ${o}: ${from.join(", ") || "no input, the bias alone"}`;
}

function showFeeds(pick, {p, q, full, out, feeds}) {
  const first = Math.min(0, p);
  const x = position => 4 + (position - first) * CELL;
  const most = Math.max(1, ...feeds.map(each => each.length));
  find("drawing").style.width = `${x(Math.max(full, full - q)) + 4}px`;
  for (const id of ["inputs", "outputs", "cut", "lines"]) find(id).replaceChildren();
  element("span", find("inputs"), "inputs", {class: "name", style: "top: -4px"});
  element("span", find("cut"), "outputs", {class: "name", style: "top: 160px"});
  const reach = pick.dilation * (pick.kernel - 1);
  const middle = i => x(pick.stride * i + reach / 2);
  for (let i = 0; i < pick.size; i++)
    element("div", find("inputs"), `x${i}`, {class: "box", style: `left: ${middle(i)}px`});
  for (let position = 0; position < full; position++)
    if (position < p || position >= full - q)
      element("div", find("cut"), "cut", {class: "box", style: `left: ${x(position)}px`});
  feeds.forEach((each, o) => {
    const shade = Math.round(42 * each.length / most);
    element("div", find("outputs"), String(each.length), {
      class: "box", role: "option", tabindex: o ? -1 : 0, "aria-selected": o === 0, "data-o": o,
      "aria-label": spoken(o, feeds),
      style: `left: ${x(o + p)}px; background: color-mix(in srgb, var(--accent) ${shade}%, var(--paper))`,
    });
    element("span", find("cut"), String(o), {class: "index", style: `left: ${x(o + p)}px`});
    for (const [i] of each) drawLine(middle(i) + 16, x(o + p) + 16, o);
  });
  current = {feeds};
  find("detail").textContent = "";
  if (out) select(Math.max(feeds.findIndex(each => each.length === most), 0));
}

function drawLine(from, to, o) {
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  const ends = {x1: from, y1: 48, x2: to, y2: 116, "data-o": o};
  for (const [name, value] of Object.entries(ends)) line.setAttribute(name, value);
  find("lines").append(line);
}

let current = {feeds: []};

/** Mark an output, the inputs that feed it and the lines between them. */
function select(o, focus = false) {
  const fed = new Set(current.feeds[o].map(([i]) => i));
  find("outputs").querySelectorAll(".box").forEach((box, at) => {
    box.tabIndex = at === o ? 0 : -1;
    box.setAttribute("aria-selected", at === o);
    box.classList.toggle("active", at === o);
    if (focus && at === o) box.focus();
  });
  find("inputs").querySelectorAll(".box").forEach((box, i) => {
    box.classList.toggle("active", fed.has(i));
  });
  for (const line of find("lines").children)
    line.classList.toggle("active", Number(line.dataset.o) === o);
  find("detail").textContent = sum(o, current.feeds);
}

function showOverlap(pick, {out, feeds, phases}) {
  const [least, most] = [Math.min(...phases), Math.max(...phases)];
  find("overlap").textContent = !out ? "There is no output."
    : `Away from the borders the outputs sum ${phases.join(", ")} products in turn. `
      + (least === most ? "All are equal: the kernel's overlap makes no checkerboard pattern."
        : least === 0 ? "Some have no product at all: they hold the bias alone, and appear as stripes."
          : "They are not equal: equal inputs and weights give a checkerboard pattern.");
  const [plane, counts] = [find("plane"), feeds.map(each => each.length)];
  plane.hidden = !out;
  plane.setAttribute("aria-label", `Products per position of a square image. ${find("overlap").textContent}`);
  const shown = Math.min(out, 60);
  plane.width = plane.height = Math.max(shown, 1) * Math.max(1, Math.floor(480 / Math.max(shown, 1)));
  const [pen, cell] = [plane.getContext("2d"), plane.width / Math.max(shown, 1)];
  pen.fillStyle = getComputedStyle(document.body).getPropertyValue("--accent");
  const highest = Math.max(1, ...counts) ** 2;
  for (let row = 0; row < shown; row++)
    for (let column = 0; column < shown; column++) {
      pen.globalAlpha = counts[row] * counts[column] / highest;
      pen.fillRect(column * cell, row * cell, cell, cell);
    }
}

// ---- start -------------------------------------------------------------------------------------

fillModes();
for (const name of NUMBERS) [find(name).min, find(name).max] = table.ranges[name];
const start = {mode: 1, size: 5, kernel: 3, stride: 2, dilation: 1, begin: 1, end: 1, extra: 1, target: 10};
for (const [name, value] of Object.entries(start)) find(name).value = value;
recall();
show();
document.querySelector("form").addEventListener("input", show);
document.querySelector("form").addEventListener("submit", event => event.preventDefault());
addEventListener("hashchange", () => { recall(); show(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
for (const kind of ["pointerover", "focusin", "click"])
  find("outputs").addEventListener(kind, event => {
    const box = event.target.closest("[data-o]");
    if (box) select(Number(box.dataset.o));
  });
find("outputs").addEventListener("keydown", event => {
  const [at, last] = [Number(event.target.dataset.o), current.feeds.length - 1];
  const to = {ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last}[event.key];
  if (to === undefined) return;
  event.preventDefault();
  select(Math.min(Math.max(to, 0), last), true);
});
