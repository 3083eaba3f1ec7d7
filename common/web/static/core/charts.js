// Charts drawn as SVG: each has a name for screen readers, and shows its figures on hover and by
// the arrow keys; a line chart has them as a table, too.

import { h, replace, s } from "./dom.js";
import { clock, count } from "./format.js";

export const present = (value) => typeof value === "number" && Number.isFinite(value);

/** The smallest round number that is not below the value: 1, 2, 2.5 or 5 times a power of ten. */
export function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 2, 2.5, 5, 10]) if (step * power >= value * (1 - 1e-9)) return step * power;
  return 10 * power;
}

/** Where the lines of the value axis are: round numbers from 0, at most five. */
export function ticks(highest) {
  const step = roundUp(highest / 4);
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

function path(values, x, y) {
  return runs(values).map(([first, run]) => {
    const points = run.map((value, offset) => `${fixed(x(first + offset))},${fixed(y(value))}`);
    // A value between two gaps is a dot.
    return "M" + (points.length === 1 ? `${points[0]}h0` : points.join("L"));
  }).join("");
}

function area(values, x, y, floor) {
  return runs(values).map(([first, run]) =>
    `M${fixed(x(first))},${floor}` + run.map((value, offset) => `L${fixed(x(first + offset))},${fixed(y(value))}`).join("") +
    `L${fixed(x(first + run.length - 1))},${floor}Z`).join("");
}

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
  const line = s("path", { class: `line tone-${tone}`, "vector-effect": "non-scaling-stroke" });
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
    x = (index) => 1 + (shown.length > 1 ? (index * (width - 2)) / (shown.length - 1) : 0);
    y = (value) => height - 2 - (value / top) * (height - 4);
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
 * series: [{label, values, tone, fill}], values may hold null; tone is a..f, good, warn or bad.
 * Options: label (required), at (ISO times of the values), format(value), height, when(at) -> text.
 */
export function lineChart(series, { label, at = [], format = count, height = 180, when = clock } = {}) {
  const margin = { left: 52, right: 12, top: 8, bottom: 20 };
  const svg = s("svg", { class: "chart", role: "img", tabindex: "0", height, "aria-label": label });
  const legend = h("div", { class: "legend" });
  const readout = h("p", { class: "readout", "aria-live": "polite" });
  const data = h("details", { class: "chart-data" }, h("summary", null, "Figures"));
  const figure = h("figure", { class: "lines" }, h("figcaption", null, h("span", { class: "chart-title" }, label), legend), svg, readout, data);
  let lines = series;
  let times = at;
  let width = 0;
  let cursor = -1;
  let x = () => 0;
  let y = () => 0;
  const pointer = s("line", { class: "cursor", visibility: "hidden" });

  function draw() {
    if (!width) return;
    const length = Math.max(times.length, ...lines.map(({ values }) => values.length), 2);
    const known = lines.flatMap(({ values }) => values.filter(present));
    const marks = ticks(known.length ? Math.max(...known) : 1);
    const floor = height - margin.bottom;
    x = (index) => margin.left + (index * (width - margin.left - margin.right)) / (length - 1);
    y = (value) => floor - (value / marks.at(-1)) * (floor - margin.top);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    replace(svg, s("title", null, label),
      marks.map((mark) => [
        s("line", { class: "gridline", x1: margin.left, x2: width - margin.right, y1: fixed(y(mark)), y2: fixed(y(mark)) }),
        s("text", { class: "axis", x: margin.left - 6, y: fixed(y(mark)) + 4, "text-anchor": "end" }, format(mark)),
      ]),
      timeMarks(length).map((index) =>
        s("text", { class: "axis", x: fixed(x(index)), y: height - 4, "text-anchor": index === 0 ? "start" : index === length - 1 ? "end" : "middle" }, when(times[index]))),
      lines.map(({ values, tone = "a", fill }) => [
        fill && s("path", { class: `area tone-${tone}`, d: area(values, x, y, floor) }),
        s("path", { class: `line tone-${tone}`, d: path(values, x, y) }),
      ]),
      pointer);
    if (known.length === 0) svg.append(s("text", { class: "axis", x: width / 2, y: height / 2, "text-anchor": "middle" }, "no figures yet"));
    point(cursor);
  }

  function timeMarks(length) {
    if (!times.length) return [];
    const wanted = Math.max(2, Math.min(5, Math.floor(width / 140)));
    return [...new Set(Array.from({ length: wanted }, (_, i) => Math.round((i * (Math.min(length, times.length) - 1)) / (wanted - 1))))];
  }

  const sentence = (index) =>
    [times[index] ? when(times[index]) : null, ...lines.map(({ label: one, values }) => `${one} ${present(values[index]) ? format(values[index]) : "–"}`)]
      .filter(Boolean).join(" · ");

  function point(index) {
    const length = Math.max(times.length, ...lines.map(({ values }) => values.length));
    cursor = index < 0 || length === 0 ? -1 : Math.min(index, length - 1);
    if (cursor < 0) {
      pointer.setAttribute("visibility", "hidden");
      readout.textContent = "";
      return;
    }
    for (const [key, value] of Object.entries({ x1: x(cursor), x2: x(cursor), y1: margin.top, y2: height - margin.bottom, visibility: "visible" })) pointer.setAttribute(key, value);
    const text = sentence(cursor);
    if (readout.textContent !== text) replace(readout, text);
  }

  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const length = Math.max(times.length, ...lines.map(({ values }) => values.length), 2);
    const share = (event.clientX - box.left - margin.left) / (box.width - margin.left - margin.right);
    point(Math.max(0, Math.min(length - 1, Math.round(share * (length - 1)))));
  });
  svg.addEventListener("pointerleave", () => document.activeElement !== svg && point(-1));
  svg.addEventListener("blur", () => point(-1));
  svg.addEventListener("keydown", (event) => {
    const length = Math.max(times.length, ...lines.map(({ values }) => values.length));
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -length, End: length }[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    point(cursor < 0 ? (step > 0 && event.key !== "End" ? 0 : length - 1) : Math.max(0, cursor + step));
  });

  function fillTable() {
    if (!data.open) {
      data.querySelector(".scroll")?.remove();
      return;
    }
    const length = Math.max(times.length, ...lines.map(({ values }) => values.length));
    const body = Array.from({ length }, (_, index) =>
      h("tr", null, h("th", { scope: "row" }, times[index] ? when(times[index]) : String(index)),
        lines.map(({ values }) => h("td", { class: "right" }, present(values[index]) ? format(values[index]) : "–"))));
    data.querySelector(".scroll")?.remove();
    data.append(h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": `${label}: figures` },
      h("table", { class: "plain" }, h("thead", null, h("tr", null, h("th", { scope: "col" }, "Time"), lines.map((one) => h("th", { scope: "col", class: "right" }, one.label)))), h("tbody", null, body))));
  }
  data.addEventListener("toggle", fillTable);

  figure.update = (next, { at: moments = times } = {}) => {
    lines = next;
    times = moments;
    const names = lines.map((one) => `${one.tone ?? "a"} ${one.label}`).join("\n");
    if (legend.dataset.names !== names) {
      legend.dataset.names = names;
      replace(legend, lines.map((one) => h("span", { class: "legend-entry" }, swatch(one.tone ?? "a"), one.label)));
    }
    draw();
    if (data.open) fillTable();
  };
  // The observer goes with the element: nothing else holds it.
  new ResizeObserver(([entry]) => {
    const measured = Math.floor(entry.contentRect.width);
    if (measured !== width) {
      width = measured;
      draw();
    }
  }).observe(svg);
  figure.update(series);
  return figure;
}

