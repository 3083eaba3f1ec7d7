// Schedules: their next and latest ticks, and what keeps them from being sent.

import { h, s } from "../core/dom.js";
import { clock, count, now, timeElement } from "../core/format.js";
import { acting, col, live } from "../core/view.js";
import { commandLink, empty, name, tag } from "../core/parts.js";
import { apiPath, link } from "../core/router.js";
import { table } from "../core/table.js";

const DAY = 86400000;
const EXAMPLE = `bus.schedules.add("nightly", "reports", "Build", "0 3 * * *", timezone="Europe/Zurich")`;

export const title = () => "Schedules";

/** The ticks of the next 24 hours on a line; later ones are at its end. */
function drawn({ ticks }) {
  const text = ticks.map((tick) => clock(tick)).join(", ") || "none";
  return s("svg", { class: "spark", viewBox: "0 0 124 16", width: 124, height: 16, role: "img", "aria-label": `Next ticks: ${text}` },
    s("title", null, text), s("path", { class: "line tone-muted", d: "M2,8H122" }),
    ticks.map((tick) => s("circle", { class: "dot tone-a", r: 3, cy: 8, cx: Math.round(2 + (120 * Math.max(0, Math.min(DAY, Date.parse(tick) - now()))) / DAY) })));
}

const state = ({ paused, last_error: error, handled, added }) => [
  paused ? tag("paused", "warn") : error ? tag("not sent", "bad") : tag("on", "good"),
  !handled && [" ", tag("no handler", "warn", "no living node runs its type")],
  added && [" ", tag("added", "info", `by ${added.operator ?? "an operator"}`)],
  error && h("p", { class: "text-bad" }, error)];

const latest = ({ last_tick: tick, last_command_id: id, domain, left_out: out }) => [
  tick && timeElement(tick), tick && id && [" ", commandLink(domain, id)], out > 0 && h("p", { class: "muted" }, `${count(out)} left out`)];

export async function show(root, { params, session, signal, tools }) {
  const shown = table({
    label: "Schedules",
    keyOf: (schedule) => schedule.name,
    columns: [
      col("name", "Schedule", (schedule) => name(schedule.name), { narrow: "title" }),
      col("type", "Sends", ({ domain, type }) => h("a", { href: link("commands", { domain, type }), class: "name" }, `${domain}/${type}`)),
      col("times", "Times"),
      col("state", "State", state),
      col("next_tick", "Next", (schedule) => schedule.next_tick && timeElement(schedule.next_tick, "both"), { width: "minmax(100px, 190px)" }),
      col("ticks", "In 24 hours", drawn, { narrow: "hide" }),
      col("last_tick", "Latest", latest, { width: "minmax(90px, 170px)" }),
      session.acts && col("acts", "Actions", (schedule) => actions(schedule, session), { width: "236px" }),
    ].filter(Boolean),
    empty: empty("No schedules", "A schedule sends a command at certain times:", EXAMPLE),
  });
  root.append(h("div", { class: "card flush" }, shown.element));
  if (session.acts) tools.append(acting(session, "Add a schedule", "add_schedule", {}));
  return live(root, apiPath("schedules", params), signal, ({ schedules }) => shown.update(schedules));
}

function actions(schedule, session) {
  const act = (label, action) => acting(session, label, `${action}_schedule`, { name: schedule.name }, { small: true });
  return h("span", { class: "toolbar" }, act("Run now", "run"), schedule.paused ? act("Resume", "resume") : act("Pause", "pause"),
    (schedule.added || !schedule.handled) && act("Remove", "remove"));
}
