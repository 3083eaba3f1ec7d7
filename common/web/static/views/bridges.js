// Bridges between queues of PGMQ and domains: what they have moved, and why one moves nothing.

import { h } from "../core/dom.js";
import { count, timeElement } from "../core/format.js";
import { acting, col, live, when } from "../core/view.js";
import { empty, name, tag } from "../core/parts.js";
import { apiPath, link } from "../core/router.js";
import { table } from "../core/table.js";

const EXAMPLE = `bus.bridges.add("orders", "shop", "PlaceOrder", reply_to="shop.answers")
bus.bridges.add("answers", "shop.answers", direction="out")`;

export const title = () => "Bridges";

const commands = ({ domain, type }) => h("a", { href: link("commands", { domain, type }), class: "name" }, type ? `${domain}/${type}` : `${domain}, all types`);

const answers = ({ reply_to: domain }) => domain && h("p", { class: "muted" }, "replies to ", name(domain));

const state = ({ error, failed_at: since }) => (error
  ? [tag("failing", "bad"), " since ", timeElement(since, "both"), h("p", { class: "text-bad" }, error)] : tag("on", "good"));

const refused = ({ refused: many, domain }) => (many
  ? h("a", { href: link("troubleshooting", { domain }), title: "in troubleshooting, or were" }, count(many)) : count(0));

export async function show(root, { params, session, signal }) {
  const shown = table({
    label: "Bridges",
    keyOf: (bridge) => bridge.name,
    columns: [
      col("name", "Bridge", (bridge) => name(bridge.name), { narrow: "title" }),
      col("direction", "Direction", ({ direction }) => (direction === "in" ? "messages become commands" : "commands become messages")),
      col("queue", "Queue", ({ queue }) => name(queue)),
      col("commands", "Commands", (bridge) => [commands(bridge), answers(bridge)]),
      col("state", "State", state),
      col("moved", "Moved", ({ moved }) => count(moved)),
      col("refused", "Refused", refused),
      when("moved_at", "Latest", { width: "minmax(90px, 170px)" }),
      session.acts && col("acts", "Actions", (bridge) => acting(session, "Remove", "remove_bridge", { name: bridge.name }, { small: true }), { width: "100px" }),
    ].filter(Boolean),
    empty: empty("No bridges", "A bridge moves messages of a PGMQ queue into commands, or commands into messages:", EXAMPLE),
  });
  root.append(h("div", { class: "card flush" }, shown.element));
  return live(root, apiPath("bridges", params), signal, ({ bridges }) => shown.update(bridges));
}
