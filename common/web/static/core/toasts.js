// Short messages at the edge of the page. They are announced, and stay as long as they are read.

import { h } from "./dom.js";

const SECONDS = 8;
const AT_MOST = 4;

/** Shows a message; tone good or bad; action {label, run} adds a button. */
export function toast(text, { tone, action, detail } = {}) {
  const place = document.getElementById("toasts");
  let timer = 0;
  const close = () => {
    clearTimeout(timer);
    element.remove();
  };
  const start = () => (timer = setTimeout(close, 1000 * (action ? 2 : 1) * SECONDS));
  const stop = () => clearTimeout(timer);
  const element = h("div", { class: ["toast", tone && "toast-" + tone], on: { pointerenter: stop, pointerleave: start, focusin: stop, focusout: start } },
    h("p", null, text, detail && h("span", { class: "muted" }, " ", detail)),
    action && h("button", { type: "button", class: "small", on: { click: () => { close(); action.run(); } } }, action.label),
    h("button", { type: "button", class: "small plain", "aria-label": "Close", on: { click: close } }, "×"));
  place.append(element);
  while (place.childElementCount > AT_MOST) place.firstElementChild.remove();
  start();
  return close;
}
