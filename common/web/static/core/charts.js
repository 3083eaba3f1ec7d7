// Charts drawn as SVG: each has a name for screen readers, and shows its figures on hover and by
// the arrow keys; a line chart has them as a table, too.

import { h, replace, s, setText } from "./dom.js";
import { clock, count, NONE, now } from "./format.js";

export const present = (value) => typeof value === "number" && Number.isFinite(value);

/** The smallest round number that is not below the value: 1, 2 or 5 times a power of ten. */
function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 2, 5, 10]) if (step * power >= value * (1 - 1e-9)) return step * power;
  return 10 * power;
}

/** Where the lines of the value axis are: round numbers from 0, at most five; whole ones of counts. */
export function ticks(highest, whole = false) {
  const step = whole ? Math.max(1, roundUp(highest / 4)) : roundUp(highest / 4);
  const found = [0];
  while (found.at(-1) < highest * (1 - 1e-9)) found.push(Number((found.length * step).toPrecision(12)));
  return found.length > 1 ? found : [0, step];
}

/** The runs of present values as [first index, values]; a gap stays a gap. */
export function runs(values) {
  const found = [];
  values.forEach((value, index) => {
    if (!present(value)) return;
    const last = found.at(-1);
    if (last && last[0] + last[1].length === index) last[1].push(value);
    else found.push([index, [value]]);
  });
  return found;
}

const fixed = (number) => Number(number.toFixed(1));
const points = ([first, run], x, y) => run.map((value, offset) => `${x(first + offset)},${y(value)}`).join("L");
// A value between two gaps is a dash that is long enough to be seen.
const path = (values, x, y) =>
  runs(values).map((run) => `M${points(run, x, y)}${run[1].length > 1 ? "" : "m-2,0h4"}`).join("");
const area = (values, x, y, floor) =>
  runs(values).map(([first, run]) => `M${x(first)},${floor}L${points([first, run], x, y)}V${floor}Z`).join("");

let tip = null;

function showTip(text, clientX, clientY) {
  tip ??= document.body.appendChild(h("div", { class: "tip", "aria-hidden": "true" }));
  tip.hidden = false;
  replace(tip, text);
  const box = tip.getBoundingClientRect();
  tip.style.setProperty("left", `${Math.max(4, Math.min(clientX + 12, innerWidth - box.width - 4))}px`);
  tip.style.setProperty("top", `${clientY - box.height - 12 < 4 ? clientY + 16 : clientY - box.height - 12}px`);
}

export function hideTip() {
  if (tip) tip.hidden = true;
}

/**
 * A line without axes for a table's cell. `values` may hold null. Options: label (required),
 * format(value), when(index) -> text, width, height, tone.
 */
export function sparkline(values, { label, format = count, when, width = 120, height = 24, tone = "a" } = {}) {
  const line = s("path", { class: `line tone-${tone}` });
  const fill = s("path", { class: `area tone-${tone}` });
  const dot = s("circle", { class: `dot tone-${tone}`, r: 2.5, visibility: "hidden" });
  const svg = s("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, role: "img" }, fill, line, dot);
  let shown = [];
  let x;
  let y;
  svg.update = (next) => {
    shown = next ?? [];
    const known = shown.filter(present);
    const highest = known.length ? Math.max(...known) : 0;
    const top = highest > 0 ? highest : 1;
    x = (index) => fixed(1 + (index * (width - 2)) / Math.max(shown.length - 1, 1));
    y = (value) => fixed(height - 2 - (value / top) * (height - 4));
    line.setAttribute("d", path(shown, x, y));
    fill.setAttribute("d", area(shown, x, y, height - 1));
    const last = known.at(-1);
    svg.setAttribute("aria-label", `${label}: ${known.length ? `now ${format(last)}, highest ${format(highest)}` : "no figures yet"}`);
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const index = Math.round(((event.clientX - box.left) / box.width) * (shown.length - 1));
    const value = shown[index];
    if (!present(value)) {
      leave();
      return;
    }
    dot.setAttribute("cx", x(index));
    dot.setAttribute("cy", y(value));
    dot.setAttribute("visibility", "visible");
    showTip(`${when ? when(index) + ": " : ""}${format(value)}`, event.clientX, event.clientY);
  });
  const leave = () => {
    dot.setAttribute("visibility", "hidden");
    hideTip();
  };
  svg.addEventListener("pointerleave", leave);
  svg.update(values);
  return svg;
}

