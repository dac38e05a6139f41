// The curves of a run against dollars, time or iterations, with what happened marked across them.
// All charts share one axis, one zoom and one cursor.
"use strict";

Spotlight.Curves = (() => {
  const { el, say, keep, number, money, duration, whole, colour, isNumber, plural } = Spotlight;

  const CHARTS = [
    { title: "Reward and validation", big: true, series: [
      ["reward", "reward", "rollout"], ["validation", "validation", "evaluate"]] },
    { title: "Loss", series: [["loss", "loss", "train"]] },
    { title: "Gradient norm", series: [["grad_norm", "norm", "score"]] },
    { title: "Learning rate", series: [["learning_rate", "rate", "rollout"]] },
    { title: "KL divergence", series: [["kl", "KL", "score"]] },
    { title: "Contrast", series: [
      ["contrast", "kept", "explore"], ["contrast_at_random", "random", "soft"]] },
    { title: "Rank fidelity of previews", series: [["fidelity", "fidelity", "evaluate"]] },
  ];
  const AXES = [["usd", "dollars"], ["time_s", "time"], ["iteration", "iterations"]];
  const MARK_COLOURS = { notice: "wait", lost: "bad", restart: "rollout", segment: "soft",
    alert: "bad" };
  const MOST_LABELS = 16;
  const FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";

  /** The x values and a column for each name, of the rows that have an x and go on. */
  function columns(view, x, names) {
    const places = names.map((name) => view.columns.indexOf(name));
    const xPlace = view.columns.indexOf(x);
    const data = [[], ...names.map(() => [])];
    let last = -Infinity;
    for (const row of view.rows) {
      const value = row[xPlace];
      if (!isNumber(value) || value < last) continue;
      last = value;
      data[0].push(value);
      for (let i = 0; i < places.length; i += 1) {
        const y = places[i] < 0 ? null : row[places[i]];
        data[i + 1].push(isNumber(y) ? y : null);
      }
    }
    return data;
  }

  const hasAny = (values) => values.some((value) => value !== null && value !== undefined);

  class Curves {
    constructor() {
      this.axis = "iteration";
      this.isChosen = false;
      this.zoom = null;
      this.charts = [];
      this.view = null;
      this.other = null;
      this.tools = this.makeTools();
      this.grid = el("div.charts");
      this.missing = el("p.soft.small");
      this.readout = el("p.readout", { "aria-live": "off" });
      this.root = el("section.panel", { id: "curves", "aria-labelledby": "curves-title" },
        el("div.head", null, el("h2", { id: "curves-title" }, "Curves"), this.tools),
        this.readout, this.grid, this.missing);
      Spotlight.onScheme.push(() => this.redraw());
      this.sizes = new ResizeObserver((entries) => {
        for (const entry of entries) this.resize(entry.target);
      });
    }

    makeTools() {
      this.choices = AXES.map(([key, text]) => {
        const input = el("input", { type: "radio", name: "x-axis", value: key,
          onchange: () => this.choose(key, true) });
        return { key, input, label: el("label", null, input, el("span", null, text)) };
      });
      this.whole = el("button", { type: "button", disabled: true,
        onclick: () => this.zoomTo(null) }, "Whole run");
      return el("div.tools", null,
        el("fieldset.switch", { "aria-label": "What the curves are drawn against" },
          ...this.choices.map((choice) => choice.label)),
        el("div.zoom", null,
          el("button", { type: "button", "aria-label": "Zoom in", onclick: () => this.scale(0.5) },
            "+"),
          el("button", { type: "button", "aria-label": "Zoom out", onclick: () => this.scale(2) },
            "−"),
          this.whole));
    }

    // ----- what is shown
    show(view, other) {
      this.view = view;
      this.other = other && other.view;
      this.otherName = other ? other.name : "";
      const usd = view.columns.indexOf("usd");
      const isPriced = view.rows.some((row) => isNumber(row[usd]));
      if (!this.isChosen) this.axis = isPriced ? "usd" : "time_s";
      if (!isPriced && this.axis === "usd") this.axis = "time_s";
      for (const { key, input, label } of this.choices) {
        input.disabled = key === "usd" && !isPriced;
        label.title = input.disabled ? "Unpriced: no price of a GPU is known." : "";
        input.checked = key === this.axis;
      }
      this.fill();
    }

    choose(axis, byHand) {
      this.axis = axis;
      this.isChosen = this.isChosen || byHand;
      this.zoom = null;
      for (const { key, input } of this.choices) input.checked = key === axis;
      if (this.view) this.fill();
    }

    fill() {
      const wanted = [];
      const missing = [];
      for (const chart of CHARTS) {
        const names = chart.series.map(([name]) => name);
        const own = columns(this.view, this.axis, names);
        if (!own.slice(1).some(hasAny)) {
          missing.push(chart.title);
          continue;
        }
        const others = this.other && columns(this.other, this.axis, names);
        const isCompared = Boolean(others && others[0].length);
        wanted.push({ chart, own, data: isCompared ? uPlot.join([own, others]) : own, isCompared });
      }
      const empty = wanted.length === 0;
      say(this.missing, empty ? "No iteration is done yet: the curves begin with the first."
        : missing.length ? `Not recorded in this run: ${missing.join(", ")}.` : "");
      this.charts = [];
      keep(this.grid, wanted, ({ chart }) => chart.title, ({ chart }) => this.makeFigure(chart),
        (node, item) => this.update(node, item));
      this.whole.disabled = this.zoom === null;
      this.readOut(null);
    }

    makeFigure(chart) {
      const host = el("div.plot", { tabindex: "0", role: "img",
        onkeydown: (event) => this.key(event) });
      const names = chart.series.map(([, text, hue]) =>
        el("li", null, el("i.line.c-" + hue), el("span", null, text), el("b")));
      const legend = el("ul.legend", { "aria-hidden": "true" }, ...names);
      const figure = el(chart.big ? "figure.big" : "figure", null,
        el("figcaption", null, el("h3", null, chart.title), legend), host);
      Object.assign(figure, { host, chart, values: names.map((item) => item.lastChild) });
      this.sizes.observe(host);
      return figure;
    }

    update(figure, { chart, own, data, isCompared }) {
      this.charts.push(figure);
      figure.own = own;
      figure.host.setAttribute("aria-label", this.describe(chart, own));
      if (figure.plot && figure.isCompared === isCompared) {
        figure.plot.setData(data);
        return;
      }
      if (figure.plot) figure.plot.destroy();
      figure.isCompared = isCompared;
      const width = figure.host.clientWidth || 300;
      figure.plot = new uPlot(this.options(chart, width, isCompared), data, figure.host);
    }

    describe(chart, own) {
      const parts = chart.series.map(([, text], index) => {
        const values = own[index + 1].filter(isNumber);
        if (!values.length) return `${text}: none yet`;
        const least = values.reduce((a, b) => Math.min(a, b));
        const most = values.reduce((a, b) => Math.max(a, b));
        return `${text} from ${number(values[0])} to ${number(values[values.length - 1])}, `
          + `between ${number(least)} and ${number(most)}`;
      });
      return `${chart.title} against ${AXES.find(([key]) => key === this.axis)[1]}. `
        + `${parts.join("; ")}. Arrows move the cursor, plus and minus zoom, 0 shows the whole run.`;
    }

    // ----- uPlot
    options(chart, width, isCompared) {
      const series = chart.series.map(([name, , hue]) => this.series(name, hue, false));
      if (isCompared) series.push(...chart.series.map(([name, , hue]) =>
        this.series(name, hue, true)));
      const axis = {
        stroke: () => colour("soft"), font: FONT, gap: 4,
        grid: { stroke: () => colour("grid"), width: 1 }, ticks: { show: false },
      };
      return {
        width, height: chart.big ? 260 : 136, legend: { show: false }, pxAlign: 1,
        padding: [chart.big ? 14 : 8, 18, 0, 0],
        scales: { x: { time: false, range: (_, low, high) => this.range(low, high) },
          y: { range: (_, low, high) => yRange(low, high) } },
        axes: [
          { ...axis, size: 24, space: 70, grid: { show: false },
            values: (_, ticks) => ticks.map((tick) => this.xText(tick)) },
          { ...axis, size: 48, space: chart.big ? 36 : 30,
            values: (_, ticks, place, space, step) => ticks.map((tick) => yText(tick, step)) },
        ],
        series: [{}, ...series],
        cursor: {
          sync: { key: "spotlight-curves" }, y: false, points: { size: 7 },
          drag: { x: true, y: false, setScale: false },
          bind: { dblclick: () => () => { this.zoomTo(null); return null; } },
        },
        hooks: {
          drawAxes: [(plot) => this.drawMarks(plot, chart.big)],
          setCursor: [(plot) => this.moved(plot)],
          setSelect: [(plot) => this.selected(plot)],
        },
      };
    }

    series(name, hue, isOther) {
      const isSparse = name === "validation" || name === "contrast_at_random";
      return {
        stroke: () => colour(hue), width: isOther ? 1.25 : 1.75, spanGaps: true,
        alpha: isOther ? 0.6 : 1, dash: isOther ? [4, 4] : undefined,
        points: { show: (plot, place) => (isSparse && !isOther && plot.data[0].length <= 400)
          || plot.data[place].filter(isNumber).length < 3,
          size: 5, fill: () => colour(hue), stroke: () => colour(hue) },
      };
    }

    range(low, high) {
      if (this.zoom) return this.zoom;
      if (!isNumber(low)) return [0, 1];
      return low === high ? [low - 0.5, high + 0.5] : [low, high];
    }

    xText(value) {
      if (this.axis === "usd") return money(value, this.view.money.currency).replace(/\.00$/, "");
      if (this.axis === "time_s") return duration(value);
      return Number.isInteger(value) ? whole(value) : "";
    }

    /** Dashed lines where something happened; on the large chart with words, where they fit. */
    drawMarks(plot, hasWords) {
      const marks = this.view.marks;
      if (!marks.length) return;
      const { ctx } = plot;
      const { left, top, width, height } = plot.bbox;
      const ratio = devicePixelRatio || 1;
      ctx.save();
      ctx.setLineDash([2 * ratio, 3 * ratio]);
      ctx.lineWidth = ratio;
      ctx.font = FONT.replace("11px", `${10.5 * ratio}px`);
      ctx.textAlign = "left";
      ctx.textBaseline = "alphabetic";
      const ends = [-Infinity, -Infinity];
      const hasLabels = hasWords && marks.length <= MOST_LABELS;
      ctx.globalAlpha = marks.length > 60 ? 0.35 : 0.75;
      for (const mark of marks) {
        const x = isNumber(mark[this.axis]) ? plot.valToPos(mark[this.axis], "x", true) : NaN;
        if (!(x >= left && x <= left + width)) continue;
        ctx.strokeStyle = ctx.fillStyle = colour(MARK_COLOURS[mark.kind] || "soft");
        ctx.beginPath();
        ctx.moveTo(Math.round(x) + 0.5, top);
        ctx.lineTo(Math.round(x) + 0.5, top + height);
        ctx.stroke();
        if (!hasLabels) continue;
        const room = ctx.measureText(mark.text).width;
        const row = ends.findIndex((end) => x > end);
        if (row < 0 || x + room + 6 * ratio > left + width) continue;
        ctx.fillText(mark.text, x + 4 * ratio, top + (2 + 12 * row) * ratio);
        ends[row] = x + room + 14 * ratio;
      }
      ctx.restore();
    }

    // ----- the cursor
    moved(plot) {
      if (plot.cursor.left === undefined || plot.cursor.left < 0 || plot.cursor.idx === null) {
        this.readOut(null);
      } else if (plot.cursor.event || plot === this.charts[0]?.plot) {
        this.readOut(plot.posToVal(plot.cursor.left, "x"), plot);
      }
    }

    /** Write the values at an x, or the latest ones, beside the names of the curves. */
    readOut(x, plot) {
      for (const figure of this.charts) {
        const xs = figure.own[0];
        const place = x === null ? xs.length - 1 : nearest(xs, x);
        figure.values.forEach((node, index) => {
          const values = figure.own[index + 1];
          let at = place;
          while (at > 0 && values[at] === null) at -= 1;
          say(node, at >= 0 && isNumber(values[at]) ? number(values[at]) : "");
        });
      }
      say(this.readout, x === null ? this.hint() : this.where(x, plot));
    }

    hint() {
      const { marks } = this.view;
      if (this.zoom) return `${this.xText(this.zoom[0])} to ${this.xText(this.zoom[1])}. `
        + "Double click for the whole run.";
      const isDrawn = this.charts.some(({ isCompared }) => isCompared);
      const other = !this.other ? "" : isDrawn ? ` Dashed: ${this.otherName}.`
        : ` ${this.otherName} is unpriced: choose time or iterations to compare.`;
      return `Values of the latest iteration; drag across a chart to zoom.${other}`
        + (marks.length ? ` ${plural(marks.length, "event")} marked.` : "");
    }

    where(x, plot) {
      const xs = columns(this.view, this.axis, ["iteration", "time_s", "usd"]);
      const at = nearest(xs[0], x);
      if (at < 0) return "";
      const parts = [`Iteration ${whole(xs[1][at])}`, duration(xs[2][at])];
      if (isNumber(xs[3][at])) parts.push(money(xs[3][at], this.view.money.currency));
      const near = this.view.marks.filter((mark) => plot && isNumber(mark[this.axis])
        && Math.abs(plot.valToPos(mark[this.axis], "x") - plot.cursor.left) < 6);
      return [...parts, ...near.slice(0, 3).map((mark) => mark.text)].join(" · ");
    }

    key(event) {
      const plot = this.charts.find((figure) => figure.host === event.currentTarget)?.plot;
      if (!plot || event.ctrlKey || event.metaKey || event.altKey) return;
      const xs = plot.data[0];
      const step = event.shiftKey ? 10 : 1;
      const now = plot.cursor.idx ?? xs.length - 1;
      const moves = { ArrowLeft: now - step, ArrowRight: now + step, Home: 0, End: xs.length - 1 };
      if (event.key in moves) {
        const to = xs[Math.max(0, Math.min(xs.length - 1, moves[event.key]))];
        for (const figure of this.charts) {
          figure.plot.setCursor({ left: figure.plot.valToPos(to, "x"), top: 10 }, false, false);
        }
        this.readOut(to, plot);
      } else if (event.key === "+" || event.key === "=") this.scale(0.5, plot);
      else if (event.key === "-") this.scale(2, plot);
      else if (event.key === "0" || event.key === "Escape") this.zoomTo(null);
      else return;
      event.preventDefault();
    }

    // ----- zoom
    selected(plot) {
      if (plot.select.width < 5) return;
      const low = plot.posToVal(plot.select.left, "x");
      const high = plot.posToVal(plot.select.left + plot.select.width, "x");
      plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      this.zoomTo([low, high]);
    }

    scale(by, plot = this.charts[0]?.plot) {
      if (!plot) return;
      const { min, max } = plot.scales.x;
      const xs = plot.data[0];
      const first = xs[0];
      const last = xs[xs.length - 1];
      const at = plot.cursor.left >= 0 ? plot.posToVal(plot.cursor.left, "x") : (min + max) / 2;
      const low = Math.max(first, at - (at - min) * by);
      const high = Math.min(last, at + (max - at) * by);
      this.zoomTo(low <= first && high >= last ? null : [low, high]);
    }

    zoomTo(zoom) {
      this.zoom = zoom && zoom[1] > zoom[0] ? zoom : null;
      this.whole.disabled = this.zoom === null;
      for (const { plot } of this.charts) {
        const xs = plot.data[0];
        const [min, max] = this.zoom || this.range(xs[0], xs[xs.length - 1]);
        plot.setScale("x", { min, max });
      }
      this.readOut(null);
    }

    // ----- sizes and colours
    resize(host) {
      const figure = this.charts.find((one) => one.host === host);
      const width = host.clientWidth;
      if (figure?.plot && width && width !== figure.plot.width) {
        figure.plot.setSize({ width, height: figure.plot.height });
      }
    }

    redraw() {
      for (const { plot } of this.charts) plot.redraw(false, true);
    }
  }

  function yRange(low, high) {
    if (!isNumber(low)) return [0, 1];
    if (low === high) return low ? [low - Math.abs(low), low + Math.abs(low)] : [0, 1];
    return uPlot.rangeNum(low, high, 0.1, true);
  }

  /** A number of an axis, with as many digits as its steps need. */
  function yText(value, step) {
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    return digits > 3 || Math.abs(value) >= 1000 ? number(value) : value.toFixed(digits);
  }

  function nearest(xs, x) {
    let low = 0;
    let high = xs.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] < x) low = middle;
      else high = middle;
    }
    return high > low && Math.abs(xs[high] - x) < Math.abs(xs[low] - x) ? high : low <= high ? low : -1;
  }

  return Curves;
})();
