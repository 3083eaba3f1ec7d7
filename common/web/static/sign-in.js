// Goes on to the view for which the reader came: a redirect keeps the hash of its request.
const form = document.querySelector("form");
form.action = new URL("sign-in" + location.hash, document.baseURI);

// After a link on another site the browser has not sent the cookie of a reader who is signed in.
const session = await fetch(new URL("api/session", document.baseURI), { credentials: "same-origin" });
if (session.ok) location.replace(new URL("./" + location.hash, document.baseURI));