/**
 * A chart of lines over time, as a `figure` with `update(series, {at})`.
 * series: [{label, values, tone, fill}], values may hold null; tone is a..e, good, warn or bad.
 * Options: label (required), at (ISO times of the values), format(value), height, when(at) -> text.
 */
export function lineChart(series, { label, at = [], format = count, height = 180, when = clock } = {}) {
  const [left, right, top, floor] = [52, 12, 8, height - 20];
  const svg = s("svg", { class: "chart", role: "img", tabindex: "0", height, "aria-label": label });
  const legend = h("div", { class: "legend" });
  const readout = h("p", { class: "readout", "aria-live": "polite" });
  const data = h("details", { class: "chart-data" }, h("summary", null, "Figures"));
  const figure = h("figure", { class: "lines" }, h("figcaption", null, h("span", { class: "chart-title" }, label), legend), svg, readout, data);
  const pointer = s("path", { class: "cursor" });
  let lines = series;
  let times = at;
  let length = 0;
  let width = 0;
  let cursor = -1;
  const x = (index) => fixed(left + (index * (width - left - right)) / Math.max(length - 1, 1));
  const figureOf = (value) => (present(value) ? format(value) : NONE);
  // Times of whole minutes are shown without seconds.
  const timeOf = (index) => (times[index] ? when(times[index]).replace(/^(\d+\D\d\d)\D00$/, "$1") : "");

  function draw() {
    if (!width) return;
    const known = lines.flatMap(({ values }) => values.filter(present));
    const marks = ticks(known.length ? Math.max(...known) : 1, format === count);
    const y = (value) => fixed(floor - (value / marks.at(-1)) * (floor - top));
    const text = (where, ...content) => s("text", { class: "axis", ...where }, ...content);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    replace(svg, s("title", null, label),
      marks.map((mark) => [
        s("path", { class: "gridline", d: `M${left},${y(mark)}H${width - right}` }),
        text({ x: left - 6, y: y(mark) + 4, "text-anchor": "end" }, format(mark)),
      ]),
      timeMarks().map((index) =>
        text({ x: x(index), y: height - 4, "text-anchor": index === 0 ? "start" : index === length - 1 ? "end" : "middle" }, timeOf(index))),
      lines.map(({ values, tone = "a", fill }) => [
        fill && s("path", { class: `area tone-${tone}`, d: area(values, x, y, floor) }),
        s("path", { class: `line tone-${tone}`, d: path(values, x, y) }),
      ]),
      pointer,
      known.length === 0 && text({ x: width / 2, y: height / 2, "text-anchor": "middle" }, "no figures yet"));
    point(cursor);
  }

  function timeMarks() {
    const last = Math.max(2, Math.min(5, Math.floor(width / 140))) - 1;
    const spread = Array.from({ length: last + 1 }, (_, i) => Math.round((i * (times.length - 1)) / last));
    return times.length ? [...new Set(spread)] : [];
  }

  function point(index) {
    cursor = Math.min(index, length - 1);
    pointer.setAttribute("d", cursor < 0 ? "" : `M${x(cursor)},${top}V${floor}`);
    setText(readout, cursor < 0 ? "" : [timeOf(cursor), ...lines.map((one) => `${one.label} ${figureOf(one.values[cursor])}`)].filter(Boolean).join(" · "));
  }

  svg.addEventListener("pointermove", (event) => {
    const place = (event.clientX - svg.getBoundingClientRect().left - left) / (width - left - right);
    point(Math.max(0, Math.round(place * (length - 1))));
  });
  svg.addEventListener("pointerleave", () => document.activeElement !== svg && point(-1));
  svg.addEventListener("blur", () => point(-1));
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -length, End: length }[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    point(cursor < 0 && event.key === "ArrowLeft" ? length - 1 : Math.max(0, cursor + step));
  });

  function fillTable() {
    data.querySelector(".scroll")?.remove();
    if (!data.open) return;
    const cell = (one, index) => h("td", { class: "right" }, figureOf(one.values[index]));
    data.append(h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": `${label}: figures` },
      h("table", { class: "plain" },
        h("thead", null, h("tr", null, h("th", { scope: "col" }, "Time"), lines.map((one) => h("th", { scope: "col", class: "right" }, one.label)))),
        h("tbody", null, Array.from({ length }, (_, index) => h("tr", null, h("th", { scope: "row" }, timeOf(index)), lines.map((one) => cell(one, index))))))));
  }
  data.addEventListener("toggle", fillTable);

  figure.update = (next, { at: moments = times } = {}) => {
    lines = next;
    times = moments;
    length = Math.max(times.length, ...lines.map(({ values }) => values.length), 0);
    const names = lines.map((one) => `${one.tone} ${one.label}`).join("\n");
    if (legend.dataset.names !== names) {
      legend.dataset.names = names;
      replace(legend, lines.map((one) => legendEntry(one, one.label)));
    }
    draw();
    if (data.open) fillTable();
  };
  // The observer goes with the element: nothing else holds it.
  new ResizeObserver(([entry]) => {
    const measured = Math.floor(entry.contentRect.width);
    if (measured === width) return;
    width = measured;
    draw();
  }).observe(svg);
  figure.update(series);
  return figure;
}

