// One domain: its settings, its types with what keeps them waiting, and what operators changed.

import { h, replace } from "../core/dom.js";
import { count, duration } from "../core/format.js";
import { acting, col, live, trail } from "../core/view.js";
import { empty, facts, figure, name, panel, statusTag, tag } from "../core/parts.js";
import { apiPath, link } from "../core/router.js";
import { table } from "../core/table.js";

const COUNTS = { ready: "Ready", scheduled: "Later", limited: "At a limit", in_progress: "Running", troubleshooting: "In trouble" };

export const title = ({ parts }) => `Domain ${parts[0] ?? ""}`;

const oldest = (one) => (one.ready || one.limited ? duration(one.oldest_age) : "–");
const most = (limit) => (limit === null ? "none" : count(limit));

export async function show(root, { parts: [domain], session, signal, tools }) {
  const to = (view, text = {}) => link(view, { domain, ...text });
  const links = { ready: to("commands", { status: "PENDING" }), in_progress: to("commands", { status: "IN_PROGRESS" }), troubleshooting: to("troubleshooting") };
  const figures = Object.entries(COUNTS).map(([key, label]) => [key, figure(label.toLowerCase(), "", { href: links[key] })]);
  const age = figure("oldest waits", "");
  const tags = h("div", { class: "toolbar" });
  const about = h("div");
  const types = table({
    label: "Types",
    keyOf: (row) => row.type,
    link: (row) => to("commands", { type: row.type }),
    columns: [
      col("type", "Type", (row) => h("a", { href: to("commands", { type: row.type }) }, name(row.type)), { narrow: "title" }),
      ...Object.entries(COUNTS).map(([key, label]) => col(key, label, (row) => count(row[key]), { align: "right", width: "88px" })),
      col("oldest_age", "Oldest waits", oldest, { align: "right", width: "108px" }),
      col("why", "Why", (row) => row.why && tag(row.why, "bad"), { width: "minmax(0, 2fr)" }),
    ],
    empty: empty("Nothing waits or runs", "Commands that are sent to this domain are counted here by type:", `bus.send("${domain}", "Type", {"n": 1})`),
  });
  const bound = h("div", { class: "stack" });
  const audit = trail(root);
  root.append(
    panel(null, tags, h("div", { class: "numbers" }, figures.map(([, element]) => element), age)),
    panel("Settings", about), panel("Types", types.element), bound);
  const act = (label, tone) => acting(session, label, label.toLowerCase(), { domain }, { tone });
  return live(root, apiPath(["domain", domain]), signal, (value) => {
    for (const [key, element] of figures) element.set(count(value[key]), key === "troubleshooting" && value[key] ? "bad" : undefined);
    age.set(oldest(value));
    replace(tags,
      value.paused ? tag("paused", "warn", "workers claim nothing of it") : tag("not paused", "good"),
      value.accepting ? tag("accepts sends", "good") : tag("refuses sends", "bad"),
      h("a", { href: to("overview") }, "History"), h("a", { href: to("commands") }, "Commands"));
    const set = value.settings;
    replace(about, facts([["Refuses from", most(set.max_depth)], ["Warns from", most(set.warn_depth)], ["Most per key", most(set.max_waiting_per_key)], ["History kept", duration(set.keep)]]));
    replace(tools, value.paused ? act("Resume", "primary") : act("Pause"), act("Configure"));
    types.update(value.types);
    const row = (view, items, line) => items.length > 0 && panel(view[0].toUpperCase() + view.slice(1), items.map((item) => h("p", null, name(item.name), " ", line(item))), h("a", { href: to(view) }, `All about these ${view}`));
    replace(bound,
      row("limits", value.limits, (one) => one.in_force?.text ?? "no limit"),
      row("breakers", value.breakers, (one) => statusTag(one.state)),
      row("schedules", value.schedules, (one) => [one.times, one.paused && tag("paused", "warn")]),
      row("bridges", value.bridges, (one) => [one.direction === "in" ? "from" : "to", " queue ", name(one.queue), " ", one.error && tag("failing", "bad")]));
    audit(value.audit);
  });
}
