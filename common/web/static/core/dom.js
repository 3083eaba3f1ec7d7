// Builds elements from values. Text of a command is never markup: every string becomes a text
// node, with control characters and direction overrides made visible.

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set([
  "value", "checked", "disabled", "hidden", "selected", "indeterminate", "open", "readOnly", "required",
]);
// C0 without tab and newline, C1, zero-width and bidirectional controls, lone surrogates.
const UNSEEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
const LINKS = /^(#|static\/|api\/|blob:|\.\/$)/;

const escaped = (character) => "\\u" + character.charCodeAt(0).toString(16).padStart(4, "0");

/** The text with all that a reader could not see written as \uXXXX. */
export const visible = (text) => String(text).replace(UNSEEN, escaped);

function append(parent, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false || child === true) continue;
    if (Array.isArray(child)) append(parent, child);
    else parent.append(child instanceof Node ? child : visible(child));
  }
}

function apply(element, attrs) {
  for (const [name, value] of Object.entries(attrs)) {
    if (value === null || value === undefined || value === false) {
      if (PROPERTIES.has(name) && value === false) element[name] = false;
    } else if (name === "on") {
      const { signal, ...listeners } = value;
      for (const [event, listener] of Object.entries(listeners)) {
        element.addEventListener(event, listener, signal ? { signal } : undefined);
      }
    } else if (name === "class") {
      const names = Array.isArray(value) ? value.filter(Boolean).join(" ") : value;
      if (names) element.setAttribute("class", names);
    } else if (name === "data") {
      for (const [key, text] of Object.entries(value)) if (text !== null && text !== undefined) element.dataset[key] = text;
    } else if (name === "aria") {
      for (const [key, text] of Object.entries(value)) {
        if (text !== null && text !== undefined) element.setAttribute("aria-" + key, visible(text));
      }
    } else if (name === "css") {
      for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    } else if (name === "href") {
      if (!LINKS.test(value)) throw new Error("a link leads out of the page");
      element.setAttribute("href", value);
    } else if (PROPERTIES.has(name) && name in element) {
      element[name] = value;
    } else if (name.startsWith("on")) {
      throw new Error("listeners are given as `on`");
    } else {
      element.setAttribute(name, value === true ? "" : visible(value));
    }
  }
  return element;
}

/**
 * An HTML element. `attrs` may hold `class` (text or list), `data`, `aria`, `on` (listeners, and a
 * `signal` that removes them), `css` (properties set through CSSOM), properties and attributes.
 * Children: nodes, texts, numbers, nested lists; null and booleans are left out.
 */
export function h(tag, attrs, ...children) {
  const element = apply(document.createElement(tag), attrs ?? {});
  append(element, children);
  // A select has its options only now.
  if (attrs && tag === "select" && "value" in attrs && attrs.value !== null) element.value = attrs.value;
  return element;
}

/** An SVG element, with the same arguments. */
export function s(tag, attrs, ...children) {
  const element = apply(document.createElementNS(SVG, tag), attrs ?? {});
  append(element, children);
  return element;
}

/** Puts the children in the place of all that the parent holds. */
export function replace(parent, ...children) {
  const fragment = document.createDocumentFragment();
  append(fragment, children);
  parent.replaceChildren(fragment);
  return parent;
}

/** Sets the text only where it differs, so that an unchanged figure costs nothing. */
export function setText(element, text) {
  const shown = visible(text ?? "");
  if (element.textContent !== shown) element.textContent = shown;
}

const KEYED = new WeakMap();

/** Unique keys in the order of the items; a repeated key gets its ordinal number. */
export function keysOf(items, keyOf) {
  const seen = new Map();
  return items.map((item) => {
    const key = String(keyOf(item));
    const times = seen.get(key) ?? 0;
    seen.set(key, times + 1);
    return times ? `${key}\u0000${times}` : key;
  });
}

function place(parent, node, before) {
  const focused = node.contains(document.activeElement) ? document.activeElement : null;
  if (node.isConnected && parent.moveBefore) parent.moveBefore(node, before);
  else parent.insertBefore(node, before);
  if (focused && document.activeElement !== focused) focused.focus({ preventScroll: true });
}

/**
 * Makes the parent's children those of the items, each built by `build(item)` if its key is new.
 * The node of a key that stays is kept and its `update(item)` called, which may return another
 * node; a node without `update` is built again where its item differs, by `build(item, node)`.
 */
export function keyed(parent, items, keyOf, build) {
  const old = KEYED.get(parent) ?? new Map();
  const now = new Map();
  keysOf(items, keyOf).forEach((key, index) => {
    const item = items[index];
    const before = old.get(key);
    const stays = before?.node.parentNode === parent;
    const node = stays ? renewed(before, item, build) : build(item);
    if (stays && node !== before.node) before.node.replaceWith(node);
    now.set(key, { node, text: node.update ? "" : JSON.stringify(item) });
  });
  arrange(parent, [...now.values()].map(({ node }) => node));
  KEYED.set(parent, now);
}

function renewed({ node, text }, item, build) {
  if (node.update) return node.update(item) ?? node;
  return JSON.stringify(item) === text ? node : build(item, node);
}

/** A function that draws only what differs from the last time. */
export function onChange(draw) {
  let last;
  return (value) => {
    const text = JSON.stringify(value);
    if (text !== last) draw(value);
    last = text;
  };
}

/** Makes the nodes the children of the parent, in their order, with as few moves as it takes. */
export function arrange(parent, nodes) {
  const wanted = new Set(nodes);
  for (const node of [...parent.childNodes]) if (!wanted.has(node)) node.remove();
  let cursor = parent.firstChild;
  for (const node of nodes) {
    if (node === cursor) cursor = cursor.nextSibling;
    else place(parent, node, cursor);
  }
}
