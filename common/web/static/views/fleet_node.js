// One node of the fleet view: what it is, its processes, and those that were killed or have crashed.

import { get } from "../core/api.js";
import { h, keyed, replace, setText } from "../core/dom.js";
import { bytes, count, now, plural, setTime, timeElement } from "../core/format.js";
import { button, codeBlock, commandLink, name, tag } from "../core/parts.js";
import { apiPath } from "../core/router.js";
import { seatRow } from "./fleet_seat.js";

const STATES = { running: "good", starting: "info", stopping: "warn", stopped: "muted", giving_up: "bad" };
// Milliseconds after which a node should have published again: while no page watches, and while
// this one does and sees nodes publish quickly.
const LATE = 75000;
const SILENT = 10000;
const QUICK = 6000;

/** All processes of a node that run commands. */
export const seatsOf = (node) => (node.quarantine ? [...node.seats, node.quarantine] : node.seats);

/** A node; `update` does nothing if it has published nothing new. */
export function nodeCard(node, context) {
  const age = timeElement(node.published_at);
  const tags = h("span", { class: "toolbar" });
  const about = h("p", { class: "muted" });
  const seats = h("div", { class: "seats" });
  const exits = h("details", null);
  const silent = tag("silent", "bad", "It publishes no more: it has died or hangs, or cannot reach the database");
  const heading = h("h2", null, name(node.name), " ", h("span", { class: "muted" }, "on ", name(node.host)));
  const opener = button("Show threads", () => context.toggle(node.node), { small: true });
  const element = h("section", { class: "card node", aria: { label: `${node.name} on ${node.host}` } },
    h("div", { class: "toolbar" }, heading, silent, tags, h("span", { class: "muted push" }, "published ", age), opener), about, seats, exits);
  let known = "";
  let shown = node;
  element.update = (next) => {
    const step = Date.parse(next.published_at) - Date.parse(shown.published_at);
    if (step > 0 && step < QUICK) context.quick = true;
    shown = next;
    const hasSlots = seatsOf(next).some((seat) => seat.slots);
    const version = [next.published_at, next.gone, hasSlots, context.hasSlots()].join();
    opener.hidden = context.hasSlots() || next.gone;
    setText(opener, context.isOpen(next.node) ? "Hide threads" : "Show threads");
    if (version === known) return;
    known = version;
    setTime(age, next.published_at);
    replace(tags, tagsOf(next));
    replace(about, aboutOf(next));
    const items = next.gone ? [] : [...next.seats.map((seat) => ["worker", seat]), ...(next.quarantine ? [["quarantine", next.quarantine]] : [])];
    keyed(seats, items, ([role, seat]) => `${role} ${seat.seat}`, (item) => seatRow(item, context));
    showExits(exits, next, context);
  };
  element.tick = () => {
    const patience = context.quick && shown.steward?.listening ? SILENT : LATE;
    const late = !shown.gone && context.heardSince !== null && now() - Math.max(Date.parse(shown.published_at), context.heardSince) > patience;
    element.classList.toggle("late", late);
    silent.hidden = !late;
  };
  element.tick();
  element.update(node);
  return element;
}

function tagsOf(node) {
  const steward = node.steward;
  const restarts = Object.entries(node.restarts);
  return [
    node.gone ? tag(node.stopped ? "stopped" : "gone without a word", node.stopped ? "muted" : "bad") : tag((node.state ?? "unknown").replace("_", " "), STATES[node.state]),
    !node.gone && node.wanted > 0 && (!steward?.pid ? tag("no steward", "bad") : !steward.listening && tag("polls", "warn", "Its session does not listen: it polls, and publishes each minute")),
    node.undead > 0 && tag(plural(node.undead, "undead process", "undead processes"), "bad", "Processes that survived SIGKILL"),
    restarts.length > 0 && tag("replaced: " + restarts.map(([reason, n]) => `${count(n)} ${reason}`).join(", "), "warn"),
    node.cut && tag("not all threads are shown", "warn"),
  ];
}

function aboutOf(node) {
  const own = [
    node.pid && `pid ${node.pid}`,
    bytes(node.memory),
    node.version && `cmdbus ${node.version}`,
    node.python && `Python ${node.python}`,
    node.postgresql && `PostgreSQL ${Math.floor(node.postgresql / 10000)}.${node.postgresql % 10000}`,
    node.tags.length > 0 && `tags ${node.tags.join(", ")}`,
    (node.priorities[0] !== 0 || node.priorities[1] !== 10) && `priorities ${node.priorities[0]} to ${node.priorities[1]}`,
    node.age_share > 0 && `${node.age_share} % by age`,
  ];
  return [own.filter(Boolean).join(" · "), node.started_at && [" · started ", timeElement(node.started_at)]];
}

/** Kills and crashes, each with what ran and, for operators, its stack. */
function showExits(box, node, context) {
  box.hidden = !node.exits.length;
  if (!node.exits.length) return;
  const known = node.exits[0].number;
  if (box.known === known) return;
  box.known = known;
  const list = h("ul", { class: "exits" }, node.exits.map((one) => exitRow(node, one, context)));
  replace(box, h("summary", null, `${plural(node.exits.length, "kill or crash", "kills and crashes")}, the last `, timeElement(node.exits[0].at)), list);
}

function exitRow(node, one, context) {
  const stack = h("div", null);
  const look = button("Stack", async () => {
    look.disabled = true;
    try {
      const { stacks } = await get(apiPath(["fleet", node.node, "stacks"]), {}, { signal: context.signal });
      const found = stacks[one.number];
      replace(stack, found ? codeBlock(found) : h("p", { class: "muted" }, "It left no stack."));
    } catch (error) {
      look.disabled = false;
      if (error.name !== "AbortError") replace(stack, h("p", { class: "problem" }, error.message));
    }
  }, { small: true });
  return h("li", null,
    h("div", { class: "toolbar" }, timeElement(one.at, "both"), tag(one.verdict === "none" ? one.signal ?? `code ${one.code}` : one.verdict, "bad"),
      h("span", null, `${one.role} ${one.role === "worker" ? one.seat + ", " : ""}pid ${one.pid}, ${one.reason}`), context.session.reads_data && look),
    one.commands.length > 0 && h("p", null, "It ran ", one.commands.map((command, index) => [index > 0 && ", ", name(`${command.domain}/${command.type}`), " ",
      commandLink(command.domain, command.command_id), command.charged && [" ", tag("charged", "bad", "The exit is attributed to this command")]])),
    stack);
}
