// Commands, processes and batches of one correlation id, each below what it belongs to.

import { h } from "./dom.js";
import { count, short, timeElement } from "./format.js";
import { commandLink, statusTag } from "./parts.js";
import { link } from "./router.js";

const NAMES = {
  command: (node) => [commandLink(node.domain, node.command_id, `${node.domain}/${node.type}`), " ", h("span", { class: "muted mono" }, short(node.command_id))],
  batch: (node) => ["Batch ", h("a", { href: link(["batch", node.batch_id]) }, node.name ?? short(node.batch_id)), h("span", { class: "muted" }, ` ${count(node.total)} commands`)],
  process: (node) => ["Process ", h("a", { href: link(["process", node.process_id]) }, `${node.domain}/${node.type}`)],
  step: (node) => [node.undoes === null ? "Step " : "Undo ", h("strong", null, node.step)],
};

/** `own`: the id of the command that is shown, which is marked. */
export function treeOf(nodes, own) {
  return h("ul", { class: "tree" }, nodes.map((node) =>
    h("li", node.command_id === own ? { "aria-current": "true" } : null,
      h("div", { class: "toolbar" }, h("span", null, NAMES[node.kind](node)), statusTag(node.status), node.error_code && h("code", null, node.error_code), h("span", { class: "muted" }, timeElement(node.created_at))),
      node.children.length > 0 && treeOf(node.children, own))));
}