const swatch = (tone) => s("svg", { class: "swatch", width: 10, height: 10, viewBox: "0 0 10 10", "aria-hidden": "true" }, s("rect", { class: `block tone-${tone}`, width: 10, height: 10, rx: 2 }));

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
    let from = 0;
    const blocks = known.map(({ label: part, value, tone = "a" }) => {
      const width = (1000 * value) / sum;
      const block = s("rect", { class: `block tone-${tone}`, x: fixed(from), y: 0, width: fixed(width), height: 10 }, s("title", null, `${part}: ${format(value)}`));
      from += width;
      return block;
    });
    replace(svg, s("rect", { class: "track", x: 0, y: 0, width: 1000, height: 10 }), blocks);
    const text = known.map(({ label: part, value }) => `${part} ${format(value)}`).join(", ");
    svg.setAttribute("aria-label", `${label ? label + ": " : ""}${text || "nothing"}`);
    if (legend) replace(names, next.map((one) => h("span", { class: "legend-entry" }, swatch(one.tone ?? "a"), `${one.label} ${format(one.value)}`)));
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
  const element = h("div", { class: "timeline-box" }, svg);
  element.update = (next) => {
    const spans = layOut(next, from, to, Date.now());
    replace(svg, s("rect", { class: "track", x: 0, y: 0, width: 1000, height }),
      spans.map(({ part, x, width }) =>
        s("rect", { class: `block tone-${part.tone ?? "a"}`, x: fixed(x), y: 0, width: fixed(width), height }, s("title", null, part.title ?? part.label))));
    svg.setAttribute("aria-label", `${label ? label + ": " : ""}${next.map((part) => part.title ?? part.label).join(", ") || "nothing"}`);
  };
  element.update(parts);
  return element;
}

/** Places of the parts on a line of 1000, in order, none narrower than 4 and together no wider. */
export function layOut(parts, from, to, present_ms) {
  if (!parts.length) return [];
  const ends = parts.map((part) => [Date.parse(part.from), part.to ? Date.parse(part.to) : present_ms]);
  const start = from ? Date.parse(from) : Math.min(...ends.map(([first]) => first));
  const end = to ? Date.parse(to) : Math.max(...ends.map(([, last]) => last));
  const whole = Math.max(end - start, 1);
  const least = Math.min(4, 1000 / parts.length);
  return parts.map((part, index) => {
    const [first, last] = ends[index];
    const width = Math.max(least, (1000 * (last - first)) / whole);
    const x = Math.max(0, Math.min((1000 * (first - start)) / whole, 1000 - width));
    return { part, x, width: Math.min(width, 1000 - x) };
  });
}