const legendEntry = ({ tone = "a" }, text) =>
  h("span", { class: "legend-entry" }, s("svg", { width: 10, height: 10, "aria-hidden": "true" }, s("rect", { class: `block tone-${tone}`, width: 10, height: 10, rx: 2 })), text);

const block = (tone, x, width, height, title) => s("rect", { class: `block tone-${tone ?? "a"}`, x: fixed(x), width: fixed(width), height }, s("title", null, title));
const track = (height) => s("rect", { class: "track", width: 1000, height });
const named = (svg, label, texts) => svg.setAttribute("aria-label", (label ? `${label}: ` : "") + (texts.join(", ") || "nothing"));

/**
 * A bar of parts: [{label, value, tone}]. Options: label, total (else the sum), legend, format.
 * The element has `update(parts, {total})`.
 */
export function bar(parts, { label, total, legend = false, format = count } = {}) {
  const svg = s("svg", { class: "bar", viewBox: "0 0 1000 10", preserveAspectRatio: "none", role: "img" });
  const names = h("div", { class: "legend" });
  const element = h("div", { class: "bar-box" }, svg, legend && names);
  element.update = (next, { total: whole = total } = {}) => {
    const known = next.filter(({ value }) => value > 0);
    const sum = Math.max(whole ?? 0, known.reduce((all, { value }) => all + value, 0)) || 1;
    const texts = known.map((part) => `${part.label} ${format(part.value)}`);
    let from = 0;
    replace(svg, track(10), known.map(({ value, tone }, index) => {
      from += value;
      return block(tone, (1000 * (from - value)) / sum, (1000 * value) / sum, 10, texts[index]);
    }));
    named(svg, label, texts);
    if (legend) replace(names, next.map((one) => legendEntry(one, `${one.label} ${format(one.value)}`)));
  };
  element.update(parts);
  return element;
}

/**
 * Parts of time side by side: [{label, from, to, tone, title}] with ISO times; a part without `to`
 * lasts until now. Short parts are as wide as a pointer can meet. Options: label, from, to, height.
 */
export function timeline(parts, { label, from, to, height = 22 } = {}) {
  const svg = s("svg", { class: "timeline", viewBox: `0 0 1000 ${height}`, height, preserveAspectRatio: "none", role: "img" });
  const element = h("div", null, svg);
  element.update = (next) => {
    replace(svg, track(height), layOut(next, from, to, now()).map(({ part, x, width }) => block(part.tone, x, width, height, part.title ?? part.label)));
    named(svg, label, next.map((part) => part.title ?? part.label));
  };
  element.update(parts);
  return element;
}

/** Places of the parts on a line of 1000, in order, none narrower than 4 and together no wider. */
export function layOut(parts, from, to, nowMs) {
  const ends = parts.map((part) => [Date.parse(part.from), part.to ? Date.parse(part.to) : nowMs]);
  const start = from ? Date.parse(from) : Math.min(...ends.map(([first]) => first));
  const end = to ? Date.parse(to) : Math.max(...ends.map(([, last]) => last));
  const scale = 1000 / Math.max(end - start, 1);
  const least = Math.min(4, 1000 / parts.length);
  return parts.map((part, index) => {
    const [first, last] = ends[index];
    const width = Math.min(1000, Math.max(least, scale * (last - first)));
    return { part, width, x: Math.max(0, Math.min(scale * (first - start), 1000 - width)) };
  });
}
