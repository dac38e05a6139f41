// The page: where its view comes from, and when its parts are drawn. A view that is in the document
// is a frozen page; otherwise the server is asked and followed. Every change is applied when it
// comes; the parts are drawn a few times a second, and only those that can be seen.
"use strict";

(() => {
  const { el, say, keep, number, money, duration, moment, whole, isNumber, Parts } = Spotlight;
  const LIGHT_MS = 100;
  const HEAVY_MS = 250;
  const QUIET_S = 10;
  const MOST_WAIT_S = 15;
  const HIDDEN_MS = 5000;
  const LIST_MS = 5000;

  const page = document.getElementById("page");
  const waiting = document.getElementById("waiting");
  const counts = { views: 0, changes: 0, missed: 0, drawn: 0 };
  Spotlight.counts = counts;

  // ----- the state
  let view = null;
  let other = null;
  let run = "";
  let runs = [];
  const dirty = new Set();

  /** Apply a change: its fields replace those of the view; of the rows, the end. */
  function apply(change) {
    for (const [name, value] of Object.entries(change)) {
      if (name === "rows_from") continue;
      if (name === "rows" && isNumber(change.rows_from)) {
        view.rows.length = Math.min(view.rows.length, change.rows_from);
        for (const row of value) view.rows.push(row);
      } else view[name] = value;
      dirty.add(name);
    }
    schedule();
  }

  function replace(next) {
    for (const name of Object.keys(next)) dirty.add(name);
    view = next;
    if (!parts.length) {
      makeRunPage();
      showChooser();
    }
    schedule();
  }

  // ----- the parts
  let parts = [];

  /** A part is drawn when a field that it shows has changed; a heavy one only where it is seen. */
  function part(shown, fields, draw, isHeavy = false) {
    const made = { shown, fields, draw, isHeavy, isSeen: !isHeavy, isStale: true, drawnAt: -Infinity };
    if (isHeavy) seen.observe(shown.root);
    parts.push(made);
    return shown;
  }

  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const found = parts.find(({ shown }) => shown.root === entry.target);
      if (found) found.isSeen = entry.isIntersecting;
    }
    schedule();
  }, { rootMargin: "400px" });

  function makeRunPage() {
    parts = [];
    const header = part(new Parts.Header(), ["job"], (it) => it.show(view));
    const alerts = part(new Parts.Alerts(), ["alerts", "notes"], (it) => it.show(view));
    const tiles = part(new Parts.Tiles(), ["validation", "money", "pools", "job"],
      (it) => it.show(view));
    const sentence = part(new Parts.Sentence(), ["exploration"], (it) => it.show(view));
    const comparison = part(new Parts.Comparison(),
      ["job", "validation", "money", "pools", "exploration", "other"],
      (it) => it.show(view, other && other.view, [run, other && other.name]));
    const curves = part(new Spotlight.Curves(), ["rows", "columns", "marks", "other"],
      (it) => it.show(view, other), true);
    const pools = part(new Spotlight.Pools(askTime), ["pools", "areas", "lanes", "marks"],
      (it) => it.show(view), true);
    const pictures = part(new Spotlight.Pictures(address), ["pictures"], (it) => it.show(view), true);
    const bill = part(new Parts.Bill(), ["money", "job"], (it) => it.show(view));
    const nodes = part(new Parts.Nodes(), ["nodes", "money"], (it) => it.show(view));
    const happened = part(new Parts.Happened(), ["happened"], (it) => it.show(view));
    const commands = part(new Parts.Commands(), ["job", "nodes"], (it) => it.show(view, run));
    connection = header.connection;
    chooser = header.runs;
    page.replaceChildren(header.root, alerts.root, tiles.root, sentence.root, comparison.root,
      curves.root, pools.root, pictures.root, el("div.columns", null, bill.root,
        el("div.column", null, nodes.root, happened.root, commands.root)),
      el("footer.soft", null, "Spotlight. This page is drawn from the run folder; nothing on it "
        + "changes a run."));
  }

  // ----- drawing
  let isScheduled = false;
  let timer = 0;

  function schedule() {
    if (isScheduled || !view) return;
    isScheduled = true;
    requestAnimationFrame(draw);
  }

  function draw(now) {
    isScheduled = false;
    if (!parts.length || !view) return;
    let wait = Infinity;
    for (const each of parts) {
      each.isStale = each.isStale || each.fields.some((name) => dirty.has(name));
    }
    dirty.clear();
    for (const each of parts) {
      if (!each.isStale || !each.isSeen) continue;
      const due = each.drawnAt + (each.isHeavy ? HEAVY_MS : LIGHT_MS) - now;
      if (due > 0) {
        wait = Math.min(wait, due);
        continue;
      }
      each.isStale = false;
      each.drawnAt = now;
      each.draw(each.shown);
    }
    tell();
    if (!counts.drawn) performance.mark("spotlight-shown");
    counts.drawn += 1;
    page.setAttribute("aria-busy", "false");
    clearTimeout(timer);
    if (wait < Infinity) timer = setTimeout(schedule, wait);
  }

  addEventListener("beforeprint", () => {
    for (const each of parts) if (view) each.draw(each.shown);
  });

  // ----- the server
  const api = (path) => `api/runs${path}`;
  const ofRun = (name, path) => api(`/${encodeURIComponent(name)}/${path}`);

  async function ask(path) {
    const answer = await fetch(path, { headers: { Accept: "application/json" } });
    if (!answer.ok) throw new Error(await reason(answer));
    return answer.json();
  }

  /** Why the server does not grant it: its own words, which are a text or `{"error": text}`. */
  async function reason(answer) {
    const text = (await answer.text()).trim().slice(0, 400);
    try {
      const found = JSON.parse(text);
      return found.error || found.detail || found.message || text;
    } catch {
      return text || `the server answers ${answer.status}`;
    }
  }

  async function askTime(from, to) {
    if (isFrozen) return null;
    try {
      return await ask(`${ofRun(run, "time")}?from_s=${from.toFixed(3)}&to_s=${to.toFixed(3)}`);
    } catch {
      return null;
    }
  }

  /** Where a picture of the run folder is; never a way out of it. */
  function address(path) {
    if (path.startsWith("data:image/")) return path;
    const steps = path.split("/").filter((name) => name && name !== "..");
    if (isFrozen) return steps.join("/"); // a link to what lies beside the page, encoded already
    return ["files", run, ...steps].map(encodeURIComponent).join("/");
  }

  // ----- following
  let connection = null;
  let stream = null;
  let heardAt = 0;
  let lostAt = 0;
  let attempts = 0;
  let last = 0;
  let retry = 0;
  let why = "";
  let isFrozen = false;

  function follow() {
    unfollow();
    stream = new EventSource(ofRun(run, "stream"));
    const ours = stream;
    stream.addEventListener("view", (event) => {
      const id = Number(event.lastEventId) || 0;
      if (last && id > last + 1) counts.missed += id - last - 1;
      last = id;
      counts.views += 1;
      heard();
      replace(JSON.parse(event.data));
    });
    stream.addEventListener("change", (event) => {
      const id = Number(event.lastEventId) || 0;
      if (id !== last + 1 || !view) { // something is amiss: begin again with a whole view
        if (ours === stream) lost("changes are missing");
        return;
      }
      last = id;
      counts.changes += 1;
      heard();
      apply(JSON.parse(event.data));
    });
    stream.addEventListener("end", (event) => { // the server says why it tells no more
      const { error, status } = JSON.parse(event.data);
      if (status === 401) location.reload(); // it asks for a token again
      else if (ours === stream) lost(error);
    });
    stream.onerror = () => { if (ours === stream) lost(); };
  }

  function unfollow() {
    clearTimeout(retry);
    if (stream) stream.close();
    stream = null;
  }

  function heard() {
    heardAt = performance.now();
    lostAt = attempts = 0;
    why = "";
  }

  async function lost(text = "") {
    unfollow();
    lostAt = lostAt || performance.now();
    attempts += 1;
    const wait_s = Math.min(MOST_WAIT_S, 2 ** (attempts - 1));
    retry = setTimeout(follow, wait_s * 1000 * (0.75 + 0.5 * Math.random()));
    why = text;
    tell();
    try {
      runs = await ask(api(""));
      if (!runs.some(({ name }) => name === run)) why = "the run folder is gone";
    } catch (error) {
      if (!(error instanceof TypeError)) why = error.message;
    }
    tell();
  }

  /** Say in words how it stands with the connection. */
  function tell() {
    if (!view) return void say(waiting, lostAt
      ? `The run cannot be shown yet: ${why || "the server does not answer"}. Trying again.`
      : "Loading the run");
    const set = (state, text) => {
      connection.dataset.state = state;
      say(connection, text);
    };
    if (isFrozen) {
      const at = view.job.updated_at;
      set("frozen", isNumber(at) ? `as of ${moment(at)}` : "a report, not live");
    } else if (lostAt) {
      const since = duration(Math.round((performance.now() - lostAt) / 1000));
      set("lost", `Connection lost ${since} ago${why ? ` (${why})` : ""}; trying again. `
        + "What is shown is from before.");
    } else if (view.job.outcome !== "running") {
      set("ended", view.job.outcome === "unfinished" ? "not live" : "ended");
    } else {
      const quiet = Math.round((performance.now() - heardAt) / 1000);
      set("live", quiet >= QUIET_S ? `live, nothing new for ${duration(quiet)}` : "live");
    }
  }

  let hidden = 0;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hidden);
    if (isFrozen || !run) return;
    if (document.hidden) hidden = setTimeout(() => { unfollow(); last = 0; }, HIDDEN_MS);
    else if (!stream) follow();
  });
  addEventListener("online", () => { if (run && !isFrozen && lostAt) follow(); });

  // ----- choosing runs
  let chooser = null;

  async function showChooser() {
    if (isFrozen) return;
    try {
      runs = await ask(api(""));
    } catch {
      return;
    }
    if (runs.length < 2) return;
    against = el("select", { id: "against", onchange: () => compareWith(against.value) },
      el("option", { value: "" }, "no other run"),
      ...runs.filter(({ name }) => name !== run)
        .map(({ name }) => el("option", { value: name }, name)));
    chooser.replaceChildren(el("a", { href: "?" }, "All runs"),
      el("label", { for: "against" }, "Compare with"), against);
    const asked = new URLSearchParams(location.search).get("against");
    if (asked) compareWith(asked);
  }

  let comparing = 0;
  let against = null;
  async function compareWith(name) {
    clearTimeout(comparing);
    const query = new URLSearchParams(location.search);
    if (name) query.set("against", name);
    else query.delete("against");
    history.replaceState(null, "", `?${query}${location.hash}`);
    try {
      other = name ? { name, view: await ask(ofRun(name, "view")) } : null;
    } catch (error) {
      other = null;
      say(connection, `${name} cannot be shown: ${error.message}`);
    }
    if (against) against.value = other ? name : "";
    dirty.add("other");
    schedule();
    if (other && other.view.job.outcome === "running") {
      comparing = setTimeout(() => compareWith(name), LIST_MS);
    }
  }

  const listed = el("tbody");
  async function showList() {
    if (!listed.isConnected) {
      const head = ["run", "state", "iteration", "validation", "spent"];
      page.replaceChildren(el("header", null, el("div.title", null, el("h1", null, "Runs"))),
        el("section.panel", null, el("table.runs", null, el("thead", null, el("tr", null,
          ...head.map((text, place) => el(place > 1 ? "th.figure" : "th", { scope: "col" }, text)))),
        listed)));
      page.setAttribute("aria-busy", "false");
    }
    keep(listed, runs, ({ name }) => name, ({ name }) => el("tr", null, el("th", { scope: "row" },
      el("a", { href: `?run=${encodeURIComponent(name)}` }, name)), el("td", null, el("span.pill")),
    el("td.figure"), el("td.figure"), el("td.figure")), (row, one) => {
      const [, state, iteration, validation, spent] = row.children;
      state.firstChild.className = `pill ${one.outcome}`;
      say(state.firstChild, Parts.OUTCOMES[one.outcome] ? one.outcome : String(one.outcome));
      say(iteration, one.iterations ? `${whole(one.iteration)} of ${whole(one.iterations)}`
        : whole(one.iteration));
      say(validation, number(one.validation));
      say(spent, money(one.spent, one.currency || "USD"));
    });
    setTimeout(async () => {
      try {
        if (!document.hidden) runs = await ask(api(""));
      } catch { /* the next one asks again */ }
      showList();
    }, LIST_MS);
  }

  // ----- the beginning
  /** A view that is in the document itself: a frozen page. */
  function inlined(id, global) {
    if (window[global]) return window[global];
    const node = document.getElementById(id);
    return node ? JSON.parse(node.textContent) : null;
  }

  function complain(text) {
    page.replaceChildren(el("p.waiting", { role: "alert" }, text),
      el("p", null, el("button", { type: "button", onclick: () => location.reload() }, "Try again")));
    page.setAttribute("aria-busy", "false");
  }

  async function begin() {
    const frozen = inlined("view", "SPOTLIGHT_VIEW");
    if (frozen) {
      isFrozen = true;
      document.documentElement.classList.add("frozen");
      run = frozen.job.name;
      const beside = inlined("other-view", "SPOTLIGHT_OTHER_VIEW");
      if (beside) other = { name: beside.job.name, view: beside };
      replace(frozen);
      tell();
      return;
    }
    const query = new URLSearchParams(location.search);
    run = query.get("run") || "";
    if (!run) {
      runs = await ask(api(""));
      if (!runs.length) throw new Error("There is no run in this folder yet. It appears here when "
        + "one begins.");
      if (runs.length > 1) return void showList();
      run = runs[0].name;
    }
    follow();
    setInterval(tell, 1000);
  }

  begin().catch((error) => complain(error instanceof TypeError
    ? "The server does not answer. Is it still running?" : error.message));
})();
