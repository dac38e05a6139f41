// The wall of pictures: the same prompts and seeds over versions of the weights, the best and worst
// of an iteration, and a dialog that shows one at full size.
"use strict";

Spotlight.Pictures = (() => {
  const { el, say, keep, number, isNumber, plural } = Spotlight;

  const versionOf = (shown) => `v${shown.weights_version}`;
  const rewardOf = (shown) => isNumber(shown.reward) ? number(shown.reward, 2) : "";

  class Pictures {
    /** `address(path)` is where a picture of the run folder is found. */
    constructor(address) {
      this.address = address;
      this.rows = [];
      this.wall = el("div.wall");
      this.extremes = el("div.extremes");
      this.about = el("p.readout");
      this.root = el("section.panel", { id: "pictures", "aria-labelledby": "pictures-title" },
        el("div.head", null,
          el("h2", { id: "pictures-title" }, "The same prompts and seeds, over versions")),
        this.about, this.wall, this.extremes);
      this.makeDialog();
    }

    makeDialog() {
      this.image = el("img", { alt: "" });
      this.words = el("p.prompt");
      this.facts = el("p.soft");
      this.before = el("button", { type: "button", "aria-label": "Picture before",
        onclick: () => this.move(0, -1) }, "←");
      this.after = el("button", { type: "button", "aria-label": "Picture after",
        onclick: () => this.move(0, 1) }, "→");
      const close = el("button", { type: "button", onclick: () => this.dialog.close() }, "Close");
      this.dialog = el("dialog", { "aria-label": "Picture at full size",
        onkeydown: (event) => this.key(event),
        onclick: (event) => { if (event.target === this.dialog) this.dialog.close(); },
        onclose: () => this.image.removeAttribute("src") },
      el("div.full", null, this.image, el("div.beside", null, this.words, this.facts,
        el("div.zoom", null, this.before, this.after, close))));
      document.body.append(this.dialog);
    }

    show(view) {
      const { wall, best, worst } = view.pictures;
      const rows = wall.filter((row) => row.length);
      this.root.hidden = !rows.length && !best.length && !worst.length;
      const extremes = [["Best of the latest iteration", best],
        ["Worst of the latest iteration", worst]].filter(([, row]) => row.length);
      this.rows = [...rows, ...extremes.map(([, row]) => row)];
      const most = rows.reduce((count, row) => Math.max(count, row.length), 0);
      say(this.about, rows.length ? `${plural(rows.length, "prompt")}, ${plural(most, "version")}, `
        + "with the reward of each. Select a picture for its full size." : "");
      keep(this.wall, rows, (row, place) => `${place} ${row[0].seed} ${row[0].prompt}`,
        () => this.makeRow(), (node, row, place) => this.fillRow(node, row, place));
      keep(this.extremes, extremes, ([title]) => title, ([title]) => {
        const node = this.makeRow();
        say(node.words, title);
        return node;
      }, (node, [, row], place) => this.fillStrip(node, row, rows.length + place));
      this.fit();
    }

    fit() {
      for (const list of [this.wall, this.extremes]) {
        const most = [...list.children].reduce((count, { strip }) =>
          Math.max(count, strip.childElementCount), 0);
        const wide = Math.max(220, most * ((this.wide || 96) + 10) + 6);
        // Of many prompts, two stand side by side on a wide screen, whatever has to be scrolled.
        list.style.setProperty("--row", `${list.childElementCount > 4 ? Math.min(556, wide) : wide}px`);
      }
    }

    makeRow() {
      const words = el("p.prompt");
      const strip = el("ul.strip");
      return Object.assign(el("div.pictures", null, words, strip), { words, strip });
    }

    fillRow(node, row, place) {
      const { prompt, seed } = row[row.length - 1];
      say(node.words, prompt || "No prompt");
      node.words.title = prompt + (isNumber(seed) ? `\nseed ${seed}` : "");
      this.fillStrip(node, row, place);
    }

    fillStrip(node, row, place) {
      const { strip } = node;
      const isAtEnd = strip.scrollLeft + strip.clientWidth >= strip.scrollWidth - 8;
      const before = strip.childElementCount;
      keep(strip, row, (shown) => shown.thumb, (shown) => this.makePicture(shown),
        (item, shown, index) => {
          item.place = [place, index];
          say(item.version, versionOf(shown));
          say(item.reward, rewardOf(shown));
        });
      if (isAtEnd && before !== row.length && place < this.wall.childElementCount) {
        requestAnimationFrame(() => { strip.scrollLeft = strip.scrollWidth; });
      }
    }

    /** All pictures of a run are of one shape, which the first says. Rows are as wide as they need
        to be, so that those of a few versions stand side by side. */
    shape(image) {
      if (this.isShaped || !image.naturalHeight) return;
      this.isShaped = true;
      const ratio = image.naturalWidth / image.naturalHeight;
      this.wide = Math.round(Math.max(64, Math.min(110, 96 * ratio)));
      this.root.style.setProperty("--wide", `${this.wide}px`);
      this.root.style.setProperty("--high", `${Math.round(this.wide / ratio)}px`);
      this.fit();
      for (const { strip } of this.wall.children) strip.scrollLeft = strip.scrollWidth;
    }

    makePicture(shown) {
      const image = el("img", { src: this.address(shown.thumb), alt: "", loading: "lazy",
        decoding: "async", onload: () => {
          if (image.naturalWidth <= 96) image.classList.add("crisp");
          this.shape(image);
        } });
      const words = `${versionOf(shown)}, reward ${rewardOf(shown) || "not known"}: ${shown.prompt}`;
      const item = el("li");
      const button = el("button.thumb", { type: "button", "aria-label": words,
        onclick: () => this.open(...item.place) }, image);
      const version = el("span");
      const reward = el("b");
      item.append(button, el("span.under", null, version, reward));
      return Object.assign(item, { version, reward });
    }

    // ----- the dialog
    open(row, index) {
      this.at = [row, index];
      const shown = this.rows[row][index];
      this.image.src = this.address(shown.full || shown.thumb);
      this.image.alt = shown.prompt;
      this.image.classList.toggle("crisp", false);
      this.image.onload = () =>
        this.image.classList.toggle("crisp", this.image.naturalWidth <= 256);
      say(this.words, shown.prompt || "No prompt");
      say(this.facts, [`weights ${versionOf(shown)}`,
        isNumber(shown.reward) ? `reward ${number(shown.reward)}` : "reward not known",
        isNumber(shown.seed) ? `seed ${shown.seed}` : "",
        shown.full ? "" : "only the thumbnail is kept"].filter(Boolean).join(" · "));
      this.before.disabled = index === 0;
      this.after.disabled = index === this.rows[row].length - 1;
      if (!this.dialog.open) this.dialog.showModal();
    }

    move(rows, places) {
      const row = Math.max(0, Math.min(this.rows.length - 1, this.at[0] + rows));
      const index = Math.max(0, Math.min(this.rows[row].length - 1, this.at[1] + places));
      this.open(row, index);
    }

    key(event) {
      const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
      if (!(event.key in moves)) return;
      this.move(...moves[event.key]);
      event.preventDefault();
    }
  }

  return Pictures;
})();
