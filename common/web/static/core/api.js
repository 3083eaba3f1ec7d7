// Requests to the server. All are relative to the document, so that any prefix works.

import { search } from "./router.js";

/** What the server or the way to it refused; the message is a sentence for the reader. */
export class ApiError extends Error {
  constructor(message, { status = 0, away = false, body = null } = {}) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    /** PostgreSQL is away: the same request may work in a moment. */
    this.away = away;
    this.body = body;
  }

  /** The server did not answer at all. */
  get offline() {
    return this.status === 0;
  }
}

let csrf = null;
const RECENT = new Map();

async function request(path, options) {
  let response;
  try {
    response = await fetch(new URL("api/" + path, document.baseURI), { credentials: "same-origin", cache: "no-store", redirect: "manual", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server of this page does not answer.");
  }
  let body = null;
  try {
    body = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
  }
  if (response.ok && body !== null) return body;
  const sentence = typeof body?.error === "string" ? body.error : sentenceOf(response);
  throw new ApiError(sentence, { status: response.status || 401, away: body?.away === true, body });
}

function sentenceOf(response) {
  if (response.status === 401 || response.type === "opaqueredirect") return "You are no longer signed in: reload the page.";
  return response.ok ? "The server's answer is not JSON." : `The server answered with status ${response.status}.`;
}

/** The value of a view: get("commands", {domain: "payments"}). */
export async function get(path, params, { signal } = {}) {
  const whole = path + search(params);
  const value = await request(whole, { signal });
  RECENT.set(whole, [performance.now(), value]);
  if (RECENT.size > 8) RECENT.delete(RECENT.keys().next().value);
  return value;
}

/** The value of a path that was read within the last two seconds, or undefined. */
export function recent(path) {
  const [at, value] = RECENT.get(path) ?? [-Infinity];
  RECENT.delete(path);
  return performance.now() - at < 2000 ? value : undefined;
}

async function post(path, body) {
  const send = () =>
    request(path, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-CSRF-Token": csrf ?? "" },
      body: JSON.stringify(body),
    });
  const before = csrf;
  try {
    return await send();
  } catch (error) {
    // A server that was started again has other tokens, of which the page has not heard.
    if (error.status !== 403) throw error;
    await readSession();
    if (csrf === before) throw error;
    return send();
  }
}

/** What an action would touch, without touching it. */
export const preview = (name, body) => post("preview/" + encodeURIComponent(name), body);

/** Performs an action: {done, count, undo, undone}. */
export const act = (name, body) => post("actions/" + encodeURIComponent(name), body);

/** Ends the session, where there is a sign-in. */
export const signOut = () => post("sign-out", {});

/** Who is here and may do what; keeps the token that actions send. */
export async function readSession() {
  const session = await request("session");
  csrf = session.csrf;
  return session;
}
