// Dialogs: opened over the page, closed by Escape, after which the focus is where it was.

import { h } from "./dom.js";

/** Opens a dialog and returns {element, heading, close}; `content` and `buttons` are nodes. */
export function openDialog(title, content, buttons, { onClose, wide } = {}) {
  const before = document.activeElement;
  const heading = h("h2", { id: "dialog-title" }, title);
  const element = h("dialog", { class: wide && "wide", "aria-labelledby": "dialog-title" }, heading, content, h("div", { class: "buttons" }, buttons));
  element.addEventListener("close", () => {
    element.remove();
    if (before?.isConnected) before.focus({ preventScroll: true });
    onClose?.();
  });
  document.body.append(element);
  element.showModal();
  return { element, heading, close: () => element.close() };
}
