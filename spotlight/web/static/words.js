// How numbers, times and money are written, and how elements are made. Everything that comes from
// a run is put in as text, never as HTML.
"use strict";

window.Spotlight = (() => {
  const DOING = {
    rollout: "rolling out", explore: "exploring", train: "training", score: "scoring",
    evaluate: "evaluating", idle: "idle", loading: "loading", starting: "starting",
    draining: "draining", lost: "lost",
  };
  const NONE = "–";

  // ----- numbers
  const formats = new Map();
  const format = (key, options) => {
    if (!formats.has(key)) formats.set(key, new Intl.NumberFormat("en-US", options));
    return formats.get(key);
  };
  const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

  /** A number with about so many digits: 0.754, 1,234, 2.1e-5. */
  function number(value, digits = 3) {
    if (!isNumber(value)) return NONE;
    const size = Math.abs(value);
    if (size && (size < 1e-3 || size >= 1e7)) {
      return value.toExponential(1).replace(".0e", "e").replace("e+", "e");
    }
    if (size >= 1000) return format("whole", { maximumFractionDigits: 0 }).format(value);
    if (size >= 100) return format("tenths", { maximumFractionDigits: 1 }).format(value);
    const key = `digits${digits}`;
    return format(key, { minimumFractionDigits: Number.isInteger(value) ? 0 : Math.min(2, digits),
      maximumFractionDigits: digits }).format(value);
  }

  const whole = (value) => isNumber(value)
    ? format("whole", { maximumFractionDigits: 0 }).format(value) : NONE;

  function percent(share) {
    if (!isNumber(share)) return NONE;
    if (share > 0 && share < 0.005) return "<1%";
    return `${Math.round(100 * share)}%`;
  }

  /** An amount of money; what is not known is unpriced, which is not $0. */
  function money(amount, currency = "USD") {
    if (!isNumber(amount)) return "unpriced";
    const size = Math.abs(amount);
    const isSmall = size > 0 && size < 0.1;
    const places = size >= 10000 ? 0 : 2;
    const digits = isSmall ? { maximumSignificantDigits: 2 }
      : { minimumFractionDigits: places, maximumFractionDigits: places };
    try {
      return format(`${currency}${isSmall || places}`, { style: "currency", currency, ...digits })
        .format(amount);
    } catch {
      return `${amount.toFixed(places)} ${currency}`;
    }
  }

  /** A duration in its two largest units: 44 h 10 min, 3 min 5 s, 0.4 s. */
  function duration(seconds) {
    if (!isNumber(seconds)) return NONE;
    if (seconds < 0) return `-${duration(-seconds)}`;
    if (seconds < 1) return seconds === 0 ? "0 s" : `${seconds.toFixed(1)} s`;
    const all = Math.round(seconds);
    const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
    const first = units.findIndex(([size]) => all >= size);
    const [size, name] = units[first];
    const text = `${Math.floor(all / size)} ${name}`;
    if (first === units.length - 1) return text;
    const [next, nextName] = units[first + 1];
    const rest = Math.floor((all % size) / next);
    return rest ? `${text} ${rest} ${nextName}` : text;
  }

  const date = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
  const moment = (at) => isNumber(at) ? date.format(new Date(at * 1000)) : NONE;
  const plural = (count, one, many = `${one}s`) => `${whole(count)} ${count === 1 ? one : many}`;

  // ----- elements
  /** `el("p.soft", {title: "…"}, "text", child)`: an element with classes, attributes, children. */
  function el(what, attributes, ...children) {
    const [tag, ...classes] = what.split(".");
    const made = document.createElement(tag || "div");
    if (classes.length) made.className = classes.join(" ");
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  }

  /** Set a text if it is another one: an unchanged node costs the browser nothing. */
  function say(node, text) {
    if (node.textContent !== text) node.textContent = text;
    return node;
  }

  /** Make the children of a parent those of the items, and keep those which stay. */
  function keep(parent, items, keyOf, make, update) {
    const there = parent.kept || (parent.kept = new Map());
    const next = new Map();
    let place = parent.firstChild;
    for (const [index, item] of items.entries()) {
      let key = keyOf(item, index);
      while (next.has(key)) key += "'";
      const node = there.get(key) || make(item);
      there.delete(key);
      next.set(key, node);
      if (update) update(node, item, index);
      if (node === place) place = place.nextSibling;
      else parent.insertBefore(node, place);
    }
    for (const node of there.values()) node.remove();
    parent.kept = next;
  }

  // ----- colours: those of the style sheet, also on canvases
  const colours = new Map();
  function colour(name) {
    if (!colours.has(name)) {
      const style = getComputedStyle(document.documentElement);
      colours.set(name, style.getPropertyValue(`--${name}`).trim() || "#888");
    }
    return colours.get(name);
  }
  const onScheme = [];
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    colours.clear();
    for (const redraw of onScheme) redraw();
  });

  // ----- the hover text
  const tip = document.getElementById("tip");
  function showTip(text, x, y) {
    say(tip, text);
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.max(8, Math.min(x + 14, innerWidth - box.width - 8));
    const top = y - box.height - 12 < 8 ? y + 18 : y - box.height - 12;
    tip.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  }
  const hideTip = () => { tip.hidden = true; };
  addEventListener("scroll", hideTip, { passive: true });

  return { DOING, NONE, isNumber, number, whole, percent, money, duration, moment, plural, el, say,
    keep, colour, onScheme, showTip, hideTip };
})();
