// Signs in with the token of a link (#token=...), which no server ever sees in an address.
const why = document.getElementById("why");

async function signIn(token) {
  const answer = await fetch("/session", {
    method: "POST",
    body: new URLSearchParams({ token }),
    redirect: "manual",
  });
  if (answer.type === "opaqueredirect") return location.replace("/" + location.search);
  const said = await answer.json().catch(() => ({}));
  why.textContent = said.error || `The server says ${answer.status}.`;
}

document.getElementById("form").addEventListener("submit", (event) => {
  event.preventDefault();
  signIn(document.getElementById("token").value);
});

const token = new URLSearchParams(location.hash.slice(1)).get("token");
if (token) {
  history.replaceState(null, "", location.pathname + location.search);
  signIn(token);
} else {
  // Who came by a link from elsewhere is not known to be signed in until this page asks.
  fetch("/api/runs").then((answer) => {
    if (answer.ok) location.reload();
  });
}
