// What the time of each pool went to: stacked areas, and a lane for each worker or node. Areas and
// lanes share one span of run time, to which a reader zooms by drag, by keys or by buttons.
"use strict";

Spotlight.Pools = (() => {
  const { el, say, keep, duration, percent, colour, DOING, plural, showTip, hideTip } = Spotlight;
  const GUTTER = 84;
  const RIGHT = 14;
  const AXIS = 20;
  const AREA = 92;
  const HEADING = 20;
  const STEPS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200,
    14400, 21600, 43200, 86400, 172800, 432000, 864000];
  const MARK_COLOURS = { notice: "wait", lost: "bad", restart: "rollout", alert: "bad" };

  const font = (size) => `${size}px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif`;

  /** A canvas that is as sharp as the screen, with its context in CSS pixels. */
  function prepared(canvas, width, height) {
    const ratio = devicePixelRatio || 1;
    const wide = Math.round(width * ratio);
    const high = Math.round(height * ratio);
    if (canvas.width !== wide) canvas.width = wide;
    if (canvas.height !== high) canvas.height = high;
    canvas.style.height = `${height}px`;
    const ctx = canvas.getContext("2d");
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.clearRect(0, 0, width, height);
    return ctx;
  }

  class Pools {
    /** `ask(from_s, to_s)` gives finer areas and lanes of a span, or null if there are none. */
    constructor(ask) {
      this.ask = ask;
      this.view = null;
      this.span = null;
      this.detail = null;
      this.asked = 0;
      this.timer = 0;
      this.range = el("p.readout", { "aria-live": "polite" });
      this.areas = el("div.areas");
      this.shares = el("div.pool-shares");
      this.lanesTitle = el("h3");
      this.lanes = this.makeHost("div.lanes");
      this.wholeButton = el("button", { type: "button", disabled: true,
        onclick: () => this.zoomTo(null) }, "Whole run");
      this.root = el("section.panel", { id: "pools", "aria-labelledby": "pools-title" },
        el("div.head", null, el("h2", { id: "pools-title" }, "What each pool’s time went to"),
          el("div.tools", null, el("div.zoom", null,
            el("button", { type: "button", "aria-label": "Zoom in",
              onclick: () => this.scale(0.5) }, "+"),
            el("button", { type: "button", "aria-label": "Zoom out",
              onclick: () => this.scale(2) }, "−"), this.wholeButton))),
        this.range, this.shares, this.areas, this.lanesTitle, this.lanes);
      Spotlight.onScheme.push(() => this.draw());
      new ResizeObserver(() => this.draw()).observe(this.areas);
    }

    makeHost(what) {
      const canvas = el("canvas");
      const brush = el("div.brush", { hidden: true });
      const host = el(what, { tabindex: "0", role: "img" }, canvas, brush);
      host.classList.add("timed");
      Object.assign(host, { canvas, brush });
      this.listen(host);
      return host;
    }

    // ----- what is shown
    show(view) {
      this.view = view;
      if (this.span && this.span[0] >= this.end()) this.span = this.detail = null;
      this.showShares();
      this.draw();
    }

    showShares() {
      const pools = Object.entries(this.view.pools);
      keep(this.shares, pools, ([name]) => name, ([name]) => {
        const list = el("ul.legend");
        const node = el("div", null, el("h3", null, name, el("span.soft")), list);
        return Object.assign(node, { list, count: node.firstChild.lastChild });
      }, (node, [, pool]) => {
        const total = Object.values(pool.seconds).reduce((sum, part) => sum + part, 0);
        say(node.count, ` ${plural(pool.workers, "GPU worker")}, ${duration(total)} of their time`);
        const parts = this.view.states.filter((state) => pool.seconds[state] > 0);
        keep(node.list, parts, (state) => state, (state) => el("li", null, el(`i.c-${state}`),
          el("b"), el("span", null, DOING[state] || state)), (item, state) =>
          say(item.children[1], percent(pool.seconds[state] / total)));
      });
    }

    end() {
      const { edges } = this.view.areas;
      let end = Math.max(this.view.job.time_s || 0, edges.length ? edges[edges.length - 1] : 0);
      for (const lane of this.view.lanes) {
        if (lane.parts.length) end = Math.max(end, lane.parts[lane.parts.length - 1][2]);
      }
      return end || 1;
    }

    /** Where it begins: old runs may have lost the beginning of what they recorded. */
    begin() {
      const { edges } = this.view.areas;
      return edges.length ? Math.min(edges[0], 0) : 0;
    }

    draw() {
      if (!this.view || !this.root.isConnected) return;
      const source = this.detail && this.span ? this.detail : this.view;
      const [from, to] = this.span || [this.begin(), this.end()];
      this.from = from;
      this.to = to;
      this.wholeButton.disabled = this.span === null;
      say(this.range, `${duration(from)} to ${duration(to)}${this.span ? "" : ", the whole run"}. `
        + "Drag across to zoom; with the keyboard +, −, arrows and 0.");
      const pools = Object.entries(source.areas.pools);
      keep(this.areas, pools, ([name]) => name, () => this.makeHost("div.area"),
        (host, [name, states], place) => this.drawArea(host, name, states, source.areas.edges,
          place === pools.length - 1));
      this.drawLanes(source.lanes);
    }

    x(time) {
      return GUTTER + (time - this.from) / (this.to - this.from) * (this.width - GUTTER - RIGHT);
    }

    time(x) {
      const share = (x - GUTTER) / (this.width - GUTTER - RIGHT);
      return this.from + Math.max(0, Math.min(1, share)) * (this.to - this.from);
    }

    // ----- areas
    drawArea(host, name, states, edges, hasAxis) {
      const width = this.width = host.clientWidth || 300;
      const ctx = prepared(host.canvas, width, AREA + (hasAxis ? AXIS : 6));
      const count = Math.max(0, edges.length - 1);
      const tops = new Float64Array(count);
      const present = this.view.states.filter((state) => states[state]);
      for (const state of present) {
        for (let i = 0; i < count; i += 1) tops[i] += states[state][i] || 0;
      }
      // One bucket with more than there were, such as time that was told late, is cut off.
      const usual = tops.slice().sort()[Math.floor(0.98 * (count - 1))] || 0;
      const most = Math.max(this.view.pools[name]?.workers || 0, usual) || 1;
      ctx.fillStyle = colour("track");
      ctx.fillRect(GUTTER, 4, width - GUTTER - RIGHT, AREA - 4);
      ctx.save();
      ctx.beginPath();
      ctx.rect(GUTTER, 0, width - GUTTER - RIGHT, AREA);
      ctx.clip();
      const below = new Float64Array(count);
      const y = (value) => AREA - value / most * (AREA - 4);
      for (const state of present) {
        const values = states[state];
        ctx.fillStyle = colour(state);
        for (let i = 0; i < count; i += 1) {
          if (!(values[i] > 0)) continue;
          const left = Math.floor(this.x(edges[i]));
          const right = Math.max(left + 1, Math.floor(this.x(edges[i + 1])));
          const top = y(below[i] + values[i]);
          ctx.fillRect(left, top, right - left, y(below[i]) - top);
          below[i] += values[i];
        }
      }
      this.drawMarks(ctx, 0, AREA);
      ctx.restore();
      ctx.fillStyle = colour("ink");
      ctx.font = font(12.5);
      ctx.fillText(shorten(ctx, name, GUTTER - 12), 0, AREA / 2);
      ctx.fillStyle = colour("soft");
      ctx.font = font(11);
      ctx.fillText(plural(Math.round(most), "worker"), 0, AREA / 2 + 15);
      if (hasAxis) this.drawAxis(ctx, AREA);
      host.at = (time) => this.areaText(name, states, edges, time);
      host.setAttribute("aria-label", this.areaLabel(name));
    }

    areaText(name, states, edges, time) {
      let place = edges.findIndex((edge) => edge > time) - 1;
      if (place < 0) place = time >= edges[edges.length - 1] ? edges.length - 2 : -1;
      if (place < 0) return "";
      const lines = this.view.states.filter((state) => states[state]?.[place] > 0.005)
        .map((state) => `${DOING[state] || state} ${states[state][place].toFixed(1)}`);
      return [`${name}, ${duration(edges[place])} to ${duration(edges[place + 1])}: workers`,
        ...(lines.length ? lines : ["none"])].join("\n");
    }

    areaLabel(name) {
      const pool = this.view.pools[name];
      if (!pool) return `What the pool ${name} did over time.`;
      const total = Object.values(pool.seconds).reduce((sum, part) => sum + part, 0) || 1;
      const parts = this.view.states.filter((state) => pool.seconds[state] > 0)
        .map((state) => `${percent(pool.seconds[state] / total)} ${DOING[state] || state}`);
      return `What the ${plural(pool.workers, "worker")} of pool ${name} did over time: `
        + `${parts.join(", ")}.`;
    }

    // ----- lanes
    drawLanes(lanes) {
      const host = this.lanes;
      const areNodes = lanes.length > 0 && lanes.every((lane) => !lane.name.includes("/"));
      this.lanesTitle.hidden = host.hidden = lanes.length === 0;
      if (!lanes.length) return;
      say(this.lanesTitle, `${plural(lanes.length, areNodes ? "node" : "worker")}, one lane each`);
      const row = Math.max(4, Math.min(20, Math.floor(560 / lanes.length)));
      const bar = row > 8 ? row - 3 : row - 1;
      const places = [];
      let y = 0;
      let pool = null;
      for (const lane of lanes) {
        if (lane.pool !== pool) {
          pool = lane.pool;
          places.push({ heading: pool, y });
          y += HEADING;
        }
        places.push({ lane, y });
        y += row;
      }
      const width = this.width = host.clientWidth || 300;
      const ctx = prepared(host.canvas, width, y + AXIS);
      this.drawRows(ctx, places, width, row, bar);
      ctx.save();
      ctx.beginPath();
      ctx.rect(GUTTER, 0, width - GUTTER - RIGHT, y);
      ctx.clip();
      for (const { lane, y: top } of places) if (lane) this.drawLane(ctx, lane, top, bar);
      this.drawMarks(ctx, HEADING, y);
      ctx.restore();
      this.drawAxis(ctx, y);
      host.at = (time, down) => this.laneText(places, row, time, down);
      host.setAttribute("aria-label", `${this.lanesTitle.textContent}: what each did from `
        + `${duration(this.from)} to ${duration(this.to)}. The shares are above in words.`);
    }

    drawRows(ctx, places, width, row, bar) {
      ctx.textBaseline = "middle";
      for (const { heading, lane, y } of places) {
        if (heading !== undefined) {
          ctx.font = `600 ${font(11.5)}`;
          ctx.fillStyle = colour("ink");
          ctx.fillText(heading, 0, y + HEADING / 2 + 1);
          continue;
        }
        ctx.fillStyle = colour("track");
        ctx.fillRect(GUTTER, y, width - GUTTER - RIGHT, bar);
        if (row < 9) continue;
        ctx.font = font(Math.min(11.5, row - 0.5));
        ctx.fillStyle = colour("soft");
        ctx.fillText(shorten(ctx, lane.name, GUTTER - 10), 0, y + bar / 2 + 0.5);
      }
      ctx.textBaseline = "alphabetic";
    }

    drawLane(ctx, lane, y, height) {
      for (const [place, start, end] of lane.parts) {
        if (end <= this.from || start >= this.to) continue;
        const left = this.x(start);
        ctx.fillStyle = colour(this.view.states[place]);
        ctx.fillRect(left, y, Math.max(0.6, this.x(end) - left), height);
      }
    }

    laneText(places, row, time, down) {
      const found = places.find(({ lane, y }) => lane && down >= y && down < y + row);
      if (!found) return "";
      const { lane } = found;
      const part = lane.parts.find(([, start, end]) => time >= start && time < end);
      const what = part ? DOING[this.view.states[part[0]]] || this.view.states[part[0]] : "not there";
      return `${lane.name}, ${lane.pool}\n${what}`
        + (part ? `, ${duration(part[1])} to ${duration(part[2])}` : `, ${duration(time)}`);
    }

    // ----- both
    drawMarks(ctx, top, bottom) {
      const { marks } = this.view;
      ctx.save();
      ctx.globalAlpha = marks.length > 60 ? 0.35 : 0.8;
      ctx.setLineDash([2, 3]);
      for (const mark of marks) {
        if (!MARK_COLOURS[mark.kind] || mark.time_s < this.from || mark.time_s > this.to) continue;
        ctx.strokeStyle = colour("ink");
        ctx.beginPath();
        ctx.moveTo(Math.round(this.x(mark.time_s)) + 0.5, top);
        ctx.lineTo(Math.round(this.x(mark.time_s)) + 0.5, bottom);
        ctx.stroke();
      }
      ctx.restore();
    }

    drawAxis(ctx, y) {
      const room = Math.max(1, Math.floor((this.width - GUTTER - RIGHT) / 72));
      const wide = (this.to - this.from) / room;
      const step = STEPS.find((size) => size >= wide) || Math.ceil(wide / 864000) * 864000;
      ctx.fillStyle = colour("soft");
      ctx.font = font(11);
      ctx.textAlign = "center";
      for (let tick = Math.ceil(this.from / step) * step; tick <= this.to; tick += step) {
        const x = this.x(tick);
        if (x > this.width - 24) break;
        ctx.fillText(duration(Math.round(tick * 10) / 10), x, y + 14);
      }
      ctx.textAlign = "start";
    }

    // ----- zoom
    listen(host) {
      let begun = null;
      const place = (event) => {
        const box = host.getBoundingClientRect();
        return [event.clientX - box.left, event.clientY - box.top];
      };
      host.addEventListener("pointerdown", (event) => {
        if (event.button !== 0) return;
        [begun] = place(event);
        host.setPointerCapture(event.pointerId);
      });
      host.addEventListener("pointermove", (event) => {
        const [x, y] = place(event);
        if (begun === null) {
          const text = x >= GUTTER && host.at ? host.at(this.time(x), y) : "";
          if (text) showTip(text, event.clientX, event.clientY);
          else hideTip();
          return;
        }
        hideTip();
        const left = Math.max(GUTTER, Math.min(begun, x));
        const right = Math.min(this.width - RIGHT, Math.max(begun, x));
        host.brush.hidden = right - left < 4;
        host.brush.style.left = `${left}px`;
        host.brush.style.width = `${Math.max(0, right - left)}px`;
      });
      const end = (event) => {
        if (begun === null) return;
        const [x] = place(event);
        const [from, to] = [this.time(Math.min(begun, x)), this.time(Math.max(begun, x))];
        if (event.type === "pointerup" && Math.abs(x - begun) > 5) this.zoomTo([from, to]);
        begun = null;
        host.brush.hidden = true;
      };
      host.addEventListener("pointerup", end);
      host.addEventListener("pointercancel", end);
      host.addEventListener("pointerleave", hideTip);
      host.addEventListener("dblclick", () => this.zoomTo(null));
      host.addEventListener("keydown", (event) => this.key(event));
    }

    key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "+" || event.key === "=") this.scale(0.5);
      else if (event.key === "-") this.scale(2);
      else if (event.key === "0" || event.key === "Escape") this.zoomTo(null);
      else if (event.key === "ArrowLeft") this.pan(-0.2);
      else if (event.key === "ArrowRight") this.pan(0.2);
      else return;
      event.preventDefault();
    }

    scale(by) {
      if (!this.view) return;
      const [from, to] = this.span || [this.begin(), this.end()];
      const middle = (from + to) / 2;
      this.zoomTo([middle - (middle - from) * by, middle + (to - middle) * by]);
    }

    pan(by) {
      if (!this.span) return;
      const [from, to] = this.span;
      const move = Math.max(this.begin() - from, Math.min(this.end() - to, (to - from) * by));
      this.zoomTo([from + move, to + move]);
    }

    zoomTo(span) {
      if (!this.view) return;
      const [first, last] = [this.begin(), this.end()];
      const kept = span && [Math.max(first, span[0]), Math.min(last, span[1])];
      const isWhole = !kept || (kept[0] <= first && kept[1] >= last);
      this.span = isWhole || kept[1] - kept[0] < 0.05 ? (isWhole ? null : this.span) : kept;
      if (isWhole) this.detail = null;
      this.draw();
      this.refine();
    }

    /** Ask for a finer resolution of the span, a moment after the last zoom. */
    refine() {
      clearTimeout(this.timer);
      const asked = this.asked += 1;
      if (!this.span) return;
      const [from, to] = this.span;
      this.timer = setTimeout(async () => {
        const found = await this.ask(from, to);
        if (!found || asked !== this.asked) return;
        this.detail = found;
        this.draw();
      }, 120);
    }
  }

  function shorten(ctx, text, room) {
    if (ctx.measureText(text).width <= room) return text;
    let kept = text;
    while (kept && ctx.measureText(`…${kept}`).width > room) kept = kept.slice(1);
    return `…${kept}`;
  }

  return Pools;
})();
