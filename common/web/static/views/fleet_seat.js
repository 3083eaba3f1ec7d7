// One process of the fleet view: its health, and its threads as cells or as squares.

import { h, keyed, setText } from "../core/dom.js";
import { bytes, duration, now, plural, setTime, timeElement } from "../core/format.js";
import { commandHref, name, tag } from "../core/parts.js";

const HEALTH = { HEALTHY: "good", DEGRADED: "warn", CRITICAL: "bad", DATABASE_AWAY: "bad" };
const PHASES = { i: "idle", r: "running", l: "leading", w: "resting", a: "away", s: "stuck", "?": "unknown" };

/** How many threads of these letters run. */
export const running = (phases) => phases.replace(/[^rs]/g, "").length;

/** A process: its health, and its threads as cells. */
export function seatRow([role, seat], context) {
  const health = tag("", "muted");
  const own = h("span", null);
  const since = timeElement(seat.since ?? new Date(0).toISOString());
  const about = h("span", { class: "muted" }, own, " · started ", since);
  const reasons = h("p", { class: "text-bad", hidden: true });
  const threads = h("div", { class: "slots" });
  const element = h("div", { class: "seat" },
    h("div", { class: "toolbar" }, h("h3", null, role === "worker" ? `worker ${seat.seat}` : role), health, about), reasons, threads);
  element.update = ([, next]) => {
    setText(health, next.pid ? (next.health ?? "unknown").toLowerCase().replace("_", " ") : "no process");
    health.className = `tag tag-${next.pid ? (HEALTH[next.health] ?? "muted") : "bad"}`;
    about.hidden = !next.pid || !next.since;
    if (!about.hidden) {
      setText(own, seatAbout(next));
      setTime(since, next.since);
    }
    reasons.hidden = !next.reasons.length;
    setText(reasons, next.reasons.join("; "));
    threads.classList.toggle("small", !next.slots);
    if (next.slots && threads.phases) {
      for (const name of ["role", "aria-label"]) threads.removeAttribute(name);
      threads.phases = null;
    }
    if (next.slots) keyed(threads, next.slots, (slot) => "s" + slot.slot, (slot) => cell(slot, context));
    else squares(threads, next.phases);
  };
  element.update([role, seat]);
  return element;
}

function seatAbout(seat) {
  const range = seat.min_threads !== seat.max_threads ? ` (${seat.min_threads} to ${seat.max_threads})` : "";
  return [`pid ${seat.pid}`, seat.memory && bytes(seat.memory), seat.threads && plural(seat.threads, "thread") + range,
    seat.generation > 1 && `process ${seat.generation}`].filter(Boolean).join(" · ");
}

function squares(box, phases) {
  if (box.phases === phases) return;
  box.phases = phases;
  const busy = running(phases);
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", `${busy} of ${plural(phases.length, "thread")} run${phases.includes("s") ? ", some are stuck" : ""}`);
  keyed(box, [...phases].map((letter, index) => [index, letter]), ([index]) => "p" + index, ([, letter]) => h("i", { class: "slot-" + PHASES[letter] }));
}

/** A thread. With a command it is its link, and a bar of the time until its timeout. */
function cell(slot, context) {
  const element = slot.command_id ? busyCell(slot, context) : h("span", { class: "slot" });
  element.update = (next) => {
    if ((next.command_id ?? null) !== (slot.command_id ?? null)) return cell(next, context);
    slot = next;
    element.className = `slot slot-${next.phase ?? "unknown"}`;
    if (next.command_id) element.tick();
    else setText(element, next.phase ?? "unknown");
    return element;
  };
  return element.update(slot);
}

function busyCell(slot, context) {
  const time = h("span", { class: "slot-time" });
  const element = h("a", {
    href: commandHref(slot),
    title: `${slot.domain}/${slot.type}, attempt ${slot.attempt}, thread ${slot.slot}`,
  }, h("span", { class: "slot-name" }, name(slot.type)), time);
  const since = Date.parse(slot.since);
  let due = Date.parse(slot.due);
  /** Whether it is past its timeout. */
  element.tick = (next = slot) => {
    due = Date.parse(next.due);
    const seconds = Math.max(0, (now() - since) / 1000);
    const part = due > since ? Math.min(1, (now() - since) / (due - since)) : 0;
    const late = due < now();
    setText(time, duration(seconds < 10 ? Math.round(seconds * 10) / 10 : seconds));
    element.style.setProperty("--part", part.toFixed(3));
    element.classList.toggle("slot-late", late);
    return late;
  };
  context.cells.add(element);
  return element;
}

