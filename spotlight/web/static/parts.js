// The parts in words and figures: how far it is, what it costs, what the pools did, whether
// exploration paid, what happened, and the commands to type.
"use strict";

Spotlight.Parts = (() => {
  const { el, say, keep, number, money, duration, percent, whole, moment, plural, isNumber, DOING,
    NONE } = Spotlight;

  const OUTCOMES = { running: "running", finished: "finished", cancelled: "cancelled",
    failed: "failed", unfinished: "unfinished: nobody works on it" };
  const VERDICTS = { paid: "paid", "not shown": "not shown", "did not pay": "did not pay",
    off: "off" };
  const total = (seconds) => Object.values(seconds).reduce((sum, part) => sum + part, 0);
  const joined = (...parts) => parts.filter(Boolean).join(" · ");

  // ----- above all
  class Header {
    constructor() {
      this.name = el("h1");
      this.state = el("span.pill");
      this.connection = el("p.connection", { role: "status", "aria-live": "polite" });
      this.facts = el("p.facts");
      this.about = el("p.soft.about");
      this.bar = el("progress", { max: "1", value: "0", "aria-label": "Iterations done" });
      this.runs = el("div.choose");
      this.root = el("header", null,
        el("div.title", null, this.name, this.state, this.connection, this.runs),
        this.facts, this.bar, this.about);
    }

    show({ job }) {
      say(this.name, job.name);
      this.state.className = `pill ${job.outcome}`;
      say(this.state, OUTCOMES[job.outcome] || job.outcome);
      const count = job.iterations
        ? `iteration ${whole(job.iteration)} of ${whole(job.iterations)}`
        : plural(job.iteration, "iteration");
      const workers = Object.entries(job.workers).map(([pool, n]) => `${whole(n)} ${pool}`)
        .join(" + ");
      say(this.facts, joined(count, job.outcome === "running" && job.phase, duration(job.time_s),
        workers, job.owner && `owner ${job.owner}`,
        job.started_at && `began ${moment(job.started_at)}`));
      this.bar.hidden = !job.iterations;
      this.bar.value = job.iterations ? Math.min(1, job.iteration / job.iterations) : 0;
      say(this.about, joined(job.reason, job.about));
      this.about.hidden = !job.reason && !job.about;
      document.title = `${job.name} · ${whole(job.iteration)} of ${whole(job.iterations)} · Spotlight`;
    }
  }

  // ----- the tiles
  class Tiles {
    constructor() {
      this.root = el("dl.tiles", { "aria-label": "In short" });
    }

    show(view) {
      const tiles = [this.validation(view), this.spent(view),
        ...Object.entries(view.pools).map(([name, pool]) => this.pool(view, name, pool))];
      keep(this.root, tiles, (tile) => tile.title, () => this.make(), (node, tile) => {
        const [title, value, bar, note] = node.children;
        say(title, tile.title);
        say(value, tile.value);
        say(note, tile.note);
        bar.hidden = !tile.shares;
        keep(bar, tile.shares || [], ([state]) => state, ([state]) => el(`i.c-${state}`),
          (part, [, share]) => { part.style.flexGrow = share.toFixed(4); });
      });
    }

    make() {
      return el("div.tile", null, el("dt"), el("dd.value"),
        el("dd.bar", { "aria-hidden": "true", hidden: true }), el("dd.note"));
    }

    validation({ validation, money: paid, job }) {
      const { first, latest, best, target, seconds_left: seconds, usd_left: usd } = validation;
      const left = joined(isNumber(seconds) && `about ${duration(seconds)}`,
        isNumber(usd) && money(usd, paid.currency)).replace(" · ", " and ");
      const isReached = isNumber(target) && isNumber(best) && best >= target;
      let note = "no validation yet";
      if (isReached) {
        note = `target ${number(target, 2)} reached`
          + (isNumber(paid.to_target) ? ` for ${money(paid.to_target, paid.currency)}` : "");
      } else if (isNumber(target)) {
        note = `target ${number(target, 2)}: ${left ? `${left} left` : "no trend to it yet"}`;
      } else if (isNumber(latest)) note = isNumber(best) ? `best ${number(best)}` : "";
      if (!isNumber(target) && left && job.outcome === "running") {
        note = joined(note, `${left} to the last iteration`);
      }
      const value = isNumber(latest) ? `${number(first)} → ${number(latest)}` : NONE;
      return { title: "Validation", value, note };
    }

    spent({ money: paid }) {
      const of = (name) => paid.otherwise.find((one) => one.name === name);
      const demand = of("on demand");
      const unpriced = paid.unpriced_s > 0
        ? `${duration(paid.unpriced_s)} of workers unpriced` : "";
      if (!isNumber(paid.spent)) {
        return { title: "Spent", value: "unpriced",
          note: joined("no price of a GPU is known", unpriced) };
      }
      return { title: "Spent", value: money(paid.spent, paid.currency), note: joined(
        isNumber(paid.per_iteration) && `${money(paid.per_iteration, paid.currency)} an iteration`,
        demand && isNumber(demand.usd) && `${money(demand.usd, paid.currency)} on demand`,
        unpriced) };
    }

    pool(view, name, pool) {
      const all = total(pool.seconds);
      const shares = view.states.filter((state) => pool.seconds[state] > 0)
        .map((state) => [state, pool.seconds[state] / all]);
      const most = [...shares].sort((a, b) => b[1] - a[1]);
      const title = `${name[0].toUpperCase()}${name.slice(1)} GPUs`;
      if (!all) return { title, value: NONE, note: "no time counted yet" };
      const words = ([state, share]) => `${percent(share)} ${DOING[state] || state}`;
      const idle = shares.find(([state]) => state === "idle");
      const rest = most.slice(1, 3).filter(([state]) => state !== "idle");
      const lost = view.money.by_state[name]?.idle;
      return { title, value: words(most[0]), shares, note: joined(...rest.map(words),
        idle && most[0][0] !== "idle" && words(idle)
          + (isNumber(lost) ? ` (${money(lost, view.money.currency)})` : "")) };
    }
  }

  // ----- one sentence
  class Sentence {
    constructor() {
      this.verdict = el("span.pill");
      this.text = el("p");
      this.scale = el("div.interval", { "aria-hidden": "true" }, el("i.zero"), el("i.span"),
        el("i.point"));
      this.ends = el("div.ends.soft", { "aria-hidden": "true" }, el("span"), el("span"), el("span"));
      this.graph = el("div.graph", null, this.scale, this.ends);
      this.root = el("section.panel.sentence", { "aria-labelledby": "paid-title" },
        el("div.words", null,
          el("h2", { id: "paid-title" }, "Did exploration pay here?"), this.verdict, this.text),
        this.graph);
    }

    show({ exploration, job }) {
      const { verdict, sentence, times, low, high } = exploration;
      this.verdict.className = `pill v-${verdict.replaceAll(" ", "-")}`;
      say(this.verdict, VERDICTS[verdict] || verdict);
      say(this.text, sentence || (verdict === "off" ? "Exploration was off in this run."
        : job.outcome === "running" ? "It is not measured yet." : "It was not measured."));
      const isMeasured = isNumber(times) && isNumber(low) && isNumber(high);
      this.graph.hidden = !isMeasured;
      if (!isMeasured) return;
      const reach = 1.25 * Math.max(0.1, Math.abs(high - 1), Math.abs(low - 1));
      const place = (value) => 50 + 50 * (value - 1) / reach;
      const [, span, point] = this.scale.children;
      span.style.left = `${place(low)}%`;
      span.style.width = `${place(high) - place(low)}%`;
      point.style.left = `${place(times)}%`;
      const [less, same, more] = this.ends.children;
      const label = (node, value, text, isShown) => {
        say(node, isShown ? text : "");
        node.style.left = `${Math.max(6, Math.min(94, place(value)))}%`;
      };
      label(same, 1, "1×", true);
      label(less, low, `${number(low, 2)}×`, Math.abs(place(low) - 50) > 13);
      label(more, high, `${number(high, 2)}×`, Math.abs(place(high) - 50) > 13
        && place(high) - place(low) > 18);
    }
  }

  // ----- the bill
  class Bill {
    constructor() {
      this.summary = el("p.readout");
      this.budget = el("p");
      this.meter = el("progress", { max: "1", value: "0", "aria-label": "Share of the budget" });
      this.otherwise = el("ul.otherwise");
      this.otherwiseTitle = el("h3", null, "The same run would have cost");
      this.states = el("tbody");
      this.statesHead = el("tr");
      this.hours = el("div.hours", { role: "img" });
      this.hoursTitle = el("h3");
      this.advice = el("p");
      this.sources = el("p.soft.small");
      this.statesTable = el("table", null, el("caption", null, "What was paid for"),
        el("thead", null, this.statesHead), this.states);
      this.root = el("section.panel", { id: "bill", "aria-labelledby": "bill-title" },
        el("div.head", null, el("h2", { id: "bill-title" }, "The bill")), this.summary,
        this.budget, this.meter, this.otherwiseTitle, this.otherwise, this.advice, this.statesTable,
        this.hoursTitle, this.hours, this.sources);
    }

    show(view) {
      const { money: paid } = view;
      const priced = (amount) => money(amount, paid.currency);
      const pools = Object.keys(paid.by_pool);
      say(this.summary, isNumber(paid.spent)
        ? joined(`${priced(paid.spent)} in all`, ...pools.map((pool) =>
          `${priced(paid.by_pool[pool])} ${pool}`), paid.unpriced_s > 0
          && `and ${duration(paid.unpriced_s)} of workers unpriced`)
        : "Unpriced: no price of a GPU is known. Name prices in the job, or with --prices.");
      this.showBudget(view, priced);
      this.showOtherwise(paid, priced);
      this.showStates(view, priced);
      say(this.advice, paid.advice);
      this.advice.hidden = !paid.advice;
      say(this.sources, paid.sources.length ? `Prices from ${paid.sources.join("; ")}.` : "");
      this.showHours(paid, priced);
    }

    showBudget({ money: paid, job }, priced) {
      const shares = [];
      const words = [];
      if (isNumber(paid.budget_usd)) {
        words.push(`${priced(paid.spent)} of ${priced(paid.budget_usd)}`);
        if (isNumber(paid.spent)) shares.push(paid.spent / paid.budget_usd);
      }
      if (isNumber(paid.budget_hours)) {
        words.push(`${duration(job.time_s)} of ${duration(3600 * paid.budget_hours)}`);
        shares.push(job.time_s / (3600 * paid.budget_hours));
      }
      this.budget.hidden = this.meter.hidden = words.length === 0;
      const share = Math.min(1, Math.max(0, ...shares));
      say(this.budget, `Budget: ${words.join(", ")}`);
      this.meter.value = share;
      this.meter.classList.toggle("near", share >= 0.8);
    }

    showOtherwise(paid, priced) {
      this.otherwiseTitle.hidden = paid.otherwise.length === 0;
      keep(this.otherwise, paid.otherwise, ({ name }) => name, () => el("li", null, el("span"),
        el("b"), el("p.soft")), (row, one) => {
        const [name, usd, why] = row.children;
        say(name, one.name);
        const isBoth = isNumber(one.usd) && isNumber(paid.spent) && paid.spent > 0;
        say(usd, (isNumber(one.usd) ? priced(one.usd) : "not known") + (isBoth ? ` (${number(one.usd / paid.spent, 2)}×)` : ""));
        say(why, one.assumption);
      });
    }

    showStates(view, priced) {
      const pools = Object.keys(view.money.by_state);
      this.statesTable.hidden = pools.length === 0;
      keep(this.statesHead, ["", ...pools], (pool) => pool, (pool) => pool
        ? el("th.figure", { scope: "col" }, pool) : el("td"));
      const states = view.states.filter((state) =>
        pools.some((pool) => isNumber(view.money.by_state[pool][state])));
      keep(this.states, states, (state) => state, (state) => el("tr", null,
        el("th", { scope: "row" }, el(`i.c-${state}`), DOING[state] || state)), (row, state) => {
        const cells = pools.map((pool) => view.money.by_state[pool][state]);
        while (row.children.length < cells.length + 1) row.append(el("td.figure"));
        while (row.children.length > cells.length + 1) row.lastChild.remove();
        cells.forEach((amount, place) =>
          say(row.children[place + 1], isNumber(amount) ? priced(amount) : NONE));
      });
    }

    showHours(paid, priced) {
      const hours = paid.by_hour.slice(-96);
      this.hours.hidden = this.hoursTitle.hidden = hours.length < 2;
      if (hours.length < 2) return;
      const most = hours.reduce((a, [, usd]) => Math.max(a, usd), 0) || 1;
      keep(this.hours, hours, ([at]) => String(at), () => el("i"), (bar, [at, usd]) => {
        bar.style.height = `${Math.max(2, 100 * usd / most)}%`;
        bar.title = `${moment(at)}: ${priced(usd)}`;
      });
      say(this.hoursTitle, `By the hour, ${priced(most)} at most`);
      this.hours.setAttribute("aria-label", `Money by the hour, at most ${priced(most)}; `
        + `${priced(hours[hours.length - 1][1])} in the latest.`);
    }
  }

  // ----- nodes
  class Nodes {
    constructor() {
      this.about = el("p.readout");
      this.body = el("tbody");
      const head = ["node", "pool", "GPUs", "an hour", "so far", "says"];
      this.root = el("section.panel", { id: "nodes", "aria-labelledby": "nodes-title" },
        el("div.head", null, el("h2", { id: "nodes-title" }, "Nodes")), this.about,
        el("div.scroll", { tabindex: "0", role: "region", "aria-label": "Table of the nodes" },
          el("table.nodes", null, el("thead", null, el("tr", null, ...head.map((text, place) =>
            el(place > 1 && place < 5 ? "th.figure" : "th", { scope: "col" }, text)))), this.body)));
    }

    show({ nodes, money: { currency } }) {
      this.root.hidden = nodes.length === 0;
      const there = nodes.filter((node) => node.is_there);
      const hourly = there.reduce((sum, node) => sum + (node.usd_per_hour || 0), 0);
      const unpriced = there.filter((node) => !isNumber(node.usd_per_hour)).length;
      say(this.about, joined(`${plural(there.length, "node")} there`,
        nodes.length > there.length && `${nodes.length - there.length} gone`,
        hourly > 0 && `${money(hourly, currency)} an hour now`,
        unpriced > 0 && `${unpriced} unpriced`));
      keep(this.body, nodes, ({ name }) => name, () => el("tr", null, el("th", { scope: "row" }),
        el("td"), el("td.figure"), el("td.figure"), el("td.figure"), el("td")), (row, node) => {
        const texts = [node.name, node.pool, whole(node.workers), money(node.usd_per_hour, currency),
          money(node.usd, currency), node.says];
        texts.forEach((text, place) => say(row.children[place], text));
        row.className = node.is_there ? "" : "gone";
        row.lastChild.className = /notice|withdrawn|lost|sick/.test(node.says) ? "warned" : "";
      });
    }
  }

  // ----- what happened
  class Happened {
    constructor() {
      this.list = el("ol.happened");
      this.root = el("section.panel", { id: "happened", "aria-labelledby": "happened-title" },
        el("div.head", null, el("h2", { id: "happened-title" }, "What happened")),
        el("div.scroll", { tabindex: "0", role: "region", "aria-label": "What happened, latest first" },
          this.list));
    }

    show({ happened }) {
      this.root.hidden = happened.length === 0;
      const latest = [...happened].reverse();
      keep(this.list, latest, (one) => `${one.time_s} ${one.text}`, (one) =>
        el(`li.${one.level}`, null, el("time", null, duration(one.time_s)), el("span", null,
          one.level === "info" ? "" : `${one.level}: `, one.text)));
    }
  }

  // ----- alerts
  class Alerts {
    constructor() {
      this.list = el("ul");
      this.root = el("section.alerts", { role: "alert", "aria-label": "What is wrong now" }, this.list);
    }

    show({ alerts, notes }) {
      this.root.hidden = alerts.length + notes.length === 0;
      const all = [...alerts.map((text) => ["alert", text]), ...notes.map((text) => ["note", text])];
      keep(this.list, all, ([kind, text]) => kind + text, ([kind, text]) => el(`li.${kind}`, null, text));
    }
  }

  // ----- commands
  /** A word of a command line as a shell reads it. */
  const quoted = (word) => /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;

  class Commands {
    constructor() {
      this.list = el("ul.commands");
      this.root = el("section.panel", { id: "commands", "aria-labelledby": "commands-title" },
        el("div.head", null, el("h2", { id: "commands-title" }, "To act, type")),
        el("p.readout", null, "This page only shows; it changes nothing."), this.list);
    }

    show(view, run) {
      const job = quoted(view.job.id || view.job.name);
      const isOver = view.job.outcome !== "running";
      const node = view.nodes.find((one) => one.is_there && one.pool === "spot")
        || view.nodes.find((one) => one.is_there);
      const commands = isOver
        ? [["Go on with it", `spotlight resume ${quoted(run || view.job.name)}`],
          ["Compare it with another", `spotlight compare ${quoted(run || view.job.name)} OTHER`]]
        : [["End it, resumable", `spotlight cancel ${job}`],
          ["Follow it on a terminal", `spotlight watch ${job}`]];
      if (!isOver && node) {
        commands.push(["Have a node give its work back", `spotlight drain ${quoted(node.name)}`]);
      }
      keep(this.list, commands, ([, command]) => command, ([what, command]) => {
        const copy = el("button", { type: "button", "aria-label": `Copy ${command}`,
          onclick: () => this.copy(copy, code, command) }, "Copy");
        const code = el("code", null, command);
        return el("li", null, el("span.soft", null, what), code, copy);
      });
    }

    async copy(button, code, command) {
      try {
        await navigator.clipboard.writeText(command);
      } catch { // without TLS a browser has no clipboard: select it, so that Ctrl-C copies it
        getSelection().selectAllChildren(code);
        if (!document.execCommand("copy")) return void say(button, "Press Ctrl-C");
      }
      say(button, "Copied");
      setTimeout(() => say(button, "Copy"), 1500);
    }
  }

  // ----- two runs side by side
  class Comparison {
    constructor() {
      this.body = el("tbody");
      this.names = [el("th.figure", { scope: "col" }), el("th.figure", { scope: "col" })];
      this.root = el("section.panel", { id: "comparison", hidden: true,
        "aria-label": "Two runs side by side" }, el("table.compared", null,
        el("thead", null, el("tr", null, el("td"), ...this.names)), this.body));
    }

    show(view, other, names) {
      this.root.hidden = !other;
      if (!other) return;
      this.names.forEach((node, place) => say(node, names[place]));
      const [ours, theirs] = [headlines(view), headlines(other)];
      keep(this.body, ours, ([name]) => name, ([name]) => el("tr", null,
        el("th", { scope: "row" }, name), el("td.figure"), el("td.figure")), (row, [, value], place) => {
        say(row.children[1], value);
        say(row.children[2], theirs[place][1]);
      });
    }
  }

  function headlines({ job, validation, money: paid, pools, exploration }) {
    const priced = (amount) => money(amount, paid.currency);
    const demand = paid.otherwise.find(({ name }) => name === "on demand");
    const share = (pool, state) => pools[pool]
      ? percent((pools[pool].seconds[state] || 0) / (total(pools[pool].seconds) || 1)) : NONE;
    return [
      ["State", `${OUTCOMES[job.outcome] || job.outcome}, ${whole(job.iteration)} of `
        + whole(job.iterations)],
      ["Run time", duration(job.time_s)],
      ["Validation", isNumber(validation.latest)
        ? `${number(validation.first)} → ${number(validation.latest)}` : NONE],
      ["Best validation", number(validation.best)],
      ["Spent", priced(paid.spent)],
      ["An iteration", priced(paid.per_iteration)],
      ["To the target", isNumber(paid.to_target) ? priced(paid.to_target) : NONE],
      ["On demand", demand ? priced(demand.usd) : NONE],
      ["Reserved, training", share("reserved", "train")],
      ["Reserved, idle", share("reserved", "idle")],
      ["Spot, exploring", share("spot", "explore")],
      ["Spot, idle", share("spot", "idle")],
      ["Exploration", isNumber(exploration.low) && isNumber(exploration.high)
        ? `${exploration.verdict}, ${number(exploration.times, 2)}× (${number(exploration.low, 2)} to `
          + `${number(exploration.high, 2)})` : exploration.verdict],
    ];
  }

  return { Header, Tiles, Sentence, Bill, Nodes, Happened, Alerts, Commands, Comparison, OUTCOMES };
})();
