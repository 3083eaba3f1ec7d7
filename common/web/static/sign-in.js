// Goes on to the view for which the reader came: a redirect keeps the hash of its request.
const form = document.querySelector("form");
const here = new URL("sign-in", document.baseURI);
form.action = here + location.hash;

// After a link on another site the browser has not sent the cookie of a reader who is signed in.
const again = await fetch(here, { credentials: "same-origin", redirect: "manual" });
if (again.type === "opaqueredirect") location.replace(new URL("./" + location.hash, here));
